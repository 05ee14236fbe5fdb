"""Lives whose transcripts are kept: each shows one of the ways that a run can go."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from support.corrupt import corrupt
from support.runs.ranks import Life as RankLife
from support.runs.ranks import live
from support.thread_ranks import ThreadWorld, run_ranks

from ckptkit.core.save_policy import SaveEvery
from ckptkit.run.keep_policy import KeepBest, KeepEvery, KeepLatest
from ckptkit.storage import Storage
from ckptkit.testing.faults import MUTATING, Fault, Killed
from exactness.golden.transcript import Life, Transcript

STORIES: dict[str, Callable[[Transcript], None]] = {}


def story(function: Callable[[Transcript], None]) -> Callable[[Transcript], None]:
    STORIES[function.__name__] = function
    return function


def restored(transcript: Transcript, **options: Any) -> Life:
    life = Life(transcript, **options)
    life.restore()
    return life


@story
def plain(transcript: Transcript) -> None:
    """Fresh, saved in mid-cycle and at boundaries, ended, and gone on with; then what the commands say."""
    life = restored(transcript)
    for at in (2, 4, 6, 8):
        life.save_at(at)
    life.run.train_step()
    life.end()
    again = restored(transcript)
    again.save_at(12)
    again.end()
    _ask(transcript)


@story
def policies(transcript: Transcript) -> None:
    """Saves by steps, kept by metrics and by numbers."""
    keep = KeepBest(1, "loss", "min") | KeepLatest(1) | KeepEvery(optimizer_steps=2)
    life = restored(transcript, save=SaveEvery(micro_steps=3), keep=keep)
    for at, loss in ((2, 0.5), (5, 0.25), (8, 0.75), (11, 1.5)):
        life.save_at(at, {"loss": loss})
    life.step_to(20)
    life.end()
    _ask(transcript)
    transcript.command("prune", str(transcript.folder / "run"), "--keep", "latest:1", "--yes", "--json")


@story
def aligned(transcript: Transcript) -> None:
    """Saves that wait for a boundary."""
    life = restored(transcript, save=SaveEvery(micro_steps=3), mid_cycle="align")
    life.step_to(13)
    life.save_at(14)
    life.end()


@story
def rewound(transcript: Transcript) -> None:
    """Saves that store the start of the cycle, and restores that go back to it."""
    life = restored(transcript, save=SaveEvery(micro_steps=3), mid_cycle="rewind")
    life.step_to(10)
    life.end()
    again = Life(transcript)
    again.restore(rewind=True)
    again.save_at(11)
    again.end()


@story
def branched(transcript: Transcript) -> None:
    """Goes back to an older checkpoint; what was newer is of another branch from then on."""
    life = restored(transcript, keep=KeepLatest(100))
    names = [life.save_at(at) for at in (2, 4, 6)]
    life.end()
    branch = Life(transcript, keep=KeepLatest(100))
    branch.restore(checkpoint=names[1])
    branch.save_at(5)
    branch.save_at(8)
    branch.end()
    third = restored(transcript)
    third.save_at(9)
    third.end()
    _ask(transcript)


@story
def failing(transcript: Transcript) -> None:
    """Writes fail: the next save makes up for it, and the third failure in a row ends it."""
    life = restored(transcript)
    storage = life.manager._setup.storage
    storage.inject(Fault("error", operations={"write"}, key="*weights-000*"))
    life.save_at(2)
    life.save_at(3)
    storage.inject(Fault("error", operations={"create"}, key="*/COMMIT"))
    life.save_at(4)
    storage.inject(Fault("error", operations={"create"}, key="*/COMMIT", when="after"))
    life.save_at(5)
    storage.inject(Fault("error", operations={"write"}, times=3))
    for at in (6, 7, 8):
        life.save_at(at)
    storage.clear()
    life.save_at(9)
    life.end()
    again = restored(transcript)
    again.end()
    _ask(transcript)


@story
def killed(transcript: Transcript) -> None:
    """Dies within a save; the next start clears away, and goes on from the one before."""
    for nth in (2, 5, 7):
        life = restored(transcript)
        life.save_at(life.run.batches + 2)
        life.manager._setup.storage.inject(Fault("kill", operations=MUTATING, nth=nth))
        transcript.do(f"killed at call {nth}", lambda life=life: _dies(life))
    last = restored(transcript)
    last.end()


@story
def damaged(transcript: Transcript) -> None:
    """The newest checkpoint is corrupt, then its attempt's document; a start passes over one and refuses the other."""
    life = restored(transcript, keep=KeepLatest(100))
    names = [life.save_at(at) for at in (2, 4, 6)]
    life.end()
    root = transcript.folder / "run"
    corrupt(root / "checkpoints" / names[-1] / "rank-00000" / "weights-000.safetensors")
    _ask(transcript)
    again = restored(transcript, keep=KeepLatest(100))
    again.save_at(5)
    again.end()
    corrupt(root / "attempts" / "000002.json")
    restored(transcript)
    _ask(transcript)


