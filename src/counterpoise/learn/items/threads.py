"""Parts of a catalog side by side, each in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

LEAST = 2**12  # items of a part
PARTS = 32  # at most, whatever the number of threads, so that this does not change the result

T = TypeVar("T")


def in_parts(work: Callable[[slice], T], items: int, device: torch.device) -> list[T]:
    """What `work` finds in parts of the items, in their order; on a GPU, all of them are one part.

    PyTorch would rather share every operation among the threads, and have them wait for each other after every one. Blocks are small, and
    where other programs keep the processors busy, that waiting takes most of the time.
    """
    # a power of 2, and all of one size, because two threads with three parts take as long as with four
    count = 1 if device.type != "cpu" else 2 ** (min(PARTS, max(1, items // LEAST)).bit_length() - 1)
    size = max(1, -(-items // count))
    parts = [slice(at, min(at + size, items)) for at in range(0, items, size)]
    threads = min(torch.get_num_threads(), len(parts))
    if threads == 1:
        return [work(part) for part in parts]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(work, parts))
    finally:
        torch.set_num_threads(before)
