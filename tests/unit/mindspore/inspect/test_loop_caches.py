"""What caches, files and schedulers keep of a training is named: a resumed run has another cache, or a newer file."""

# ruff: noqa: SIM115 - loops as people write them

from __future__ import annotations

import bz2
import functools
import io
import json
import os
import pathlib
import shelve
import sqlite3

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from mindspore.experimental import optim
from test_loops import Training

from ckptkit.mindspore.inspect.loops import find_in_loops
from ckptkit.mindspore.inspect.loops.scope import Place

network, teacher = nn.Dense(2, 1), nn.Dense(2, 1)
for one in teacher.get_parameters():
    one.requires_grad = False


@functools.lru_cache(None)
def baseline(key):
    return float(network(key).sum())


@functools.cache
def of_the_teacher(key):
    return float(teacher(key).sum())


@functools.cache
def table(size):
    return [1 / one for one in range(1, size)]


class Reference:
    @functools.cached_property
    def mean(self):
        return network(FIRST).mean()

    @functools.cached_property
    def scale(self):
        return 1 / 3

    @functools.cache  # noqa: B019 - as users write it
    def of(self, key):
        return network(key)


FIRST = None


def function_with_a_cache(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        cell(x, y * baseline(0))


def method_with_a_cache(cell, batches, rate, restore):
    reference = Reference()
    restore()
    for x, y in batches:
        cell(x, y * reference.of(0))


def cached_property(cell, batches, rate, restore):
    reference = Reference()
    restore()
    for x, y in batches:
        cell(x, y * reference.mean)


def caches_of_what_does_not_change(cell, batches, rate, restore):
    reference = Reference()
    restore()
    for x, y in batches:
        cell(x, y * reference.scale * table(3)[1] * of_the_teacher(0))


@pytest.mark.parametrize(
    ("loop", "where"),
    [
        (function_with_a_cache, ["baseline()"]),
        (method_with_a_cache, ["reference.of()"]),
        (cached_property, ["reference (Reference)"]),
        (caches_of_what_does_not_change, []),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_cache_of_what_training_changes_is_named(loop, where):
    found = [one.where.removeprefix(f"{loop.__name__}(): ") for one in Training(network=network).found(loop)]
    assert found == where


def history_in_a_file(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        with open("log.jsonl", "a") as file:
            file.write(json.dumps(float(cell(x, y))))
        losses = [json.loads(one) for one in open("log.jsonl")]
        ops.assign(rate, ms.Tensor(0.1 * np.mean(losses[-3:])))


def best_in_a_file(cell, batches, rate, restore):
    best = pathlib.Path("best.txt")
    restore()
    for x, y in batches:
        loss = float(cell(x, y))
        if loss < float(best.read_text()):
            best.write_text(str(loss))
            ops.assign(rate, rate * 0.5)


def done_once_by_a_marker(cell, batches, rate, restore):
    marker = pathlib.Path("marker")
    restore()
    for x, y in batches:
        loss = float(cell(x, y))
        if loss < 0.5 and not marker.exists():
            ops.assign(rate, rate * 0.5)
            marker.touch()


def done_once_by_a_folder(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        loss = float(cell(x, y))
        if loss < 0.5 and not os.path.exists("marker"):
            ops.assign(rate, rate * 0.5)
            os.mkdir("marker")


def level_in_a_shelf(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        loss = float(cell(x, y))
        with shelve.open("levels") as shelf:  # noqa: S301 - it is read and never run
            shelf["level"] = 0.5 * shelf.get("level", loss) + loss
            ops.assign(rate, rate / shelf["level"])


def files_of_a_log_and_of_the_data(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        weight = float(open("weight.txt").read())
        loss = cell(x, y * weight)
        with open("log.txt", "a") as file:
            print(float(loss), file=file)
        print(open("log.txt").read())


def left_out_by_a_later_start(cell, batches, rate, restore):
    left_out = pathlib.Path("left-out.txt")
    names = left_out.read_text().split() if left_out.exists() else []
    restore()
    for x, y in batches:
        loss = float(cell(x, y * (str(y.shape) in names)))
        if loss > 9:
            with open(left_out, "a") as file:
                print(y.shape, file=file)


def read_by_a_function(cell, batches, rate, restore):
    def rates_so_far():
        with open("rates.txt") as file:
            return [float(line) for line in file]

    rates = rates_so_far()
    restore()
    for x, y in batches:
        ops.assign(rate, ms.Tensor(0.1 if len(rates) > 3 else 0.2))
        cell(x, y)
        with open("rates.txt", "a") as file:
            print(0.1, file=file)


def rows_of_a_database(cell, batches, rate, restore):
    rows = sqlite3.connect("rows.db")
    rows.execute("create table if not exists rows(loss real)")
    restore()
    for x, y in batches:
        number = rows.execute("select count(*) from rows").fetchone()[0]
        rows.execute("insert into rows values (?)", (float(cell(x, y * number)),))


def rows_of_a_table(cell, batches, rate, restore):
    seen = np.fromfile("seen.bin", np.float32)
    restore()
    for x, y in batches:
        loss = float(cell(x, y * seen.mean()))
        np.full(3, loss, np.float32).tofile("seen.bin")


def variable_of_the_environment(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        ops.assign(rate, ms.Tensor(float(os.environ.get("RATE", "0.1"))))
        os.environ["RATE"] = str(float(cell(x, y)))


def item_of_the_environment(cell, batches, rate, restore):
    os.environ["RATE"] = "0.1"
    restore()
    for x, y in batches:
        ops.assign(rate, ms.Tensor(float(os.environ["RATE"])))
        os.environ["RATE"] = str(float(cell(x, y)))


def files_in_a_folder(cell, batches, rate, restore):
    hard = pathlib.Path("hard")
    restore()
    for x, y in batches:
        number = len([*hard.glob("*.txt")])
        loss = float(cell(x, y * (1 + number)))
        (hard / f"{loss}.txt").write_text("1")


def files_in_a_folder_before(cell, batches, rate, restore):
    number = len(os.listdir("."))
    restore()
    for x, y in batches:
        loss = float(cell(x, y * (1 + number)))
        np.save(f"{loss}.npy", x.asnumpy())


def file_that_stays_open(cell, batches, rate, restore):
    done = len(pathlib.Path("log.txt").read_text().split())
    with open("log.txt", "a") as log:
        restore()
        for x, y in batches:
            log.write(str(cell(x, y * done)))


def size_of_a_file(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        loss = float(cell(x, y * os.path.getsize("log.txt")))
        with open("log.txt", "a") as log:
            print(loss, file=log)


def outside_that_is_only_written_or_only_read(cell, batches, rate, restore):
    names, scale = os.listdir("."), float(os.environ.get("SCALE", "1"))
    restore()
    for number, (x, y) in enumerate(batches):
        loss = float(cell(x, y * len(names) * scale))
        os.environ["LAST"] = str(loss)
        pathlib.Path("kept", f"{number}.txt").write_text(str(loss))


def log_that_is_shown_and_settings(cell, batches, rate, restore):
    factor = float(pathlib.Path("factor.txt").read_text())
    log = pathlib.Path("log.txt").read_text()
    restore()
    for x, y in batches:
        loss = cell(x, y * factor)
        print(log)
        with open("log.txt", "a") as file:
            print(float(loss), file=file)
    print(open("best.txt").read())


@pytest.mark.parametrize(
    ("loop", "where"),
    [
        (left_out_by_a_later_start, ["file 'left-out.txt'"]),
        (read_by_a_function, ["file 'rates.txt'"]),
        (rows_of_a_database, ["the database 'rows.db'"]),
        (rows_of_a_table, ["file 'seen.bin'"]),
        (variable_of_the_environment, ["os.environ['RATE']"]),
        (item_of_the_environment, ["os.environ['RATE']"]),
        (files_in_a_folder, ["folder 'hard'"]),
        (files_in_a_folder_before, ["folder '.'"]),
        (file_that_stays_open, ["file 'log.txt'"]),
        (size_of_a_file, ["file 'log.txt'"]),
        (log_that_is_shown_and_settings, []),
        (outside_that_is_only_written_or_only_read, []),
        (history_in_a_file, ["file 'log.jsonl'"]),
        (best_in_a_file, ["file 'best.txt'"]),
        (level_in_a_shelf, ["file 'levels'"]),
        (done_once_by_a_marker, ["file 'marker'"]),
        (done_once_by_a_folder, ["file 'marker'"]),
        (files_of_a_log_and_of_the_data, []),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_file_that_a_loop_writes_and_reads_is_named(loop, where, tmp_path, monkeypatch):
    """Also if it was read before the restore, by this start."""
    monkeypatch.chdir(tmp_path)
    for name in ("rates.txt", "factor.txt", "log.txt", "seen.bin"):
        (tmp_path / name).write_text("1.0\n")
    found = [one.where.removeprefix(f"{loop.__name__}(): ") for one in Training().found(loop)]
    assert found == where


class Raw(io.RawIOBase):
    @property
    def name(self):
        raise AssertionError("code of the user's must not run")

    def writable(self):
        return True

    def write(self, data):
        return len(data)


def odd_files(cell, batches, rate, restore):
    detached = open("log.txt", "a")
    detached.detach()
    logs = bz2.open("log.bz2", "wt"), io.TextIOWrapper(io.BytesIO()), io.BufferedWriter(Raw()), detached
    packed, text, raw, gone = logs
    restore()
    for x, y in batches:
        loss = str(cell(x, y))
        packed.write(loss)
        text.write(loss)
        raw.write(loss.encode())
        gone.write(loss)


@pytest.mark.filterwarnings("ignore:.*unclosed file")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_odd_files_are_looked_at_without_their_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Training().found(odd_files) == []


class Meter:
    def __init__(self):
        self.steps = 0


def test_what_a_loop_with_a_file_writes_is_known(tmp_path, monkeypatch):
    """A value that training changes is named later only if no code that was read changes it."""
    monkeypatch.chdir(tmp_path)
    meter, written = Meter(), set()

    def loop(cell, batches, rate, restore):
        assert [*find_in_loops([], written=written)] == []
        restore()
        for x, y in batches:
            cell(x, y)
            meter.steps += 1
            with open("log.txt", "a") as log:
                print(meter.steps, file=log)

    Training().found(loop)
    assert Place(id(meter), "steps") in written


class Factor:
    def __init__(self):
        self.factor, self.best = 1.0, 9.0

    def feed(self, loss):
        self.factor = self.factor if loss < self.best else self.factor * 0.9
        self.best = min(self.best, loss)

    def __call__(self, epoch):
        return self.factor


def object_in_a_scheduler(cell, batches, rate, restore, *, scheduler, factor):
    restore()
    for x, y in batches:
        factor.feed(float(cell(x, y)))
        scheduler.step()


def test_object_in_a_scheduler_is_named():
    """The scheduler is given by name, but its ``state_dict()`` does not hold the functions that it calls."""
    factor = Factor()
    optimizer = optim.SGD(network.trainable_params(), 0.1)
    scheduler = optim.lr_scheduler.LambdaLR(optimizer, lr_lambda=[factor])
    assert scheduler.lr_lambdas == [factor]
    training = Training(optimizer=optimizer, scheduler=scheduler)
    found = training.found(functools.partial(object_in_a_scheduler, scheduler=scheduler, factor=factor))
    assert [one.where for one in found] == ["object_in_a_scheduler(): factor (Factor)"]
