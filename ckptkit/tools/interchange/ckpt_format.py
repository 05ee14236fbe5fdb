"""Reads and writes MindSpore's ``.ckpt``: a protobuf message with one value per tensor, or per slice of a large one.

Values are read and written one at a time, so that memory holds one tensor and not the file; MindSpore is not needed.
Only the protobuf library interprets a value. What it read is checked before it is used. An encrypted file is refused.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessages

from ckptkit.core.tensors import LeafSpec

SLICE_BYTES = 512 << 20  # MindSpore cuts at this size

# As in MindSpore 2.7 to 2.10; what else a value has is a map that only embeddings use.
_SCHEMA = """
name: "ckptkit/mindspore_checkpoint.proto" package: "ckptkit.ckpt"
message_type { name: "Checkpoint"
  field { name: "value" number: 1 type: TYPE_MESSAGE type_name: ".ckptkit.ckpt.Value" label: LABEL_REPEATED } }
message_type { name: "Value"
  field { name: "tag" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "tensor" number: 2 type: TYPE_MESSAGE type_name: ".ckptkit.ckpt.Tensor" label: LABEL_OPTIONAL } }
message_type { name: "Tensor"
  field { name: "dims" number: 1 type: TYPE_INT64 label: LABEL_REPEATED }
  field { name: "kind" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "content" number: 3 type: TYPE_BYTES label: LABEL_OPTIONAL } }
"""
_MESSAGES = GetMessages([text_format.Parse(_SCHEMA, FileDescriptorProto())])
_Checkpoint = _MESSAGES["ckptkit.ckpt.Checkpoint"]

_DTYPES = {f"{word}{bits}": f"{word[0]}{bits}" for word in ("Int", "UInt") for bits in (8, 16, 32, 64)}
_DTYPES |= {"Float64": "F64", "Float32": "F32", "Float16": "F16", "BFloat16": "BF16", "Bool": "BOOL"}
_KINDS = {dtype: kind for kind, dtype in _DTYPES.items()}
_KEY = b"\x0a"  # of a value in the message
_CRC = b"crc_num"  # before a CRC-32 of ten bytes, which may follow the message


def refuse_unfit(leaf: LeafSpec) -> None:
    if leaf.dtype not in _KINDS:
        raise ValueError(f"{leaf.name}: MindSpore's .ckpt has no {leaf.dtype}. Export to .safetensors")
    if leaf.shape == (0,):
        raise ValueError(
            f"{leaf.name} has no elements, which a .ckpt cannot distinguish from a scalar. Use .safetensors, or "
            "--drop it"
        )


def values_of(leaf: LeafSpec, bits: memoryview) -> Iterator[bytes]:
    for at in range(0, max(1, len(bits)), SLICE_BYTES):
        tensor = {"dims": leaf.shape, "kind": _KINDS[leaf.dtype], "content": bytes(bits[at : at + SLICE_BYTES])}
        yield _Checkpoint(value=[{"tag": leaf.name, "tensor": tensor}]).SerializeToString()


@dataclass
class StoredTensor:
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int = 0
    values: list[tuple[int, int]] = field(default_factory=list)  # offset and size of each, with a slice of the bits


def content_of(value: bytes) -> bytes:
    content: bytes = _parsed(value).tensor.content
    return content


def tensors_in(file: BinaryIO, size_bytes: int) -> tuple[dict[str, StoredTensor], list[str]]:
    """Return the tensors of a file by name, and the names of its other contents; raise ValueError if it is none."""
    tensors: dict[str, StoredTensor] = {}
    others: list[str] = []
    last = ""
    for at, data in _values(file, size_bytes):
        value = _parsed(data)
        name, tensor = value.tag, value.tensor
        if not name or isinstance(name, bytes):  # bytes: it is not UTF-8
            raise ValueError(f"the value at byte {at} has no name")
        if not value.HasField("tensor") or tensor.kind == "str":
            others.append(name)
            continue
        if not tensor.HasField("kind") or not tensor.HasField("content"):
            raise ValueError(f"{name[:80]!r} has no type or no content")
        if tensor.kind not in _DTYPES:
            raise ValueError(f"{name[:80]!r} has the type {tensor.kind[:40]!r}, which ckptkit cannot store")
        shape = () if list(tensor.dims) == [0] and tensor.content else tuple(tensor.dims)  # of older MindSpore
        entry = tensors.setdefault(name, StoredTensor(_DTYPES[tensor.kind], shape))
        if entry.values and (last != name or entry.dtype != _DTYPES[tensor.kind]):
            raise ValueError(f"it holds {name[:80]!r} twice")
        entry.values.append((at, len(data)))
        entry.size_bytes += len(tensor.content)
        last = name
    return tensors, others


def _values(file: BinaryIO, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield offset and bytes of each value; the CRC-32 behind them is compared with them."""
    at = crc = 0
    while at < end:
        file.seek(at)
        head = file.read(17)
        if head.startswith(_CRC) and at + 17 == end:
            if crc != int.from_bytes(head[7:], "big"):
                raise ValueError("its content does not match the CRC-32 at its end: it was altered")
            return
        if not head.startswith(_KEY):
            raise ValueError(f"there is no value of a checkpoint at byte {at}; the .ckpt may be encrypted")
        size_bytes = _size_of(head)
        if not 0 < size_bytes <= end - at:
            raise ValueError(
                f"the value at byte {at} does not end inside the file: the file is truncated or not a .ckpt"
            )
        file.seek(at)
        data = file.read(size_bytes)
        crc = zlib.crc32(data, crc)
        yield at, data
        at += size_bytes


def _size_of(head: bytes) -> int:
    """Return the bytes of a value with its key and its length, a varint; 0 if that has no end."""
    length = 0
    for place, byte in enumerate(head[1:11]):
        length |= (byte & 0x7F) << 7 * place
        if not byte & 0x80:
            return len(_KEY) + place + 1 + length
    return 0


def _parsed(data: bytes) -> Any:
    try:
        return _Checkpoint.FromString(data).value[0]
    except DecodeError as error:
        raise ValueError(f"a value cannot be read: {error}") from error
