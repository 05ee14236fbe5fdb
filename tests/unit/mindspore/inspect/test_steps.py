"""What hooks, loss functions, methods of cells and callbacks keep outside of checkpoints is named."""

from __future__ import annotations

import collections
import contextvars
import functools
import threading

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from mindspore.train import Callback, LambdaCallback, LearningRateScheduler
from support.training import begin_process

from ckptkit.mindspore.inspect import find_in_steps_of_callbacks, find_in_steps_of_cells
from ckptkit.mindspore.inspect.loops.per_step import steps_of_cells


class Weighed(nn.Cell):
    def __init__(self, weigh):
        super().__init__()
        self.network, self.weigh = nn.Dense(6, 3), weigh

    def construct(self, x, y):
        return self.weigh(ops.cross_entropy(self.network(x), y))


def hooked(register, hook):
    cell = Weighed(ops.relu)
    getattr(cell.network, register)(hook)
    return cell


def running_mean():
    mean = [0.0]

    def hook(cell, inputs, output):
        mean[0] = 0.9 * mean[0] + 0.1 * float(output.mean())
        return output - mean[0]

    return hooked("register_forward_hook", hook)


class Damped:
    def __init__(self):
        self.calls = 0

    def __call__(self, cell, *gradients):
        self.calls += 1
        return tuple(one / self.calls for one in gradients[0])


def damped():
    """A hook with a state; MindSpore 2.7 takes no objects as hooks, only functions and methods."""
    return Damped() if tuple(map(int, ms.__version__.split(".")[:2])) >= (2, 8) else Damped().__call__


def closure_that_counts():
    calls = 0

    def weigh(loss):
        nonlocal calls
        calls += 1
        return loss / calls

    return weigh


class Annealed:
    def __init__(self):
        self.at = 0

    def __call__(self, loss):
        self.at += 1
        return loss / self.at


SEEN = {"batches": 0}


def by_module(loss):
    SEEN["batches"] += 1
    return loss / SEEN["batches"]


DRAWS = np.random.default_rng(3)


class Ring(nn.Cell):
    """A queue that a method changes in place."""

    def __init__(self):
        super().__init__()
        self.queue, self.place = ms.Tensor(np.ones((12, 3), np.float32)), 0

    def construct(self, x, y):
        loss = ops.matmul(x, self.queue.T).mean()
        self.push(x)
        return loss

    def push(self, keys):
        self.queue[self.place : self.place + 4] = keys
        self.place = (self.place + 4) % 12


class Frequencies(nn.Cell):
    def __init__(self):
        super().__init__()
        self.seen = collections.Counter()

    def construct(self, x, y):
        self.seen.update(y.asnumpy().tolist())
        return x / (1 + self.seen[0])


class Reversed(nn.Cell):
    """Reverses gradients, more and more."""

    def __init__(self):
        super().__init__()
        self.number = 0

    def construct(self, x):
        return x

    def bprop(self, x, out, dout):
        self.number += 1
        return (-dout * self.number / 100,)


def scaled(gradient):
    scaled.calls += 1
    return gradient / scaled.calls


scaled.calls = 0


class WithHook(nn.Cell):
    """Registers a hook of a tensor in each call."""

    def __init__(self, hook):
        super().__init__()
        self.lower, self.upper, self.hook = nn.Dense(6, 4), nn.Dense(4, 3), hook

    def construct(self, x, y):
        hidden = self.lower(x)
        hidden.register_hook(self.hook)
        return ops.cross_entropy(self.upper(hidden), y)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: WithHook(scaled), "construct(): self.hook (function)"),
        (lambda: WithHook(Annealed().__call__), "construct(): self (Annealed)"),
        (running_mean, "hook(): mean"),
        (lambda: hooked("register_forward_pre_hook", damped()), "self (Damped)"),
        (lambda: hooked("register_backward_hook", damped()), "self (Damped)"),
        (lambda: hooked("register_backward_pre_hook", damped()), "self (Damped)"),
        (lambda: Weighed(closure_that_counts()), "construct(): calls"),
        (lambda: Weighed(Annealed()), "construct(): self.weigh (Annealed)"),
        (lambda: Weighed(by_module), "construct(): SEEN"),
        (lambda: Weighed(lambda loss: loss * DRAWS.random()), "construct(): DRAWS (Generator)"),
        (lambda: nn.WithLossCell(nn.Dense(6, 3), closure_that_counts()), "weigh(): calls"),
        (Ring, "construct(): self (Ring)"),
        (Frequencies, "construct(): self (Frequencies)"),
        (Reversed, "bprop(): self (Reversed)"),
    ],
    ids=[
        *(
            "tensor_hook",
            "method_as_tensor_hook",
            "forward_hook",
            "pre_hook",
            "backward_hook",
            "backward_pre_hook",
            "closure",
            "object",
            "module",
        ),
        *("generator", "loss_function", "queue", "counter", "bprop"),
    ],
)
def test_state_beside_a_cell_is_named(make, words):
    begin_process(mode="pynative")
    (found,) = find_in_steps_of_cells([make()], [])
    assert found.where.endswith(words)
    assert "code that is called once per step" in found.why


