"""A training that notes when it was where, and then waits to be killed. Its argument is JSON.

It is a list: root (null: without ckptkit), mirror or null, file for the notes, width of the network.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

root, mirror, notes, width = json.loads(sys.argv[1])
SAVE_AT = 20  # micro-steps
STEPS = {None: 2}.get(root, SAVE_AT + 1)  # of the first life; the next one trains two


def stamp(what: str, seconds: float | None = None) -> None:
    with Path(notes).open("a") as lines:
        print(what, time.time() if seconds is None else seconds, file=lines)


is_next_life = Path(notes).exists()
stamp("started")

import mindspore as ms  # noqa: E402 - it is what takes long
import mindspore.dataset as ds  # noqa: E402
import numpy as np  # noqa: E402
from mindspore import nn  # noqa: E402

stamp("mindspore")


class Loss(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(width, width, weight_init="zeros", has_bias=False)

    def construct(self, x):
        return (self.dense(x) - x).square().mean()


class Clock(ms.train.Callback):
    def on_train_step_end(self, run_context) -> None:
        stamp("stepped")
        step = run_context.original_args().cur_step_num
        if root is not None and step == SAVE_AT + 1:
            from ckptkit.manager.heartbeat import HEARTBEAT

            for phase, seconds in HEARTBEAT.spent().items():
                stamp(f"in-{phase}", seconds)
        if step == STEPS + is_next_life:
            stamp("waits")
            signal.pause()  # so that an upload does not compete with it


def mirrors() -> list:
    if mirror is None:
        return []
    from multirank.hosts.homes import opened

    url, options = opened(mirror, retry_for=timedelta(seconds=60))
    return [ck.Mirror(url, storage_options=options)]


ms.set_seed(1)
ms.set_context(mode=ms.GRAPH_MODE)
network = Loss()
model = ms.Model(nn.TrainOneStepCell(network, nn.Adam(network.trainable_params(), 1e-3)))
data = ds.NumpySlicesDataset(np.ones((10_000, width), np.float32), ["x"]).map(np.copy, ["x"]).batch(1)
clock = Clock()
stamp("built")
if root is None:
    model.train(1, data, callbacks=[clock], dataset_sink_mode=False)
else:
    import ckptkit as ck

    ckpt = ck.CheckpointCallback(
        root,
        mirror=mirrors(),
        save=ck.SaveEvery(micro_steps=SAVE_AT),
        keep=ck.KeepLatest(2),
        training=ck.Training(read_only=[clock]),
    )
    stamp("ckptkit")
    ckpt.train(model, 1, data, callbacks=[clock], dataset_sink_mode=False)
