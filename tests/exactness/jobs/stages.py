"""Trainings in several stages, each with a run or with settings of its own; killed in the second one."""

from __future__ import annotations

import mindspore as ms
import mindspore.dataset as ds

from exactness.jobs.parts import BATCH, EPOCHS, Loss, accumulating, arrays, slices
from exactness.jobs.run import job


def train_stage(run, name, cell, data, *, epochs=1, root=None):
    run.enter(name)
    run.train(cell, epochs, data, root=root or name)


@job("graph", kill=1, stage="large", default=True)
def larger_batches_in_a_run_of_their_own(run):
    """Killed at the beginning of the second stage, whose weights are those that the first one has left."""
    loss = Loss()
    train_stage(run, "small", accumulating(loss), slices())
    train_stage(run, "large", accumulating(loss), slices(2 * BATCH))


@job("pynative", kill=4, stage="fold1")
def folds_of_a_cross_validation(run):
    """Each fold has a network of its own, whose weights are drawn after the fold before was trained."""
    x, y = arrays()
    for fold in range(2):
        kept = [index for index in range(len(x)) if index % 2 != fold]
        data = ds.NumpySlicesDataset((x[kept], y[kept]), ["x", "y"], shuffle=True).batch(4)
        train_stage(run, f"fold{fold}", accumulating(), data)


@job("graph", kill=9, stage="second")
def more_epochs_with_the_same_run(run):
    """Trained for an epoch, looked at, and trained for another one by the same script."""
    for name, epochs in (("first", 1), ("second", EPOCHS)):
        train_stage(run, name, accumulating(), slices(), epochs=epochs, root="run")


@job("graph")
def warm_start_from_a_file(run):
    """Weights come from a file that only the first start writes."""
    path = run.folder / "base.ckpt"
    if not path.exists():
        ms.save_checkpoint(Loss(), str(path))
    loss = Loss()
    ms.load_param_into_net(loss, ms.load_checkpoint(str(path)))
    run.train(accumulating(loss), EPOCHS, slices())
