"""Under MindSpore, a checkpoint that is written while training goes on holds the bytes of the moment of its save."""

from __future__ import annotations

import threading

import mindspore as ms
import numpy as np
import pytest
from mindspore import amp, nn, ops
from mindspore.train import Callback, EarlyStopping, LossMonitor, Model
from support.live import LONG_SECONDS, Stall
from support.options import grouped
from support.training import Stop, begin_process

import ckptkit as ck
from ckptkit.checkpoint.open import open_checkpoint
from ckptkit.checkpoint.read import load
from ckptkit.format.layout import CheckpointName
from ckptkit.manager.writer import SaveHandle
from ckptkit.mindspore.state.manager import StateManager
from ckptkit.run.index import Index
from ckptkit.storage import LocalStorage
from ckptkit.testing.faults import Fault, FaultyStorage

WIDTH = 160  # its square, and six times the width, have more than 64 KiB or less
SIZE = 5  # batches per epoch


class Wide(nn.Cell):
    """Weights of 100 KiB, and buffers that the forward pass changes."""

    def __init__(self):
        super().__init__()
        self.first = nn.Dense(6, WIDTH)
        self.hidden = nn.Dense(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.out = nn.Dense(WIDTH, WIDTH)
        self.last = nn.Dense(WIDTH, 3)

    def logits(self, x):
        return self.last(self.out(ops.tanh(self.norm(self.hidden(self.first(x))))))

    def construct(self, x, y):
        return ops.square(self.logits(x) - y).mean()


class Assigning(Wide):
    """Its forward pass changes a weight, as spectral normalization written by hand may."""

    def construct(self, x, y):
        ops.assign(self.hidden.weight, self.hidden.weight * 0.999)
        return ops.square(self.logits(x) - y).mean()


class Evaluating(nn.Cell):
    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, x, y):
        logits = self.network.logits(x)
        return ops.square(logits - y).mean(), logits, y


def data(batches=SIZE):
    rng = np.random.default_rng(0)
    columns = {
        "x": rng.normal(size=(4 * batches, 6)).astype(np.float32),
        "y": rng.normal(size=(4 * batches, 3)).astype(np.float32),
    }
    return ms.dataset.NumpySlicesDataset(columns, shuffle=False).batch(4)


def train_cell(k=3, network=Wide, **options):
    network = network()
    cell = ck.AccumulationTrainCell(network, nn.Adam(network.trainable_params(), 1e-2), k, **options)
    return cell.set_train()


def large(cell):
    return cell.network.hidden.weight


def change(parameter):
    ops.assign(parameter, ops.zeros_like(parameter) + float(np.random.default_rng().random()))


@pytest.fixture
def copies(monkeypatch):
    """Copies of every parameter of each capture, taken at once while the world stands still."""
    taken = {}
    capture, begin = StateManager.capture, StateManager.capture_cycle_start

    def watched(original):
        def copied(state):
            found = original(state)
            at = (found.progress.cycles, found.progress.micro_step)
            taken[at] = {leaf.name: np.array(leaf.array, order="C").tobytes() for leaf in found.leaves}
            return found

        return copied

    monkeypatch.setattr(StateManager, "capture", watched(capture))
    monkeypatch.setattr(StateManager, "capture_cycle_start", watched(begin))
    return taken


def assert_whole(root, copies, *, at_least=1):
    """Every checkpoint on ``root`` has the bytes of its copy."""
    storage = LocalStorage(root)
    found = ck.CheckpointManager(root).checkpoints()
    assert len(found) >= at_least
    for one in found:
        name = CheckpointName.parse(one.name)
        contents = load(storage, open_checkpoint(storage, name, Index(storage).document(name.attempt)))
        expected = copies[name.cycles, name.micro_step]
        assert contents.tensors.keys() == expected.keys()
        torn = [key for key, bits in contents.tensors.items() if bits.tobytes() != expected[key]]
        assert torn == [], one.name


class Loop:
    """One's own loop over one train cell."""

    def __init__(self, storage, cell, *, calls=0, state=None, count=False, **options):
        self.cell = cell
        self.state = state or ck.StateManager(cell)
        self.reports = []
        self.count = count
        options = {"save": ck.SaveEvery(micro_steps=10**9), "keep": ck.KeepLatest(99), **options}
        self.manager = ck.CheckpointManager(
            storage, **grouped(on_save=self.reports.append, buffer_bytes=1 << 30, **options)
        )
        self.manager.restore(self.state)
        self.run(calls)

    def run(self, calls):
        rng = np.random.default_rng(1)
        for _ in range(calls):
            self.cell(
                ms.Tensor(rng.normal(size=(4, 6)).astype(np.float32)),
                ms.Tensor(rng.normal(size=(4, 3)).astype(np.float32)),
            )
            if self.count:
                self.state.count_delivered()
            self.manager.step(self.state)


