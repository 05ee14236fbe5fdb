"""What is switched in mid-run, and what a train cell was made with: a resumed training has it again, or is refused."""

from __future__ import annotations

import mindspore as ms
import pytest
from mindspore import amp, nn
from mindspore.experimental import optim
from mindspore.train import Callback
from support.training import (
    NOTES,
    SIZE,
    CrashError,
    Interrupt,
    Job,
    Mlp,
    accumulation_cell,
    begin_process,
    both_modes,
    checkpoints,
    digest,
    each_mode,
    pipeline,
)

import ckptkit as ck
from ckptkit.errors import ResumeError
from ckptkit.mindspore.parameters.apply import mode_in_force
from ckptkit.mindspore.state.settings import Switches

SAID = ": restored to the value at the save"


class Switching(Callback):
    """Freezes a layer at the beginning and again, or not, when epochs begin; likewise the layer's normalization."""

    def __init__(self, job, parameters_in=(), norm_in=()):
        self.network = job.cell.network
        self.parameters_in = parameters_in
        self.norm_in = norm_in
        if parameters_in:
            self.freeze(True)

    def freeze(self, frozen):
        for one in self.network.hidden.get_parameters():
            one.requires_grad = not frozen

    def on_train_epoch_begin(self, run_context):
        epoch = run_context.original_args().cur_epoch_num
        if epoch in self.parameters_in:
            self.freeze(False)
        if epoch in self.norm_in:
            self.network.norm.set_train(False)


def whole_and_resumed(root, mode, at=2 * SIZE + 3, **switched):
    """The digests of an uninterrupted run, and of one that was interrupted in its last epoch and resumed there."""
    job = Job(mode=mode)
    expected = job.uninterrupted(3, Switching(job, **switched)).steps
    job = Job(mode=mode)
    with pytest.raises(CrashError):
        job.started(checkpoints(root, 1), 3, Switching(job, **switched), Interrupt(at + 1))
    job = Job(mode=mode)
    found = job.resumed(checkpoints(root), 3, Switching(job, **switched)).steps
    return {step: one for step, one in expected.items() if step > at}, found


@pytest.mark.covering(1)
@both_modes
@pytest.mark.parametrize("switched", [{"parameters_in": [2]}, {"norm_in": [2]}], ids=["unfrozen", "evaluating"])
def test_what_was_switched_once_stays_switched(tmp_path, mode, switched):
    expected, found = whole_and_resumed(tmp_path, mode, **switched)
    assert found == expected


def test_modes_of_first_micro_step_return_in_graph(tmp_path):
    """The resumed process compiles anew, and does not come to the epoch in which they were switched."""
    expected, found = whole_and_resumed(tmp_path, "graph", at=SIZE + 3, norm_in=[1])
    assert found
    assert found == expected


@pytest.mark.parametrize("otherwise", [False, True])
def test_what_is_put_back_is_named_if_the_script_has_changed(tmp_path, shown, otherwise):
    """A script that begins as it did when the run began does so at each resume."""
    for life in range(3):
        job = Job(mode="pynative")
        switching = Switching(job, parameters_in=[2], norm_in=[2])
        if otherwise and life == 2:
            job.cell.network.out.bias.requires_grad = False
        assert SAID not in shown()
        with pytest.raises(CrashError):
            job.started(checkpoints(tmp_path, 1), 5, switching, Interrupt((2 + life) * SIZE + 2))
    assert ("requires_grad of hidden.weight, requires_grad of hidden.bias" in shown()) == otherwise
    assert (SAID in shown()) == otherwise


class FreezingFirst(Switching):
    """Freezes the layer when training begins, which a resume has behind it."""

    def on_train_begin(self, run_context):
        self.freeze(True)


def test_switch_in_on_train_begin_is_not_repeated(tmp_path):
    job = Job()
    with pytest.raises(CrashError):
        job.started(checkpoints(tmp_path, 1), 2, FreezingFirst(job, parameters_in=[1]), Interrupt(3))
    job = Job()
    job.resumed(checkpoints(tmp_path), 1, FreezingFirst(job))
    assert all(one.requires_grad for one in job.cell.network.hidden.get_parameters())


def test_network_that_evaluates_hides_no_other_switch():
    begin_process()
    training, evaluating = Mlp(), Mlp()
    training.set_train()
    training.norm.set_train(False)
    evaluating.set_train(False)
    for networks, names in (([training, evaluating], ["norm", "1:?"]), ([evaluating, training], ["?", "1:norm"])):
        assert Switches(networks, []).record()["evaluating"] == names
    switches = Switches([training, evaluating], [])
    switches.note(1)
    assert switches.record()["evaluating"] == ["norm", "1:*"]


def test_cell_is_put_back_without_its_inner_cells():
    begin_process()
    network = nn.SequentialCell(nn.SequentialCell(nn.Dense(2, 2), nn.BatchNorm1d(2)))
    network.set_train()
    network[0].set_train(False)
    switches = Switches([network], [])
    assert switches.record()["evaluating"] == ["0", "0.0", "0.1"]
    switches.load({"without_grad": [], "evaluating": ["0.1"]}, 3)
    assert switches.record()["evaluating"] == ["0.1"]


