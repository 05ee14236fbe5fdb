"""State that a loop changes by another name, such as an item, a view or a part of a tuple, is named."""

# ruff: noqa: B007, B905, PLW2901 - loops as people write them

from __future__ import annotations

import collections

import mindspore as ms
import numpy as np
import pytest
from mindspore import ops
from test_loop_begun import check_refused


def functional_a(cell, batches, rate, restore):
    def step(carry, batch):
        x, y = batch
        n, m = carry
        cell(x - m, y)
        return n + 1, m + 1

    restore()
    carry = (0, 0.0)
    for b in batches:
        carry = step(carry, b)


def functional_d(cell, batches, rate, restore):
    restore()
    carry = (0, 0.0)
    for x, y in batches:
        n, m = carry
        cell(x - m, y)
        carry = n + 1, m + 1


def groups_local(cell, batches, rate, restore):
    groups = [{"lr": 0.1}, {"lr": 0.2}]
    restore()
    for x, y in batches:
        cell(x * groups[1]["lr"], y)
        for g in groups:
            g["lr"] *= 0.9


def groups_read_in_loop(cell, batches, rate, restore):
    groups = [{"lr": 0.1}, {"lr": 0.2}]
    restore()
    for x, y in batches:
        for g in groups:
            g["lr"] *= 0.9
            ops.assign(rate, ms.Tensor(g["lr"]))


def groups_item_alias2(cell, batches, rate, restore):
    st = {"opt": {"n": 0}}
    restore()
    for x, y in batches:
        o = st["opt"]
        o["n"] += 1
        cell(x / st["opt"]["n"], y)


def lstm_state(cell, batches, rate, restore):
    restore()
    state = (ops.zeros((2, 6)), ops.zeros((2, 6)))
    for x, y in batches:
        h, c = state
        cell(x + h, y)
        state = ops.tanh(h + x), ops.tanh(c)


def lstm_state_list(cell, batches, rate, restore):
    restore()
    state = [ops.zeros((2, 6)), ops.zeros((2, 6))]
    for x, y in batches:
        h, c = state
        cell(x + h, y)
        state = [ops.tanh(h + x), ops.tanh(c)]


def list_of_arrays_zip(cell, batches, rate, restore):
    vel = [np.zeros(6, np.float32) for _ in range(2)]
    restore()
    for x, y in batches:
        for v, g in zip(vel, [x, y]):
            v += float(g.mean())
        cell(x + ms.Tensor(vel[0]), y)


def momentum_by_hand(cell, batches, rate, restore):
    params = list(cell.network.trainable_params())
    vel = [np.zeros(p.shape, np.float32) for p in params]
    restore()
    for x, y in batches:
        cell(x, y)
        for p, v in zip(params, vel):
            v *= 0.9
            v += 0.01 * p.asnumpy()
            ops.assign_sub(p, ms.Tensor(v))


def shadow_zip_inplace(cell, batches, rate, restore):
    params = list(cell.network.trainable_params())
    shadow = [p.asnumpy().copy() for p in params]
    restore()
    for x, y in batches:
        cell(x, y)
        for s, p in zip(shadow, params):
            s[...] = 0.9 * s + 0.1 * p.asnumpy()
    for s, p in zip(shadow, params):
        ops.assign(p, ms.Tensor(s))


def dict_of_arrays_inplace(cell, batches, rate, restore):
    params = list(cell.network.trainable_params())
    shadow = {p.name: p.asnumpy().copy() for p in params}
    restore()
    for x, y in batches:
        cell(x, y)
        for p in params:
            s = shadow[p.name]
            s *= 0.9
            s += 0.1 * p.asnumpy()
        for p in params:
            ops.assign(p, ms.Tensor(shadow[p.name]))


def dict_state_per_param(cell, batches, rate, restore):
    """Optimizer by hand: state = self.state[p]"""
    params = list(cell.network.trainable_params())
    states = {p.name: {"step": 0, "v": 0.0} for p in params}
    restore()
    for x, y in batches:
        cell(x, y)
        for p in params:
            s = states[p.name]
            s["step"] += 1
            s["v"] = 0.9 * s["v"] + 0.1
            ops.assign(p, p * (1 - s["v"] / s["step"]))


class ByHandGroups:
    def __init__(self, params):
        self.param_groups = [{"params": params, "lr": 0.1, "step": 0}]

    def step(self):
        for g in self.param_groups:
            g["step"] += 1
            for p in g["params"]:
                ops.assign(p, p * (1 - g["lr"] / g["step"]))


def optimizer_by_hand_groups(cell, batches, rate, restore):
    o = ByHandGroups(list(cell.network.trainable_params()))
    restore()
    for x, y in batches:
        cell(x, y)
        o.step()


class SchedGroups:
    def __init__(self, opt):
        self.opt = opt
        self.t = 0

    def step(self):
        for g in self.opt.param_groups:
            g["lr"] *= 0.9


