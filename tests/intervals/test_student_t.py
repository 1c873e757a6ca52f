"""Student's distribution is SciPy's, without its import."""

import subprocess
import sys

import numpy as np
import pytest
from scipy import special

from counterpoise.intervals.student_t import LEAST, MANY, NORMAL, TAIL, normal_share, t_quantile, t_share

FREEDOM = (LEAST, 2.5, 3.0, 3.7, 8.0, 15.2, 59.0, 119.9, 400.0, NORMAL - 0.5, NORMAL, 1e4, 1e9, 4e12)
SHARES = (TAIL, 0.001, 0.0125, 0.025, 0.3, 0.5, 0.8, 0.975, 0.995, 1.0 - TAIL)


@pytest.mark.parametrize("freedom", FREEDOM)
def test_quantiles_and_shares_are_those_of_scipy(freedom):
    for share in SHARES:
        quantile = float(t_quantile(freedom, share))
        # the quantiles of SciPy 1.13 are off by 2e-11, its shares are not
        assert quantile == pytest.approx(float(special.stdtrit(freedom, share)), rel=1e-10, abs=1e-10)
        assert float(special.stdtr(freedom, quantile)) == pytest.approx(share, rel=1e-12)
        assert t_share(freedom, quantile) == pytest.approx(float(special.stdtr(freedom, quantile)), abs=1e-13)


def test_several_quantiles_are_those_of_each():
    freedom = np.array([[3.0, 10.0], [400.0, 1e6]])
    each = [[float(t_quantile(v, 0.975)) for v in row] for row in freedom.tolist()]
    np.testing.assert_allclose(t_quantile(freedom, 0.975), each, rtol=1e-14)


def test_what_is_out_of_reach_is_left_to_scipy():
    freedom = np.linspace(3.0, 50.0, MANY + 1)
    np.testing.assert_array_equal(t_quantile(freedom, 0.975), special.stdtrit(freedom, 0.975))
    for v, share in ((1.0, 0.975), (3.0, 1e-9), (np.inf, 0.975)):
        np.testing.assert_array_equal(t_quantile(v, share), special.stdtrit(v, share))
    assert t_share(3.0, -1e6) == float(special.stdtr(3.0, -1e6))


def test_the_normal_share_is_that_of_scipy():
    z = np.linspace(-8.0, 8.0, 101)
    np.testing.assert_allclose([normal_share(x) for x in z], special.ndtr(z), rtol=1e-13)


def test_printing_an_evaluation_does_not_import_scipy():
    log = "reward=[1, 0, 1, 1] * 50, propensity=[0.5, 0.5, 0.25, 0.5] * 50, target=[0.5, 0.25, 0.5, 0.25] * 50"
    code = f"import sys, counterpoise as cp; str(cp.evaluate({log})); sys.exit('scipy.special' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
