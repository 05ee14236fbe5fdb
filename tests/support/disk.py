"""What a disk holds when the power goes: a recorder of the system calls that change it, and the states they allow.

While a `Disk` is entered, whatever this process does below its folder happens as ever and is written down.
`Disk.after_cut` tells what may lie there after a power loss at any moment. The rules are the strictest that POSIX
allows: bytes and sizes are durable by a later fsync of their file, a name by one of its folder; anything else is there
or not, each by itself, in any part. What an fsync that failed was to cover is not durable whatever a later one says,
since Linux takes the pages for clean after an error and tells of it once.

Faults of `ckptkit.testing.faults` happen before system calls: ``Fault("kill", operations=CALLS, nth=7)`` ends the
process before its seventh call, and `Disk.restart` begins the next one. A process whose disk is dead changes nothing
any more, whatever its handlers try. Not seen: bytes that a file object writes itself, symbolic links, descriptors from
before. Any thread.
"""

from __future__ import annotations

import builtins
import functools
import io
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from typing_extensions import Self

from ckptkit.testing.faults import Call, Fault, Killed

# The operations of faults here; the keys are paths relative to the disk's folder.
CALLS = frozenset({"open", "write", "truncate", "fsync", "link", "unlink", "mkdir", "rmdir", "rename"})

# Content by path relative to the disk's folder; None for a folder.
DiskTree = dict[str, bytes | None]


@dataclass(eq=False)
class Node:
    """A file or a folder, by whatever names."""

    is_folder: bool = False


@dataclass(frozen=True)
class Bytes:
    node: Node
    offset: int
    data: bytes


@dataclass(frozen=True)
class Size:
    node: Node
    size_bytes: int


@dataclass(frozen=True)
class Names:
    """Names of one folder that change at once; None takes one away."""

    node: Node
    entries: Mapping[str, Node | None]


@dataclass(frozen=True)
class Sync:
    node: Node
    succeeded: bool


Change = Bytes | Size | Names
Keep = Callable[[Change], Change | None]


def nothing(change: Change) -> Change | None:
    """Of what is not durable, nothing reached the disk."""
    return None


def everything(change: Change) -> Change | None:
    """All of it did."""
    return change


def zeros(change: Change) -> Change | None:
    """Names and sizes did, and the blocks of the files did not."""
    return replace(change, data=bytes(len(change.data))) if isinstance(change, Bytes) else change


def some(random: Random) -> Keep:
    """Of each change it is chance whether it did, and how much of its bytes."""

    def keep(change: Change) -> Change | None:
        if random.random() < 0.5:
            return None
        if isinstance(change, Bytes) and random.random() < 0.5:
            return replace(change, data=change.data[: random.randrange(len(change.data) + 1)])
        return change

    return keep


@dataclass(frozen=True)
class Cut:
    """A power loss.

    Attributes:
        moment: After so many entries of `Disk.log`.
        keep: What became of a change that was not durable then.
    """

    moment: int
    keep: Keep


