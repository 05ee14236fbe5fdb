"""Which callbacks of the user's are proven to write no parameter, so that a save need not copy everything for them."""

# ruff: noqa: PLC3002, PLW0603, PLW2901, S102, S307, SIM115 - callbacks as people write them

from __future__ import annotations

import abc
import collections
import csv
import datetime
import json
import logging
import math
import os
import time
import weakref

import mindspore as ms
import mindspore.numpy as mnp
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from mindspore.train import Callback, LambdaCallback, LossMonitor
from tqdm import tqdm

from ckptkit.mindspore.callback.read_only import only_looks

logger = logging.getLogger(__name__)
NETWORK = nn.Dense(3, 3)
BITS = NETWORK.weight.asnumpy()
OPTIMIZER = nn.Momentum(NETWORK.trainable_params(), 0.1, 0.9)
SEEN = []
RATE = 0.5


def number_of(outputs):
    """As half of the scripts have it."""
    if isinstance(outputs, (tuple, list)):
        outputs = outputs[0]
    if isinstance(outputs, Tensor):
        outputs = float(outputs.asnumpy().mean())
    return outputs


def halve(_):
    NETWORK.weight.set_data(NETWORK.weight * 0.5)


# Callbacks that only look


class Losses(Callback):
    """Keeps losses, and a running mean."""

    def __init__(self, every=10):
        super().__init__()
        self.every = every
        self.losses = []
        self.mean = 0.0
        self.last = collections.deque(maxlen=3)
        self.best = {"loss": math.inf, "step": None}

    def on_train_step_end(self, run_context):
        """With a docstring."""
        cb_params = run_context.original_args()
        loss = number_of(cb_params.net_outputs)
        self.losses.append(loss)
        self.last.append(loss)
        self.mean += (loss - self.mean) / len(self.losses)
        step = cb_params.cur_step_num
        if loss < self.best["loss"]:
            self.best["loss"], self.best["step"] = loss, step
        if step % self.every == 0 and not math.isnan(loss):
            print(
                f"epoch {cb_params.cur_epoch_num} step {step:>6d} loss {sum(self.last) / len(self.last):.4f}",
                flush=True,
            )


class Clock(Callback):
    def __init__(self):
        super().__init__()
        self.began = None
        self.times = []

    def on_train_begin(self, run_context):
        self.began = time.time()

    def on_train_step_begin(self, run_context):
        self.at = time.perf_counter()

    def on_train_step_end(self, run_context):
        self.times.append(time.perf_counter() - self.at)
        total = datetime.timedelta(seconds=time.time() - self.began)
        logger.info("%s: %.1f ms, %s", datetime.datetime.now().strftime("%H:%M"), 1000 * np.mean(self.times), total)

    def on_train_epoch_end(self, run_context):
        self.times = []


class Stops(Callback):
    """Ends at the first loss that is not finite, or when a time is over."""

    def __init__(self, seconds):
        self.seconds, self.begun = seconds, time.monotonic()

    def on_train_step_end(self, run_context):
        loss = run_context.original_args().net_outputs
        loss = loss[0] if isinstance(loss, tuple) else loss
        if not np.isfinite(loss.asnumpy()).all():
            raise ValueError("the loss is not finite", loss.shape)
        if time.monotonic() - self.begun > self.seconds:
            run_context.request_stop()


class Rows(Callback):
    """Writes a file."""

    def __init__(self, path):
        self._path = path
        self._file = None

    def on_train_begin(self, run_context):
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        self._file = open(self._path, "a", encoding="utf-8")

    def on_train_step_end(self, run_context):
        params = run_context.original_args()
        self._file.write(
            json.dumps({"step": params.cur_step_num, "loss": self._loss(params.get("net_outputs"))}) + "\n"
        )
        with open(self._path + ".csv", "a", newline="") as other:
            csv.writer(other).writerow([params["cur_step_num"], params.batch_num])

    def on_train_end(self, run_context):
        self._file.close()

    @staticmethod
    def _loss(outputs):
        return float(outputs.asnumpy())


