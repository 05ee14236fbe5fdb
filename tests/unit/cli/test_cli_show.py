"""``ckptkit show``: what it says of a checkpoint, compared with the files themselves and with NumPy."""

from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

import numpy as np
import pytest
from support.runs.rank_files import leaf, write_ranks
from support.runs.scenario import AT_6, Life, corrupt, history

from ckptkit.cli.commands.ls import run_ls
from ckptkit.cli.commands.show import document_of, parts_of, summarise
from ckptkit.cli.errors import WrongUsageError
from ckptkit.cli.output import print_parts
from ckptkit.core.placement import Box
from ckptkit.core.tensors import DTYPES, values_of
from ckptkit.errors import CorruptCheckpointError
from ckptkit.format.documents import digest_of
from ckptkit.manager.manager import CheckpointManager
from ckptkit.storage import open_storage
from ckptkit.testing.state import NumpyRun

NOW = datetime(2030, 1, 1, tzinfo=timezone.utc)


@pytest.fixture(autouse=True)
def _a_wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")


def shown_text(storage, capsys, **wanted) -> str:
    print_parts(parts_of(document_of(storage, **wanted), NOW))
    return capsys.readouterr().out


def test_batches_are_called_batches(root, caplog, capsys):
    """Each is counted as an update where K is 1 and where a train cell does not tell it."""
    for steps in (3, 0):
        run = NumpyRun(accumulation_steps=1)
        with CheckpointManager(root) as manager, caplog.at_level("INFO", "ckptkit"):
            manager.restore(run)
            for _ in range(steps):
                run.train_step()
            manager.save(run)
    assert "epoch 0, batch 3, after 3 batches" in caplog.text
    assert "3 batches delivered, each counted as a step" in shown_text(open_storage(root), capsys)
    assert run_ls(str(root)) == 0
    assert "3 batches       -" in capsys.readouterr().out


def test_checkpoint_that_a_start_passed_over_is_named(root, capsys):
    history(root)
    corrupt(root, AT_6)
    life = Life(root)
    life.restore(rewind=True)
    life.saved_at(7)
    print_parts(parts_of(document_of(open_storage(root)), NOW - timedelta(days=9999)))
    text = capsys.readouterr().out
    (line,) = [line for line in text.splitlines() if line.startswith("passed over")]
    assert line.split(maxsplit=2)[2].startswith(f"{AT_6}: checkpoints/{AT_6}/rank-00000/weights-000.safetensors (")
    assert " ago" not in text, "its clock is ahead"


def own(rank: int) -> list:
    whole = Box((4, 3), (2 * rank, 0))
    return [
        leaf("w", np.arange(6.0).reshape(2, 3)),
        leaf("table", np.full((2, 3), rank, np.float32), whole),
        leaf("acc", np.full(3, rank, np.int64), "per_rank", role="accumulators"),
    ]


def test_rank_shows_own_and_shared_tensors():
    states = [{"observed": {"slots": [[who, [], [], ["=", 3]]], "unstored": []}} for who in ("zero", "one")]
    storage = write_ranks([own(0), own(1)], states=states)
    for rank in (0, 1):
        document = document_of(storage, rank=rank, lists_tensors=True, tensor="acc", with_state=True)
        assert document["tensor"]["minimum"] == document["tensor"]["maximum"] == rank
        assert (document["rank"], document["state"]) == (rank, states[rank])
        assert document["observed"]["stored"] == [("zero", "one")[rank]]
        shapes = {tensor["name"]: (tensor["shape"], tensor["placement"]) for tensor in document["tensors"]}
        assert shapes == {"w": ([2, 3], "replicated"), "table": ([4, 3], "sharded"), "acc": ([3], "per_rank")}
        files = {(file["placement"], file["rank"]) for file in document["files"]}
        assert files >= {("per_rank", rank), ("sharded", 0), ("sharded", 1)}
        assert ("per_rank", 1 - rank) not in files
    everything = document_of(storage, tensor="table")
    assert everything["tensor"]["digest"] == digest_of(np.repeat(np.float32([0, 1]), 6).tobytes())  # its parts together
    with pytest.raises(WrongUsageError, match="ranks 0 to 1; there is no rank 2"):
        document_of(storage, rank=2)
    storage = write_ranks([[leaf("rng/key", np.arange(4, dtype=np.uint32), "per_rank", role="state")]])
    assert document_of(storage, tensor="rng/key")["tensor"]["maximum"] == 3


def test_summary_says_what_its_numbers_are(capsys):
    storage = write_ranks([[leaf("z", np.array([3 + 4j], np.complex64)), leaf("lost", np.array([np.nan]))]])
    assert "of the magnitudes of its complex numbers:\nmin       5\n" in shown_text(storage, capsys, tensor="z")
    lines = shown_text(storage, capsys, tensor="lost").splitlines()
    assert [line.split() for line in lines[3:7]] == [[label, "-"] for label in ("min", "max", "mean", "std")]


