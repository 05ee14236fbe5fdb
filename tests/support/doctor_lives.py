"""Lives and traces made by hand, and a script that trains in NumPy alone."""

from pathlib import Path

from ckptkit.cli.commands import doctor
from ckptkit.core.progress import Progress
from ckptkit.manager.hooks import Suspect
from ckptkit.tools.doctor.lives.life_process import TrialLife
from ckptkit.tools.doctor.lives.trace import Begun, Event, SavedEvent, Stepped
from ckptkit.tools.doctor.result import DoctorOptions

SIZE = 7
URL = "/runs/mine"
NAMES = ("batch/x", "loss", "accumulators/accum.w", "weights/w", "optimizer/moments.w", "counters/batch", "rng/numpy")


def run_doctor(command: list[str], options: DoctorOptions, **others: object) -> int:
    """The exit code of ``ckptkit doctor`` with these options."""
    return doctor.run_doctor(
        list(command),
        steps=options.steps,
        kills=options.kills,
        seed=options.seed,
        timeout=options.time_limit.total_seconds(),
        within=None if options.within is None else str(options.within.total_seconds()),
        own_saves=options.own_saves,
        **others,  # type: ignore[arg-type]
    )


def progress(step: int, k: int = 3, size: int = SIZE) -> Progress:
    epoch, batch = divmod(step, size)
    cycles, micro_step = divmod(step, k)
    return Progress(
        epoch=epoch,
        batch=batch,
        cycles=cycles,
        updates=cycles,
        micro_step=micro_step,
        accumulation_steps=k,
        batches_delivered=step,
        cycle_first_batch=step - micro_step,
    )


def stepped(
    step: int, unseen: dict[str, str] | None = None, began: dict[str, str] | None = None, **digests: str
) -> Stepped:
    """A healthy line; ``digests`` gives kinds other values, ``batch=`` those of the batch."""
    values = {name: digests.get(name.partition("/")[0], f"{name} {step}") for name in NAMES}
    return Stepped(step=step, progress=progress(step), digests=values, unseen=unseen or {}, began=began or {})


def life(
    lines: list[Event], *, begun: int = 0, saved: list[SavedEvent] | None = None, url: str = URL, **options: object
) -> TrialLife:
    suspects: tuple[Suspect, ...] = options.pop("suspects", ())  # type: ignore[assignment]
    start = Begun(url=url, step=begun, checkpoint=f"at {begun}" if begun else None, suspects=suspects)
    events: list[Event] = [start, *lines, *(saved or [])]
    return TrialLife("life", 0, events, Path("log"), **options)  # type: ignore[arg-type]


NUMPY_RUN = """
import os, random, sys, time
import numpy as np
import ckptkit as ck
from ckptkit.testing.state import NumpyRun
from support import ranked_training

what = sys.argv[1:]

class Run(ranked_training.Run):
    def observe(self):
        generators = {"rng/python": repr(random.getstate()), "rng/numpy": repr(np.random.get_state())}
        return {"weights/w": self.digest(), **generators}, {}
"""

# A script without MindSpore: what is to happen is told by its arguments.
NUMPY_SCRIPT = (
    NUMPY_RUN
    + """
if "unseeded" not in what:
    random.seed(99)
    np.random.seed(99)
state = NumpyRun() if "blind" in what else Run()
root = f"runs/{time.time_ns()}" if "other-root" in what else "runs/mine"
every = ck.SaveEvery(micro_steps=4) if "own" in what else None
def beside():  # another training in the same process, at a root of its own
    its = Run()
    keeper = ck.CheckpointManager("runs/beside")
    keeper.restore(its)
    return its, keeper

def train_beside():
    its.train_step()
    keeper.step(its)

if "teacher" in what:  # is restored and never trained
    ck.CheckpointManager("runs/teacher").restore(Run())
manager = ck.CheckpointManager(root, save=every)
point = manager.restore(state)
if "crashes" in what and point.checkpoint:
    raise SystemExit("out of luck")
if "beside" in what:
    its, keeper = beside()
print("trains", end="")
print("aloud", end="", file=sys.stderr)
while state.batches < 9:
    if "fails" in what and point.checkpoint and state.batches > 6:
        raise LookupError("nothing is left")
    state.train_step()
    if "draws" in what:
        np.random.random()
    if "first" in what:
        train_beside()
    manager.step(state)
    if "beside" in what and "first" not in what:
        train_beside()
    if "own" in what:
        manager.wait()
if "twice" in what:
    manager.save_final(state)
    manager.close()
    again = Run()
    manager = ck.CheckpointManager("runs/next" if "elsewhere" in what else root)
    manager.restore(again)
    while again.batches < 20:
        again.train_step()
        manager.step(again)
open("exported", "w").close()
"""
)