class Bar(Callback):
    def __init__(self, total):
        self.bar = tqdm(total=total, disable=True)

    def step_end(self, run_context):
        self.bar.update(1)
        self.bar.set_postfix({"loss": float(run_context.original_args().net_outputs)})


class Derived(Losses):
    def on_train_step_end(self, run_context):
        super().on_train_step_end(run_context)
        recent = [one for one in self.losses[-3:] if one > 0]
        self.recent = sum(one / 2 for one in recent)

    def on_train_epoch_begin(self, run_context):
        super().on_train_epoch_begin(run_context)


class Rate(Callback):
    def on_train_step_end(self, run_context):
        params = run_context.original_args()
        rate = params.optimizer.learning_rate
        while rate is None:
            break
        print("lr", rate.asnumpy(), RATE if params.cur_step_num else -RATE, sep=" ")


class Smoothed(Callback):
    def __init__(self):
        self.value = None

    def on_train_step_end(self, run_context):
        loss = run_context.original_args().net_outputs.asnumpy()
        self.value = loss * 1.0 if self.value is None else 0.9 * self.value + 0.1 * loss
        total: float = 0.0
        total += loss
        total += 1
        print("{:.3f}".format(float(total)), max(0.0, float(self.value)))  # noqa: UP032


class Private2(Callback):
    def __init__(self):
        self.__losses = []

    def on_train_step_end(self, run_context):
        cb_params = run_context.original_args()
        if hasattr(cb_params, "net_outputs"):
            self.__losses.append(number_of(getattr(cb_params, "net_outputs", None)))
        ms.log.info("%s", {step: 2 * one for step, one in enumerate(self.__losses)})
        super(Private2, self).on_train_step_end(run_context)  # noqa: UP008


class Guarded(Callback):
    def __init__(self):
        self.file = None

    def on_train_begin(self, run_context):
        if not self.file:
            self.file = open("none", "a")
        self.table = csv.DictWriter(self.file, ["loss"])

    def on_train_step_end(self, run_context):
        loss = run_context.original_args().net_outputs
        try:
            loss = float(loss)
        except (TypeError, ValueError):
            loss = float("nan")
        self.table.writerow({"loss": loss})
        print("{}: {}".format(run_context.original_args().cur_step_num, np.array(float(loss))))  # noqa: UP032
        with open("none", "w") as file:
            json.dump({"loss": loss}, file, indent=2)


LOOKING = [
    Private2(),
    Guarded(),
    Losses(),
    Clock(),
    Stops(60),
    Rows("none/rows"),
    Bar(3),
    Derived(),
    Rate(),
    Smoothed(),
]


@pytest.mark.parametrize("callback", LOOKING, ids=lambda one: type(one).__name__)
def test_callback_that_only_looks_is_known(callback):
    assert only_looks(callback, OPTIMIZER)


def test_rate_of_an_unknown_optimizer_is_not_read():
    class Own:
        @property
        def learning_rate(self):
            halve(0)

    assert not only_looks(Rate())
    assert not only_looks(Rate(), nn.Momentum(NETWORK.trainable_params(), nn.ExponentialDecayLR(0.1, 0.9, 2), 0.9))
    assert not only_looks(Rate(), Own())


def test_function_that_becomes_a_hook_is_read():
    """As those below do, which must not be unknown for that reason alone."""
    assert only_looks(prints())


# Callbacks that write, or of which that is not known

WRITING = []


def writes(kind):
    WRITING.append(kind())
    return kind


def at_step_end(write):
    """A callback whose step end runs ``write``: its source is that of the function."""
    kind = type(write.__name__, (Callback,), {"on_train_step_end": write, "__module__": __name__})
    return writes(kind)


@at_step_end
def prints(self, run_context):
    print(run_context.original_args().cur_step_num)


WRITING.clear()


@at_step_end
def sets_data(self, run_context):
    NETWORK.weight.set_data(NETWORK.weight * 0.5)


