"""Refuses an `AccumulationTrainCell` inside another graph, and names what it is nested in.

Guarantees: GRAPH mode and `ms.jit`, which skip the cell's ``__call__`` and with it the counting and the update,
raise while they compile. The capturing modes of `ms.jit` are recognized by the names of MindSpore's own files
(private): if those move, the tests that nest a cell in a jit function fail. Main thread only.
"""

from __future__ import annotations

import inspect
from types import FrameType

import mindspore as ms
from mindspore import nn, ops

from ckptkit.core.stack import frames_from

_REFUSAL = (
    "AccumulationTrainCell was compiled into the graph of {}. Graphs skip the cell's __call__, which counts the "
    "micro-steps and applies the update. Give the AccumulationTrainCell itself to ms.Model (without optimizer or "
    "loss_fn, dataset_sink_mode=False), or call it from plain Python, outside of any other cell in GRAPH mode and "
    "of any @ms.jit function."
)
_CAPTURING_FILES = ("jit_trace.py", "pijit_context.py")


@ms.constexpr(reuse_result=False, check=False)
def refuse_graph() -> None:
    """Raise while a graph around an `AccumulationTrainCell` is being compiled."""
    raise RuntimeError(_REFUSAL.format(wrapper_name(inspect.currentframe())))


def refuse_capture() -> None:
    """Raise if an `AccumulationTrainCell` is called while Python code is being captured into a graph."""
    for frame in frames_from(inspect.currentframe()):
        if frame.f_code.co_filename.endswith(_CAPTURING_FILES):
            raise RuntimeError(_REFUSAL.format(wrapper_name(frame)))


def wrapper_name(frame: FrameType | None) -> str:
    """Name what is being compiled, by the locals of the nearest compiling frame at or below ``frame``.

    MindSpore does not tell a constexpr whose graph it is in, but it compiles on the caller's stack, below
    ``Cell.compile`` (``self``) or a wrapper of `ms.jit` (private: ``fn``, ``self.fn``, ``self.obj``). If these move,
    the message says "another graph" and the tests that expect the name fail.
    """
    for one in frames_from(frame):
        found = one.f_locals
        owner = found.get("self")
        for cell in (owner, getattr(owner, "obj", None)):
            if isinstance(cell, nn.Cell):
                return type(cell).__qualname__
        function = found.get("fn", getattr(owner, "fn", None))
        if inspect.isfunction(function) and not isinstance(owner, ops.Primitive):  # the constexpr itself is a Primitive
            return f"the @ms.jit function {function.__qualname__}"
    return "another graph"
