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
from collections.abc import Callable
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

_PATIENCE_SECONDS = 120.0  # for a life that should end by itself: it hangs
_CHANGES = ("open_new", "pwrite", "truncate", "fsync", "link", "replace", "unlink", "mkdir", "rmdir")


class BrokenError(AssertionError):
    """A promise that was not kept."""


class Run(NumpyRun):
    """A `NumpyRun` whose embedding may be no frozen leaf."""

    def __init__(self, job: Job) -> None:
        super().__init__(accumulation_steps=job.cycle, size=job.size)
        self._is_frozen = job.frozen

    def _captured(self, *given: Any) -> Capture:
        capture = super()._captured(*given)
        thawed = (leaf._replace(spec=replace(leaf.spec, lifetime="cycle")) for leaf in capture.leaves)
        each = zip(capture.leaves, thawed, strict=True)
        leaves = (thaw if leaf.spec.lifetime == "frozen" else leaf for leaf, thaw in each)
        return capture if self._is_frozen else replace(capture, leaves=tuple(leaves))


class Job:
    """What all lives of one run have in common, and what an uninterrupted one has at each micro-step."""

    def __init__(self, rng: random.Random) -> None:
        self.cycle = rng.choice([1, 2, 3, 4, 7])
        self.size = rng.choice([1, 5, 300, 5_000, 60_000])
        self.keep = rng.randint(1, 4)
        self.frozen = rng.random() < 0.7
        self.mirror = rng.random() < 0.4
        self.lives = rng.choice([10, 30, 60])
        self._truth = Run(self)
        self._digests = {0: self._truth.digest()}

    def digest_at(self, batches: int) -> str:
        for at in self._truth.train_until(batches):
            self._digests[at] = self._truth.digest()
        return self._digests[batches]

    def batches_of(self, name: str) -> int:
        parsed = CheckpointName.parse(name)
        return parsed.cycles * self.cycle + parsed.micro_step


@dataclass(frozen=True)
class Life:
    """One process: what it does, and when it is killed; a life without a way ends by itself."""

    steps: int
    every: int
    saving: dict[str, Any] = field(default_factory=dict)
    way: str | None = None
    nth: int = 0
    part: str = "before"
    seconds: float | None = None

    @classmethod
    def drawn(cls, rng: random.Random, job: Job, *, local: bool) -> Life:
        saving = {
            "when_busy": rng.choice(["wait", "wait", "skip"]),
            "mid_cycle": rng.choice(["exact", "exact", "align", "rewind"]),
            "window": rng.choice(["auto", "slice", "off"]),
        }
        life = cls(rng.randint(1, 12 * job.cycle), rng.randint(1, 2 * job.cycle + 1), saving)
        way = rng.choice(["storage call", "system call", "time"] if local else ["storage call", "time", "time"])
        part = rng.choice(["before", "during", "after"])
        if way == "time":
            return replace(life, way=way, seconds=rng.uniform(0, 0.065 if local else 0.65))
        mean = 4.3 if way == "system call" else 2.0 if part == "during" else 3.6  # of few calls there is a "during"
        return replace(life, way=way, nth=int(rng.lognormvariate(mean, 0.9)) + 1, part=part)


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


def live(job: Job, life: Life, places: list[Root], say: Callable[..., None]) -> None:
    """What the process does."""
    if life.way == "system call":
        die_at_system_call(life.nth, life.part)
    storage = FaultyStorage(places[0].storage())
    if life.way == "storage call":
        kinds = DIVISIBLE if life.part == "during" else EVERY
        storage.inject(Fault(die, operations=kinds, nth=life.nth, when=life.part))
    run = Run(job)
    manager = ck.CheckpointManager(
        storage,
        mirror=places[1].storage() if job.mirror else None,
        save=ck.SaveEvery(micro_steps=life.every),
        keep=ck.KeepLatest(job.keep),
        saving=ck.Saving(**life.saving, on_save=lambda report: say("reported", name=report.checkpoint)),
        preemption=ck.Preemption(then="off"),
    )
    manager.restore(run)
    attempt = manager.live().saver.next_name(run.progress()).attempt
    say("restored", attempt=attempt, batches=run.batches, digest=run.digest())
    for batches in run.train_until(run.batches + life.steps):
        manager.step(run)
        if batches % 5 == 0:
            manager.wait()
            if manager.mirror_lag == 0:
                say("uploaded")
    say("reported", name=manager.save_final(run))
    manager.close()
    if manager.mirror_lag == 0:
        say("uploaded")
    say("ended")


