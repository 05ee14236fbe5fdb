"""Examines a script that trains at several run roots: one run after the other.

Guarantees: each run that the script began while another one was followed is examined by itself, in the order in which
they began, up to the first that is not exact. What begins only after the examined part of all others is not seen. Main
thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from ckptkit.tools.doctor.examine import Examination
from ckptkit.tools.doctor.report import FailedLifeError, Options, Report, Reports, UnusableScriptError


class RunByRun:
    """Runs one examination for each run of ``command``.

    Args:
        command: The user's command, program first.
        folder: An empty folder for everything that is written.
        options: How to examine each; ``within`` is for all of them together.
        monotonic, begins, stepped: As for `Examination`.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        options: Options,
        *,
        monotonic: Callable[[], float],
        begins: Callable[[str, int], None],
        stepped: Callable[[int], None],
    ) -> None:
        self._command, self._folder, self._options = command, folder, options
        self._monotonic, self._begins, self._stepped = monotonic, begins, stepped
        self._reports: list[Report] = []
        self._known: dict[str, None] = {}  # run roots at which the script trains, in the order in which they began

    def run(self) -> Reports:
        """Examine run by run.

        Raises:
            UnusableScriptError, FailedLifeError, OSError: As in `Examination.run`.
        """
        began = self._monotonic()
        self._examine(self._folder, self._options)
        while self._reports[-1].is_sound and self._left_out():
            options = self._in_time(self._monotonic() - began)
            if options is None:
                break
            self._examine(self._folder / f"run-{len(self._reports) + 1}", options, self._left_out()[0])
        return Reports(tuple(self._reports), tuple(self._left_out()))

    def _left_out(self) -> list[str]:
        examined = {one.url for one in self._reports}
        return [url for url in self._known if url not in examined]

    def _examine(self, folder: Path, options: Options, url: str | None = None) -> None:
        folder.mkdir(exist_ok=True)
        others = [] if url is None else [one for one in self._known if one != url]
        where = "" if url is None else f"{url}: "
        examination = Examination(
            self._command,
            folder,
            options,
            others=others,
            monotonic=self._monotonic,
            begins=lambda words, steps: self._begins(where + words, steps),
            stepped=self._stepped,
        )
        try:
            report = examination.run()
        except (UnusableScriptError, FailedLifeError) as error:
            if self._reports:
                exact = ", ".join(one.url for one in self._reports)
                error.args = (f"run root {url} ({exact} was exact): {error}",)
            raise
        self._reports.append(report)
        self._known.update(dict.fromkeys((report.url, *report.others)))

    def _in_time(self, spent: float) -> Options | None:
        """Return the options for one more run; None if it is likely to take longer than is left."""
        within = self._options.within
        if within is None:
            return self._options
        left = within.total_seconds() - spent
        return None if left < self._reports[-1].seconds else replace(self._options, within=timedelta(seconds=left))
