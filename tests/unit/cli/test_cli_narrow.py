"""In a terminal of 80 columns: no number without its unit, no broken word, and no table wider than the terminal."""

from __future__ import annotations

import re

import pytest
from rich.cells import cell_len
from support.corrupt import corrupted
from support.runs.grown import ON_REQUEST
from typer.testing import CliRunner

from ckptkit.cli import app
from ckptkit.cli.output import print_line, table_of
from ckptkit.manager.manager import CheckpointManager
from ckptkit.run.keep_policy import KeepLatest
from ckptkit.testing.state import NumpyRun

COMMANDS = {
    "ls": 0,
    "ls --all": 0,
    "show": 0,
    "show ROOT 5 --tensors --state": 0,
    "show ROOT --tensor weights": 0,
    "verify": 1,
    "verify ROOT latest": 0,
    "diff ROOT 5": 0,
    "diff ROOT a000001-c0000000010 latest --exit-code": 1,
    "goodput": 0,
    "prune ROOT --keep latest:2 --dry-run": 0,
    "export ROOT 7 -o OUT.safetensors --force": 0,
    "show ROOT 7000": 1,
    "show ROOT best": 1,
    "ls OUT": 1,
}
OF_THE_MOMENT = re.compile(r"not shown in .*|[\d.]+ \w+/s|\b\d+ (s|min) ago|\b\d+ s\b")
TORN = re.compile(r"\s[\d.,]+\n\s*(s|ms|min|h|d|B|[KMG]iB|files?|tensors?|checkpoints?|lives|updates|batches)\b")
FOLDERS = ("runs", "resnet50-bs256-lr0.1-wd1e-4-a-long-name-of-an-experiment/2026-11-30T12-00-00/seed-17")


@pytest.fixture(scope="module", params=FOLDERS)
def root(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("narrow") / request.param
    for checkpoint, saves in (("latest", range(7, 60, 7)), ("5", (30, 41))):
        with CheckpointManager(root, save=ON_REQUEST, keep=KeepLatest(99)) as manager:
            manager.restore(run := NumpyRun(), checkpoint=checkpoint)
            for at in saves:
                for _ in run.train_until(at):
                    pass
                manager.save(run, {"loss": 1 / at, "validation/top1_accuracy": 0.5}).result()
    damaged = root / "checkpoints/a000001-c0000000008-m0003/rank-00000/optimizer-000.safetensors"
    damaged.write_bytes(corrupted(damaged.read_bytes(), "flip"))
    return root


def test_no_line_breaks_within_a_word_or_before_a_unit(root, tmp_path):
    for command, exit_code in COMMANDS.items():
        line = command if "ROOT" in command or "OUT" in command else f"{command} ROOT"
        line = line.replace("ROOT", str(root)).replace("OUT", str(tmp_path / "out"))
        narrow, wide = (CliRunner(env={"COLUMNS": columns}).invoke(app, line.split()) for columns in ("80", "9999"))
        assert narrow.exit_code == wide.exit_code == exit_code, narrow.output
        words = set(OF_THE_MOMENT.sub("", wide.output).split())
        for printed in narrow.output.splitlines():
            assert cell_len(printed) <= 80 or len(printed.split()) <= 2, "longer, and no path alone or after its label"
            rest = OF_THE_MOMENT.sub("", printed).replace("─", "").split()
            assert {*rest} <= words, printed
        assert not TORN.search(narrow.output), command


def test_number_and_unit_share_a_line_at_any_width(capsys, monkeypatch):
    text = "a save after every 0.358 ms costs 2 h 41 min (1.5 KiB of 12 checkpoints at 105 KiB/s), updates 10 -> 5 (-5)"
    for columns in range(20, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        print_line(f"cost         {text}")
        printed = capsys.readouterr().out
        first, *rest = printed.splitlines()
        assert max(map(len, (first, *rest))) <= columns or columns < 30
        assert {line[:13] for line in rest} <= {" " * 13}
        assert " ".join([first[13:], *(line[13:] for line in rest)]) == text
        assert not re.search(r"\d\n *(?:[^\W\d]|->)|->\n", printed), columns


def test_long_name_in_a_table_breaks_at_its_parts(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    name = "network.backbone/encoder.layers.11.attention.output.LayerNorm.gamma.moving_average_of_it"
    header, rule, *lines = table_of(("tensor", "role", ">size"), [(name, "weights", "1.5 GiB")])
    texts = [text for text, _ in lines]
    assert max(map(len, (header[0], rule, *texts))) <= 80
    first, second = texts
    assert first.endswith("weights  1.5 GiB")
    pieces = [first.split()[0], second]
    assert "".join(pieces) == name
    assert pieces[0][-1] in "./"
