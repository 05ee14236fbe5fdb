"""The mistakes that are made most, each as a user makes it: what stderr says, in how many lines, and what next.

Every script runs in a process of its own. `Outcome.error` asserts what holds of every error: exit code 1, the line of
the user's script in the traceback, at most four lines below it.
"""

import shutil
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.corrupt import corrupt
from support.process import run_python
from support.servers.moto_server import HOST

from ckptkit.storage import LocalStorage

SCRIPT = Path(__file__).with_name("train.py")
ROOT = '"runs/digits"'
TRAIN = "ckpt.train(model, 2, dataset)"
OPTION = 'saving=ck.Saving(when_busy="wait")'
NEWEST = "a000001-c0000000005-m0000"

AUGMENT = """
def augment(image):
    return image + np.random.rand(*image.shape).astype(np.float32)


dataset = dataset.map(augment, "image").batch(32)
""".strip()
DRAWS = (
    ("import mindspore as ms", "import mindspore as ms\nimport numpy as np"),
    ("dataset = dataset.batch(32)", AUGMENT),
)


MOST_LINES = 4
MOST_CHARACTERS = 360  # of a line: three rows of a terminal that is 120 wide


@dataclass(frozen=True)
class Outcome:
    """How a script ended."""

    code: int
    said: tuple[str, ...]

    @property
    def error(self) -> str:
        """The error that ended it: what stands below Python's traceback, which has a line of the script."""
        assert self.code == 1, self
        assert any(line.startswith('  File "') and 'train.py", line ' in line for line in self.said), self
        first = max(at for at, line in enumerate(self.said) if line.startswith("ckptkit.errors."))
        return _short(self.said[first:])

    def warning(self, words: str) -> str:
        """The one line of ckptkit's log with ``words``, and those that belong to it."""
        (first,) = [at for at, line in enumerate(self.said) if line.startswith("[ckptkit]") and words in line]
        rest = self.said[first + 1 :]
        more = next((count for count, line in enumerate(rest) if not line.startswith("  ")), len(rest))
        return _short(self.said[first : first + 1 + more])


def _short(lines: Sequence[str]) -> str:
    assert len(lines) <= MOST_LINES, lines
    assert all(len(line) <= MOST_CHARACTERS for line in lines), lines
    return "\n".join(lines)


def write(script: Path, *changes: tuple[str, str]) -> Path:
    """Write ``train.py`` as ``script``, with each first text of ``changes`` replaced by the second."""
    text = SCRIPT.read_text(encoding="utf-8")
    for old, new in changes:
        assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times"
        text = text.replace(old, new)
    script.write_text(text, encoding="utf-8")
    return script


def run(folder: Path, *changes: tuple[str, str], **environment: str) -> Outcome:
    """Write the script into ``folder`` and run it there."""
    script = write(folder / "train.py", *changes)
    ended = run_python(script.name, folder=folder, environment=environment)
    return Outcome(ended.returncode, tuple(ended.stderr.replace(str(folder), "~").splitlines()))


@pytest.fixture(scope="session")
def _trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    outcome = run(folder)
    assert outcome.code == 0, outcome
    return folder


@pytest.fixture
def trained(_trained_once: Path, tmp_path: Path) -> Path:
    """A folder in which ``train.py`` has trained its two epochs."""
    return Path(shutil.copytree(_trained_once, tmp_path / "trained"))


def committed(folder: Path) -> list[str]:
    """Names of the checkpoints that lie below ``folder``, oldest first."""
    return sorted(path.parent.name for path in folder.glob("runs/digits/checkpoints/*/COMMIT"))


def test_an_endpoint_where_nobody_answers(tmp_path: Path) -> None:
    with socket.socket() as taken:  # bound and not listening: nobody else gets the port, and nobody answers
        taken.bind((HOST, 0))
        endpoint = f"http://{HOST}:{taken.getsockname()[1]}"
        options = f'storage_options={{"endpoint_url": "{endpoint}", "retry_for": timedelta(seconds=1)}}'
        error = run(
            tmp_path,
            (ROOT, '"s3://bucket/run"'),
            (OPTION, options),
            ("import mindspore as ms", "from datetime import timedelta\n\nimport mindspore as ms"),
            AWS_ACCESS_KEY_ID="key",
            AWS_SECRET_ACCESS_KEY="secret",
        ).error
    assert error.startswith("ckptkit.errors.StorageError: could not write s3://bucket/run/")
    assert endpoint in error
    assert "endpoint_url" in error


def test_map_with_global_numpy_generator_gets_warning(tmp_path: Path) -> None:
    outcome = run(tmp_path, *DRAWS)
    assert outcome.code == 0, outcome
    warning = outcome.warning("not be bit-exact")
    assert "np.random.rand in augment() in train.py:16" in warning
    assert "ckptkit.data.sample_rng" in warning
    assert committed(tmp_path)[-1] == NEWEST