def test_graph_compiled_without_evaluating_cell_is_refused():
    begin_process(mode="graph")
    network = Mlp()
    network.set_train()
    switches = Switches([network], [])
    switches.load({"without_grad": [], "evaluating": ["norm"]}, 3)
    network.norm.set_train()
    switches.check_compiled(3)
    with pytest.raises(ck.ResumeError, match="set_train of norm was switched before the first micro-step after"):
        switches.check_compiled(4)


@each_mode
def test_what_every_epoch_switches_is_exact(tmp_path, mode):
    expected, found = whole_and_resumed(tmp_path, mode, norm_in=[2, 3])
    assert found == expected


def test_a_graph_compiled_otherwise_is_refused(tmp_path):
    """Of the uninterrupted training, the compiled graph did not follow the switch."""
    with pytest.raises(ck.ResumeError, match="set_train of norm was switched before the first micro-step after"):
        whole_and_resumed(tmp_path, "graph", at=2 * SIZE, norm_in=[2, 3])


@pytest.mark.parametrize(
    ("option", "before", "now"),
    [
        ("clip_norm", "1.0", "None"),
        ("clip_norm", "None", "0.5"),
        ("loss_scaler", "'DynamicLossScaler(scale_factor=2, scale_window=50)'", "scale_window=60"),
    ],
)
def test_another_train_cell_is_refused_by_name(tmp_path, option, before, now):
    options = {
        "1.0": 1.0,
        "None": None,
        "0.5": 0.5,
        "'DynamicLossScaler(scale_factor=2, scale_window=50)'": amp.DynamicLossScaler(64, 2, 50),
        "scale_window=60": amp.DynamicLossScaler(64, 2, 60),
    }
    Job(cell=lambda: accumulation_cell(**{option: options[before]})).started(checkpoints(tmp_path), 1)
    changed = Job(cell=lambda: accumulation_cell(**{option: options[now]}))
    with pytest.raises(ck.ResumeError) as caught:
        changed.resumed(checkpoints(tmp_path), 2)
    assert f"was taken with {option}={before}, this train cell has" in str(caught.value)
    assert now in str(caught.value)
    assert changed.cell.counters.micro_steps == 0


def test_another_execution_mode_is_refused(tmp_path):
    Job().started(checkpoints(tmp_path), 1)
    with pytest.raises(ck.ResumeError, match=r"taken in PYNATIVE_MODE, this process is in GRAPH_MODE"):
        Job(mode="graph").resumed(checkpoints(tmp_path), 2)


class Evaluations:
    """A loop without a train cell, over a network with normalization, that evaluates at some steps."""

    def __init__(self, root, at, *, before=True, within=(False, True), late=False):
        begin_process()
        self.network = Mlp()
        if before:
            self.network.set_train()
        self.optimizer = nn.Momentum(self.network.trainable_params(), 0.1, 0.9)
        self.batches = ck.data.resumable(pipeline(), 1)
        self.state = ck.StateManager([self.network, self.optimizer], self.batches, training=ck.Training(ignore=NOTES))
        self.manager = ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=1), saving=ck.Saving(when_busy="wait"))
        self.at, self.within, self.late = at, within, late
        self.steps = {}

    def evaluate(self, x, y):
        for trains in self.within[:1]:
            self.network.set_train(trains)
        self.network(x, y)
        for trains in self.within[1:]:
            self.network.set_train(trains)

    def run(self, until=None):
        gradients = ms.value_and_grad(self.network, None, self.optimizer.parameters)
        with self.manager as manager:
            manager.restore(self.state)
            for x, y in self.batches:
                self.optimizer(gradients(x, y)[1])
                number = self.state.progress().batches_delivered
                if number in self.at and not self.late:
                    self.evaluate(x, y)
                if number in self.at and self.late:  # the save is within the evaluation
                    self.network.set_train(False)
                manager.step(self.state)
                if number in self.at and self.late:
                    self.network.set_train()
                self.steps[number] = digest(self.network)
                if number == until:
                    break
        return self.steps


@pytest.mark.parametrize(
    "options",
    [
        {"before": False, "within": (False, True)},  # the first evaluation says for the first time that it trains
        {"late": True},
        {},
    ],
    ids=["trains from the first evaluation on", "saved within an evaluation", "set back"],
)
@pytest.mark.parametrize("until", [3, 6, pytest.param(8, marks=pytest.mark.extended)])
def test_mode_of_a_whole_network_is_that_of_its_next_micro_step(tmp_path, options, until):
    def job(root):
        return Evaluations(tmp_path / root, [3, 7], **options)

    expected = job("whole").run()
    job("cut").run(until)
    assert job("cut").run() == {step: one for step, one in expected.items() if step > until}


