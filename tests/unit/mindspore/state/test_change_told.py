"""What training changes in code that was not read is reported at the next micro-steps, once, and refused by strict."""

from __future__ import annotations

import threading

import mindspore as ms
import pytest
from mindspore.train import Callback, LambdaCallback, Model
from support.training import adam, begin_process, pipeline
from test_start_values import Masked, drawn

import ckptkit as ck
from ckptkit.errors import ResumeError

SAID = "training changes this in code that could not be read"
WITHOUT_SOURCE = """
class Switch:
    def __init__(self):
        self.flag = False

    def set(self):
        self.__dict__.update(flag=True)

    def is_set(self):
        return self.flag
"""
made = {"__name__": __name__}
exec(WITHOUT_SOURCE, made)  # noqa: S102 - a class without a file


class Flag:
    """Is set by a method that Python has no source of."""

    def __init__(self):
        self.event = made["Switch"]()

    def state_dict(self):
        return {"is_set": self.event.is_set()}

    def load_state_dict(self, state):
        if state["is_set"]:
            self.event.set()


def life(root, one, *, at=2, until=6, save=2, strict=False, **kept):
    begin_process()
    network = Masked(drawn(1))
    cell = ck.AccumulationTrainCell(network, adam(network.trainable_params()), 2).set_train()
    batches = ck.data.resumable(pipeline(), epochs=1)
    state = ck.StateManager(cell, batches, strict=strict, **kept)
    saving = ck.Saving(when_busy="wait")
    with ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=save), saving=saving) as manager:
        manager.restore(state)
        event = one.event
        for x, y in batches:
            cell(x * 0.5 if event.is_set() else x, y)
            if cell.counters.micro_steps == at:
                event.set()
            manager.step(state)
            if cell.counters.micro_steps == until:
                return


def test_change_is_reported_once(root, caplog):
    life(root, Flag())
    assert caplog.text.count(SAID) == 1
    assert "life(): event.flag: " + SAID in caplog.text


def test_change_at_a_later_step_is_reported_by_the_next_power_of_two(root, caplog):
    life(root, Flag(), at=5, until=7)
    assert SAID not in caplog.text
    life(root, Flag(), at=5, until=8, save=100)  # resumes: the count of looks begins again with each process
    assert SAID not in caplog.text


def test_object_that_is_given_by_name_is_not_reported(root, caplog):
    flag = Flag()
    life(root, flag, flag=flag)
    assert SAID not in caplog.text


class Loader:
    def __init__(self):
        self.taken = threading.Semaphore(1000)

    def __iter__(self):
        for batch in pipeline().create_tuple_iterator(output_numpy=True, num_epochs=1):
            self.taken.acquire()
            yield tuple(ms.Tensor(one) for one in batch)


@pytest.mark.parametrize("is_loader", [True, False])
def test_what_the_data_change_themselves_is_not_reported(root, caplog, is_loader):
    begin_process()
    loader, other = Loader(), threading.Semaphore(1000)
    network = Masked(drawn(1))
    cell = ck.AccumulationTrainCell(network, adam(network.trainable_params()), 2).set_train()
    batches = ck.data.resumable(loader, epochs=1)
    with ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=2)) as manager:
        manager.restore(state := ck.StateManager(cell, batches))
        for x, y in batches:
            (loader.taken if is_loader else other).acquire()
            cell(x, y)
            manager.step(state)
    assert (SAID in caplog.text) == (not is_loader)


def test_strict_refuses_before_the_first_save_and_reports_after_it(root, caplog):
    with pytest.raises(ResumeError, match=SAID):
        life(root / "a", Flag(), save=100, strict=True)
    life(root / "b", Flag(), at=3, save=1, strict=True)
    assert SAID in caplog.text


def test_function_in_a_callback_of_mindspore_is_looked_at(root, caplog):
    begin_process()
    network = Masked(drawn(1))
    flag = threading.Event()
    other = LambdaCallback(on_train_step_end=lambda run: flag.set() if run.original_args().cur_step_num == 2 else None)
    callback = ck.CheckpointCallback(root, save=ck.SaveEvery(micro_steps=2), saving=ck.Saving(when_busy="wait"))
    cell = ck.AccumulationTrainCell(network, adam(network.trainable_params()), 2).set_train()
    callback.train(Model(cell), 1, pipeline(), callbacks=[other])
    assert "flag._flag" in caplog.text


class Decay(Callback):
    def __init__(self):
        self.gain = 1.0

    def on_train_step_end(self, run_context):
        vars(self)["gain"] *= 0.9
        if self.gain < 0:
            run_context.request_stop()


@pytest.mark.parametrize("is_given", [True, False])
def test_callback_that_is_given_by_name_or_warned_of_is_not_reported(root, caplog, is_given):
    begin_process()
    network, other = Masked(drawn(1)), Decay()
    stateful = {"decay": ck.attributes(other, "gain")} if is_given else None
    callback = ck.CheckpointCallback(root, save=ck.SaveEvery(micro_steps=2), stateful=stateful)
    cell = ck.AccumulationTrainCell(network, adam(network.trainable_params()), 2).set_train()
    callback.train(Model(cell), 1, pipeline(), callbacks=[other])
    assert SAID not in caplog.text
    assert ("may keep state that is not in the checkpoints: gain" in caplog.text) == (not is_given)
