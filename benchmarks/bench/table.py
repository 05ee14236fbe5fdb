"""Markdown tables of medians, with the smallest and the largest where there are several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median


def cell(values: Iterable[float], digits: int = 2, suffix: str = "") -> str:
    """``median (min-max)``; a single value alone, and a dash for none."""
    found = list(values)
    if not found:
        return "-"
    text = f"{median(found):,.{digits}f}{suffix}"
    return text if len(found) == 1 else f"{text} ({min(found):,.{digits}f}-{max(found):,.{digits}f})"


def percent(values: Iterable[float]) -> str:
    """As `cell`, of shares."""
    return cell([100 * value for value in values], 0, "%")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; columns after the first are aligned to the right."""
    lines = ["| " + " | ".join(header) + " |", "|---" + "|---:" * (len(header) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])