class Disk:
    """The file system below ``folder``; what lies there already is durable, and so is the name of ``folder``.

    Args:
        folder: Where.
        faults: What happens before which of `CALLS`.

    Attributes:
        calls: Every call that would change the disk, in order.
        log: What the calls did.
    """

    def __init__(self, folder: Path, faults: Iterable[Fault] = ()) -> None:
        self._folder = os.path.realpath(folder)
        self._faults = list(faults)
        self._lock = threading.RLock()
        self._patch = pytest.MonkeyPatch()
        self._dead = False
        self._top = Node(is_folder=True)
        self._names: dict[Node, dict[str, Node]] = {self._top: {}}
        self._contents: dict[Node, bytes] = {}
        self.calls: list[Call] = []
        self.log: list[Change | Sync] = []
        self._take_in(Path(self._folder), self._top)
        self._names_before = {node: dict(entries) for node, entries in self._names.items()}

    def __enter__(self) -> Self:
        patches = {
            "open": self._open,
            "write": self._write,
            "pwrite": self._pwrite,
            "ftruncate": self._truncate,
            "fsync": self._fsync,
            "link": self._link,
            "mkdir": self._mkdir,
            "rename": self._rename,
            "replace": self._rename,
            "unlink": functools.partial(self._remove, "unlink"),
            "remove": functools.partial(self._remove, "unlink"),
            "rmdir": functools.partial(self._remove, "rmdir"),
        }
        for name, patch in patches.items():
            self._patch.setattr(os, name, functools.partial(patch, getattr(os, name)))
        for module in (builtins, io):
            self._patch.setattr(module, "open", functools.partial(self._open_file, io.open))
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()

    def inject(self, fault: Fault) -> Fault:
        """Add ``fault``, which counts calls from now on, and return it."""
        self._faults.append(fault)
        return fault

    def restart(self) -> None:
        """Begin a new process, without the faults of the one before."""
        self._dead = False
        self._faults.clear()

    def after_cut(self, cut: Cut | None = None) -> DiskTree:
        """What lies below the folder after ``cut``; default: after one at this moment that keeps nothing."""
        moment, keep = (len(self.log), nothing) if cut is None else (cut.moment, cut.keep)
        names = {node: dict(entries) for node, entries in self._names_before.items()}
        contents = {node: bytearray(data) for node, data in self._contents.items()}
        durable = self._durable(moment)
        for number, change in enumerate(self.log[:moment]):
            if isinstance(change, Sync):
                continue
            kept = change if number in durable else keep(change)
            if kept is not None:
                _apply(kept, names, contents)
        return dict(_walk(self._top, names, contents))

    def cuts(self, *keeps: Keep, since: int = 0) -> Iterator[Cut]:
        """One at each moment for each of ``keeps``."""
        return (Cut(moment, keep) for moment, keep in itertools.product(range(since, len(self.log) + 1), keeps))

    def _durable(self, moment: int) -> set[int]:
        """Numbers of the changes that the first fsync after them made durable."""
        found: set[int] = set()
        succeeded: dict[Node, bool] = {}
        for number in reversed(range(moment)):
            entry = self.log[number]
            if isinstance(entry, Sync):
                succeeded[entry.node] = entry.succeeded
            elif succeeded.get(entry.node, False):
                found.add(number)
        return found

    def _take_in(self, folder: Path, node: Node) -> None:
        for path in folder.iterdir():
            child = self._names[node][path.name] = Node(path.is_dir())
            if child.is_folder:
                self._names[child] = {}
                self._take_in(path, child)
            else:
                self._contents[child] = path.read_bytes()

    # Where a call goes

    def _key(self, place: Any) -> str | None:
        """The path of ``place``, a path or a descriptor, in the folder; None for what lies elsewhere."""
        path = os.readlink(f"/proc/self/fd/{place}") if isinstance(place, int) else os.path.abspath(os.fspath(place))
        if path == self._folder:
            return ""
        below = path.removeprefix(f"{self._folder}/")
        return None if below == path or path.endswith(" (deleted)") else below

    def _node(self, key: str) -> Node:
        node = self._top
        for name in filter(None, key.split("/")):
            node = self._names[node][name]
        return node

    def _place(self, key: str) -> tuple[Node, str]:
        folder, _, name = key.rpartition("/")
        return self._node(folder), name

    def _before(self, operation: str, key: str) -> None:
        if self._dead:
            raise Killed(f"a dead process does not {operation} {key}")
        call = Call(operation, (key,))  # type: ignore[arg-type]
        self.calls.append(call)
        for fault in [fault for fault in self._faults if fault.strikes(call)]:
            try:
                fault.happen(call)
            except Killed:
                self._dead = True
                raise

    def _enter_names(self, folder: Node, entries: Mapping[str, Node | None]) -> None:
        self.log.append(Names(folder, entries))
        _apply(self.log[-1], self._names, {})

    # The calls

    def _open(self, real: Any, path: Any, flags: int, *args: Any, **options: Any) -> int:
        key = self._key(path)
        if key is None or not flags & os.O_CREAT:
            return real(path, flags, *args, **options)
        return self._opened(key, path, bool(flags & os.O_TRUNC), lambda: real(path, flags, *args, **options))

    def _open_file(self, real: Any, file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        key = None if isinstance(file, int) or not set(mode) & set("wxa") else self._key(file)
        if key is None:
            return real(file, mode, *args, **options)
        return self._opened(key, file, "w" in mode, lambda: real(file, mode, *args, **options))

    def _opened(self, key: str, path: Any, truncates: bool, opening: Callable[[], Any]) -> Any:
        with self._lock:
            self._before("open", key)
            is_new = not os.path.lexists(path)
            opened = opening()
            if is_new:
                folder, name = self._place(key)
                self._enter_names(folder, {name: Node()})
            elif truncates:
                self.log.append(Size(self._node(key), 0))
        return opened

    def _write(self, real: Any, descriptor: int, data: Any) -> int:
        offset = os.lseek(descriptor, 0, os.SEEK_CUR) if self._key(descriptor) else 0
        return self._written(descriptor, offset, data, lambda: real(descriptor, data))

    def _pwrite(self, real: Any, descriptor: int, data: Any, offset: int) -> int:
        return self._written(descriptor, offset, data, lambda: real(descriptor, data, offset))

    def _written(self, descriptor: int, offset: int, data: Any, writing: Callable[[], int]) -> int:
        key = self._key(descriptor)
        if key is None:
            return writing()
        with self._lock:
            self._before("write", key)
            count = writing()
            self.log.append(Bytes(self._node(key), offset, bytes(memoryview(data).cast("B")[:count])))
        return count

    def _truncate(self, real: Any, descriptor: int, size_bytes: int) -> None:
        key = self._key(descriptor)
        with self._lock:
            if key is not None:
                self._before("truncate", key)
                self.log.append(Size(self._node(key), size_bytes))
            real(descriptor, size_bytes)

    def _fsync(self, real: Any, descriptor: int) -> None:
        key = self._key(descriptor)
        if key is None:
            real(descriptor)
            return
        with self._lock:
            node = self._node(key)
            try:
                self._before("fsync", key)
            except OSError:
                self.log.append(Sync(node, False))
                raise
            self.log.append(Sync(node, True))  # written down only: the real one takes time, and nothing is read by it

    def _link(self, real: Any, source: Any, target: Any) -> None:
        key = self._key(target)
        assert key is not None, "links lead from one place of the disk to another"
        with self._lock:
            self._before("link", key)
            real(source, target)
            folder, name = self._place(key)
            self._enter_names(folder, {name: self._node(self._key(source) or "")})

    def _mkdir(self, real: Any, path: Any, *args: Any, **options: Any) -> None:
        key = self._key(path)
        if key is None:
            real(path, *args, **options)
            return
        with self._lock:
            self._before("mkdir", key)
            real(path, *args, **options)
            folder, name = self._place(key)
            made = Node(is_folder=True)
            self._names[made] = {}
            self._enter_names(folder, {name: made})

    def _rename(self, real: Any, source: Any, target: Any) -> None:
        key, old = self._key(target), self._key(source)
        assert key is not None, "renames stay on the disk"
        assert old is not None, "renames stay on the disk"
        with self._lock:
            self._before("rename", key)
            real(source, target)
            (folder, name), (before, old_name) = self._place(key), self._place(old)
            assert folder is before, "renames within a folder only"
            self._enter_names(folder, {old_name: None, name: self._node(old)})

    def _remove(self, operation: str, real: Any, path: Any, **options: Any) -> None:
        key = self._key(path) if options.get("dir_fd") is None else None
        if key is None:
            real(path, **options)
            return
        with self._lock:
            self._before(operation, key)
            real(path, **options)
            folder, name = self._place(key)
            self._enter_names(folder, {name: None})


def _apply(change: Change, names: dict[Node, dict[str, Node]], contents: dict[Node, bytearray]) -> None:
    if isinstance(change, Names):
        entries = names.setdefault(change.node, {})
        for name, node in change.entries.items():
            if node is None:
                entries.pop(name, None)
            else:
                entries[name] = node
        return
    content = contents.setdefault(change.node, bytearray())
    end = change.size_bytes if isinstance(change, Size) else change.offset + len(change.data)
    content.extend(bytes(max(0, end - len(content))))
    if isinstance(change, Size):
        del content[end:]
    else:
        content[change.offset : end] = change.data


def _walk(
    folder: Node, names: Mapping[Node, Mapping[str, Node]], contents: Mapping[Node, bytearray], above: str = ""
) -> Iterator[tuple[str, bytes | None]]:
    for name, node in sorted(names.get(folder, {}).items()):
        yield above + name, None if node.is_folder else bytes(contents.get(node, b""))
        yield from _walk(node, names, contents, f"{above}{name}/")


def lay_out(tree: DiskTree, folder: Path) -> Path:
    """Make ``folder`` with what ``tree`` has, as a machine finds it that comes up again."""
    folder.mkdir(parents=True)
    for key, data in tree.items():
        if data is None:
            (folder / key).mkdir()
        else:
            (folder / key).write_bytes(data)
    return folder
