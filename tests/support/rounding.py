"""Prints for each optimizer how many results the same update has in twenty launches: ``python -m support.rounding``."""

import json

import mindspore as ms
import numpy as np
from mindspore import nn

SHAPES = ((14,), (1, 14), (14, 5), (33,), (128, 37))
OPTIONS = {
    **{name: {} for name in ("Adam", "AdamOffload", "AdamWeightDecay", "Adagrad", "AdaMax", "Adadelta", "FTRL")},
    **{"ASGD": {}, "Rprop": {}, "RMSProp": {}, "Momentum": {"momentum": 0.9}, "SGD": {"momentum": 0.9}},
    "RMSProp, centered": {"centered": True},
}


def optimizer_of(name, weights):
    return getattr(nn, name.partition(",")[0])(weights, learning_rate=0.01, **OPTIONS[name])


def results_of(name):
    rng = np.random.default_rng(0)
    drawn = [ms.Tensor(rng.standard_normal(shape), ms.float32) for shape in SHAPES]
    weights = ms.ParameterTuple([ms.Parameter(one, name=f"w{at}.weight") for at, one in enumerate(drawn)])
    optimizer = optimizer_of(name, weights)
    gradients = tuple(ms.Tensor(rng.standard_normal(shape) * 0.01, ms.float32) for shape in SHAPES)
    optimizer(gradients)
    begun = {one.name: one.asnumpy().copy() for one in optimizer.get_parameters()}
    results = set()
    for _ in range(20):
        for one in optimizer.get_parameters():
            one.set_data(ms.Tensor(begun[one.name]))
        optimizer(gradients)
        results.add(b"".join(one.asnumpy().tobytes() for one in optimizer.get_parameters()))
    return len(results)


if __name__ == "__main__":
    ms.set_context(mode=ms.GRAPH_MODE)
    print(json.dumps({name: results_of(name) for name in OPTIONS}))
