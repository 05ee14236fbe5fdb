"""One second has one meaning: the report, `ckptkit goodput` and the last line of training show the same."""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone

import pytest
from support.runs.report_lives import Clock, Life

from ckptkit.cli.commands.report import run_goodput, run_report
from ckptkit.core.text import span
from ckptkit.storage import LocalStorage
from ckptkit.tools.report.health import judge
from ckptkit.tools.report.page import page_of
from ckptkit.tools.report.story import read_story

NOW = datetime(2026, 3, 3, 12, tzinfo=timezone.utc)


def test_stall_and_time_in_all_are_the_same_everywhere(tmp_path, capsys):
    life = Life(LocalStorage(tmp_path), Clock(), "node")
    with life.manager:
        life.manager.restore(life.run)
        life.train(160)
        life.manager.save_final(life.run)
    totals, story = life.manager.totals, read_story(LocalStorage(tmp_path), NOW)
    stall, seconds = story.account.stall_seconds, story.account.seconds
    assert totals.stall_seconds == stall != 0
    each = f"kept training waiting for {span(stall / totals.saves)} each"
    assert each in str(totals)
    assert any(each in note for note in judge(story).good)
    page = page_of(story)
    assert f'<div class="value">{span(stall)}</div><div class="more">{stall / seconds:.2%} of the time' in page
    assert f"{span(seconds)} in all" in page
    assert run_goodput(str(tmp_path), clock=lambda: NOW) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"{span(seconds)} in 1 life: ")
    assert re.search(rf"^stall of saves +{re.escape(span(stall))} ", printed, flags=re.MULTILINE)
    assert run_report(str(tmp_path), clock=lambda: NOW, as_json=True) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["stall_seconds"] == document["goodput"]["classes"]["saving"] == stall


def test_time_of_each_attempt_is_the_same_everywhere(grown):
    """In the table of attempts and beside the bars; with what lies between them, they add up to the time in all."""
    story = read_story(LocalStorage(grown), NOW)
    page, account = page_of(story), story.account
    for life in account.lives:
        took = span(life.ran_seconds)
        assert re.search(rf"</span>{life.attempt}</td><td[^>]*>[^<]*</td><td[^>]*>{took}</td>", page), life.attempt
        assert f'<div class="barname">#{life.attempt}</div>' in page
        bar = page.partition(f'<div class="barname">#{life.attempt}</div>')[2]
        assert re.search(r'<div class="bartold quiet small">([^·<]*)', bar)[1].strip() == took
    between = account.totals["down"] + account.totals["unseen"]
    assert sum(life.ran_seconds for life in account.lives) + between == pytest.approx(account.seconds)
    assert f'<div class="value">{span(account.totals["down"])}</div>' in page
    assert f"{span(account.totals['unseen'])} not seen" in page
