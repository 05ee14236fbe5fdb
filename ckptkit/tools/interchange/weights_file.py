"""Opens a ``.ckpt`` or ``.safetensors`` file with weights, or several ``.safetensors`` by their index.

Guarantees: every tensor lies inside its file and has the bytes that its shape needs, so that no caller allocates more
memory for it than the file has bytes. An index names only files beside it. Tensors are read on request.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError, safe_open

from ckptkit.core.tensors import DTYPES, size_bytes_of
from ckptkit.errors import CheckpointNotFoundError, CkptKitError, CorruptCheckpointError, StorageError
from ckptkit.tools.interchange import ckpt_format

FileFormat = Literal["ckpt", "safetensors"]
INDEX_END = ".index.json"
_MAX_INDEX_BYTES = 200_000_000
_MAX_AXES = 32
_MAX_ELEMENTS = 1 << 50  # an empty tensor of absurd shape needs no bytes, but NumPy cannot create it
_MAX_NAME = 8192


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


def _read_ckpt(file: io.BufferedReader, path: Path, size_bytes: int) -> tuple[dict[str, FileTensor], list[str]]:
    tensors, others = ckpt_format.tensors_in(file, size_bytes)
    for name, tensor in tensors.items():
        _check_tensor(name, tensor.dtype, tensor.shape, tensor.size_bytes)
    return {
        name: FileTensor(tensor.dtype, tensor.shape, partial(_content, file, path, tensor.values))
        for name, tensor in tensors.items()
    }, others


def _content(file: io.BufferedReader, path: Path, values: list[tuple[int, int]]) -> bytes:
    return b"".join(ckpt_format.content_of(_read(file, path, *value)) for value in values)


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
