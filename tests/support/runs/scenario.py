"""Shared by the crash suites: a life of the training job, and an independent reading of what lies in its root.

Nothing here asks ckptkit what is committed or what a sweep may remove: that is read from the raw files, by the
text of the format, so that a mistake in the product is not repeated in its tests. A root is a directory or a bucket
(`roots`); a path stands for the directory.
"""

import functools
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from ckptkit.checkpoint.open import open_checkpoint
from ckptkit.checkpoint.read import load
from ckptkit.core.progress import ResumePoint
from ckptkit.format.layout import CheckpointName
from ckptkit.manager.manager import CheckpointManager, SaveHandle
from ckptkit.run.index import Index
from ckptkit.run.keep_policy import KeepLatest, KeepPolicy
from ckptkit.testing.faults import Call, Fault, FaultyStorage
from ckptkit.testing.state import NumpyRun
from support.clock import clock_of_calls
from support.corrupt import corrupted
from support.options import grouped

from .roots import Place, Tree, root_at

CYCLE = 4  # K of every NumpyRun here
SIZE = 5  # elements of each of its tensors

_FOLDER = re.compile(r"checkpoints/(a(\d{6})-[^/]+)/(.+)")
_ATTEMPT = re.compile(r"attempts/(\d{6})\.json")
_FROZEN = re.compile(r"frozen/a(\d{6})/.+")


class Life:
    """One process of the job: its storage, its manager, its training state.

    To kill it, drop it; a new one on the same root is a new process.
    """

    def __init__(self, root: Place, *, keep: KeepPolicy | None = None, faults: Iterable[Fault] = (), **options) -> None:
        self.root = root_at(root)
        self.storage = FaultyStorage(self.root.storage(), faults)
        options.setdefault("monotonic", clock_of_calls())
        self.manager = CheckpointManager(self.storage, keep=keep or KeepLatest(2), **grouped(**options))
        self.run = new_run()

    def restore(self, checkpoint: str = "latest", *, rewind: bool = False) -> ResumePoint:
        return self.manager.restore(self.run, checkpoint=checkpoint, rewind=rewind)

    def save_at(self, batches: int) -> SaveHandle:
        """Train up to ``batches``, save, and wait for the end of the save, whatever it is."""
        for _ in self.run.train_until(batches):
            pass
        handle = self.manager.save(self.run)
        handle.exception()
        return handle

    def saved_at(self, batches: int) -> str:
        """As `save_at`, and the save must have worked."""
        return self.save_at(batches).result()

    def calls_of(self, action) -> list[Call]:
        """What ``action`` asks of the storage."""
        begin = len(self.storage.calls)
        action()
        return self.storage.calls[begin:]


def new_run(**options) -> NumpyRun:
    return NumpyRun(accumulation_steps=CYCLE, size=SIZE, **options)


def digest_at(batches: int) -> str:
    return _digest_at(batches, SIZE)


@functools.cache
def _digest_at(batches: int, size: int) -> str:
    run = NumpyRun(accumulation_steps=CYCLE, size=size)
    for _ in run.train_until(batches):
        pass
    return run.digest()


def name_at(attempt: int, batches: int, nth_try: int = 1) -> str:
    return str(CheckpointName(attempt, *divmod(batches, CYCLE), nth_try))


def batches_of(name: str) -> int:
    parsed = CheckpointName.parse(name)
    return parsed.cycles * CYCLE + parsed.micro_step


def digest_of(root: Place, name: str) -> str:
    """Digest of the run that the checkpoint ``name`` restores, without taking the run over."""
    storage = root_at(root).storage()
    parsed = CheckpointName.parse(name)
    run = new_run(seed=99)
    # What a restore leaves alone would show: this run has other weights, and has trained.
    for _ in run.train_until(3):
        pass
    run.apply(load(storage, open_checkpoint(storage, parsed, Index(storage).document(parsed.attempt))))
    return run.digest()


AT_6, AT_8, AT_10 = name_at(1, 6), name_at(2, 8), name_at(2, 10)


def history(root: Place) -> None:
    """Attempt 1 has committed at 2, 4 and 6, of which retention removed the first."""
    life = Life(root)
    life.restore()
    for batches in (2, 4, 6):
        life.saved_at(batches)
    assert committed(root) == [name_at(1, 4), AT_6]


def tree(root: Place) -> Tree:
    return root_at(root).tree()


@dataclass
class Folders:
    """The checkpoint folders of a tree, sorted by what their COMMIT says."""

    committed: list[str]
    void: list[str]
    uncommitted: list[str]


def folders(files: Tree) -> Folders:
    found = Folders([], [], [])
    for name in sorted({match[1] for key in files if (match := _FOLDER.fullmatch(key))}):
        commit = files.get(f"checkpoints/{name}/COMMIT")
        if commit is None:
            found.uncommitted.append(name)
        elif b'"void_by"' in commit:
            found.void.append(name)
        else:
            found.committed.append(name)
    return found


def committed(root: Place) -> list[str]:
    return folders(tree(root)).committed


def corrupt(root: Place, name: str, file: str = "rank-00000/weights-000.safetensors", how: str = "flip") -> None:
    """Damage one file of a checkpoint: ``flip`` a bit, ``cut`` its end off, or have it ``missing``."""
    place, key = root_at(root), f"checkpoints/{name}/{file}"
    if how == "missing":
        place.remove(key)
    else:
        place.put(key, corrupted(place.get(key), how))


