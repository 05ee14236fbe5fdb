import errno
import json
import os
import re
import sys
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from plotly.offline import get_plotlyjs
from typer.testing import CliRunner

from ckptkit.cli import app
from ckptkit.core.text import rough_span, size, span
from ckptkit.format.events import Point, Spread
from ckptkit.run.goodput import Life
from ckptkit.storage import LocalStorage
from ckptkit.tools.report import plots
from ckptkit.tools.report.history import Attempt, FailedSave, Removal, RunStory, Save, UnreadableFile, read_story
from ckptkit.tools.report.page import page_of
from ckptkit.tools.report.plots import COLOURS, colour_of, curves, timeline

NOW = datetime(2026, 3, 3, 12, tzinfo=timezone.utc)
EVIL = """</script><script>alert(1)</script><img src=x onerror=alert(2)>"'&<!--{{%{x}"""


class Elements(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside not in ("script", "style"):
            self.texts.append(data)


@pytest.fixture(scope="module")
def page(grown: Path) -> str:
    return page_of(read_story(LocalStorage(grown), NOW))


def figures_in(page: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, flags=re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_the_page_tells_the_story(page):
    text = " ".join(" ".join(Elements(page).texts).split())
    for told in (
        "The training has finished.",
        "640",
        "25 epochs done",
        "36 steps",
        "30 steps that were done twice gave the same loss both times, to the last digit.",
        "1 save failed on the way",
        "No space left on device",
        "preempted",
        "150 → 331",
        "a000004-c0000000575-m0000",
        "6 checkpoints are there, ",
        "Retention has removed 21",
    ):
        assert told in text, told


def test_the_page_asks_for_nothing(grown, page):
    """No address of a network in any element, none in a style; and the policy would refuse it, were there one."""
    elements = Elements(page)
    addresses = [
        value for _, attributes in elements.tags for name, value in attributes.items() if name in ("src", "href")
    ]
    assert addresses == ["data:,"]
    assert "http" not in page.replace('http-equiv="Content-Security-Policy"', "")
    assert "url(" not in page
    assert "@import" not in page
    (policy,) = [a["content"] for tag, a in elements.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "'unsafe-inline' " not in policy.partition("style-src")[0]
    assert "unsafe-eval" not in policy
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in elements.tags
    assert page_of(read_story(LocalStorage(grown), NOW)) == page, "the same story gives the same page"


def test_the_plots_show_every_attempt_save_and_resume(page):
    plots = figures_in(page)["plots"]
    assert list(plots) == ["timeline", "curve-0", "curve-1", "curve-2", "saves"]
    bars = [trace for trace in plots["timeline"]["data"] if trace.get("line", {}).get("width") == 14]
    assert [trace["line"]["color"] for trace in bars] == list(COLOURS[:4])
    loss = plots["curve-0"]
    lines = [(trace["line"]["color"], trace.get("opacity")) for trace in loss["data"] if trace["mode"] == "lines"]
    assert lines == [(COLOURS[0], 1), (COLOURS[1], 1), (COLOURS[2], 0.3), (COLOURS[2], 1), (COLOURS[3], 1)]
    again = next(trace for trace in loss["data"] if trace.get("opacity") == 0.3)
    assert (again["x"][0], again["x"][-1]) == (450, 480)
    (resumed,) = [trace for trace in loss["data"] if trace["mode"] == "markers"]
    assert resumed["x"] == [150, 325, 450]
    assert len(loss["layout"]["shapes"]) == 3
    assert [len(trace["x"]) for trace in plots["saves"]["data"]] == [27, 27, 27]


def rgb(colour: str) -> tuple[int, ...]:
    if colour.startswith("#"):
        return tuple(int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return tuple(int(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3])


def luminance(colour: str) -> float:
    parts = [part / 255 for part in rgb(colour)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def story_of(*attempts: Attempt) -> RunStory:
    return RunStory("root", None, None, NOW, [*attempts], None, [])


def test_text_from_files_is_shown_but_never_run():
    values = {EVIL[:120]: Spread(mean=1, low=1, high=1, not_finite=0)}
    attempt = Attempt(
        **{"number": 1, "began_at": NOW, "seen_at": NOW, "from_step": 0, "to_step": 1, "how": "failed"},
        **dict.fromkeys(("host", "parent", "error", "message"), EVIL),
        saves=[Save(EVIL, 1, 0, NOW, 10, 1.0, 1.0, problem=EVIL)],
        failures=[FailedSave(EVIL, 1, NOW, EVIL, EVIL)],
        removals=[Removal(EVIL, None, None, EVIL)],
        points=[Point(at=EVIL[:60], first=1, last=1, cycles=1, values=values)],
    )
    page = page_of(RunStory(EVIL, EVIL, EVIL, NOW, [attempt], EVIL, [UnreadableFile(EVIL, EVIL)]))
    tags = Elements(page).tags
    assert sum(tag == "script" for tag, _ in tags) == 2
    assert not [tag for tag, _ in tags if tag in ("img", "iframe", "object", "form", "a")]
    assert not [name for _, attributes in tags for name in attributes if name.startswith("on")]
    assert "alert(1)" in " ".join(Elements(page).texts)
    # plotly reads a little HTML in texts of its own, and templates in none of what is data.
    for plot in figures_in(page)["plots"].values():
        texts = json.dumps([[trace.get("text"), trace.get("customdata")] for trace in plot["data"]])
        assert "<script" not in texts
        assert "<img" not in texts
        for trace in plot["data"]:
            assert "alert" not in trace.get("hovertemplate", "")


def test_long_runs_are_drawn_with_few_marks():
    points = [point(at, at) for at in range(1, 20_001)]
    saves = [Save(f"c{at}", at, 0, NOW, 10, 1.0, 1.0) for at in range(20_000)]
    attempts = [Attempt(number=n, began_at=NOW, seen_at=NOW, from_step=0, to_step=1) for n in range(1, 501)]
    attempts[0] = replace(attempts[0], points=points, saves=saves)
    story = story_of(*attempts)
    for plot in (timeline(story), *curves(story)):
        assert sum(len(trace["x"]) for trace in plot.figure["data"]) < 14_000
        assert plot.figure["layout"]["height"] <= 640
    (loss,) = curves(story)
    assert loss.figure["data"][-1]["x"][-1] == 20_000
    assert len(page_of(story)) < 3_000_000
    assert [colour_of(Attempt(number)) for number in range(1, 18)] == [*COLOURS, *COLOURS, COLOURS[0]]


def curve_of(*points, **fields):
    (curve,) = curves(story_of(Attempt(1, points=[*points], **fields)))
    return curve.figure


def test_merged_points_keep_lowest_highest_and_mean():
    low, high, mean = curve_of(*(point(at, 5.0 + at % 2, low=1.0, high=9.0) for at in range(8_000)))["data"]
    assert [{*trace["y"]} for trace in (low, high, mean)] == [{1.0}, {9.0}, {5.5}]
    assert len(mean["x"]) == 4_000
    axes = [curve_of(point(1, low), point(2, 51.0))["layout"]["yaxis"].get("type") for low in (1.0, 2.0, 0.0)]
    assert axes == ["log", None, None], "a wide range of positive values"
    highest = curve_of(*(point(at, 1e308) for at in range(1, 8_001)))["data"][-1]
    assert max(highest["y"]) == pytest.approx(1e308), "their sum is no float"


def point(at, mean, low=None, high=None):
    spread = Spread(mean=mean, low=mean if low is None else low, high=mean if high is None else high, not_finite=0)
    return Point(at="", first=at, last=at, cycles=1, values={"loss": spread})


def test_band_and_resumes_are_drawn_where_there_are_any(monkeypatch):
    several = Point(at="", first=2, last=3, cycles=2, values=point(2, 1.0).values)
    assert [trace.get("fill") for trace in curve_of(point(1, 1.0), several)["data"]] == [None, "tonexty", None]
    assert not curve_of(point(1, 1.0), from_step=0)["layout"].get("shapes")
    monkeypatch.setattr(plots, "_MOST_RESUMES", 2)
    attempts = [Attempt(n, parent=f"c{n}", from_step=n, to_step=n + 1, points=[point(n + 1, 1.0)]) for n in range(1, 6)]
    (curve,) = curves(story_of(*attempts))
    assert [line["x0"] for line in curve.figure["layout"]["shapes"]] == [4, 5]
    assert list(curve.figure["data"][-1]["x"]) == [1, 2, 3, 4, 5]


def test_tables_list_the_newest():
    attempts = [Attempt(number, host=f"node-{number:03d}") for number in range(1, 203)]
    attempts[0].removals += [Removal(f"c{number:03d}", number, NOW, "c999") for number in range(1, 203)]
    attempts[0].failures += [FailedSave("", number, NOW, f"E{number:03d}", "") for number in range(1, 203)]
    text = texts_of(story_of(*attempts))
    assert text.count("2 earlier ones left out.") == 3
    for row in ("node-", "c", "E"):
        assert [f" {row}{number}" in text for number in ("002", "003", "202")] == [False, True, True], row


def texts_of(story):
    return " ".join(" ".join(Elements(page_of(story)).texts).split())


def test_page_tells_saves_failures_and_ends_apart():
    """Of three attempts: preempted after two failures, killed, and perhaps running."""
    hours = [NOW + timedelta(hours=number) for number in range(4)]
    attempts = [
        Attempt(number, began_at=one, seen_at=other, to_step=number, how="preempted" if number == 1 else None)
        for number, (one, other) in enumerate(pairwise(hours), 1)
    ]
    attempts[0].failures += [FailedSave("c2", 2, NOW, "StorageError", ""), FailedSave("c3", 3, NOW, "OSError", "")]
    attempts[0].saves += [Save("gone", 1, 0, NOW, 10, is_there=False), Save("kept", 4, 0, NOW + timedelta(days=1), 10)]
    attempts[1].saves.append(Save("later", 5, 0, NOW, 10))
    attempts[1].world_size = 4
    attempts[1].redone_from = 4
    story = RunStory("root", None, "s3://old/run", NOW, attempts, "kept", [])
    traces = timeline(story).figure["data"]
    marks = {str(trace["marker"]["symbol"]): trace["text"] for trace in traces if "marker" in trace}
    assert not any("until the next" in str(trace.get("text")) for trace in traces), "nothing was idle"
    saves = [*marks["circle-open"], *marks["diamond"]]
    assert [text.partition("<br>")[0] for text in saves] == ["gone", "kept", "later"]
    assert ["removed since" in text for text in saves] == [True, False, False]
    assert [text.rpartition(": ")[2] for text in marks["x"]] == ["StorageError", "OSError"]
    assert [text.partition("<br>")[2] for text in marks["['square', 'line-ns', 'line-ns']"]] == [
        "preempted, at step 1",
        "killed, or not closed, at step 2",
        "last recorded event, at step 3",
    ]
    text = texts_of(story)
    assert text.count("running, killed, or not closed") == 1
    assert text.count("killed, or not closed") == 2
    assert " · 4 ranks" in text
    assert "copied from s3://old/run" in text
    assert "Last checkpoint 0 s ago kept" in text  # by a clock that is ahead
    assert (story.step, story.latest_save.step) == (3, 4)


def test_cards_say_shares_and_what_is_uncertain():
    """A last attempt that did not say how it ended has lost nothing yet."""
    attempts = [Attempt(number, how=how) for number, how in ((1, None), (2, "failed"), (3, None))]
    story = replace(story_of(*attempts), lives=[Life(1, spent={"saving": 7.5, "training": 292.5})])
    text, unknown = texts_of(story), texts_of(story_of(*attempts))  # of attempts that recorded nothing
    for words in (
        *("Saves made it wait 7.5 s 2.50% of the time", "Attempts 3 5 min 0 s in all"),
        *("and what 1 killed attempt did after the last save", "No checkpoint can be used"),
    ):
        assert words in text, words
    assert "Saves made it wait –" in unknown
    assert "Nothing ran for –" in unknown
    for redone_from in (None, 4):
        text = texts_of(story_of(Attempt(1, points=[point(1, 1.0)], redone_from=redone_from), Attempt(2)))
        assert ("done again by a later attempt" in text) == (redone_from is not None)


def test_durations_and_sizes_are_said_as_people_do():
    spans = {0.0005: "0.5 ms 0 s", 61.4: "1 min 1 s 1 min", 119.7: "2 min 0 s 1 min", 86400 * 3 + 3600: "3 d 1 h 3 d"}
    assert {seconds: f"{span(seconds)} {rough_span(seconds)}" for seconds in spans} == spans
    assert [size(10), size(1536), size(5 << 30), size(99.95 * 1024)] == ["10 B", "1.5 KiB", "5 GiB", "100 KiB"]
    assert (size(None), span(None)) == ("–", "–")


def run(*arguments: object):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def test_full_disk_keeps_the_page_before(root, tmp_path, monkeypatch):
    page, behind = tmp_path / "x.html", tmp_path / "behind.html"
    behind.write_text("<!doctype html>the one before")
    page.symlink_to(behind)
    real, rooms = os.pwrite, iter([1000])

    def pwrite(descriptor, data, offset_bytes):
        room = next(rooms, None)
        if room is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data[:room], offset_bytes)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        done = run(root, "-o", page)
    assert done.exit_code == 3
    assert "No space left" in done.output
    assert behind.read_text() == "<!doctype html>the one before"
    run(root, "-o", page)
    assert page.is_symlink()
    assert behind.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_pages_of_a_folder_share_one_copy_of_plotly(root, tmp_path):
    for name in ("x.html", "y.html"):
        done = run(root, "-o", tmp_path / name)
        assert (done.exit_code, "The training has finished. Step 640 after 4 attempts." in done.output) == (0, True)
        assert (tmp_path / name).stat().st_size < 500_000  # of 640 steps
    (script,) = (path for path in tmp_path.iterdir() if path.suffix == ".js")
    assert script.read_text(encoding="utf-8") == get_plotlyjs()
    assert f'"plotly":"{script.name}"' in (tmp_path / "x.html").read_text(encoding="utf-8")


def test_corrupt_file_exits_1_and_is_on_page(root, tmp_path):
    (root / "events/a000002-0003.jsonl").write_bytes(b"{")
    as_json = run(root, "--json")
    assert [one["key"] for one in json.loads(as_json.stdout)["problems"]] == ["events/a000002-0003.jsonl"]
    done = run(root, "-o", tmp_path / "x.html")
    assert (as_json.exit_code, done.exit_code) == (1, 1)
    assert "events/a000002-0003.jsonl cannot be used" in done.output
    assert "events/a000002-0003.jsonl cannot be used" in (tmp_path / "x.html").read_text(encoding="utf-8")


def test_json_and_exit_codes_without_plotly(grown, tmp_path, monkeypatch):
    assert run(tmp_path / "nowhere").exit_code == 1
    assert run(grown, "-o", tmp_path / "no/such/x.html").exit_code == 3
    assert "run.json exists and is no earlier result" in run(grown, "-o", grown / "run.json").stderr
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    done = run(grown, "-o", tmp_path / "y.html")
    assert (done.exit_code, [*tmp_path.iterdir()]) == (2, [])
    assert "pip install 'mindspore-ckptkit[report]'" in done.output
    done = run(grown, "--json")
    assert done.exit_code == 0
    document = json.loads(done.stdout)
    assert (document["step"], document["redone_steps"], document["verdict"]["health"]) == (640, 36, "attention")
    assert document["attempts"][1]["how"] == "failed"
    assert document["attempts"][0]["points"][0]["values"]["loss"]["not_finite"] == 0
