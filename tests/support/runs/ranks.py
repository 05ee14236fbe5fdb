"""A job of several ranks as threads over one storage, each of which may die at any call; and a reading of its root."""

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import xxhash

import ckptkit as ck
from ckptkit.storage import Storage
from ckptkit.testing.faults import Fault, FaultyStorage, Killed
from ckptkit.testing.state import NumpyRun
from support.options import grouped
from support.runs.roots import Place, root_at
from support.runs.scenario import folders
from support.thread_ranks import Ended, RankLostError, ThreadWorld, run_ranks

CYCLE = 4  # K
SIZE = 40  # elements of each tensor
PATIENCE = timedelta(seconds=20)


@dataclass
class Mortal:
    """The world of a rank that says nothing more once its storage saw it die."""

    world: ThreadWorld
    storage: FaultyStorage

    @property
    def rank(self) -> int:
        return self.world.rank

    @property
    def size(self) -> int:
        return self.world.size

    def gather(self, message: str):
        self.refuse_dead()
        said = self.world.gather(message)
        self.refuse_dead()
        return said

    def broadcast(self, message: str) -> str:
        return self.gather(message)[0]

    def refuse_dead(self) -> None:
        """Raise Killed if the process would be dead by now."""
        if self.storage.is_dead:
            raise Killed(f"rank {self.rank} is dead")


@dataclass
class Life:
    began: int
    checkpoint: str | None
    restored: str
    digest: str = ""
    saved: list[str] = field(default_factory=list)


def new_run(world: Any) -> NumpyRun:
    return NumpyRun(world=world, size=SIZE, accumulation_steps=CYCLE)


def live(storage: Storage, world: Any, until: int, *, every: int = 3, final: bool = False, **options: Any) -> Life:
    """Resume, train up to ``until``, save every ``every`` micro-steps and, if ``final``, at the end."""
    run = new_run(world)
    options = {"when_busy": "wait", "rank_patience": PATIENCE, "keep": ck.KeepLatest(2), **options}
    with ck.CheckpointManager(storage, save=ck.SaveEvery(micro_steps=every), **grouped(**options)) as manager:
        point = manager.restore(run)
        life = Life(point.batches_delivered, point.checkpoint, run.digest())
        for _ in run.train_until(until):
            handle = manager.step(run)
            if isinstance(world, Mortal):
                world.refuse_dead()
            if handle is not None and handle.exception() is None:
                life.saved.append(handle.result())
        if final:
            life.saved.append(manager.save_final(run))
    life.digest = run.digest()
    return life


def job(
    root: Place,
    size: int,
    until: int,
    *,
    faults: Mapping[int, Fault] | None = None,
    act: Callable[..., Life] = live,
    **options: Any,
) -> list[Ended[Life]]:
    def run(world: ThreadWorld) -> Life:
        fault = (faults or {}).get(world.rank)
        if fault is None:
            return act(root_at(root).storage(), world, until, **options)
        storage = FaultyStorage(root_at(root).storage(), [fault])
        return act(storage, Mortal(world, storage), until, **options)

    return run_ranks(size, run, timeout=timedelta(seconds=60))


@functools.cache
def digests_at(size: int, batches: int) -> tuple[str, ...]:
    def run(world: ThreadWorld) -> str:
        one = new_run(world)
        for _ in one.train_until(batches):
            pass
        return one.digest()

    return tuple(str(one.result) for one in run_ranks(size, run))


def committed(root: Place) -> list[str]:
    return folders(root_at(root).tree()).committed


def check_whole(root: Place, name: str, size: int) -> None:
    """Hold, from the raw files alone, that every part of a committed checkpoint lies there, byte for byte."""
    place = root_at(root)
    commit = json.loads(place.get(f"checkpoints/{name}/COMMIT"))
    manifest_bytes = place.get(f"checkpoints/{name}/manifest.json")
    assert xxhash.xxh3_128_hexdigest(manifest_bytes) == commit["manifest_digest"]
    manifest = json.loads(manifest_bytes)
    assert manifest["world_size"] == len(manifest["rank_files"]) == size
    for rank, file in enumerate(manifest["rank_files"]):
        assert file["key"] == f"checkpoints/{name}/rank-{rank:05d}.json"
        data = place.get(file["key"])
        assert xxhash.xxh3_128_hexdigest(data) == file["digest"]
        document = json.loads(data)
        assert (document["rank"], document["token"]) == (rank, commit["token"])
        for shard in document["shards"]:
            assert xxhash.xxh3_128_hexdigest(place.get(shard["key"])) == shard["digest"]


def lost(ended: Ended[Life]) -> bool:
    return isinstance(ended.error, Killed | RankLostError | ck.CkptKitError)
