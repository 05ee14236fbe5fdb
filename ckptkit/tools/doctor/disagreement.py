"""Finds why two uninterrupted lives differ: records two more, call by call, and tries what may make lives equal.

Guarantees: a setting that it recommends was seen to make two lives of this job equal. What it names gave another output
for equal inputs. If the recorded lives agree, or the records end before they part, the diagnosis of the first two
stands. Main thread only.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from ckptkit.manager.hooks import READS_AHEAD, Recorded, Setting, Suspect
from ckptkit.tools.doctor.compare import Difference, kind_of
from ckptkit.tools.doctor.culprit import Culprit, culprit_in_calls, culprit_in_data
from ckptkit.tools.doctor.diagnose import Diagnosis, suspect_at
from ckptkit.tools.doctor.lives.record import read_record
from ckptkit.tools.doctor.lives.trial import Life

READ_LITTLE: Setting = "read little ahead"
_AHEAD: dict[str, tuple[Setting, ...]] = {"as usual": (), "little": (READ_LITTLE,)}
_MAX_PAIRS = 3  # of recorded lives that agree: a difference may be rare
RECORDED_STEPS = 24  # before the micro-step that differed
_SETTINGS: dict[str, tuple[Setting, ...]] = {
    "sample": ("one worker",),
    "cell": ("deterministic", "one thread"),
    "graph": ("deterministic", "one thread"),
    "operator": ("deterministic", "one thread"),
    "function": ("deterministic", "one thread"),
    "gradients": ("deterministic", "one thread"),
    "update": ("deterministic", "one thread"),
}
_HOW: dict[Setting, str] = {
    "pynative": "run it in PYNATIVE mode",
    "deterministic": "call mindspore.set_deterministic(True) before training",
    "one thread": "call mindspore.set_context(runtime_num_threads=1) before training",
    "one worker": "give the operation num_parallel_workers=1, or call mindspore.dataset.config."
    "set_num_parallel_workers(1)",
}
_DRAW = (
    "let random numbers follow from a seed: ckptkit.nn.Dropout for masks, ckptkit.data.sample_rng for data, a "
    "generator with a seed that is passed by name (stateful={'name': it}) for the rest"
)


@dataclass(frozen=True)
class Recording:
    """Says what an uninterrupted life does beside training.

    Attributes:
        file: Gets the calls; None if they are not recorded.
        after: The micro-step after which recording begins.
        settings: What the life sets after its restore.
        save: The micro-step after which it saves; 0 for none.
    """

    file: Path | None = None
    after: int = 0
    settings: tuple[Setting, ...] = ()
    save: int = 0


@dataclass(frozen=True)
class Disagreement:
    """Examines a difference between two uninterrupted lives.

    Args:
        difference: Between the first two lives.
        guess: Its diagnosis without a look at the calls.
        folder: Gets the records.
        last: The last micro-step of the job.
        start: Runs an uninterrupted life, of a description, up to a micro-step.
        compare: Returns the first difference between two lives up to a micro-step.
    """

    difference: Difference
    guess: Diagnosis
    folder: Path
    last: int
    start: Callable[[str, int, Recording], Life]
    compare: Callable[[Life, Life, int], Difference | None]
    _agreed: list[tuple[Setting, ...]] = field(default_factory=list, init=False)  # with these, recorded lives agreed

    def diagnosis(self) -> Diagnosis:
        """Run the lives; return the diagnosis."""
        if self.difference.found is None:
            return self.guess
        culprit = self._culprit("", ())
        if culprit is None:
            return self._left_behind() or self.guess
        mode = ""
        if culprit.kind in ("graph", "update"):
            inner = self._culprit(" in PYNATIVE mode", ("pynative",))
            if inner is not None and inner.kind not in ("graph", "update"):
                culprit, mode = inner, ". A graph cannot be looked into: this was seen in PYNATIVE mode"
            elif self.guess.code == "random-operator":
                return self.guess  # it is within what cannot be looked into, and is known to draw
            elif inner is None and culprit.kind == "graph":
                mode = ". In PYNATIVE mode, two runs agree" if self._agree(("pynative",)) else ""
        return self._diagnosed(culprit, mode)

    def _culprit(self, words: str, settings: tuple[Setting, ...]) -> Culprit | None:
        after = max(0, self.difference.step - RECORDED_STEPS)
        name = "-".join(("calls", *settings))
        first: Life | None = None
        for number in range(1, 2 + _MAX_PAIRS):
            record = self.folder / f"{name}-{number}.record"
            life = self.start(f"recorded{words}, number {number}", self.last, Recording(record, after, settings))
            if not life.ended_as_planned:
                return None
            if first is None:
                first = life
                continue
            difference = self.compare(life, first, self.last)
            if difference is not None:
                return self._parting(self.folder / f"{name}-1.record", record, difference)
            record.unlink(missing_ok=True)
        self._agreed.append(settings)
        return None

    def _left_behind(self) -> Diagnosis | None:
        """Name the files that the first life made, if all later ones agree: they found what it had left there."""
        steps = self.difference.reference.steps
        made = [file for step in sorted(steps) if step <= self.difference.step for file in steps[step].made]
        last = sorted(made, key=os.path.isdir)  # a file says more than the folder around it
        if () not in self._agreed or not made:
            return None
        return Diagnosis(
            "forgotten-state",
            last[0],
            f"only the first run trained otherwise, from micro-step {self.difference.step} on. It likely left "
            f"something to later ones, which is in no checkpoint: it made {', '.join(last[:4])}",
            "keep what later runs need in an object with state_dict() and load_state_dict(), given by name",
            tuple(last[1:4]),
        )

    def _parting(self, first: Path, second: Path, difference: Difference) -> Culprit | None:
        one, other = list(read_record(first)), list(read_record(second))
        if kind_of(difference.names) in ("batch", "rng"):
            found = culprit_in_data(one, other)
            if found is not None:
                return replace(found, step=difference.step)
        return culprit_in_calls(one, other, difference.step)

    def _agree(self, settings: tuple[Setting, ...]) -> bool:
        """Return whether two lives with ``settings`` are equal to the end."""
        lives = [
            self.start(f"with {settings[0]}, number {number}", self.last, Recording(settings=settings))
            for number in (1, 2)
        ]
        return all(one.ended_as_planned for one in lives) and self.compare(lives[1], lives[0], self.last) is None

    def _diagnosed(self, culprit: Culprit, seen: str) -> Diagnosis:
        suspect = suspect_at(self.difference, culprit)
        kind = (
            "code" if culprit.kind == "cell" and (culprit.called or culprit.through) else culprit.kind
        )  # a cell in Python draws there
        code = _CODES.get(kind, "nondeterministic-operator")
        cause = f"two uninterrupted runs part at micro-step {culprit.step}: {what_of_culprit(culprit)}{seen}"
        if suspect is not None:
            code = f"random-{suspect.kind}"
            return Diagnosis(code, suspect.where, f"{cause}; {suspect.why}", suspect.fix, self.guess.also)
        for setting in _SETTINGS.get(kind, ()):
            if self._agree((setting,)):
                return Diagnosis(code, place_of_culprit(culprit), cause, f"{_HOW[setting]}: with it, two runs agreed")
        tried = " or to ".join(_HOW[one] for one in _SETTINGS.get(kind, ()))
        fix = _FIXES.get(kind, _DRAW)
        return Diagnosis(
            code, place_of_culprit(culprit), cause, f"{fix}{f'. It does not help to {tried}' if tried else ''}"
        )


@dataclass(frozen=True)
class Race:
    """Examines a difference from a life that read little ahead: the data depend on how far training is.

    Args:
        difference: Between that life and one that read ahead as usual.
        changing: Paths of what training changes and no checkpoint holds.
        folder: Gets the records.
        start: As in `Disagreement`.
    """

    difference: Difference
    changing: tuple[str, ...]
    folder: Path
    start: Callable[[str, int, Recording], Life]

    def diagnosis(self) -> Diagnosis:
        """Run two recorded lives, one of each kind; return the diagnosis."""
        readers = [one.where for one in _readers(self.difference.reference)]
        culprit = self._culprit()
        where = culprit.where if culprit is not None else readers[0]
        changing = f". Training changes {', '.join(self.changing[:4])}" if self.changing else ""
        return Diagnosis(
            "nondeterministic-pipeline",
            where,
            f"if as little as possible is read ahead, micro-step {self.difference.step} gets another batch, without an "
            f"interruption: {where} likely reads what training changes meanwhile, and after a resume it reads it at "
            f"another time{changing}",
            "let a sample depend on (seed, epoch, index of the sample) only, and do what depends on training in the "
            "loop, with the batch that it got",
            tuple(one for one in readers if one != where)[:3],
        )

    def _culprit(self) -> Culprit | None:
        records: list[list[Recorded]] = []
        for words, settings in _AHEAD.items():
            file = self.folder / f"calls-ahead-{len(records) + 1}.record"
            recording = Recording(file, settings=settings)
            if not self.start(f"recorded, read ahead {words}", self.difference.step, recording).ended_as_planned:
                return None
            records.append(list(read_record(file)))
        return culprit_in_data(*records)


def reads_ahead(life: Life) -> bool:
    """Return whether code of the user's makes batches ahead of training."""
    return bool(_readers(life))


