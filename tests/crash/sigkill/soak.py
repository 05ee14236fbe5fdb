"""Thousands of lives that are killed with SIGKILL at moments drawn from a seed, each going on from the one before.

    python -m crash.sigkill.soak --kills 3000 --folder /disk/soak             (from tests/)
    python -m crash.sigkill.soak --kills 500 --folder /disk/soak --bucket

Each job has a size, a K, a retention, frozen weights or none, a mirror or none, all drawn; each life the ways of
saving, its length and its end: after so many storage calls, after so many system calls, or after so many milliseconds.
Some lives are stopped, another one lives, and the stopped one goes on. Some jobs with a mirror lose their disk.

Guarantees: what a life says goes through a pipe, which outlives it. After each life it holds that what was reported as
committed, or something newer, is what the next start takes, to the bit, by an uninterrupted run; that nothing was
refused but a life that another one took over; and at the end of each job that every checkpoint there is can be
restored and that nothing else lies there. The first thing that does not hold ends the program, with the job's seed,
and its folder stays. Lives are forked, so nothing here may start a thread.
"""

from __future__ import annotations

import argparse
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
from ckptkit.run.index import Index, Lineage
from ckptkit.storage.system_calls import SystemCalls
from ckptkit.testing.faults import DIVISIBLE, EVERY, Fault, FaultyStorage
from ckptkit.testing.state import NumpyRun

Say = Callable[..., None]
_PATIENCE_SECONDS = 120.0  # for a life that should end by itself: it hangs
_CHANGES = ("open_new", "pwrite", "truncate", "fsync", "link", "replace", "unlink", "mkdir", "rmdir")


@dataclass(frozen=True)
class Job:
    """What all lives of one run have in common."""

    cycle: int
    size: int
    keep: int
    frozen: bool
    mirror: bool
    lives: int

    @classmethod
    def drawn(cls, rng: random.Random) -> Job:
        return cls(
            cycle=rng.choice([1, 2, 3, 4, 7]),
            size=rng.choice([1, 5, 300, 5_000, 60_000]),
            keep=rng.randint(1, 4),
            frozen=rng.random() < 0.7,
            mirror=rng.random() < 0.4,
            lives=rng.choice([10, 30, 60]),
        )

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
    when_busy: str = "wait"
    mid_cycle: str = "exact"
    window: str = "auto"
    way: str | None = None
    nth: int = 0
    part: str = "before"
    seconds: float | None = None

    @classmethod
    def drawn(cls, rng: random.Random, job: Job, *, local: bool) -> Life:
        """A life and its end."""
        life = cls(
            steps=rng.randint(1, 12 * job.cycle),
            every=rng.randint(1, 2 * job.cycle + 1),
            when_busy=rng.choice(["wait", "wait", "skip"]),
            mid_cycle=rng.choice(["exact", "exact", "align", "rewind"]),
            window=rng.choice(["auto", "slice", "off"]),
        )
        way = rng.choice(["storage call", "system call", "time"] if local else ["storage call", "time", "time"])
        part = rng.choice(_PARTS)
        if way == "time":
            return replace(life, way=way, seconds=rng.uniform(0, 0.065 if local else 0.65))
        mean = 4.3 if way == "system call" else 2.0 if part == "during" else 3.6  # of few calls there is a "during"
        return replace(life, way=way, nth=int(rng.lognormvariate(mean, 0.9)) + 1, part=part)


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
    if life.way == "system call":
        die_at_system_call(life.nth, life.part)
    storage = FaultyStorage(places[0].storage())
    if life.way == "storage call":
        kinds = DIVISIBLE if life.part == "during" else EVERY
        storage.inject(Fault(die, operations=kinds, nth=life.nth, when=life.part))
    run = job.new_run()
    manager = ck.CheckpointManager(
        storage,
        mirror=places[1].storage() if job.mirror else None,
        save=ck.SaveEvery(micro_steps=life.every),
        keep=ck.KeepLatest(job.keep),
        saving=ck.Saving(
            when_busy=life.when_busy,
            mid_cycle=life.mid_cycle,
            window=life.window,
            on_save=lambda report: say("reported", name=report.checkpoint),
        ),
        preemption=ck.Preemption(then="off"),
    )
    manager.restore(run)
    attempt = manager.live().saver.next_name(run.progress()).attempt
    say("restored", attempt=attempt, batches=run.batches, digest=run.digest())
    for batches in run.train_until(run.batches + life.steps):
        manager.step(run)
        if batches % 5 == 0:
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


def follow(process: Process, seconds: float | None = None) -> None:
    """Read what the process says, for so long or to its end."""
    began = time.monotonic()
    with selectors.DefaultSelector() as selector:
        selector.register(process.pipe, selectors.EVENT_READ)
        while process.status is None:
            left = (seconds if seconds is not None else _PATIENCE_SECONDS) - (time.monotonic() - began)
            if left <= 0:
                if seconds is None:
                    raise BrokenError(f"a life hangs: {process.pid}")
                return
            if selector.select(left) and not process.read():
                os.close(process.pipe)
                _, process.status = os.waitpid(process.pid, 0)