@at_step_end
def assigns(self, run_context):
    ops.assign(NETWORK.weight, NETWORK.weight * 0.5)


@at_step_end
def calls_what_writes(self, run_context):
    halve(run_context.original_args().cur_step_num)


@at_step_end
def writes_through_numpy(self, run_context):
    BITS[0] = 1


@at_step_end
def adds_in_place(self, run_context):
    loss = run_context.original_args().net_outputs
    loss += 1


@at_step_end
def adds_to_an_array_in_place(self, run_context):
    loss = run_context.original_args().net_outputs.asnumpy()
    loss += 1


@at_step_end
def writes_to_a_view(self, run_context):
    loss = run_context.original_args().net_outputs.asnumpy()
    part = loss[0:1]
    part[0] = 1


@at_step_end
def writes_to_a_reshaped_array(self, run_context):
    loss = run_context.original_args().net_outputs.asnumpy().reshape(-1)
    loss[0] = 1


@at_step_end
def fills(self, run_context):
    run_context.original_args().net_outputs.asnumpy().fill(0)


@at_step_end
def sorts_an_array(self, run_context):
    run_context.original_args().net_outputs.asnumpy().sort()


@at_step_end
def gives_an_output(self, run_context):
    np.abs(run_context.original_args().net_outputs.asnumpy(), run_context.original_args().net_outputs.asnumpy())


@at_step_end
def gives_an_output_by_name(self, run_context):
    loss = run_context.original_args().net_outputs.asnumpy()
    np.sum(loss, out=loss)


@at_step_end
def gives_an_output_by_star(self, run_context):
    loss = run_context.original_args().net_outputs.asnumpy()
    np.abs(*[loss, loss])


@at_step_end
def sums_into(self, run_context):
    loss = run_context.original_args().net_outputs.asnumpy()
    loss.sum(0, None, loss)


@at_step_end
def calls_an_operator(self, run_context):
    ops.AssignAdd()(NETWORK.bias, NETWORK.bias)


@at_step_end
def takes_the_network(self, run_context):
    for one in run_context.original_args().train_network.trainable_params():
        one.set_data(one * 0.5)


@at_step_end
def takes_the_network_as_item(self, run_context):
    run_context.original_args()["train_network"].network.weight.set_data(NETWORK.weight)


@at_step_end
def takes_the_network_by_get(self, run_context):
    run_context.original_args().get("network").weight.set_data(NETWORK.weight)


@at_step_end
def takes_the_private_arguments(self, run_context):
    run_context._original_args["network"].weight.set_data(NETWORK.weight)


@at_step_end
def runs_the_optimizer(self, run_context):
    run_context.original_args().optimizer(NETWORK.weight)


@at_step_end
def writes_the_rate(self, run_context):
    run_context.original_args().optimizer.learning_rate.set_data(Tensor(0.1))


@at_step_end
def writes_weights_of_the_optimizer(self, run_context):
    run_context.original_args().optimizer.parameters[0].set_data(NETWORK.weight)


@at_step_end
def evaluates(self, run_context):
    NETWORK(Tensor(np.ones((1, 3), np.float32)))


@at_step_end
def loads(self, run_context):
    ms.load_checkpoint("best.ckpt", NETWORK)


@at_step_end
def executes(self, run_context):
    exec("NETWORK.weight.set_data(NETWORK.weight * 0.5)")


@at_step_end
def evaluates_text(self, run_context):
    eval("halve(0)")


@at_step_end
def gets_by_name(self, run_context):
    getattr(NETWORK.weight, "set" + "_data")(NETWORK.weight)


@at_step_end
def maps(self, run_context):
    list(map(halve, [0]))


@at_step_end
def sorts_by_a_key(self, run_context):
    sorted([0], key=halve)


@at_step_end
def sorts_in_place_by_a_key(self, run_context):
    [0].sort(key=halve)


@at_step_end
def takes_the_largest_by_a_key(self, run_context):
    max([0], key=halve)


@at_step_end
def has_a_lambda(self, run_context):
    (lambda: halve(0))()


