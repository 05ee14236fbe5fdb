"""One trial: a training with or without a flipped bit, and what ``ckptkit replay`` says about it.

What it must say comes from the bytes on storage: those of a training without the flip, read without ckptkit. Every
trial has a folder of its own.
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FIRST, STEPS = 5, 18  # the stretch begins after micro-step 4, and ends with 18
LEAVES = {"numpy": ("weights", "moments", "accumulators"), "mindspore": ("weights", "moments", "accumulators")}
BITS = {  # of each kind of leaf
    "numpy": dict.fromkeys(LEAVES["numpy"], 5 * 32),
    "mindspore": {"weights": 83 * 32, "moments": 2 * 83 * 32, "accumulators": 83 * 32},
}
Leaf = tuple[str, int | None]  # and the rank that owns it, if one does
Stored = dict[str, dict[Leaf, bytes]]  # by checkpoint


class TrialError(AssertionError):
    """A trial is no trial: a process failed, or the fault did not fire."""


@dataclass(frozen=True)
class Job:
    """A training.

    Attributes:
        kind: ``numpy`` or ``mindspore``.
        ranks: One, or more.
    """

    kind: str
    ranks: int

    def command(self) -> list[str]:
        """Return the command that trains."""
        if self.kind == "numpy":
            script = [sys.executable, str(ROOT / "tests" / "support" / "ranked_training.py")]
            many = [sys.executable, "-m", "support.process_ranks", str(self.ranks), script[1]]
            return script if self.ranks == 1 else many
        script = [sys.executable, str(Path(__file__).with_name("mindspore_job.py"))]
        if self.ranks == 1:
            return script
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        number = f"--worker_num={self.ranks}", f"--local_worker_num={self.ranks}"
        where = "--master_addr=127.0.0.1", f"--master_port={port}", "--log_dir=logs", "--join=True"
        return [str(Path(sys.executable).with_name("msrun")), *number, *where, script[1]]


@dataclass(frozen=True)
class Flip:
    """Which bit of which leaf flips in which rank, after which micro-step."""

    rank: int
    step: int
    leaf: str
    bit: int

    def __str__(self) -> str:
        return f"{self.rank} {self.step} {self.leaf} {self.bit}"


@dataclass(frozen=True)
class Found:
    """Holds what came of a trial.

    Attributes:
        flip: What flipped; None in a clean trial.
        expected: The first checkpoint that is not that of a clean training, by the bytes on storage; None if none is.
        leaves: The leaves that differ in it, by the same comparison.
        differing: What replay names as the first.
        named: The leaves that replay names.
        equal: The checkpoints that it found equal.
        before: Those that are equal, by the bytes on storage.
        deterministic: What it says about a second replay.
        code: Its exit code.
    """

    flip: Flip | None
    expected: str | None
    leaves: frozenset[Leaf]
    differing: str | None
    named: frozenset[Leaf]
    equal: tuple[str, ...]
    before: tuple[str, ...]
    deterministic: bool | None
    code: int

    @property
    def has_vanished(self) -> bool:
        """Whether the flip is in no checkpoint: rounded away, or only in a copy that no rank stores."""
        return self.flip is not None and self.expected is None

    @property
    def is_right(self) -> bool:
        """Whether the stretch, and exactly the leaves, were named; or the stretch was certified, where it is sound."""
        if self.equal != self.before or (self.differing, self.named) != (self.expected, self.leaves):
            return False
        return (self.code, self.deterministic) == ((0, None) if self.expected is None else (1, True))

    @property
    def names_the_leaf(self) -> bool:
        """Whether the leaf that flipped is among the named ones; in its rank, if it is a rank's own."""
        assert self.flip is not None
        return (self.flip.leaf, self.flip.rank) in {
            (_kind_of(name), self.flip.rank if rank is None else rank) for name, rank in self.named
        }


def _kind_of(name: str) -> str:
    kinds = {"moment": "moments", "accum": "accumulators"}
    return next((kind for word, kind in kinds.items() if word in name), "weights")


