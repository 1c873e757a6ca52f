"""In which precision training computes, and whether it looks at all items."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from counterpoise.errors import Argument, OptionError
from counterpoise.learn.items import logged, sampled
from counterpoise.learn.items.kernels import Precision
from counterpoise.learn.items.logits import Logits, too_many


@dataclass(frozen=True)
class Arithmetic:
    """How a step computes: the precision of its products, how many items stand for all, and whether gradients may be sparse."""

    precision: Precision | None = None
    negatives: int | None = None
    sparse: bool = False

    def by_items(self, rows: int, items: int) -> bool:
        """Whether a step must do without an array of all logits."""
        return self.negatives is not None or too_many(rows, items)

    def log_probability(self, logits: Logits, action: Tensor, *, mean: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        """log π(a|x), differentiable; Σπ²; and the mean item vector, if asked for."""
        if self.negatives is not None:
            return sampled.log_probability(logits, action, self.negatives, sparse=self.sparse)
        return logged.log_probability(logits, action, precision=self.precision, mean=mean)

    def lowered(self, device: torch.device) -> AbstractContextManager[None]:
        """The layers before the last one run in this: in bfloat16, if that was asked for."""
        if self.precision != "bfloat16":
            return nullcontext()
        return torch.autocast(device.type, torch.bfloat16)

    @contextmanager
    def products(self, device: torch.device) -> Iterator[None]:
        """A step runs in this: on a GPU, products of float32 numbers are TF32 unless whole float32 was asked for."""
        if device.type != "cuda":
            yield
            return
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest" if self.precision == "float32" else "high")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)


USUAL = Arithmetic()


def whole(x: Tensor) -> Tensor:
    """Numbers of half precision in single precision, and others as they are."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def check_precision(precision: object, device: str) -> None:
    """Check that there is such a precision, on this device."""
    if precision not in (None, "float32", "tf32", "bfloat16"):
        raise OptionError(f"precision must be None, 'float32', 'tf32' or 'bfloat16'; found {precision!r}.")
    if precision == "tf32" and torch.device(device).type == "cpu":
        raise OptionError(
            [Argument("precision", "tf32"), " needs a GPU; a CPU computes in float32."],
            do=["Leave out ", Argument("precision"), ", or pass ", Argument("device", "cuda"), "."],
        )
