"""Trainings that no resume can continue exactly: a start ends with what to do instead."""

from __future__ import annotations

import os
import time

import mindspore as ms
import numpy as np
from mindspore import nn

from exactness.jobs.parts import (
    BATCH,
    EPOCHS,
    FEATURES,
    SAMPLES,
    accumulating,
    adam,
    arrays,
    slices,
)
from exactness.jobs.run import job


@job("pynative", refused=("global_step", "by name"), default=True)
def two_optimizers_in_one_list(run):
    maker, critic = nn.Dense(4, FEATURES), nn.Dense(FEATURES, 1)
    critic.update_parameters_name("critic.")
    optimizers = [adam(maker), nn.RMSProp(critic.trainable_params(), 1e-2)]
    run.loop([maker, critic, *optimizers], slices(), lambda x, y: None)


class Hashed:
    """Goes through a set of strings: the order is another one in each process."""

    def __init__(self):
        self.salt = os.urandom(4).hex()  # forked processes have the hashes of their server

    def __iter__(self):
        x, y = arrays()
        order = [int(name.rpartition("-")[2]) for name in {f"{self.salt}-{index}" for index in range(SAMPLES)}]
        for chosen in np.array(order).reshape(-1, BATCH):
            yield ms.Tensor(x[chosen]), ms.Tensor(y[chosen])


@job("graph", refused=("did not give the same", "sample_rng"), by="resumed", trained=0)
def order_of_a_set_of_strings(run):
    run.loop(accumulating(), Hashed())


@job("graph", refused=("seed",), by="resumed", trained=0)
def seed_of_the_clock(run):
    ms.set_seed(time.time_ns() % 2**31)
    run.train(accumulating(), EPOCHS, slices())
