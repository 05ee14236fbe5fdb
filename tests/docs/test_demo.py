"""``ckptkit demo``, as a user runs it."""

import json
import re
import runpy
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from support.process import python

from ckptkit.cli.commands import demo
from ckptkit.cli.errors import WrongUsageError
from ckptkit.mindspore.demo import ACCUMULATION_STEPS, BATCH_SIZE, EPOCHS
from ckptkit.mindspore.digits import load_digits

PROJECT = Path(__file__).parents[2]
DRAWN = SimpleNamespace(**runpy.run_path(str(PROJECT / "docs/draw_demo.py")))
PICTURE = DRAWN.PICTURE.read_text()


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    columns = {"COLUMNS": str(DRAWN.COLUMNS)}
    return python("-m", "ckptkit", "demo", *arguments, expect=None, timeout=500, environment=columns)


def words(picture: str) -> str:
    """What a picture says, but for numbers and the width of the columns."""
    return re.sub(r"[0-9]+", "0", " ".join(" ".join(DRAWN.lines_of(picture)).split()))


# .ci/run runs the other mode at its end, and test_docs.py in a bucket, as README says.
@pytest.mark.extended  # CI runs the demo
@pytest.mark.parametrize("mode", ["graph", "pynative"])
def test_killed_three_times_and_not_one_bit_differs(mode: str, tmp_path: Path) -> None:
    done = run_demo("--mode", mode, "--seed", "3", "--root", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Killed three times, and not one bit differs." in done.stdout
    assert done.stdout.count("resumed from") == 3
    assert "SIGKILL while a save was being written" in done.stdout
    assert words(DRAWN.picture_of(done.stdout.splitlines())) == words(PICTURE)  # else: python docs/draw_demo.py


def test_absent_device_ends_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    def start(folder: Path, name: str, *_: object) -> subprocess.Popen[bytes]:
        (folder / f"{name}.trace").write_text('{"mindspore": "2.7.1", "absent": "no driver"}\n')
        started.append(subprocess.Popen(["true" if started else "cat"], stdin=subprocess.PIPE))
        return started[-1]

    monkeypatch.setattr(demo, "_start", start)
    with pytest.raises(WrongUsageError, match=r"^MindSpore 2\.7\.1 cannot use GPU here: no driver\.\n.*nvidia-smi"):
        demo.run_demo(None, "graph", 1, "GPU")
    assert [process.returncode for process in started] == [-signal.SIGKILL, 0]
    for process in started:
        process.communicate()


def on_device() -> tuple[demo.DemoLife, list[demo.DemoLife]]:
    """A reference and a life that was resumed, with what they trace on a device."""
    lives, reference = _lives(), _life(range(1, demo.MICRO_STEPS + 1), accuracy=0.99)
    for life in (reference, *lives):
        life.saves = [{"saved": "c", "sliced": 9, "in_place": 0}]
        life.about |= {"updated": 2, "stale": [], "restored": dict(reference.steps.get(life.began_at, {}))}
        for step, line in life.steps.items():
            line["draws"] = {**dict.fromkeys(demo.EXACT_DRAWS, f"draw {step}"), "nn.Dropout": f"{id(life)}", "mint": ""}
    return reference, lives


TAMPERED: list[tuple[Callable[..., object], int | None]] = [  # with the line of the issue that does not hold then
    (lambda reference, lives: None, None),
    (lambda reference, lives: lives[0].steps[3].update(parameters="x"), 0),
    (lambda reference, lives: reference.about.update(stale=["w"]), 1),
    (lambda reference, lives: reference.saves.append({"saved": "d", "sliced": 9, "in_place": 1}), 2),
    (lambda reference, lives: lives[1].saves.append({"saved": "d", "sliced": 0, "in_place": 0}), 2),
    (lambda reference, lives: lives[1].about["restored"].update(moments="those at the start"), 3),
    (lambda reference, lives: lives[1].steps[50]["draws"].update({demo.EXACT_DRAWS[0]: "x"}), 4),
    (lambda reference, lives: [line["draws"].update({demo.EXACT_DRAWS[1]: ""}) for line in lives[1].steps.values()], 5),
]


def test_each_line_of_the_issue_can_fail(capsys: pytest.CaptureFixture[str]) -> None:
    for tamper, line in TAMPERED:
        reference, lives = on_device()
        tamper(reference, lives)
        held = [*demo._on_device(reference, lives)]
        assert [at for at, (holds, _) in enumerate(held) if holds is False] == ([] if line is None else [line])
        assert [words for holds, words in held if holds is None] == [
            "after a resume, nn.Dropout gives 0 of 131 draws again",
            "after a resume, mint has no kernel on this device",
        ]
        assert demo._print_issue({"device": "CPU"}, reference, held) == (line is not None)
        assert ("NOT HELD: " in capsys.readouterr().out) == (line is not None)


def test_readme_shows_what_demo_says() -> None:
    for name in ("README.md", "README.zh-CN.md"):
        first_screen = (PROJECT / name).read_text().partition("\n## ")[0]
        assert re.search(r"!\[[^]]{50,}\]\(docs/demo\.svg\)", first_screen), name
    said = words(PICTURE)
    deaths = [death for death, _ in demo.DEATHS]
    assert [one for one in (*deaths, *demo.KINDS.values(), "Killed three times") if one not in said] == []
    assert len(PICTURE.encode()) < 30_000
    assert ElementTree.fromstring(PICTURE).tag.endswith("svg")  # noqa: S314 - our own
    assert re.findall('https?:[^"]*', PICTURE) == ["http://www.w3.org/2000/svg"]
    assert "prefers-color-scheme: dark" in PICTURE


def change_a_digest(lives: list[demo.DemoLife]) -> None:
    lives[1].steps[100]["moments"] = "another"


def resume_nothing(lives: list[demo.DemoLife]) -> None:
    lives.insert(1, _life(range(1, demo.MICRO_STEPS + 1), accuracy=0.99))  # the one after it is resumed


WRONG = {  # what is changed, the last step and the accuracy of the training alone, what is said
    "a digest": (change_a_digest, demo.MICRO_STEPS, 0.99, "not 100"),
    "untrained": (lambda lives: lives[1].steps.pop(demo.MICRO_STEPS), demo.MICRO_STEPS, 0.99, ""),
    "both end early": (lambda lives: lives[1].steps.pop(demo.MICRO_STEPS), demo.MICRO_STEPS - 1, 0.99, ""),
    "no resume": (resume_nothing, demo.MICRO_STEPS, 0.99, ""),
    "accuracy": (lambda lives: setattr(lives[1], "accuracy", 0.98), demo.MICRO_STEPS, 0.99, ""),
    "learnt little": (lambda lives: setattr(lives[1], "accuracy", 0.95), demo.MICRO_STEPS, 0.95, ""),
    "no accuracy": (lambda lives: setattr(lives[1], "accuracy", None), demo.MICRO_STEPS, None, ""),
    "another beginning": (lambda lives: setattr(lives[1], "began_at", 48), demo.MICRO_STEPS, 0.99, ""),
}


@pytest.mark.parametrize("name", WRONG)
def test_demo_fails_if_anything_differs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    change, last, alone, said = WRONG[name]
    lives, reference = _lives(), _life(range(1, last + 1), accuracy=alone)
    change(lives)
    assert demo._verdict(demo.Console(), reference, lives) == 1
    out = capsys.readouterr().out
    assert "The runs do NOT agree" in out
    assert said in out


def test_line_that_a_kill_cut_is_left_out(tmp_path: Path) -> None:
    lines = [{"resumed_from": "c4", "batches_delivered": 4}, {"step": 5}, {"step": 6}, {"accuracy": 0.75}]
    (tmp_path / "one.trace").write_text("\n".join(map(json.dumps, lines)) + '\n{"step": 7, "wei')
    life = demo._life(tmp_path, "one", "SIGKILL", -9)
    assert (life.resumed_from, life.began_at, [*life.steps], life.accuracy) == ("c4", 4, [5, 6], 0.75)
    assert demo._life(tmp_path, "none", "SIGKILL", -9).steps == {}


def test_root_that_is_not_empty_or_unknown_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/one.txt").write_text("mine")
    done = run_demo("--root", tmp_path.as_uri())
    assert (done.returncode, "not empty" in done.stderr) == (2, True)
    done = run_demo("--root", "gopher://host/run")
    assert done.returncode == 3
    assert "gopher" in done.stderr


def test_the_plan_of_the_demo_matches_its_data() -> None:
    digits = load_digits()
    assert len(digits.train_labels) + len(digits.test_labels) == 1797
    batches = -(-len(digits.train_labels) // BATCH_SIZE)
    assert batches * EPOCHS == demo.MICRO_STEPS
    assert batches % ACCUMULATION_STEPS != 0
    source = Path(demo.__file__).parents[2] / "mindspore/digits"
    assert (source / "optdigits.csv.gz").stat().st_size < 100_000
    assert "CC BY 4.0" in (source / "SOURCE.md").read_text()


def _life(steps: range, accuracy: float | None = None) -> demo.DemoLife:
    life = demo.DemoLife("trained", 0, None, steps[0] - 1, accuracy=accuracy)
    life.steps = {step: json.loads(json.dumps(dict.fromkeys(demo.KINDS, f"digest {step}"))) for step in steps}
    return life


@pytest.mark.parametrize(
    ("name", "end", "code"),
    [
        ("none", "", 0),
        ("uninterrupted", "exit 3", 1),
        ("interrupted-1", "exit 0", 1),
        ("interrupted-3", "exit 3", 1),
    ],
)
def test_process_that_ends_otherwise_fails_demo(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, end: str, code: int
) -> None:
    """Though all that it traced is right."""
    ends = {"uninterrupted": "exit 0", "interrupted-3": "exit 0", name: end}
    begins = {"interrupted-1": 30, "interrupted-2": 60, "interrupted-3": 90}

    def start(folder: Path, name: str, *_: object, **__: object) -> subprocess.Popen[bytes]:
        begun = begins.get(name, 0)
        steps = range(begun + 1, demo.MICRO_STEPS + 1)
        resumed = {"resumed_from": "c" if begun else None, "batches_delivered": begun}
        lines = [resumed, *({"step": step, **dict.fromkeys(demo.KINDS, step)} for step in steps), {"accuracy": 0.99}]
        (folder / f"{name}.trace").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        (folder / f"{name}.log").write_text(f"last words of {name}")
        return subprocess.Popen(["sh", "-c", ends.get(name, "kill -9 $$")])  # noqa: S607

    monkeypatch.setattr(demo, "_start", start)
    assert demo.run_demo(None, "graph", 1) == code
    printed = capsys.readouterr()
    assert (f"last words of {name}" in printed.err) == bool(code)
    assert "as an issue" not in printed.out
    if code:
        assert demo.run_demo(None, "graph", 1, "CPU") == code
        assert f"NOT HELD: the process {name} ended with" in capsys.readouterr().out


def _lives() -> list[demo.DemoLife]:
    second = _life(range(50, demo.MICRO_STEPS + 1), accuracy=0.99)
    second.resumed_from = "a000001-c0000000012-m0001"
    return [_life(range(1, 60)), second]
