"""Describes where each tensor is in a file, for any file format.

Guarantees: checks nothing itself; a format module creates these values for what it will write, or has read and
checked. Pure values, any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from ckptkit.core.tensors import size_bytes_of

FileFormat = Literal["ckpt", "safetensors"]


class Span(NamedTuple):
    """Locates consecutive bytes in a file."""

    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True)
class FileTensor:
    """Describes a tensor in a file.

    Attributes:
        name: Unique in the file.
        dtype: Name in `ckptkit.core.tensors.DTYPES`.
        shape: Shape of the tensor.
        spans: Its bytes in C order, piece by piece.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    spans: tuple[Span, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensor."""
        return size_bytes_of(self.dtype, self.shape)


class Named(NamedTuple):
    """Describes a tensor to be written: name, name of its dtype, shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """Describes a file to be written.

    Attributes:
        size_bytes: Size of the file.
        frames: All bytes other than tensors, with their offsets.
        tensors: By name.
    """

    size_bytes: int
    frames: Sequence[tuple[int, bytes]]
    tensors: Mapping[str, FileTensor]


def format_of(file: str, wanted: str | None = None) -> FileFormat:
    """Return the format that the extension of ``file`` names; `mindspore.load_checkpoint` needs it too.

    Raises:
        ValueError: If it names none, or another one than ``wanted``.
    """
    known: tuple[FileFormat, ...] = get_args(FileFormat)
    if wanted is not None and wanted not in known:
        raise ValueError(f"the format must be one of {', '.join(known)}, got {wanted!r}")
    for one in known:
        if file.endswith(f".{one}") and wanted in (None, one):
            return one
    ends = " or ".join(f".{one}" for one in known if wanted in (None, one))
    raise ValueError(f"the name of the file must end in {ends}, which tells MindSpore its format; got {file}")
