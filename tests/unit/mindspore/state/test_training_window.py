"""Under MindSpore, a checkpoint that is written while training goes on holds the bytes of the moment of its save."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from mindspore.train import Callback
from support.live import LONG_SECONDS, Stall
from support.options import grouped
from support.training import Job, begin_process, checkpoints, pipeline, samples

import ckptkit as ck
from ckptkit.checkpoint.open import open_checkpoint
from ckptkit.checkpoint.read import load
from ckptkit.format.layout import CheckpointName
from ckptkit.mindspore.state.manager import StateManager
from ckptkit.run.index import Index
from ckptkit.storage import LocalStorage
from ckptkit.testing.faults import Fault, FaultyStorage

WIDTH = 160  # its square, and six times the width, have more than 64 KiB or less


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
    """Its forward pass changes a weight, as spectral normalization written by hand may, if it trains."""

    def construct(self, x, y):
        if self.training:
            ops.assign(self.hidden.weight, self.hidden.weight * 0.999)
        return ops.square(self.logits(x) - y).mean()


def train_cell(k=3, network=Wide, **options):
    network = network()
    cell = ck.AccumulationTrainCell(network, nn.Adam(network.trainable_params(), 1e-2), k, **options)
    return cell.set_train()


def change(parameter):
    ops.assign(parameter, ops.zeros_like(parameter) + float(np.random.default_rng().random()))


@pytest.fixture
def copies(monkeypatch):
    """Copies of every parameter of each capture, taken at once while the world stands still."""
    taken = {}

    capture = StateManager.capture

    def copied(state):
        found = capture(state)
        at = (found.progress.cycles, found.progress.micro_step)
        taken[at] = {leaf.name: np.array(leaf.array, order="C").tobytes() for leaf in found.leaves}
        return found

    monkeypatch.setattr(StateManager, "capture", copied)
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

    def __init__(self, storage, cell, *, calls=0, **options):
        self.cell = cell
        self.state = ck.StateManager(cell)
        self.reports = []
        options = {"save": ck.SaveEvery(micro_steps=10**9), "keep": ck.KeepLatest(99), **options}
        self.manager = ck.CheckpointManager(
            storage, **grouped(on_save=self.reports.append, buffer_bytes=1 << 30, **options)
        )
        self.manager.restore(self.state)
        self.run(calls)

    def run(self, calls):
        for seed in range(calls):
            self.cell(*map(ms.Tensor, samples(4, seed).values()))
            self.manager.step(self.state)


@pytest.fixture
def stalled(root):
    """Begins a loop on a storage that stalls in the middle of a file, or before it."""

    def begin(cell, *, kind="weights", when="during", **options):
        fault = Fault(stall := Stall(), operations={"write"}, key=f"*/{kind}-000.safetensors", when=when)
        return Loop(FaultyStorage(LocalStorage(root), [fault]), cell, **options), stall

    return begin


@pytest.mark.parametrize(
    ("mode", "window", "k", "at", "kind"),
    [("pynative", "auto", 1, 2, "weights"), ("graph", "slice", 3, 3, "optimizer"), ("graph", "auto", 3, 5, "weights")],
)
def test_updates_while_the_storage_stalls_tear_nothing(root, stalled, copies, *, mode, window, k, at, kind):
    begin_process(mode=mode)
    loop, stall = stalled(train_cell(k), kind=kind, calls=at, window=window)
    handle = loop.manager.save(loop.state)
    loop.run(k + 1)
    assert stall.reached.wait(LONG_SECONDS)
    loop.run(k)
    stall.let_go()
    handle.result()
    loop.manager.close()
    assert_whole(root, copies)
    cost = loop.reports[0].cost
    assert cost.in_place_bytes + cost.fenced_bytes >= 6 * WIDTH * WIDTH * 4, "the window was used"


@pytest.mark.parametrize("within", [False, True])
def test_set_data_gives_a_weight_other_memory(root, stalled, copies, within):
    """Between two saves; or after the fence, while the storage stalls. Whoever calls the fence may also write."""
    begin_process(mode="graph")  # in PYNATIVE the save refuses
    loop, stall = stalled(train_cell(), calls=4)
    handle = loop.manager.save(loop.state)
    if within:
        loop.manager.fence()
        change(loop.cell.network.out.weight)
    else:
        stall.let_go()
        handle.result()
    loop.cell.network.hidden.weight.set_data(ms.Tensor(np.full((WIDTH, WIDTH), 0.25, np.float32)))
    loop.run(1)
    stall.let_go()
    handle.result()
    handle = loop.manager.save(loop.state)
    loop.run(3)
    handle.result()
    assert_whole(root, copies, at_least=2)


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


@pytest.mark.parametrize("when", ["before", "during"])
def test_forward_that_begins_to_change_a_weight_fails_one_save(root, stalled, copies, when, shown):
    """Whether the writer had read nothing of the weight or some: the next save copies it, and is whole."""
    cell = train_cell(network=Assigning)
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


@pytest.mark.parametrize("hook", ["on_eval_begin", "on_train_step_end"])
def test_callback_that_changes_weights_tears_no_save(root, copies, hook, shown):
    """While the storage holds a save that was made within the epoch: before the evaluation, or at any step."""
    fault = Fault(stall := Stall(), operations={"write"}, key="*/weights-000.safetensors", when="during")

    def swap(self, run_context):
        if job.cell.counters.micro_steps == 5:
            assert stall.reached.wait(LONG_SECONDS)
            change(job.cell.network.hidden.weight)
            stall.let_go()

    job = Job(fit=True, data=lambda: pipeline(20), cell=lambda: train_cell(9))
    ckpt = checkpoints(FaultyStorage(LocalStorage(root), [fault]), 3)
    ckpt.fit(job.model, 1, job.data, job.valid, callbacks=[type("Swap", (Callback,), {hook: swap})()])
    assert ("Swap may change parameters within an epoch" in shown()) == (hook == "on_train_step_end")
    assert_whole(root, copies, at_least=2)


def test_restore_by_other_manager_tears_nothing(tmp_path, root, stalled, copies):
    """The older one's save is still being written, from the very memory that the restore overwrites."""
    other = Loop(tmp_path / "other", train_cell(), calls=2)
    other.manager.save(other.state).result()
    mine = dict(copies)
    begin_process()
    loop, stall = stalled(train_cell(), calls=4)
    handle = loop.manager.save(loop.state)
    ck.CheckpointManager(tmp_path / "other").restore(ck.StateManager(loop.cell))
    stall.let_go()
    handle.result()
    assert_whole(root, copies)
    assert_whole(tmp_path / "other", mine)
