"""AccumulationTrainCell: one update per K micro-batches, bit for bit, from a state that can be copied anywhere."""

import sys

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from support.process import run_python
from support.training import MODES, begin_process, both_modes, tensors
from support.training import Mlp as Normed
from support.training import Quiet as Mlp

from ckptkit.mindspore.train.cell import AccumulationTrainCell, CycleCounters


def groups(weights):
    parts = [{"params": weights[2:], "lr": 0.2}, {"params": weights[:2], "weight_decay": 0.1}]
    return nn.Momentum([*parts, {"order_params": weights}], 0.05, 0.9)


OPTIMIZERS = {
    "Momentum": lambda weights: nn.Momentum(weights, 0.05, 0.9, weight_decay=1e-3),
    "CenteredRMSProp": lambda weights: nn.RMSProp(weights, 1e-3, centered=True),
    "Adam": lambda weights: nn.Adam(weights, 1e-2),
    "AdamWeightDecay": lambda weights: nn.AdamWeightDecay(weights, 1e-2, weight_decay=1e-2),
    "SGD": lambda weights: nn.SGD(weights, 0.05, momentum=0.9),
    "Adagrad": nn.Adagrad,
    "groups": groups,
    "schedule": lambda weights: nn.Momentum(weights, nn.ExponentialDecayLR(0.1, 0.5, 1, is_stair=True), 0.9),
}


