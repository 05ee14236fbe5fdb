"""Runs DLIO's checkpoint workload with its own PyTorch checkpoints and with ckptkit: ``python -m benchmarks.dlio``.

Two ranks write a scaled-down model under ZeRO 3 five times, durably each time; new processes read what they wrote; and
others read what the other rank wrote. Before they read from the disk, the page cache forgets the files. A figure is
DLIO's own, the size over the time until the slower rank is done: the median of five, the smallest and the largest.

It makes an environment with DLIO and an MPI first. Where GitHub cannot be reached, ``DLIO=git+file:///a/clone@COMMIT``
says where DLIO is.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.bench import files
from benchmarks.bench.table import table
from benchmarks.environments import python_of
from tests.support.servers.client import s3_client
from tests.support.servers.moto_server import MotoServer

CHECKOUT = Path(__file__).parents[2]
TIMES = 5
WIDTHS = {"disk": 1024, "moto": 512}  # moto keeps all in memory
PHASES = {
    "write": {"num_checkpoints_write": TIMES, "num_checkpoints_read": -1},
    "read": {"num_checkpoints_write": -1, "num_checkpoints_read": TIMES},
    "read after a shift": {"num_checkpoints_write": -1, "num_checkpoints_read": TIMES, "recovery_rank_shift": True},
}
KEY = {"access_key_id": "key", "secret_access_key": "key"}


def workload(width: int) -> dict[str, Any]:
    """DLIO's model of Llama, with two layers of ``width``."""
    transformer = {
        "hidden_size": width,
        "ffn_hidden_size": 3 * width,
        "vocab_size": 8 * width,
        "num_attention_heads": 8,
        "num_kv_heads": 8,
    }
    return {
        "workflow": {"generate_data": False, "train": False, "checkpoint": True},
        "framework": "pytorch",
        "model": {
            "name": "small",
            "type": "transformer",
            "num_layers": 2,
            "model_datatype": "fp16",
            "optimizer_datatype": "fp32",
            "parallelism": {"pipeline": 1, "tensor": 1, "zero_stage": 3},
            "transformer": transformer,
        },
    }


def flat(options: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield the options as Hydra takes them."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{path}.{name}")
        else:
            yield f"++{path}.{name}={value}"


def run(name: str, options: Mapping[str, Any], output: Path) -> list[float]:
    """Run DLIO in two ranks; return the GiB a second of each checkpoint."""
    python = python_of("dlio")
    ranks = [str(Path(python).with_name("mpirun")), "--allow-run-as-root", "--oversubscribe", "-np", "2"]
    arguments = [*flat(options, "workload"), f"++workload.output.folder={output}", f"hydra.run.dir={output}/hydra"]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "OMP_NUM_THREADS": "1"}
    environment |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "key"}
    done = subprocess.run(
        [*ranks, python, "-m", "dlio_benchmark.main", *arguments],
        env=environment,
        cwd=output.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{name}: exit code {done.returncode}\n{done.stdout[-5000:]}")
    [stats] = output.glob("0_per_epoch_stats.json")
    by_epoch = json.loads(stats.read_text())
    return [kept["throughput"] for epoch in by_epoch.values() for kept in epoch.values() if isinstance(kept, dict)]


def cell(rates: list[float]) -> str:
    return f"{median(rates):.2f} ({min(rates):.2f}-{max(rates):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dlio", description=__doc__.partition("\n")[0])
    parser.add_argument("--workdir", type=Path, default=Path("build/dlio"), help="on the disk to measure")
    parser.add_argument("--storages", nargs="+", choices=WIDTHS, default=list(WIDTHS))
    given = parser.parse_args()
    scratch = given.workdir.absolute()
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    rows = []
    with contextlib.ExitStack() as opened:
        for storage in given.storages:
            server = opened.enter_context(MotoServer()) if storage == "moto" else None
            if server is not None:
                s3_client(server.endpoint).create_bucket(Bucket="bucket")
            for system in ("Default", "CkptKit"):
                options = workload(WIDTHS[storage])
                folder = str(scratch / system)
                if server is not None:
                    folder = f"s3://bucket/{system}"
                    keys = {**KEY, "endpoint_url": server.endpoint, "s3_force_path_style": "'true'"}
                    # Not the type "s3", where DLIO finds no checkpoints: it counts folders that it makes below "s3:".
                    options["storage"] = {"storage_type": "local_fs", "storage_root": ".", "storage_options": keys}
                name = "DefaultS3" if server is not None and system == "Default" else system
                rates = []
                for number, (phase, numbers) in enumerate(PHASES.items()):
                    classname = f"benchmarks.dlio.checkpointing.{name}"
                    own = {"checkpoint_folder": folder, "checkpoint_mechanism_classname": classname, "rank_sync": True}
                    options["checkpoint"] = {**own, **numbers, "time_between_checkpoints": 0.5}
                    if server is None and phase != "write":
                        files.drop(Path(folder))
                    rates.append(run(phase, options, scratch / f"{storage}-{system}-{number}"))
                    print(f"{storage}, {system}, {phase}: {cell(rates[-1])} GiB/s", flush=True)
                rows.append([storage, "DLIO's own" if system == "Default" else "ckptkit", *map(cell, rates)])
                shutil.rmtree(scratch / system, ignore_errors=True)
    print(table(["GiB/s", "checkpoints", *PHASES], rows))


if __name__ == "__main__":
    main()
