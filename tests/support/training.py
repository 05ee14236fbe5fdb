"""Trainings small enough to compare bit by bit, and the stand-in for a fresh process."""

import contextlib
import functools
import hashlib
import random
import sys

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore import nn, ops
from mindspore.train import Callback, Model

import ckptkit as ck
from ckptkit.core.state_encoding import encode_tree
from ckptkit.mindspore.rng import capture_rng
from support.options import grouped

each_mode = pytest.mark.parametrize("mode", ["pynative", pytest.param("graph", marks=pytest.mark.extended)])
both_modes = pytest.mark.parametrize("mode", ["pynative", "graph"])  # the default suite compiles, too
MODES = {"graph": ms.GRAPH_MODE, "pynative": ms.PYNATIVE_MODE}
SEED = 5
K = 4
SIZE = 11  # batches per epoch: not a multiple of K, so that cycles run across epochs
UNSET_SEED = 5489


def begin_process(seed: int | None = SEED, mode: str = "pynative") -> None:
    """Bring the process-wide state where a script stands after ``ms.set_seed(seed)``, or without it."""
    ms.set_context(mode=MODES[mode])
    seeds = sys.modules["mindspore.common.seed"]
    seeds._GLOBAL_SEED = None
    seeds._KERNEL_SEED.clear()
    ds.config.set_seed(UNSET_SEED)
    ds.config.set_fast_recovery(True)
    ds.config.set_debug_mode(False)
    random.seed()
    np.random.seed()
    if seed is not None:
        ms.set_seed(seed)


def disturb() -> None:
    """Move every generator but not the dataset seed, so that only a restore can bring it back."""
    random.seed(999)
    np.random.seed(999)
    seeds = sys.modules["mindspore.common.seed"]
    seeds._GLOBAL_SEED = 31337
    seeds._KERNEL_SEED[("Dropout", 0)] = 77


class Mlp(nn.Cell):
    """Dense layers with batch normalization: parameters that the optimizer knows and buffers that it does not."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Dense(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.out = nn.Dense(8, 3)

    def logits(self, x):
        return self.out(ops.tanh(self.norm(self.hidden(x))))

    def construct(self, x, y):
        return ops.square(self.logits(x) - y).mean()


class Dropping(Mlp):
    """Draws from MindSpore's own generator in PyNative mode."""

    def logits(self, x):
        return self.out(ops.dropout(self.norm(self.hidden(x)), p=0.4, training=True))


class Quiet(Mlp):
    """Changes no parameter in its forward pass."""

    def __init__(self):
        super().__init__()
        self.norm = nn.Identity()


class Evaluating(nn.Cell):
    """Loss, prediction and label, as ``Model.fit`` wants them."""

    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, x, y):
        logits = self.network.logits(x)
        return ops.square(logits - y).mean(), logits, y


def samples(count=44, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "x": rng.normal(size=(count, 6)).astype(np.float32),
        "y": rng.normal(size=(count, 3)).astype(np.float32),
    }


def pipeline(count=44, batch_size=4, *, shuffle=True):
    """A shuffled pipeline, by default of `SIZE` batches."""
    return ds.NumpySlicesDataset(samples(count), shuffle=shuffle).batch(batch_size)


def adam(weights):
    return nn.Adam(weights, 1e-2)


def accumulation_cell(k=K, *, network=Mlp, optimizer=adam, **options):
    network = network()
    return ck.AccumulationTrainCell(network, optimizer(network.trainable_params()), k, **options)


def sums_prefix():
    return accumulation_cell().accumulators[-1].name.removesuffix("divisor")


def tensors(cell):
    buffers = {f"buffer {name}": one for name, one in getattr(cell, "named_buffers", {}.items)()}
    found = {**{one.name: one for one in cell.get_parameters()}, **buffers}
    return {name: one.asnumpy().tobytes() for name, one in found.items()}


def rng_digest():
    arrays = []
    text = repr(encode_tree(capture_rng(), "rng", arrays))
    return hashlib.sha256(b"|".join([text.encode(), *(one.array.tobytes() for one in arrays)])).hexdigest()


def digest(cell):
    """Digest of all that a later step depends on, apart from the data."""
    parts = sorted(tensors(cell).items())
    counters = cell.counters if isinstance(cell, ck.AccumulationTrainCell) else None
    return hashlib.sha256(repr((parts, counters, rng_digest())).encode()).hexdigest()


