"""Builds the plots of the page as documents for plotly.js: timeline, curves, saves.

A plot holds at most a few thousand marks, however long the run was. Text from files is escaped, since plotly interprets
some HTML.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from itertools import pairwise
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ckptkit.core.text import number, size, span, when
from ckptkit.format.events import Point, Spread
from ckptkit.tools.report.history import Attempt, RunStory, Save

COLOURS = ("#4f7cff", "#f0883e", "#2aa889", "#b76fd6", "#d9a520", "#e0567a", "#3fa7d6", "#8c9a5b")

# Light and dark; figures hold the light ones, and the page replaces them.
THEME = {
    "page": ("#f6f7f9", "#0f1216"),
    "surface": ("#ffffff", "#171b21"),
    "ink": ("#1b2430", "#e7ebf0"),
    "muted": ("#5a6675", "#9aa7b6"),
    "line": ("#dfe3e9", "#2c333d"),
    "good": ("#1a7f52", "#4cc38a"),
    "attention": ("#96600a", "#e2a93b"),
    "bad": ("#c0303b", "#ff7b81"),
    "accent": ("#2f5bd7", "#86a6ff"),
}
_INK, _MUTED, _LINE, _SURFACE = (THEME[name][0] for name in ("ink", "muted", "line", "surface"))
_GOOD, _ATTENTION, _BAD = (THEME[name][0] for name in ("good", "attention", "bad"))

_MOST_MARKS = 4000  # per plot
_MOST_RESUMES = 60
_MOST_CURVES = 12
_FIRST = ("loss", "gradient_norm")
_TITLES = {"loss": "Loss", "gradient_norm": "Gradient norm"}

Figure = dict[str, Any]


@dataclass(frozen=True)
class Plot:
    key: str  # unique on the page; letters, digits and dashes
    title: str
    figure: Figure  # for plotly.js
    described: str  # text alternative


def colour_of(attempt: Attempt) -> str:
    return COLOURS[(attempt.number - 1) % len(COLOURS)]


def timeline(story: RunStory) -> Plot:
    """Plot attempts as bars over the time of day, with their checkpoints, gaps and ends."""
    figure = go.Figure()
    for colour in COLOURS:
        shown = [attempt for attempt in story.attempts if attempt.began_at and attempt.seen_at]
        bars = [attempt for attempt in shown if colour_of(attempt) == colour]
        x = [time for bar in bars for time in (_time(bar.began_at), _time(bar.seen_at), None)]
        y = [place for bar in bars for place in (bar.number, bar.number, None)]
        figure.add_scatter(x=x, y=y, mode="lines", line={"color": colour, "width": 14}, hoverinfo="skip")
    _add_gaps(figure, story)
    _add_saves(figure, story)
    _add_failures(figure, story)
    _add_ends(figure, story)
    rows = len(story.attempts)
    figure.update_layout(height=min(640, 96 + 34 * rows), margin={"l": 44, "r": 18, "t": 8, "b": 40})
    figure.update_yaxes(autorange="reversed", title=None, tickprefix="#", showgrid=False)
    figure.update_yaxes(**({"dtick": 1, "range": [rows + 0.6, 0.4], "autorange": False} if rows <= 15 else {}))
    figure.update_xaxes(type="date")
    described = f"{rows} attempts over the time of day, with their checkpoints and how they ended."
    return Plot("timeline", "Attempts", _document(figure), described)


def curves(story: RunStory) -> list[Plot]:
    """Plot each recorded value over optimizer steps, with resume points and the steps that were done twice."""
    names = sorted({name for attempt in story.attempts for point in attempt.points for name in point.values})
    ordered = [*(name for name in _FIRST if name in names), *(name for name in names if name not in _FIRST)]
    return [_curve(story, name, f"curve-{place}") for place, name in enumerate(ordered[:_MOST_CURVES])]


def costs(story: RunStory) -> Plot | None:
    """Plot stall, duration and size of each save over optimizer steps; None if there are no saves."""
    saves = [(attempt, save) for attempt, save in story.saves if save.step is not None]
    if not saves:
        return None
    values: dict[str, Callable[[Save], float | None]] = {
        "Training waited, also for the save before (s)": lambda save: save.stall_seconds,
        "From call to commit (s)": lambda save: save.took_seconds,
        "Written (bytes)": lambda save: save.size_bytes,
    }
    figure = make_subplots(rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.09, subplot_titles=tuple(values))
    step = -(-len(saves) // (_MOST_MARKS // 3))
    for row, value in enumerate(values.values(), 1):
        shown = [(attempt, save) for attempt, save in saves[::step] if value(save) is not None]
        figure.add_scatter(
            x=[save.step for _, save in shown],
            y=[value(save) for _, save in shown],
            mode="lines+markers" if len(shown) < 400 else "lines",
            line={"color": _LINE, "width": 1},
            marker={"color": [colour_of(attempt) for attempt, _ in shown], "size": 7},
            customdata=[[escape(save.checkpoint), _save_text(save)] for _, save in shown],
            hovertemplate="%{customdata[0]}<br>%{customdata[1]}<extra></extra>",
            **{"row": row, "col": 1},
        )
    figure.update_yaxes(rangemode="tozero", nticks=5, tickformat="~s")
    figure.update_xaxes(title="step", row=3, col=1)
    for title in figure.layout.annotations:
        title.update(x=0, xanchor="left", font={"size": 13})
    figure.update_layout(height=520, margin={"l": 52, "r": 18, "t": 30, "b": 46})
    return Plot("saves", "What saves cost", _document(figure), f"Stall, duration and size of {len(saves)} saves.")


def _add_gaps(figure: go.Figure, story: RunStory) -> None:
    x: list[str | None] = []
    y: list[float | None] = []
    texts: list[str | None] = []
    for before, after in pairwise(story.attempts):
        if before.seen_at is None or after.began_at is None or after.began_at <= before.seen_at:
            continue
        text = f"{span((after.began_at - before.seen_at).total_seconds())} until the next attempt"
        middle = before.seen_at + (after.began_at - before.seen_at) / 2
        x += [_time(before.seen_at), _time(middle), _time(after.began_at), None]
        y += [before.number, (before.number + after.number) / 2, after.number, None]
        texts += [text, text, text, None]
    line = {"color": _MUTED, "width": 1.2, "dash": "dot"}
    figure.add_scatter(x=x, y=y, mode="lines", line=line, text=texts, hovertemplate="%{text}<extra></extra>")


def _add_marks(
    figure: go.Figure, marks: Sequence[tuple[Attempt, datetime | None, str]], marker: dict[str, Any]
) -> None:
    """Mark moments of attempts, each of which says its text."""
    figure.add_scatter(
        x=[_time(at) for _, at, _ in marks],
        y=[attempt.number for attempt, _, _ in marks],
        mode="markers",
        marker=marker,
        text=[text for _, _, text in marks],
        hovertemplate="%{text}<extra></extra>",
    )


def _add_saves(figure: go.Figure, story: RunStory) -> None:
    for there, end, marker in (
        (False, "<br>removed since", {"symbol": "circle-open", "size": 6, "color": _SURFACE, "line": {"width": 1.4}}),
        (True, "", {"symbol": "diamond", "size": 9, "color": _SURFACE, "line": {"color": _INK, "width": 1.2}}),
    ):
        saves = [(attempt, save) for attempt, save in story.saves if save.is_there == there and save.at]
        saves = saves[:: -(-len(saves) // _MOST_MARKS) or 1]
        marks = [(attempt, save.at, f"{escape(save.checkpoint)}<br>{_save_text(save)}{end}") for attempt, save in saves]
        _add_marks(figure, marks, marker)


def _add_failures(figure: go.Figure, story: RunStory) -> None:
    failures = [
        (attempt, failure.at, f"a save failed at step {number(failure.step)}: {escape(failure.error)}")
        for attempt in story.attempts
        for failure in attempt.failures
        if failure.at
    ]
    marker = {"symbol": "x", "size": 9, "color": _BAD, "line": {"color": _SURFACE, "width": 1}}
    _add_marks(figure, failures[:_MOST_MARKS], marker)


def _add_ends(figure: go.Figure, story: RunStory) -> None:
    ends = [attempt for attempt in story.attempts if attempt.seen_at]
    signs = {
        "finished": ("circle", _GOOD),
        "complete": ("circle", _GOOD),
        "failed": ("square", _BAD),
        None: ("line-ns", _INK),
    }
    kinds = [signs.get(attempt.how, ("square", _ATTENTION)) for attempt in ends]
    marker = {
        "symbol": [symbol for symbol, _ in kinds],
        "color": [colour for _, colour in kinds],
        "size": 12,
        "line": {"color": [_INK if attempt.how is None else _SURFACE for attempt in ends], "width": 2},
    }
    _add_marks(figure, [(attempt, attempt.seen_at, _end_of(attempt, story)) for attempt in ends], marker)


def _end_of(attempt: Attempt, story: RunStory) -> str:
    if attempt.ended is None:
        unless = "" if attempt.tells_exit else ", or not closed"
        how = "last recorded event" if attempt is story.last else f"killed{unless}"
    else:
        how = escape(attempt.ended) + (f": {escape(attempt.error)}" if attempt.error else "")
    return f"attempt {attempt.number}, {when(attempt.seen_at)}<br>{how}, at step {number(attempt.to_step)}"


def _curve(story: RunStory, name: str, key: str) -> Plot:
    figure = go.Figure()
    by_attempt = [(attempt, [point for point in attempt.points if name in point.values]) for attempt in story.attempts]
    total = sum(len(points) for _, points in by_attempt)
    step = max(1, -(-total // _MOST_MARKS))
    for attempt, points in by_attempt:
        last = math.inf if attempt.redone_from is None else attempt.redone_from
        kept = [point for point in points if point.last <= last]
        redone = [point for point in points if point.last > last]
        redone = [*kept[-1:], *redone] if redone else []  # both have the point where they meet
        _add_line(figure, attempt, name, _thinned(redone, name, step), is_redone=True)
        _add_line(figure, attempt, name, _thinned(kept, name, step), is_redone=False)
    _add_resumes(figure, by_attempt, name)
    values = [mean for _, points in by_attempt for point in points if (mean := point.values[name].mean) is not None]
    if values and min(values) > 0 and max(values) > 50 * min(values):
        figure.update_yaxes(type="log")
    figure.update_xaxes(title="step", rangemode="tozero")
    figure.update_layout(height=320, margin={"l": 56, "r": 18, "t": 10, "b": 46})
    title = _TITLES.get(name, name)
    return Plot(key, title, _document(figure), f"{title} over steps, {len(values)} points.")


def _thinned(points: Sequence[Point], name: str, step: int) -> list[Point]:
    """Merge every ``step`` of the ``points`` into one."""
    if step == 1:
        return [*points]
    return [_one_of(points[start : start + step], name) for start in range(0, len(points), step)]


def _one_of(points: Sequence[Point], name: str) -> Point:
    spreads = [point.values[name] for point in points]
    known = [(spread.mean, spread.low, spread.high) for spread in spreads if spread.mean is not None]
    mean = sum(mean / len(known) for mean, _, _ in known) if known else None  # divide first: the sum may be infinite
    low = min((low for _, low, _ in known if low is not None), default=None)
    high = max((high for _, _, high in known if high is not None), default=None)
    spread = Spread(mean=mean, low=low, high=high, not_finite=sum(spread.not_finite for spread in spreads))
    cycles = sum(point.cycles for point in points)
    return Point(at="", first=points[0].first, last=points[-1].last, cycles=cycles, values={name: spread})


def _add_line(figure: go.Figure, attempt: Attempt, name: str, points: Sequence[Point], *, is_redone: bool) -> None:
    if not points:
        return
    colour = colour_of(attempt)
    x = [point.last for point in points]
    if not is_redone and any(point.cycles > 1 for point in points):
        red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
        faint = f"rgba({red},{green},{blue},0.18)"
        for side, fill in (("low", None), ("high", "tonexty")):
            y = [getattr(point.values[name], side) for point in points]
            line = {"width": 0, "color": colour}
            figure.add_scatter(x=x, y=y, mode="lines", line=line, fill=fill, fillcolor=faint, hoverinfo="skip")
    what = "done again later" if is_redone else ""
    figure.add_scatter(
        x=x,
        y=[point.values[name].mean for point in points],
        mode="lines" if len(points) > 1 else "markers",
        line={"color": colour, "width": 6 if is_redone else 1.8},
        opacity=0.3 if is_redone else 1,
        hovertemplate=f"attempt {attempt.number}, step %{{x:,}}<br>%{{y:.6g}} {what}<extra></extra>",
    )


def _add_resumes(figure: go.Figure, by_attempt: Sequence[tuple[Attempt, Sequence[Point]]], name: str) -> None:
    resumed = [
        (attempt, points)
        for attempt, points in by_attempt
        if attempt.parent and attempt.from_step is not None and points
    ]
    for attempt, _ in resumed[-_MOST_RESUMES:]:
        figure.add_vline(x=attempt.from_step, line={"color": _MUTED, "width": 1, "dash": "dot"})
    figure.add_scatter(
        x=[attempt.from_step for attempt, _ in resumed],
        y=[points[0].values[name].mean for _, points in resumed],
        mode="markers",
        marker={
            "symbol": "triangle-right",
            "size": 11,
            "color": [colour_of(attempt) for attempt, _ in resumed],
            "line": {"color": _SURFACE, "width": 1.5},
        },
        text=[f"attempt {attempt.number} continues from<br>{escape(attempt.parent or '')}" for attempt, _ in resumed],
        hovertemplate="%{text}<extra></extra>",
    )


def _save_text(save: Save) -> str:
    waited = f", training waited {span(save.stall_seconds)}" if save.stall_seconds is not None else ""
    return f"step {number(save.step)}, {size(save.size_bytes)}{waited}"


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.strftime("%Y-%m-%d %H:%M:%S.%f")


def _document(figure: go.Figure) -> Figure:
    figure.update_layout(
        showlegend=False,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        hovermode="closest",
        font={"size": 12, "color": _MUTED},
        hoverlabel={"bgcolor": _SURFACE, "bordercolor": _LINE, "font": {"color": _INK}, "align": "left"},
    )
    axis = {"gridcolor": _LINE, "linecolor": _LINE, "zeroline": False, "automargin": True}
    figure.update_xaxes(**axis)
    figure.update_yaxes(**axis)
    document: Figure = json.loads(figure.to_json(engine="json"))
    document["layout"].pop("template", None)  # tens of kilobytes, all unused
    return {"data": [trace for trace in document["data"] if trace.get("x")], "layout": document["layout"]}
