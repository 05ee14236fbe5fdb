"""Runs of thousands of sound checkpoints, made from a few real ones."""

import json

from ckptkit.core.save_policy import SaveEvery
from ckptkit.format.documents import digest_of
from ckptkit.format.layout import CheckpointName
from ckptkit.manager.manager import CheckpointManager
from ckptkit.run.keep_policy import KeepLatest, KeepPolicy
from support.runs.dict_storage import DictStorage
from support.runs.forge import sealed
from support.runs.grown import WatchedRun, train

KEEP_ALL = KeepLatest(20_000)


def start(storage, keep: KeepPolicy = KEEP_ALL) -> tuple[CheckpointManager, WatchedRun]:
    manager = CheckpointManager(storage, save=SaveEvery(micro_steps=10**9), keep=keep)
    run = WatchedRun()
    manager.restore(run)
    return manager, run


def save(manager: CheckpointManager, run: WatchedRun) -> str:
    train(run, run.batches + 3)
    return manager.save(run).result()


def long_run(*counts: int) -> DictStorage:
    """A run whose n-th attempt has so many checkpoints, all of them restorable."""
    storage = DictStorage()
    for count in counts:
        manager, run = start(storage)
        name = save(manager, run)
        manager.close()
        multiply(storage, name, count)
    return storage


def multiply(storage: DictStorage, name: str, count: int) -> None:
    """Copies ``name`` until there are ``count``, as if each were a later try at the same progress."""
    parsed = CheckpointName.parse(name)
    files = {key: data for key, data in storage.files.items() if key.startswith(f"{parsed.folder}/")}
    commit = json.loads(files.pop(parsed.commit_key))
    manifest = json.loads(files.pop(parsed.manifest_key))
    rank = files.pop(parsed.rank_key(0))
    for nth in range(2, count + 1):
        copy = CheckpointName(parsed.attempt, parsed.cycles, parsed.micro_step, nth)
        data = rank.replace(name.encode(), str(copy).encode())
        entry = {"key": copy.rank_key(0), "size_bytes": len(data), "digest": digest_of(data)}
        storage.files.update({key.replace(name, str(copy)): one for key, one in files.items()})
        storage.files[copy.rank_key(0)] = data
        data = json.dumps({**manifest, "checkpoint": str(copy), "rank_files": [entry]}).encode()
        storage.files[copy.manifest_key] = data
        commit.update(manifest_digest=digest_of(data), manifest_size_bytes=len(data))
        storage.files[copy.commit_key] = sealed(commit)


def names_of(storage: DictStorage) -> list[str]:
    """Folders with a COMMIT, real or void, in order."""
    return sorted((key.split("/")[1] for key in storage.files if key.endswith("/COMMIT")), key=CheckpointName.parse)
