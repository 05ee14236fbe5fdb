"""The log of a disk, and what may lie there after the power went at any moment of it.

The rules are the strictest that POSIX allows: bytes and sizes are durable by a later fsync of their file, a name by one
of its folder; anything else is there or not, each by itself, in any part. What an fsync that failed was to cover is not
durable whatever a later one says, since Linux takes the pages for clean after an error and tells of it once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# Content by path relative to the disk's folder; None for a folder.
DiskTree = dict[str, bytes | None]


@dataclass(eq=False)
class Node:
    """A file or a folder, by whatever names; ``key`` is the first one, relative to the disk's folder."""

    key: str
    is_folder: bool = False


@dataclass(frozen=True)
class Bytes:
    node: Node
    offset: int
    data: bytes

    def __str__(self) -> str:
        return f"{len(self.data)} bytes of {self.node.key}"


@dataclass(frozen=True)
class Size:
    node: Node
    size_bytes: int

    def __str__(self) -> str:
        return f"the size of {self.node.key}"


@dataclass(frozen=True)
class Names:
    """Names of one folder that change at once; None takes one away."""

    node: Node
    entries: Mapping[str, Node | None]

    def __str__(self) -> str:
        return " and ".join(
            f"{self.node.key}/{name} {'gone' if node is None else 'there'}" for name, node in self.entries.items()
        )


@dataclass(frozen=True)
class Sync:
    node: Node
    succeeded: bool


@dataclass(frozen=True)
class Reported:
    """Somebody was told that ``value`` of ``kind`` is safe, such as a save after so many batches."""

    kind: str
    value: int


Change = Bytes | Size | Names
Entry = Change | Sync | Reported


@dataclass(frozen=True)
class Cut:
    moment: int
    keep: Callable[[int, Change], Change | None]
    how: str


@dataclass
class Log:
    """What became of a disk, in order."""

    top: Node
    names: Mapping[Node, Mapping[str, Node]]
    contents: Mapping[Node, bytes]
    entries: list[Entry] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.entries)

    def reported(self, moment: int | None = None) -> dict[str, int]:
        """The last value of each kind that was reported before ``moment``."""
        return {one.kind: one.value for one in self.entries[:moment] if isinstance(one, Reported)}

    def durable(self, moment: int) -> set[int]:
        """Numbers of the changes that the first fsync after them made durable."""
        found: set[int] = set()
        succeeded: dict[Node, bool] = {}
        for number in reversed(range(moment)):
            entry = self.entries[number]
            if isinstance(entry, Sync):
                succeeded[entry.node] = entry.succeeded
            elif not isinstance(entry, Reported) and succeeded.get(entry.node, False):
                found.add(number)
        return found

    def open_at(self, moment: int) -> list[int]:
        """Numbers of the changes of which a cut at ``moment`` decides."""
        durable = self.durable(moment)
        return [
            number
            for number, entry in enumerate(self.entries[:moment])
            if isinstance(entry, Change) and number not in durable
        ]

    def after(self, cut: Cut) -> DiskTree:
        """What lies below the folder after ``cut``."""
        names = {node: dict(entries) for node, entries in self.names.items()}
        contents = {node: bytearray(data) for node, data in self.contents.items()}
        durable = self.durable(cut.moment)
        for number, entry in enumerate(self.entries[: cut.moment]):
            if isinstance(entry, Change):
                kept = entry if number in durable else cut.keep(number, entry)
                if kept is not None:
                    apply(kept, names, contents)
        return dict(_walk(self.top, names, contents))

    def without(self, dropped: Callable[[Entry], bool]) -> Log:
        """As if the entries for which ``dropped`` says so had never been."""
        return Log(self.top, self.names, self.contents, [entry for entry in self.entries if not dropped(entry)])

    def told(self, cut: Cut) -> str:
        """``cut`` for a person: when it was, and what was lost."""
        lost = [str(self.entries[number]) for number in self.open_at(cut.moment) if self._is_lost(number, cut)]
        return f"cut before entry {cut.moment} of {len(self)}, {cut.how}; not whole: {'; '.join(lost[:9]) or 'nothing'}"

    def _is_lost(self, number: int, cut: Cut) -> bool:
        entry = self.entries[number]
        return isinstance(entry, Change) and cut.keep(number, entry) != entry


def apply(change: Change, names: dict[Node, dict[str, Node]], contents: dict[Node, bytearray]) -> None:
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
    folder: Node, names: Mapping[Node, Mapping[str, Node]], contents: Mapping[Node, Sequence[int]], above: str = ""
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