class Tied(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first = nn.Dense(6, 6)
        self.second = nn.Dense(6, 6)
        self.second.weight = self.first.weight

    def construct(self, x, y):
        return ops.square(self.second(ops.tanh(self.first(x)))[:, :3] - y).mean()


class Defaults(Mlp):
    def construct(self, x, y=None, power=2):
        difference = self.out(ops.tanh(self.hidden(x)))
        return ((difference if y is None else difference - y) ** power).mean()


class Recorder(nn.Optimizer):
    def __init__(self, weights):
        super().__init__(0.1, weights)
        self.seen = self.parameters.clone(prefix="seen", init="zeros")

    def construct(self, gradients):
        for seen, gradient in zip(self.seen, gradients):  # noqa: B905 - GRAPH knows no strict=
            ops.assign(seen, gradient)
        return True


def build(network=Mlp, dtype=ms.float32):
    network = network()
    rng = np.random.default_rng(7)
    for parameter in network.get_parameters():
        if parameter.requires_grad:
            parameter.set_data(ms.Tensor(rng.normal(0, 0.5, parameter.shape), ms.float32))
            parameter.set_dtype(dtype)
    return network


def accumulate(k, optimizer="Momentum", network=Mlp, dtype=ms.float32, **options):
    network = build(network, dtype)
    make = OPTIMIZERS[optimizer] if isinstance(optimizer, str) else optimizer
    return AccumulationTrainCell(network, make(network.trainable_params()), k, **options).set_train()


def batches(count, dtype=ms.float32):
    rng = np.random.default_rng(3)
    return [tuple(ms.Tensor(rng.normal(size=(4, width)), dtype) for width in (6, 3)) for _ in range(count)]


def contents(*parameters):
    return {p.name: p.asnumpy().tobytes() for p in parameters}


def gradients(network, batch):
    _, grads = ms.value_and_grad(network, None, network.trainable_params())(*batch)
    return [g.asnumpy() for g in grads]


def norm(arrays):
    return np.sqrt(sum(np.square(a.astype(np.float64)).sum() for a in arrays))


ROWS = [
    *((optimizer, Mlp, "float32") for optimizer in OPTIMIZERS),
    *((optimizer, Mlp, "float16") for optimizer in ("Momentum", "Adam", "AdamWeightDecay")),
    *(("Adam", network, "float32") for network in (Normed, Tied)),
]


@both_modes
def test_k_1_matches_train_one_step_cell_bitwise(mode):
    begin_process(mode=mode)
    for optimizer, network, dtype_name in ROWS if mode == "pynative" else [("SGD", Mlp, "float32")]:
        row, dtype = f"{optimizer} {network.__name__} {dtype_name}", getattr(ms, dtype_name)
        plain = build(network, dtype)
        reference = nn.TrainOneStepCell(plain, OPTIMIZERS[optimizer](plain.trainable_params())).set_train()
        clip_norm = 1e3 if network is Tied else None  # above the norm, it changes no bit
        cell = accumulate(1, optimizer, network, dtype, clip_norm=clip_norm)
        before = tensors(cell)
        for updates, batch in enumerate(batches(3, dtype=dtype), start=1):
            expected, loss = reference(*batch), cell(*batch)
            assert loss.dtype == expected.dtype, row
            assert loss.asnumpy().tobytes() == expected.asnumpy().tobytes(), row
            sums = contents(*cell.accumulators)
            assert tensors(cell) == {**tensors(reference), **sums}, row
            assert cell.optimizer.global_step.asnumpy() == [updates], row
        assert all(before[w.name] != w.asnumpy().tobytes() for w in cell.optimizer.parameters), row


def test_network_with_defaults_trains_in_graph():
    begin_process(mode="graph")
    cell, network = accumulate(9, network=Defaults), build(Defaults).set_train()
    ((x, y),) = batches(1)
    for inputs in ((x,), (x, y), (x, y, 4)):
        assert cell(*inputs).asnumpy() == network(*inputs).asnumpy(), len(inputs)
    assert cell.accumulators[0].asnumpy().any()


@both_modes
def test_update_comes_on_every_kth_call_only(mode):
    begin_process(mode=mode)
    k = 3
    for dtype in (ms.float32, ms.float16) if mode == "pynative" else (ms.float32,):
        cell, network = accumulate(k, dtype=dtype), build(dtype=dtype).set_train()
        weights = cell.optimizer.parameters
        before = contents(*weights)
        sums = [np.zeros(w.shape, np.float32) for w in weights]
        for call, batch in enumerate(batches(2 * k, dtype=dtype), start=1):
            if call < k:  # while the weights are those of the plain network
                sums = [s + g.astype(np.float32) for s, g in zip(sums, gradients(network, batch), strict=True)]
                assert cell(*batch).asnumpy() == network(*batch).asnumpy(), dtype
                assert [t.asnumpy().tobytes() for t in cell.accumulators[:-1]] == [s.tobytes() for s in sums], dtype
            else:
                cell(*batch)
            assert (contents(*weights) != before) == (call % k == 0), (dtype, call)
            before = contents(*weights)
            cycles, micro_step = divmod(call, k)
            assert cell.counters == CycleCounters(k, micro_step, cycles, cycles, call, cycles * k)
            assert cell.accumulators[-1].asnumpy() == micro_step
            assert all(not p.asnumpy().any() for p in cell.accumulators) == (micro_step == 0)
        assert {str(p.dtype) for p in cell.accumulators} == {"Float32"}
        assert not any(p.requires_grad for p in cell.accumulators)


def test_hundreds_of_weights_compile():
    begin_process(mode="graph")

    class Many(Mlp):
        def __init__(self):
            super().__init__()
            names = [f"unused{i}" for i in range(240)]
            self.unused = ms.ParameterTuple([ms.Parameter(ops.ones(2), name=name) for name in names])

    cell = accumulate(1, "SGD", network=Many, clip_norm=1.0)
    cell(*batches(1)[0])
    assert len(cell.accumulators) == 245
    assert cell.updated


@both_modes
def test_clips_the_average_once(mode):
    begin_process(mode=mode)
    k, clip_norm = 3, 0.2
    parts, network = batches(k), build()
    micro = [gradients(network, batch) for batch in parts]
    mean = [np.mean([m[i].astype(np.float64) for m in micro], axis=0) for i in range(len(micro[0]))]
    assert norm(mean) > 1.5 * clip_norm
    clipped = [g * clip_norm / norm(mean) for g in mean]
    cell = accumulate(k, Recorder, clip_norm=clip_norm)
    assert cell.gradient_norm is None
    for batch in parts:
        cell(*batch)
    assert float(cell.gradient_norm.asnumpy()) == pytest.approx(norm(mean), rel=1e-6)  # before clipping
    seen = [s.asnumpy() for s in cell.optimizer.seen]
    for got, expected in zip(seen, clipped, strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-6, atol=1e-8)


def test_float16_gradients_are_clipped_in_float32():
    class Scaled(nn.Cell):
        def __init__(self):
            super().__init__()
            self.w = ms.Parameter(ops.ones(4, ms.float16), name="w")

        def construct(self, x):
            return (self.w * x).sum()

    network = Scaled()
    cell = AccumulationTrainCell(network, Recorder(network.trainable_params()), 2, clip_norm=1.0).set_train()
    for value in (200, 400):
        cell(ms.Tensor(np.full(4, value), ms.float16))
    assert cell.gradient_norm.asnumpy() == 600
    assert cell.optimizer.seen[0].asnumpy().tolist() == [0.5] * 4


def test_names_are_those_before_wrapping():
    for make, kind in (*((item, Mlp) for item in OPTIMIZERS), ("Adam", Normed), ("Adam", Tied)):
        row, network = f"{make} {kind.__name__}", build(kind)
        optimizer = OPTIMIZERS[make](network.trainable_params())
        own = {(p.name, id(p)) for part in (network, optimizer) for p in part.get_parameters()}
        outer = nn.Cell()
        outer.inner = cell = AccumulationTrainCell(network, optimizer, 2)
        for batch in batches(2):
            cell(*batch)
        # The state of SGD and Adagrad is called accum.<weight> itself.
        prefix = "grad_accum." if any(name.startswith("accum.") for name, _ in own) else "accum."
        names = [f"{prefix}{w.name}" for w in optimizer.parameters]
        assert [p.name for p in cell.accumulators] == [*names, f"{prefix}divisor"], row
        everything = {(name, id(p)) for name, p in outer.parameters_dict().items()}
        assert everything == own | {(p.name, id(p)) for p in cell.accumulators}, row


def test_a_name_used_twice_is_refused():
    network = build()
    network.out.weight.name = network.hidden.weight.name
    with pytest.raises(ValueError, match=r"more than once: hidden\.weight"):
        AccumulationTrainCell(network, Recorder([network.hidden.bias]), 2)


def test_set_train_takes_effect_after_graph_compilation():
    begin_process(mode="graph")
    cell = accumulate(8, network=Normed).set_train(False)
    mean = cell.network.norm.moving_mean
    moved = []
    for training, batch in zip([False, True, False, True], batches(4), strict=True):
        cell.set_train(training)
        before = contents(mean)
        cell(*batch)
        moved.append(contents(mean) != before)
    assert moved == [False, True, False, True]


class Wrapper(nn.Cell):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def construct(self, x, y):
        return self.inner(x, y) + 0


def test_nested_in_pynative_is_the_same_training():
    cell, plain = accumulate(3), accumulate(3)
    outer = Wrapper(cell)
    for batch in batches(4):
        assert outer(*batch).asnumpy() == plain(*batch).asnumpy()
        assert (cell.counters, tensors(cell)) == (plain.counters, tensors(plain))


def test_nested_in_graph_raises_and_names_the_wrapper(tmp_path, monkeypatch):
    """Or the function of @ms.jit; MindSpore has no bytecode capture on Python 3.12."""
    monkeypatch.chdir(tmp_path)  # MindSpore writes there what it could not compile
    begin_process(mode="graph")
    cell = accumulate(2)
    before = tensors(cell), cell.counters
    (batch,) = batches(1)

    class Jitted(Wrapper):
        @ms.jit
        def construct(self, x, y):
            return self.inner(x, y) + 0

    def jitted(x, y):
        return cell(x, y) * 2

    captures = ["ast", "bytecode"] if sys.version_info < (3, 12) else ["ast"]
    functions = [(ms.jit(jitted, capture_mode=item), r"the @ms\.jit function \S*jitted") for item in captures]
    for mode, function, name in (
        ("graph", Wrapper(cell), "Wrapper"),
        *(("pynative", *named) for named in (*functions, (Jitted(cell), r"\S*Jitted"))),
    ):
        ms.set_context(mode=MODES[mode])
        for _ in range(2):
            with pytest.raises(RuntimeError, match=rf"graph of {name}\."):
                function(*batch)
    assert (tensors(cell), cell.counters) == before
    cell(*batch)
    assert cell.counters.micro_steps == 1


TRACED = """
import os, threading
import mindspore as ms
from support.training import accumulation_cell, pipeline

cell = accumulation_cell(2)
traced = ms.jit(lambda x, y: cell(x, y) * 2, capture_mode="trace")

def main():
    try:
        traced(*next(pipeline().create_tuple_iterator()))
    except RuntimeError as error:
        print(error, cell.counters.micro_steps, flush=True)
    os._exit(0)  # after any exception in a traced function MindSpore cannot exit cleanly

threading.Thread(target=main).start()  # MindSpore reads the source of all calls below it, which must be files
"""


def test_inside_a_traced_function_raises_and_names_it(tmp_path):
    script = tmp_path / "traced.py"
    script.write_text(TRACED)
    done = run_python(str(script), folder=tmp_path, environment={}, timeout=120)
    assert "graph of the @ms.jit function <lambda>." in done.stdout, done.stderr
    assert done.stdout.strip().endswith(" 0")


def test_being_differentiated_is_refused():
    cell = accumulate(2)
    with pytest.raises(RuntimeError, match="differentiated by TrainOneStepCell"):
        nn.TrainOneStepCell(cell, nn.Momentum(cell.network.trainable_params(), 0.1, 0.9))
    cell.set_grad(False)


def test_an_exception_in_a_micro_step_changes_nothing():
    cell, plain = accumulate(2), accumulate(2)
    wrong_shape = ms.Tensor(np.zeros((4, 5)), ms.float32)
    for batch in batches(3):
        before = tensors(cell), cell.counters
        with pytest.raises(ValueError, match=r"(?i)matmul|shape|dim"):
            cell(wrong_shape, batch[1])
        assert (tensors(cell), cell.counters) == before
        cell(*batch)
        plain(*batch)
    assert tensors(cell) == tensors(plain)
    assert cell.counters == plain.counters


def test_bad_values_are_refused():
    for options, message in (
        *(({"k": k}, "accumulation_steps") for k in (0, True, 2.0)),
        *(({"k": 2, "clip_norm": norm}, "clip_norm") for norm in (0.0, float("inf"), float("nan"), True, "1")),
        ({"k": 2, "remainder": "keep"}, "remainder"),
        ({"k": 2, "normalize": "tokens"}, "normalize"),
        ({"k": {1: 2}}, "step 0"),
    ):
        with pytest.raises(ValueError, match=message):
            accumulate(**options)
    network = build()
    with pytest.raises(TypeError, match=r"network must be an nn\.Cell"):
        AccumulationTrainCell(len, Recorder(network.trainable_params()), 2)
    with pytest.raises(TypeError, match=r"optimizer must be an nn\.Optimizer"):
        AccumulationTrainCell(network, network, 2)
    with pytest.raises(AttributeError):
        accumulate(2).accumulation_steps = 3


def test_parallel_mode_without_reduction_is_refused():
    for parallel_mode, message in (
        ("data_parallel", r"communication\.init\(\) before the train cell"),
        ("semi_auto_parallel", "'semi_auto_parallel' is not supported"),
    ):
        ms.set_auto_parallel_context(parallel_mode=parallel_mode)
        try:
            with pytest.raises(ValueError, match=message):
                accumulate(2)
        finally:
            ms.reset_auto_parallel_context()


def test_group_that_is_gone_is_not_the_script(monkeypatch):
    """MindSpore closes the group of a rank that has lost another one; its cell was made in the right order."""
    cell = accumulate(2)
    (first,) = batches(1)
    monkeypatch.setattr(cell, "_ranks", 2)
    with pytest.raises(ConnectionError, match="the group of 2 ranks is gone"):
        cell(*first)
