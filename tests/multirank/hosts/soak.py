"""Random deaths of a NumPy training with all tiers, each life going on from the one before.

    python -m multirank.hosts.soak --deaths 100 --folder /disk/soak             (from tests/, as root)

A job has a host that trains into its memory, a neighbour, and a bucket to which an upload begins at most every two
seconds. Something may go wrong first, drawn from a seed: the neighbour is lost, its cable or that of the training is
cut, or the storage boots. Some micro-steps later the training dies by SIGKILL, with its host, or with both hosts.

Guarantees: after each death, the next life begins with what the last one said it had at the homes that were left, or
with something newer; so the micro-steps that are repeated are at most those since the last commit at the nearest of
them. Each micro-step of each life has the bits of an uninterrupted run. At the end of a job all homes have the last
checkpoint, bit for bit. The first thing that does not hold ends the program, with the job's seed; its folder stays.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from support.hosts.cluster import Cluster, Host
from support.hosts.faults import Fault, HostLost, LinkDown, StorageReboot
from support.hosts.running import Running, until

from ckptkit.checkpoint.open import open_checkpoint
from ckptkit.checkpoint.read import load
from ckptkit.format.layout import CheckpointName
from ckptkit.run.index import Index
from ckptkit.storage import open_storage
from multirank.hosts import soak_life
from multirank.hosts.homes import newest, opened
from multirank.hosts.soak_life import CYCLE, Life, new_run

DEATHS_OF_A_JOB = 10
LAST_STEPS = 5 * CYCLE
NEVER = 10**9
REFUSED = "set it aside"  # the newest checkpoint is only at a mirror that is away
Trouble = Literal["none", "neighbour lost", "neighbour cut", "host cut", "storage boots"]
End = Literal["killed", "host lost", "both lost"]
Home = Literal["memory", "neighbour", "bucket"]
HOMES: tuple[Home, ...] = get_args(Home)


class BrokenError(AssertionError):
    """A promise that was not kept."""


@dataclass(frozen=True)
class Death:
    """How a life ends.

    Attributes:
        trouble: What goes wrong first.
        end: What ends the training.
        first: What the life waits for before the trouble: an upload of its own, or nothing.
        before: Micro-steps from then until the trouble.
        during: Further ones until the end.
        stays: Whether the neighbour's cable is still cut when the next life begins.
    """

    trouble: Trouble
    end: End
    first: Home
    before: int
    during: int
    stays: bool

    @classmethod
    def drawn(cls, rng: random.Random) -> Death:
        return cls(
            trouble=rng.choices(get_args(Trouble), [4, 2, 2, 1, 1])[0],
            end=rng.choices(get_args(End), [4, 3, 1])[0],
            first=rng.choices(HOMES, [2, 2, 1])[0],
            before=rng.randint(0, 8 * CYCLE),
            during=rng.randint(0, 8 * CYCLE),
            stays=rng.random() < 0.5,
        )


class Said:
    """What a life said, and what its log has."""

    def __init__(self, notes: Path, log: Path) -> None:
        self._notes = notes
        self._log = log

    def lines(self, what: str) -> list[dict[str, Any]]:
        """Of one kind, those that are whole."""
        if not self._notes.exists():
            return []
        whole = self._notes.read_bytes().split(b"\n")[:-1]
        return [line for line in map(json.loads, whole) if line["what"] == what]

    @property
    def steps(self) -> list[dict[str, Any]]:
        return self.lines("step")

    @property
    def is_without_neighbour(self) -> bool:
        """Whether it began without it."""
        return "NO MIRROR" in self._log.read_text(errors="replace")

    @property
    def began(self) -> int | None:
        """The micro-steps with which it began."""
        found = self.lines("restored")
        return found[0]["at"] if found else None


def home_of(uploaded: dict[str, Any]) -> Home:
    """Where that was uploaded to."""
    return "neighbour" if "//near/" in uploaded["url"] else "bucket"


class Uninterrupted:
    """Digests of a run that nobody ever kills, by micro-step."""

    def __init__(self) -> None:
        self._run = new_run()
        self._digests = {0: self._run.digest()}

    def digest_at(self, batches: int) -> str:
        """After so many micro-steps."""
        for at in self._run.train_until(batches):
            self._digests[at] = self._run.digest()
        return self._digests[batches]


class Story:
    """The lives of one job.

    Args:
        cluster: Its first host trains, the second one is the neighbour.
        folder: For notes.
        counts: What happened is added to it.
    """

    def __init__(self, cluster: Cluster, folder: Path, counts: Counter[str]) -> None:
        self.cluster = cluster
        self.counts = counts
        self._folder = folder
        folder.mkdir(parents=True)
        self._numbers = itertools.count()
        self._truth = Uninterrupted()
        self._promised: dict[Home, int] = dict.fromkeys(HOMES, 0)
        self._last = 0  # micro-steps of the life before
        self._cut: LinkDown | None = None  # the neighbour's cable, since the life before
        cluster.storage.make_bucket("runs")
        self._open_neighbour()

    def _open_neighbour(self) -> None:
        self._neighbour.serve(self._neighbour.memory / "s3")
        self._neighbour.make_bucket("near")

    @property
    def _host(self) -> Host:
        return self.cluster.hosts[0]

    @property
    def _neighbour(self) -> Host:
        return self.cluster.hosts[1]

    def live(self, death: Death) -> None:
        """A life and its death."""
        running, said = self._begun()
        self._wait_uploaded(running, said, death.first)
        self._wait(running, said, death.before)
        fault = self._strike(death.trouble)
        self._wait(running, said, death.during)
        self._die(death.end, running)
        self._take(said)
        self._lose(death)
        self._mend(death, fault)
        self.counts["deaths"] += 1
        self.counts[f"end: {death.end}"] += 1

    def finish(self) -> None:
        """A life that nobody kills, and what lies at all homes then."""
        if self._cut is not None:
            self._cut.end()
            self._cut = None
        running, said = self._begun(LAST_STEPS)
        running.expect(0)
        self._take(said)
        (ended,) = said.lines("ended")
        if ended["digest"] != self._truth.digest_at(self._last):
            raise BrokenError("the end is not that of an uninterrupted run")
        found = {home: newest(self.cluster, self._place(home)) for home in HOMES}
        names = {one and one[0] for one in found.values()}
        if len(names) != 1 or found["memory"] is None or found["memory"][1] != self._last:
            raise BrokenError(f"not all homes have the end at {self._last}: {found}")
        for home in HOMES:
            self._look_at(home, found["memory"][0])
        self.counts["micro-steps"] += self._last

    def _place(self, home: Home) -> str:
        places: dict[Home, str] = {
            "memory": str(self._host.memory / "run"),
            "neighbour": f"{self._neighbour.endpoint}/near/run",
            "bucket": "s3://runs/run",
        }
        return places[home]

    def _begun(self, steps: int | None = None) -> tuple[Running, Said]:
        """A life that has begun as it must; it lives that many micro-steps after the last one, or until it dies."""
        running, said = self._start(steps)
        until(lambda: said.began is not None or running.returncode is not None, "it has begun")
        if said.began is None and self._cut is not None and REFUSED in running.text():
            self.counts["refused without the neighbour"] += 1
            self._cut.end()
            self._cut = None
            running, said = self._start(steps)
        until(lambda: said.began is not None, "it has begun", alive=[running])
        if said.is_without_neighbour:
            self.counts["begun without the neighbour"] += 1
        self._judge_begin(said)
        return running, said

    def _start(self, steps: int | None) -> tuple[Running, Said]:
        number = next(self._numbers)
        notes, log = self._folder / f"life-{number}.jsonl", self._folder / f"life-{number}.log"
        places = {home: self._place(home) for home in HOMES}
        life = Life(str(notes), **places, until=NEVER if steps is None else self._last + steps)
        command = (sys.executable, soak_life.__file__, life.dumps())
        return self._host.start(*command, log=log, environment=self.cluster.variables()), Said(notes, log)

    def _judge_begin(self, said: Said) -> None:
        (begin,) = said.lines("restored")
        at = begin["at"]
        left = [home for home in HOMES if not (home == "neighbour" and self._cut is not None)]
        least = max(self._promised[home] for home in left)
        nearest = next((home for home in left if self._promised[home]), None)
        repeated = self._last - at
        if at < least:
            raise BrokenError(f"{least} was committed at {left}, and the next life began with {at}: {self._promised}")
        if nearest is not None and repeated > self._last - self._promised[nearest]:
            raise BrokenError(f"{repeated} micro-steps are repeated, but {nearest} had {self._promised[nearest]}")
        if begin["digest"] != self._truth.digest_at(at):
            raise BrokenError(f"what was restored at {at} is not what an uninterrupted run has there")
        self.counts["micro-steps repeated"] += repeated
        self.counts["most repeated at once"] = max(self.counts["most repeated at once"], repeated)
        self.counts[f"begun from {nearest or 'nothing'}"] += 1
        # What is newer was left behind by a life that went on without it: it is no promise any more.
        self._promised = {home: had if had <= at else 0 for home, had in self._promised.items()}

    def _wait(self, running: Running, said: Said, steps: int) -> None:
        wanted = len(said.steps) + steps
        until(lambda: len(said.steps) >= wanted, f"{wanted} micro-steps", alive=[running])

    def _wait_uploaded(self, running: Running, said: Said, home: Home) -> None:
        if home == "memory" or (home == "neighbour" and said.is_without_neighbour):
            return
        until(lambda: any(home_of(line) == home for line in said.lines("uploaded")), f"{home} has it", alive=[running])

    def _strike(self, trouble: Trouble) -> Fault | None:
        if self._cut is not None and trouble in ("neighbour lost", "neighbour cut"):
            trouble = "none"  # it is cut off as it is
        self.counts[f"trouble: {trouble}"] += 1
        if trouble == "none":
            return None
        faults: dict[Trouble, Fault] = {
            "neighbour lost": HostLost(self._neighbour),
            "neighbour cut": LinkDown(self._neighbour),
            "host cut": LinkDown(self._host),
            "storage boots": StorageReboot(self.cluster.storage),
        }
        fault = faults[trouble].begin()
        assert fault.fired >= 1
        return fault

    def _die(self, end: End, running: Running) -> None:
        if end == "killed":
            running.kill()
        else:
            assert HostLost(self._host).begin().fired >= 1
        if running.returncode != -9:
            raise BrokenError(f"it was not killed, but ended\n{running.said()}")

    def _take(self, said: Said) -> None:
        """Add what a life promised."""
        for one in said.steps:
            if one["digest"] != self._truth.digest_at(one["at"]):
                raise BrokenError(f"micro-step {one['at']} is not that of an uninterrupted run")
        self._last = said.steps[-1]["at"] if said.steps else said.began or 0
        for line in said.lines("committed"):
            self._promise("memory", line["name"])
        for line in said.lines("uploaded"):
            self._promise(home_of(line), line["name"])

    def _promise(self, home: Home, name: str) -> None:
        parsed = CheckpointName.parse(name)
        assert parsed is not None
        self._promised[home] = max(self._promised[home], parsed.cycles * CYCLE + parsed.micro_step)

    def _lose(self, death: Death) -> None:
        """Put new hosts in the places of those that are gone."""
        is_neighbour_gone = not self._neighbour.memory.exists()
        if death.end == "both lost" and not is_neighbour_gone:
            assert HostLost(self._neighbour).begin().fired >= 1
            is_neighbour_gone = True
        if death.end != "killed":
            self.cluster.replace(self._host)
            self._promised["memory"] = 0
        if is_neighbour_gone:
            self.cluster.replace(self._neighbour)
            self._open_neighbour()
            self._promised["neighbour"] = 0
            self._cut = None

    def _mend(self, death: Death, fault: Fault | None) -> None:
        if isinstance(fault, StorageReboot):
            fault.end()
        elif isinstance(fault, LinkDown):
            is_gone = death.end == "both lost" or (death.trouble == "host cut" and death.end == "host lost")
            if not is_gone and death.trouble == "neighbour cut" and death.stays:
                self._cut = fault
            elif not is_gone:
                fault.end()
        elif fault is None and self._cut is not None and not death.stays:
            self._cut.end()
            self._cut = None

    def _look_at(self, home: Home, name: str) -> None:
        """Hold that a home has the bits of an uninterrupted run there."""

        def look() -> str:
            variables = self.cluster.variables()
            connected = {
                "endpoint_url": variables["AWS_ENDPOINT_URL"],
                "key": variables["AWS_ACCESS_KEY_ID"],
                "secret": variables["AWS_SECRET_ACCESS_KEY"],
            }
            root, options = opened(self._place(home), **connected)
            storage = open_storage(root, options)
            parsed = CheckpointName.parse(name)
            assert parsed is not None
            run = new_run()
            run.apply(load(storage, open_checkpoint(storage, parsed, Index(storage).document(parsed.attempt))))
            return run.digest()

        host = self._neighbour if home == "neighbour" else self.cluster.storage
        if host.call(look) != self._truth.digest_at(self._last):
            raise BrokenError(f"{name} at {home} is not what an uninterrupted run has there")


def jobs(folder: Path, deaths: int, seed: int) -> Iterator[Counter[str]]:
    """Jobs until so many lives have died; gives what was counted so far after each.

    Raises:
        BrokenError: If something does not hold.
    """
    counts: Counter[str] = Counter()
    for number in itertools.count(seed):
        here = folder / f"job-{number}"
        shutil.rmtree(here, ignore_errors=True)
        rng = random.Random(number)
        print(f"job {number}", flush=True)
        with Cluster(2, here / "hosts") as cluster:
            story = Story(cluster, here / "notes", counts)
            for _ in range(min(DEATHS_OF_A_JOB, deaths - counts["deaths"])):
                death = Death.drawn(rng)
                print(f"  {death}", flush=True)
                story.live(death)
            story.finish()
        counts["jobs"] += 1
        shutil.rmtree(here)
        yield counts
        if counts["deaths"] >= deaths:
            return


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m multirank.hosts.soak", description=__doc__)
    parser.add_argument("--deaths", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1, help="of the first job; the next ones count from it")
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    began = time.monotonic()
    for counts in jobs(options.folder, options.deaths, options.seed):
        print(f"{time.monotonic() - began:7.0f} s: {dict(sorted(counts.items()))}", flush=True)


if __name__ == "__main__":
    main()
