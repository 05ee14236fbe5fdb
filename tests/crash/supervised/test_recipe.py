"""The recipe for SLURM in docs/run.md, with stand-ins for ``srun`` and ``scontrol``."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from crash.supervised.supervised import JOB, python_path

PROJECT = Path(__file__).parents[3]
STAND_INS = PROJECT / "tests" / "multirank" / "msrun" / "slurm"


@pytest.mark.extended
@pytest.mark.parametrize(
    ("plan", "code", "requeued"),
    [([], 0, False), ([("bad-batch", 25)], 65, False), ([("killed", 3), ("killed", 4), ("killed", 5)], 75, True)],
    ids=["complete", "bad-batch", "no-progress"],
)
def test_slurm_requeues_what_another_machine_may_do_better(tmp_path: Path, plan, code, requeued) -> None:
    (script,) = re.findall(r"```text\n(#!/bin/bash\n#SBATCH.*?)```", (PROJECT / "docs/run.md").read_text(), re.DOTALL)
    job = shlex.join([sys.executable, str(JOB), "root", "plan.json"])
    (tmp_path / "job.sh").write_text(script.replace("python train.py", job))
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    (tmp_path / "ckptkit").write_text(f'#!/bin/sh\nexec {sys.executable} -m ckptkit "$@"\n')
    (tmp_path / "ckptkit").chmod(0o755)
    slurm = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1", "STAND_IN": str(tmp_path)}
    path = os.pathsep.join([str(tmp_path), str(STAND_INS), os.environ["PATH"]])
    done = subprocess.run(
        ["/bin/bash", "job.sh"],
        cwd=tmp_path,
        env={**os.environ, **python_path(), **slurm, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == code, done.stderr
    assert (tmp_path / "requeued").exists() == requeued
