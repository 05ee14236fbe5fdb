"""What a ring and a start must keep where a call failed, or documents and shards were lost apart from each other."""

from __future__ import annotations

import re
import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from support.runs.ranks import Life, Mortal, digests_at, live

from ckptkit.errors import CorruptCheckpointError
from ckptkit.manager.options import Mirror
from ckptkit.storage import LocalStorage, Storage
from ckptkit.storage.ring import Ring
from ckptkit.testing.faults import Fault, FaultyStorage, Killed
from ckptkit.testing.ranks import Ended, results_of, run_ranks

COMMITS = "checkpoints/*/COMMIT"


class Remote(LocalStorage):
    """A folder that shows only whole files, as an object store does."""

    @property
    def is_remote(self) -> bool:
        return True


def job(base: Path, until: int, order=(0, 1, 2), *, ranks: int = 3) -> list[Ended[Life]]:
    def act(world) -> Life:
        return live(Ring([LocalStorage(base / f"machine{one}") for one in order]), world, until, final=True)

    return run_ranks(ranks, act, timeout=timedelta(seconds=60))


def alone(storage: Storage, until: int, **options) -> Ended[Life]:
    act = lambda world: live(storage, Mortal(world, FaultyStorage(storage)), until, final=True, **options)  # noqa: E731
    return run_ranks(1, act, timeout=timedelta(seconds=60))[0]


def first_save_interrupted(root: Path) -> None:
    dying = FaultyStorage(LocalStorage(root), [Fault("kill", operations={"create"}, key=COMMITS)])
    assert isinstance(alone(dying, 6).error, Killed)


def test_checkpoint_of_a_save_that_failed_between_two_machines_survives_either(tmp_path: Path) -> None:
    """The next save finds its COMMIT at one machine, and takes it for a checkpoint: then both must have it."""
    each = [FaultyStorage(LocalStorage(tmp_path / f"machine{one}")) for one in range(3)]
    failed = each[1].inject(Fault("error", operations={"create"}, key=COMMITS, nth=2, times=3))
    done = alone(Ring(each), 6, on_save_error="warn")
    assert done.error is None
    assert failed.fired == 3
    found = {path.parent.name for path in tmp_path.glob(f"machine*/{COMMITS}")}
    for name in found:
        assert len(list(tmp_path.glob(f"machine*/checkpoints/{name}/COMMIT"))) == 2, name


def test_documents_that_are_lost_are_no_fresh_start_where_older_ones_are_left(tmp_path: Path) -> None:
    """The machines came in another order: the third has documents of the first start, and not of the second."""
    results_of(job(tmp_path, 6))
    results_of(job(tmp_path, 18, (1, 2, 0)))
    for gone in (1, 2):
        shutil.rmtree(tmp_path / f"machine{gone}")
    left = sorted(tmp_path.glob("machine0/checkpoints/*/*/*.safetensors"))
    assert left
    assert all(re.search("documents are lost|tell of . committed", str(one.error)) for one in job(tmp_path, 20))
    assert left == sorted(tmp_path.glob("machine0/checkpoints/*/*/*.safetensors"))


def test_damaged_run_json_does_not_refuse_a_run_whose_first_save_was_interrupted(tmp_path: Path) -> None:
    first_save_interrupted(tmp_path)
    (tmp_path / "run.json").write_bytes(b"{")
    assert results_of([alone(LocalStorage(tmp_path), 6)])[0].digest == digests_at(1, 6)[0]


@pytest.mark.parametrize("at", [{"operations": {"create"}, "key": "attempts/*"}, {"operations": {"list"}}])
def test_start_beside_one_that_begins_its_first_save_is_no_loss(tmp_path: Path, at) -> None:
    """What that one wrote came after this one had looked for documents."""
    storage = FaultyStorage(LocalStorage(tmp_path), [Fault(lambda: first_save_interrupted(tmp_path), **at)])
    assert results_of([alone(storage, 6)])[0].digest == digests_at(1, 6)[0]


def test_frozen_shards_without_documents_are_no_fresh_start(tmp_path: Path) -> None:
    file = tmp_path / "frozen" / "a000001" / "rank-00000" / "weights-000.safetensors"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"bits")
    with pytest.raises(CorruptCheckpointError, match="its documents are lost"):
        results_of([alone(LocalStorage(tmp_path), 6)])


@pytest.mark.parametrize("key", [COMMITS, "*.safetensors", "*manifest.json"])
def test_upload_to_a_ring_that_was_interrupted_lies_at_two_machines_once_it_is_done(tmp_path: Path, key: str) -> None:
    """What one machine got is not taken for what both have."""
    for one in range(2):
        each = [FaultyStorage(Remote(tmp_path / f"machine{one}")) for one in range(3)]
        failed = each[1].inject(Fault("error", operations={"create", "write"}, key=key, times=3 if one == 0 else 1))
        alone(LocalStorage(tmp_path / "root"), 6 + one, mirror=[Mirror(Ring(each))], on_save_error="warn")
        assert failed.fired
    for path in tmp_path.glob(f"machine*/{COMMITS}"):
        for file in path.parent.rglob("*"):
            if file.is_file():
                copies = tmp_path.glob(f"machine*/{file.relative_to(tmp_path / path.relative_to(tmp_path).parts[0])}")
                assert len(list(copies)) == 2, file