def assert_window(report, *, copied_whole=False):
    """Whether the window was used."""
    later = report.cost.in_place_bytes + report.cost.fenced_bytes
    assert (later == 0) == copied_whole
    if not copied_whole:
        assert later >= 6 * WIDTH * WIDTH * 4


# One's own loop


@pytest.fixture
def stalled(root):
    """Begins a loop on a storage that stalls in the middle of a file, or before it."""

    def begin(cell, *, key="*/weights-000.safetensors", when="during", **options):
        stall = Stall()
        storage = FaultyStorage(LocalStorage(root), [Fault(stall, operations={"write"}, key=key, when=when)])
        return Loop(storage, cell, **options), stall

    return begin


@pytest.mark.parametrize(
    ("mode", "window", "k", "at", "kind"),
    [
        ("pynative", "auto", 1, 2, "weights"),
        ("graph", "slice", 3, 3, "optimizer"),
        ("pynative", "slice", 3, 4, "weights"),
        ("graph", "auto", 3, 5, "optimizer"),
    ],
)
def test_updates_while_the_storage_stalls_tear_nothing(root, stalled, copies, *, mode, window, k, at, kind):
    begin_process(mode=mode)
    loop, stall = stalled(train_cell(k), key=f"*/{kind}-000.safetensors", calls=at, window=window)
    handle = loop.manager.save(loop.state)
    loop.run(k + 1)
    assert stall.reached.wait(LONG_SECONDS)
    loop.run(k)
    stall.let_go()
    handle.result()
    loop.manager.close()
    assert_whole(root, copies)
    assert_window(loop.reports[0])


@pytest.mark.parametrize(("window", "within"), [("auto", False), ("slice", True)])
def test_set_data_gives_a_weight_other_memory(root, stalled, copies, window, within):
    """Between two saves; or after the fence, while the storage stalls."""
    begin_process()
    loop, stall = stalled(train_cell(), calls=4, window=window)
    handle = loop.manager.save(loop.state)
    if within:
        loop.manager.fence()
    else:
        stall.let_go()
        handle.result()
    large(loop.cell).set_data(ms.Tensor(np.full((WIDTH, WIDTH), 0.25, np.float32)))
    loop.run(1)
    stall.let_go()
    handle.result()
    handle = loop.manager.save(loop.state)
    loop.run(3)
    handle.result()
    assert_whole(root, copies, at_least=2)


def test_whoever_calls_the_fence_may_write(root, stalled, copies):
    begin_process()
    loop, stall = stalled(train_cell(), calls=4)
    handle = loop.manager.save(loop.state)
    loop.manager.fence()
    change(large(loop.cell))
    loop.run(1)
    stall.let_go()
    handle.result()
    assert_whole(root, copies)


@pytest.mark.parametrize(("mode", "before"), [("pynative", 1), ("graph", 0)])
def test_forward_that_changes_weight_is_reported(root, stalled, copies, *, mode, before, shown):
    """The first save is fenced from a forward pass that nobody has seen."""
    begin_process(mode=mode)
    loop, stall = stalled(train_cell(network=Assigning))
    loop.run(before)
    said = "the forward pass changes hidden.weight, which only an update should"
    assert (said in shown()) == bool(before)
    handle = loop.manager.save(loop.state)
    loop.run(1)
    stall.let_go()
    handle.result()
    assert said in shown()
    loop.run(3)
    loop.manager.save(loop.state).result()
    assert_whole(root, copies, at_least=2)


class AssigningInTraining(Assigning):
    """Its forward pass changes a weight only after ``set_train(True)``."""

    def construct(self, x, y):
        if self.training:
            ops.assign(self.hidden.weight, self.hidden.weight * 0.999)
        return ops.square(self.logits(x) - y).mean()


@pytest.mark.parametrize("when", ["before", "during"])
def test_forward_that_begins_to_change_a_weight_fails_one_save(root, stalled, copies, when, shown):
    """Whether the writer had read nothing of the weight or some: the next save copies it, and is whole."""
    begin_process()
    cell = train_cell(network=AssigningInTraining)
    cell.network.set_train(False)
    loop, stall = stalled(cell, when=when, calls=4)
    handle = loop.manager.save(loop.state)
    assert stall.reached.wait(LONG_SECONDS)
    cell.network.set_train(True)
    loop.run(1)
    stall.let_go()
    with pytest.raises(ck.StateMismatchError, match=r"hidden\.weight changed before an update, while a save read it"):
        handle.result()
    handle = loop.manager.save(loop.state)
    loop.run(2)
    handle.result()
    assert "a background save failed (1 in a row): hidden.weight changed" in shown()
    assert_whole(root, copies)


