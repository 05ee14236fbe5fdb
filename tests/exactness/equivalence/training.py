"""The process that is killed: ``python -m exactness.equivalence.training '<job as JSON>'``.

It trains a tiny network as a user would, and writes the digest of everything that a later step depends on
after every micro-step, on disk before the process may die of what follows.
"""

import json
import os
import random
import signal
import sys
from dataclasses import replace

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
import xxhash
from mindspore import amp, nn, ops
from mindspore.train import Callback, Model

import ckptkit as ck
from ckptkit.mindspore.parameters import roles
from ckptkit.mindspore.rng import capture_rng
from ckptkit.storage import open_storage
from ckptkit.testing.faults import Fault, FaultyStorage
from exactness.equivalence.job import (
    BATCHES_PER_EPOCH,
    EPOCHS,
    SAMPLES_PER_BATCH,
    TAMPERED_ACCUMULATOR,
    TAMPERED_MOMENT,
    Case,
    Job,
    Kill,
)

CLASSES = 3


class Dense(nn.Cell):
    def __init__(self, dropout):
        super().__init__()
        self.hidden = nn.Dense(6, 8)
        self.out = nn.Dense(8, CLASSES)
        self.dropout = dropout

    def construct(self, x):
        x = ops.tanh(self.hidden(x))
        if self.dropout and self.training:
            x = ops.dropout(x, 0.2)
        return self.out(x)


class Conv(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, has_bias=True)
        self.norm = nn.BatchNorm2d(3)
        self.out = nn.Dense(3 * 16, CLASSES)

    def construct(self, x):
        x = ops.relu(self.norm(self.conv(x)))
        return self.out(ops.reshape(x, (x.shape[0], -1)))


class WithLoss(nn.Cell):
    """Also scales its input by ``scale``, which the training loop draws for every batch."""

    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone
        self.loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
        self.scale = ms.Parameter(ms.Tensor(np.ones(1, np.float32)), name="scale", requires_grad=False)

    def construct(self, x, y):
        return self.loss(self.backbone(x * self.scale), y)


class ForEvaluation(nn.Cell):
    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, x, y):
        logits = self.network.backbone(x)
        return self.network.loss(logits, y), logits, y


def build_optimizer(case: Case, weights: list[ms.Parameter]) -> nn.Optimizer:
    if case.optimizer == "Momentum":
        rates = [0.1 / (1 + step) for step in range(BATCHES_PER_EPOCH * EPOCHS)]
        return nn.Momentum(weights, rates, 0.9, weight_decay=1e-3)
    if case.optimizer == "Adam":
        return nn.Adam(weights, nn.ExponentialDecayLR(1e-2, 0.9, 2))
    if case.optimizer == "AdamWeightDecay":
        return nn.AdamWeightDecay(weights, 1e-2, weight_decay=1e-2)
    return nn.RMSProp(weights, 1e-3, centered=True)


SCALERS = {"no": lambda *_: None, "scaler": amp.DynamicLossScaler, "cell": nn.DynamicLossScaleUpdateCell}


def build_dataset(case: Case, batches: int, *, shuffle: bool) -> ds.Dataset:
    # From a generator of its own, so that the samples are the same where no seed is set, too.
    rng = np.random.default_rng(3)
    count = batches * SAMPLES_PER_BATCH
    shape = (count, 6) if case.network == "dense" else (count, 1, 4, 4)
    columns = {
        "x": rng.standard_normal(shape, np.float32),
        "y": rng.integers(0, CLASSES, count, np.int32),
    }
    return ds.NumpySlicesDataset(columns, shuffle=shuffle).batch(SAMPLES_PER_BATCH)


class Death:
    """Knows when to die."""

    def __init__(self, kill: Kill | None) -> None:
        self._kill = kill

    def at(self, moment: str, micro_step: int) -> None:
        if self._kill is not None and (self._kill.moment, self._kill.at) == (moment, micro_step):
            self.die()

    @staticmethod
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def inside(self, cell: ck.AccumulationTrainCell) -> None:
        """Let it happen inside of a call of ``cell``, around the second of its two graphs."""
        if self._kill is None or self._kill.moment not in ("in_update", "after_update"):
            return
        kind = type(cell._update)
        update = kind.__call__

        def dying(update_cell):
            ends = cell.counters.micro_steps + 1
            self.at("in_update", ends)
            done = update(update_cell)
            for parameter in cell.get_parameters():
                parameter.asnumpy()  # waits: the kernels of the update may not have run yet
            self.at("after_update", ends)
            return done

        kind.__call__ = dying

    def in_writer(self, case: Case) -> list[Fault]:
        if self._kill is None or self._kill.moment not in ("in_write", "committed"):
            return []
        cycles, micro_step = case.place(self._kill.at)
        folder = f"checkpoints/*-c{cycles:010d}-m{micro_step:04d}"
        if self._kill.moment == "committed":
            return [Fault(self.die, operations={"create"}, key=f"{folder}/COMMIT", when="after")]
        return [Fault(self.die, operations={"write"}, key=f"{folder}/*/weights-000.safetensors", when="during")]


