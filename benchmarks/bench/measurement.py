"""One measurement in one process, so that none finds the memory or the threads of another.

``python -m benchmarks.bench.measurement SUBJECT:FUNCTION OPTIONS ARGUMENTS OUT``: calls ``FUNCTION(options,
**arguments)`` of a module beside this one and writes the JSON object that it returns.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from .options import Options

CHECKOUT = Path(__file__).parents[2]
TIMEOUT_SECONDS = 1800
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class MeasurementError(RuntimeError):
    """A process that measured has failed; holds the end of what it printed."""


def measure(
    function: str, options: Options, *, one_thread: bool = True, environment: str = "mindspore", **arguments: Any
) -> dict[str, Any]:
    """Call ``subject:function`` in a fresh process.

    Args:
        function: Module beside this one, colon, name.
        options: Its first argument.
        one_thread: Whether its numeric libraries get one thread each.
        environment: Whose interpreter measures, of ``options.pythons``.
        **arguments: Its others; anything that JSON carries.

    Raises:
        MeasurementError: If the process failed.
    """
    options.workdir.mkdir(parents=True, exist_ok=True)
    # There, since MindSpore leaves folders behind wherever it runs.
    with tempfile.TemporaryDirectory(dir=options.workdir) as folder:
        out = Path(folder) / "out.json"
        paths = [str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])]
        variables = {
            **os.environ,
            **(ONE_THREAD if one_thread else {}),
            "GLOG_v": "3",
            "PYTHONPATH": os.pathsep.join(paths),
        }
        done = subprocess.run(
            [
                options.pythons.get(environment, sys.executable),
                "-m",
                "benchmarks.bench.measurement",
                function,
                options.dumps(),
                json.dumps(arguments),
                out,
            ],
            cwd=folder,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        if done.returncode:
            raise MeasurementError(f"{function} {arguments} failed ({done.returncode}):\n{done.stdout[-4000:]}")
        return json.loads(out.read_text())


def main(function: str, options: str, arguments: str, out: str) -> None:
    subject, _, name = function.partition(":")
    chosen = getattr(importlib.import_module(f".{subject}", __package__), name)
    Path(out).write_text(json.dumps(chosen(Options.loads(options), **json.loads(arguments))))
    sys.stdout.flush()
    os._exit(0)  # the framework's farewell is not part of the measurement


if __name__ == "__main__":
    main(*sys.argv[1:])
