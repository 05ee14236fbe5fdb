"""Thousands of lives that are killed with SIGKILL at moments drawn from a seed, each going on from the one before.

    python -m crash.sigkill.soak --kills 3000 --folder /disk/soak             (from tests/)
    python -m crash.sigkill.soak --kills 500 --folder /disk/soak --bucket

Each job has a size, a K, a retention, frozen weights or none, a mirror or none, all drawn; each life the ways of
saving, its length and its end: after so many storage calls, after so many system calls, or after so many milliseconds.
Some lives are stopped, another one starts, and the stopped one goes on. Some jobs with a mirror lose their disk.

Guarantees: what a life says goes through a pipe, which outlives it. After each life it holds that what was reported as
committed, or something newer, is what the next start takes, to the bit, by an uninterrupted run; that nothing was
refused but a life that another one took over; and at the end of each job that every checkpoint there is can be
restored and that nothing else lies there. The first thing that does not hold ends the program, with the job's seed,
and its folder stays. Lives are forked, so nothing here may start a thread.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import logging
import os
import random
import re
import selectors
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from support.runs.roots import LocalRoot, Root, Store
from support.runs.scenario import folders
from support.servers.moto_server import MotoServer

import ckptkit as ck
from ckptkit.checkpoint.open import open_checkpoint
from ckptkit.checkpoint.read import load
from ckptkit.core.contents import Capture
from ckptkit.errors import StaleAttemptError
from ckptkit.format.layout import CheckpointName
from ckptkit.run.index import Index
from ckptkit.storage.system_calls import SystemCalls
from ckptkit.testing.faults import DIVISIBLE, EVERY, Fault, FaultyStorage
from ckptkit.testing.state import NumpyRun

Say = Callable[..., None]
_PATIENCE_SECONDS = 120.0  # for a life that should end by itself: it hangs
_CHANGES = ("open_new", "pwrite", "truncate", "fsync", "link", "replace", "unlink", "mkdir", "rmdir")


@dataclass(frozen=True)
class Job:
    """What all lives of one run have in common."""

    seed: int
    cycle: int
    size: int
    keep: int
    best: bool
    frozen: bool
    mirror: bool
    lives: int

    @classmethod
    def drawn(cls, seed: int) -> Job:
        """The job of ``seed``."""
        rng = random.Random(seed)
        return cls(
            seed=seed,
            cycle=rng.choice([1, 2, 3, 4, 7]),
            size=rng.choice([1, 5, 300, 5_000, 60_000]),
            keep=rng.randint(1, 4),
            best=rng.random() < 0.2,
            frozen=rng.random() < 0.7,
            mirror=rng.random() < 0.4,
            lives=rng.choice([10, 30, 60]),
        )

    def keeps(self) -> ck.KeepPolicy:
        """Its retention."""
        return ck.KeepLatest(self.keep) | ck.KeepBest(1, "loss", "min") if self.best else ck.KeepLatest(self.keep)

    def new_run(self) -> Run:
        """What each life begins with."""
        return Run(self)


class Run(NumpyRun):
    """A `NumpyRun` whose embedding may be no frozen leaf."""

    def __init__(self, job: Job) -> None:
        super().__init__(accumulation_steps=job.cycle, size=job.size)
        self._is_frozen = job.frozen
        self._specs: dict[str, Any] = {}

    def _captured(self, *given: Any) -> Capture:
        capture = super()._captured(*given)
        if self._is_frozen:
            return capture
        return replace(
            capture,
            leaves=tuple(
                leaf._replace(spec=replace(leaf.spec, lifetime="cycle")) if leaf.spec.lifetime == "frozen" else leaf
                for leaf in capture.leaves
            ),
        )


class Uninterrupted:
    """Digests of a run that nobody ever kills, by micro-step."""

    def __init__(self, job: Job) -> None:
        self._run = job.new_run()
        self._digests = {0: self._run.digest()}

    def digest_at(self, batches: int) -> str:
        """After so many micro-steps."""
        for at in self._run.train_until(batches):
            self._digests[at] = self._run.digest()
        return self._digests[batches]


@dataclass(frozen=True)
class Life:
    """One process: what it does, and when it is killed; a life without a moment ends by itself."""

    steps: int
    every: int
    when_busy: str
    mid_cycle: str
    window: str
    buffer_bytes: int | None
    events: bool
    waits: int
    calls: int | None = None
    call_part: str = "before"
    system_calls: int | None = None
    system_part: str = "before"
    seconds: float | None = None
    stop: tuple[float, float] | None = None

    @classmethod
    def drawn(cls, rng: random.Random, job: Job, *, local: bool, typical_seconds: float, dies: bool = True) -> Life:
        """A life and its end; ``typical_seconds`` is how long such a life would last."""
        life = cls(
            steps=rng.randint(1, 12 * job.cycle),
            every=rng.randint(1, 2 * job.cycle + 1),
            when_busy=rng.choice(["wait", "wait", "skip"]),
            mid_cycle=rng.choice(["exact", "exact", "align", "rewind"]),
            window=rng.choice(["auto", "slice", "off"]),
            buffer_bytes=rng.choice([None, None, 64, 100_000]),
            events=rng.random() < 0.7,
            waits=rng.choice([0, 0, 3, 10]),
        )
        if not dies:
            return life
        how = rng.choice(["call", "system", "time"] if local else ["call", "time", "time"])
        if how == "call":
            part = rng.choice(_PARTS)  # of few calls there is a "during"
            return replace(
                life, calls=int(rng.lognormvariate(2.0 if part == "during" else 3.6, 0.9)) + 1, call_part=part
            )
        if how == "system":
            return replace(life, system_calls=int(rng.lognormvariate(4.3, 1.0)) + 1, system_part=rng.choice(_PARTS))
        return replace(life, seconds=rng.uniform(0, 1.3 * typical_seconds))


_PARTS = ["before", "during", "after"]


def die() -> None:
    """As by somebody else's hand: no handler, no cleaning up."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_at_system_call(nth: int, part: str) -> None:
    """Of this process, kill the ``nth`` call that changes a disk: before it, after it, or a write in its middle."""
    count = itertools.count(1)

    def dying(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: SystemCalls, *given: Any) -> Any:
            is_it = next(count) == nth
            if is_it and part == "before":
                die()
            if is_it and part == "during" and original.__name__ == "pwrite" and len(given[1]) > 1:
                original(self, given[0], given[1][: len(given[1]) // 2], *given[2:])
                die()
            answer = original(self, *given)
            if is_it:
                die()
            return answer

        return call

    for name in _CHANGES:
        setattr(SystemCalls, name, dying(getattr(SystemCalls, name)))


def live(job: Job, life: Life, places: Sequence[Root], say: Say) -> None:
    """What the process does."""
    if life.system_calls is not None:
        die_at_system_call(life.system_calls, life.system_part)
    storage = FaultyStorage(places[0].storage())
    if life.calls is not None:
        kinds = DIVISIBLE if life.call_part == "during" else EVERY
        storage.inject(Fault(die, operations=kinds, nth=life.calls, when=life.call_part))
    run = job.new_run()
    manager = ck.CheckpointManager(
        storage,
        mirror=places[1].storage() if job.mirror else None,
        save=ck.SaveEvery(micro_steps=life.every),
        keep=job.keeps(),
        saving=ck.Saving(
            when_busy=life.when_busy,
            mid_cycle=life.mid_cycle,
            window=life.window,
            buffer_bytes=life.buffer_bytes,
            events=life.events,
            on_save=lambda report: say("reported", name=report.checkpoint),
        ),
        preemption=ck.Preemption(then="off"),
    )
    manager.restore(run)
    attempt = manager.live().saver.next_name(run.progress()).attempt
    say("restored", attempt=attempt, batches=run.batches, digest=run.digest())
    for batches in run.train_until(run.batches + life.steps):
        manager.step(run, {"loss": 1 / batches})
        if life.waits and batches % life.waits == 0:
            manager.wait()
            _say_uploaded(manager, say)
    say("reported", name=manager.save_final(run))
    manager.close()
    _say_uploaded(manager, say)
    say("ended")


def _say_uploaded(manager: ck.CheckpointManager, say: Say) -> None:
    if manager.mirror_lag == 0:
        say("uploaded")


class BrokenError(AssertionError):
    """A promise that was not kept."""


@dataclass
class Process:
    """A life under way, seen from outside.

    Attributes:
        said: What came through its pipe.
    """

    life: Life
    pid: int
    pipe: int
    said: list[dict[str, Any]] = field(default_factory=list)
    status: int | None = None
    _rest: bytes = b""

    def read(self) -> bool:
        """Take what is in the pipe; False at its end."""
        data = os.read(self.pipe, 1 << 16)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.said += [json.loads(line) for line in lines]
        return bool(data)

    def signal(self, number: signal.Signals) -> None:
        """Send it, unless the process is over."""
        if self.status is None:
            os.kill(self.pid, number)

    def of(self, what: str) -> list[dict[str, Any]]:
        """What it said of one kind."""
        return [one for one in self.said if one["what"] == what]

    @property
    def was_killed(self) -> bool:
        return self.status is not None and os.WIFSIGNALED(self.status) and os.WTERMSIG(self.status) == signal.SIGKILL


def started(job: Job, life: Life, places: Sequence[Root], log: Path) -> Process:
    """Fork a life."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return Process(life, pid, reading)
    os.close(reading)

    def say(what: str, **more: Any) -> None:
        os.write(writing, json.dumps({"what": what, **more}).encode() + b"\n")

    code = 1
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 2)
        live(job, life, places, say)
        code = 0
    except BaseException as error:  # noqa: BLE001 - the parent judges it
        say("failed", error=type(error).__name__, text=traceback.format_exc()[-3000:])
    finally:
        os._exit(code)


def run_together(processes: list[Process], actions: list[tuple[float, Callable[[], None]]]) -> None:
    """Follow processes to their ends, and act at given seconds from now."""
    began = time.monotonic()
    order = itertools.count()
    waiting = [(began + at, next(order), act) for at, act in actions]
    heapq.heapify(waiting)
    with selectors.DefaultSelector() as selector:
        for process in processes:
            selector.register(process.pipe, selectors.EVENT_READ, process)
        while selector.get_map():
            now = time.monotonic()
            if waiting and waiting[0][0] <= now:
                heapq.heappop(waiting)[2]()
                continue
            if now - began > _PATIENCE_SECONDS:
                raise BrokenError(f"a life hangs: {[process.pid for process in processes if process.status is None]}")
            for key, _ in selector.select(min(1.0, waiting[0][0] - now) if waiting else 1.0):
                process = key.data
                if not process.read():
                    selector.unregister(process.pipe)
                    os.close(process.pipe)
                    _, process.status = os.waitpid(process.pid, 0)


class Soak:
    """Jobs, one after another, until enough of their lives were killed.

    Args:
        folder: Below which they work.
        endpoint: Of an object store; None for the disk.
    """

    def __init__(self, folder: Path, endpoint: str | None) -> None:
        self._folder = folder
        self._store = Store(endpoint) if endpoint else None
        if self._store is not None:
            self._store.products  # noqa: B018 - made here and not in each life, before anything is sent
        self._typical_seconds = 0.05 if endpoint is None else 0.5
        self.counts: Counter[str] = Counter()

    def job(self, seed: int) -> None:
        """All lives of the job of ``seed``."""
        job = Job.drawn(seed)
        rng = random.Random(f"lives of {seed}")
        here = self._folder / f"job-{seed}"
        shutil.rmtree(here, ignore_errors=True)
        here.mkdir(parents=True)
        local = LocalRoot(here / "local")
        far: Root = self._store.new() if self._store else LocalRoot(here / "far")
        places = [local, far] if job.mirror else [far if self._store else local]
        story = Story(job, places, here / "lives.log")
        try:
            for number in range(job.lives):
                story.number = number
                self._one(story, rng)
            story.finish(rng)
        except BaseException:
            print(f"job {seed}, life {story.number}: {job}\n{story.last}\nlog: {story.log}", flush=True)
            raise
        self.counts["jobs"] += 1
        self.counts["events"] += story.events
        self.counts["most files beside events"] = max(self.counts["most files beside events"], story.files)
        for place in places:
            place.clear()
        shutil.rmtree(here)

    def _one(self, story: Story, rng: random.Random) -> None:
        job = story.job
        local = isinstance(story.places[0], LocalRoot)
        typical = self._typical_seconds
        first = Life.drawn(rng, job, local=local, typical_seconds=typical)
        together = [started(job, first, story.places, story.log)]
        actions = _killing(together[0])
        if rng.random() < 0.1:
            self.counts["stopped lives"] += 1
            second = Life.drawn(rng, job, local=local, typical_seconds=typical, dies=rng.random() < 0.5)
            stop, go_on = rng.uniform(0, typical), rng.uniform(0, 2 * typical)
            old = together[0]
            run_until(old, stop)
            old.signal(signal.SIGSTOP)
            together.append(started(job, second, story.places, story.log))
            actions = [(at + stop + go_on, act) for at, act in actions]
            actions += [(go_on, lambda: old.signal(signal.SIGCONT)), *_killing(together[1])]
        began = time.monotonic()
        run_together(together, actions)
        if first.seconds is None and len(together) == 1 and not together[0].was_killed:
            self._typical_seconds = 0.9 * typical + 0.1 * (time.monotonic() - began)
        for process in together:
            self.counts["lives"] += 1
            self.counts["killed"] += process.was_killed
            self.counts[f"killed by {_way(process.life)}"] += process.was_killed
            self.counts["restored"] += len(process.of("restored"))
            self.counts["reported"] += len(process.of("reported"))
        self.counts["overtaken"] += story.judge(together)
        if job.mirror and rng.random() < 0.05:
            self.counts["disks lost"] += 1
            story.lose_disk()


def run_until(process: Process, seconds: float) -> None:
    """Let the process go on for so long, or to its end."""
    with selectors.DefaultSelector() as selector:
        selector.register(process.pipe, selectors.EVENT_READ)
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and selector.select(left):
            if not process.read():
                return  # whoever follows it to its end reads the end again


def _killing(process: Process) -> list[tuple[float, Callable[[], None]]]:
    seconds = process.life.seconds
    return [] if seconds is None else [(seconds, lambda: process.signal(signal.SIGKILL))]


def _way(life: Life) -> str:
    if life.calls is not None:
        return "storage call"
    return "system call" if life.system_calls is not None else "time"


class Story:
    """What the lives of a job have promised so far.

    Args:
        job: The job.
        places: Its root, and its mirror if it has one.
        log: Where its lives write.
    """

    def __init__(self, job: Job, places: list[Root], log: Path) -> None:
        self.job = job
        self.places = places
        self.log = log
        self.number = 0
        self.events = 0
        self.files = 0
        self.last = ""
        self._truth = Uninterrupted(job)
        self._reported_at = 0
        self._uploaded_at = 0

    def batches_of(self, name: str) -> int:
        """The micro-steps that a checkpoint holds."""
        parsed = CheckpointName.parse(name)
        assert parsed is not None
        return parsed.cycles * self.job.cycle + parsed.micro_step

    def judge(self, together: list[Process]) -> int:
        """Compare what processes said with what was promised before and by each other; returns how many were fenced."""
        self.last = "\n".join(f"{one.life}\n{one.said[-4:]}\nstatus {one.status}" for one in together)
        overtaken = 0
        for process in together:
            for said in process.of("restored"):
                at = said["batches"]
                if at < self._reported_at:
                    raise BrokenError(f"a start took {at}, but {self._reported_at} was reported as committed")
                if said["digest"] != self._truth.digest_at(at):
                    raise BrokenError(f"what was restored at {at} is not what an uninterrupted run has there")
            failures = process.of("failed")
            if failures and not (failures[0]["error"] == StaleAttemptError.__name__ and len(together) > 1):
                raise BrokenError(f"refused: {failures[0]['text']}")
            overtaken += len(failures)
            if process.status and not process.was_killed and not failures:
                raise BrokenError(f"a life ended with status {process.status} and said nothing")
        if len(together) > 1:
            self._judge_two(*together)
        for process in together:
            self._take(process)
        return overtaken

    def _judge_two(self, *two: Process) -> None:
        """Whoever opened its attempt first is fenced: what it reported is what the other one began with, or older."""
        opened = [(process.of("restored")[0], process) for process in two if process.of("restored")]
        if len(opened) < 2:
            return
        (_, old), (began, _) = sorted(opened, key=lambda one: int(one[0]["attempt"]))
        for said in old.of("reported"):
            if self.batches_of(said["name"]) > began["batches"]:
                raise BrokenError(
                    f"the old life reported {said['name']}, and the new one had begun at {began['batches']}"
                )

    def _take(self, process: Process) -> None:
        for said in process.said:
            if said["what"] == "restored":
                self._reported_at = max(self._reported_at, said["batches"])
            if said["what"] == "reported":
                self._reported_at = max(self._reported_at, self.batches_of(said["name"]))
            if said["what"] == "uploaded":
                # Of all that this life had reported before, the newest is at the mirror.
                before = process.said[: process.said.index(said)]
                at = [one["batches"] for one in before if one["what"] == "restored"]
                at += [self.batches_of(one["name"]) for one in before if one["what"] == "reported"]
                self._uploaded_at = max(self._uploaded_at, *at)

    def lose_disk(self) -> None:
        """The local root is gone; what was uploaded is not."""
        if self.places[0].tree():
            self.places[0].clear()
        self._reported_at = self._uploaded_at

    def finish(self, rng: random.Random) -> None:
        """Two lives that nobody kills, and what lies there then."""
        for _ in range(2):
            life = Life.drawn(rng, self.job, local=True, typical_seconds=1, dies=False)
            process = started(self.job, replace(life, steps=6 * self.job.cycle, every=1), self.places, self.log)
            run_together([process], [])
            self.judge([process])
            if not process.of("ended"):
                raise BrokenError("the last life did not end well")
        for place in self.places:
            self._look_at(place)

    def _look_at(self, place: Root) -> None:
        tree = place.tree()
        state = folders(tree)
        kinds = Counter(key.split("/")[0] for key in tree)
        self.events = max(self.events, kinds.pop("events", 0))
        self.files = max(self.files, sum(kinds.values()))
        storage = place.storage()
        index = Index(storage)
        for name in state.committed:
            parsed = CheckpointName.parse(name)
            assert parsed is not None
            if index.is_foreign(parsed):
                continue
            run = self.job.new_run()
            run.apply(load(storage, open_checkpoint(storage, parsed, index.document(parsed.attempt))))
            if run.digest() != self._truth.digest_at(self.batches_of(name)):
                raise BrokenError(f"{name} at {place.url} is not what an uninterrupted run has there")
        living = {name[:7] for name in state.committed}
        wrong = [key for key in tree if re.search(r"\.tmp|/\.", key)]
        wrong += [f"uncommitted {name}" for name in state.uncommitted]
        # A sweep removes the voids of attempts below the second newest commit, when a life's uploads begin.
        second = sorted(state.committed)[-2:][0][:7] if state.committed else ""
        wrong += [f"void {name}" for name in state.void if name[:7] < second]
        wrong += [key for key in tree if key.startswith("frozen/") and key.split("/")[1] not in living]
        wrong += [f"unfinished upload {key}" for key in place.uploads()]
        if wrong:
            raise BrokenError(f"left at {place.url}: {wrong}")
        most = max(2, self.job.keep) + self.job.best + self.job.mirror  # what is being uploaded is spared
        on_top = len(state.committed) - most
        if on_top > 0 and on_top > self._off_lineage(index, state.committed):
            raise BrokenError(f"{len(state.committed)} checkpoints are kept at {place.url}, {most} are wanted")
        if kinds["attempts"] > self.job.lives + 12:
            raise BrokenError(f"{kinds['attempts']} documents at {place.url}")

    @staticmethod
    def _off_lineage(index: Index, committed: list[str]) -> int:
        from ckptkit.run.index import Lineage

        lineage = Lineage(index, max(index.attempts)).whole()
        return sum(CheckpointName.parse(name) not in lineage for name in committed)


def soak(folder: Path, *, kills: int, seed: int = 1, endpoint: str | None = None, quiet: bool = True) -> Counter[str]:
    """Run jobs until so many lives were killed; returns what was counted.

    Raises:
        BrokenError: If something does not hold.
    """
    logging.getLogger("ckptkit").setLevel(logging.WARNING)
    found = Soak(folder, endpoint)
    began = time.monotonic()
    for number in itertools.count(seed):
        if found.counts["killed"] >= kills:
            break
        found.job(number)
        if not quiet:
            print(f"{time.monotonic() - began:7.0f} s, job {number}: {dict(found.counts)}", flush=True)
    return found.counts


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m crash.sigkill.soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1, help="of the first job; the next ones count from it")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--bucket", action="store_true", help="in moto, instead of the disk")
    options = parser.parse_args()
    with MotoServer() if options.bucket else nullcontext() as server:
        endpoint = server.endpoint if server is not None else None
        counts = soak(options.folder, kills=options.kills, seed=options.seed, endpoint=endpoint, quiet=False)
    json.dump(counts, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
