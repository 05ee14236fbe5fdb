"""Lays out and reads MindSpore's ``.ckpt`` format, a protobuf message, field by field.

As declared by MindSpore 2.7 to 2.10: ``Checkpoint {repeated Value value = 1}``, ``Value {string tag = 1; TensorProto
tensor = 2; MapTensorProto maptensor = 3}``, ``TensorProto {repeated int64 dims = 1; string tensor_type = 2; bytes
tensor_content = 3}``; consecutive values of one tag are pieces of one tensor, and a CRC-32 may follow the message. No
protobuf library is used (docs/adr/0007), so that only one tensor is in memory and MindSpore is not needed. Guarantees:
when reading, sizes are checked against the file's size before memory is allocated. An encrypted file is not read. Pure,
except for reading the given file; any thread.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

from ckptkit.core.tensors import size_bytes_of
from ckptkit.tools.interchange.places import FileTensor, Layout, Named, Span

SLICE_BYTES = 512 << 20  # MindSpore cuts at this size

_TYPES = {
    "Float64": "F64",
    "Float32": "F32",
    "Float16": "F16",
    "BFloat16": "BF16",
    "Int64": "I64",
    "Int32": "I32",
    "Int16": "I16",
    "Int8": "I8",
    "UInt64": "U64",
    "UInt32": "U32",
    "UInt16": "U16",
    "UInt8": "U8",
    "Bool": "BOOL",
}
_TYPE_OF = {dtype: name for name, dtype in _TYPES.items()}
_CRC = b"crc_num"
_CRC_BYTES = len(_CRC) + 10
_PIECE_BYTES = 4 << 20
_MAX_TEXT_BYTES = 8192
_MAX_AXES = 32


def layout_of(tensors: Sequence[Named]) -> Layout:
    """Return where everything will be in a file of ``tensors``.

    Raises:
        ValueError: If the format cannot hold one of them; names it.
    """
    frames: list[tuple[int, bytes]] = []
    placed: dict[str, FileTensor] = {}
    at = 0
    for one in tensors:
        if one.dtype not in _TYPE_OF:
            raise ValueError(f"{one.name}: MindSpore's .ckpt has no {one.dtype}. Export to .safetensors")
        if one.shape == (0,):
            raise ValueError(
                f"{one.name} has no elements, which a .ckpt cannot distinguish from a scalar. Use .safetensors, or "
                "--drop it"
            )
        spans: list[Span] = []
        left = size_bytes_of(one.dtype, one.shape)
        while not spans or left:
            size_bytes = min(left, SLICE_BYTES)
            frame = _frame(one, size_bytes)
            frames.append((at, frame))
            spans.append(Span(at + len(frame), size_bytes))
            at += len(frame) + size_bytes
            left -= size_bytes
        placed[one.name] = FileTensor(one.name, one.dtype, one.shape, tuple(spans))
    return Layout(at, frames, placed)


def tensors_in(file: BinaryIO, size_bytes: int) -> tuple[list[FileTensor], list[str]]:
    """Return the tensors of a file, and the names of its other contents.

    Raises:
        ValueError: If it is not such a file; says why.
    """
    end = _checked_end(file, size_bytes)
    found: dict[str, FileTensor] = {}
    others: list[str] = []
    last = ""
    for number, kind, value in _fields(file, 0, end):
        if (number, kind) != (1, _BYTES):
            raise ValueError(f"there is no value of a checkpoint at byte {value.start}; the .ckpt may be encrypted")
        tag, piece = _value(file, value)
        if piece is None:
            others.append(tag)
        elif tag not in found:
            found[tag] = piece
        elif tag == last and found[tag].dtype == piece.dtype:
            found[tag] = FileTensor(tag, piece.dtype, piece.shape, (*found[tag].spans, *piece.spans))
        else:
            raise ValueError(f"it holds {tag[:80]!r} twice")
        last = tag
    tensors = [_settled(one) for one in found.values()]
    return tensors, others


# Wire types of fields.
_NUMBER, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5


class _Bytes(NamedTuple):
    start: int
    end: int


def _frame(one: Named, size_bytes: int) -> bytes:
    """Return all of a value that comes before its ``size_bytes`` of content, its last field."""
    dims = b"".join(_key(1, _NUMBER) + _varint(dimension) for dimension in one.shape)
    tensor = dims + _text(2, _TYPE_OF[one.dtype]) + _key(3, _BYTES) + _varint(size_bytes)
    value = _text(1, one.name) + _key(2, _BYTES) + _varint(len(tensor) + size_bytes) + tensor
    return _key(1, _BYTES) + _varint(len(value) + size_bytes) + value


def _key(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _text(number: int, text: str) -> bytes:
    data = text.encode()
    return _key(number, _BYTES) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)


def _value(file: BinaryIO, where: _Bytes) -> tuple[str, FileTensor | None]:
    """Return a value's tag, and its tensor or piece of one; None instead of anything else."""
    tag: str | None = None
    tensor: _Bytes | None = None
    for number, kind, span in _fields(file, *where):
        if (number, kind) == (1, _BYTES):
            tag = _read_text(file, span)
        elif (number, kind) == (2, _BYTES):
            tensor = span
    if not tag:
        raise ValueError(f"the value at byte {where.start} has no name")
    return tag, None if tensor is None else _tensor(file, tag, tensor)


