"""Names that are no valid Unicode, and terminals that have less: every command works, and escapes what cannot be shown.

Python has a name that is not UTF-8 as a text with halves of pairs, which no encoding can write.
"""

import json
import re
from pathlib import Path

import pytest
from rich.cells import cell_len
from support.corrupt import corrupted
from support.runs.grown import ON_REQUEST
from support.runs.report_lives import grow_short
from typer.testing import CliRunner

from ckptkit.cli import app
from ckptkit.cli.output import print_line, table_of
from ckptkit.manager.heartbeat import SIZE_BYTES, HeartbeatWriter, new_record
from ckptkit.manager.manager import CheckpointManager
from ckptkit.run.keep_policy import KeepLatest
from ckptkit.testing.state import NumpyRun
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


EXIT_CODES = {
    "ls": 0,
    "show": 0,
    "show ROOT 5 --tensors --state": 0,
    "show ROOT --tensor weights": 0,
    "verify": 1,
    "diff ROOT a000001-c0000000010 latest --exit-code": 1,
    "goodput": 0,
    "prune ROOT --keep latest:2 --dry-run": 0,
    "export ROOT 7 -o OUT.safetensors --force": 0,
    "show ROOT 7000": 1,
    "ls OUT": 1,
}
OF_THE_MOMENT = re.compile(r"not shown in .*|[\d.]+ \w+/s|\b\d+ (s|min) ago|\b\d+ s\b")
TORN = re.compile(r"\s[\d.,]+\n\s*(s|ms|min|h|d|B|[KMG]iB|files?|tensors?|checkpoints?|lives|updates|batches)\b")
FOLDERS = ("runs", "resnet50-bs256-lr0.1-wd1e-4-a-long-name-of-an-experiment/2026-11-30T12-00-00/seed-17")


@pytest.fixture(scope="module", params=FOLDERS)
def grown(request, tmp_path_factory):
    grown = tmp_path_factory.mktemp("narrow") / request.param
    for checkpoint, saves in (("latest", range(7, 60, 7)), ("5", (30, 41))):
        with CheckpointManager(grown, save=ON_REQUEST, keep=KeepLatest(99)) as manager:
            manager.restore(run := NumpyRun(), checkpoint=checkpoint)
            for at in saves:
                for _ in run.train_until(at):
                    pass
                manager.save(run, {"loss": 1 / at, "validation/top1_accuracy": 0.5}).result()
    damaged = grown / "checkpoints/a000001-c0000000008-m0003/rank-00000/optimizer-000.safetensors"
    damaged.write_bytes(corrupted(damaged.read_bytes(), "flip"))
    return grown


def test_no_line_breaks_within_a_word_or_before_a_unit(grown, tmp_path):
    for command, exit_code in EXIT_CODES.items():
        line = command if "ROOT" in command or "OUT" in command else f"{command} ROOT"
        line = line.replace("ROOT", str(grown)).replace("OUT", str(tmp_path / "out"))
        narrow, wide = (CliRunner(env={"COLUMNS": columns}).invoke(app, line.split()) for columns in ("80", "9999"))
        assert narrow.exit_code == wide.exit_code == exit_code, narrow.output
        words = set(OF_THE_MOMENT.sub("", wide.output).split())
        for printed in narrow.output.splitlines():
            assert cell_len(printed) <= 80 or len(printed.split()) <= 2, "longer, and no path alone or after its label"
            rest = OF_THE_MOMENT.sub("", printed).replace("─", "").split()
            assert {*rest} <= words, printed
        assert not TORN.search(narrow.output), command


def test_lines_and_names_break_at_their_parts(capsys, monkeypatch):
    text = "a save after every 0.358 ms costs 2 h 41 min (1.5 KiB of 12 checkpoints at 105 KiB/s), updates 10 -> 5 (-5)"
    for columns in range(20, 120, 7):
        monkeypatch.setenv("COLUMNS", str(columns))
        print_line(f"cost         {text}")
        printed = capsys.readouterr().out
        first, *rest = printed.splitlines()
        assert {line[:13] for line in rest} <= {" " * 13}
        assert " ".join([first[13:], *(line[13:] for line in rest)]) == text
        assert not re.search(r"\d\n *(?:[^\W\d]|->)|->\n", printed), columns
    monkeypatch.setenv("COLUMNS", "80")
    name = "network.backbone/encoder.layers.11.attention.output.LayerNorm.gamma.moving_average_of_it"
    _, _, (first, _), (second, _) = table_of(("tensor", "role", ">size"), [(name, "weights", "1.5 GiB")])
    assert first.endswith("weights  1.5 GiB")
    assert first.split()[0] + second == name
    assert first.split()[0][-1] in "./"
