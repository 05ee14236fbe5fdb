"""Denormal numbers are zero at every launch of a kernel, wherever MindSpore launches it."""

import json

import mindspore as ms
import pytest
from support.process import python

from ckptkit.manager.process import DenormalsAsZero
from ckptkit.mindspore import kernel_threads

LAUNCHES = """
import json, sys
import numpy as np
import mindspore as ms
from mindspore import nn
import ckptkit as ck

mode, code, early, root = sys.argv[1:]
if early == "first":  # in PYNATIVE, which is the default
    (ms.Tensor([1.0]) * 2).asnumpy()
ms.set_context(mode=getattr(ms, mode))
if early == "early":
    (ms.Tensor([1.0]) * 2).asnumpy()
DENORMAL = np.full(1000, 4, np.uint32).view(np.float32)


def decay(moments):
    return moments * 0.9


call = {"compiled": ms.jit(decay), "operation": decay}[code]
zeros = []
with ck.CheckpointManager(root) as manager:
    manager.restore(ck.StateManager(nn.Dense(1, 1)))
    for _ in range(60):  # MindSpore tries its pool's threads in some of the first launches, and decides by their time
        zeros.append(int((call(ms.Tensor(DENORMAL.copy())).asnumpy().view(np.uint32) == 0).sum()))
print(json.dumps(zeros))
print(json.dumps(float(np.float32(1e-40) * np.float32(0.5)) == 0))
"""


@pytest.mark.parametrize(
    ("mode", "code", "early"), [("GRAPH_MODE", "operation", "first"), ("PYNATIVE_MODE", "compiled", "early")]
)
def test_denormals_are_zero_at_every_launch(tmp_path, mode, code, early):
    # In a new interpreter: a fork of one that has imported MindSpore launches in other threads.
    script = tmp_path / "launches.py"
    script.write_text(LAUNCHES)
    ended = python(script, mode, code, early, tmp_path / "run", environment={"GLOG_v": "3"})
    zeros, are_still_zero = map(json.loads, ended.stdout.splitlines())
    assert zeros == [1000] * 60
    assert not are_still_zero  # the thread computes as before
    assert "1.2e-38" not in ended.stderr


@pytest.mark.parametrize("mark", [None, "cpu"])
def test_threads_that_cannot_be_changed_are_named(monkeypatch, shown, mark):
    """Tensors that mindtorch marks with a device are no obstacle."""
    made = ms.Tensor.__init__

    def make_marked(tensor, *args, **options):
        made(tensor, *args, **options)
        tensor.init = mark

    monkeypatch.setattr(ms.Tensor, "__init__", make_marked)
    monkeypatch.setattr(kernel_threads, "_are_zero_in_operations", lambda: False)
    here = DenormalsAsZero()
    here.begin()
    try:
        kernel_threads.take_denormals_as_zero_everywhere()
    finally:
        here.end()
    assert "keep numbers below 1.2e-38" in shown()


def test_nothing_is_done_for_a_thread_that_keeps_them(monkeypatch, shown):
    monkeypatch.setattr(kernel_threads, "takes_denormals_as_zero", lambda: False)
    monkeypatch.setattr(kernel_threads, "_are_zero_in_operations", lambda: pytest.fail("computed"))
    kernel_threads.take_denormals_as_zero_everywhere()
    assert "1.2e-38" not in shown()