def tables_in_each_way(loss):
    tables, named = TABLES, NAMED
    if "size" in tables:
        return loss * tables["size"]
    tables["size"] = ms.Tensor(np.linspace(0.5, 1, 3), ms.float32)
    try:
        scale = named["scale"]
    except KeyError:
        named["scale"] = 2.0
        scale = named["scale"]
    parts = [part * loss for part in tables["size"]]
    for part in parts:
        loss = loss + part * scale
    return loss


TABLES, NAMED = {}, {}


class Rotary(nn.Cell):
    """A table that grows, features of this call, a log."""

    def __init__(self):
        super().__init__()
        self.length, self.table = 0, None
        self.features, self.norms, self.calls = {}, [], {"forward": 0}

    def grow(self, length):
        self.length = length
        self.table = ms.Tensor(np.linspace(0.5, 1, length), ms.float32)

    def construct(self, x, y):
        if x.shape[1] > self.length:
            self.grow(x.shape[1])
        if self.training:
            self.calls["forward"] += 1
        self.features["x"] = x * self.table
        self.features["out"] = self.features["x"] * 2
        self.norms.append(float(x.sum()))
        return ops.cross_entropy(self.features["out"], y)


class Masked(nn.Cell):
    def __init__(self):
        super().__init__()
        self.mask = None

    def construct(self, x, y):
        if self.mask is None or self.mask.shape != x.shape:
            self.mask = ops.ones(x.shape)
        return (x * self.mask - y).mean()


def recording():
    outputs = []

    def hook(cell, inputs, output):
        if len(outputs) > 10:
            return
        outputs.append(output.asnumpy())

    return hooked("register_forward_hook", hook)


def norms_of_gradients():
    norms = []

    def hook(gradient):
        norms.append(float(gradient.norm()))

    return hook


def default_that_is_rebound(loss, scale=1.0):
    scale = scale / 2
    return loss * scale


@pytest.mark.parametrize(
    "make",
    [
        *(lambda: Weighed(tables_in_each_way), Rotary, Masked, recording, lambda: Weighed(default_that_is_rebound)),
        lambda: WithHook(norms_of_gradients()),
    ],
    ids=["tables", "growing_table", "mask", "recording_hook", "default", "recording_tensor_hook"],
)
def test_caches_and_records_beside_a_cell_are_not_named(make):
    begin_process(mode="pynative")
    assert [*find_in_steps_of_cells([make()], [])] == []


def test_what_is_given_by_name_is_not_named_beside_a_cell():
    begin_process(mode="pynative")
    weigh = Annealed()
    assert [*find_in_steps_of_cells([Weighed(weigh)], [weigh])] == []


def test_graphs_run_no_code_of_a_cell():
    begin_process(mode="graph")
    assert [*find_in_steps_of_cells([Weighed(Annealed())], [])] == []


def test_first_draw_that_a_cell_keeps_is_named():
    class Drawn(Masked):
        def construct(self, x, y):
            if self.mask is None:
                self.mask = ms.Tensor(np.random.rand(*x.shape) > 0.3, ms.float32)
            return (x * self.mask - y).mean()

    begin_process(mode="pynative")
    (found,) = find_in_steps_of_cells([Drawn()], [])
    assert "carries mask" in found.why


def set_rate(run_context, count):
    run_context.original_args().train_network.optimizer.learning_rate.set_data(ms.Tensor(0.05 / count))


class OfClass(Callback):
    steps = 0

    def on_train_step_end(self, run_context):
        OfClass.steps += 1
        set_rate(run_context, OfClass.steps)


STEPS = 0


class OfModule(Callback):
    def on_train_step_end(self, run_context):
        global STEPS  # noqa: PLW0603 - what is tried here
        STEPS += 1
        set_rate(run_context, STEPS)


CONTEXT = contextvars.ContextVar("CONTEXT", default=0)


class OfContext(Callback):
    def on_train_step_end(self, run_context):
        CONTEXT.set(CONTEXT.get() + 1)
        set_rate(run_context, CONTEXT.get())


LOCAL = threading.local()


class OfThread(Callback):
    def on_train_step_end(self, run_context):
        LOCAL.steps += 1
        set_rate(run_context, LOCAL.steps)


def falling():
    rates = []

    def rate(learning_rate, step):
        rates.append(learning_rate)
        return 0.05 / len(rates)

    return rate


class Draws(Callback):
    def on_train_step_end(self, run_context):
        weight = run_context.original_args().train_network.network.out.weight
        ops.assign(weight, weight * ops.bernoulli(ops.ones_like(weight), 0.9))


