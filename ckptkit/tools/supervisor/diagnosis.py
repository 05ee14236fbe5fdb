"""Says why a life ended, by name, from its exit code, its ranks' last records, their stacks and its last words.

Guarantees: the same life gets the same finding. What the ranks have recorded counts more than text that was parsed.
In a job of many ranks the finding is about the one that failed first: ranks that only repeat what another one said do
not count.

`RestartBudget` decides whether another life follows. A life that commits more than any before it is free. Two deaths in
the same micro-step are code or data, since every life repeats the same bits. An error about data is known by its
message: pipelines read ahead, so that it comes up earlier or later. A death that comes from outside (a SIGKILL, a hang,
a lack of memory) counts for that only if at least one of the two lives had trained before it: a machine that dies again
in the same compilation proves nothing.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ckptkit.core.text import many, signal_name
from ckptkit.manager.heartbeat import Phase, Record
from ckptkit.tools.supervisor.life import SupervisedLife

DONE = 0
TOO_SLOW = 1  # it is done, but a recovery took longer than `--restart-within`
WRONG_USAGE = 2
CODE_OR_DATA = 65  # EX_DATAERR: the same command would fail again
GIVEN_UP = 75  # EX_TEMPFAIL: it may succeed elsewhere, or later
PREEMPTED = 143

_OUTSIDE = ("killed", "hang", "out-of-memory")
_OF_THE_PLACE = (*_OUTSIDE, "exception", "data", "crash", "exit")
_FINAL = ("overtaken", "refused")
_THREE = 3
_NO_PROGRAM = (126, 127)  # a shell's: cannot be executed, not found

_CRASHES = {"SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS"}
_NAMES_OF_CRASHES = {"Segmentation fault": "SIGSEGV", "Bus error": "SIGBUS", "Aborted": "SIGABRT"}
_NAMES_OF_CRASHES |= {"Floating-point exception": "SIGFPE", "Illegal instruction": "SIGILL"}
_REPEATED = re.compile(r"rank \d+: ")
_ERROR = re.compile(r"([A-Za-z_][\w.]*)(?:: (.*))?")
_NO_MEMORY = ("std::bad_alloc", "Cannot allocate memory")
_BAD_ALLOC = "terminate called after throwing an instance of 'std::bad_alloc'"
_LAST_LINES = 40
_WRONG_SYNTAX = re.compile(r'^  File ".*", line \d+\n(?: .*\n)*((?:Syntax|Indentation|Tab)Error: .*)', re.MULTILINE)
_FULL = ("No space left on device", "Disk quota exceeded", "File too large")


@dataclass(frozen=True)
class LifeFinding:
    """Names why a life ended."""

    cause: str  # one of those in ``docs/run.md``
    what: str  # the same for people, without a full stop
    where: str = ""  # the place in training, for people; empty if it is unknown or does not matter
    rank: int | None = None  # that it is about; None in a job of one rank, or if that is unknown
    record: Record | None = None  # the last state of that rank
    signal: str | None = None

    @property
    def why(self) -> str:
        return f"{self.what} {self.where}".rstrip()


def diagnose(life: SupervisedLife) -> LifeFinding:
    if life.hang is not None:
        return _hang(life)
    ranks = life.ranks
    if ranks and all(record.how == b"preempted" for record in ranks):
        return _preempted(life) if _is_asked(life) else _terminated(life)
    if life.returncode == 0:
        return _of_success(life)
    if life.asked is not None:
        return _asked(life, life.asked)
    if life.returncode == PREEMPTED:
        return _preempted(life) if _is_asked(life) else _terminated(life)
    return _of_ranks(life) if ranks else _of_process(life, None)


def place_of(record: Record) -> str:
    """Return where a process was, for people."""
    step, size = record.micro_step, record.epoch_size
    if record.last_phase in (Phase.STARTING, Phase.RESTORING) or step < 0:
        return f"before training ({record.last_phase.name.lower()})"
    if record.last_phase is Phase.ENDED:
        return "after training had ended"
    if record.last_phase is Phase.REPLAYING:
        return "while data was replayed"
    at = f"epoch {step // size}, batch {step % size} of {size}" if size > 0 else f"batch {step} of the run"
    source = f" from {record.text('data')}" if record.data else ""
    if record.last_phase in (Phase.TRAINING, Phase.FIRST_STEP):
        verb = "in" if record.begun_step > step else "before the end of"
        return f"{verb} micro-step {step + 1} ({at}{source})"
    return f"after micro-step {step} ({record.last_phase.name.lower()})"


def signal_of(returncode: int) -> str | None:
    """Return the name of the signal that ended a process, also if a shell reports it."""
    number = -returncode if returncode < 0 else returncode - 128 if returncode > 128 else 0
    try:
        return signal.Signals(number).name if number else None
    except ValueError:
        return None


def _first(records: Sequence[Record]) -> Record | None:
    return records[0] if records else None


def _rank_of(record: Record | None) -> int | None:
    return record.rank if record is not None and record.ranks > 1 and record.rank >= 0 else None


def _is_asked(life: SupervisedLife) -> bool:
    """Return whether somebody asked the job to end: by a signal to the supervisor, or in another way than SIGTERM.

    Whoever sends SIGTERM to preempt a job sends it to the supervisor, too. The others are MindSpore and libraries.
    """
    requests = {record.category for record in life.ranks}
    return life.asked is not None or (b"asked" in requests and not requests & {b"terminated", b"child-died"})


def _preempted(life: SupervisedLife) -> LifeFinding:
    if life.asked is not None:
        what = f"{signal_name(life.asked)} asked it to end"
    else:
        what = next(
            f"it was asked to end ({record.text('message')})" for record in life.ranks if record.category == b"asked"
        )
    saved = ", and it saved" if any(record.how == b"preempted" for record in life.ranks) else ""
    return LifeFinding("preempted", f"{what}{saved}", record=_first(life.ranks))


def _terminated(life: SupervisedLife) -> LifeFinding:
    """Return the finding of a job that ended by a SIGTERM of which the supervisor knows nothing."""
    if not life.ranks:
        return _of_process(life, None)
    own_first = sorted(
        life.ranks, key=lambda record: record.message.startswith(b"rank ")
    )  # before those that were told
    by_category = {record.category: record for record in reversed(own_first)}
    if (dead := by_category.get(b"child-died")) is not None:
        cause = "out-of-memory" if life.oom_kills and b"SIGKILL" in dead.message else "killed"
        return LifeFinding(cause, dead.text("message"), place_of(dead), _rank_of(dead), signal="SIGTERM")
    alone = by_category.get(b"terminated")
    if alone is None or any(record.error or not (record.how or record.category) for record in life.ranks):
        return _of_ranks(life)  # a rank was lost, after which the others got SIGTERM
    what = "SIGTERM ended it, and not by way of `ckptkit run`; MindSpore sends that when another rank is lost"
    return LifeFinding("killed", what, place_of(alone), _rank_of(alone), signal="SIGTERM")


def _asked(life: SupervisedLife, number: int) -> LifeFinding:
    if life.returncode == PREEMPTED or any(record.how == b"preempted" for record in life.ranks):
        return _preempted(life)
    name = signal.Signals(number).name
    cause, who = ("interrupted", "it ended") if number == signal.SIGINT else ("preempted", f"{name} ended it")
    return LifeFinding(cause, f"{who} without a last save", record=_first(life.ranks), signal=name)


def _of_success(life: SupervisedLife) -> LifeFinding:
    """Return the finding of a command that ended well; a rank below it, such as one in a pipe, may not have."""
    ranks = life.ranks
    is_own = [record.pid for record in ranks] == [life.pid]  # the exit code is the rank's
    # Cut off in training, without a word: Python did not get to its end.
    is_cut_off = any(not record.how and record.phase not in (Phase.STARTING, Phase.ENDED) for record in ranks)
    if not is_own and (is_cut_off or any(record.error for record in ranks)):
        return _of_ranks(life)
    return LifeFinding("finished", "the command ended with exit code 0", record=_first(ranks))


def _hang(life: SupervisedLife) -> LifeFinding:
    hang = life.hang
    assert hang is not None  # noqa: S101 - the caller asked
    culprit, lasted = hang.culprit, f"for {hang.seconds:.0f} s"
    if culprit is None:
        what = f"no rank got on {lasted}, and all stand at the same place"
        return LifeFinding("hang", what, record=_first(life.ranks))
    rank, where = _rank_of(culprit), place_of(culprit)
    who = "it" if rank is None else f"rank {rank}"
    alone = "" if rank is None else ", and the others waited for it"
    how = "was stopped by a signal" if hang.is_stopped else "did not get on"
    return LifeFinding("hang", f"{who} {how} {lasted}{alone}", where, rank, culprit)


def _of_ranks(life: SupervisedLife) -> LifeFinding:
    order = {pid: at for at, pid in enumerate(life.deaths)}
    records = sorted(life.ranks, key=lambda record: order.get(record.pid, len(order)))
    silent = next((record for record in records if not record.error and not record.how), None)
    own = (record for record in records if record.error and not _REPEATED.match(record.text("message")))
    said = next(own, None)
    if said is not None and (silent is None or records.index(said) < records.index(silent)):
        return _of_error(life, said)
    ended = next((record for record in records if record.how in (b"closed", b"exited")), records[0])
    return _of_process(life, silent or ended)


def _of_error(life: SupervisedLife, record: Record) -> LifeFinding:
    error, message = record.text("error"), record.text("message").removesuffix(".")
    cause = record.text("category") or ("exit" if error in ("SystemExit", "KeyboardInterrupt") else "exception")
    what = "Ctrl-C" if error == "KeyboardInterrupt" else f"{error}: {message}" if message else error
    return LifeFinding(cause, what, place_of(record), _rank_of(record), record)


def _of_process(life: SupervisedLife, record: Record | None) -> LifeFinding:
    rank = _rank_of(record)
    where = place_of(record) if record is not None else ""
    name = _crash_of(life, record) or (None if rank is not None else signal_of(life.returncode))
    error = _last_error(life.last_words) if rank is None else None
    outside = _from_outside(life, rank, name, error or "")
    if outside is not None:
        return replace(outside, where=where, rank=rank, record=record)
    if error is not None:
        is_full = any(words in error for words in _FULL)
        return LifeFinding("disk-full" if is_full else "exception", error, where, rank, record)
    if record is not None and life.returncode == 0:
        return LifeFinding("killed", "its process ended without a word: it was killed", where, rank, record)
    if rank is not None:
        return LifeFinding("killed", f"rank {rank} ended without a word: it was killed", where, rank, record)
    if life.returncode == WRONG_USAGE and record is None:
        return LifeFinding("usage", "the command ended with exit code 2 before training: it was called wrongly")
    return LifeFinding("exit", f"the command ended with exit code {life.returncode}", where, rank, record)


def _from_outside(life: SupervisedLife, rank: int | None, name: str | None, error: str) -> LifeFinding | None:
    """Return the finding if a signal, or a lack of memory, ended it."""
    if life.oom_kills and (name == "SIGKILL" or rank is not None):
        return LifeFinding("out-of-memory", "the kernel's OOM killer ended it", signal="SIGKILL")
    last_lines = "\n".join(life.last_words.splitlines()[-_LAST_LINES:])
    if error.startswith("MemoryError") or any(words in error for words in _NO_MEMORY) or _BAD_ALLOC in last_lines:
        return LifeFinding("out-of-memory", "it found no more memory", signal=name)
    if name is not None and name in _CRASHES:
        return LifeFinding("crash", f"it crashed with {name}", signal=name)
    if name is None:
        return None
    return LifeFinding("killed", f"{signal_name(signal.Signals[name])} killed it", signal=name)


def _crash_of(life: SupervisedLife, record: Record | None) -> str | None:
    """Return the signal that `faulthandler` has reported."""
    for stack in life.stacks:
        if record is not None and stack.pid == record.pid and stack.lines:
            return _NAMES_OF_CRASHES.get(stack.lines[0].rpartition(": ")[2].strip(), "SIGSEGV")
    return None


def _last_error(text: str) -> str | None:
    """Return the last line of the last traceback, which names an error."""
    _, traceback, rest = text.rpartition("Traceback (most recent call last):")
    if not traceback:  # of a program that Python cannot read, only its name and the line are shown
        wrong = _WRONG_SYNTAX.findall(text)
        return wrong[-1][:300] if wrong else None
    for line in rest.splitlines():
        if line and not line[0].isspace() and _ERROR.fullmatch(line.strip()):
            return line.strip()[:300]
    return None


@dataclass(frozen=True)
class RestartDecision:
    """Says what follows a life."""

    finding: LifeFinding  # why it ended; more is known here than of a single life
    exit_code: int | None  # of ``ckptkit run``; None if another life follows
    next_move: str  # the same for people
    in_a_row: int = 0  # lives without progress up to here


class RestartBudget:
    """Counts the lives without progress, so many of which in a row are the last, and remembers where lives died."""

    def __init__(self, lives_without_progress: int) -> None:
        self._most = lives_without_progress
        self._in_a_row = 0
        self._same: list[LifeFinding] = []  # of the lives in a row that did not get to training
        self._best: dict[bytes, int] = {}  # by root
        self._deaths: dict[tuple[bytes, int | str], dict[int, bool]] = {}  # numbers of lives, and whether each proves

    def judge(self, life: SupervisedLife, finding: LifeFinding) -> RestartDecision:
        """Return what follows ``life``."""
        last = _end_of(life, finding)
        if last is not None:
            return last
        progress = self._note_progress(life.records)
        self._same = [*self._same, finding][-self._most :] if not life.records else []
        numbers = self._died_there_before(life, finding)
        if numbers is not None and finding.record is not None:
            where = "of the same data, at last" if finding.cause == "data" else "from the same bits,"
            died = f"lives {', '.join(map(str, numbers))} died {where} {place_of(finding.record)}"
            finding = replace(finding, cause="code-or-data", what=f"{died}: {finding.what}", where="")
            return RestartDecision(finding, CODE_OR_DATA, _MOVES["code-or-data"])
        self._in_a_row = 0 if progress else self._in_a_row + 1
        if self._in_a_row >= self._most:
            before = {(same.cause, same.what) for same in self._same}
            if len(self._same) == self._most and before == {("exception", finding.what)}:
                same = many(len(self._same), "life", "lives")
                what = f"{same} in a row ended before training with the same error: {finding.what}"
                return RestartDecision(replace(finding, cause="code-or-data", what=what), CODE_OR_DATA, _CORRECT)
            why = f"{many(self._in_a_row, 'life', 'lives')} in a row committed nothing new"
            return RestartDecision(finding, GIVEN_UP, f"{why}: {_MOVES.get(finding.cause, _LOOK)}", self._in_a_row)
        return RestartDecision(finding, None, "restart", self._in_a_row)

    def _note_progress(self, records: Sequence[Record]) -> bool:
        """Note what was committed; return whether it is more than before, in any of the runs of the command."""
        more = False
        for root in {record.root for record in records}:
            own = [record for record in records if record.root == root]
            before = max([self._best.get(root, -1), *(record.restored_step for record in own)])
            self._best[root] = max([before, *(record.committed_step for record in own)])
            more = more or self._best[root] > before
        return more

    def _died_there_before(self, life: SupervisedLife, finding: LifeFinding) -> list[int] | None:
        """Return the numbers of the lives that died in the same micro-step as this one, if that proves something."""
        record = finding.record
        if record is None or finding.cause not in _OF_THE_PLACE or record.micro_step < 0:
            return None
        if record.last_phase in (Phase.STARTING, Phase.RESTORING, Phase.ENDED):  # not at a batch
            return None
        trained = record.last_phase is Phase.TRAINING and record.micro_step > record.restored_step
        place = record.text("message") if finding.cause == "data" else record.micro_step
        deaths = self._deaths.setdefault((record.root, place), {})
        deaths[life.number] = finding.cause not in _OUTSIDE or trained
        is_proven = len(deaths) >= _THREE or (len(deaths) > 1 and any(deaths.values()))
        return [*deaths] if is_proven else None


def _end_of(life: SupervisedLife, finding: LifeFinding) -> RestartDecision | None:
    """Return the decision if the life alone decides that no other one follows."""
    if finding.cause == "finished":
        return RestartDecision(finding, DONE, "done")
    if finding.cause in ("preempted", "interrupted"):
        is_typed = finding.signal is not None and life.asked in (signal.SIGINT, signal.SIGQUIT)
        code = 128 + life.asked if is_typed and life.asked is not None else PREEMPTED
        return RestartDecision(finding, code, "the same command continues the run")
    if finding.cause == "usage" or (not life.records and life.returncode in _NO_PROGRAM):
        return RestartDecision(finding, WRONG_USAGE, "correct the command")
    return RestartDecision(finding, CODE_OR_DATA, _MOVES[finding.cause]) if finding.cause in _FINAL else None


_LOOK = "look at the last lines that it printed"
_CORRECT = "correct what it names; a restart fails again"
_MOVES = {
    "outage": "check the network, and the storage that the message is about, and start the same command again",
    "overtaken": "another process trains this run; do not start this one again",
    "refused": "a restart cannot help; the message says what to change",
    "code-or-data": "correct the code or the data there; a restart repeats the same bits",
    "data": "look at the file or the function that the message names",
    "disk-full": "free some space (`df -h`), and start the same command again",
    "storage": "check whether the storage answers (`ckptkit ls ROOT`), and start the same command again",
    "out-of-memory": "give the job more memory, or use less (fewer data workers, smaller batches)",
    "killed": "find out who kills it (`dmesg`, the scheduler's log)",
    "crash": "look at the stacks in `ckptkit report`, and at the versions of the libraries",
    "hang": "look at the stacks that were stored with the events",
}