def attempts(files: Tree) -> dict[int, dict]:
    return {int(match[1]): json.loads(data) for key, data in files.items() if (match := _ATTEMPT.fullmatch(key))}


def swept(files: Tree, attempt: int, token: str, parent: str | None, branch: str | None) -> Tree:
    """What the sweep of ``attempt`` must leave of ``files``: the expectation, by the text of the protocol."""
    state = folders(files)
    living = {int(name[1:7]) for name in state.committed}
    there = {int(name[1:7]) for name in (*state.committed, *state.void, *state.uncommitted)}
    second = int(state.committed[-2][1:7]) if len(state.committed) > 1 else 0
    left: Tree = {}
    for key, data in files.items():
        in_folder = _FOLDER.fullmatch(key)
        frozen = _FROZEN.fullmatch(key)
        if in_folder and in_folder[1] not in state.committed:
            if in_folder[3] == "COMMIT":
                left[key] = data
        elif not frozen or int(frozen[1]) in living or int(frozen[1]) >= attempt:
            left[key] = data
        elif int(frozen[1]) not in there and int(frozen[1]) >= second:
            left[key] = data  # its commits may be on a disk that is not mounted
    for name in state.uncommitted:
        left[f"checkpoints/{name}/COMMIT"] = json.dumps({"void_by": token}, separators=(",", ":")).encode()
    bare = [name for name in state.void if f"checkpoints/{name}/COMMIT" in files and _is_alone(files, name)]
    gone = {f"checkpoints/{name}/COMMIT" for name in bare if int(name[1:7]) < _second_newest(files, parent)}
    return {
        key: data
        for key, data in left.items()
        if key not in gone | _failed_starts(files, attempt, parent, branch, bare)
    }


def _is_alone(files: Tree, name: str) -> bool:
    return sum(key.startswith(f"checkpoints/{name}/") for key in files) == 1


def _second_newest(files: Tree, parent: str | None) -> int:
    """The attempt of the second newest commit on the lineage that ends in ``parent``; 0 where there is none."""
    on_line: list[str] = []
    while parent is not None and len(on_line) < 2:
        of_attempt = [name for name in folders(files).committed if name[:7] == parent[:7] and name <= parent]
        on_line += sorted(of_attempt, reverse=True)
        parent = attempts(files)[int(parent[1:7])]["parent"]
    return int(on_line[1][1:7]) if len(on_line) > 1 else 0


def _failed_starts(files: Tree, attempt: int, parent: str | None, branch: str | None, bare: list[str]) -> set[str]:
    """The keys of starts that came to nothing, all but those of the last two."""
    if parent is None or branch is not None:
        return set()
    documents = attempts(files)
    there = {int(name[1:7]) for name in folders(files).committed}
    with_data = {int(match[2]) for key in files if (match := _FOLDER.fullmatch(key)) and match[1] not in bare}
    gone: set[str] = set()
    origin = json.loads(files["run.json"])["copied_from"]
    between = sorted((n for n in documents if int(parent[1:7]) < n < attempt), reverse=True)
    for number in [n for n in between if n > max(there, default=0)][2:]:
        document = documents[number]
        if number in with_data or (document["parent"], document["branch"]) != (parent, None):
            break
        mine = re.compile(rf"attempts/{number:06d}\.json|(events|checkpoints)/a{number:06d}-.+")
        if origin is None or number != origin["last_attempt"]:
            gone |= {key for key in files if mine.fullmatch(key)}
    return gone


def check_new_start(root: Place, latest: str | None) -> Life:
    """Start a new process on ``root`` and hold everything that must be true whatever happened before.

    Every committed checkpoint restores bit by bit and is listed, nothing else is listed, the newest one is taken,
    uncommitted folders are voided before they are emptied, and no other file is touched. Returns the process,
    which has also saved twice more.
    """
    root = root_at(root)
    before = tree(root)
    state = folders(before)
    life = Life(root)
    listed = life.manager.checkpoints()
    assert [info.name for info in listed] == state.committed
    assert [info.problem for info in listed] == [None] * len(listed)
    for name in state.committed:
        assert digest_of(root, name) == digest_at(batches_of(name)), name

    calls = life.calls_of(life.restore)
    after = tree(root)
    newest = attempts(after)
    own = max(newest)
    assert own == max([0, *attempts(before)]) + 1
    assert newest[own]["parent"] == latest
    assert life.run.digest() == digest_at(batches_of(latest) if latest else 0)
    expected = swept(before, own, newest[own]["token"], latest, newest[own]["branch"])
    expected[f"attempts/{own:06d}.json"] = after[f"attempts/{own:06d}.json"]
    expected.setdefault("run.json", after["run.json"])
    assert after == expected
    check_void_before_delete(calls, state.void)

    at = life.run.batches
    assert life.saved_at(at + 3) == name_at(own, at + 3)
    assert life.saved_at(at + 4) == name_at(own, at + 4)
    assert digest_of(root, name_at(own, at + 4)) == digest_at(at + 4)
    return life


def check_void_before_delete(calls: Iterable[Call], void: Iterable[str]) -> None:
    """No data of a folder is deleted before the call that voids the folder."""
    known = set(void)
    for call in calls:
        for match in filter(None, map(_FOLDER.fullmatch, call.keys)):
            if call.operation == "create" and match[3] == "COMMIT":
                known.add(match[1])
            assert call.operation != "delete" or match[1] in known, call
