"""A run in a bucket: storages with clocks of their own, and an independent look at what lies there."""

from __future__ import annotations

import json
import random
import re
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta

from ckptkit.checkpoint.open import open_checkpoint
from ckptkit.checkpoint.read import load
from ckptkit.format.layout import CheckpointName
from ckptkit.run.index import Index
from ckptkit.storage import open_storage
from ckptkit.storage.s3.retry import Patience, Retry
from ckptkit.testing.state import NumpyRun

CYCLE = 4
PREFIX = "runs/vit"


class Clock:
    """The time that ``real`` gives, and the time that was waited for, which passes at once."""

    def __init__(self, real: Callable[[], float] = time.monotonic) -> None:
        self._real = real
        self._waited_seconds = 0.0

    def __call__(self) -> float:
        return self._real() + self._waited_seconds

    def wait(self, seconds: float) -> None:
        self._waited_seconds += seconds


def opened(
    endpoint: str,
    bucket,
    *,
    retry_for: timedelta = timedelta(minutes=5),
    seed: int = 1,
    real: Callable[[], float] = time.monotonic,
    **options,
):
    """A storage that retries without waiting for it."""
    given = {"key": "testing", "secret": "testing", "endpoint_url": endpoint, "default_block_size": 5 << 20}
    storage = open_storage(f"s3://{bucket.name}/{PREFIX}", {**given, **options})
    clock = Clock(real)
    patience = Patience(options.get("request_timeout", timedelta(minutes=2)), retry_for, retry_for)
    storage._bucket._retry = Retry(patience, monotonic=clock, wait=clock.wait, rng=random.Random(seed))
    return storage


def digest_at(batches: int, make=NumpyRun) -> str:
    """Digest of a run that was never interrupted."""
    run = make(accumulation_steps=CYCLE)
    for _ in run.train_until(batches):
        pass
    return run.digest()


def digest_of(storage, name: str, make=NumpyRun) -> str:
    """Digest of the run that ``name`` restores, without taking the run over."""
    parsed = CheckpointName.parse(name)
    run = make(seed=99, accumulation_steps=CYCLE)
    run.apply(load(storage, open_checkpoint(storage, parsed, Index(storage).document(parsed.attempt))))
    return run.digest()


class Look:
    """What lies in the bucket, by the text of the format."""

    def __init__(self, bucket) -> None:
        self.folders: dict[str, dict[str, bytes]] = defaultdict(dict)
        self.others: dict[str, bytes] = {}
        self.uploads = bucket.uploads()
        for key in bucket.keys():  # noqa: SIM118 - of a bucket
            match = re.fullmatch(rf"{PREFIX}/checkpoints/([^/]+)/(.+)", key)
            if match:
                self.folders[match[1]][match[2]] = bucket.get(key) if match[2] == "COMMIT" else b""
            else:
                self.others[key.removeprefix(f"{PREFIX}/")] = bucket.get(key)

    @property
    def committed(self) -> list[str]:
        return sorted(name for name, files in self.folders.items() if "COMMIT" in files and not self._is_void(name))

    @property
    def latest(self) -> str | None:
        return self.committed[-1] if self.committed else None

    def _is_void(self, name: str) -> bool:
        return b'"void_by"' in self.folders[name]["COMMIT"]

    def assert_clean(self) -> None:
        """No part of anything that is not committed, but for void markers."""
        assert self.uploads == []
        for name, files in self.folders.items():
            assert "COMMIT" in files, f"{name} is neither committed nor void"
            if self._is_void(name):
                assert set(files) == {"COMMIT"}, f"{name} is void and not empty"
        living = {name[:7] for name in self.committed}
        for key in self.others:
            folder, _, rest = key.partition("/")
            assert folder in ("run.json", "probe", "lease.json", "attempts", "events", "frozen"), key
            assert folder != "frozen" or rest[:7] in living, f"{key} belongs to no checkpoint"

    def attempts(self) -> dict[int, dict]:
        return {int(key[9:15]): json.loads(data) for key, data in self.others.items() if key.startswith("attempts/")}