def _readers(life: Life) -> list[Suspect]:
    return [one for one in life.begun.suspects if one.kind == READS_AHEAD] if life.begun is not None else []


def diagnose_emptied_root(url: str) -> Diagnosis:
    """Diagnose a script that removes its run root before it restores: each start begins afresh."""
    return Diagnosis(
        "never-resumed",
        url,
        f"the script removes {url} before it restores, so each start begins afresh",
        "do not remove the run root; for a new run, give it another root",
    )


def diagnose_missing_seed(life: Life) -> Diagnosis:
    """Diagnose a ``life`` that cannot resume as a restart does, and can if the process is seeded as the first was."""
    return Diagnosis(
        "missing-seed",
        "the script",
        "the script draws data, or something else that a resume needs as before, without a seed: it resumes with the "
        f"doctor's seed, and without one it ends with {textwrap.shorten(life.last_words(1), 240)}",
        "call ms.set_seed(...), and random.seed(...) for `random`, at the top of the script, before anything is drawn",
    )


def diagnose_other_mirror(life: Life, killed: Life) -> Diagnosis:
    """Diagnose a ``life`` without its root that began afresh, although ``killed`` had saved to a mirror."""
    held, given = (() if one.begun is None else one.begun.mirrors for one in (killed, life))
    where, now = " and ".join(held), " and ".join(given) or "none"
    return Diagnosis(
        "never-resumed",
        held[0],
        "the run root was lost, and the script began afresh, although a checkpoint after micro-step "
        f"{killed.saved[-1].step} was at its mirror {where}; its mirror at this start: {now}",
        "give the run a mirror that is the same at every start, with no time or random number in it, and do not empty "
        "it",
    )