@at_step_end
def has_a_function(self, run_context):
    def inner():
        halve(0)

    inner()


@at_step_end
def has_a_class(self, run_context):
    class Inner:
        halve(0)


@at_step_end
def imports(self, run_context):
    from tests import anything  # noqa: F401


@at_step_end
def writes_a_global(self, run_context):
    global RATE
    RATE = NETWORK


@at_step_end
def yields(self, run_context):
    yield halve(0)


@at_step_end
def names_in_a_comprehension(self, run_context):
    return [one.set_data(one) for one in [NETWORK.weight]]


@at_step_end
def names_in_a_dict_comprehension(self, run_context):
    return {one: halve(one) for one in [0]}


@at_step_end
def writes_in_a_condition(self, run_context):
    return 1 if halve(0) else 2


@at_step_end
def writes_in_a_format(self, run_context):
    print(f"{halve(0)}")


@at_step_end
def writes_in_a_subscript(self, run_context):
    SEEN[halve(0)] = 1


@at_step_end
def writes_in_a_slice(self, run_context):
    print(SEEN[0 : halve(0)])


@at_step_end
def writes_in_a_default(self, run_context):
    print({}.get(0, halve(0)))


@at_step_end
def writes_in_a_walrus(self, run_context):
    if (one := halve(0)) is None:
        print(one)


@at_step_end
def writes_in_a_handler(self, run_context):
    try:
        print(1)
    except ValueError:
        halve(0)


@at_step_end
def writes_in_finally(self, run_context):
    try:
        print(1)
    finally:
        halve(0)


@at_step_end
def writes_in_an_assertion(self, run_context):
    assert halve(0) is None


@at_step_end
def writes_as_it_raises(self, run_context):
    raise ValueError(halve(0))


@at_step_end
def deletes(self, run_context):
    del NETWORK.weight


@at_step_end
def matches(self, run_context):
    match run_context:
        case _:
            halve(0)


@at_step_end
def writes_by_another_name(self, run_context):
    one = halve
    one(0)


@at_step_end
def keeps_the_network(self, run_context):
    self.network = run_context.original_args().train_network


@at_step_end
def writes_an_attribute_that_another_gives(self, run_context):
    self.network.weight.set_data(1)


@at_step_end
def keeps_in_a_container(self, run_context):
    SEEN.append(NETWORK)


@at_step_end
def sets_by_name(self, run_context):
    setattr(self, "network", NETWORK)  # noqa: B010


@at_step_end
def writes_to_its_dict(self, run_context):
    self.__dict__["network"] = NETWORK


@at_step_end
def opens_a_context(self, run_context):
    with ms.boost as one:
        print(one)


@at_step_end
def draws(self, run_context):
    print(mnp.rand(3))


@at_step_end
def writes_to_a_tensor(self, run_context):
    run_context.original_args().net_outputs[0] = 1


@at_step_end
def unpacks_tensors(self, run_context):
    loss, *_ = run_context.original_args().net_outputs
    loss += 1


@at_step_end
def takes_a_tensor_out_of_a_list(self, run_context):
    for one in [run_context.original_args().net_outputs]:
        one += 1


@at_step_end
def zips_tensors(self, run_context):
    for _, one in zip([1], [run_context.original_args().net_outputs.asnumpy()], strict=True):
        one[0] = 1


@at_step_end
def takes_the_smallest(self, run_context):
    one = min([run_context.original_args().net_outputs.asnumpy()])
    one[0] = 1


@at_step_end
def takes_an_item_of_a_dict(self, run_context):
    one = {"a": run_context.original_args().net_outputs.asnumpy()}
    one.setdefault("a", 1)[0] = 1


@at_step_end
def writes_what_it_computed_or_not(self, run_context):
    loss = run_context.original_args().net_outputs.asnumpy()
    one = loss * 2 if run_context.original_args().cur_step_num else loss
    one[0] = 1


@at_step_end
def writes_in_a_later_round(self, run_context):
    one = 0.0
    for _ in range(3):
        one += 1
        one = run_context.original_args().net_outputs.asnumpy()


