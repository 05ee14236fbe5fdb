"""What is switched in mid-run, and what a train cell was made with: a resumed training has it again, or is refused."""

import re

import mindspore as ms
import pytest
from mindspore import amp, nn
from mindspore.experimental import optim
from mindspore.train import Callback
from support.memory import contents_of
from support.own_loop import OwnLoop
from support.training import (
    NOTES,
    CrashError,
    Interrupt,
    Job,
    Mlp,
    accumulation_cell,
    begin_process,
    checkpoints,
    digest,
    later,
    pipeline,
)

import ckptkit as ck
from ckptkit.errors import ResumeError
from ckptkit.mindspore.parameters.apply import mode_in_force
from ckptkit.mindspore.state.cell_settings import Switches

SAID = ": restored to the value at the save"
SIZE = 5  # batches per epoch


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

    def on_train_begin(self, run_context):
        """Does so again, which a resume has behind it."""
        if self.parameters_in:
            self.freeze(True)

    def on_train_epoch_begin(self, run_context):
        epoch = run_context.original_args().cur_epoch_num
        if epoch in self.parameters_in:
            self.freeze(False)
        if epoch in self.norm_in:
            self.network.norm.set_train(False)


@pytest.mark.parametrize(
    ("mode", "at", "switched"),
    [
        ("pynative", 2 * SIZE + 3, {"parameters_in": [2], "norm_in": [2]}),
        ("graph", 2 * SIZE + 3, {"norm_in": [2]}),
        # The resumed process compiles anew, and does not come to the epoch in which they were switched.
        ("graph", SIZE + 3, {"norm_in": [1]}),
    ],
)
def test_what_was_switched_once_stays_switched(tmp_path, mode, at, switched):
    def short():
        job = Job(mode=mode, data=lambda: pipeline(4 * SIZE))
        return job, Switching(job, **switched)

    job, switching = short()
    expected = job.uninterrupted(3, switching).steps
    job, switching = short()
    with pytest.raises(CrashError):
        job.started(checkpoints(tmp_path, at), 3, switching, Interrupt(at + 1))
    job, switching = short()
    assert job.resumed(checkpoints(tmp_path), 3, switching).steps == later(expected, at)


def test_modes_are_put_back_cell_by_cell(caplog):
    """What is not known stays as it is, and a network that evaluates hides no other switch."""
    training, evaluating = Mlp().set_train(), Mlp().set_train(False)
    training.norm.set_train(False)
    for networks, names in (([training, evaluating], ["norm", "1:?"]), ([evaluating, training], ["?", "1:norm"])):
        assert Switches(networks, []).record()["evaluating"] == names
    switches = Switches([training, evaluating], [])
    switches.load({"without_grad": [], "evaluating": ["norm", "1:?"]}, 3)
    assert not evaluating.training
    switches.note()
    assert switches.record()["evaluating"] == ["norm", "1:*"]
    network = nn.SequentialCell(nn.SequentialCell(nn.Dense(2, 2), nn.BatchNorm1d(2))).set_train()
    network[0].set_train(False)
    switches = Switches([network], [])
    assert switches.record()["evaluating"] == ["0", "0.0", "0.1"]
    for said in (True, False):
        switches.load({"without_grad": [], "evaluating": ["0.1"]}, 3)
        assert switches.record()["evaluating"] == ["0.1"]
        assert (f"set_train of 0, set_train of 0.0{SAID}" in caplog.text) == said
        caplog.clear()
        network.set_train(False)  # or it was not told yet to train


def test_graph_compiled_without_evaluating_cell_is_refused():
    begin_process(mode="graph")
    network = Mlp().set_train()
    switches = Switches([network], [])
    switches.load({"without_grad": [], "evaluating": ["norm"]}, 3)
    network.norm.set_train()
    switches.check_compiled(3)
    with pytest.raises(ck.ResumeError, match="set_train of norm was switched before the first micro-step after"):
        switches.check_compiled(4)


@pytest.mark.parametrize(
    ("first", "second", "mode", "words"),
    [
        ({"clip_norm": 1.0}, {}, "pynative", "was taken with clip_norm=1.0, this train cell has None"),
        ({}, {"clip_norm": 0.5}, "pynative", "was taken with clip_norm=None, this train cell has 0.5"),
        ({"window": 50}, {"window": 60}, "pynative", "scale_window=50)', this train cell has 'DynamicLossScaler("),
        ({"remainder": "flush"}, {"remainder": "drop"}, "pynative", "remainder='flush', this train cell has 'drop'"),
        ({}, {"normalize": "samples"}, "pynative", "normalize='micro_batches', this train cell has 'samples'"),
        ({}, {"k": 2}, "pynative", "=4, this train cell has 2. Build it with accumulation_steps=4, or pass training="),
        ({}, {"k": {0: 4, 50: 2}}, "pynative", "=4, this train cell has {0: 4, 50: 2}. Build it with accum"),
        ({}, {}, "graph", "taken in PYNATIVE_MODE, this process is in GRAPH_MODE"),
    ],
)
def test_another_train_cell_or_mode_is_refused_by_name(first, second, mode, words):
    def build(*, window=None, **options):
        return accumulation_cell(loss_scaler=window and amp.DynamicLossScaler(64, 2, window), **options)

    state = ck.StateManager(build(**first))
    state.begin("runs/other")
    contents = contents_of(state.capture(), "a000001-c0000000000-m0000")
    begin_process(mode=mode)
    assert mode_in_force() == mode.upper()
    cell = build(**second)
    before = digest(cell)
    with pytest.raises(ck.ResumeError, match=re.escape(words)):
        ck.StateManager(cell).apply(contents)
    assert digest(cell) == before