def diagnose_unequal_replica(difference: Difference) -> Diagnosis:
    """Diagnose a value that must be the same in every rank, and differs from rank 0's."""
    first = difference.names[0]
    return Diagnosis(
        "ranks-differ",
        first,
        f"{first} must be the same in every rank, and rank {difference.rank} has another one than rank 0, without an "
        "interruption: a checkpoint would hold a part of each",
        "initialise every rank alike (ms.set_seed before the network is built), let only the update change what ranks "
        "share, or declare it a rank's own with Ranks(placement=...)",
        difference.names[1:4],
    )


_CODES = {
    "sample": "nondeterministic-pipeline",
    "code": "nondeterministic-code",
    "random": "nondeterministic-code",
    "random operator": "random-operator",
    "random cell": "random-operator",
}
_FIXES = {
    **dict.fromkeys(("operator", "function", "gradients"), "use an operator for it that gives the same bits twice"),
    "cell": "use a cell for it that gives the same bits twice",
    "code": "let its result follow from its inputs and a seed, not from time, threads, addresses or hash order",
    "random": "seed it, or draw from a generator with a seed that is passed by name: stateful={'name': it}",
    "sample": "let it draw from a generator made of (seed, epoch, index of the sample), such as "
    "ckptkit.data.sample_rng, and keep nothing from one sample to the next",
}


def place_of_culprit(culprit: Culprit) -> str:
    """Return where the culprit is."""
    inside = culprit.cell
    return f"{culprit.where} in {inside}" if inside and inside != culprit.where else culprit.where


def what_of_culprit(culprit: Culprit) -> str:
    """Return what the culprit does, as a part of a sentence."""
    line = f", called at {culprit.line}" if culprit.line and culprit.line != culprit.where else ""
    calls = [one for one in (culprit.through, *culprit.called[:4]) if one]
    called = f" (it calls {', '.join(calls)})" if calls else ""
    if culprit.kind == "update":
        return f"all calls agree, but {culprit.where} was changed in place to another value{line}"
    if culprit.kind == "sample":
        return f"{culprit.where} makes something else of an equal sample"
    if culprit.where == culprit.line:
        passed = f" ({culprit.passed})" if culprit.passed else ""
        return f"the code at {culprit.where} passes on another value{passed}, although all that it got is equal{called}"
    return f"{place_of_culprit(culprit)} gets equal inputs and gives another output{line}{called}"
