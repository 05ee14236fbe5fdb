"""Opens and checks a ``.ckpt`` or ``.safetensors`` file with weights, or several by their index.

Guarantees: every tensor of a `WeightsFile` is inside the file and has the bytes that its shape needs, so that no caller
allocates more memory for it than the file has bytes. Bytes are read on request. Any thread.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from typing_extensions import Self

from ckptkit.errors import CheckpointNotFoundError, CorruptCheckpointError, StorageError
from ckptkit.tools.interchange import ckpt_format, safetensors_format
from ckptkit.tools.interchange.places import FileFormat, FileTensor, format_of
from ckptkit.tools.interchange.shard_index import INDEX_END, read_index

_READERS = {"ckpt": ckpt_format.tensors_in, "safetensors": safetensors_format.tensors_in}
_MAX_ELEMENTS = 1 << 50  # an empty tensor of absurd shape needs no bytes, but NumPy cannot create it


@dataclass(frozen=True)
class WeightsFile:
    """Describes the contents of a file; a context manager that closes it.

    Attributes:
        path: Path of the file.
        format: Its format.
        tensors: By name, in the file's order.
        others: Names of contents that are not tensors, such as texts that `mindspore.save_checkpoint` appended.
        handle: The open file.
    """

    path: Path
    format: FileFormat
    tensors: Mapping[str, FileTensor]
    others: tuple[str, ...]
    handle: io.BufferedReader

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open ``path`` and check the description of its tensors.

        Raises:
            ValueError: If its name gives no format.
            CheckpointNotFoundError: If there is no such file.
            CorruptCheckpointError: If it is truncated or something else; names it.
            StorageError: If it could not be read.
        """
        file_format = format_of(os.fspath(path))
        with contextlib.ExitStack() as stack, _as_ours(path):
            if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe without a writer would block forever
                raise CorruptCheckpointError(f"{path} is not a file; it is a folder, a pipe or a device")
            handle = stack.enter_context(Path(path).open("rb"))
            try:
                tensors, others = _READERS[file_format](handle, os.fstat(handle.fileno()).st_size)
                _refuse_absurd(tensors)
            except ValueError as error:
                raise CorruptCheckpointError(f"{path} is not a readable {file_format} file: {error}") from error
            stack.pop_all()
        return cls(Path(path), file_format, {one.name: one for one in tensors}, tuple(others), handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.handle.close()

    def read_into(self, name: str, buffer: memoryview, start: int) -> None:
        """Fill ``buffer`` with the bytes of a tensor, from its byte ``start`` on.

        Raises:
            CorruptCheckpointError: If the file has become shorter meanwhile.
            StorageError: If it could not be read.
        """
        filled = 0
        for span in self.tensors[name].spans:
            skipped = min(start, span.size_bytes)
            start -= skipped
            piece = buffer[filled : filled + span.size_bytes - skipped]
            with _as_ours(self.path):
                self.handle.seek(span.offset_bytes + skipped)
                count = self.handle.readinto(piece)
            if count != len(piece):
                raise CorruptCheckpointError(f"{self.path} became shorter while it was read")
            filled += count


@dataclass(frozen=True)
class ShardedWeights:
    """Describes weights in several ``.safetensors`` files; a context manager that closes them.

    Attributes:
        path: Path of their index.
        format: ``safetensors``.
        tensors: By name, file after file.
        others: Names of tensors that the files have and the index does not.
        files: The file of each tensor.
    """

    path: Path
    format: FileFormat
    tensors: Mapping[str, FileTensor]
    others: tuple[str, ...]
    files: Mapping[str, WeightsFile]

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open the files that the index at ``path`` names; raises as `WeightsFile.open`, also for what is missing."""
        with _as_ours(path):
            try:
                wanted = read_index(Path(path))
            except ValueError as error:
                raise CorruptCheckpointError(f"{path} is not a readable index: {error}") from error
        with contextlib.ExitStack() as stack:
            opened = {one: stack.enter_context(WeightsFile.open(one)) for one in sorted(set(wanted.values()))}
            for name, one in wanted.items():
                if name not in opened[one].tensors:
                    raise CorruptCheckpointError(f"{one} has no tensor {name[:80]!r}, which {path} says is there")
            stack.pop_all()
        tensors = {
            name: tensor
            for file, one in opened.items()
            for name, tensor in one.tensors.items()
            if wanted.get(name) == file
        }
        others = sorted({name for one in opened.values() for name in one.tensors} - wanted.keys())
        files = {name: opened[wanted[name]] for name in tensors}
        return cls(Path(path), "safetensors", tensors, tuple(others), files)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in self.files.values():
            one.handle.close()

    def read_into(self, name: str, buffer: memoryview, start: int) -> None:
        """Do as `WeightsFile.read_into`."""
        self.files[name].read_into(name, buffer, start)


def open_weights(path: str | os.PathLike[str]) -> WeightsFile | ShardedWeights:
    """Open one file, or those of an index; raises as `WeightsFile.open`."""
    if os.fspath(path).endswith(f".safetensors{INDEX_END}"):
        return ShardedWeights.open(path)
    return WeightsFile.open(path)


@contextlib.contextmanager
def _as_ours(path: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except (StorageError, CheckpointNotFoundError):
        raise
    except FileNotFoundError as error:
        raise CheckpointNotFoundError(f"there is no file {path}") from error
    except OSError as error:
        raise StorageError(f"could not read {path}: {error.strerror or error}") from error


def _refuse_absurd(tensors: list[FileTensor]) -> None:
    for one in tensors:
        if math.prod(dimension or 1 for dimension in one.shape) > _MAX_ELEMENTS:
            raise ValueError(f"{one.name[:80]!r} has the shape {str(one.shape)[:80]}")
        if not one.name.isascii() and one.name != one.name.encode("utf-8", "replace").decode():
            raise ValueError(f"{one.name[:80]!r} is a name that is not valid Unicode")
