"""Renders the page as an HTML file, which loads plotly's script from the file `PLOTLY` beside it.

Guarantees: it loads nothing from any network, and forbids its own parts to (its Content-Security-Policy allows its
script by its digest, what that loads, and nothing else). All text from files of the run is escaped, so that it is shown
and never runs. The same story gives the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from importlib import resources
from string import Template

from plotly.offline import get_plotlyjs_version

from ckptkit.core.text import many, number, rough_span, size, span, when
from ckptkit.tools.report.goodput import goodput_section
from ckptkit.tools.report.health import HealthVerdict, judge
from ckptkit.tools.report.history import Attempt, RunStory
from ckptkit.tools.report.plots import THEME, Plot, colour_of, costs, curves, timeline

PLOTLY = f"plotly-{get_plotlyjs_version()}.min.js"  # one file for all pages in a folder

_MOST_ROWS = 200  # per table

_PILLS = {"good": "healthy", "attention": "worth a look", "bad": "needs somebody"}
_TONES = {"finished": "good", "complete": "good", "failed": "bad", "closed": "attention", "overtaken": "attention"}


def page_of(story: RunStory) -> str:
    verdict = judge(story)
    line, cost, plots = timeline(story), costs(story), curves(story)
    drawn = [line, *plots, *([cost] if cost else [])]
    body = "\n".join(
        part
        for part in (
            _head(story, verdict),
            _notes(verdict),
            _section(line, _LEGEND, _table(_ATTEMPTS, [_attempt(attempt, story) for attempt in story.attempts])),
            goodput_section(story),
            _curves(plots, story),
            _section(cost) if cost is not None else "",
            _failures(story),
            _removals(story),
            _foot(story),
        )
        if part
    )
    plotted = {plot.key: plot.figure for plot in drawn}
    figures = {"plots": plotted, "theme": list(THEME.values()), "plotly": PLOTLY}
    text = json.dumps(figures, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    script = _file("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    light, dark = ("".join(f"--{name}:{pair[which]};" for name, pair in THEME.items()) for which in (0, 1))
    return Template(_file("page.html")).substitute(
        digest=digest,
        title=escape(f"{story.root.rstrip('/').rpartition('/')[2] or story.root} – ckptkit report"),
        style=f":root{{{light}}}@media (prefers-color-scheme: dark){{:root{{{dark}}}}}\n{_file('page.css')}",
        body=body,
        figures=text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"),
        script=script,
    )


_ATTEMPTS = ("Attempt", "Began (UTC)", "Took", ">Steps", ">Saves", "Ended", "On")
_LEGEND = """<p class="legend"><span>◆ checkpoint</span><span>○ removed since</span><span>✕ failed save</span>
<span>● finished</span><span>■ ended</span><span>❘ last heard of</span></p>"""


def _head(story: RunStory, verdict: HealthVerdict) -> str:
    latest = story.latest_save
    if latest is None:
        at, name = "none", "" if story.latest is None else escape(story.latest)
    else:
        ago = (story.told_at - latest.at).total_seconds() if latest.at else None
        at = "–" if ago is None else f"{rough_span(max(0.0, ago))} ago"
        name = escape(latest.checkpoint)
    redone, account = story.redone_steps, story.account
    down, unseen = (account.totals[name] if account.seconds else None for name in ("down", "unseen"))
    share = f"{account.stall_seconds / account.seconds:.2%} of the time" if account.seconds else ""
    # A killed attempt cannot report its progress after its last save.
    killed = sum(attempt.how is None for attempt in story.attempts[:-1])
    certainty = f"and what {many(killed, 'killed attempt')} did after the last save" if killed else "known exactly"
    cards = (
        ("Step", number(story.step), "" if story.epoch is None else f"{many(story.epoch, 'epoch')} done"),
        ("Attempts", number(len(story.attempts)), f"{span(account.seconds)} in all" if account.seconds else ""),
        ("Last checkpoint", at, f'<span class="name">{name}</span>'),
        ("Work done twice", many(redone, "step"), certainty),
        ("Nothing ran for", span(down), f"{span(unseen)} not seen" if unseen else "between attempts"),
        ("Saves made it wait", span(account.stall_seconds if account.seconds else None), share),
    )
    shown = "".join(
        f'<div class="card"><div class="label">{label}</div><div class="value">{value}</div>'
        f'<div class="more">{more}</div></div>'
        for label, value, more in cards
    )
    return (
        f'<header><span class="pill is-{verdict.health}">{_PILLS[verdict.health]}</span>'
        f"<h1>{escape(verdict.headline)}</h1>"
        f'<p class="quiet name">{escape(story.root)}</p></header><div class="cards">{shown}</div>'
    )


def _notes(verdict: HealthVerdict) -> str:
    by_tone = (("bad", verdict.bad), ("attention", verdict.attention), ("good", verdict.good))
    items = [f'<li class="is-{tone}">{escape(note)}</li>' for tone, notes in by_tone for note in notes[:_MOST_ROWS]]
    return f'<section><ul class="notes">{"".join(items)}</ul></section>' if items else ""


def _section(plot: Plot, *more: str) -> str:
    return (
        f'<section><h2>{escape(plot.title)}</h2><div class="plot" id="plot-{plot.key}" role="img" '
        f'style="height:{plot.figure["layout"]["height"]}px" '
        f'aria-label="{escape(plot.described)}"></div>{"".join(more)}</section>'
    )


def _curves(plots: Sequence[Plot], story: RunStory) -> str:
    if not plots:
        return (
            '<section><h2>Loss</h2><p class="quiet">None was recorded. CheckpointCallback records the loss by itself; '
            "in one's own loop it is what manager.step(state, {&quot;loss&quot;: loss}) is given.</p></section>"
        )
    legend = '<p class="legend"><span>▸ resumed</span><span>wide and faint: done again by a later attempt</span></p>'
    is_redone = any(attempt.redone_from is not None for attempt in story.attempts)
    first = _section(plots[0], legend if is_redone else "")
    rest = "".join(map(_section, plots[1:]))
    return f'{first}<div class="pair">{rest}</div>' if rest else first


def _attempt(attempt: Attempt, story: RunStory) -> list[str]:
    how, tone = attempt.ended, _TONES.get(attempt.how or "", "attention")
    if how is None:
        guesses = ["running", "killed"] if attempt is story.last else ["killed"]
        how = " or ".join(guesses) if attempt.tells_exit else f"{', '.join(guesses)}, or not closed"
    error = f' <span class="quiet">{escape(attempt.error)}</span>' if attempt.error else ""
    ranks = f" · {many(attempt.world_size, 'rank')}" if attempt.world_size and attempt.world_size > 1 else ""
    return [
        f"{_dot(attempt)}{attempt.number}",
        when(attempt.began_at),
        span(next((life.ran_seconds for life in story.account.lives if life.attempt == attempt.number), None) or None),
        f">{number(attempt.from_step)} → {number(attempt.to_step)}",
        f">{number(len(attempt.saves))}",
        f'<span class="tone is-{tone}">{escape(how)}</span>{error}',
        f"{escape(attempt.host)}{ranks}",
    ]


def _failures(story: RunStory) -> str:
    rows = [
        [
            when(failure.at),
            f">{attempt.number}",
            f">{number(failure.step)}",
            f"<b>{escape(failure.error)}</b> {escape(failure.message)}",
        ]
        for attempt in story.attempts
        for failure in attempt.failures
    ]
    if not rows:
        return ""
    table = _table(("When (UTC)", ">Attempt", ">Step", "Why"), rows)
    return f"<section><h2>Saves that failed</h2>{table}</section>"


def _removals(story: RunStory) -> str:
    rows = [
        [
            f'{_dot(attempt)}<span class="name">{escape(removal.checkpoint)}</span>',
            f">{number(removal.step)}",
            when(removal.at),
            f'<span class="name">{escape(removal.after)}</span>',
        ]
        for attempt in story.attempts
        for removal in attempt.removals
    ]
    there = [save for _, save in story.saves if save.is_there]
    summary = (
        f"{many(len(there), 'checkpoint is', 'checkpoints are')} there, "
        f"{size(sum(save.size_bytes or 0 for save in there))} in all. "
        f"Retention has removed {number(len(rows)) if rows else 'none that is known of'}."
    )
    table = _table(("Checkpoint", ">Step", "Removed (UTC)", "After the commit of"), rows) if rows else ""
    return f'<section><h2>Retention</h2><p class="quiet">{summary}</p>{table}</section>'


def _dot(attempt: Attempt) -> str:
    return f'<span class="dot" style="background:{colour_of(attempt)}"></span>'


def _foot(story: RunStory) -> str:
    run = f" of run <code>{escape(story.run_id)}</code>" if story.run_id else ""
    copied = f", copied from {escape(story.copied_from)}" if story.copied_from else ""
    return (
        f"<footer>Read {when(story.told_at)} UTC by <code>ckptkit report</code>{run}{copied}. Times are those that the "
        "processes wrote down. Values are of rank 0. Nothing here is proven: <code>ckptkit verify</code> reads every "
        "byte.</footer>"
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of the newest rows; cells are HTML, and one that begins with ``>`` is right-aligned."""
    shown = rows[-_MOST_ROWS:]
    head = "".join(_cell("th", content) for content in heads)
    body = "".join(f"<tr>{''.join(_cell('td', content) for content in row)}</tr>" for row in shown)
    hidden = len(rows) - len(shown)
    more = f'<p class="quiet small">{many(hidden, "earlier one")} left out.</p>' if hidden else ""
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}'


def _cell(tag: str, content: str) -> str:
    if content.startswith(">"):
        return f'<{tag} class="right tight">{content[1:]}</{tag}>'
    width = "wide" if "<b>" in content else "tight"
    return f'<{tag} class="{width}">{content}</{tag}>'


def _file(name: str) -> str:
    return resources.files("ckptkit.tools.report").joinpath(name).read_text(encoding="utf-8")
