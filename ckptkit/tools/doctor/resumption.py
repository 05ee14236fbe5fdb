"""Finds what a resumed life lost, where no value that the doctor can read is surely the cause: by its calls.

Records an uninterrupted life that saves where the other had saved, and one that resumes from there. The first call that
gives another output for equal inputs depends on something that no checkpoint holds. Guarantees: names nothing if the
two lives agree. Main thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ckptkit.tools.doctor.compare import Difference, kind_of, variable_of
from ckptkit.tools.doctor.culprit import Culprit, culprit_after_resume, culprit_in_data_again
from ckptkit.tools.doctor.diagnose import UNKNOWN, Diagnosis, suspect_at
from ckptkit.tools.doctor.disagreement import RECORDED_STEPS, Recording, place_of_culprit, what_of_culprit
from ckptkit.tools.doctor.lives.record import read_record
from ckptkit.tools.doctor.lives.trial import Life
from ckptkit.tools.doctor.lost import made_since

_RANDOM = ("random operator", "random cell")


def is_sure(found: Diagnosis, difference: Difference) -> bool:
    """Return whether a diagnosis needs no look at the calls.

    A variable that was made after the restore may only have followed from what was lost.
    """
    begun, variable = difference.life.begun, variable_of(found.where)
    if found.code != "forgotten-state" or begun is None or begun.unseen is None or not variable:
        return found.code != UNKNOWN
    return any(variable_of(path) == variable for path in begun.unseen)


@dataclass(frozen=True)
class Resumption:
    """Examines the resume of a life that differs.

    Args:
        difference: Between that life and an uninterrupted one.
        guess: Its diagnosis without a look at the calls.
        folder: Gets the records.
        start: Runs a life: its description, the micro-step that it begins after, the one to stop at, what it records.
    """

    difference: Difference
    guess: Diagnosis
    folder: Path
    start: Callable[[str, int, int, Recording], Life]

    def diagnosis(self) -> Diagnosis:
        """Run the two lives; return the diagnosis."""
        begun, step = self.difference.resumed_at, self.difference.step
        files = [self.folder / f"calls-resumed-{number}.record" for number in (1, 2)]
        in_data = kind_of(self.difference.names) == "batch"
        # Of data, all is recorded: the resumed life may make samples again from the first on.
        whole = Recording(files[0], after=0 if in_data else max(0, begun - RECORDED_STEPS), save=begun)
        lives = [self.start("recorded, uninterrupted", 0, step, whole)]
        if lives[0].ended_as_planned:
            lives.append(self.start("recorded, resumed", begun, step, Recording(files[1])))
        if not all(one.ended_as_planned for one in lives) or lives[1].begun is None or lives[1].begun.step != begun:
            return self.guess
        one, other = (list(read_record(file)) for file in files)
        culprit = culprit_in_data_again(one, other) if in_data else None
        culprit = culprit or culprit_after_resume(one, other, begun, step)
        return self.guess if culprit is None else self._named(culprit)

    def _named(self, culprit: Culprit) -> Diagnosis:
        suspect = suspect_at(self.difference, culprit)
        cause = f"after the resume, {what_of_culprit(culprit)}"
        if self.guess.code != UNKNOWN:
            return replace(self.guess, cause=f"{self.guess.cause}; {cause}")
        if suspect is not None:
            return Diagnosis(f"random-{suspect.kind}", suspect.where, f"{cause}; {suspect.why}", suspect.fix)
        if culprit.kind in _RANDOM:
            fix = "use ckptkit.nn.Dropout, or a mask that the data pipeline makes"
            return Diagnosis("random-operator", place_of_culprit(culprit), cause, fix)
        if culprit.changed.startswith(("rng/", "named/", "told/")):
            return self.guess  # no kernel rounds a generator, or a number of Python's
        if culprit.changed:
            return Diagnosis(
                "kernel-rounding",
                culprit.where,
                f"after the resume, all calls got and returned the same, but {culprit.changed} was changed in place to "
                f"another value, by {culprit.where}: most likely a kernel of MindSpore rounds otherwise in the first "
                "launches of a process",
                "nothing if the last bit does not matter; otherwise use another operator or optimizer there",
            )
        made = made_since(self.difference)[:4]
        which = f": of the variables, {', '.join(made)} differ then" if made else ""
        return Diagnosis(
            "forgotten-state",
            place_of_culprit(culprit),
            f"{cause}. It depends on something that is in no checkpoint{which}",
            "give what it keeps, or reads besides its inputs, state_dict() and load_state_dict(), and pass it by name: "
            "stateful={'name': it}",
        )
