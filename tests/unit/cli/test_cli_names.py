"""Names that are no valid Unicode, and terminals that have less: every command works, and escapes what cannot be shown.

Python has a name that is not UTF-8 as a text with halves of pairs, which no encoding can write.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from support.runs.report_lives import grow_short
from typer.testing import CliRunner

from ckptkit.cli import app
from ckptkit.manager.heartbeat import SIZE_BYTES, HeartbeatWriter, new_record
from ckptkit.tools.doctor.lives.trace import Begun, LifePlan, line_of, read_trace, scratch_run

NAME = "r\udce9sultat-实验"  # the first part is Latin-1 on disk
SHOWN = "r\\udce9sultat-实验"
COMMANDS = {
    "ls": ("ls", "ROOT"),
    "show": ("show", "ROOT", "--tensors", "--state"),
    "verify": ("verify", "ROOT"),
    "goodput": ("goodput", "ROOT"),
    "report": ("report", "ROOT", "--output", "OUT.html"),
    "prometheus": ("report", "ROOT", "--prometheus", "OUT.prom"),
    "copy": ("copy", "ROOT", "OUT"),
    "diff": ("diff", "ROOT", "latest", "latest"),
    "prune": ("prune", "ROOT", "--branches", "--dry-run"),
    "export": ("export", "ROOT", "--output", "OUT.safetensors"),
    "no run": ("ls", "OUT/none"),
    "unknown": ("OUT",),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("names") / NAME
    grow_short(root)
    return root


def run(root: Path, out: Path, *words: str, encoding: str):
    """Run a command whose terminal has ``encoding``, which refuses what it lacks, as a Python process has it."""
    given = [word.replace("ROOT", str(root)).replace("OUT", str(out / NAME)) for word in words]
    done = CliRunner(charset=encoding, env={"COLUMNS": "300"}).invoke(app, given)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_every_command_escapes_what_it_cannot_show(root, tmp_path, encoding):
    for command, words in COMMANDS.items():
        done = run(root, tmp_path, *words, encoding=encoding)
        assert done.exit_code == {"no run": 1, "unknown": 2}.get(command, 0), (command, done.output)
        if command == "report":
            shown = SHOWN if encoding == "utf-8" else ascii(SHOWN)[1:-1].replace("\\\\", "\\")
            assert done.stdout.endswith(f"The page is {tmp_path}/{shown}.html\n")
    for end in ("html", "prom"):
        assert SHOWN in (tmp_path / f"{NAME}.{end}").read_text(encoding="utf-8").replace("\\\\", "\\"), end


def test_json_is_what_every_parser_reads(root, tmp_path):
    for command in ("ls", "show", "verify", "goodput", "copy", "diff", "prune"):
        done = run(root, tmp_path, *COMMANDS[command], "--json", encoding="ascii")
        found = json.loads(done.stdout)
        json.dumps(found, ensure_ascii=False).encode()  # all of it is valid Unicode
        assert SHOWN in str(found).replace("\\\\", "\\"), command


def test_supervisor_learns_the_names_as_they_are(tmp_path):
    """Or it would store the life at another path, or an own mirror would end the training."""
    record = new_record(bytearray(SIZE_BYTES))
    writer = HeartbeatWriter(lambda: 0.0)
    writer._record = record
    mirrors = [NAME, "s3://实/验"]
    writer.restored(root=NAME, attempt=1, checkpoint=None, micro_step=0, rank=0, ranks=1, mirrors=mirrors)
    assert record.text("root") == NAME
    assert record.text("mirrors").splitlines() == mirrors
    record.put("message", "实" * 1000)  # cut within a character
    assert record.text("message") == "实" * 341


def test_doctor_traces_a_root_of_any_name(tmp_path):
    plan = LifePlan(root=NAME, trace=NAME, others=(NAME,), stop=4)
    assert LifePlan.model_validate(json.loads(line_of(plan))) == plan
    begun = Begun(url=NAME, step=0, checkpoint=None, mirrors=(NAME,))
    (tmp_path / NAME).write_bytes(line_of(begun))
    assert read_trace(tmp_path / NAME) == [begun]
    assert scratch_run(tmp_path, NAME) != scratch_run(tmp_path, SHOWN)


def test_log_file_of_the_program_gets_every_line(caplog):
    caplog.set_level(logging.INFO, "ckptkit")
    logging.getLogger("ckptkit").info("starting afresh at %s", NAME)
    (record,) = caplog.records
    assert record.getMessage() == f"starting afresh at {SHOWN}"
