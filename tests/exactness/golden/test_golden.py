"""Runs written by earlier versions of ckptkit stay readable, and go on to the bit; canonical lives go as they went.

What such a life asks of its storage, leaves there, says and returns is in its transcript. Each difference is one to
look at; `exactness.golden.transcript` says how to write the transcripts anew where it is meant.
"""

import difflib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from ckptkit.checkpoint.open import open_checkpoint
from ckptkit.checkpoint.read import verify
from ckptkit.format.documents import FORMAT_VERSION
from ckptkit.format.layout import CheckpointName
from ckptkit.manager.manager import CheckpointManager
from ckptkit.run.index import Index
from ckptkit.storage import LocalStorage
from exactness.golden import transcript
from exactness.golden.make_golden import (
    HOME,
    MINDSPORE_STEPS,
    NUMPY_STEPS,
    RANKS_STEPS,
    UserState,
    numpy_run,
    train_mindspore,
    train_ranks,
)
from exactness.golden.stories import STORIES


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(HOME, tmp_path / "golden"))


def test_there_is_a_golden_of_the_current_format() -> None:
    assert HOME.name == f"v{FORMAT_VERSION}"
    assert {folder.name for folder in HOME.iterdir()} == {"numpy", "mindspore", "ranks"}


def test_every_checkpoint_of_the_golden_runs_verifies() -> None:
    verified = 0
    for run in HOME.iterdir():
        storage = LocalStorage(run)
        index = Index(storage)
        for name in filter(index.is_committed, index.names):
            verify(storage, open_checkpoint(storage, name, index.document(name.attempt)))
            verified += 1
    assert verified == 5 + 3 + 3


def test_numpy_golden_run_resumes_exactly(copied: Path) -> None:
    uninterrupted = numpy_run()
    for _ in range(NUMPY_STEPS):
        uninterrupted.train_step()
    resumed = numpy_run()
    with CheckpointManager(copied / "numpy") as manager:
        point = manager.restore(resumed)
        assert manager.latest() is not None
    assert point.batches_delivered == NUMPY_STEPS
    assert resumed.digest() == uninterrupted.digest()


def test_two_rank_golden_run_continues_exactly(copied: Path, tmp_path: Path) -> None:
    found = train_ranks(copied / "ranks", RANKS_STEPS + 3)
    assert found == train_ranks(tmp_path / "alone", RANKS_STEPS + 3)
    assert (copied / "ranks" / "attempts" / "000002.json").exists()  # it did go on


def test_golden_metrics_and_void_folder_are_read(copied: Path) -> None:
    listed = CheckpointManager(copied / "numpy").checkpoints()
    assert listed[-1].metrics == {"loss": 0.5, "broken": None}
    void = CheckpointName.parse("a000001-c0000000009-m0001")
    index = Index(LocalStorage(copied / "numpy"))
    assert void in index.names
    assert not index.is_committed(void)


def bits_of(cell: Any) -> dict[str, bytes]:
    return {one.name: one.asnumpy().tobytes() for one in cell.get_parameters()}


def test_mindspore_golden_run_resumes_with_user_state(copied: Path, tmp_path: Path) -> None:
    """Nothing is trained anew from the start: another kind of processor rounds otherwise than the one of the golden."""
    newest = copied / "mindspore" / "checkpoints" / "a000001-c0000000002-m0001" / "rank-00000"
    stored = {name: bits.tobytes() for file in newest.glob("*.safetensors") for name, bits in load_file(file).items()}
    user = UserState()
    restored = bits_of(train_mindspore(copied / "mindspore", MINDSPORE_STEPS, user))
    assert {name: stored[name] for name in restored} == restored
    resumed: Any = train_mindspore(copied / "mindspore", MINDSPORE_STEPS + 3, UserState())
    again = Path(shutil.copytree(HOME, tmp_path / "again")) / "mindspore"
    train_mindspore(again, MINDSPORE_STEPS + 1, UserState())
    interrupted: Any = train_mindspore(again, MINDSPORE_STEPS + 3, UserState())
    assert bits_of(interrupted) == bits_of(resumed)
    alone: Any = train_mindspore(tmp_path / "alone", MINDSPORE_STEPS + 3, UserState())
    assert interrupted.counters == resumed.counters == alone.counters
    loaded: Any = user.loaded
    array = loaded.pop("array")
    expected = dict(UserState.VALUE)
    assert np.array_equal(array, expected.pop("array"))
    assert array.dtype == np.int16
    assert loaded == expected
    assert type(loaded[3]["not a string"]) is np.float32


def test_documents_have_the_fields_of_golden_ones(tmp_path: Path) -> None:
    """A field added, dropped or renamed is a new format version, which needs a golden of its own."""
    from exactness.golden.make_golden import make_numpy

    make_numpy(tmp_path / "numpy")
    newest = "checkpoints/a000001-c0000000002-m0002"
    assert fields(tmp_path / "numpy", newest) == fields(HOME / "numpy", newest)
    train_ranks(tmp_path / "ranks", RANKS_STEPS)
    newest = "checkpoints/a000001-c0000000001-m0002"
    assert fields(tmp_path / "ranks", newest) == fields(HOME / "ranks", newest)


def fields(run: Path, checkpoint: str) -> dict[str, object]:
    files = ["run.json", "attempts/000001.json"]
    files += [f"{checkpoint}/{name}" for name in ("rank-00000.json", "manifest.json", "COMMIT")]
    return {file: shape(json.loads((run / file).read_text())) for file in files}


def shape(value: object) -> object:
    """``value`` with everything but the structure taken out."""
    if isinstance(value, dict):
        return {key: shape(one) for key, one in sorted(value.items()) if key not in ("libraries", "state")}
    if isinstance(value, list):
        return [shape(one) for one in value]
    return type(value).__name__


@pytest.mark.parametrize("name", STORIES)
def test_canonical_lives_go_as_they_went(name: str, tmp_path: Path) -> None:
    expected = (transcript.HOME / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    found = transcript.written(STORIES[name], tmp_path).splitlines()
    assert not [*difflib.unified_diff(expected, found, "before", "now", lineterm="", n=2)][:60]


def test_every_transcript_has_a_story() -> None:
    assert {path.stem for path in transcript.HOME.glob("*.txt")} == {*STORIES}