@at_step_end
def adds_to_a_transposed_array(self, run_context):
    params = run_context.original_args()
    one = params.net_outputs.asnumpy() if params.cur_step_num else params.net_outputs
    one = one.T
    one += 1


@at_step_end
def adds_to_what_plus_gives(self, run_context):
    one = +run_context.original_args().net_outputs
    one += 1


@at_step_end
def adds_to_an_item_of_an_array(self, run_context):
    one = [run_context.original_args().net_outputs.asnumpy()]
    one[0] += 1


@at_step_end
def adds_to_a_mean(self, run_context):
    one = run_context.original_args().net_outputs.mean()
    one += 1


@at_step_end
def writes_to_a_batch(self, run_context):
    run_context.original_args().train_dataset_element[0].set_data(1)


@at_step_end
def takes_a_metric(self, run_context):
    run_context.original_args().metrics["loss"].update(1)


@at_step_end
def casts_to_the_same_type(self, run_context):
    square = np.float32(run_context.original_args().net_outputs.asnumpy())
    square *= square


@at_step_end
def rounds_numbers(self, run_context):
    step = np.round(run_context.original_args().optimizer.global_step.asnumpy())
    step += 1


@at_step_end
def hides_a_name_in_a_comprehension(self, run_context):
    print([NETWORK * 2 for NETWORK in ["a"]])
    NETWORK.update(1)


@at_step_end
def hides_a_function_in_a_comprehension(self, run_context):
    print([halve * 2 for halve in ["a"]], halve(0))


@at_step_end
def calls_the_type_of_an_array(self, run_context):
    bits = run_context.original_args().net_outputs.asnumpy()
    same = bits.dtype.type(bits)
    same *= 2


@at_step_end
def multiplies_nothing(self, run_context):
    same = math.prod([], start=run_context.original_args().net_outputs.asnumpy())
    same *= 2


@at_step_end
def sums_nothing(self, run_context):
    same = sum([], run_context.original_args().net_outputs.asnumpy())
    same *= 2


@at_step_end
def takes_the_largest_object(self, run_context):
    same = np.max([[run_context.original_args().net_outputs]])
    same += 2


@at_step_end
def keeps_an_object_in_an_array(self, run_context):
    np.array([{"a": run_context.original_args().net_outputs.asnumpy()}])[0]["a"] *= 2


@at_step_end
def formats_an_attribute(self, run_context):
    print(f"{run_context.original_args().net_outputs.owner.size}")


@at_step_end
def calls_what_a_number_has_not(self, run_context):
    run_context.original_args().cur_step_num.update()


@at_step_end
def calls_what_a_container_has_not(self, run_context):
    run_context.original_args().eval_results["loss"].set_data(1)


@at_step_end
def calls_what_a_tensor_has_not(self, run_context):
    run_context.original_args().net_outputs.halve()


class AsksItsInstances(type):
    def __instancecheck__(cls, one):
        halve(0)
        return True


class Asked(metaclass=AsksItsInstances):
    pass


@at_step_end
def asks_a_metaclass(self, run_context):
    isinstance(1, Asked)


class OddError(ValueError):
    __module__ = "builtins"

    def __init__(self, *given):
        halve(0)


@at_step_end
def raises_its_own_error(self, run_context):
    raise OddError(1)


@at_step_end
def writes_in_the_else_of_a_try(self, run_context):
    try:
        print(1)
    except (ValueError, KeyError):
        print(2)
    else:
        halve(0)


@at_step_end
def names_its_error(self, run_context):
    try:
        print(1)
    except ValueError as error:
        error.halve()


@at_step_end
def asks_for_the_network_by_name(self, run_context):
    getattr(run_context.original_args(), "train_network").set_train()  # noqa: B009


@at_step_end
def asks_any_object_by_name(self, run_context):
    getattr(NETWORK, "weight").set_data(1)  # noqa: B009


