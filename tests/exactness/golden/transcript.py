"""Writes down what a story does: what it asks of its storages, what lies there then, what it says and returns.

``python -m exactness.golden.transcript`` in ``tests/`` writes the transcripts of all stories anew; look at what differs
before you commit it. Clocks stand still, tokens are counted, digests are numbered as they appear, so that a
transcript is the same on every machine.
"""

import json
import logging
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.options import grouped
from typer.testing import CliRunner

from ckptkit.checkpoint import write
from ckptkit.cli import app
from ckptkit.core.save_policy import SaveEvery
from ckptkit.format import versions
from ckptkit.manager.manager import CheckpointManager
from ckptkit.run.keep_policy import KeepLatest
from ckptkit.storage import LocalStorage
from ckptkit.testing.faults import FaultyStorage
from ckptkit.testing.state import NumpyRun

HOME = Path(__file__).parent / "transcripts"
NOW = datetime(2026, 3, 3, 12, tzinfo=timezone.utc)
LONG = timedelta(seconds=60)
_DIGEST = re.compile(r"\b[0-9a-f]{32,64}\b")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+\+00:00")  # of a clock that nobody passed in
_TEXT = (".json", ".jsonl", "COMMIT")


class Transcript:
    """What a story did so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self._storages: dict[str, FaultyStorage] = {}
        self._seen_calls: dict[str, int] = {}
        self._files: dict[str, bytes] = {}
        self._digests: dict[str, str] = {}
        self._tokens = iter(range(1, 1000))
        self._said: list[str] = []
        self._printed: list[str] = []

    def storage(self, root: str, name: str | None = None) -> FaultyStorage:
        """A storage of a new process, whose calls are written down under ``name``."""
        made = FaultyStorage(LocalStorage(self.folder / root))
        name = name or root
        self._storages[name], self._seen_calls[name] = made, 0
        return made

    def do(self, what: str, action: Callable[[], Any]) -> Any:
        """Do it, write down all that comes of it, and return what it returns; None if it raises."""
        result = None
        self.lines += ["", f"== {what}"]
        try:
            result = action()
            answer = [f"-> {self._plain(result)}"] if result is not None else []
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it is written down
            answer = [f"!! {type(error).__name__}: {error}"]
        for root, storage in self._storages.items():
            calls = storage.calls[self._seen_calls[root] :]
            self._seen_calls[root] += len(calls)
            lines = [f"   {root}: {call.operation} {' '.join(call.keys)}" for call in calls]
            # Uploads go on beside what is done, and both may do what one has to.
            self.lines += lines if len(self._storages) == 1 else sorted({*lines})
        self._look_at_files()
        said = self._said if len(self._storages) == 1 else sorted(self._said)  # ranks, and uploads, speak at once
        self.lines += [*(f"   says {one}" for one in (*said, *self._printed)), *answer]
        self._said.clear()
        self._printed.clear()
        return result

    def command(self, *arguments: str) -> None:
        """Run a command of ckptkit; what it prints as JSON is written down."""

        def run() -> Any:
            done = CliRunner(env={"COLUMNS": "120"}).invoke(app, [str(one) for one in arguments])
            self._said += sorted(re.sub(r" \(\d+ of .*\)$", "", one) for one in done.stderr.splitlines())  # of threads
            printed = json.loads(done.stdout) if done.stdout.strip() else None
            self._printed += json.dumps(_everywhere_same(printed), indent=1, sort_keys=True).splitlines()
            return done.exit_code

        self.do(" ".join(arguments).replace(str(self.folder), "DIR"), run)

    def say(self, text: str) -> None:
        self._said.append(text)

    def standing_still(self) -> dict[str, Any]:
        """Options of a manager that is the same whenever and wherever it runs."""
        clocks = {"clock": lambda: NOW, "monotonic": lambda: 100.0}
        return {**clocks, "new_token": lambda: f"{next(self._tokens):032d}", "host": "node", "boot": "boot"}

    def text(self) -> str:
        """All of it, without what differs from machine to machine."""
        text = "\n".join(self.lines).replace(str(self.folder), "DIR").strip() + "\n"
        return _TIME.sub("(now)", _DIGEST.sub(self._numbered, text))

    def _numbered(self, match: re.Match[str]) -> str:
        return self._digests.setdefault(match[0], f"<{len(self._digests) + 1}>")

    def _look_at_files(self) -> None:
        paths = sorted(path for path in self.folder.rglob("*") if path.is_file() and "/." not in str(path))
        now = {str(path.relative_to(self.folder)): path.read_bytes() for path in paths}
        self.lines += [f"   gone {name}" for name in sorted(self._files.keys() - now.keys())]
        for name, data in now.items():
            if self._files.get(name) != data:
                self.lines += [f"   {'changed' if name in self._files else 'new'} {name}", *_shown(name, data)]
        self._files = now

    def _plain(self, one: Any) -> str:
        if is_dataclass(one) and not isinstance(one, type):
            one = {name: value for name, value in asdict(one).items() if value not in (0, None, False)}
        return json.dumps(_everywhere_same(one), sort_keys=True, default=str)


class Life:
    """One process of a job; to kill it, drop it."""

    def __init__(
        self, transcript: Transcript, *, mirror: str | None = None, local: str = "run", **options: Any
    ) -> None:
        self.transcript = transcript
        self.run = NumpyRun(accumulation_steps=4)
        options = {"save": SaveEvery(micro_steps=10**9), "keep": KeepLatest(2), "when_busy": "wait", **options}
        self.manager = CheckpointManager(
            transcript.storage(local),
            **grouped(
                mirror=None if mirror is None else transcript.storage(mirror), **transcript.standing_still(), **options
            ),
        )

    def restore(self, **options: Any) -> Any:
        def restore() -> Any:
            point = self.manager.restore(self.run, **options)
            self._settle()
            return point

        return self.transcript.do(f"restore {json.dumps(options) if options else ''}".strip(), restore)

    def _settle(self) -> None:
        """Wait for the uploads, whatever becomes of them."""
        for uploads in self.manager._setup.mirrors._uploads:
            uploads.settle(LONG.total_seconds)

    def save_at(self, batches: int, metrics: dict[str, float] | None = None) -> Any:
        """Train up to there, save, and wait for the commit and the upload."""

        def save() -> str:
            for _ in self.run.train_until(batches):
                pass
            handle = self.manager.save(self.run, metrics)
            handle.exception()
            self._settle()
            return handle.result()

        return self.transcript.do(f"save at {batches} {metrics or ''}".strip(), save)

    def step_to(self, batches: int) -> None:
        """Train up to there, a step of the manager after each micro-step."""

        def steps() -> list[str]:
            saved = []
            for at in self.run.train_until(batches):
                handle = self.manager.step(self.run, {"loss": 1 / at})
                if handle is not None:
                    saved.append(handle.result())
            return saved

        self.transcript.do(f"step to {batches}", steps)

    def end(self) -> None:
        self.transcript.do("save_final", lambda: self.manager.save_final(self.run))
        self.transcript.do("close", self.manager.close)


def written(story: Callable[[Transcript], None], folder: Path) -> str:
    """The transcript of ``story``, which is told in ``folder``."""
    transcript = Transcript(folder)

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            transcript.say(f"{record.levelname.lower()}: {record.getMessage()}")

    listening, log = Listening(), logging.getLogger("ckptkit")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write, "time", SimpleNamespace(perf_counter=float))  # or documents differ in size
        for other in (versions, write):
            patch.setattr(other, "versions", lambda: dict.fromkeys(("ckptkit", "mindspore", "numpy"), "1"))
        log.addHandler(listening)
        try:
            story(transcript)
        finally:
            log.removeHandler(listening)
    return transcript.text()


def _shown(name: str, data: bytes) -> list[str]:
    if not name.endswith(_TEXT):
        return []
    try:
        found = [json.loads(line) for line in data.decode().splitlines() if line.strip()]
    except ValueError:
        return ["      (damaged)"]
    return [f"      {one}" for document in found for one in _fields(document)]


def _fields(document: Any) -> list[str]:
    if not isinstance(document, dict):
        return [json.dumps(document)]
    return [f"{key}: {json.dumps(value, sort_keys=True)}" for key, value in sorted(_everywhere_same(document).items())]


def _everywhere_same(document: Any) -> Any:
    """Without measured times, and what the memory of a process decides."""
    if isinstance(document, list):
        return [_everywhere_same(one) for one in document]
    if not isinstance(document, dict):
        return document
    kept = {key: value for key, value in document.items() if key != "buffer_bytes" and not key.endswith("_seconds")}
    return {key: _everywhere_same(value) for key, value in kept.items()}


def main() -> None:
    from exactness.golden.stories import STORIES

    for name, story in STORIES.items():
        folder = Path(tempfile.mkdtemp())
        (HOME / f"{name}.txt").write_text(written(story, folder), encoding="utf-8")
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
