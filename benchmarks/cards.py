"""Makes the cards of ``docs/cards``: ``python -m benchmarks.cards [CARD...]``; without names all.

``ckptkit doctor`` examines three of the examples in both modes. `tests/docs/test_cards.py` makes one again and compares
it with what stands there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

PROJECT = Path(__file__).parents[1]
FOLDER = PROJECT / "docs/cards"
STEPS = {"language_model": 20, "lora_digits": 48, "mindcv_digits": 14}  # over the end of an epoch
KILLS = 3
CARDS = [f"{script}-{mode}" for script, mode in product(STEPS, ("GRAPH", "PYNATIVE"))]


def make(card: str, folder: Path) -> Path:
    """Examine the script of ``card`` in its mode; return the file in ``folder``.

    Raises:
        subprocess.CalledProcessError: If the verdict is no PASS.
    """
    script, mode = card.split("-")
    made = folder.absolute() / f"{card}.md"
    options = ["--steps", str(STEPS[script]), "--kills", str(KILLS), "--card", str(made)]
    training = ["python", str(PROJECT / f"examples/{script}.py"), f"runs/{script}", mode]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    with tempfile.TemporaryDirectory() as scratch:  # what the script and MindSpore write
        subprocess.run(
            [sys.executable, "-m", "ckptkit", "doctor", *options, "--", *training],
            cwd=scratch,
            env={"GLOG_v": "3", **os.environ, "PATH": path, "PYTHONPATH": str(PROJECT)},
            check=True,
        )
    return made


if __name__ == "__main__":
    for name in sys.argv[1:] or CARDS:
        make(name, FOLDER)
