"""What the commands print for people is what it was: look at each difference.

``python -m unit.cli.test_cli_words`` in ``tests/`` writes ``words.txt`` anew. What they print as JSON is in the
transcripts of ``exactness.golden``.
"""

import difflib
import re
import shutil
import tempfile
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from exactness.golden.transcript import NOW, Life, Transcript, written
from support.corrupt import corrupted
from typer.testing import CliRunner

from ckptkit.cli import app
from ckptkit.cli.commands import ls, show
from ckptkit.format.documents import Void, encode
from ckptkit.run.keep_policy import KeepLatest

WORDS = Path(__file__).with_name("words.txt")
GOLDEN = Path(__file__).parents[2] / "exactness/golden/v1/ranks"
OLD, NEWEST = "a000001-c0000000001-m0001", "a000003-c0000000003-m0000"
WEIGHTS = f"checkpoints/{NEWEST}/rank-00000/weights-000.safetensors"
OTHERWISE = re.compile(r", [\d.]+ \w+/s|: EOF while parsing .*")  # what a machine, or a library, decides
DAMAGES = {
    "weights of the newest": (WEIGHTS, lambda data: corrupted(data, "flip")),
    "a rank's document": (f"checkpoints/{OLD}/rank-00000.json", None),
    "a commit": (f"checkpoints/{NEWEST}/COMMIT", None),
    "what a commit says": (f"checkpoints/{OLD}/COMMIT", lambda data: b"{"),
    "a void folder": ("checkpoints/a000003-c0000000004-m0000/COMMIT", lambda data: encode(Void(void_by="1" * 32))),
    "the newest attempt": ("attempts/000003.json", lambda data: b"{}"),
    "all attempts": ("attempts/*", lambda data: b"{}"),
    "all checkpoints": ("checkpoints", None),
    "the run": ("run.json", None),
}


class Later(datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW + timedelta(hours=2)


def ask(transcript: Transcript, line: str, columns: int = 1000) -> None:
    done = CliRunner(env={"COLUMNS": str(columns)}).invoke(app, line.replace("DIR", str(transcript.folder)).split())
    stderr = sorted(re.sub(r" \(\d+ of .*\)$", "", OTHERWISE.sub("", said)) for said in done.stderr.splitlines())
    printed = [OTHERWISE.sub("", said).rstrip() for said in done.stdout.splitlines()]
    transcript.lines += ["", f"$ ckptkit {line}", *printed, *(f"! {said}" for said in stderr), f"-> {done.exit_code}"]


def asked(transcript: Transcript) -> None:
    """Attempt 2 goes back to a checkpoint of attempt 1, attempt 3 goes on from where attempt 2 died."""
    for options, batches in (({}, (3, 5, 7)), ({"checkpoint": OLD}, (6, 10)), ({}, (12,))):
        life = Life(transcript, keep=KeepLatest(9))
        life.restore(**options)
        for at in batches:
            life.save_at(at, {"loss": 1 / at, "worst": float("nan")} if at == 12 else None)
    life.end()
    transcript.lines.clear()
    run, whole = transcript.folder / "run", transcript.folder / "whole"
    shutil.copytree(run, whole)
    shutil.copytree(GOLDEN, transcript.folder / "ranks")
    for line in ("ls DIR/run", "show DIR/ranks --tensors", f"diff DIR/run {OLD}"):
        ask(transcript, line, 80)
    for line in (
        "ls DIR/run",
        "show DIR/run",
        f"show DIR/run {OLD} --tensors --state",
        "show DIR/run --tensor weights",
        "show DIR/run --tensor weigths",
        "show DIR/run a000009-c0000000001-m0001",
        "show DIR/nothing",
        "show DIR/ranks --tensors --state",
        "show DIR/ranks --rank 1 --tensor accumulators",
        "verify DIR/run",
        f"verify DIR/run {OLD}",
        f"diff DIR/run {OLD}",
        f"diff DIR/run {OLD} --top 1",
        "diff DIR/run DIR/ranks --top 0",
        "diff DIR/run latest",
        "goodput DIR/run",
        "copy DIR/run DIR/copy",
        "copy DIR/run DIR/copy",
        f"copy DIR/run DIR/alone --checkpoint {OLD}",
        "export DIR/run -o DIR/weights.ckpt",
        "export DIR/ranks -o DIR/ranks.safetensors --with-optimizer --rank 1 --drop table",
        "import DIR/weights.ckpt DIR/begun --rename weights=w",
        "prune DIR/run --branches --dry-run",
        "prune DIR/run --keep latest:1 --keep every:3 --yes",
        "prune DIR/run --keep latest:1 --yes",
        "copy DIR/run DIR/copy",
    ):
        ask(transcript, line)
    for what, (key, damage) in DAMAGES.items():
        shutil.rmtree(run)
        shutil.copytree(whole, run)
        for path in [*run.glob(key)] or [run / key]:
            if damage is not None:
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(damage(path.read_bytes() if path.exists() else b""))
            else:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        transcript.lines += ["", "", f"== damaged: {what}"]
        for line in (
            "ls DIR/run",
            "show DIR/run --tensor weights",
            "verify DIR/run",
            "prune DIR/run --keep latest:1 --dry-run",
        ):
            ask(transcript, line)


def words() -> list[str]:
    # Not in `tmp_path`, whose name is long enough to be wrapped.
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(ls, "datetime", Later)
        patch.setattr(show, "datetime", Later)
        return written(asked, Path(folder)).splitlines()


def test_words_are_what_they_were():
    expected = WORDS.read_text(encoding="utf-8").splitlines()
    assert not [*difflib.unified_diff(expected, words(), "before", "now", lineterm="", n=2)][:60]


if __name__ == "__main__":
    WORDS.write_text("\n".join(words()) + "\n", encoding="utf-8")