class Remembering(Wide):
    """Its forward pass changes a buffer of 100 KiB."""

    def __init__(self):
        super().__init__()
        self.register_buffer("bank", ms.Tensor(np.zeros((WIDTH, WIDTH), np.float32)))

    def construct(self, x, y):
        self.bank.copy_(self.bank + 1)
        return super().construct(x, y)


@pytest.mark.skipif(not hasattr(nn.Cell, "register_buffer"), reason="this MindSpore has no buffers")
def test_buffer_changed_while_storage_stalls_is_whole(root, stalled, copies):
    begin_process()
    loop, stall = stalled(train_cell(network=Remembering), calls=4)
    handle = loop.manager.save(loop.state)
    loop.run(1)
    stall.let_go()
    handle.result()
    assert stall.reached.is_set()
    assert int(loop.cell.network.bank.asnumpy()[0, 0]) == 5
    assert_whole(root, copies)
    assert "bank" in copies[1, 1]


class Second(nn.Cell):
    """Trains a network and a weight of another one."""

    def __init__(self, network, shared, optimizer):
        super().__init__(auto_prefix=False)
        self.network = network
        self.shared = shared
        self.optimizer = optimizer
        self.differentiate = ops.value_and_grad(self.forward, None, optimizer.parameters)

    def forward(self, x, y):
        return self.network(x, y) + self.shared(x, y)

    def construct(self, x, y):
        loss, gradients = self.differentiate(x, y)
        self.optimizer(gradients)
        return loss


def test_what_a_second_optimizer_writes_is_copied(root, stalled, copies):
    """Its step comes whenever its loop calls it, in the middle of the train cell's cycle."""
    begin_process()
    cell, other = train_cell(), Wide().set_train()
    other.update_parameters_name("other.")
    sgd = nn.Momentum([*other.trainable_params(), large(cell)], 0.1, 0.9)
    for one in (sgd.global_step, sgd.learning_rate):
        one.name = f"sgd.{one.name}"
    step = Second(other, cell.network, sgd)
    loop, stall = stalled(cell, calls=4, state=ck.StateManager([cell, step]))
    handle = loop.manager.save(loop.state)
    step(ms.Tensor(np.ones((4, 6), np.float32)), ms.Tensor(np.ones((4, 3), np.float32)))
    loop.run(1)
    stall.let_go()
    handle.result()
    assert_whole(root, copies)


class Foreign(nn.Cell):
    """Somebody's train cell: updates at every third call, and says so where it is asked."""

    def __init__(self, steady):
        super().__init__()
        self.network = Wide()
        weights = self.network.trainable_params()
        self.optimizer = nn.Adam(weights, 1e-2)
        self.sums = ms.ParameterTuple([ms.Parameter(ops.zeros_like(w), name=f"sum.{w.name}") for w in weights])
        self.differentiate = ops.value_and_grad(self.network, None, weights)
        self.accumulation_steps = 3
        self.micro_step = ms.Parameter(ms.Tensor(np.zeros(1), ms.int32), name="micro_step", requires_grad=False)
        self.steady_within_cycle = steady

    def construct(self, x, y):
        loss, gradients = self.differentiate(x, y)
        for total, gradient in zip(self.sums, gradients, strict=True):
            ops.assign_add(total, gradient)
        if self.micro_step.asnumpy()[0] == 2:
            self.optimizer(self.sums)
            for total in self.sums:
                ops.assign(total, ops.zeros_like(total))
            self.micro_step.set_data(ms.Tensor(np.zeros(1), ms.int32))
        else:
            self.micro_step.set_data(self.micro_step + 1)
        return loss


@pytest.mark.parametrize(("steady", "at"), [(False, 4), (True, 5)])
def test_foreign_cell_needs_promise_for_window(root, stalled, copies, steady, at):
    begin_process()
    loop, stall = stalled(Foreign(steady).set_train(), calls=at, count=True)
    handle = loop.manager.save(loop.state)
    loop.run(4)
    assert stall.reached.wait(LONG_SECONDS)
    loop.run(3)
    stall.let_go()
    handle.result()
    loop.manager.close()
    assert_whole(root, copies)
    assert_window(loop.reports[0], copied_whole=not steady)


