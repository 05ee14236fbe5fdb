"""Lays out and reads safetensors files as MindSpore does: a JSON header, then the tensors.

Guarantees: when reading, the header is checked against the file's size, and tensors do not overlap. Pure, except for
reading the given file; any thread.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, BinaryIO

from ckptkit.core.tensors import DTYPES, size_bytes_of
from ckptkit.tools.interchange.places import FileTensor, Layout, Named, Span

_METADATA = "__metadata__"
_MAX_HEADER_BYTES = 100_000_000  # limit of the safetensors library
_MAX_AXES = 32


def layout_of(tensors: Sequence[Named]) -> Layout:
    """Return where everything will be in a file of ``tensors``."""
    # Wide elements first keep every tensor aligned; MindSpore's own files have this ``format``.
    ordered = sorted(tensors, key=lambda one: (-DTYPES[one.dtype].itemsize, one.name))
    table: dict[str, object] = {_METADATA: {"format": "ms"}}
    at = 0
    for one in ordered:
        end = at + size_bytes_of(one.dtype, one.shape)
        table[one.name] = {"dtype": one.dtype, "shape": list(one.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > _MAX_HEADER_BYTES:
        raise ValueError(f"the names of {len(ordered)} tensors take more than a safetensors header may have")
    begin = 8 + len(text)
    placed: dict[str, FileTensor] = {}
    start = begin
    for one in ordered:
        size_bytes = size_bytes_of(one.dtype, one.shape)
        placed[one.name] = FileTensor(one.name, one.dtype, one.shape, (Span(start, size_bytes),))
        start += size_bytes
    return Layout(begin + at, [(0, len(text).to_bytes(8, "little") + text)], placed)


def tensors_in(file: BinaryIO, size_bytes: int) -> tuple[list[FileTensor], list[str]]:
    """Return the tensors of a file, and the names of other contents, of which this format has none.

    Raises:
        ValueError: If it is not such a file; says why.
    """
    header_bytes = int.from_bytes(file.read(8), "little")
    begin = 8 + header_bytes
    if size_bytes < 8 or header_bytes > _MAX_HEADER_BYTES or begin > size_bytes:
        raise ValueError("its header does not end inside the file: the file is truncated or not a .safetensors")
    try:
        header = json.loads(file.read(header_bytes), object_pairs_hook=_without_repetition)
    except RecursionError as error:
        raise ValueError("its header is nested too deep") from error
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")
    _refuse_packed(header.pop(_METADATA, None) or {})
    tensors = [_tensor(name, entry, begin, size_bytes) for name, entry in header.items()]
    _refuse_overlaps(tensors)
    return tensors, []


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("its header has a name twice")
    return found


def _refuse_packed(metadata: Any) -> None:
    if isinstance(metadata, dict):
        packed = sorted(name for name, value in metadata.items() if value == "Int4")
        if packed:
            raise ValueError(f"{packed[0][:80]!r} has the type Int4 of MindSpore, which ckptkit cannot store")


def _tensor(name: str, entry: Any, begin: int, size_bytes: int) -> FileTensor:
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(start), int(end)]}:
            pass
        case _:
            raise ValueError(f"{name[:80]!r} has no dtype, no shape or no valid data_offsets")
    if dtype not in DTYPES:
        raise ValueError(f"{name[:80]!r} has the dtype {dtype[:40]!r}, which ckptkit cannot store")
    if len(shape) > _MAX_AXES or any(type(one) is not int or one < 0 for one in shape):
        raise ValueError(f"{name[:80]!r} has the shape {str(shape)[:80]}")
    if not 0 <= start <= end <= size_bytes - begin:
        raise ValueError(f"{name[:80]!r} does not end inside the file: the file is truncated or not a .safetensors")
    if size_bytes_of(dtype, shape) != end - start:
        raise ValueError(f"{name[:80]!r} has {end - start} bytes, which does not match its shape {shape} of {dtype}")
    return FileTensor(name, dtype, tuple(shape), (Span(begin + start, end - start),))


def _refuse_overlaps(tensors: Sequence[FileTensor]) -> None:
    at = 0
    for one in sorted(tensors, key=lambda one: (one.spans[0], one.name)):
        start, size_bytes = one.spans[0]
        if start < at:
            raise ValueError(f"{one.name[:80]!r} overlaps another tensor")
        at = start + size_bytes