class Trace:
    """Digests of all that a later micro-step depends on, one line of JSON per event."""

    def __init__(self, path: str, cell: ck.AccumulationTrainCell) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self._cell = cell

    def resumed(self, point: ck.ResumePoint) -> None:
        self._write("resumed", point.batches_delivered, {"checkpoint": point.checkpoint})

    def step(self, params) -> None:
        batch = [column.asnumpy() for column in params.train_dataset_element]
        rows = [[digest(row.tobytes()) for row in column] for column in batch]
        leaves = {
            "batch": digest(b"".join(column.tobytes() for column in batch)),
            **self._state(),
            "loss": digest(params.net_outputs.asnumpy().tobytes()),
        }
        self._write("step", params.cur_step_num, leaves, samples=[":".join(row) for row in zip(*rows, strict=True)])

    def epoch(self, params) -> None:
        metrics = params.get("eval_results") or {}
        leaves = {f"metrics.{name}": float(value).hex() for name, value in metrics.items()}
        self._write("epoch", params.cur_step_num, {**self._state(), **leaves})

    def end(self) -> None:
        self._write("end", self._cell.counters.micro_steps, self._state())

    def _state(self) -> dict[str, str]:
        counters = self._cell.counters
        leaves = {f"counters.{name}": str(getattr(counters, name)) for name in counters.__slots__}
        rng = capture_rng()
        python, numpy, mindspore = (rng.pop(name) for name in ("python", "numpy", "mindspore"))
        assert not rng, f"random state that is not traced: {list(rng)}"
        keys = numpy["state"]["key"]
        leaves["rng.python"] = digest(repr(python).encode())
        leaves["rng.numpy"] = digest(keys.tobytes() + repr({**numpy, "state": numpy["state"]["pos"]}).encode())
        for name, value in mindspore.items():
            data = value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
            leaves[f"rng.mindspore.{name}"] = digest(data)
        return leaves | {one.name: digest(one.asnumpy().tobytes()) for one in self._cell.get_parameters()}

    def _write(self, event: str, at: int, leaves: dict, **more) -> None:
        line = json.dumps({"event": event, "at": at, "leaves": leaves, **more}) + "\n"
        os.write(self._fd, line.encode())
        os.fsync(self._fd)


