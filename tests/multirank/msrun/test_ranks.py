"""Training with two ranks: the arithmetic of one reduction per cycle, and that all ranks agree.

One launch of ``msrun`` per mode; the tests read what its ranks reported.
"""

import fcntl
import functools
import json
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest

from ckptkit.core.process_group import ALONE
from multirank.msrun import job
from multirank.msrun.launch import msrun

# The default suite compiles in `test_lives`.
each_mode = pytest.mark.parametrize("mode", ["pynative", pytest.param("graph", marks=pytest.mark.extended)])


@pytest.fixture(scope="session")
def launched(tmp_path_factory, worker_id):
    """What each of two ranks reported, by mode; the processes of a test run launch it once between them."""
    folder = tmp_path_factory.getbasetemp()
    shared = folder if worker_id == "master" else folder.parent

    @functools.cache
    def of(mode):
        with open(shared / f"launch-{mode}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            kept = shared / f"launch-{mode}.json"
            if not kept.exists():
                kept.write_text(json.dumps(msrun(2, Path(job.__file__), shared / f"launch-{mode}", mode)))
        return json.loads(kept.read_text())

    return of


def by_one_rank(mode, name, k, cycles):
    ms.set_context(mode=job.MODES[mode])
    return job.compared(ALONE, name, k, cycles)


def of_all(reports, *keys):
    """The same thing of each rank."""
    found = list(reports)
    for key in keys:
        found = [one[key] for one in found]
    return found


def assert_equal(found):
    assert all(one == found[0] for one in found)


def test_a_rank_that_would_train_apart_is_refused(launched):
    for one in launched("pynative"):
        assert one["alone"] == "not refused"
        assert (
            "this job has 2 ranks, but parallel_mode is 'stand_alone': each would train separately"
            in one["stand_alone"]
        )
        assert "set_auto_parallel_context(parallel_mode='data_parallel')" in one["stand_alone"]
        assert "communication.init()" in one["not_joined"]
        assert "parallel_mode='semi_auto_parallel' is not supported. Use 'data_parallel'" in one["semi_auto"]
        assert "enable_parallel_optimizer" in one["parallel_optimizer"]
        assert "was made before" in one["made_before"]


@each_mode
def test_gather_orders_messages_by_rank(launched, mode):
    found = launched(mode)
    assert of_all(found, "rank") == [0, 1]
    for one in of_all(found, mode):
        assert one["broadcast"] == "only rank 0 is heard, é" + "y" * 5000
        assert one["gather"] == ["rank 0 é", "rank 1 é" + "x" * 300]
        assert one["messages"] == [[text] * 3 for text in job.MESSAGES], "of any length, also of none"


@each_mode
def test_two_ranks_k1_equal_one_rank_k2(launched, mode):
    """The sum of two floats has one value, in whatever order."""
    for name in job.COMPARED:
        expected = by_one_rank(mode, name, 2, 4)
        assert expected["updates"] == 4
        for one in launched(mode):
            assert one[mode]["k1"][name] == expected, name


@each_mode
def test_ranks_differ_only_in_sums_mid_cycle(launched, mode):
    """And equal runs have equal bits."""
    held = of_all(launched(mode), mode, "mid_cycle")
    assert all(first == second for first, second in held)
    assert_equal([first["learned"] for first, _ in held])
    assert len({first["accumulators"] for first, _ in held}) == 2


@each_mode
def test_overflow_in_one_rank_skips_all_updates(launched, mode):
    found = of_all(launched(mode), mode, "overflow")
    assert_equal(found)
    assert [one["updated"] for one in found[0]] == [True, False, True]
    assert [one["scale"] for one in found[0]] == [1024, 512, 512]
    assert [one["updates"] for one in found[0]] == [1, 1, 2]


@each_mode
def test_a_remainder_is_flushed_or_dropped_by_all(launched, mode):
    flushed, dropped = (of_all(launched(mode), mode, remainder) for remainder in ("flush", "drop"))
    for found in (flushed, dropped):
        assert_equal(found)
        assert found[0]["micro_step"] == 0
    assert (flushed[0]["moved"], flushed[0]["updates"]) == (True, 2)
    assert (dropped[0]["moved"], dropped[0]["updates"]) == (False, 1)


@each_mode
def test_ranks_of_k2_match_one_rank(launched, mode):
    """Arithmetic and not bits: here the order of a float sum differs. Clipping did something."""
    found = of_all(launched(mode), mode, "k2")
    assert_equal(found)
    for name in job.WITH_ROUNDING:
        expected = by_one_rank(mode, name, 4, 2)
        assert found[0][name]["updates"] == expected["updates"] == 2
        np.testing.assert_allclose(found[0][name]["weights"], expected["weights"], rtol=0, atol=2e-6)
        np.testing.assert_allclose(found[0][name]["norm"], expected["norm"], rtol=1e-5)
    assert found[0]["clipped"]["norm"] > job.CLIP_NORM
    assert found[0]["clipped"]["weights"] != found[0]["plain"]["weights"]


@each_mode
def test_model_train_and_buckets_change_nothing(launched, mode):
    for one in of_all(launched(mode), mode):
        assert one["model"] == one["k2"]["plain"]["weights"]
        for reduced in one["buckets"].values():
            assert reduced == [[4.5] * size for size in (5, 7, 3)]
