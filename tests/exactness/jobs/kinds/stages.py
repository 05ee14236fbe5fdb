"""Trainings in several stages, each with a run or with settings of its own."""

from __future__ import annotations

import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn

import ckptkit as ck
from exactness.jobs.job import job
from exactness.jobs.outcome import Exact, Refused
from exactness.jobs.parts import BATCH, EPOCHS, K, Loss, accumulating, adam, arrays, slices


def stage(run, name, cell, data, *, epochs=1, root=None):
    run.enter(name)
    run.root = root or run.folder / name
    run.train(ms.Model(cell), epochs, data)


def larger():
    return ds.NumpySlicesDataset(arrays(), ["x", "y"]).batch(2 * BATCH)


@job(Refused(("batch",)), "graph")
def larger_batches_in_the_same_run(run):
    loss = Loss()
    stage(run, "small", accumulating(loss), slices(), root=run.folder / "run")
    stage(run, "large", accumulating(loss), larger(), epochs=2, root=run.folder / "run")


@job(Exact(), "graph", kill=1)
@job(Exact(), "pynative", kill=3)
def larger_batches_in_a_run_of_their_own(run):
    """Killed at the beginning of the second stage, whose weights are those that the first one has left."""
    loss = Loss()
    run.dies_in("large")
    stage(run, "small", accumulating(loss), slices())
    stage(run, "large", accumulating(loss), larger())


@job(Exact(), "graph", kill=1)
def head_first_and_then_all(run):
    loss = Loss()
    run.dies_in("all")
    head = nn.Adam(loss.network.out.trainable_params(), 1e-2)
    stage(run, "head", ck.AccumulationTrainCell(loss, head, K), slices())
    stage(run, "all", ck.AccumulationTrainCell(loss, nn.SGD(loss.trainable_params(), 0.05), 2), slices())


@job(Exact(), "graph", kill=1)
@job(Exact(), "pynative", kill=4)
def folds_of_a_cross_validation(run):
    """Each fold has a network of its own, whose weights are drawn after the fold before was trained."""
    run.dies_in("fold1")
    x, y = arrays()
    for fold in range(2):
        kept = [index for index in range(len(x)) if index % 2 != fold]
        data = ds.NumpySlicesDataset((x[kept], y[kept]), ["x", "y"], shuffle=True).batch(4)
        stage(run, f"fold{fold}", accumulating(), data)


@job(Exact(), "graph", kill=1)
def teacher_first_and_then_its_student(run):
    run.dies_in("student")
    teacher = Loss()
    stage(run, "teacher", accumulating(teacher), slices())
    student = Loss()
    for mine, other in zip(student.get_parameters(), teacher.get_parameters(), strict=True):
        mine.set_data(0.5 * other.value())
    stage(run, "student", accumulating(student), slices())


@job(Exact(), "graph", kill=9)
def more_epochs_with_the_same_run(run):
    """Trained for an epoch, looked at, and trained for another one by the same script."""
    for part, epochs in (("first", 1), ("second", EPOCHS)):
        run.enter(part)
        run.dies_in("second")
        run.train(ms.Model(accumulating()), epochs, slices())


@job(Exact(), "graph")
def warm_start_from_a_file(run):
    """Weights come from a file that only the first start writes."""
    path = run.folder / "base.ckpt"
    if not path.exists():
        base = Loss()
        ms.save_checkpoint(base, str(path))
    loss = Loss()
    ms.load_param_into_net(loss, ms.load_checkpoint(str(path)))
    run.train(ms.Model(accumulating(loss, adam(loss))), EPOCHS, slices())
