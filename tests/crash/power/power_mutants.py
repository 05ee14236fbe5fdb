"""What the log of a disk would be if fsyncs of a kind were missing: each such mistake must be found by some cut."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

from support.disk.cuts import cuts_at
from support.disk.model import Cut, Log, Names, Reported, Sync

from .power_stories import Story, violation

_CHECKPOINT = re.compile(r"a\d{6}-c\d{10}-m\d{4}")
_TOKEN = re.compile(r"[0-9a-f]{16,}")
_NUMBER = re.compile(r"\d+")


def mutants(log: Log) -> dict[str, Log]:
    """By name: each kind of fsync that makes something durable left out."""
    kinds = dict(_kinds(log))
    return {f"no fsync of {kind}": _without(log, kinds, kind) for kind in sorted(set(kinds.values()))}


_NO_CONTENT = "a start does without its content"


def _of_removals(root: str) -> dict[str, str]:
    return {
        f"no fsync of {root}/checkpoints after a removal": "what comes back has no COMMIT, and is swept again",
        f"no fsync of {root}/frozen after a removal": "what comes back belongs to no checkpoint, and is swept again",
    }


def _of_writes(root: str) -> dict[str, str]:
    return {f"no fsync of {root}/.reserve/.N.*.tmp": "the reserve is there to be deleted"}


def _of_saves(root: str) -> dict[str, str]:
    return {
        **_of_writes(root),
        f"no fsync of {root}/.run.json.*.tmp": _NO_CONTENT,
        f"no fsync of {root}/events": "events are no promise",
        f"no fsync of {root}/events/.aN-N.jsonl.*.tmp": "nor is what is in them",
        **_of_removals(root),
    }


# By story: the mutants by which nothing is lost that was promised, and why.
HARMLESS: Mapping[str, Mapping[str, str]] = {
    "training": _of_saves("new/deep/run"),
    "mirroring": {
        **_of_saves("local"),
        **_of_writes("mirror"),
        **_of_removals("mirror"),
        "no fsync of mirror/.run.json.*.tmp": _NO_CONTENT,
    },
    "copying": _of_writes("run"),
    "pruning": _of_removals("unpruned"),
}


def first_violation(story: Story, log: Log, folder: Path) -> str | None:
    """The first thing wrong that one of the cuts of ``log`` shows."""
    seen: set[object] = set()
    for cut in _promising(log):
        left, told = log.after(cut), log.reported(cut.moment)
        state = frozenset(left.items()), frozenset(told.items())
        if state not in seen:
            seen.add(state)
            if wrong := violation(story, left, told, folder / str(len(seen))):
                return f"{wrong}\n{log.told(cut)}"
    return None


def _promising(log: Log) -> Iterator[Cut]:
    """The moments after a report first, then the others, as they come."""
    for moment, entry in enumerate(log.entries, 1):
        if isinstance(entry, Reported):
            yield from cuts_at(log, moment, Random(moment), 3)
    for moment in Random(0).sample(range(len(log) + 1), len(log) + 1):
        yield from cuts_at(log, moment, Random(moment), 2)


def _kinds(log: Log) -> Iterator[tuple[int, str]]:
    """Numbers of the fsyncs that make something durable, and of what they are."""
    for number, entry in enumerate(log.entries):
        if not isinstance(entry, Sync):
            continue
        covered = [log.entries[one] for one in log.open_at(number) if log.entries[one].node is entry.node]  # type: ignore[union-attr]
        if covered:
            removes = all(isinstance(one, Names) and set(one.entries.values()) == {None} for one in covered)
            yield number, f"{_shape(entry.node.key)}{' after a removal' if removes else ''}"


def _shape(key: str) -> str:
    return _NUMBER.sub("N", _TOKEN.sub("*", _CHECKPOINT.sub("NAME", key))) or "the top"


def _without(log: Log, kinds: dict[int, str], kind: str) -> Log:
    dropped = {id(log.entries[number]) for number, one in kinds.items() if one == kind}
    # Also those of the same places that cover nothing now, and would then.
    places = {log.entries[number].node for number, one in kinds.items() if one == kind}  # type: ignore[union-attr]
    idle = {id(one) for number, one in enumerate(log.entries) if isinstance(one, Sync) and number not in kinds}
    return log.without(
        lambda one: isinstance(one, Sync) and (id(one) in dropped or (id(one) in idle and one.node in places))
    )
