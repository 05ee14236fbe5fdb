"""Draws what the seconds of a run went to: a bar for each life, one for all of them, and what would have been.

Guarantees: all bars have one scale, and their parts add up to the length of the bar. Pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from ckptkit.core.text import ENDS, many, span
from ckptkit.run.goodput import CLASSES, Class
from ckptkit.tools.report.goodput import NAMES, notes_of
from ckptkit.tools.report.history import RunStory

_MOST_BARS = 60
_COLOURS: Mapping[Class, str] = {
    "trained": "#2aa889",
    "repeated": "#e0567a",
    "saving": "#d9a520",
    "starting": "#4f7cff",
    "evaluating": "#b76fd6",
    "storage": "#f0883e",
    "hung": "#c0303b",
    "down": "#8c95a3",
    "unseen": "#c3c9d2",
    "rest": "#8c9a5b",
}


def goodput_section(story: RunStory) -> str:
    """Return the section as HTML; empty if no life recorded any time."""
    account = story.account
    if not account.seconds:
        return ""
    totals = account.totals
    longest = max(sum(one.seconds.values()) for one in account.lives)
    rows = [_row("all", totals, account.seconds, f"{account.share:.1%} counted")]
    if len(account.lives) > 1:
        for one in account.lives[-_MOST_BARS:]:
            name = "before an attempt" if one.attempt is None else f"#{one.attempt}"
            how = "killed" if one.how is None and not one.is_known else ENDS.get(one.how or "", one.how or "")
            rows.append(_row(name, one.seconds, longest, how))
    hidden = len(account.lives) - _MOST_BARS
    more = f'<p class="quiet small">{many(hidden, "earlier life", "earlier lives")} left out.</p>' if hidden > 0 else ""
    legend = "".join(
        f'<span><i style="background:{_COLOURS[one]}"></i>{NAMES[one]} {span(totals[one])}</span>'
        for one in CLASSES
        if totals[one]
    )
    notes = "".join(f"<p>{escape(note)}</p>" for note in notes_of(story))
    return (
        f'<section><h2>Where the time went</h2><div class="bars">{"".join(rows)}</div>'
        f'<p class="legend keys">{legend}</p>{more}{notes}</section>'
    )


def _row(name: str, seconds: Mapping[Class, float], longest: float, told: str) -> str:
    parts = "".join(
        f'<i style="width:{100 * seconds[one] / longest:.3f}%;background:{_COLOURS[one]}" '
        f'title="{NAMES[one]}: {span(seconds[one])}"></i>'
        for one in CLASSES
        if seconds.get(one)
    )
    total = sum(seconds.values())
    described = ", ".join(f"{NAMES[one]} {span(seconds[one])}" for one in CLASSES if seconds.get(one))
    return (
        f'<div class="barname">{escape(name)}</div>'
        f'<div class="bar" role="img" aria-label="{escape(described)}">{parts}</div>'
        f'<div class="bartold quiet small">{span(total)}{" · " + escape(told) if told else ""}</div>'
    )