@story
def taken_over(transcript: Transcript) -> None:
    """A second start while the first lives."""
    first = restored(transcript)
    first.save_at(3)
    second = restored(transcript)
    first.save_at(4)
    first.save_at(5)
    second.save_at(4)
    second.end()
    transcript.do("close the first", first.manager.close)


@story
def mirrored(transcript: Transcript) -> None:
    """Uploads; the disk is lost; a start takes the mirror's, and brings its own root up to date."""
    life = restored(transcript, mirror="mirror")
    for at in (2, 4, 7):
        life.save_at(at)
    life.end()
    shutil.rmtree(transcript.folder / "run")
    again = restored(transcript, mirror="mirror")
    again.save_at(9)
    again.manager._setup.mirrors.homes[1].inject(Fault("error", operations={"write"}, times=9))
    again.save_at(10)
    transcript.do("lag", lambda: again.manager.mirror_lag)
    again.manager._setup.mirrors.homes[1].clear()
    again.save_at(11)
    again.end()


@story
def copied(transcript: Transcript) -> None:
    """A copy, brought up to date, and begun from."""
    life = restored(transcript)
    life.save_at(3)
    life.end()
    one, other = str(transcript.folder / "run"), str(transcript.folder / "copy")
    transcript.command("copy", one, other, "--json")
    again = restored(transcript)
    again.save_at(5)
    again.end()
    transcript.command("copy", one, other, "--json")
    begun = restored(transcript, local="copy")
    begun.end()


@story
def preempted(transcript: Transcript) -> None:
    """Asked to end in mid-cycle: by the scheduler's file, and in a loop that ends by itself."""
    for choice in ("exit", "return"):
        asked = transcript.folder / "asked"
        life = restored(transcript, on_preempt=choice, preempt_when=asked.exists)
        life.step_to(life.run.batches + 3)
        asked.touch()
        life.step_to(life.run.batches + 1)
        transcript.do("preempted", lambda life=life: life.manager.preempted)
        transcript.do("close", life.manager.close)
        asked.unlink()
    _ask(transcript)


@story
def of_two_ranks(transcript: Transcript) -> None:
    """Two ranks save together and come back; a part that cannot be written voids one save."""
    for until, fails in ((7, False), (12, True), (13, False)):
        storages = [transcript.storage("run", f"rank {rank}") for rank in range(2)]
        if fails:
            storages[1].inject(Fault("error", operations={"write"}, key="*rank-00001.json"))

        def one(world: ThreadWorld, storages: Sequence[Storage] = storages, until: int = until) -> RankLife:
            options = transcript.standing_still()
            return live(storages[world.rank], world, until, final=True, **options)

        def job(one: Callable[[ThreadWorld], RankLife] = one) -> list[object]:
            return [str(ended.error) if ended.error else asdict(ended.result) for ended in run_ranks(2, one)]

        transcript.do(f"two ranks to {until}", job)
    _ask(transcript)


def _ask(transcript: Transcript) -> None:
    root = str(transcript.folder / "run")
    for command in ("ls", "show", "verify", "report"):
        transcript.command(command, root, "--json")
    transcript.command("diff", root, "latest", "--json")


def _dies(life: Life) -> None:
    for _ in life.run.train_until(life.run.batches + 2):
        pass
    try:
        life.manager.save(life.run).result()
    except Killed:
        return