@at_step_end
def gives_a_default(self, run_context):
    same = os.getenv("NO_SUCH_NAME", run_context.original_args().net_outputs.asnumpy())
    same *= 0.5


@at_step_end
def begins_a_bar_with_an_array(self, run_context):
    tqdm(initial=run_context.original_args().optimizer.global_step.asnumpy()).update(1)


@at_step_end
def adds_to_a_number_of_the_module(self, run_context):
    total = RATE  # which the training function may set to an array
    total += 1


class Abstract(abc.ABC):  # noqa: B024 - only its question matters
    @classmethod
    def __subclasshook__(cls, kind):
        halve(0)
        return True


@at_step_end
def asks_an_abstract_class(self, run_context):
    isinstance(1, Abstract)


class BarOfArrays(Callback):
    """Resumes a bar at the step that a parameter has, and writes to it."""

    def __init__(self):
        self.bar = tqdm(total=3)
        self.bar.n = ms.Parameter(1, name="step").asnumpy()

    def on_train_step_end(self, run_context):
        self.bar.update(1)


class PatchedBar(Callback):
    def __init__(self):
        self.bar = tqdm(total=3)
        self.bar.update = halve

    def on_train_step_end(self, run_context):
        self.bar.update(1)


class PatchedTensor(Callback):
    def __init__(self):
        self.loss = ms.Tensor(1.0)
        self.loss.asnumpy = lambda: halve(0)

    def on_train_step_end(self, run_context):
        self.loss.asnumpy()


class HandlesItself(Callback):
    def __init__(self):
        self.log = logging.Logger("handles")
        self.log.handle = halve

    def on_train_step_end(self, run_context):
        self.log.warning("a")


class Inner0(Callback):
    def __log(self):
        return 1

    def on_train_step_begin(self, run_context):
        print(self.__log())


class Inner(Inner0):
    """Its own private method is called where the names are those of another code object."""

    def __log(self):
        halve(0)

    def on_train_step_end(self, run_context):
        print(self._Inner0__log(), [self.__log() for _ in [1]])


class Private(Callback):
    """The name in its code is not that of the attribute."""

    def __init__(self):
        self.__ema = NETWORK

    def on_train_step_end(self, run_context):
        self.__ema.update()

    def on_train_end(self, run_context):
        self.__ema = None


class ByData:
    """Its value is in the object, and Python asks it first."""

    def __get__(self, owner, kind=None):
        return NETWORK

    def __set__(self, owner, value):
        pass


class OverData(Callback):
    ema = ByData()

    def __init__(self):
        vars(self)["ema"] = 1

    def on_train_step_end(self, run_context):
        self.ema.update()


class Weak(Callback):
    def __init__(self):
        self.ema = weakref.proxy(NETWORK)

    def on_train_step_end(self, run_context):
        self.ema.update()

    def on_train_end(self, run_context):
        self.ema = None


class OtherArguments(Callback):
    def step_end(self, run_context):
        run_context.original_args()

    def on_train_step_end(self, run_context):
        super().on_train_step_end(halve)


class OfObjects(Callback):
    def __init__(self):
        self.rows = np.zeros(1, [("a", object)])
        self.rows[0]["a"] = BITS

    def on_train_step_end(self, run_context):
        self.rows[0]["a"] *= 2


class OfRecords(Callback):
    def __init__(self):
        self.row = np.zeros(1, [("a", np.float32)]).view(np.recarray)[0]

    def on_train_step_end(self, run_context):
        self.row += 1


class Zone(datetime.tzinfo):
    def utcoffset(self, at):
        halve(0)


class Zoned(Callback):
    def __init__(self):
        self.at = datetime.datetime(2026, 1, 1, tzinfo=Zone())

    def on_train_step_end(self, run_context):
        print(self.at)


class PatchedLog(Callback):
    def __init__(self):
        self.log = logging.Logger("patched")
        self.log.info = halve

    def on_train_step_end(self, run_context):
        self.log.info("a")


class WithMeta(Callback, metaclass=AsksItsInstances):
    def on_train_step_end(self, run_context):
        print(1)


