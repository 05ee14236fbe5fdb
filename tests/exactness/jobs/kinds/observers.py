"""Callbacks and metrics that remember."""

from __future__ import annotations

import mindspore as ms
from mindspore import ops
from mindspore.train import Callback

from exactness.jobs.job import job
from exactness.jobs.outcome import Told
from exactness.jobs.parts import rate_of, train


class InCbParams(Callback):
    def on_train_begin(self, run_context):
        run_context.original_args().bad = 0

    def on_train_step_end(self, run_context):
        params = run_context.original_args()
        params.bad += 1
        ops.assign(rate_of(params.train_network), ms.Tensor(0.05 / params.bad, ms.float32))


@job(Told("bad"), "graph")
def counter_in_the_parameters_of_the_callback(run):
    train(run, callbacks=[InCbParams()])