class Process:
    """A life that was forked, seen from outside; ``said`` came through its pipe."""

    def __init__(self, job: Job, life: Life, places: list[Root], log: Path) -> None:
        self.life = life
        self.said: list[dict[str, Any]] = []
        self.status: int | None = None
        self._rest = b""
        self._pipe, writing = os.pipe()
        self._pid = os.fork()
        if self._pid:
            os.close(writing)
            return
        os.close(self._pipe)

        def say(what: str, **more: Any) -> None:
            os.write(writing, json.dumps({"what": what, **more}).encode() + b"\n")

        code = 1
        try:
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
            live(job, life, places, say)
            code = 0
        except BaseException as error:  # noqa: BLE001 - the parent judges it
            say("failed", error=type(error).__name__, text=traceback.format_exc()[-3000:])
        finally:
            os._exit(code)

    def follow(self, seconds: float | None = None) -> None:
        """Read what it says, for so long or to its end."""
        if self.status is not None:  # its pipe is closed, and the number may belong to another file
            return
        began = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(self._pipe, selectors.EVENT_READ)
            while self.status is None:
                left = (_PATIENCE_SECONDS if seconds is None else seconds) - (time.monotonic() - began)
                if left <= 0:
                    if seconds is None:
                        raise BrokenError(f"a life hangs: {self._pid}")
                    return
                if selector.select(left):
                    data = os.read(self._pipe, 1 << 16)
                    *lines, self._rest = (self._rest + data).split(b"\n")
                    self.said += [json.loads(line) for line in lines]
                    if not data:
                        os.close(self._pipe)
                        _, self.status = os.waitpid(self._pid, 0)

    def end(self) -> None:
        """Follow it to its end, which comes by itself or after its seconds."""
        if self.life.seconds is not None:
            self.follow(self.life.seconds)
            self.signal(signal.SIGKILL)
        self.follow()

    def signal(self, number: signal.Signals) -> None:
        if self.status is None:
            os.kill(self._pid, number)

    def of(self, what: str) -> list[dict[str, Any]]:
        return [one for one in self.said if one["what"] == what]

    @property
    def was_killed(self) -> bool:
        return self.status is not None and os.WIFSIGNALED(self.status) and os.WTERMSIG(self.status) == signal.SIGKILL


