"""Names the files of weights in several ``.safetensors`` files, and reads and writes their index.

The layout is Hugging Face's (https://huggingface.co/docs/transformers/big_models, "Sharded checkpoints"): files named
``model-00001-of-00002.safetensors`` and so on, and ``model.safetensors.index.json``, an object with ``weight_map``, the
name of the file of each tensor, and ``metadata.total_size``, the bytes of all tensors. Guarantees: an index that is
read names only files beside it. Pure, except for reading the index; any thread.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from ckptkit.core.tensors import size_bytes_of
from ckptkit.tools.interchange.places import FileTensor, Named

INDEX_END = ".index.json"
_MAX_INDEX_BYTES = 200_000_000


class _Index(BaseModel):
    model_config = ConfigDict(strict=True)  # `metadata` may hold anything, and other programs add fields

    weight_map: dict[str, str]


def index_path(file: Path) -> Path:
    """Return the path of the index for weights that would be in ``file`` if they were in one."""
    return file.with_name(f"{file.name}{INDEX_END}")


def part_paths(file: Path, parts: int) -> list[Path]:
    """Return the paths of the files."""
    if parts == 1:
        return [file]
    return [file.with_name(f"{file.stem}-{number:05d}-of-{parts:05d}{file.suffix}") for number in range(1, parts + 1)]


def parts_of(tensors: Sequence[Named], most_bytes: int) -> list[list[Named]]:
    """Group ``tensors``, in order, into files of at most ``most_bytes`` each; a larger tensor has one of its own."""
    parts: list[list[Named]] = [[]]
    filled = 0
    for one in tensors:
        size_bytes = size_bytes_of(one.dtype, one.shape)
        if parts[-1] and filled + size_bytes > most_bytes:
            parts.append([])
            filled = 0
        parts[-1].append(one)
        filled += size_bytes
    return parts


def index_of(files: Mapping[str, Mapping[str, FileTensor]]) -> bytes:
    """Return the text of an index: ``files`` has the tensors by name of each file by name."""
    index = {
        "metadata": {"total_size": sum(one.size_bytes for tensors in files.values() for one in tensors.values())},
        "weight_map": {name: file for file, tensors in files.items() for name in sorted(tensors)},
    }
    return json.dumps(index, indent=2).encode() + b"\n"


def read_index(path: Path) -> dict[str, Path]:
    """Return the file of each tensor.

    Raises:
        ValueError: If it is no index; says why.
        OSError: If it cannot be read.
    """
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):  # opening a pipe without a writer would block forever
        raise ValueError("it is not a file; it is a folder, a pipe or a device")
    if found.st_size > _MAX_INDEX_BYTES:
        raise ValueError("it is too large for an index")
    try:
        files = _Index.model_validate_json(path.read_bytes()).weight_map
    except ValidationError as error:
        raise ValueError("it has no weight_map from names of tensors to names of files") from error
    for name in set(files.values()):
        if name != os.path.basename(name) or "\0" in name or not name.endswith(".safetensors"):
            raise ValueError(f"it names {name[:80]!r}, which is no .safetensors file beside it")
    return {tensor: path.with_name(name) for tensor, name in files.items()}
