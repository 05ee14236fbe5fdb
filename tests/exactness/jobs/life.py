"""One start of a job: ``python -m exactness.jobs.life NAME MODE FOLDER TRACE [KILL]``; no folder, no ckptkit."""

import contextlib
import logging
import sys
from pathlib import Path

import mindspore as ms

from exactness.cells import kinds
from exactness.jobs import scripts
from exactness.jobs.run import JOBS, Run

__all__ = ["JOBS", "kinds", "scripts"]


def main(name: str, mode: str, folder: str, trace: str, kill: str = "0") -> None:
    job = JOBS[name]
    with contextlib.suppress(RuntimeError):  # a forked process has it already
        ms.device_context.cpu.op_tuning.threads_num(1)  # other splits of the work round otherwise, in any young process
    ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE)
    ms.set_seed(1)
    ms.manual_seed(1)  # set_seed leaves this generator alone, and MindSpore 2.7 begins it at random
    run = Run(Path(folder) if folder else None, Path(trace), int(kill), job.stage)
    logging.getLogger("ckptkit").addHandler(run)
    job.train(run)


if __name__ == "__main__":
    main(*sys.argv[1:])
