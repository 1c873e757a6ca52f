"""MD5 of many texts at once, compiled, which needs numba; only `groups` imports it, once the compiled loop has started.

All texts of a block take a step of the algorithm together, which puts eight of them into one instruction of the processor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

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


def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, compiled on first use and kept on disk if there is a place for it."""
    dispatcher: Any = numba.njit(nogil=True)(function)
    with suppress(RuntimeError):  # numba's word for "no folder to keep it in"
        dispatcher.enable_caching()
    compiled: Callable[..., Any] = dispatcher
    return compiled


@_compile
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


@_compile
def _fill(words: Words, text: NDArray[np.uint8], start: int, stop: int, block: int, k: int) -> None:
    """Put one text's bytes of one block where they belong: then a bit that is set, and at the very end how many bits there are."""
    low = start + 64 * block
    for at in range(low, min(low + 64, stop)):
        words[(at - low) // 4, k] |= np.uint32(np.uint32(text[at]) << np.uint32(8 * ((at - low) % 4)))
    if low <= stop < low + 64:
        words[(stop - low) // 4, k] |= np.uint32(np.uint32(0x80) << np.uint32(8 * ((stop - low) % 4)))
    if block == (stop - start + 8) // 64:
        words[14, k] = np.uint32(8 * (stop - start))
        words[15, k] = np.uint32((stop - start) >> 29)


@_compile
def _checksums(text: NDArray[np.uint8], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    found = np.empty(len(ends), np.int64)
    words, state, kept = (
        np.empty((16, BLOCK), np.uint32),
        np.empty((4, BLOCK), np.uint32),
        np.empty((4, BLOCK), np.uint32),
    )
    for first in range(0, len(ends), BLOCK):
        count = min(BLOCK, len(ends) - first)
        for j in range(4):
            kept[j] = START[j]
        most = 0
        for k in range(count):
            start = ends[first + k - 1] if first + k else 0
            most = max(most, (ends[first + k] - start + 8) // 64)
        for block in range(most + 1):
            state[:] = kept
            words[:] = 0
            for k in range(count):
                start = ends[first + k - 1] if first + k else 0
                if block <= (ends[first + k] - start + 8) // 64:
                    _fill(words, text, start, ends[first + k], block, k)
            for kind in range(4):
                for k in range(16):
                    at = (64 - k) % 4
                    a, b, c, d = state[at], state[(at + 1) % 4], state[(at + 2) % 4], state[(at + 3) % 4]
                    word, added, turn = words[WORDS[kind, k]], ADDED[16 * kind + k], TURNS[kind, k % 4]
                    _step(kind, a, b, c, d, word, added, turn)
            for k in range(count):
                start = ends[first + k - 1] if first + k else 0
                if block <= (ends[first + k] - start + 8) // 64:
                    for j in range(4):
                        kept[j, k] += state[j, k]
        for k in range(count):
            x = kept[0, k]
            found[first + k] = ((x & 0xFF) << 16) | (x & 0xFF00) | ((x >> 16) & 0xFF)
    return found


def checksums(text: pl.Series) -> pl.Series:
    """The first six hexadecimal digits of every text's MD5, as a number; null where there is none."""
    joined = text.str.join("").cast(pl.Binary).item() or b""
    ends = np.cumsum(text.str.len_bytes().fill_null(0).to_numpy().astype(np.int64))
    found = pl.Series(_checksums(np.frombuffer(joined, dtype=np.uint8), ends))
    return found if not text.null_count() else found.zip_with(text.is_not_null(), pl.Series([None], dtype=pl.Int64))
