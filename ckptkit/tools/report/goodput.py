"""Tells what the seconds of a run went to: as numbers for programs, as a table, and as bars on the page.

The seconds of the classes add up to the total; all bars have one scale. What is a lower bound is called one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from ckptkit.core.text import ENDS, many, span
from ckptkit.run.goodput import Class
from ckptkit.run.interval import REASONS, frequency
from ckptkit.tools.report.history import RunStory

_SHOWN: Mapping[Class, tuple[str, str]] = {  # name and colour
    "trained": ("training that counted", "#2aa889"),
    "repeated": ("training done again", "#e0567a"),
    "saving": ("stall of saves", "#d9a520"),
    "starting": ("start-up", "#4f7cff"),
    "evaluating": ("evaluation", "#b76fd6"),
    "storage": ("waiting for storage", "#f0883e"),
    "hung": ("hung", "#c0303b"),
    "down": ("down between lives", "#8c95a3"),
    "unseen": ("not seen", "#c3c9d2"),
    "rest": ("rest of the script", "#8c9a5b"),
}
_MOST_BARS = 60
_BAR = 32


def numbers_of(story: RunStory) -> dict[str, Any]:
    """Return the account for a program: seconds by class, for each life and in total."""
    account, interval = story.account, story.interval
    return {
        "seconds": account.seconds,
        "goodput": account.share,
        "classes": account.totals,
        "is_lower_bound": account.is_lower_bound,
        "is_rough": account.is_rough,
        "undisturbed_seconds": account.undisturbed_seconds,
        "lives": [
            {
                "attempt": life.attempt,
                "how": life.how,
                "seconds": {kind: seconds for kind, seconds in life.seconds.items() if seconds > 0},
                "phases": {phase: seconds for phase, seconds in life.phases.items() if seconds > 0},
                "is_watched": life.watched is not None,
                "is_known": life.how is not None,
            }
            for life in account.lives
        ],
        "intervals": [
            {**dataclasses.asdict(choice), "cost_seconds": choice.cost_seconds} for choice in story.alternatives
        ],
        "chosen": None if interval is None else interval.model_dump(exclude={"kind"}),
    }


def table_of(story: RunStory) -> Iterator[str]:
    """Yield the account as lines of text."""
    account = story.account
    lives = many(len(account.lives), "life", "lives")
    yield f"{span(account.seconds)} in {lives}: {account.share:.1%} is training that counted."
    yield ""
    for kind, (name, _) in _SHOWN.items():
        seconds = account.totals[kind]
        if seconds or kind in ("trained", "repeated"):
            share = seconds / account.seconds if account.seconds else 0.0
            bound = "  at least" if kind == "repeated" and account.is_lower_bound else ""
            yield f"{name:<22} {span(seconds):>12} {share:>7.1%}  {'█' * round(share * _BAR)}{bound}".rstrip()
    yield ""
    yield from notes_of(story)


def notes_of(story: RunStory) -> Iterator[str]:
    """Yield what would have been, what the interval of saves cost, and what is not known exactly."""
    account = story.account
    if len(account.lives) > 1 and account.seconds:
        lost = account.seconds - account.undisturbed_seconds
        yield f"Without a single death it would have taken {span(account.undisturbed_seconds)}, {span(lost)} less."
    chosen = story.interval
    if chosen is not None:
        yield (
            f"SaveEvery.auto saves {frequency(chosen.cycles, chosen.cycle_seconds, chosen.seconds)}, decided by "
            f"{REASONS[chosen.bound]}: a save keeps training waiting for {span(chosen.stall_seconds)} and takes "
            f"{span(chosen.took_seconds)}; {many(chosen.failures, 'failure')} in {span(chosen.exposed_seconds)}."
        )
    if story.alternatives:
        half, same, double = story.alternatives
        no_half = "" if half.is_possible else ", which the storage is too slow for"
        yield (
            f"A save after every {span(same.interval_seconds)} of training costs {span(same.cost_seconds)} "
            f"({span(same.saving_seconds)} of stall, {span(same.lost_seconds)} of lost work to be expected). Half of "
            f"that interval would cost {span(half.cost_seconds)}{no_half}; double, {span(double.cost_seconds)}."
        )
    if account.totals["unseen"]:
        yield (
            f"Not seen: {span(account.totals['unseen'])} lie between the last event of a killed life and the next one. "
            "They are training that was lost, or nothing ran; `ckptkit run` would know."
        )
    if account.is_rough:
        yield "Roughly: lives of two boots, machines or versions are compared by clocks that may have been set."


def goodput_section(story: RunStory) -> str:
    """Return the section as HTML; empty if no life recorded any time."""
    account = story.account
    if not account.seconds:
        return ""
    totals = account.totals
    longest = max(sum(life.seconds.values()) for life in account.lives)
    rows = [_row("all", totals, account.seconds, f"{account.share:.1%} counted", ran_seconds=account.seconds)]
    if len(account.lives) > 1:
        for life in account.lives[-_MOST_BARS:]:
            name = "before an attempt" if life.attempt is None else f"#{life.attempt}"
            how = "killed" if life.how is None else ENDS.get(life.how, life.how)
            rows.append(_row(name, life.seconds, longest, how, ran_seconds=life.ran_seconds))
    hidden = len(account.lives) - _MOST_BARS
    more = f'<p class="quiet small">{many(hidden, "earlier life", "earlier lives")} left out.</p>' if hidden > 0 else ""
    legend = "".join(
        f'<span><i style="background:{colour}"></i>{name} {span(totals[kind])}</span>'
        for kind, (name, colour) in _SHOWN.items()
        if totals[kind]
    )
    notes = "".join(f"<p>{escape(note)}</p>" for note in notes_of(story))
    return (
        f'<section><h2>Where the time went</h2><div class="bars">{"".join(rows)}</div>'
        f'<p class="legend keys">{legend}</p>{more}{notes}</section>'
    )


def _row(name: str, seconds: Mapping[Class, float], longest: float, remark: str, *, ran_seconds: float) -> str:
    labels = {kind: f"{words} {span(seconds[kind])}" for kind, (words, _) in _SHOWN.items() if seconds.get(kind)}
    parts = "".join(
        f'<i style="width:{100 * seconds[kind] / longest:.3f}%;background:{_SHOWN[kind][1]}" title="{words}"></i>'
        for kind, words in labels.items()
    )
    return (
        f'<div class="barname">{escape(name)}</div>'
        f'<div class="bar" role="img" aria-label="{escape(", ".join(labels.values()))}">{parts}</div>'
        f'<div class="bartold quiet small">{span(ran_seconds)}{" · " + escape(remark) if remark else ""}</div>'
    )