def end(process: Process) -> None:
    """Follow the process to its end, which comes by itself or after its seconds."""
    if process.life.seconds is not None:
        follow(process, process.life.seconds)
        process.signal(signal.SIGKILL)
    follow(process)


class Soak:
    """Jobs, one after another, until enough of their lives were killed; ``endpoint`` is of an object store."""

    def __init__(self, folder: Path, endpoint: str | None) -> None:
        self._folder = folder
        self._store = Store(endpoint) if endpoint else None
        if self._store is not None:
            self._store.products  # noqa: B018 - made here and not in each life, before anything is sent
        self.counts: Counter[str] = Counter()

    def job(self, seed: int) -> None:
        """All lives of the job of ``seed``."""
        rng = random.Random(seed)
        job = Job.drawn(rng)
        here = self._folder / f"job-{seed}"
        shutil.rmtree(here, ignore_errors=True)
        here.mkdir(parents=True)
        local = LocalRoot(here / "local")
        far: Root = self._store.new() if self._store else LocalRoot(here / "far")
        places = [local, far] if job.mirror else [far if self._store else local]
        story = Story(job, places, here / "lives.log")
        try:
            for story.number in range(job.lives):
                self._one(story, rng)
            story.finish()
        except BaseException:
            print(f"job {seed}, life {story.number}: {job}\n{story.last}\nlog: {story.log}", flush=True)
            raise
        self.counts["jobs"] += 1
        for place in places:
            place.clear()
        shutil.rmtree(here)

    def _one(self, story: Story, rng: random.Random) -> None:
        local = isinstance(story.places[0], LocalRoot)
        together = [story.begin(Life.drawn(rng, story.job, local=local))]
        if rng.random() < 0.1:
            self.counts["stopped lives"] += 1
            follow(together[0], rng.uniform(0, 0.05 if local else 0.5))
            together[0].signal(signal.SIGSTOP)
            together.append(story.begin(Life.drawn(rng, story.job, local=local)))
            end(together[1])
            together[0].signal(signal.SIGCONT)
        end(together[0])
        for process in together:
            self.counts["lives"] += 1
            self.counts["killed"] += process.was_killed
            self.counts[f"killed by {process.life.way}"] += process.was_killed
            self.counts["restored"] += len(process.of("restored"))
            self.counts["reported"] += len(process.of("reported"))
        self.counts["overtaken"] += story.judge(together)
        if story.job.mirror and rng.random() < 0.05:
            self.counts["disks lost"] += 1
            story.lose_disk()


class Story:
    """What the lives of a job have promised so far, at its root and at its mirror, if it has one."""

    def __init__(self, job: Job, places: list[Root], log: Path) -> None:
        self.job = job
        self.places = places
        self.log = log
        self.number = 0
        self.last = ""
        self._truth = Uninterrupted(job)
        self._reported_at = 0
        self._uploaded_at = 0

    def begin(self, life: Life) -> Process:
        return started(self.job, life, self.places, self.log)

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

    def finish(self) -> None:
        """Two lives that nobody kills, and what lies there then."""
        for _ in range(2):
            process = self.begin(Life(steps=6 * self.job.cycle, every=1))
            end(process)
            self.judge([process])
            if not process.of("ended"):
                raise BrokenError("the last life did not end well")
        for place in self.places:
            self._look_at(place)

    def _look_at(self, place: Root) -> None:
        tree = place.tree()
        state = folders(tree)
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
        most = max(2, self.job.keep) + self.job.mirror  # what is being uploaded is spared
        lineage = Lineage(index, max(index.attempts)).whole()
        off_lineage = sum(CheckpointName.parse(name) not in lineage for name in state.committed)
        if len(state.committed) - most > off_lineage:
            raise BrokenError(f"{len(state.committed)} checkpoints are kept at {place.url}, {most} are wanted")
        documents = sum(key.startswith("attempts/") for key in tree)
        if documents > self.job.lives + 12:
            raise BrokenError(f"{documents} documents at {place.url}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m crash.sigkill.soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1, help="of the first job; the next ones count from it")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--bucket", action="store_true", help="in moto, instead of the disk")
    options = parser.parse_args()
    logging.getLogger("ckptkit").setLevel(logging.WARNING)
    with MotoServer() if options.bucket else nullcontext() as server:
        soak = Soak(options.folder, server.endpoint if server is not None else None)
        began = time.monotonic()
        for number in itertools.count(options.seed):
            if soak.counts["killed"] >= options.kills:
                break
            soak.job(number)
            print(f"{time.monotonic() - began:7.0f} s, job {number}: {dict(soak.counts)}", flush=True)
    json.dump(soak.counts, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