@pytest.mark.parametrize("is_foreign", [False, True])
def test_restore_by_other_manager_tears_nothing(tmp_path, root, stalled, copies, is_foreign):
    """The older one's save is still being written, from the very memory that the restore overwrites."""

    def cell():
        begin_process()
        return Foreign(steady=True).set_train() if is_foreign else train_cell()

    other = Loop(tmp_path / "other", cell(), calls=2, count=is_foreign)
    other.manager.save(other.state).result()
    mine = dict(copies)
    loop, stall = stalled(cell(), calls=4, count=is_foreign)
    handle = loop.manager.save(loop.state)
    ck.CheckpointManager(tmp_path / "other").restore(ck.StateManager(loop.cell))
    stall.let_go()
    handle.result()
    assert_whole(root, copies)
    assert_whole(tmp_path / "other", mine)


# Under Model


class LetGo(Callback):
    """Lets each save go as soon as the update after it was made, and lets training wait until it is written."""

    def __init__(self, cell):
        self.cell = cell
        self.manager = None
        self._moved = threading.Condition()
        self._cycles = -1
        self._free = False

    def __call__(self) -> None:
        saved_at = self._saved_at()
        with self._moved:
            assert self._moved.wait_for(lambda: self._free or self._cycles > saved_at, LONG_SECONDS)

    def _saved_at(self):
        return self.manager()._run._window.progress.cycles

    def on_train_step_end(self, run_context):
        with self._moved:
            self._cycles = self.cell.counters.cycles
            self._moved.notify_all()
        handle = self.manager()._run.results.in_flight
        if handle is not None and self._cycles > self._saved_at():
            handle._ended.wait(LONG_SECONDS)
            assert handle._ended.is_open

    def free(self):
        with self._moved:
            self._free = True
            self._moved.notify_all()


class Job:
    """What a script does: ``Model.train`` or ``Model.fit`` with saves as often as can be."""

    def __init__(self, root, monkeypatch, *, window="auto", k=3, cell=None, read_only=(), **options):
        self.root = root
        self.cell = cell or train_cell(k)
        self.letting = LetGo(self.cell)
        stall = Fault(self.letting, operations={"write"}, key="*/weights-000.safetensors", when="during", times=None)
        wait = SaveHandle._wait
        monkeypatch.setattr(SaveHandle, "_wait", lambda handle, timeout: self.letting.free() or wait(handle, timeout))
        self.reports = []
        options = {"save": ck.SaveEvery(micro_steps=1), "keep": ck.KeepLatest(99), "when_busy": "skip", **options}
        self.ckpt = ck.CheckpointCallback(
            FaultyStorage(LocalStorage(root), [stall]),
            **grouped(
                window=window,
                read_only=[LetGo, *read_only],
                buffer_bytes=1 << 30,
                on_save=self.reports.append,
                **options,
            ),
        )
        self.letting.manager = lambda: self.ckpt._session.manager

    def train(self, before=(), after=(), epochs=2):
        model = Model(self.cell)
        self._run(model.train, model, before, after, epochs)

    def fit(self, before=(), after=(), epochs=2):
        evaluating = Evaluating(self.cell.network)
        model = Model(self.cell, eval_network=evaluating, eval_indexes=[0, 1, 2], metrics={"mae"})
        self._run(model.fit, model, before, after, epochs, data(2))

    def _run(self, verb, model, before, after, epochs, *more):
        dataset = data()
        point = self.ckpt.resume(model, dataset, epochs)
        callbacks = [self.letting, *before, self.ckpt, *after]
        verb(epochs, dataset, *more, callbacks=callbacks, initial_epoch=point.epoch)


@pytest.mark.parametrize(
    ("mode", "window", "k", "remainder"), [("pynative", "auto", 1, "carry"), ("graph", "slice", 3, "flush")]
)
def test_a_slow_disk_under_model_tears_nothing(root, copies, monkeypatch, *, shown, mode, window, k, remainder):
    begin_process(mode=mode)
    job = Job(root, monkeypatch, window=window, cell=train_cell(k, remainder=remainder))
    job.train()
    assert_whole(root, copies, at_least=3)
    for report in job.reports:
        assert_window(report)
    assert "may change parameters" not in shown()


def test_skipped_update_of_loss_scaler_tears_nothing(root, copies, monkeypatch):
    begin_process()
    cell = train_cell(loss_scaler=amp.DynamicLossScaler(2.0**127, 2**16, 2))
    Job(root, monkeypatch, cell=cell).train(epochs=3)
    assert 0 < cell.counters.updates < cell.counters.cycles
    assert_whole(root, copies, at_least=3)


class Averaged(Callback):
    """Puts other weights in the place of the trained ones, at the hooks that are named."""

    def __init__(self, cell, *hooks):
        self.cell = cell
        for hook in hooks:
            setattr(self, hook, self._swap)

    def _swap(self, run_context):
        for one in (large(self.cell), self.cell.network.out.weight):
            change(one)


