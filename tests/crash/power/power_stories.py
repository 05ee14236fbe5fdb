"""Stories for the power to go in: what changes a disk, what it reports, and what must be true of whatever is left."""

import itertools
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

import pytest
from support.clock import clock_of_calls
from support.disk.model import DiskTree, lay_out
from support.disk.recorder import Disk
from support.options import grouped
from support.runs.roots import LocalRoot
from support.runs.scenario import Life, batches_of, committed, digest_at, digest_of, history, name_at, new_run, tree

from ckptkit.errors import CkptKitError, ResumeError
from ckptkit.manager.manager import CheckpointManager
from ckptkit.run.keep_policy import KeepLatest
from ckptkit.storage import LocalStorage
from ckptkit.storage.direct import DirectWriter
from ckptkit.tools.copy.copy import CopyRequest, copy_run
from ckptkit.tools.interchange.exporting import export_weights
from ckptkit.tools.prune import Rule, plan_prune, prune
from ckptkit.tools.watch import CheckpointWatch

OLD = b"what was there before" * 999

# What was reported, by kind: the last value.
Told = Mapping[str, int]


class Story(Protocol):
    """A process that may be run again and again on one disk; ``kinds`` are those of what it reports."""

    kinds: frozenset[str]

    def begin(self, folder: Path) -> None:
        """What lies in ``folder``, durably, before the story; it does not exist."""

    def act(self, disk: Disk, folder: Path) -> None:
        """One process, which reports to ``disk`` what somebody was told."""

    def judge(self, left: DiskTree, told: Told, folder: Path) -> None:
        """Raise unless whatever is ``left`` after a cut holds what was ``told``, and the story can go on."""


class SmallDirect(LocalRoot):
    """A root whose shards go around the page cache, as large ones do."""

    def storage(self) -> LocalStorage:
        return LocalStorage(self.path, large_files=DirectWriter(buffer_bytes=4096))


def whole_run(root: Path, batches: int) -> None:
    """It goes on from no earlier than ``batches``, bit for bit, and can be saved to; all that is committed is whole."""
    for name in committed(root):
        assert digest_of(root, name) == digest_at(batches_of(name)), name
    life = Life(SmallDirect(root))
    life.restore()
    assert life.run.batches >= batches, f"{batches} were reported, a start has {life.run.batches}"
    assert life.run.digest() == digest_at(life.run.batches)
    name = life.saved_at(life.run.batches + 1)
    assert digest_of(root, name) == digest_at(batches_of(name))


