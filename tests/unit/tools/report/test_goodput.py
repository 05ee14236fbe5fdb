"""``ckptkit goodput``: what it prints, what its JSON holds, and what it exits with."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import pytest
from support.runs.report_lives import grow_short

from ckptkit.cli.commands.report import run_goodput
from ckptkit.run.goodput import CLASSES
from ckptkit.storage import LocalStorage
from ckptkit.tools.report.goodput import goodput_section
from ckptkit.tools.report.story import read_story

NOW = datetime(2026, 3, 3, 12, tzinfo=timezone.utc)


def test_table_has_every_class_and_its_bounds(grown, capsys):
    assert run_goodput(str(grown), clock=lambda: NOW) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert lines[0].endswith("is training that counted.")
    repeated = next(line for line in lines if line.startswith("training done again"))
    assert repeated.endswith("at least")  # the first life was killed
    for words in ("\nnot seen", "\nWithout a single death it would have taken", "Half of that interval would cost"):
        assert words in text, words
    shares = [float(line.split("%")[0].split()[-1]) for line in lines[2:10] if "%" in line]
    assert sum(shares) == pytest.approx(100, abs=0.5)


def test_json_adds_up(grown, capsys):
    assert run_goodput(str(grown), clock=lambda: NOW, as_json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["classes"]) == set(CLASSES)
    assert sum(found["classes"].values()) == pytest.approx(found["seconds"])
    assert sum(sum(life["seconds"].values()) for life in found["lives"]) == pytest.approx(found["seconds"])
    assert found["goodput"] == pytest.approx(found["classes"]["trained"] / found["seconds"])
    assert [life["how"] for life in found["lives"]] == [None, "failed", "preempted", "finished"]
    assert (found["is_lower_bound"], found["is_rough"], found["chosen"]) == (True, False, None)
    assert found["undisturbed_seconds"] < found["seconds"]
    half, same, double = found["intervals"]
    assert half["interval_seconds"] * 4 == same["interval_seconds"] * 2 == double["interval_seconds"]
    assert half["saving_seconds"] > same["saving_seconds"] > double["saving_seconds"]
    assert half["lost_seconds"] < same["lost_seconds"] < double["lost_seconds"]


def test_times_are_those_of_the_lives(grown):
    """Of the run that `grow_history` makes: 5 s a micro-step, 41 min, 3 h 5 min and 12 min in which nothing ran."""
    account = read_story(LocalStorage(grown), NOW).account
    kept = 150 + (325 - 150) + (450 - 325) + (640 - 450)
    assert account.totals["trained"] == pytest.approx(kept * 4 * 5, rel=0.01)
    assert account.totals["repeated"] == pytest.approx(((331 - 325) + (480 - 450)) * 4 * 5, rel=0.05)
    assert account.totals["down"] == pytest.approx((185 + 12) * 60, rel=0.01)
    assert account.totals["unseen"] == pytest.approx(41 * 60 + 15 * 4 * 5, rel=0.01)


def test_damage_is_named_and_the_rest_shown(tmp_path, capsys):
    grow_short(tmp_path)
    sorted((tmp_path / "events").iterdir())[0].write_bytes(b"{}\n")
    assert run_goodput(str(tmp_path), clock=lambda: NOW) == 1
    assert "cannot be used" in capsys.readouterr().out


def test_page_has_a_bar_for_each_life(grown, tmp_path):
    section = goodput_section(read_story(LocalStorage(grown), NOW))
    assert section.count('class="bar"') == 1 + 4
    assert "Not seen" in section
    assert "training that counted" in section
    grow_short(tmp_path, events=False)
    assert goodput_section(read_story(LocalStorage(tmp_path), NOW)) == ""
