"""A training that notes when it was where; its argument is JSON: root, mirror or null, notes, width, and steps or null.

After so many micro-steps it waits to be killed.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

root, mirror, notes, width, steps = json.loads(sys.argv[1])


SAVE_AT = 2


def stamp(what: str) -> None:
    with Path(notes).open("a") as lines:
        print(what, time.time(), file=lines)


stamp("started")

import mindspore as ms  # noqa: E402 - it is what takes long
import mindspore.dataset as ds  # noqa: E402
import numpy as np  # noqa: E402
from mindspore import nn  # noqa: E402
from multirank.hosts.homes import opened  # noqa: E402

import ckptkit as ck  # noqa: E402

stamp("imported")


class Loss(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(width, width, weight_init="zeros", has_bias=False)

    def construct(self, x):
        return (self.dense(x) - x).square().mean()


class Clock(ms.train.Callback):
    def on_train_begin(self, run_context) -> None:
        stamp("restored")

    def on_train_step_end(self, run_context) -> None:
        stamp("stepped")
        if run_context.original_args().cur_step_num == steps:
            signal.pause()  # so that the upload does not compete with it


def mirrors() -> list[ck.Mirror]:
    if mirror is None:
        return []
    url, options = opened(mirror, retry_for=timedelta(seconds=60))
    return [ck.Mirror(url, storage_options=options)]


def main() -> None:
    ms.set_seed(1)
    ms.set_context(mode=ms.GRAPH_MODE)
    loss = Loss()
    cell = ck.AccumulationTrainCell(loss, nn.Adam(loss.trainable_params(), 1e-3), accumulation_steps=1)
    data = ds.NumpySlicesDataset(np.ones((10_000, width), np.float32), ["x"], shuffle=False).batch(1)
    clock = Clock()
    ckpt = ck.CheckpointCallback(
        root,
        mirror=mirrors(),
        save=ck.SaveEvery(micro_steps=SAVE_AT),
        keep=ck.KeepLatest(2),
        training=ck.Training(read_only=[clock]),
    )
    stamp("built")
    ckpt.train(ms.Model(cell), 1, data, callbacks=[clock], dataset_sink_mode=False)


if __name__ == "__main__":
    main()