def _tensor(file: BinaryIO, tag: str, where: _Bytes) -> FileTensor | None:
    dims: list[int] = []
    kind_of: str | None = None
    content: _Bytes | None = None
    for number, kind, span in _fields(file, *where):
        if number == 1 and kind == _NUMBER:
            dims.append(span.start)
        elif number == 1 and kind == _BYTES:
            dims += _packed(file, span)
        elif (number, kind) == (2, _BYTES):
            kind_of = _read_text(file, span)
        elif (number, kind) == (3, _BYTES):
            content = span
        if len(dims) > _MAX_AXES:
            raise ValueError(f"{tag[:80]!r} has more than {_MAX_AXES} axes")
    if kind_of is None or content is None:
        raise ValueError(f"{tag[:80]!r} has no type or no content")
    if kind_of == "str":
        return None
    if kind_of not in _TYPES:
        raise ValueError(f"{tag[:80]!r} has the type {kind_of[:40]!r}, which ckptkit cannot store")
    return FileTensor(tag, _TYPES[kind_of], tuple(dims), (Span(content.start, content.end - content.start),))


def _settled(one: FileTensor) -> FileTensor:
    """Return ``one`` with its final shape, after its last piece: older MindSpore gives a scalar the dimension 0."""
    held = sum(span.size_bytes for span in one.spans)
    shape = () if one.shape == (0,) and held else one.shape
    if size_bytes_of(one.dtype, shape) != held:
        raise ValueError(
            f"{one.name[:80]!r} has {held} bytes, which does not match its shape {list(shape)} of {one.dtype}"
        )
    return FileTensor(one.name, one.dtype, shape, one.spans)


def _fields(file: BinaryIO, start: int, end: int) -> Iterator[tuple[int, int, _Bytes]]:
    """Yield number, kind and place of each field; a number's value takes the place of the start."""
    at = start
    while at < end:
        key, at = _read_varint(file, at, end)
        number, kind = key >> 3, key & 7
        if kind == _NUMBER:
            value, at = _read_varint(file, at, end)
            yield number, kind, _Bytes(value, value)
            continue
        if kind == _BYTES:
            size_bytes, at = _read_varint(file, at, end)
        else:
            size_bytes = {_EIGHT: 8, _FOUR: 4}.get(kind, -1)
        if not 0 <= size_bytes <= end - at:
            raise ValueError(
                f"the value at byte {at} does not end inside the file: the file is truncated or not a .ckpt"
            )
        yield number, kind, _Bytes(at, at + size_bytes)
        at += size_bytes


def _read_varint(file: BinaryIO, at: int, end: int) -> tuple[int, int]:
    file.seek(at)
    data = file.read(min(10, end - at))
    value = 0
    for place, byte in enumerate(data):
        value |= (byte & 0x7F) << 7 * place
        if not byte & 0x80:
            return value, at + place + 1
    raise ValueError(f"invalid number at byte {at}: the file is truncated or not a .ckpt")


def _packed(file: BinaryIO, span: _Bytes) -> list[int]:
    at = span.start
    numbers: list[int] = []
    while at < span.end and len(numbers) <= _MAX_AXES:
        number, at = _read_varint(file, at, span.end)
        numbers.append(number)
    return numbers


def _read_text(file: BinaryIO, span: _Bytes) -> str:
    if span.end - span.start > _MAX_TEXT_BYTES:
        raise ValueError(f"the text at byte {span.start} is too long: {span.end - span.start} bytes")
    file.seek(span.start)
    return file.read(span.end - span.start).decode()


def _checked_end(file: BinaryIO, size_bytes: int) -> int:
    """Return where the message ends: at the file's end, or before a CRC-32, which is verified."""
    if size_bytes < _CRC_BYTES:
        return size_bytes
    end = size_bytes - _CRC_BYTES
    file.seek(end)
    mark = file.read(_CRC_BYTES)
    if not mark.startswith(_CRC):
        return size_bytes
    file.seek(0)
    found, left = 0, end
    while left and (data := file.read(min(_PIECE_BYTES, left))):
        found, left = zlib.crc32(data, found), left - len(data)
    if found != int.from_bytes(mark[len(_CRC) :], "big"):
        raise ValueError("its content does not match the CRC-32 at its end: it was altered")
    return end