@pytest.mark.parametrize("until", [3, 6, pytest.param(8, marks=pytest.mark.extended)])
def test_network_that_stays_in_evaluation_resumes_so(tmp_path, caplog, until):
    """At the first such save, the loop is taken for one that sets it back, and the next micro-step tells."""

    def job(root):
        return Evaluations(tmp_path / root, [3, 7], within=(False,))

    expected = job("whole").run()
    assert "Mlp was in evaluation mode at a save, and still is in the micro-step after it" in caplog.text
    job("cut").run(until)
    found = job("cut").run()
    assert (found == {step: one for step, one in expected.items() if step > until}) == (until != 3)


class Groups:
    """A loop with an optimizer of `mindspore.experimental`, whose options it changes as in ported code."""

    def __init__(self, root, kind, change):
        begin_process()
        self.network = Mlp().set_train()
        self.optimizer = kind(self.network.trainable_params())
        self.batches = ck.data.resumable(pipeline(), 1)
        self.state = ck.StateManager(
            [self.network, self.optimizer], self.batches, strict=True, training=ck.Training(ignore=NOTES)
        )
        self.manager = ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=1), saving=ck.Saving(when_busy="wait"))
        self.change, self.steps = change, {}

    def run(self, until=None):
        gradients = ms.value_and_grad(self.network, None, self.optimizer.parameters)
        with self.manager as manager:
            manager.restore(self.state)
            for x, y in self.batches:
                self.optimizer(gradients(x, y)[1])
                number = self.state.progress().batches_delivered
                if number % 4 == 3:  # each new value compiles the optimizer again
                    for group in self.optimizer.param_groups:
                        self.change(group)
                manager.step(self.state)
                self.steps[number] = digest(self.network)
                if number == until:
                    break
        return self.steps

    def restart(self, **options):
        for group in self.optimizer.param_groups:
            group.update(options)
        with self.manager as manager:
            manager.restore(self.state)


@pytest.mark.parametrize("mode", [ms.GRAPH_MODE, ms.PYNATIVE_MODE])
def test_mode_in_force_is_that_of_the_public_function(mode):
    begin_process(mode="graph" if mode == ms.GRAPH_MODE else "pynative")
    assert ms.get_context("mode") == mode
    assert mode_in_force() == ("GRAPH" if mode == ms.GRAPH_MODE else "PYNATIVE")


def decay_less(group):
    group["weight_decay"] *= 0.5


def remember_longer(group):
    group["betas"] = (min(0.99, group["betas"][0] + 0.01), group["betas"][1])


@pytest.mark.parametrize("change", [decay_less, pytest.param(remember_longer, marks=pytest.mark.extended)])
def test_options_of_parameter_groups_are_stored(tmp_path, caplog, change):
    def job(root):
        return Groups(tmp_path / root, lambda weights: optim.Adam(weights, lr=0.01, weight_decay=0.1), change)

    expected = job("whole").run()
    job("cut").run(5)
    caplog.clear()
    assert job("cut").run() == {step: one for step, one in expected.items() if step > 5}
    assert SAID not in caplog.text
    job("whole").restart(weight_decay=0.3)
    assert f"weight_decay of parameter group 0{SAID}" in caplog.text


class ByName:
    """A training whose network and optimizer are both given by name."""

    def __init__(self, root):
        begin_process(mode="pynative")
        self.network = Mlp().set_train()
        self.optimizer = optim.SGD(self.network.trainable_params(), lr=0.1)
        self.state = ck.StateManager([], network=self.network, optimizer=self.optimizer)
        self.manager = ck.CheckpointManager(root)
        self.manager.restore(self.state)

    def switched(self):
        """What may be switched, as it is now."""
        still = [one.name for one in self.network.get_parameters() if not one.requires_grad]
        evaluating = [name for name, cell in self.network.cells_and_names() if not cell.training]
        return still, evaluating, self.optimizer.param_groups[0]["weight_decay"], float(self.optimizer.lrs[0])


def freeze(job):
    job.network.hidden.weight.requires_grad = False


def evaluate(job):
    job.network.norm.set_train(False)


def decay(job):
    job.optimizer.param_groups[0]["weight_decay"] = 0.3


def warm_up(job):
    job.optimizer.lrs[0].set_data(ms.Tensor(0.25))


@pytest.mark.parametrize("switch", [freeze, evaluate, decay, warm_up])
def test_switches_of_cells_given_by_name_return(tmp_path, switch):
    job = ByName(tmp_path / "run")
    begun = job.switched()
    switch(job)
    expected = job.switched()
    assert expected != begun
    job.state.count_delivered()
    job.manager.step(job.state)
    job.manager.save_final(job.state)
    assert ByName(tmp_path / "run").switched() == expected


def test_replaced_parameter_of_a_network_given_by_name_is_refused(tmp_path):
    job = ByName(tmp_path / "run")
    job.network.out.bias = ms.Parameter(ms.Tensor([0.0, 0.0, 0.0]), name="out.bias")
    job.state.count_delivered()
    with pytest.raises(ResumeError, match=r"network/out\.bias.*ops\.assign"):
        job.manager.save(job.state)
