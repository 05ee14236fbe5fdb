"""The tables of random operators have all that this MindSpore offers."""

from __future__ import annotations

import inspect
import json
import types
from collections.abc import Iterator
from typing import Any

import mindspore as ms
import mindspore.numpy as mnp
import mindspore.ops.auto_generate
import mindspore.ops.operations.random_ops
import pytest
from mindspore import mint, nn, ops
from mindspore.common import generator
from support.process import python
from support.rounding import optimizer_of
from support.training import begin_process

from ckptkit.mindspore.inspect import find
from ckptkit.mindspore.inspect.code.bytecode import uses
from ckptkit.mindspore.inspect.operators import (
    DROPOUTS,
    functional,
    is_random_primitive,
)

OFFERED = {"ops": ops, "Tensor": ms.Tensor, "mindspore.numpy": mnp, "nn": nn}
OFFERED |= {"mint": mint, "mint.nn": mint.nn, "mint.nn.functional": mint.nn.functional}

# They hold dropout cells or operator objects of their own, which are found as anybody's.
HOLDERS = {"MultiheadAttention", "SampledSoftmaxLoss"}
HOLDERS |= {f"Transformer{part}" for part in ("", "Decoder", "DecoderLayer", "Encoder", "EncoderLayer")}

SAME_AT_EVERY_CALL = {"RandpermV2"}


def offered() -> Iterator[tuple[str, Any]]:
    """Every public function, method and cell, by name."""
    for prefix, owner in OFFERED.items():
        yield from ((f"{prefix}.{name}", one) for name, one in vars(owner).items() if not name.startswith("_"))


def draws(one: Any) -> bool:
    """Whether the code of MindSpore that calling ``one`` runs names what draws."""

    def names_it(code: Any) -> bool:
        return any(
            use.target is generator.default_generator or id(use.target) in functional() or _is_random(use.target)
            for use in uses(code, lambda module: module.startswith("mindspore."))
        )

    if isinstance(one, type):
        return any(names_it(vars(one)[name]) for name in ("construct", "__init__") if name in vars(one))
    return isinstance(one, types.FunctionType) and names_it(one)


def _is_random(target: Any) -> bool:
    return isinstance(target, type) and is_random_primitive(target)


@pytest.mark.extended  # four seconds, for what another version of MindSpore alone changes
def test_every_function_that_draws_is_known():
    begin_process(mode="graph")
    unknown = [
        name
        for name, one in offered()
        if id(one) not in functional()
        and one not in DROPOUTS
        and name.rpartition(".")[2] not in HOLDERS
        and not is_random_primitive(one)
        and draws(one)
    ]
    # What their own code shows of these is found where they are part of a network.
    found = {name for name in unknown if name.startswith("nn.") and find(_made(getattr(nn, name[3:])))}
    assert found == {"nn.FractionalMaxPool2d", "nn.FractionalMaxPool3d", "nn.RReLU"}
    assert set(unknown) - found == set()


def _made(kind: type[nn.Cell]) -> nn.Cell:
    """A cell as users make it."""
    pools = {"FractionalMaxPool2d": (2, (2, 2)), "FractionalMaxPool3d": (2, (2, 2, 2))}
    return kind(*pools.get(kind.__name__, ()))


def test_every_operator_with_seed_is_known():
    """A seed that it is made with means that it keeps the state of its generator."""
    modules = (ops, ops.operations, ms.ops.auto_generate, ms.ops.operations.random_ops)
    kinds = {one for module in modules for one in vars(module).values() if isinstance(one, type)}
    seeded = [
        one.__name__
        for one in kinds
        if issubclass(one, ops.Primitive)
        and any("seed" in name.lower() for name in inspect.signature(one.__init__).parameters)
        and not is_random_primitive(one)
    ]
    assert sorted(name for name in seeded if name not in SAME_AT_EVERY_CALL) == []


@pytest.mark.extended
def test_optimizers_that_round_by_launch_are_known():
    """In a process of its own, each computes one update twenty times; launches 6 to 15 split the work otherwise."""
    done = python("-m", "support.rounding", timeout=300)
    varies = json.loads(done.stdout)
    assert {name for name, results in varies.items() if results > 1} == {"AdamOffload", "RMSProp"}
    for name in varies:
        optimizer = optimizer_of(name, ms.ParameterTuple([ms.Parameter(ms.Tensor([1.0], ms.float32), name="w.weight")]))
        found = [one.where for one in find([optimizer], None) if "launches" in one.why]
        assert bool(found) == (name in ("AdamOffload", "RMSProp"))