def scheduler_of_groups(cell, batches, rate, restore):
    o = ByHandGroups(list(cell.network.trainable_params()))
    s = SchedGroups(o)
    restore()
    for x, y in batches:
        cell(x, y)
        s.step()
        for g in o.param_groups:
            for p in g["params"]:
                ops.assign(p, p * (1 - g["lr"]))


class Group:
    def __init__(self):
        self.lr = 0.1


def obj_group_after(cell, batches, rate, restore):
    restore()
    groups = [Group()]
    for x, y in batches:
        for g in groups:
            g.lr *= 0.9
        cell(x * groups[0].lr, y)


class Cbs:
    def __init__(self, *cbs):
        self.cbs = {type(c).__name__: c for c in cbs}

    def fire(self, what, *a):
        for name, c in self.cbs.items():
            getattr(c, what)(*a)


class Cb:
    def __init__(self):
        self.n = 0

    def on_step(self, rate):
        self.n += 1
        ops.assign(rate, rate / self.n)


def callback_list(cell, batches, rate, restore):
    cbs = Cbs(Cb())
    restore()
    for x, y in batches:
        cell(x, y)
        cbs.fire("on_step", rate)


class Cbs3:
    def __init__(self, *cbs):
        self.cbs = list(cbs)

    def fire(self, what, *a, **k):
        for c in self.cbs:
            getattr(c, what)(*a, **k)


def callback_list_fire(cell, batches, rate, restore):
    cbs = Cbs3(Cb())
    restore()
    for x, y in batches:
        cell(x, y)
        cbs.fire("on_step", rate)


class Cbs4(Cbs3):
    def fire(self, what, *a):
        for c in self.cbs:
            f = getattr(c, f"on_{what}", None)
            if f is not None:
                f(*a)


def callback_list_fstring(cell, batches, rate, restore):
    cbs = Cbs4(Cb())
    restore()
    for x, y in batches:
        cell(x, y)
        cbs.fire("step", rate)


def flat_attr(cell, batches, rate, restore):
    w = np.ones((2, 3), np.float32)
    restore()
    for x, y in batches:
        w.flat[0] += 1
        cell(x * float(w.sum()), y)


def transposed_view(cell, batches, rate, restore):
    w = np.ones((2, 3), np.float32)
    restore()
    for x, y in batches:
        w.T[0] += 1
        cell(x * float(w.sum()), y)


def asnumpy_view(cell, batches, rate, restore):
    w = ms.Tensor(np.ones(6), ms.float32)
    restore()
    for x, y in batches:
        a = w.asnumpy()
        a += 1
        cell(x * w, y)


def row_var(cell, batches, rate, restore):
    w = np.zeros((3, 6), np.float32)
    restore()
    for i, (x, y) in enumerate(batches, 0 + restore.__code__.co_argcount):
        r = w[0]
        r += 1
        cell(x + ms.Tensor(w[0]), y)


def default_dict_list(cell, batches, rate, restore):
    per = collections.defaultdict(list)
    restore()
    for x, y in batches:
        q = per[int(float(y) > 0)]
        q.append(float(x.mean()))
        cell(x + sum(per[0]), y)


def typeself(cell, batches, rate, restore):
    class A:
        n = 0

        def tick(self):
            type(self).n += 1
            return type(self).n

    a = A()
    restore()
    for x, y in batches:
        cell(x / a.tick(), y)


class History(list):
    def add(self, v):
        self.append(v)
        return self

    @property
    def mean(self):
        return sum(self[-3:]) / 3


def sub_list(cell, batches, rate, restore):
    h = History()
    restore()
    for x, y in batches:
        h.add(float(x.mean()))
        cell(x - h.mean, y)


class Counts(dict):
    def hit(self, k):
        self[k] = self.get(k, 0) + 1


def sub_dict(cell, batches, rate, restore):
    h = Counts()
    restore()
    for x, y in batches:
        h.hit("a")
        cell(x / h["a"], y)


class Meter2(collections.deque):
    def push(self, v):
        self.append(v)
        return float(np.mean(self))


def sub_deque(cell, batches, rate, restore):
    h = Meter2(maxlen=5)
    restore()
    for x, y in batches:
        cell(x - h.push(float(x.mean())), y)


@pytest.mark.parametrize(
    "loop",
    [
        functional_a,
        functional_d,
        groups_local,
        groups_read_in_loop,
        groups_item_alias2,
        lstm_state,
        lstm_state_list,
        list_of_arrays_zip,
        momentum_by_hand,
        shadow_zip_inplace,
        dict_of_arrays_inplace,
        dict_state_per_param,
        optimizer_by_hand_groups,
        scheduler_of_groups,
        obj_group_after,
        callback_list,
        callback_list_fire,
        callback_list_fstring,
        flat_attr,
        transposed_view,
        asnumpy_view,
        row_var,
        default_dict_list,
        typeself,
        sub_list,
        sub_dict,
        sub_deque,
    ],
    ids=lambda one: one.__name__,
)
def test_state_is_named_before_the_first_batch(loop):
    check_refused(loop)
