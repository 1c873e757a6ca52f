"""The identity of a policy, as a text that stays the same tomorrow and differs for another policy."""

from __future__ import annotations

import functools
import hashlib
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np


def identity(policy: Any) -> str | None:
    """A policy's name with a hash of its code and parameters, or None if something in it cannot be inspected.

    For code in installed packages, only the names count. Two policies made in the same way have the same identity:

    >>> def halves(share):
    ...     return lambda batch: np.full(batch.num_rows, share)
    >>> identity(halves(0.5)) == identity(halves(0.5)), identity(halves(0.5)) == identity(halves(0.4))
    (True, False)
    """
    named = policy if isinstance(policy, FunctionType) else type(policy)
    try:
        return f"{named.__module__}.{named.__qualname__} {_Hashes().of(policy).hex()}"
    except Exception:  # whatever an object that does not want to be copied may raise
        return None


class _Hashes:
    """Hashes of values by what they contain, never by where they are in memory."""

    def __init__(self) -> None:
        self.known: dict[int, bytes] = {}
        self.kept: list[Any] = []  # an object that is gone could lend its id to another

    def of(self, value: Any) -> bytes:
        """The hash of a value, made from the hashes of its parts."""
        if value is None or isinstance(value, bool | int | float | complex | str | bytes):
            return _hash(type(value).__name__.encode(), repr(value).encode())
        if id(value) not in self.known:
            self.known[id(value)] = b"within itself"
            self.kept.append(value)
            parts = (part if isinstance(part, bytes) else self.of(part) for part in self._parts(value))
            self.known[id(value)] = _hash(type(value).__qualname__.encode(), *parts)
        return self.known[id(value)]

    def _parts(self, value: Any) -> Iterable[Any]:
        match value:
            case list() | tuple():
                return value if type(value) in (list, tuple) else (type(value), *value)
            case dict():
                return sorted(self.of(key) + self.of(entry) for key, entry in value.items())
            case set() | frozenset():
                return sorted(map(self.of, value))
            case np.ndarray() if value.dtype.kind != "O":
                return (value.dtype.str, value.shape, np.ascontiguousarray(value).tobytes())
            case ModuleType():
                return (value.__name__,)
            case CodeType():
                return (value.co_code, value.co_consts, value.co_names, value.co_varnames, value.co_freevars)
            case FunctionType():
                return _function(value)
            case MethodType():
                return (value.__self__, value.__func__)
            case staticmethod() | classmethod():
                return (value.__func__,)
            case property():
                return (value.fget,)
            case type():
                return _class(value)
            case _ if hasattr(value, "detach") and hasattr(value, "cpu"):  # a tensor, which pickles with its addresses
                return (str(value.dtype), tuple(value.shape), value.detach().cpu().double().numpy())
            case _:
                return _pickled_parts(value)


def _function(function: FunctionType) -> Iterator[Any]:
    yield from (function.__module__, function.__qualname__, function.__defaults__, function.__kwdefaults__)
    yield function.__dict__
    yield from (cell.cell_contents for cell in function.__closure__ or ())
    if not _is_installed(function.__module__):
        yield function.__code__
        for name in sorted(_names(function.__code__) & set(function.__globals__)):
            yield from (name, function.__globals__[name])


def _class(kind: type) -> Iterator[Any]:
    yield from (kind.__module__, kind.__qualname__)
    if not _is_installed(kind.__module__):
        yield kind.__bases__
        for name, value in sorted(vars(kind).items()):
            if isinstance(value, FunctionType | staticmethod | classmethod | property) or not name.startswith("_"):
                yield from (name, value)


def _pickled_parts(value: Any) -> Iterator[Any]:
    """What pickle would write of an object."""
    reduced = value.__reduce_ex__(4)
    if isinstance(reduced, str):  # the name of something that its module has
        yield from (str(getattr(value, "__module__", "")), reduced)
    else:
        for part in reduced:
            yield list(part) if isinstance(part, Iterator) else part


def _names(code: CodeType) -> set[str]:
    """The names that a function, and the functions inside it, look up."""
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)


@functools.cache
def _is_installed(module: str | None) -> bool:
    """Whether a module is part of Python or of a package, whose code changes with its version and would be endless to follow."""
    known = sys.modules.get(module or "")
    if known is None or module == "__main__":
        return False
    file, paths = getattr(known, "__file__", None), sysconfig.get_paths()
    places = (Path(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return file is None or any(place in Path(file).parents for place in places)


def _hash(*parts: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()
