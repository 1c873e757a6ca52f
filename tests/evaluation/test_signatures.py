"""The verbs stay small: what serves one interval lives in it, and what describes a log lives in the log."""

import inspect

import pytest

import counterpoise as cp
from counterpoise.log.parts import PARTS

MOST = 12  # besides the parts of a log


@pytest.mark.parametrize(
    "verb",
    [cp.evaluate, cp.compare, cp.distribution, cp.sensitivity, cp.rank, cp.plan, cp.doctor, cp.sql],
    ids=lambda verb: verb.__name__,
)
def test_a_verb_has_few_parameters_besides_a_logs_own(verb):
    assert len(set(inspect.signature(verb).parameters) - set(PARTS)) <= MOST


def test_a_misspelled_argument_is_never_answered_with_one_that_the_verb_refuses():
    with pytest.raises(TypeError, match=r"segment.* Did you mean where\?"):
        cp.rank({"r": [1]}, reward="r", segment="country")
    with pytest.raises(TypeError) as error:
        cp.distribution({"r": [1]}, reward="r", contrl={"x": 0.0})
    assert "control" not in str(error.value)
