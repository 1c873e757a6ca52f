"""The kernels' arithmetic, in Triton's interpreter: their two passes are those of the blocks, but for the rounding of products."""

import os
import subprocess
import sys

import pytest
from learning import torch

from counterpoise.learn import blocks, kernels
from counterpoise.learn.blocks import Logits

pytest.importorskip("triton", reason="Triton is absent: it comes with the CUDA builds of PyTorch")
# Triton makes its own functions for the interpreter, or not, when it is imported
interpreter = pytest.mark.skipif(not kernels.INTERPRETED, reason="runs in a process of its own")


@pytest.mark.skipif(kernels.INTERPRETED, reason="this is that process")
def test_all_of_them_in_the_interpreter():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(
        command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "9 passed" in done.stdout


TOLERANCE = {"float32": 1e-5, "tf32": 3e-3, "bfloat16": 2e-2}  # of the whole tensor; bfloat16 keeps 8 bits of a number


def made(rows, items, width, bias):
    random = torch.Generator().manual_seed(rows + items + width)
    b = torch.randn(items, generator=random) if bias else None
    contexts, vectors = torch.randn(rows, width, generator=random), torch.randn(items, width, generator=random)
    return Logits(contexts, vectors / 2, b), torch.randint(items, (rows,), generator=random), torch.randn(rows)


def apart(found, expected):
    return float((found - expected).norm() / expected.norm())


@interpreter
@pytest.mark.parametrize(("rows", "items", "width", "bias"), [(70, 300, 5, True), (33, 700, 32, False)])
@pytest.mark.parametrize("precision", list(TOLERANCE))
def test_both_passes(rows, items, width, bias, precision):
    logits, action, scale = made(rows, items, width, bias)
    found = kernels.summary(logits, action, precision, mean=True)
    expected = blocks.summary(logits, action, mean=True)
    limit = TOLERANCE[precision]
    for name in ("logged", "log_total", "squares", "mean"):
        assert apart(getattr(found, name), getattr(expected, name)) < limit, name
    gradients = kernels.item_gradients(logits, found.log_total, scale, precision)
    for one, other in zip(gradients, blocks.item_gradients(logits, expected.log_total, scale), strict=True):
        assert (one is None) == (other is None)
        assert one is None or apart(one, other) < limit


@interpreter
@pytest.mark.parametrize("precision", list(TOLERANCE))
def test_the_logged_logit_fits_the_others(precision):
    """A policy that is sure of the logged action gives it a probability of 1, and never more."""
    contexts = 3 * torch.randn(20, 16, generator=torch.Generator().manual_seed(0))
    found = kernels.summary(Logits(contexts, contexts), torch.arange(20), precision, mean=False)
    assert (found.logged - found.log_total).abs().max() < 1e-3
    assert (found.logged <= found.log_total + 1e-4).all()