class Story:
    """The lives of a job, and what they have promised so far."""

    def __init__(self, rng: random.Random, here: Path, store: Store | None, counts: Counter[str]) -> None:
        self.job = Job(rng)
        self.log = here / "lives.log"
        self.last = ""
        far: Root = store.new() if store else LocalRoot(here / "far")
        local = LocalRoot(here / "local")
        self.places = [local, far] if self.job.mirror else [far if store else local]
        self._rng = rng
        self._counts = counts
        self._is_local = isinstance(self.places[0], LocalRoot)
        self._reported_at = 0
        self._uploaded_at = 0

    def _begin(self, life: Life | None = None) -> Process:
        life = life or Life.drawn(self._rng, self.job, local=self._is_local)
        return Process(self.job, life, self.places, self.log)

    def live(self) -> None:
        """A life, or two of which the first one is stopped while the second one lives."""
        together = [self._begin()]
        if self._rng.random() < 0.1:
            self._counts["stopped lives"] += 1
            together[0].follow(self._rng.uniform(0, 0.05 if self._is_local else 0.5))
            together[0].signal(signal.SIGSTOP)
            together.append(self._begin())
            together[1].end()
            together[0].signal(signal.SIGCONT)
        together[0].end()
        for process in together:
            self._counts["lives"] += 1
            self._counts["killed"] += process.was_killed
            self._counts[f"killed by {process.life.way}"] += process.was_killed
            for what in ("restored", "reported"):
                self._counts[what] += len(process.of(what))
        self._judge(together)
        if self.job.mirror and self._rng.random() < 0.05:
            self._counts["disks lost"] += 1
            if self.places[0].tree():
                self.places[0].clear()
            self._reported_at = self._uploaded_at

    def _judge(self, together: list[Process]) -> None:
        """Compare what processes said with what was promised before and by each other."""
        self.last = "\n".join(f"{one.life}\n{one.said[-4:]}\nstatus {one.status}" for one in together)
        for process in together:
            for said in process.of("restored"):
                at = said["batches"]
                if at < self._reported_at:
                    raise BrokenError(f"a start took {at}, but {self._reported_at} was reported as committed")
                if said["digest"] != self.job.digest_at(at):
                    raise BrokenError(f"what was restored at {at} is not what an uninterrupted run has there")
            failures = process.of("failed")
            if failures and not (failures[0]["error"] == StaleAttemptError.__name__ and len(together) > 1):
                raise BrokenError(f"refused: {failures[0]['text']}")
            self._counts["overtaken"] += len(failures)
            if process.status and not process.was_killed and not failures:
                raise BrokenError(f"a life ended with status {process.status} and said nothing")
        opened = [(process.of("restored")[0], process) for process in together if process.of("restored")]
        if len(opened) == 2:
            # Whoever opened its attempt first is fenced: what it reported is what the other one began with, or older.
            (_, old), (began, _) = sorted(opened, key=lambda one: int(one[0]["attempt"]))
            late = [one["name"] for one in old.of("reported") if self.job.batches_of(one["name"]) > began["batches"]]
            if late:
                raise BrokenError(f"the old life reported {late}, and the new one had begun at {began['batches']}")
        for process in together:
            self._take(process)

    def _take(self, process: Process) -> None:
        own = 0
        for said in process.said:
            if said["what"] == "restored":
                own = max(own, said["batches"])
            elif said["what"] == "reported":
                own = max(own, self.job.batches_of(said["name"]))
            elif said["what"] == "uploaded":  # of all that this life had reported, the newest is at the mirror
                self._uploaded_at = max(self._uploaded_at, own)
            self._reported_at = max(self._reported_at, own)

    def finish(self) -> None:
        """Two lives that nobody kills, and what lies there then."""
        for _ in range(2):
            process = self._begin(Life(steps=6 * self.job.cycle, every=1))
            process.end()
            self._judge([process])
            if not process.of("ended"):
                raise BrokenError("the last life did not end well")
        for place in self.places:
            self._look_at(place)
            place.clear()

    def _look_at(self, place: Root) -> None:
        tree = place.tree()
        state = folders(tree)
        storage = place.storage()
        index = Index(storage)
        for name in state.committed:
            parsed = CheckpointName.parse(name)
            if index.is_foreign(parsed):
                continue
            run = Run(self.job)
            run.apply(load(storage, open_checkpoint(storage, parsed, index.document(parsed.attempt))))
            if run.digest() != self.job.digest_at(self.job.batches_of(name)):
                raise BrokenError(f"{name} at {place.url} is not what an uninterrupted run has there")
        living = {name[:7] for name in state.committed}
        wrong = [key for key in tree if re.search(r"\.tmp|/\.", key)]
        wrong += [f"uncommitted {name}" for name in state.uncommitted]
        # A sweep removes the voids of attempts below the second newest commit, when a life's uploads begin.
        second = sorted(state.committed)[-2:][0][:7] if state.committed else ""
        wrong += [f"void {name}" for name in state.void if name[:7] < second]
        wrong += [key for key in tree if key.startswith("frozen/") and key.split("/")[1] not in living]
        wrong += [f"unfinished upload {key}" for key in place.uploads()]
        lineage = Lineage(index, max(index.attempts)).whole()
        most = max(2, self.job.keep) + self.job.mirror  # what is being uploaded is spared
        if len(state.committed) - most > sum(CheckpointName.parse(name) not in lineage for name in state.committed):
            wrong.append(f"{len(state.committed)} checkpoints, where {most} are wanted")
        if sum(key.startswith("attempts/") for key in tree) > self.job.lives + 12:
            wrong.append("too many documents")
        if wrong:
            raise BrokenError(f"left at {place.url}: {wrong}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m crash.sigkill.soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1, help="of the first job; the next ones count from it")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--bucket", action="store_true", help="in moto, instead of the disk")
    options = parser.parse_args()
    logging.getLogger("ckptkit").setLevel(logging.WARNING)
    counts: Counter[str] = Counter()
    with MotoServer() if options.bucket else nullcontext() as server:
        store = Store(server.endpoint) if server is not None else None
        if store is not None:
            store.products  # noqa: B018 - made here and not in each life, before anything is sent
        for seed in itertools.count(options.seed):
            if counts["killed"] >= options.kills:
                break
            here = options.folder / f"job-{seed}"
            shutil.rmtree(here, ignore_errors=True)
            here.mkdir(parents=True)
            story = Story(random.Random(seed), here, store, counts)
            try:
                for _ in range(story.job.lives):
                    story.live()
                story.finish()
            except BaseException:
                print(f"job {seed}: {vars(story.job)}\n{story.last}\nlog: {story.log}", flush=True)
                raise
            counts["jobs"] += 1
            shutil.rmtree(here)
            print(f"job {seed}: {dict(counts)}", flush=True)
    json.dump(counts, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
