"""Summarizes the health of a run: what needs action, what is worth knowing, what went well.

It states only what the story shows, and never calls a job dead that may be running.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ckptkit.core.text import many, number, span
from ckptkit.tools.report.history import Attempt, RunStory

_HIGH_STALL = 0.02  # share of the time in all
_LAST_POINTS = 20

_HEADLINES = {
    "finished": "The training has finished.",
    "closed": "The last attempt ended without an error, and saved nothing at its end.",
    "failed": "The last attempt failed.",
    "preempted": "The last attempt was preempted and may be started again.",
    "interrupted": "Ctrl-C ended the last attempt.",
    "overtaken": "The last attempt was taken over by another process.",
    "complete": "The training is complete: the last attempt found nothing left to do.",
    "exited": "The program of the last attempt ended without closing its manager: use `with manager:`.",
    None: "The last attempt did not record its end: it is running, or it was killed.",
}
_UNKNOWN = "The last attempt did not record its end: it is running, it was killed, or its loop ended without close()."


@dataclass(frozen=True)
class HealthVerdict:
    health: Literal["good", "attention", "bad"]
    headline: str
    bad: Sequence[str]  # problems that need action
    attention: Sequence[str]  # facts worth knowing
    good: Sequence[str]  # what went well


def judge(story: RunStory) -> HealthVerdict:
    bad, attention = list(_bad(story)), list(_attention(story))
    last = story.last
    if last.how is None and not last.tells_exit:
        headline = _UNKNOWN
    elif last.how is None and last.cause is not None:
        headline = f"The last attempt ended ({last.ended}): {last.cause_message}"
    else:
        headline = _HEADLINES[last.how]
    return HealthVerdict(
        "bad" if bad else "attention" if attention else "good", headline, bad, attention, list(_good(story))
    )


def lines_of(story: RunStory) -> Iterator[str]:
    """Yield the page as a few lines of text."""
    verdict = judge(story)
    yield f"{verdict.headline} Step {number(story.step)} after {many(len(story.attempts), 'attempt')}."
    yield from verdict.bad
    yield from verdict.attention


def _bad(story: RunStory) -> Iterator[str]:
    last = story.last
    if last.how == "exited" and last.to_step is not None and last.to_step > _saved_step(last):
        yield f"What the last attempt did after step {number(_saved_step(last))} is not saved: end with save_final()."
    if last.how == "failed":
        yield f"Attempt {last.number} ended with {last.error}: {last.message or 'no message'}"
    failed = _failed_at_the_end(last)
    if failed:
        why = last.failures[-1]
        yield f"The last {many(failed, 'save')} failed: {why.error}: {why.message}"
    if story.latest is None:
        yield "No checkpoint can be used: the next start begins afresh, or fails."
    points = last.points[-_LAST_POINTS:]
    lost = sorted({name for point in points for name, value in point.values.items() if value.mean is None})
    if lost:
        yield f"{', '.join(lost)}: the newest values are not finite (NaN or infinite)."
    for problem in story.problems:
        yield f"{problem.key} cannot be used: {problem.reason}"


def _attention(story: RunStory) -> Iterator[str]:
    failures = sum(len(attempt.failures) for attempt in story.attempts)
    if failures and not _failed_at_the_end(story.last):
        yield f"{many(failures, 'save')} failed on the way; later ones were committed."
    skipped = sum(attempt.skipped_saves for attempt in story.attempts)
    if skipped:
        yield (
            f"{many(skipped, 'save was', 'saves were')} due while the previous one was still being written, and "
            "skipped. Save less often, or to a faster storage."
        )
    account = story.account
    share = account.stall_seconds / account.seconds if account.seconds > 60 else 0.0
    if share > _HIGH_STALL:
        yield f"Saves kept training waiting for {share:.1%} of the time."
    different = story.repeated.different
    if different:
        yield (
            f"{many(len(different), 'step that was', 'steps that were')} done twice gave a "
            f"different loss the second time, the first one at step {number(different[0])}. If nothing was changed "
            "on purpose, the resume was not exact: ckptkit doctor finds out why."
        )
    left_out = sum(attempt.left_out for attempt in story.attempts)
    if left_out:
        yield f"{many(left_out, 'event')} could not be stored, so the plots have gaps."
    silent = [str(attempt.number) for attempt in story.attempts if not attempt.has_events]
    if silent:
        named = f"Attempt{'s' if len(silent) > 1 else ''} {', '.join(silent)}"
        if len(silent) > 5:
            named = f"{many(len(silent), 'attempt')}, from {silent[0]} to {silent[-1]},"
        yield (
            f"{named} recorded nothing (Saving(events=False), an older ckptkit, or killed before a first "
            "commit): only checkpoints and documents show it."
        )


def _good(story: RunStory) -> Iterator[str]:
    same = len(story.repeated.same)
    if same and not story.repeated.different:
        yield (
            f"{many(same, 'step that was', 'steps that were')} done twice gave the same loss both "
            "times, to the last digit."
        )
    saves = [save for attempt, save in story.saves if attempt.has_events and save.stall_seconds is not None]
    if saves:
        stall = span(story.account.stall_seconds / len(saves))
        yield f"{many(len(saves), 'save')} kept training waiting for {stall} each on average."


def _failed_at_the_end(attempt: Attempt) -> int:
    """Return the number of its saves that failed after its last commit, judging by their steps."""
    last = max((save.step for save in attempt.saves if save.step is not None), default=-1)
    return sum(failure.step > last for failure in attempt.failures)


def _saved_step(attempt: Attempt) -> int:
    """Return the step of its last commit, or the one that it began with."""
    return max((save.step for save in attempt.saves if save.step is not None), default=attempt.from_step or 0)