def random_flip(job: Job, chance: random.Random) -> Flip:
    """Choose where a bit flips."""
    leaf = chance.choice(LEAVES[job.kind])
    step = chance.randint(FIRST, STEPS)
    return Flip(chance.randrange(job.ranks), step, leaf, chance.randrange(BITS[job.kind][leaf]))


def trained(job: Job, folder: Path, flip: Flip | None) -> Stored:
    """Train in ``folder``, and return what lies on storage."""
    folder.mkdir(parents=True)
    done = _run(job.command(), folder, {} if flip is None else {"FLIP": str(flip)})
    names = sorted(path.name for path in (folder / "run" / "checkpoints").iterdir())
    if len(names) != 5 or (done.returncode and job.kind == "numpy"):
        raise TrialError(f"{folder}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    if flip is not None and (folder / "flipped").read_text() != str(flip):
        raise TrialError(f"{folder}: {flip} did not fire")
    return {name: _stored(folder / "run" / "checkpoints" / name, job.ranks) for name in names}


def tried(job: Job, folder: Path, flip: Flip | None, clean: Stored) -> Found:
    """Train with ``flip`` and replay from the first checkpoint on."""
    stored = trained(job, folder, flip)
    names = sorted(clean)
    if sorted(stored) != names or stored[names[0]] != clean[names[0]]:
        raise TrialError(f"{folder}: these are not the checkpoints of a clean training, before anything was flipped")
    wrong = [name for name in names if stored[name] != clean[name]]
    expected = wrong[0] if wrong else None
    if flip is None and expected is not None:
        raise TrialError(f"{folder}: two clean trainings differ in {expected}")
    leaves = frozenset(
        leaf
        for leaf in (stored[expected].keys() | clean[expected].keys() if expected else ())
        if stored[expected].get(leaf) != clean[expected].get(leaf)
    )
    replay = [sys.executable, "-m", "ckptkit", "replay", "run", "--from", names[0], "--json", "--", *job.command()]
    done = _run(replay, folder, {})
    if not done.stdout.strip():
        raise TrialError(f"{folder}: replay exits with {done.returncode}\n{done.stderr}")
    said = json.loads(done.stdout)
    before = names[1 : names.index(expected)] if expected else names[1:]
    named = frozenset((one["name"], one["rank"]) for one in said["leaves"])
    return Found(
        flip,
        expected,
        leaves,
        said["differing"],
        named,
        tuple(said["equal"]),
        tuple(before),
        said["deterministic"],
        done.returncode,
    )


def _stored(checkpoint: Path, ranks: int) -> dict[Leaf, bytes]:
    """Read every leaf by the format alone: pieces of a leaf that ranks share are joined in the order of the ranks."""
    found: dict[Leaf, bytes] = {}
    for file in sorted(checkpoint.rglob("*.safetensors")):
        data = file.read_bytes()
        begin = 8 + int.from_bytes(data[:8], "little")
        rank = int(file.parent.name.removeprefix("rank-"))
        document = json.loads((checkpoint / f"{file.parent.name}.json").read_text())
        placements = {one["name"]: one["placement"] for shard in document["shards"] for one in shard["tensors"]}
        for name, entry in json.loads(data[8:begin]).items():
            if name != "__metadata__" and not name.startswith("observed"):  # the script's variables, FLIP among them
                first, last = entry["data_offsets"]
                own = rank if ranks > 1 and placements[name] == "per_rank" else None
                found[name, own] = found.get((name, own), b"") + data[begin + first : begin + last]
    return found


def _run(command: list[str], folder: Path, also: dict[str, str]) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    quiet = {"GLOG_v": "3", "OMP_NUM_THREADS": "1", "MS_RETRY_INTERVAL_LOWER": "1", "MS_RETRY_INTERVAL_UPPER": "1"}
    environment = {**os.environ, **quiet, "PYTHONPATH": path, **also}
    return subprocess.run(
        command, check=False, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