def digest(data: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(data)


class Loop(Callback):
    """What a user's own training loop does: it draws from both process-wide generators for every batch."""

    def __init__(self, scale: ms.Parameter, *, restores: bool) -> None:
        super().__init__()
        self._scale = scale
        self._restores = restores

    def on_train_begin(self, run_context) -> None:
        # As setting up does, also that of a resumed process: it must not shift what is drawn for the batches.
        np.random.random()
        random.random()

    def on_train_step_begin(self, run_context) -> None:
        drawn = 0.5 + np.random.random() + 0.1 * random.random()
        self._scale.set_data(ms.Tensor(np.array([drawn], np.float32)))

    def on_train_step_end(self, run_context) -> None:
        if self._restores:
            self._scale.set_data(ms.Tensor(np.ones(1, np.float32)))


class Plain(Callback):
    """Traces a training that knows nothing of checkpoints."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def on_train_step_end(self, run_context) -> None:
        params = run_context.original_args()
        if params.cur_step_num % BATCHES_PER_EPOCH == 0:
            params.train_network.end_epoch()
        self._trace.step(params)

    def on_train_epoch_end(self, run_context) -> None:
        self._trace.epoch(run_context.original_args())

    def on_train_end(self, run_context) -> None:
        self._trace.end()


class Mortal(ck.CheckpointCallback):
    """Traces right before or after `CheckpointCallback` acts, and dies before or after it."""

    def __init__(self, job: Job, trace: Trace, cell: ck.AccumulationTrainCell) -> None:
        self.death = Death(job.kill)
        self.death.inside(cell)
        storage = FaultyStorage(open_storage(job.root), self.death.in_writer(job.case))
        save = ck.SaveEvery(**{job.case.save: 1})
        super().__init__(
            storage,
            save=save,
            saving=ck.Saving(when_busy="wait", mid_cycle=job.case.mid_cycle, window=job.case.window),
            training=ck.Training(read_only=[Loop]),  # but for the scale, which no optimizer owns
        )
        self.job = job
        self.trace = trace
        self.cell = cell

    def resume(self, model, dataset, *args, **kwargs) -> ck.ResumePoint:
        point = super().resume(model, dataset, *args, **kwargs)
        self.trace.resumed(point)
        if self.job.tampering == "batch":
            made = dataset.create_tuple_iterator
            dataset.create_tuple_iterator = lambda **options: one_batch_later(made(**options))
        return point

    def on_train_begin(self, run_context) -> None:
        super().on_train_begin(run_context)
        self.death.at("train_begin", run_context.original_args().cur_step_num)

    def on_train_epoch_begin(self, run_context) -> None:
        super().on_train_epoch_begin(run_context)  # the last that it restores
        tamper_with(self.job.tampering, self.cell)

    def on_train_step_end(self, run_context) -> None:
        params = run_context.original_args()
        if self.job.case.traced == "before_save":
            self.trace.step(params)
        self.death.at("step_end", params.cur_step_num)
        super().on_train_step_end(run_context)
        if self.job.case.traced == "after_save":
            self.trace.step(params)
        self.death.at("step_saved", params.cur_step_num)

    def on_eval_step_end(self, run_context) -> None:
        super().on_eval_step_end(run_context)
        self.death.at("in_eval", self.cell.counters.micro_steps)

    def on_train_epoch_end(self, run_context) -> None:
        params = run_context.original_args()
        self.trace.epoch(params)
        self.death.at("epoch_end", params.cur_step_num)
        super().on_train_epoch_end(run_context)
        self.death.at("epoch_saved", params.cur_step_num)

    def on_train_end(self, run_context) -> None:
        self.trace.end()
        super().on_train_end(run_context)


def one_batch_later(iterator):
    next(iterator)
    return iterator


def tamper_with(what: str | None, cell: ck.AccumulationTrainCell) -> None:
    name = {"moment": TAMPERED_MOMENT, "accumulator": TAMPERED_ACCUMULATOR}.get(what)
    if name is not None:  # the top bit of a mantissa, in the live memory: no rounding takes it away
        cell.parameters_dict()[name].asnumpy().reshape(-1).view(np.uint32)[0] ^= np.uint32(1 << 22)
    elif what == "numpy":
        np.random.random()
    elif what == "python":
        random.random()
    elif what == "counter":
        cell.load_counters(replace(cell.counters, cycles=cell.counters.cycles + 1))


def main(job: Job) -> None:
    case = job.case
    roles._SMALL_BYTES = 1  # so that weights this small are read in place as large ones are
    ms.set_context(mode=ms.GRAPH_MODE if case.mode == "graph" else ms.PYNATIVE_MODE, device_target="CPU")
    if case.seed is not None:
        ms.set_seed(case.seed)
        ms.manual_seed(case.seed)  # set_seed leaves this generator alone, and MindSpore 2.7 begins it at random
    # The functional dropout of PyNative can be resumed; in a graph its seed is frozen when it is compiled.
    network = WithLoss(Dense(dropout=case.mode == "pynative") if case.network == "dense" else Conv())
    cell = ck.AccumulationTrainCell(
        network,
        build_optimizer(case, network.trainable_params()),
        case.accumulation_steps,
        clip_norm=1.0 if case.network == "conv" else None,
        loss_scaler=SCALERS[case.scaled](2.0**127, 2**4, 3),
        normalize=case.normalize,
        remainder=case.remainder,
    )
    model = Model(cell, eval_network=ForEvaluation(network), metrics={"loss", "accuracy"}, eval_indexes=[0, 1, 2])
    data = [build_dataset(case, BATCHES_PER_EPOCH, shuffle=True)]
    data += [build_dataset(case, 2, shuffle=False)] * (case.api == "fit")
    trace = Trace(job.trace, cell)
    loop = Loop(network.scale, restores=case.mid_cycle == "rewind")
    if job.root is None:
        getattr(model, case.api)(EPOCHS, *data, callbacks=[loop, Plain(trace)])
        return
    ckpt = Mortal(job, trace, cell)
    if case.started_by == "script":
        attached = ckpt.attach()
        getattr(model, case.api)(EPOCHS, *data, callbacks=loop)
        point = attached.point
    elif case.started_by == "resume":
        point = ckpt.resume(model, data[0], EPOCHS)
        if not point.complete:
            getattr(model, case.api)(EPOCHS, *data, callbacks=[ckpt, loop], initial_epoch=point.epoch)
    else:
        point = getattr(ckpt, case.api)(model, EPOCHS, *data, callbacks=loop)
    if point.complete:
        trace.end()


if __name__ == "__main__":
    main(Job.loads(sys.argv[1]))
