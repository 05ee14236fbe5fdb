"""Lives that are killed with SIGKILL at moments drawn from a seed, each going on from the one before.

    python -m crash.sigkill.soak --kills 3000 --folder /disk/soak             (from tests/)

Each job draws K, a size, a retention, and a mirror or none; each life how it saves, its length and its end.

After each life it holds that what was reported as committed, or something newer, is what the next start takes, to the
bit, by an uninterrupted run, and that nothing was refused; at the end of a job, that every checkpoint can be restored
and that nothing else is left. The first thing that does not hold ends the program
with the job's seed, and its folder stays. Lives are forked, so nothing here may start a thread.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import random
import re
import shutil
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.runs.roots import LocalRoot
from support.runs.scenario import folders

import ckptkit as ck
from ckptkit.checkpoint.open import open_checkpoint
from ckptkit.checkpoint.read import load
from ckptkit.format.layout import CheckpointName
from ckptkit.run.index import Index, Lineage
from ckptkit.testing.faults import DIVISIBLE, EVERY, Fault, FaultyStorage
from ckptkit.testing.state import NumpyRun

_LONGEST_SECONDS = 120.0  # a life that lasts longer hangs


class Job:
    """What all lives of one run have in common, and what an uninterrupted one has at each micro-step."""

    def __init__(self, rng: random.Random, here: Path) -> None:
        self.cycle = rng.choice([1, 2, 3, 4, 7])
        self.size = rng.choice([1, 5, 300, 5_000, 60_000])
        self.keep = rng.randint(1, 4)
        self.has_mirror = rng.random() < 0.4
        self.lives = rng.choice([10, 30, 60])
        self.log = here / "lives.log"
        self.roots = [LocalRoot(here / name) for name in ("local", "far")[: 1 + self.has_mirror]]
        self._truth = self.new_run()
        self._digests = {0: self._truth.digest()}

    def new_run(self) -> NumpyRun:
        return NumpyRun(accumulation_steps=self.cycle, size=self.size)

    def digest_at(self, batches: int) -> str:
        for at in self._truth.train_until(batches):
            self._digests[at] = self._truth.digest()
        return self._digests[batches]

    def batches_of(self, name: str) -> int:
        parsed = CheckpointName.parse(name)
        return parsed.cycles * self.cycle + parsed.micro_step


@dataclass(frozen=True)
class Life:
    """One process: what it does, and where it is killed."""

    steps: int
    every: int
    saving: dict[str, Any] = field(default_factory=dict)
    way: str = "end"
    nth: int = 0
    part: str = "before"
    seconds: float = _LONGEST_SECONDS

    @classmethod
    def drawn(cls, rng: random.Random, job: Job) -> Life:
        options = {
            "when_busy": ["wait", "wait", "skip"],
            "mid_cycle": ["exact", "exact", "align", "rewind"],
            "window": ["auto", "slice", "off"],
        }
        saving = {name: rng.choice(values) for name, values in options.items()}
        way = rng.choice(["storage call", "time"])
        part = rng.choice(["before", "during", "after"])
        mean = 2.0 if part == "during" else 3.6  # of few calls there is a "during"
        seconds = rng.uniform(0.001, 0.065) if way == "time" else _LONGEST_SECONDS
        steps, every = rng.randint(1, 12 * job.cycle), rng.randint(1, 2 * job.cycle + 1)
        return cls(steps, every, saving, way, int(rng.lognormvariate(mean, 0.9)) + 1, part, seconds)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def live(job: Job, life: Life, say: Callable[..., None]) -> None:
    """What the process does."""
    storage = FaultyStorage(job.roots[0].storage())
    if life.way == "storage call":
        kinds = DIVISIBLE if life.part == "during" else EVERY
        storage.inject(Fault(die, operations=kinds, nth=life.nth, when=life.part))
    run = job.new_run()
    manager = ck.CheckpointManager(
        storage,
        mirror=job.roots[1].storage() if job.has_mirror else None,
        save=ck.SaveEvery(micro_steps=life.every),
        keep=ck.KeepLatest(job.keep),
        saving=ck.Saving(**life.saving, on_save=lambda report: say("reported", name=report.checkpoint)),
        preemption=ck.Preemption(then="off"),
    )
    manager.restore(run)
    say("restored", batches=run.batches, digest=run.digest())
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


def lived(job: Job, life: Life) -> list[dict[str, Any]]:
    """What a life said in its process, and last how that ended; a pipe outlives the process."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:

        def say(what: str, **more: Any) -> None:
            os.write(writing, json.dumps({"what": what, **more}).encode() + b"\n")

        try:
            os.close(reading)
            signal.setitimer(signal.ITIMER_REAL, life.seconds)  # SIGALRM ends it as SIGKILL does: nobody handles it
            os.dup2(os.open(job.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
            live(job, life, say)
        except BaseException:  # noqa: BLE001 - the parent judges it
            say("failed", text=traceback.format_exc()[-3000:])
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = [json.loads(line) for line in pipe]
    _, status = os.waitpid(pid, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGKILL, signal.SIGALRM)
    return [*said, {"what": "killed" if killed and life.way != "end" else "exited", "way": life.way}]


class Story:
    """The lives of a job, and what they have promised so far."""

    def __init__(self, job: Job, rng: random.Random, counts: Counter[str]) -> None:
        self.job, self._rng, self._counts = job, rng, counts
        self.last: list[object] = []
        self._reported_at = self._uploaded_at = 0

    def live(self) -> None:
        life = Life.drawn(self._rng, self.job)
        self._counts["lives"] += 1
        self.judge(life)
        if self.job.has_mirror and self._rng.random() < 0.05 and folders(self.job.roots[1].tree()).committed:
            self._counts["disks lost"] += 1
            self.job.roots[0].clear()
            self._reported_at = self._uploaded_at

    def judge(self, life: Life) -> None:
        """Compare what a process says, in order, with what was promised before."""
        said = lived(self.job, life)
        self.last = [life, said[-6:]]
        newest = 0
        for line in said:
            what = line["what"]
            self._counts[what] += 1
            if what == "restored":
                newest = line["batches"]
                assert newest >= self._reported_at, f"{newest} restored, {self._reported_at} was reported"
                assert line["digest"] == self.job.digest_at(newest), f"what was restored at {newest} is different"
            elif what == "reported":
                newest = max(newest, self.job.batches_of(line["name"]))
            elif what == "uploaded":  # of all that this life had reported, the newest is at the mirror
                self._uploaded_at = max(self._uploaded_at, newest)
            assert what != "failed", f"refused: {line['text']}"
            self._reported_at = max(self._reported_at, newest)
        kinds = {line["what"] for line in said}
        assert kinds & {"killed", "ended"}, "it ended and said nothing, or hangs"

    def finish(self) -> None:
        """Two lives that nobody kills, and what lies there then."""
        for _ in range(2):
            self.judge(Life(steps=6 * self.job.cycle, every=1))
        for root in self.job.roots:
            assert (wrong := self.left_at(root)) == [], f"left at {root.url}: {wrong}"
            root.clear()

    def left_at(self, root: LocalRoot) -> list[str]:
        tree, storage = root.tree(), root.storage()
        state, index = folders(tree), Index(storage)
        own = [name for name in map(CheckpointName.parse, state.committed) if not index.is_foreign(name)]
        for name in own:
            run = self.job.new_run()
            run.apply(load(storage, open_checkpoint(storage, name, index.document(name.attempt))))
            assert run.digest() == self.job.digest_at(self.job.batches_of(str(name))), f"{name} at {root.url} differs"
        living = {name[:7] for name in state.committed}
        wrong = [key for key in tree if re.search(r"\.tmp|/\.", key)]
        wrong += [f"uncommitted {name}" for name in state.uncommitted]
        # A sweep removes the voids of attempts below the second newest commit, when a life's uploads begin.
        second = sorted(state.committed)[-2:][0][:7] if state.committed else ""
        wrong += [f"void {name}" for name in state.void if name[:7] < second]
        wrong += [key for key in tree if key.startswith("frozen/") and key.split("/")[1] not in living]
        lineage = Lineage(index, max(index.attempts)).whole()
        on_line = sum(CheckpointName.parse(name) in lineage for name in state.committed)
        if on_line > max(2, self.job.keep) + self.job.has_mirror:  # what is being uploaded is spared
            wrong.append(f"{on_line} checkpoints of {self.job.keep} that are wanted")
        if sum(key.startswith("attempts/") for key in tree) > self.job.lives + 12:
            wrong.append("too many documents")
        return wrong


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m crash.sigkill.soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1, help="of the first job; the next ones count from it")
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    logging.getLogger("ckptkit").setLevel(logging.WARNING)
    counts: Counter[str] = Counter()
    for seed in itertools.count(options.seed):
        if counts["killed"] >= options.kills:
            break
        here = options.folder / f"job-{seed}"
        shutil.rmtree(here, ignore_errors=True)
        here.mkdir(parents=True)
        rng = random.Random(seed)
        story = Story(Job(rng, here), rng, counts)
        try:
            for _ in range(story.job.lives):
                story.live()
            story.finish()
        except BaseException:
            print(f"job {seed}: {vars(story.job)}\n{story.last}\nlog: {story.job.log}", flush=True)
            raise
        counts["jobs"] += 1
        shutil.rmtree(here)
        print(f"job {seed}: {dict(counts)}", flush=True)
    json.dump(counts, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
