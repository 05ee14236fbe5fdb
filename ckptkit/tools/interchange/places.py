"""Where each tensor lies in a file, whatever the file's format.

Guarantees: nothing by itself; a format makes one of what it is to write, or of what it has found and checked. Pure
values, any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from ckptkit.core.tensors import size_bytes_of

FileFormat = Literal["ckpt", "safetensors"]


class Span(NamedTuple):
    """Consecutive bytes of a file."""

    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True)
class FileTensor:
    """A tensor in a file.

    Attributes:
        name: Unique in the file.
        dtype: Name in `ckptkit.core.tensors.DTYPES`.
        shape: Of the tensor.
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
    """A tensor that is to be written: name, name of its dtype, shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """A file that is to be written.

    Attributes:
        size_bytes: Of the file.
        frames: What is no tensor, with its offset.
        tensors: By name.
    """

    size_bytes: int
    frames: Sequence[tuple[int, bytes]]
    tensors: Mapping[str, FileTensor]


def format_of(file: str, wanted: str | None = None) -> FileFormat:
    """The format that the name of ``file`` says, which `mindspore.load_checkpoint` insists on, too.

    Raises:
        ValueError: If it says none, or another one than ``wanted``.
    """
    known: tuple[FileFormat, ...] = get_args(FileFormat)
    if wanted is not None and wanted not in known:
        raise ValueError(f"the format must be one of {', '.join(known)}, got {wanted!r}")
    for one in known:
        if file.endswith(f".{one}") and wanted in (None, one):
            return one
    ends = " or ".join(f".{one}" for one in known if wanted in (None, one))
    raise ValueError(f"the name of the file must end in {ends}, which tells MindSpore its format; got {file}")
