"""Runs the code blocks of a document, one after the other, in one folder.

A block's info string says how: ``python`` is a script of its own; ``python file=X`` is the script X, which runs twice,
and ``python once=X`` the same but once; ``python killed=X`` is killed with SIGKILL in mid-training, and started again;
``python after=X`` continues X in one process, where X has run before; ``bash after=X`` runs where X has run.
``diff X Y`` is what changes from script X to script Y, which may come below it, or are files of the project.
``text first=X``, ``again=X`` and ``of=X`` are lines that the first start of X printed, its second one, or the last
command that ran after X, but for numbers, folders, and what stands for ``...``. ``bash fails=X`` runs where X has run,
and must not end with 0.
``yaml`` is a job of a CI system, whose commands of ckptkit are parsed.
``bash`` alone is installation, which .ci/run takes from README.md word for word; or it sets variables, whose values
are then those of a test server, and calls ckptkit. ``json`` and ``text`` alone show something and are no code.
"""

import difflib
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from typer.main import get_command

from ckptkit.cli import app

PROJECT = Path(__file__).parents[2]
SET = {"AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
SET |= {"OBS_ENDPOINT", "OBS_ACCESS_KEY_ID", "OBS_SECRET_ACCESS_KEY"}
INSTALLATION = {"pip install . && ckptkit demo", "pip install '.[test]' && pytest"}


class Block(NamedTuple):
    language: str
    option: str
    code: str

    @property
    def how(self) -> str:
        return self.option.partition("=")[0]

    @property
    def name(self) -> str:
        return self.option.partition("=")[2]


def blocks(text: str) -> list[Block]:
    found = re.findall(r"^```([^\n]*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [Block(*info.partition(" ")[::2], code) for info, code in found]


def run_document(text: str, folder: Path) -> None:
    """Run every block; AssertionError if one fails, or if nobody knows how to run it."""
    document = _Document(folder, blocks(text))
    runners = {"python": document.python, "bash": document.bash, "diff": document.diff, "text": document.shown}
    runners |= {"json": document.shown, "yaml": document.job}
    for block in document.all:
        assert block.language in runners, _uncovered(block)
        runners[block.language](block)


class _Document:
    def __init__(self, folder: Path, found: list[Block]) -> None:
        self.folder = folder
        self.all = found
        self.scripts = {block.name: block.code for block in found if block.how in ("file", "once", "killed")}
        self.has_run: set[str] = set()
        self.printed: dict[str, str] = {}

    def python(self, block: Block) -> None:
        if block.how == "after":
            assert block.name in self.has_run, _uncovered(block)
            self._run_python(f"{self.scripts[block.name]}\n{block.code}", block.name)
            return
        assert block.how in ("", "file", "once", "killed"), _uncovered(block)
        name = block.name or "block.py"
        start = self._run_until_killed if block.how == "killed" else self._run_python
        self.printed[f"first={name}"] = start(block.code, name)
        self.has_run.add(name)
        if block.how in ("file", "killed"):
            self.printed[f"again={name}"] = self._run_python(block.code, name)  # as a scheduler would start it again

    def bash(self, block: Block) -> None:
        if block.how in ("after", "fails"):
            assert block.name in self.has_run, _uncovered(block)
            for line in block.code.splitlines():
                self.printed[f"of={block.name}"] = self._ckptkit(line, fails=block.how == "fails")
        elif block.option == "" and block.code.startswith(("export ", "ckptkit ")):
            for line in block.code.splitlines():
                program, *arguments = shlex.split(line)
                if program == "export":
                    assert {one.partition("=")[0] for one in arguments} <= SET, f"no test sets this: {line}"
                else:
                    self._ckptkit(line)
        else:
            assert block.option == "", _uncovered(block)
            assert block.code.strip() in INSTALLATION, _uncovered(block)

    def diff(self, block: Block) -> None:
        before, after = block.option.split()
        old, new = (
            (self.scripts[name] if name in self.scripts else (PROJECT / name).read_text(encoding="utf-8")).splitlines()
            for name in (before, after)
        )
        changed = [line for line in difflib.unified_diff(old, new, n=0) if re.match(r"[+-](?![+-]|\"\"\"|$)", line)]
        assert block.code.splitlines() == changed, f"this is not what changes from {before} to {after}"

    def shown(self, block: Block) -> None:
        if block.option:
            assert block.option in self.printed, _uncovered(block)
            assert_printed(block.code, self.printed[block.option])

    def job(self, block: Block) -> None:
        """Parse what a job calls; it is not run."""
        lines = re.findall(r"^ *- (?:run: )?ckptkit (.*)$", block.code, flags=re.MULTILINE)
        assert lines, _uncovered(block)
        for line in lines:
            name, *arguments = shlex.split(line)
            commands: Any = get_command(app)
            commands.get_command(None, name).make_context(name, arguments)

    def _ckptkit(self, line: str, *, fails: bool = False) -> str:
        program, *arguments = shlex.split(line)
        assert program == "ckptkit", f"only ckptkit itself may be run: {line}"
        return run([sys.executable, "-m", "ckptkit", *arguments], self.folder, fails=fails)

    def _run_python(self, code: str, name: str) -> str:
        """A file, since MindSpore reads the source of what it compiles."""
        (self.folder / name).write_text(code, encoding="utf-8")
        return run([sys.executable, name], self.folder)

    def _run_until_killed(self, code: str, name: str) -> str:
        """A file that is killed at the first line it prints after a checkpoint of it was committed."""
        (self.folder / name).write_text(code, encoding="utf-8")
        printed = ""
        with subprocess.Popen(
            [sys.executable, "-u", name],
            cwd=self.folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as training:
            assert training.stdout is not None
            for line in training.stdout:
                printed += line
                if any(self.folder.rglob("checkpoints/*/COMMIT")):
                    training.kill()
                    break
        assert training.returncode == -signal.SIGKILL, f"it ended before it could be killed:\n{printed}"
        return printed


def assert_printed(shown: str, printed: str) -> None:
    """Every line that is shown was printed, but for numbers, folders, and what stands for ``...``."""
    masked = re.compile(r"\d+(\.\d+)?|(?<= at )/\S+/")
    there = [masked.sub("0", line).rstrip() for line in printed.splitlines()]
    for line in shown.splitlines():
        pattern = re.compile(".*".join(map(re.escape, masked.sub("0", line).split("..."))))
        assert any(pattern.fullmatch(one) for one in there), f"nobody printed this: {line}\n{printed}"


def run(command: list[str], folder: Path, *, fails: bool = False) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode != 0) == fails, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def environment() -> dict[str, str]:
    """In which `python` is the one that runs the tests, and finds the same packages."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    packages = os.pathsep.join([str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "GLOG_v": "3", "COLUMNS": "240", "PATH": path, "PYTHONPATH": packages}


def _uncovered(block: Block) -> str:
    return f"no test runs this block: ```{block.language} {block.option}\n{block.code}"