def test_state_is_a_tree_of_names_with_values_as_json(capsys):
    state = {
        "plain": [1, 2.5, None, True, "text"],
        "long": {"$tuple": list(range(625))},
        "more": {"sizes": {"$dict": [[1, {"$bytes": "AAECAw=="}]]}},
        "none": {},
        "whole": "w" * 98,
        "cut": "c" * 99,
    }
    lines = shown_text(write_ranks([[leaf("a", np.zeros(1))]], states=[state]), capsys, with_state=True).splitlines()
    assert '  plain: [1, 2.5, null, true, "text"]' in lines
    (long,) = [line for line in lines if line.startswith('  long: {"$tuple": [0, 1, 2, ')]
    assert long.endswith("... (3027 characters)")
    assert lines[lines.index("  more:") + 1] == '    sizes: {"$dict": [[1, {"$bytes": "AAECAw=="}]]}'
    assert "  none: {}" in lines
    assert f'  whole: "{"w" * 98}"' in lines
    assert f'  cut: "{"c" * 99}... (101 characters)' in lines


OBSERVED = {
    "first": {"$array": "observed/first"},
    "slots": [
        ["meter.total", [["global", "__main__", "meter"], [["attribute", "total"]]], [], ["=", 3]],
        ["train(): ema", [["variable", "train()", "ema"], []], [], ["list", [["=", 0.5]]]],
    ],
    "unstored": [{"$tuple": ["worker.lock", "a _thread.lock"]}],
}


def test_observed_state_is_named_with_what_could_not_be_stored(capsys):
    storage = write_ranks([[leaf("a", np.zeros(1))]], states=[{"observed": OBSERVED}])
    lines = shown_text(storage, capsys, with_state=True).splitlines()
    assert "also stored  meter.total, train(): ema" in lines
    assert "not stored   worker.lock (a _thread.lock)" in lines
    assert "    meter.total: 3" in lines
    assert document_of(storage)["observed"] == {
        "stored": ["meter.total", "train(): ema"],
        "unstored": {"worker.lock": "a _thread.lock"},
    }
    for malformed in (3, {}, {"slots": 1, "unstored": []}, {"slots": [], "unstored": [3]}):
        storage = write_ranks([[leaf("a", np.zeros(1))]], states=[{"observed": malformed}])
        with pytest.raises(CorruptCheckpointError, match="observed is malformed"):
            document_of(storage)


def test_many_files_are_cut_and_counted(capsys):
    roles = ("weights", "optimizer", "accumulators")
    ranks = [[leaf(role, np.zeros(1), "per_rank", role=role) for role in roles] for _ in range(40)]
    text = shown_text(write_ranks(ranks), capsys)
    assert [text.count(f"/{role}-00") for role in roles] == [40, 20, 0]
    assert "60 more files not shown" in text
    assert shown_text(write_ranks(ranks), capsys, rank=39).count("rank-00039/") == 3


def drawn(dtype: str) -> np.ndarray:
    rng = np.random.default_rng(5)
    if dtype == "BF16":
        return (rng.standard_normal(3000).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    kind = DTYPES[dtype]
    if kind.kind == "c":
        return (rng.standard_normal(3000) + 1j * rng.standard_normal(3000)).astype(kind)
    if kind.kind == "f":
        return rng.standard_normal(3000).astype(kind)
    if kind.kind == "b":
        return rng.integers(0, 2, 3000).astype(kind)
    limits = np.iinfo(kind)
    return np.concatenate(
        [rng.integers(-5 if limits.min else 0, 6, 3000).astype(kind), np.array([limits.min, limits.max], kind)]
    )


def test_numbers_of_every_dtype():
    for dtype in DTYPES:
        bits = drawn(dtype).astype(DTYPES[dtype])
        numbers = values_of(dtype, bits)
        numbers = np.abs(numbers) if dtype == "C64" else numbers
        wide = numbers.astype(np.float64)
        found = SimpleNamespace(**summarise(dtype, bits))
        assert (found.minimum, found.maximum) == (numbers.min().item(), numbers.max().item()), dtype
        most = float(numbers.max())
        assert found.mean == pytest.approx(wide.mean(), abs=1e-12 * most), dtype  # extremes cancel each other
        assert found.std == pytest.approx(wide.std()), dtype
        assert found.norm == pytest.approx(np.linalg.norm(wide)), dtype
        assert found.zeros == (wide == 0).sum(), dtype
    bits = np.array([0x3FC0, 0xC000, 0x7F80, 0x0001], np.uint16)  # the upper halves of float32
    assert values_of("BF16", bits).tolist() == [1.5, -2.0, np.inf, 2.0**-133]


def test_summary_counts_nan_and_infinity_separately():
    for dtype, kind in (("F32", np.float32), ("F16", np.float16), ("C64", np.complex64)):
        found = SimpleNamespace(**summarise(dtype, np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 3.0], kind)))
        assert (found.count, found.finite, found.nan, found.infinite, found.zeros) == (6, 3, 1, 2, 2), dtype
        assert (found.minimum, found.maximum, found.mean, found.norm) == (0.0, 3.0, 1.0, 3.0), dtype
        assert found.std == pytest.approx(2**0.5), dtype  # of 0, 0 and 3
    for bits in (np.full(3, np.nan, np.float32), np.zeros((0, 2), np.float32)):
        found = SimpleNamespace(**summarise("F32", bits))
        assert (found.minimum, found.maximum, found.mean, found.std) == (None, None, None, None)
    largest = np.finfo(np.float64).max
    assert summarise("F64", np.array([-largest, 0.0, largest]))["std"] is None, "no float64 can hold it"
