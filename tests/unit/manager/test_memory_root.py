"""A root in memory takes what `docs/tiers.md` says: the kept checkpoints, and the one that is being written."""

from pathlib import Path

import pytest
from support.options import grouped

from ckptkit.core.save_policy import SaveEvery
from ckptkit.manager.manager import CheckpointManager
from ckptkit.run.keep_policy import KeepLatest
from ckptkit.storage import LocalStorage
from ckptkit.testing.faults import MUTATING, Fault, FaultyStorage
from ckptkit.testing.state import NumpyRun

K = 4
ELEMENTS = 100_000
DOCUMENTS_BYTES = 64 << 10  # of one checkpoint, at most


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(("keep", "every"), [(1, K), (4, K + 1)], ids=["boundaries", "mid-cycle"])
def test_peak_is_one_checkpoint_more_than_are_kept(tmp_path: Path, keep: int, every: int) -> None:
    root = tmp_path / "run"
    seen: list[int] = []
    storage = FaultyStorage(LocalStorage(root))
    storage.inject(Fault(lambda: seen.append(bytes_in(root)), operations=MUTATING, times=None, when="after"))
    run = NumpyRun(accumulation_steps=K, size=ELEMENTS)
    given = grouped(save=SaveEvery(micro_steps=every), keep=KeepLatest(keep))
    with CheckpointManager(storage, **given) as manager:
        manager.restore(run)
        for _ in run.train_until(12 * every):
            handle = manager.step(run)
            if handle is not None:
                handle.result()
    frozen = bytes_in(root / "frozen")
    one = 2 + (every != K)  # weights, moments and, in mid-cycle, accumulators
    one_bytes = one * ELEMENTS * 4 + DOCUMENTS_BYTES
    assert frozen >= ELEMENTS * 4
    kept = max(keep, 2)  # the two newest always stay
    assert kept * one * ELEMENTS * 4 < max(seen) - frozen <= (kept + 1) * one_bytes