class Training:
    """Two saves, of which retention keeps the newest two."""

    kinds = frozenset({"saved"})
    root = "new/deep/run"

    def begin(self, folder: Path) -> None:
        folder.mkdir(parents=True)

    def act(self, disk: Disk, folder: Path) -> None:
        life = Life(SmallDirect(folder / self.root))
        life.restore()
        for at in range(life.run.batches // 2 * 2 + 2, life.run.batches // 2 * 2 + 6, 2):
            if life.save_at(at).exception() is None:
                disk.report("saved", at)

    def judge(self, left: DiskTree, told: Told, folder: Path) -> None:
        whole_run(lay_out(left, folder) / self.root, told.get("saved", 0))


class Mirroring:
    """Two saves, each with its upload; a start completes what the process before had not."""

    kinds = frozenset({"saved", "uploaded"})

    def __init__(self) -> None:
        self._whole: set[int] = set()

    def _manager(self, folder: Path) -> CheckpointManager:
        roots = [LocalStorage(folder / one, large_files=DirectWriter(buffer_bytes=4096)) for one in ("local", "mirror")]
        options = {"keep": KeepLatest(2), "when_busy": "wait", "on_preempt": "off", "monotonic": clock_of_calls()}
        return CheckpointManager(roots[0], **grouped(mirror=roots[1], **options))

    def begin(self, folder: Path) -> None:
        folder.mkdir(parents=True)

    def act(self, disk: Disk, folder: Path) -> None:
        run, manager = new_run(), self._manager(folder)
        manager.restore(run)
        self._uploaded(disk, manager, run.batches)
        for at in run.train_until(run.batches // 2 * 2 + 4):
            if at % 2 == 0 and manager.save(run).exception() is None:
                disk.report("saved", at)
                self._uploaded(disk, manager, at)
        manager.close()

    def _uploaded(self, disk: Disk, manager: CheckpointManager, at: int) -> None:
        manager.wait()
        if manager.mirror_lag == 0 and at:
            disk.report("uploaded", at)

    def judge(self, left: DiskTree, told: Told, folder: Path) -> None:
        both = lay_out(left, folder / "both")
        run, manager = new_run(), self._manager(both)
        manager.restore(run)
        manager.close()
        assert run.batches >= told.get("saved", 0)
        assert run.digest() == digest_at(run.batches)
        # Each root alone, too, once it was promised: before, it may know of a checkpoint that only the other one has.
        for name, kind in (("local", "saved"), ("mirror", "uploaded")):
            alone = {key: data for key, data in left.items() if key.split("/")[0] == name}
            known = hash((frozenset(alone.items()), told.get(kind)))
            if kind in told and known not in self._whole:  # most cuts change one of them
                whole_run(lay_out(alone, folder / f"{name}-alone") / name, told[kind])
                self._whole.add(known)


def copy(source: Path, target: Path) -> None:
    tokens = (f"{number:032x}" for number in itertools.count(1))
    request = CopyRequest(None, lambda: datetime(2026, 1, 2, tzinfo=timezone.utc), lambda: next(tokens))
    storages = [LocalStorage(one, large_files=DirectWriter(buffer_bytes=4096)) for one in (source, target)]
    copy_run(*storages, request, CheckpointWatch())


class Copying:
    """A copy; the same command completes what a kill or a cut broke off, and no start takes a part for a run."""

    kinds = frozenset({"copied"})

    def __init__(self, below: Path) -> None:
        self.source = below / "source"
        history(self.source)
        copy(self.source, below / "copied")
        self._expected = tree(below / "copied")

    def begin(self, folder: Path) -> None:
        folder.mkdir(parents=True)

    def act(self, disk: Disk, folder: Path) -> None:
        copy(self.source, folder / "run")
        disk.report("copied")

    def judge(self, left: DiskTree, told: Told, folder: Path) -> None:
        root = lay_out(left, folder) / "run"
        if "copied" in told:
            # A temporary name whose removal met a failed fsync may be back.
            assert {key: data for key, data in tree(root).items() if not key.endswith(".tmp")} == self._expected
        else:
            if (root / "run.json").exists() and not (root / "attempts/000001.json").exists():
                with pytest.raises(ResumeError, match="has not ended"):
                    Life(root).restore()
            copy(self.source, root)
            assert tree(root) == self._expected
        whole_run(root, 6)


class Pruning:
    """All but two of seven checkpoints of two attempts are removed."""

    kinds = frozenset({"pruned"})
    rules = (Rule("latest:2", KeepLatest(2)),)
    kept = (name_at(2, 10), name_at(2, 12))

    def __init__(self, below: Path) -> None:
        root = below / "unpruned"
        for batches, first in ((2, 4, 6), "latest"), ((8, 10, 12), name_at(1, 6)):
            life = Life(root, keep=KeepLatest(100))
            life.restore(first)
            for at in batches:
                life.saved_at(at)
        self._unpruned = {key: data for key, data in Disk(below).after_cut().items() if key.startswith("unpruned")}

    def begin(self, folder: Path) -> None:
        lay_out(self._unpruned, folder)

    def act(self, disk: Disk, folder: Path) -> None:
        storage = LocalStorage(folder / "unpruned")
        prune(storage, plan_prune(storage, self.rules, branches=False), token="e" * 32)
        disk.report("pruned")

    def judge(self, left: DiskTree, told: Told, folder: Path) -> None:
        root = lay_out(left, folder) / "unpruned"
        found = committed(root)
        assert set(self.kept) <= set(found)
        if "pruned" in told:
            assert found == list(self.kept), "what was removed is back"
        whole_run(root, 12)


class Exporting:
    """A file of weights is replaced: all of it is there, or what was there before."""

    kinds = frozenset({"written"})
    name = "new.safetensors"  # an export is told the format by it

    def __init__(self, below: Path) -> None:
        self._source = below / "source"
        history(self._source)
        export_weights(self._source, below / self.name)
        self._new = (below / self.name).read_bytes()

    def begin(self, folder: Path) -> None:
        lay_out({self.name: OLD}, folder)

    def act(self, disk: Disk, folder: Path) -> None:
        export_weights(self._source, folder / self.name, overwrite=True)
        disk.report("written")

    def judge(self, left: DiskTree, told: Told, folder: Path) -> None:
        found = left.get(self.name)
        assert found == self._new or ("written" not in told and found == OLD)
        others = [key for key in left if key != self.name]
        assert all(key.startswith(f".{self.name}.") and key.endswith(".tmp") for key in others)
        path = lay_out(left, folder) / self.name
        export_weights(self._source, path, overwrite=True)
        assert path.read_bytes() == self._new


def violation(story: Story, left: DiskTree, told: Told, folder: Path) -> str | None:
    """What is wrong with what is ``left``; None for nothing."""
    try:
        story.judge(left, told, folder)
    except (AssertionError, CkptKitError) as error:
        return f"{type(error).__name__}: {error}"
    return None