class Property(Callback):
    @property
    def loss(self):
        halve(0)
        return 1

    def on_train_step_end(self, run_context):
        print(self.loss)


class Setter(Callback):
    @property
    def loss(self):
        return 1

    @loss.setter
    def loss(self, value):
        halve(0)

    def on_train_step_end(self, run_context):
        self.loss = 1


class Descriptor:
    def __set__(self, owner, value):
        halve(0)

    def __get__(self, owner, kind=None):
        halve(0)
        return 1


class HasDescriptor(Callback):
    loss = Descriptor()

    def on_train_step_end(self, run_context):
        self.loss = 1


class SetsAttributes(Callback):
    def __setattr__(self, name, value):
        halve(0)

    def on_train_step_end(self, run_context):
        self.loss = 1


class GetsAttributes(Callback):
    def __getattribute__(self, name):
        halve(0)
        return super().__getattribute__(name)

    def on_train_step_end(self, run_context):
        print(self.anything)


class GetsMissing(Callback):
    def __getattr__(self, name):
        halve(0)
        return 1

    def on_train_step_end(self, run_context):
        print(self.anything)


class SlotsOf(Callback):
    __slots__ = ("network",)

    def on_train_step_end(self, run_context):
        print(1)


class Enters(Callback):
    def __enter__(self):
        halve(0)
        return self

    def on_train_step_end(self, run_context):
        print(1)


class InAnotherHook(Callback):
    """The kinds of its attribute are wrong from the first epoch on."""

    def __init__(self):
        self.kept = None

    def on_train_step_end(self, run_context):
        if self.kept is not None:
            self.kept += 1

    def on_train_epoch_end(self, run_context):
        self.kept = run_context.original_args().net_outputs


class AcrossHooks(Callback):
    def __init__(self):
        self.a = self.b = self.c = 0

    def on_train_step_begin(self, run_context):
        self.c += 1

    def on_train_step_end(self, run_context):
        self.c = self.b
        self.b = self.a
        self.a = run_context.original_args().net_outputs


class Given(Callback):
    """Gets the network from the script."""

    def __init__(self):
        self.network = NETWORK
        self.parameters = NETWORK.trainable_params()

    def on_train_step_end(self, run_context):
        self.parameters[0].set_data(self.parameters[0] * 0.5)


class Averaged(Callback):
    def __init__(self):
        self.parameters = NETWORK.trainable_params()

    def on_train_step_end(self, run_context):
        for one in self.parameters:
            one *= 0.5


class Bound(Callback):
    def __init__(self):
        self.write = NETWORK.weight.set_data

    def on_train_step_end(self, run_context):
        self.write(1)


class Hook(Callback):
    def __init__(self):
        self.on_train_step_end = halve

    def on_train_step_begin(self, run_context):
        print(1)


class List(list):
    def append(self, one):
        halve(one)


class Listed(Callback):
    def __init__(self):
        self.losses = List()

    def on_train_step_end(self, run_context):
        self.losses.append(1)


class Number(float):
    def __add__(self, other):
        halve(other)
        return 1.0


class Numbered(Callback):
    def __init__(self):
        self.loss = Number()

    def on_train_step_end(self, run_context):
        print(self.loss + 1)


class NumberInAList(Callback):
    def __init__(self):
        self.losses = [Number()]

    def on_train_step_end(self, run_context):
        print(sum(self.losses))


class Logs(logging.Logger):
    def info(self, *_, **__):
        halve(0)


class Logged(Callback):
    def __init__(self):
        self.log = Logs("halves")

    def on_train_step_end(self, run_context):
        self.log.info("x")


class Decorated(Callback):
    def halved(method):  # noqa: N805
        def around(*given):
            halve(0)
            return method(*given)

        return around

    @halved
    def on_train_step_end(self, run_context):
        print(1)


class ByClass(Callback):
    @classmethod
    def write(cls):
        halve(0)

    def on_train_step_end(self, run_context):
        self.write()


