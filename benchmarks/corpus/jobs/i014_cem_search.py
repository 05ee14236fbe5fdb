# truth: exact
# class: random
# The cross-entropy method searches policy weights: the mean is in the network, the standard deviations and the generator are given by name.

import os
from dataclasses import dataclass, field

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_seed(314)


@dataclass
class SearchState:
    std: np.ndarray
    elite_share: float = 0.25
    floor: float = 0.02
    history: list = field(default_factory=list)


class Flat:
    """one vector for all weights of a network"""

    def __init__(self, net):
        self.params = list(net.get_parameters())

    def get(self):
        return np.concatenate([p.asnumpy().ravel() for p in self.params])

    def set(self, vector):
        at = 0
        for p in self.params:
            n = int(np.prod(p.shape))
            ops.assign(p, ms.Tensor(vector[at : at + n].reshape(p.shape).astype(np.float32)))
            at += n


def play(theta, wind):
    """a point mass on a line, linear-tanh policy; NumPy only"""
    w, b = theta[:2], theta[2]
    pos, vel, cost = 1.0, 0.0, 0.0
    for gust in wind:
        vel += 0.3 * np.tanh(w[0] * pos + w[1] * vel + b) + 0.05 * gust
        pos += 0.2 * vel
        cost += pos * pos
    return -cost


policy = nn.Dense(2, 1)
flat = Flat(policy)
search = SearchState(std=np.full(3, 0.8))
rng = np.random.default_rng(14)
winds = [(np.random.RandomState(40 + k).randn(15).astype(np.float32),) for k in range(8)]

batches = ck.data.resumable(winds, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([policy], batches, rng=rng, search=ck.attributes(search, "std"))
    manager.restore(state)
    for (wind,) in batches:
        mean = flat.get().astype(np.float64)
        population = mean + search.std * rng.standard_normal((16, 3))
        scores = np.array([play(theta, wind) for theta in population])
        elite = population[np.argsort(-scores, kind="stable")[: int(16 * search.elite_share)]]
        manager.fence()
        flat.set(elite.mean(0))
        search.std = np.maximum(0.7 * elite.std(0) + 0.3 * search.std, search.floor)
        search.history.append(scores.max())
        manager.step(state)
    print("best scores of this start", np.round(search.history, 3))
    manager.save_final(state)
os._exit(0)