class Evaluations(OwnLoop):
    """A loop without a train cell, over a network with normalization, that evaluates at some steps."""

    def __init__(self, root, *, before=True, within=(False, True), late=False):
        begin_process()
        self.network = Mlp()
        if before:  # else the first evaluation says for the first time that it trains
            self.network.set_train()
        self.within, self.late = within, late
        self.optimizer = nn.Momentum(self.network.trainable_params(), 0.1, 0.9)
        self.gradients = ms.value_and_grad(self.network, None, self.optimizer.parameters)
        batches = ck.data.resumable(pipeline(36), 1)
        state = ck.StateManager([self.network, self.optimizer], batches, training=ck.Training(ignore=NOTES))
        super().__init__(root, self.optimizer, batches, state=state, save=ck.SaveEvery(micro_steps=1))

    def train(self, batch):
        if self.late:  # the save was within the evaluation
            self.network.set_train()
        self.optimizer(self.gradients(*batch)[1])
        if self.state.progress().batches_delivered in (3, 7):
            self.network.set_train(self.within[0])
            self.network(*batch)
            self.network.set_train(self.within[-1])

    def look(self, batch):
        return digest(self.network)


@pytest.mark.parametrize("options", [{"before": False}, {"within": (False,), "late": True}, {}])
def test_mode_of_a_whole_network_is_that_of_its_next_micro_step(tmp_path, options):
    expected, _, second, last = (
        Evaluations(tmp_path / root, **options).run(until).steps
        for root, until in (("whole", None), ("cut", 3), ("cut", 6), ("cut", None))
    )
    assert second | last == later(expected, 3)
    assert min(last) == 7


def test_network_that_stays_in_evaluation_resumes_so(tmp_path, caplog):
    """At the first such save, the loop is taken for one that sets it back, and the next micro-step tells."""
    expected = Evaluations(tmp_path / "whole", within=(False,)).run().steps
    assert "Mlp was in evaluation mode at a save, and still is in the micro-step after it" in caplog.text
    for until in (3, 6):
        _, steps = (Evaluations(tmp_path / f"{until}", within=(False,)).run(at).steps for at in (until, None))
        assert (steps == later(expected, until)) == (until != 3)


class ByName:
    def __init__(self, root, weight_decay=0.1):
        begin_process(mode="pynative")
        self.network = Mlp().set_train()
        self.optimizer = optim.Adam(self.network.trainable_params(), lr=0.1, weight_decay=weight_decay)
        self.state = ck.StateManager([], network=self.network, optimizer=self.optimizer)
        self.manager = ck.CheckpointManager(root)
        self.manager.restore(self.state)

    def switched(self):
        still = [one.name for one in self.network.get_parameters() if not one.requires_grad]
        evaluating = [name for name, cell in self.network.cells_and_names() if not cell.training]
        group = self.optimizer.param_groups[0]
        return still, evaluating, group["weight_decay"], group["betas"], float(self.optimizer.lrs[0])


def test_switches_of_cells_given_by_name_return(tmp_path, caplog):
    """And are named where the script says otherwise than as the run began."""
    job = ByName(tmp_path / "run")
    begun = job.switched()
    job.network.hidden.weight.requires_grad = False
    job.network.norm.set_train(False)
    job.optimizer.param_groups[0].update(weight_decay=0.3, betas=(0.8, 0.9))
    job.optimizer.lrs[0].set_data(ms.Tensor(0.25))
    expected = job.switched()
    assert not any(now == then for now, then in zip(expected, begun, strict=True))
    job.state.count_delivered()
    job.manager.step(job.state)
    job.manager.save_final(job.state)
    assert ByName(tmp_path / "run").switched() == expected
    assert SAID not in caplog.text
    assert ByName(tmp_path / "run", weight_decay=0.2).switched() == expected
    assert f"weight_decay of parameter group optimizer/0{SAID}" in caplog.text


def test_replaced_parameter_of_a_network_given_by_name_is_refused(tmp_path):
    job = ByName(tmp_path / "run")
    job.network.out.bias = ms.Parameter(ms.Tensor([0.0, 0.0, 0.0]), name="out.bias")
    job.state.count_delivered()
    with pytest.raises(ResumeError, match=r"network/out\.bias.*ops\.assign"):
        job.manager.save(job.state)
