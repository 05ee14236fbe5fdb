"""The benchmarks run, their tables come out, and their exactness can fail. No figure is looked at."""

import pytest

from benchmarks.bench import __main__ as bench
from benchmarks.bench import stall
from benchmarks.bench.limits import KINDS
from benchmarks.bench.measurement import measure
from benchmarks.bench.options import Options

TINY = {"mib": 2, "micro_ms": 1.0, "micro_steps": 2, "saves": 1, "pairs": 1, "restores": 1}

pytestmark = pytest.mark.extended


@pytest.fixture
def tiny(tmp_path):
    return Options(tmp_path / "work", **TINY, systems=("copy", "ckptkit"), modes=("pynative",), quick=True)


def rows(text, name):
    return [line for line in text.splitlines() if line.startswith(f"| {name} |")]


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
    _, row = rows(text, found["system"])  # of the loop, of the idle save
    return row.split("|")[-2].strip()


def test_the_command_line_is_read(tmp_path):
    given = ["--quick", "--saves", "2", "--systems", "none,copy", "--cycles", "1", "--workdir", str(tmp_path)]
    options = bench.options_of(bench.parsed(given))
    assert (options.quick, options.mib, options.saves, options.systems) == (True, 48, 2, ("none", "copy"))
    assert options.cycles == 1
    assert Options.loads(options.dumps()) == options
    with pytest.raises(SystemExit):
        bench.parsed(["--only", "speed"])
