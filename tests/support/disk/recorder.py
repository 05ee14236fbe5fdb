"""A disk under this process: what changes it is written down, and may be killed or refused at any call.

While a `Disk` is entered, whatever ckptkit does below its folder happens as ever and is written down, since all of it
goes through `SystemCalls`. What a test does with `os` is not: that lies there durably, if it was there when the `Disk`
was made. Faults of `ckptkit.testing.faults` happen before system calls: ``Fault("kill", operations=CALLS, nth=7)``
ends the process before its seventh call, and `Disk.restart` begins the next one. A process whose disk is dead changes
nothing any more, whatever its handlers try. Any thread.
"""

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import Self

from ckptkit.storage.system_calls import SystemCalls
from ckptkit.testing.faults import Call, Fault, Killed

from .cuts import nothing
from .model import Bytes, Cut, DiskTree, Log, Names, Node, Reported, Size, Sync, apply

# The operations of faults here; the keys are paths relative to the disk's folder.
CALLS = frozenset({"open", "write", "truncate", "fsync", "link", "unlink", "mkdir", "rmdir", "rename"})


class Disk:
    """The file system below ``folder``; what lies there already is durable, and so is the name of ``folder``."""

    def __init__(self, folder: Path, faults: Iterable[Fault] = ()) -> None:
        self._folder = os.path.realpath(folder)
        self._faults = list(faults)
        self._lock = threading.RLock()
        self._patch = pytest.MonkeyPatch()
        self._dead = False
        self._top = Node("", is_folder=True)
        self._names: dict[Node, dict[str, Node]] = {self._top: {}}
        contents: dict[Node, bytes] = {}
        self._take_in(Path(self._folder), self._top, contents)
        self.calls: list[Call] = []
        self.log = Log(self._top, {node: dict(entries) for node, entries in self._names.items()}, contents)

    def __enter__(self) -> Self:
        for name, (operation, place, record) in _RECORDED.items():
            self._patch.setattr(
                SystemCalls, name, self._recording(getattr(SystemCalls, name), operation, place, record)
            )
        return self

    def _recording(self, real: Callable[..., Any], operation: str, place: int, record: Callable[..., Any]) -> Any:
        """A method of `SystemCalls` that does what ``real`` does; below the folder, that is written down."""

        def method(calls: SystemCalls, *arguments: Any) -> Any:
            key = self._key(arguments[place])
            if key is None:
                return real(calls, *arguments)

            def act() -> Any:
                self._before(operation, key)
                return real(calls, *arguments)

            with self._lock:
                return record(self, key, act, *arguments)

        return method

    def __exit__(self, *_: object) -> None:
        self._patch.undo()

    def inject(self, fault: Fault) -> Fault:
        self._faults.append(fault)
        return fault

    def restart(self) -> None:
        self._dead = False
        self._faults.clear()

    def report(self, kind: str, value: int = 1) -> None:
        """Write down that somebody was told that ``value`` is safe now."""
        with self._lock:
            self.log.entries.append(Reported(kind, value))

    def after_cut(self) -> DiskTree:
        return self.log.after(Cut(len(self.log), nothing, "nothing kept"))

    def _take_in(self, folder: Path, node: Node, contents: dict[Node, bytes]) -> None:
        for path in folder.iterdir():
            child = self._names[node][path.name] = Node(os.path.relpath(path, self._folder), path.is_dir())
            if child.is_folder:
                self._names[child] = {}
                self._take_in(path, child, contents)
            else:
                contents[child] = path.read_bytes()

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

    def _enter_name(self, key: str, node: Node | None, *, instead_of: str | None = None) -> None:
        folder, _, name = key.rpartition("/")
        gone = {} if instead_of is None else {instead_of: None}
        change = Names(self._node(folder), {**gone, name: node})
        self.log.entries.append(change)
        apply(change, self._names, {})

    # What each call is written down as

    def _open_new(self, key: str, act: Callable[[], int], path: Any) -> int:
        descriptor = act()
        self._enter_name(key, Node(key))
        return descriptor

    def _pwrite(self, key: str, act: Callable[[], int], descriptor: int, data: memoryview, offset_bytes: int) -> int:
        count = act()
        self.log.entries.append(Bytes(self._node(key), offset_bytes, bytes(memoryview(data).cast("B")[:count])))
        return count

    def _truncate(self, key: str, act: Callable[[], None], descriptor: int, size_bytes: int) -> None:
        act()
        self.log.entries.append(Size(self._node(key), size_bytes))

    def _fsync(self, key: str, act: Callable[[], None], descriptor: int) -> None:
        node = self._node(key)
        try:
            act()
        except OSError:
            self.log.entries.append(Sync(node, False))
            raise
        self.log.entries.append(Sync(node, True))

    def _link(self, key: str, act: Callable[[], None], existing: Any, new: Any) -> None:
        old = self._key(existing)
        assert old is not None, "links lead from one place of the disk to another"
        act()
        self._enter_name(key, self._node(old))

    def _replace(self, key: str, act: Callable[[], None], existing: Any, new: Any) -> None:
        old = self._key(existing)
        assert old is not None
        assert os.path.dirname(key) == os.path.dirname(old), "renames within a folder only"
        act()
        self._enter_name(key, self._node(old), instead_of=os.path.basename(old))

    def _mkdir(self, key: str, act: Callable[[], None], path: Any) -> None:
        act()
        made = Node(key, is_folder=True)
        self._names[made] = {}
        self._enter_name(key, made)

    def _remove(self, key: str, act: Callable[[], None], path: Any) -> None:
        act()
        self._enter_name(key, None)


# By method of `SystemCalls`: the operation, which argument says where, and how it is written down.
_RECORDED: Mapping[str, tuple[str, int, Callable[..., Any]]] = {
    "open_new": ("open", 0, Disk._open_new),
    "pwrite": ("write", 0, Disk._pwrite),
    "truncate": ("truncate", 0, Disk._truncate),
    "fsync": ("fsync", 0, Disk._fsync),
    "link": ("link", 1, Disk._link),
    "replace": ("rename", 1, Disk._replace),
    "unlink": ("unlink", 0, Disk._remove),
    "mkdir": ("mkdir", 0, Disk._mkdir),
    "rmdir": ("rmdir", 0, Disk._remove),
}