class ByStatic(Callback):
    @staticmethod
    def write():
        halve(0)

    def on_train_step_end(self, run_context):
        self.write()


class ByParent(Callback):
    def on_train_step_end(self, run_context):
        halve(0)


class ByChild(ByParent):
    def on_train_step_end(self, run_context):
        super().on_train_step_end(run_context)


class Mixin:
    def on_train_step_end(self, run_context):
        halve(0)


class Mixed(Callback):
    def on_train_step_end(self, run_context):
        super().on_train_step_end(run_context)


class MixedIn(Mixed, Mixin, Callback):
    pass


class Monitor(LossMonitor):
    def on_train_step_end(self, run_context):
        super().on_train_step_end(run_context)


class Calls(Callback):
    def write(self):
        halve(0)

    def on_train_step_end(self, run_context):
        self.write()


class ByArgument(Callback):
    def write(self, what):
        what(0)

    def on_train_step_end(self, run_context):
        self.write(halve)


class ByDefault(Callback):
    def write(self, what=halve):
        what(0)

    def on_train_step_end(self, run_context):
        self.write()


class Recursive(Callback):
    def write(self, left):
        if left:
            self.write(left - 1)
        halve(0)

    def on_train_step_end(self, run_context):
        self.write(3)


class StarArguments(Callback):
    def write(self, *what):
        what[0](0)

    def on_train_step_end(self, run_context):
        self.write(halve)


KINDS = [
    *(BarOfArrays, PatchedBar, PatchedTensor, HandlesItself, Inner),
    *(Private, OverData, Weak, OtherArguments, OfObjects, OfRecords, Zoned, PatchedLog, WithMeta),
    *(Property, Setter, HasDescriptor, SetsAttributes, GetsAttributes, GetsMissing, SlotsOf, Enters, InAnotherHook),
    *(AcrossHooks, Given, Averaged, Bound, Hook, Listed, Numbered, NumberInAList, Logged, Decorated, ByClass, ByStatic),
    *(ByChild, MixedIn, Monitor, Calls, ByArgument, ByDefault, Recursive, StarArguments),
]


@pytest.mark.parametrize("callback", [*WRITING, *map(object.__new__, KINDS)], ids=lambda one: type(one).__name__)
def test_callback_that_may_write_is_not_taken_for_one_that_looks(callback):
    if type(callback) in KINDS:
        type(callback).__init__(callback)
    assert not only_looks(callback, OPTIMIZER)


def test_hook_of_the_base_class_that_was_exchanged_is_read(monkeypatch):
    def step_end(self, run_context):
        halve(0)

    monkeypatch.setattr(Callback, "step_end", step_end)
    assert not only_looks(Clock())


def test_lambdas_are_not_read():
    assert not only_looks(LambdaCallback(on_train_step_end=print))


def test_closure_is_not_read():
    network = NETWORK

    class Closes(Callback):
        def on_train_step_end(self, run_context):
            print(network is None)

    assert not only_looks(Closes())


def test_source_that_is_not_what_runs_proves_nothing(tmp_path, monkeypatch):
    """The file was edited after it was imported."""
    path = tmp_path / "edited_callback.py"
    looks = (
        "from mindspore.train import Callback\nfrom mindspore import nn\nNETWORK = nn.Dense(1, 1)\n"
        "class Looks(Callback):\n    def on_train_step_end(self, run_context):\n        print(1)\n"
    )
    path.write_text(looks.replace("print(1)", "NETWORK.weight.set_data(NETWORK.weight)"))
    monkeypatch.syspath_prepend(tmp_path)
    import edited_callback

    path.write_text(looks)
    assert not only_looks(edited_callback.Looks())


def test_code_that_was_exchanged_proves_nothing():
    def other(self, run_context):
        halve(0)

    class Exchanged(Callback):
        def on_train_step_end(self, run_context):
            print(1)

    assert only_looks(Exchanged())
    Exchanged.on_train_step_end.__code__ = other.__code__
    assert not only_looks(Exchanged())
