"""Files of tensors: safetensors with a JSON description and a checksum, never a pickle."""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from counterpoise.errors import OptionError, PolicyFileError, verbatim
from counterpoise.whole_files import whole_file

CHECKSUM = "checksum"  # of the whole file, with zeros in its own place; files of version 0.2 have none
ZEROS = "0" * 32
PIECE = 2**22  # bytes of a file in memory at a time
LONGEST = 2**24  # characters of a description: 16 MB are enough for the history of 50,000 epochs
TYPES = {
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
}


class TensorFile:
    """A file of which only the header has been read: its description, and its tensors on torch's `meta` device."""

    def __init__(self, path: str | PathLike[str], file: Any) -> None:
        self.path, self._file = path, file
        self.tensors: dict[str, Tensor] = {}
        for name in list(file.keys()):
            part = file.get_slice(name)
            kind = str(part.get_dtype())
            if kind not in TYPES:
                raise ValueError(f"{name!r} is {kind}, which no policy has")
            self.tensors[name] = torch.empty(part.get_shape(), dtype=TYPES[kind], device="meta")
        text = (file.metadata() or {}).get("counterpoise")
        if text is None:
            raise ValueError("it has no description")
        if len(text) > LONGEST:
            raise ValueError(f"its description has {len(text):,} characters")
        self.description = json.loads(text)
        if not isinstance(self.description, dict):
            raise ValueError(f"its description is a {type(self.description).__name__}, not an object")

    def read(self) -> dict[str, Tensor]:
        """All tensors, in memory."""
        with _readable(self.path):
            # copies, because a process that reads mapped memory dies if the file is cut short
            return {name: self._file.get_tensor(name).clone() for name in self.tensors}

    def damaged(self, why: str) -> PolicyFileError:
        """The error for a file that contradicts itself."""
        return PolicyFileError(f"{str(self.path)!r} is damaged, or was not written by counterpoise: {why}.")


@contextmanager
def opened(path: str | PathLike[str]) -> Iterator[TensorFile]:
    """A file of tensors, with only its header read."""
    open_file = _safetensors("safe_open")
    try:
        mode = Path(path).stat().st_mode
    except OSError as error:
        raise PolicyFileError(f"there is no file {str(path)!r}: {error.strerror}.", do="Name another one.") from error
    if not stat.S_ISREG(mode):
        raise PolicyFileError(f"{str(path)!r} is not a regular file.", do="Name another one.")
    with _readable(path):
        file = open_file(str(path), framework="pt").__enter__()
    try:
        with _readable(path):
            tensors = TensorFile(path, file)
            if (stored := file.metadata().get(CHECKSUM)) is not None:  # no byte has changed since it was written
                with Path(path).open("rb") as stream:
                    length = stream.read(8)
                    header = stream.read(int.from_bytes(length, "little"))
                    blank = header.replace(_sum_in_header(stored), _sum_in_header(ZEROS), 1)
                    checksum = _digest(chain([length, blank], iter(lambda: stream.read(PIECE), b"")))
                if checksum != stored:
                    raise PolicyFileError(
                        f"{str(path)!r} is damaged: its checksum is {checksum[:8]}…, and the file has {stored[:8]}….",
                        do="Copy it again from where it was made, or save it again.",
                    )
        yield tensors
    finally:
        file.__exit__(None, None, None)


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=len(ZEROS) // 2)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _sum_in_header(checksum: str) -> bytes:
    """A checksum as the header has it; within a description the quotes would have backslashes."""
    return f'"{CHECKSUM}":"{checksum}"'.encode()


@contextmanager
def _readable(path: str | PathLike[str]) -> Iterator[None]:
    from safetensors import SafetensorError

    try:
        yield
    except RecursionError as error:
        raise PolicyFileError(f"{str(path)!r} is damaged: its description is nested too deeply.") from error
    except (OSError, SafetensorError, ValueError, TypeError, RuntimeError, MemoryError) as error:
        raise PolicyFileError(
            f"{str(path)!r} is damaged, or was not written by counterpoise: {verbatim(error)}."
        ) from error


def read_tensors(path: str | PathLike[str]) -> tuple[dict[str, Tensor], dict[str, object]]:
    """The tensors of a file and its description."""
    with opened(path) as file:
        return file.read(), file.description


def write_tensors(path: str | PathLike[str], tensors: Mapping[str, Tensor], description: Mapping[str, object]) -> None:
    """Write one safetensors file with a JSON description; it replaces an old one only once it is complete on disk."""
    save = _safetensors("save")
    # on the CPU, each in memory of its own, because safetensors refuses those of layers that share their weights
    apart: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, tensor in tensors.items():
        copy = tensor.detach().cpu().contiguous()
        apart[name] = copy.clone() if copy.untyped_storage().data_ptr() in taken else copy
        taken.add(copy.untyped_storage().data_ptr())
    data = save(apart, metadata={"counterpoise": json.dumps(description), CHECKSUM: ZEROS})
    data = data.replace(_sum_in_header(ZEROS), _sum_in_header(_digest([data])), 1)
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as part:
            part.write_bytes(data)
    except OSError as error:
        raise PolicyFileError(f"cannot write {str(path)!r}: {error.strerror}.", do="Name another file.") from error


def check_tensors(
    file: TensorFile, own: Mapping[str, Tensor], stored: Mapping[str, Tensor], *, exactly: bool = False
) -> None:
    """Check that a file has exactly the tensors of a model, by name, shape and kind of number; with `exactly`, also by precision."""
    path = str(file.path)
    for name in sorted(own.keys() ^ stored.keys()):
        which = "lacks" if name in own else "has"
        raise PolicyFileError(
            f"{path!r} belongs to another model: it {which} the tensor {name!r}.", do="Name another file."
        )
    for name, tensor in own.items():
        kept = stored[name]
        if tensor.shape != kept.shape:
            raise PolicyFileError(
                f"{path!r} belongs to another model: {name!r} has shape {tuple(kept.shape)}, this one needs {tuple(tensor.shape)}.",
                do="Name another file.",
            )
        alike = kept.is_floating_point() and tensor.is_floating_point() and not exactly
        if kept.dtype != tensor.dtype and not alike:
            raise file.damaged(f"{name!r} must be {tensor.dtype}, and is {kept.dtype}")


def check_finite(file: TensorFile, tensors: Mapping[str, Tensor]) -> None:
    """Check that there are no NaNs or infinities, which training never leaves behind."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise file.damaged(f"{name!r} contains numbers that are not finite")


def _safetensors(name: str) -> Any:
    try:
        import safetensors
        import safetensors.torch
    except ImportError as error:
        raise OptionError("saving needs safetensors.", do="Run pip install 'counterpoise[learn]'.") from error
    return getattr(safetensors.torch, name, None) or getattr(safetensors, name)