@pytest.mark.parametrize(
    ("changes", "kind", "named", "next_word"),
    [
        pytest.param(
            [("nn.Dense(64, 32)", "nn.Dense(64, 48)"), ("nn.Dense(32, 10)", "nn.Dense(48, 10)")],
            "StateMismatchError",
            "network.1.weight: the checkpoint has F32 [32, 64], this training has F32 [48, 64]",
            'CheckpointCallback("NEW_ROOT")',
            id="model",
        ),
        pytest.param(
            [("accumulation_steps=4", "accumulation_steps=2")],
            "ResumeError",
            "was taken with accumulation_steps=4, this train cell has 2",
            "accumulation_steps=4, or pass training=ckptkit.Training(on_k_change=",
            id="K",
        ),
        pytest.param(
            [("batch(32)", "batch(16)")],
            "ResumeError",
            "samples per batch: the checkpoint has 32, this dataset has 16",
            ".batch(32)",
            id="batch size",
        ),
    ],
)
def test_what_changed_between_two_starts(
    trained: Path, changes: list[tuple[str, str]], kind: str, named: str, next_word: str
) -> None:
    before = LocalStorage(trained / "runs/digits").walk("")
    error = run(trained, *changes).error
    assert error.startswith(f"ckptkit.errors.{kind}: ")
    assert named in error
    assert next_word in error
    assert LocalStorage(trained / "runs/digits").walk("") == before


def test_forgotten_initial_epoch(trained: Path) -> None:
    forgetful = "point = ckpt.resume(model, dataset, epochs=3)\nmodel.train(3, dataset, callbacks=[ckpt])"
    error = run(trained, (TRAIN, forgetful)).error
    # The error passed through five frames of MindSpore, which leaves it as it is.
    assert error.startswith("ckptkit.errors.ResumeError: training would begin at epoch 0")
    assert "the run continues in epoch 2" in error
    assert "initial_epoch=2" in error
    assert committed(trained)[-1] == NEWEST


def test_two_jobs_on_one_root(tmp_path: Path) -> None:
    write(tmp_path / "second.py")
    # The first job starts the second at its fifth micro-batch, and waits for its end.
    both = """
import subprocess
import sys


class Second(ms.train.Callback):
    def on_train_step_end(self, run_context):
        if run_context.original_args().cur_step_num == 5:
            subprocess.run([sys.executable, "second.py"], check=True, stderr=subprocess.DEVNULL)


ckpt.train(model, 2, dataset, callbacks=[Second()])
""".strip()
    error = run(tmp_path, (TRAIN, both)).error
    assert "ckptkit.errors.StaleAttemptError: attempt 2 on " in error.partition("\n")[0]
    assert socket.gethostname() in error
    root = "~/runs/digits"
    assert f"took over the run {root} from attempt 1" in error
    assert f'"{root}-2"' in error
    assert committed(tmp_path)[-1] == NEWEST.replace("a000001", "a000002")


def damage(folder: Path, *names: str) -> None:
    """Flip one bit of the weights of checkpoints."""
    for name in names:
        corrupt(folder / "runs/digits/checkpoints" / name / "rank-00000/weights-000.safetensors", at=-1)


def test_corrupt_latest(trained: Path) -> None:
    *_, before, newest = committed(trained)
    damage(trained, newest)
    outcome = run(trained)
    assert outcome.code == 0, outcome
    warning = outcome.warning("CORRUPT CHECKPOINT")
    assert newest in warning
    assert "weights-000.safetensors" in warning
    assert f"continuing from {before}" in warning
    assert "ckptkit verify ~/runs/digits" in warning


def test_every_checkpoint_corrupt(trained: Path) -> None:
    there = committed(trained)
    damage(trained, *there)
    error = run(trained).error
    assert error.startswith("ckptkit.errors.CorruptCheckpointError: no checkpoint of the run ")
    assert "~/runs/digits" in error
    assert f"{there[-1]}: " in error
    assert "weights-000.safetensors" in error
    assert "ckptkit copy" in error
    assert committed(trained) == there
    assert len(list(trained.glob("runs/digits/attempts/*"))) == 1  # nothing was started


def test_errors_of_the_program_stay_its_own(tmp_path: Path) -> None:
    """The library touches no hook of the process, neither at its import nor when it is used."""
    hooks = "sys.excepthook is sys.__excepthook__, threading.excepthook is threading.__excepthook__"
    after = f"{TRAIN}\nimport sys\nimport threading\nassert ({hooks}) == (True, True)"
    assert run(tmp_path, (TRAIN, after)).code == 0


def test_the_script_without_a_mistake_is_left_alone(trained: Path) -> None:
    outcome = run(trained)
    assert outcome.code == 0, outcome
    assert "To train on, give more than 2 epochs" in outcome.warning("training is complete")
