"""MD5 of many texts at once, compiled, which needs numba; `groups` imports it once the compiled loop has started.

All texts of a block take a step of the algorithm together, which puts eight of them into one instruction of the processor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Literal, ParamSpec, TypeVar

import numba
import numpy as np
import polars as pl
from numpy.typing import NDArray

Words = NDArray[np.uint32]

BLOCK = 256  # texts at once, whose 16 words each stay in the first-level cache
ADDED = np.array([int(abs(math.sin(k + 1)) * 2**32) for k in range(64)], dtype=np.uint32)
TURNS = np.array([[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]], dtype=np.uint32)
WORDS = np.array([[(a * k + b) % 16 for k in range(16)] for a, b in ((1, 0), (5, 1), (3, 5), (7, 0))], dtype=np.int64)
START = np.array([0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476], dtype=np.uint32)


Inputs = ParamSpec("Inputs")
Output = TypeVar("Output")


def compiled(
    function: Callable[Inputs, Output],
    fastmath: bool | set[str] = False,
    error_model: Literal["python", "numpy"] = "python",
) -> Callable[Inputs, Output]:
    """The function, compiled on first use and kept on disk for the next process if there is a place for it."""
    dispatcher = numba.njit(nogil=True, fastmath=fastmath, error_model=error_model)(function)
    with suppress(RuntimeError):  # numba's word for "no folder to keep it in"
        dispatcher.enable_caching()
    faster: Callable[Inputs, Output] = dispatcher
    return faster


@compiled
def _step(kind: int, a: Words, b: Words, c: Words, d: Words, word: Words, added: np.uint32, turn: np.uint32) -> None:
    """One of the 64 steps, for all texts of a block."""
    back = np.uint32(32 - turn)
    for k in range(len(a)):
        x, y, z = b[k], c[k], d[k]
        if kind == 0:
            mixed = z ^ (x & (y ^ z))
        elif kind == 1:
            mixed = y ^ (z & (x ^ y))
        elif kind == 2:
            mixed = x ^ y ^ z
        else:
            mixed = y ^ (x | ~z)
        total = np.uint32(a[k] + np.uint32(mixed) + word[k] + added)
        a[k] = np.uint32(x + np.uint32(np.uint32(total << turn) | np.uint32(total >> back)))


@compiled
def _checksums(text: NDArray[np.uint8], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    numbers = np.empty(len(ends), np.int64)
    words, state, sums = (
        np.empty((16, BLOCK), np.uint32),
        np.empty((4, BLOCK), np.uint32),
        np.empty((4, BLOCK), np.uint32),
    )
    for first in range(0, len(ends), BLOCK):
        count, last, most = min(BLOCK, len(ends) - first), np.empty(BLOCK, np.int64), 0
        for k in range(count):
            start = ends[first + k - 1] if first + k else 0
            last[k] = (
                ends[first + k] - start + 8
            ) // 64  # the block in which a text ends, with a bit and its length behind it
            most = max(most, last[k])
        for j in range(4):
            sums[j] = START[j]
        for block in range(most + 1):
            state[:] = sums
            words[:] = 0
            for k in range(count):
                if block > last[k]:
                    continue
                start, stop = ends[first + k - 1] if first + k else 0, ends[first + k]
                low = start + 64 * block
                for at in range(low, min(low + 64, stop)):
                    words[(at - low) // 4, k] |= np.uint32(np.uint32(text[at]) << np.uint32(8 * ((at - low) % 4)))
                if low <= stop < low + 64:
                    words[(stop - low) // 4, k] |= np.uint32(np.uint32(0x80) << np.uint32(8 * ((stop - low) % 4)))
                if block == last[k]:
                    words[14, k] = np.uint32(8 * (stop - start))
                    words[15, k] = np.uint32((stop - start) >> 29)
            for kind in range(4):
                for k in range(16):
                    at = (64 - k) % 4
                    a, b, c, d = state[at], state[(at + 1) % 4], state[(at + 2) % 4], state[(at + 3) % 4]
                    word, added, turn = words[WORDS[kind, k]], ADDED[16 * kind + k], TURNS[kind, k % 4]
                    _step(kind, a, b, c, d, word, added, turn)
            for k in range(count):
                if block <= last[k]:
                    for j in range(4):
                        sums[j, k] += state[j, k]
        for k in range(count):
            x = sums[0, k]
            numbers[first + k] = ((x & 0xFF) << 16) | (x & 0xFF00) | ((x >> 16) & 0xFF)
    return numbers


def checksums(text: pl.Series) -> pl.Series:
    """The first six hexadecimal digits of every text's MD5, as a number; null where there is none."""
    joined = text.str.join("").cast(pl.Binary).item() or b""
    ends = np.cumsum(text.str.len_bytes().fill_null(0).to_numpy().astype(np.int64))
    numbers = pl.Series(_checksums(np.frombuffer(joined, dtype=np.uint8), ends))
    return numbers.zip_with(text.is_not_null(), pl.Series([None], dtype=pl.Int64)) if text.null_count() else numbers
