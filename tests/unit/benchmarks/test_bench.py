"""The benchmarks run, their tables come out, and their exactness can fail. No figure is looked at."""

import pytest

from benchmarks.bench import stall
from benchmarks.bench.limits import KINDS
from benchmarks.bench.measurement import measure
from benchmarks.bench.options import Options

pytestmark = pytest.mark.extended


@pytest.fixture
def tiny(tmp_path):
    small = {"mib": 2, "micro_ms": 1.0, "micro_steps": 2, "saves": 1, "pairs": 1, "restores": 1}
    return Options(tmp_path / "work", **small, systems=("copy", "ckptkit"), modes=("pynative",), quick=True)


@pytest.mark.parametrize(("name", "layout"), [("copy", "few"), ("ckptkit", "mid_cycle")])
def test_exactness_detects_flipped_bit(tiny, name, layout):
    """Without damage, each measured system is exact."""
    limits = {kind: [1000.0] for kind in KINDS}
    found = measure("stall:measure_system", tiny, name=name, layout=layout, damage=True)
    assert len(found["with"][0]["stalls"]) == tiny.saves
    assert exactness(found, limits, tiny) == "yes"
    damaged = found["damaged"]
    assert ("CorruptCheckpointError" in damaged.get("error", "")) == (name == "ckptkit")
    assert exactness({**found, "restores": [damaged]}, limits, tiny) == "NO"
    assert not tiny.scratch.exists()


def exactness(found, limits, options):
    text = stall.tables({"limits": [limits], "systems": [found], "state_bytes": options.state_bytes})
    _, row = [line for line in text.splitlines() if line.startswith(f"| {found['system']} |")]  # loop, idle save
    return row.split("|")[-2].strip()