def counted(run_context):
    SEEN["batches"] += 1
    set_rate(run_context, SEEN["batches"])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (OfClass, "carries steps"),
        (OfModule, "carries STEPS"),
        (OfContext, "carries CONTEXT"),
        (OfThread, "carries steps"),
        (lambda: LearningRateScheduler(falling()), "carries rates"),
        (lambda: LambdaCallback(on_train_step_end=counted), "carries SEEN"),
        (Draws, "no checkpoint can restore what it draws"),
    ],
    ids=["class", "module", "context", "thread", "scheduler", "lambda", "draws"],
)
@pytest.mark.parametrize("mode", ["pynative", "graph"])
def test_state_beside_a_callback_is_named(mode, make, words):
    begin_process(mode=mode)
    LOCAL.steps = 0
    (found,) = find_in_steps_of_callbacks([make()], [])
    assert words in found.why


class Tempered(nn.Cell):
    def __init__(self):
        super().__init__()
        self.network, self.temperature, self.seen = nn.Dense(6, 3), 1.0, 0

    def construct(self, x, y):
        return ops.cross_entropy(self.network(x) / self.temperature, y)


class Cools(Callback):
    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def on_train_step_end(self, run_context):
        self.cell.temperature *= 0.9


class Sets(Cools):
    def on_train_step_end(self, run_context):
        self.cell.temperature = 1.0 / run_context.original_args().cur_step_num


class SetsBefore(Cools):
    def on_train_step_end(self, run_context):
        self.cell.seen += 1  # which nothing reads

    def on_train_step_begin(self, run_context):
        self.cell.temperature = 1.0 / run_context.original_args().cur_step_num


@pytest.mark.parametrize(("kind", "named"), [(Cools, True), (Sets, True), (SetsBefore, False)])
def test_attribute_of_a_cell_that_a_callback_changes_is_named(kind, named):
    begin_process()
    found = [*find_in_steps_of_callbacks([kind(Tempered())], [])]
    assert [one.where for one in found] == ([f"{kind.__name__}.on_train_step_end(): self.cell (Tempered)"] * named)
    assert all("carries temperature" in one.why for one in found)


class Shows(Callback):
    def on_train_step_end(self, run_context):
        SEEN["losses"] = [*SEEN.get("losses", []), float(run_context.original_args().net_outputs)]
        print(sum(SEEN["losses"]) / len(SEEN["losses"]))


def test_callback_that_only_shows_is_not_named():
    assert [*find_in_steps_of_callbacks([Shows()], [])] == []


@pytest.mark.parametrize("kind", ["forward_pre", "forward", "backward_pre", "backward"])
def test_every_hook_of_a_cell_is_read(kind):
    """MindSpore makes the dicts that hold them at the first hook."""
    begin_process(mode="pynative")
    assert len([*find_in_steps_of_cells([hooked(f"register_{kind}_hook", damped())], [])]) == 1


class Many(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([nn.Dense(4, 4) for _ in range(300)])
        for layer in self.layers:
            for _ in range(2):
                layer.register_forward_hook(self.recorder([]))

    @staticmethod
    def recorder(outputs):
        def hook(cell, inputs, output):
            outputs.append(float(output.mean()))

        return hook

    def construct(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def test_hooks_of_one_code_are_read_once():
    begin_process(mode="pynative")
    steps = [*steps_of_cells([(name, cell) for name, cell in Many().cells_and_names()])]
    assert [one.where.rpartition(": ")[0].rpartition(": ")[2] for one in steps] == ["construct()", "hook()"]


def test_advice_fits_trainings_without_a_loop():
    (found,) = find_in_steps_of_callbacks([OfModule()], [])
    assert 'CheckpointCallback(stateful={"kept": ckptkit.attributes(kept, "STEPS")})' in found.fix


def test_hooks_of_one_decorator_are_told_apart():
    def traced(hook):
        def called(*given):
            return hook(*given)

        return called

    def shows(cell, inputs, output):
        print(output)

    begin_process(mode="pynative")
    cell, mean = Weighed(ops.relu), [0.0]

    def centres(cell, inputs, output):
        mean[0] = 0.9 * mean[0] + float(output.mean())
        return output - mean[0]

    for hook in (shows, centres):
        cell.network.register_forward_hook(traced(hook))
    (found,) = find_in_steps_of_cells([cell], [])
    assert "carries mean" in found.why


def add_one(state, loss):
    state["n"] += 1
    return loss / state["n"]


@pytest.mark.parametrize(
    ("weigh", "words"), [(Annealed(), "carries at"), (functools.partial(add_one, {"n": 0}), "carries argument 0")]
)
def test_loss_function_may_be_any_callable(weigh, words):
    begin_process(mode="pynative")
    (found,) = find_in_steps_of_cells([nn.WithLossCell(nn.Dense(6, 3), weigh)], [])
    assert words in found.why


class Stops(Callback):
    def on_train_step_end(self, run_context):
        SEEN["batches"] += 1
        if SEEN["batches"] > 5:
            run_context.request_stop()


def test_what_stops_a_training_is_named():
    (found,) = find_in_steps_of_callbacks([Stops()], [])
    assert "carries SEEN" in found.why