class AveragedAtSteps(Averaged):
    def on_train_step_end(self, run_context):
        self._swap(run_context)


@pytest.mark.parametrize("place", ["before", "after"])
def test_weights_swapped_at_steps_are_copied_immediately(root, copies, monkeypatch, *, shown, place):
    begin_process()
    job = Job(root, monkeypatch)
    job.train(**{place: [AveragedAtSteps(job.cell)]})
    assert "AveragedAtSteps may change parameters within an epoch" in shown()
    assert "read_only=[AveragedAtSteps]" in shown()
    assert_whole(root, copies, at_least=3)
    for report in job.reports:
        assert_window(report, copied_whole=True)


@pytest.mark.parametrize(
    ("place", "hooks", "every"),
    [
        ("before", ["on_eval_begin", "on_eval_end"], 1),
        ("after", ["on_train_epoch_end"], SIZE),
        ("before", ["on_train_end"], SIZE),
    ],
)
def test_weights_swapped_around_evaluation_are_fenced(root, copies, monkeypatch, *, place, hooks, every):
    """Saves as often as can be, of which the last of an epoch is skipped; and one at the end of each epoch."""
    begin_process()
    job = Job(root, monkeypatch, save=ck.SaveEvery(micro_steps=every))
    job.fit(**{place: [Averaged(job.cell, *hooks)]}, epochs=3)
    assert_whole(root, copies, at_least=3)
    assert_window(job.reports[0], copied_whole=place == "after")


class StoppingAtEpochs(Callback):
    def on_train_epoch_end(self, run_context):
        run_context.request_stop()


@pytest.mark.parametrize(
    ("at", "hook"), [(4, "on_train_epoch_end"), (SIZE, "on_train_end"), (SIZE + 2, "on_eval_begin")]
)
def test_later_callback_ending_training_tears_nothing(root, copies, monkeypatch, at, hook):
    """Other callbacks change no weights between its request to stop and the last save."""
    begin_process()
    job = Job(root, monkeypatch, read_only=[Stop])
    job.fit(before=[Averaged(job.cell, hook)], after=[Stop(at)], epochs=3)
    assert_whole(root, copies)


def test_stop_after_saved_epoch_tears_nothing(root, copies, monkeypatch):
    """A callback ends training after the save of that epoch."""
    begin_process()
    job = Job(root, monkeypatch, save=ck.SaveEvery(micro_steps=SIZE))
    job.train(before=[Averaged(job.cell, "on_train_end")], after=[StoppingAtEpochs()], epochs=3)
    assert_whole(root, copies)


def test_best_weights_of_early_stopping_are_fenced(root, copies, monkeypatch):
    begin_process()
    job = Job(root, monkeypatch)
    job.fit(before=[EarlyStopping("mae", patience=0, min_delta=1e9, mode="min", restore_best_weights=True)], epochs=4)
    assert_whole(root, copies, at_least=3)
    assert_window(job.reports[0])


class OnlyLooking(Callback):
    """Reaches the network, so that its code proves nothing."""

    def on_train_step_end(self, run_context):
        run_context.original_args().train_network.trainable_params()


class LookingToo(OnlyLooking):
    pass


class PrintsLoss(Callback):
    """As half of all scripts have it."""

    def __init__(self):
        super().__init__()
        self.losses = []

    def on_train_step_end(self, run_context):
        params = run_context.original_args()
        self.losses.append(float(params.net_outputs.asnumpy()))
        print(f"step {params.cur_step_num}: {sum(self.losses) / len(self.losses):.4f}")


def test_callbacks_that_only_look_keep_the_window(root, copies, monkeypatch, shown):
    """Those that are declared, as a class or an object, and those whose code proves it."""
    begin_process()
    looking, printing = LookingToo(), PrintsLoss()
    job = Job(root, monkeypatch, read_only=[OnlyLooking, looking])
    job.train(before=[OnlyLooking(), looking, LossMonitor(), printing])
    assert len(printing.losses) > SIZE
    assert "may change parameters" not in shown()
    assert_whole(root, copies, at_least=3)
    assert_window(job.reports[0])


class Plain(Wide):
    """Without anything that a forward pass changes."""

    def __init__(self):
        super().__init__()
        self.norm = nn.Identity()


def test_rewound_saves_are_whole(root, copies, monkeypatch):
    begin_process()
    Job(root, monkeypatch, cell=train_cell(network=Plain), mid_cycle="rewind").train()
    assert_whole(root, copies, at_least=2)