class Trace(Callback):
    """Notes after every micro-step the digest of state and batch; draws, as training code may."""

    def __init__(self):
        self.steps = {}
        self.epochs = {}
        self.evaluated = {}

    def on_train_step_end(self, run_context):
        params = run_context.original_args()
        batch = hashlib.sha256(b"|".join(one.asnumpy().tobytes() for one in params.train_dataset_element))
        assert params.cur_step_num not in self.steps
        self.steps[params.cur_step_num] = digest(params.train_network) + batch.hexdigest()
        self.epochs[params.cur_step_num] = params.cur_epoch_num
        np.random.rand()
        random.random()

    def on_train_epoch_end(self, run_context):
        params = run_context.original_args()
        if "eval_results" in params:
            self.evaluated[params.cur_epoch_num] = dict(params.eval_results)


# What a test noted in another process does not come back.
NOTES = ("Trace()*", "*trace.*", "*.steps*", "*.epochs*", "*: seen*", "*: until")


class CrashError(Exception):
    """Ends a training as a crash of user code does."""


class Interrupt(Callback):
    """Raises at the end of one micro-step, before the checkpoint callback's turn."""

    def __init__(self, at):
        self.at = at

    def on_train_step_end(self, run_context):
        if run_context.original_args().cur_step_num == self.at:
            raise CrashError


class Stop(Callback):
    def __init__(self, at):
        self.at = at

    def on_train_step_end(self, run_context):
        if run_context.original_args().cur_step_num == self.at:
            run_context.request_stop()


class Steps(Callback):
    def __init__(self):
        self.begun = 0

    def on_train_step_begin(self, run_context):
        self.begun += 1


def checkpoints(root, every=1000, **options):
    """A callback that saves after ``every`` micro-steps and never skips a save; by default at the end only."""
    options = {"save": ck.SaveEvery(micro_steps=every), "when_busy": "wait", **options}
    if "training" not in options:
        options.setdefault("ignore", NOTES)
    return ck.CheckpointCallback(root, **grouped(**options))


class Job:
    """What a script builds when it is started: data, cell, model, trace."""

    def __init__(self, *, seed=SEED, mode="pynative", data=pipeline, cell=accumulation_cell, fit=False):
        begin_process(seed, mode)
        self.data = data()
        self.cell = cell()
        if fit:
            evaluating = Evaluating(self.cell.network)
            self.model = Model(self.cell, eval_network=evaluating, eval_indexes=[0, 1, 2], metrics={"mae"})
            self.valid = pipeline(12, 4, shuffle=False)
        else:
            self.model = Model(self.cell)
        self.trace = Trace()

    def uninterrupted(self, epochs, *callbacks):
        """Train without ckptkit's callback; returns the trace."""
        self.model.train(epochs, self.data, callbacks=[self.trace, *callbacks])
        return self.trace

    def started(self, ckpt, epochs, *callbacks):
        """Train with ``ckpt`` to the end or to the first exception; returns the trace."""
        ckpt.train(self.model, epochs, self.data, callbacks=[self.trace, *callbacks])
        return self.trace

    def resumed(self, ckpt, epochs, *callbacks):
        """As `started`, in a process whose generators stand somewhere else."""
        disturb()
        return self.started(ckpt, epochs, *callbacks)


@functools.cache
def reference(mode: str = "pynative") -> dict[int, str]:
    """The trace of three epochs of a `Job` with all defaults, without ckptkit's callback."""
    return Job(mode=mode).uninterrupted(3).steps


def names(root):
    return [info.name for info in ck.CheckpointManager(root).checkpoints()]


def later(steps, at):
    """What was noted after micro-step ``at``."""
    return {step: noted for step, noted in steps.items() if step > at}


def survived(root, kills, epochs=3, **options):
    """A run that crashes at the end of each micro-step of ``kills``, when it was saved after the one before."""
    found = {}
    for begin, at in zip([1, *kills], [*kills, None], strict=True):
        job = Job(**options)
        if begin > 1:
            disturb()
        with contextlib.suppress(CrashError):
            job.started(checkpoints(root, 1), epochs, *([] if at is None else [Interrupt(at)]))
            assert at is None, "training was not interrupted"
        assert min(job.trace.steps) == begin
        for step, bits in job.trace.steps.items():
            assert found.setdefault(step, bits) == bits, f"micro-step {step} differs in the life that began at {begin}"
    return found, job


def crashed(root, at, epochs=3, *callbacks, stateful=None, **options):
    """A run that crashes at the end of micro-step ``at``, when it was saved after the one before."""
    job = Job(**options)
    with contextlib.suppress(CrashError):
        job.started(checkpoints(root, at - 1, stateful=stateful), epochs, Interrupt(at), *callbacks)
        raise AssertionError("training was not interrupted")
    return job
