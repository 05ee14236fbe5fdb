"""Opens and writes a ``.ckpt`` or ``.safetensors`` file with weights; opens several ``.safetensors`` by their index.

Guarantees: every tensor lies inside its file and has the bytes that its shape needs, so that no caller allocates more
memory for it than the file has bytes. An index names only files beside it. Tensors are read on request.

MindSpore's ``.ckpt`` is a protobuf message with one value per tensor, or per slice of a large one. Values are read and
written one at a time, so that memory holds one tensor and not the file; MindSpore is not needed. Only the protobuf
library interprets a value. What it read is checked before it is used. An encrypted file is refused.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import stat
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessages
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError, safe_open

from ckptkit.core.tensors import DTYPES, LeafSpec, size_bytes_of
from ckptkit.errors import CheckpointNotFoundError, CkptKitError, CorruptCheckpointError, StorageError
from ckptkit.format.shards import plan_shards
from ckptkit.tools.interchange.atomic_file import NewFile

FileFormat = Literal["ckpt", "safetensors"]
Write = Callable[[LeafSpec, memoryview], None]
INDEX_END = ".index.json"
_MAX_INDEX_BYTES = 200_000_000
_MAX_AXES = 32
_MAX_ELEMENTS = 1 << 50  # an empty tensor of absurd shape needs no bytes, but NumPy cannot create it
_MAX_NAME = 8192
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


@dataclass(frozen=True)
class FileTensor:
    """Describes a tensor in a file."""

    dtype: str  # name in `ckptkit.core.tensors.DTYPES`
    shape: tuple[int, ...]
    # Returns its bits; raises CorruptCheckpointError if the file has become shorter, or StorageError
    read: Callable[[], bytes]

    @property
    def size_bytes(self) -> int:
        return size_bytes_of(self.dtype, self.shape)


@dataclass(frozen=True)
class WeightsFile:
    """Describes the contents of a file, or of several with an index."""

    path: Path  # path of the file, or of the index
    format: FileFormat
    tensors: Mapping[str, FileTensor]  # by name, in the file's order
    # Names of what is left out: texts that `mindspore.save_checkpoint` appended, or tensors that the index does not
    # name
    others: tuple[str, ...]


def format_of(file: str) -> FileFormat:
    """Return the format that the extension names, or raise ValueError: `mindspore.load_checkpoint` needs one, too."""
    if file.endswith(".ckpt"):
        return "ckpt"
    if file.endswith(".safetensors"):
        return "safetensors"
    raise ValueError(
        f"the name of the file must end in .ckpt or .safetensors, which tells MindSpore its format; got {file}"
    )


@contextlib.contextmanager
def open_weights(path: str | os.PathLike[str]) -> Iterator[WeightsFile]:
    """Open a file, or those of an index, while the context lasts.

    Raises ValueError if its name gives no format, CheckpointNotFoundError if there is none, CorruptCheckpointError,
    which names it, if it is truncated or something else, and StorageError if it could not be read.
    """
    with contextlib.ExitStack() as stack:
        if not os.fspath(path).endswith(f".safetensors{INDEX_END}"):
            yield _opened(Path(path), stack)
            return
        file_of = _read_index(Path(path))
        files = {file: _opened(file, stack).tensors for file in sorted(set(file_of.values()))}
        for name, file in file_of.items():
            if name not in files[file]:
                raise CorruptCheckpointError(f"{file} has no tensor {name[:80]!r}, which {path} says is there")
        tensors = {name: files[file][name] for name, file in file_of.items()}
        others = sorted({name for names in files.values() for name in names} - tensors.keys())
        yield WeightsFile(Path(path), "safetensors", tensors, tuple(others))


def _opened(path: Path, stack: contextlib.ExitStack) -> WeightsFile:
    file_format = format_of(os.fspath(path))
    with _errors_named(path, f"{file_format} file"):
        size_bytes = _size_of(path)
        file = stack.enter_context(path.open("rb"))
        read = _read_ckpt if file_format == "ckpt" else _read_safetensors
        tensors, others = read(file, path, size_bytes)
    return WeightsFile(path, file_format, tensors, tuple(others))


def _read_ckpt(file: io.BufferedReader, path: Path, end: int) -> tuple[dict[str, FileTensor], list[str]]:
    forms: dict[str, tuple[str, tuple[int, ...]]] = {}
    values: dict[str, list[tuple[int, int]]] = {}  # offset and size of each, with a slice of the bits
    sizes: Counter[str] = Counter()
    others: list[str] = []
    last = ""
    for at, data in _values(file, end):
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
        dtype, _ = forms.setdefault(name, (_DTYPES[tensor.kind], shape))
        if name in values and (last != name or dtype != _DTYPES[tensor.kind]):
            raise ValueError(f"it holds {name[:80]!r} twice")
        values.setdefault(name, []).append((at, len(data)))
        sizes[name] += len(tensor.content)
        last = name

    def content(name: str) -> bytes:
        return b"".join(_parsed(_read(file, path, *value)).tensor.content for value in values[name])

    for name, form in forms.items():
        _check_tensor(name, *form, sizes[name])
    return {name: FileTensor(*form, partial(content, name)) for name, form in forms.items()}, others


def _values(file: io.BufferedReader, end: int) -> Iterator[tuple[int, bytes]]:
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
        size_bytes = _value_bytes(head)
        if not 0 < size_bytes <= end - at:
            raise ValueError(
                f"the value at byte {at} does not end inside the file: the file is truncated or not a .ckpt"
            )
        file.seek(at)
        data = file.read(size_bytes)
        crc = zlib.crc32(data, crc)
        yield at, data
        at += size_bytes


def _value_bytes(head: bytes) -> int:
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


def _read_safetensors(file: io.BufferedReader, path: Path, size_bytes: int) -> tuple[dict[str, FileTensor], list[str]]:
    with safe_open(path, "numpy"):
        pass  # the library checks sizes, overlaps and gaps; it has no access to the bits of a BF16
    header_bytes = int.from_bytes(file.read(8), "little")
    header: dict[str, Any] = json.loads(file.read(header_bytes))
    packed = [name for name, kind in (header.pop("__metadata__", None) or {}).items() if kind == "Int4"]
    if packed:
        raise ValueError(f"{packed[0][:80]!r} has the type Int4 of MindSpore, which ckptkit cannot store")
    tensors = {}
    for name, entry in header.items():
        dtype, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        _check_tensor(name, dtype, shape, end - start)
        tensors[name] = FileTensor(dtype, shape, partial(_read, file, path, 8 + header_bytes + start, end - start))
    return tensors, []


def _check_tensor(name: str, dtype: str, shape: tuple[int, ...], size_bytes: int) -> None:
    if len(name) > _MAX_NAME:
        raise ValueError(f"the name {name[:80]!r} is too long: {len(name)} characters")
    if dtype not in DTYPES:
        raise ValueError(f"{name[:80]!r} has the dtype {dtype[:40]!r}, which ckptkit cannot store")
    if len(shape) > _MAX_AXES or min(shape, default=0) < 0 or math.prod(size or 1 for size in shape) > _MAX_ELEMENTS:
        raise ValueError(f"{name[:80]!r} has the shape {str(shape)[:80]}")
    if size_bytes_of(dtype, shape) != size_bytes:
        raise ValueError(f"{name[:80]!r} has {size_bytes} bytes, which does not match its shape {shape} of {dtype}")


def _read(file: io.BufferedReader, path: Path, offset_bytes: int, size_bytes: int) -> bytes:
    with _errors_named(path, "file"):
        file.seek(offset_bytes)
        data = file.read(size_bytes)
    if len(data) != size_bytes:
        raise CorruptCheckpointError(f"{path} became shorter while it was read")
    return data


class _Index(BaseModel):
    model_config = ConfigDict(strict=True)  # `metadata` may hold anything, and other programs add fields

    weight_map: dict[str, str]


def _read_index(path: Path) -> dict[str, Path]:
    """Return the file of each tensor."""
    with _errors_named(path, "index"):
        if _size_of(path) > _MAX_INDEX_BYTES:
            raise ValueError("it is too large for an index")
        try:
            files = _Index.model_validate_json(path.read_bytes()).weight_map
        except ValidationError as error:
            raise ValueError("it has no weight_map from names of tensors to names of files") from error
        for name in set(files.values()):
            if name != os.path.basename(name) or "\0" in name or not name.endswith(".safetensors"):
                raise ValueError(f"it names {name[:80]!r}, which is no .safetensors file beside it")
    return {tensor: path.with_name(name) for tensor, name in files.items()}


def _size_of(path: Path) -> int:
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):  # opening a pipe without a writer would block forever
        raise CorruptCheckpointError(f"{path} is not a file; it is a folder, a pipe or a device")
    return status.st_size


@contextlib.contextmanager
def _errors_named(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except CkptKitError:
        raise
    except FileNotFoundError as error:
        raise CheckpointNotFoundError(f"there is no file {path}") from error
    except OSError as error:
        raise StorageError(f"could not read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError, SafetensorError) as error:
        raise CorruptCheckpointError(f"{path} is not a readable {what}: {error}") from error


def ckpt_writer(new: NewFile, leaves: Sequence[LeafSpec]) -> Write:
    """Return what appends a tensor, in the order in which they arrive; raise ValueError for what no .ckpt can hold."""
    for leaf in leaves:
        if leaf.dtype not in _KINDS:
            raise ValueError(f"{leaf.name}: MindSpore's .ckpt has no {leaf.dtype}. Export to .safetensors")
        if leaf.shape == (0,):
            raise ValueError(
                f"{leaf.name} has no elements, which a .ckpt cannot distinguish from a scalar. Use .safetensors, or "
                "--drop it"
            )

    def write(leaf: LeafSpec, bits: memoryview) -> None:
        for at in range(0, max(1, len(bits)), SLICE_BYTES):
            tensor = {"dims": leaf.shape, "kind": _KINDS[leaf.dtype], "content": bytes(bits[at : at + SLICE_BYTES])}
            new.put(_Checkpoint(value=[{"tag": leaf.name, "tensor": tensor}]).SerializeToString())

    return write


def safetensors_writer(new: NewFile, leaves: Sequence[LeafSpec]) -> Write:
    """Write the header, and return what puts a tensor where the header has it."""
    (shard,) = plan_shards(leaves, sys.maxsize)
    table = {"__metadata__": {"format": "ms"}, **json.loads(shard.header[8:])}  # as MindSpore's own files have it
    header = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % 8)
    new.put(len(header).to_bytes(8, "little") + header)
    moved = new.size_bytes - len(shard.header)
    offsets = {leaf.name: offset + moved for leaf, offset in shard.offsets_bytes()}
    return lambda leaf, bits: new.put(bits, offsets[leaf.name])
