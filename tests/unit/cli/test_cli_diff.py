"""``ckptkit diff``: what it prints and what it exits with."""

from __future__ import annotations

import json

import numpy as np
from support.runs.rank_files import leaf, write_ranks
from support.runs.scenario import name_at
from unit.tools.test_diff import Stale, compared, trained

from ckptkit.cli.commands import diff as diff_module
from ckptkit.cli.commands.diff import parts_of, run_diff
from ckptkit.cli.output import plain, print_parts
from ckptkit.testing.state import NumpyRun

AT_4 = name_at(1, 4)


def diff(root, a, b, *, top=20, as_json=False, **options):
    return run_diff(str(root), a, b, top=top, as_json=as_json, **options)


def test_top_lists_the_largest_differences_first(capsys):
    before = write_ranks([[leaf(name, np.ones(2)) for name in "abc"]])
    values = {"a": [1.0, 1.001], "b": [1.0, 5.0], "c": [1.0, 1.1]}
    after = write_ranks([[leaf(name, np.array(value)) for name, value in values.items()]])
    for top in (0, 1, 3, 20):
        print_parts(parts_of(compared(before, after), top))
        lines = capsys.readouterr().out.splitlines()
        assert [line[0] for line in lines if "1/2" in line] == ["b", "c", "a"][:top], top
        more = ["2 more leaves differ; --top shows more, --json all"] if top == 1 else []
        assert [line for line in lines if "more leaves differ" in line] == more, top


def test_nan_of_either_side_is_counted(capsys):
    for a, b, shown in ((np.nan, 1.0, "1/0"), (1.0, np.nan, "0/1"), (1.0, 2.0, "-")):
        before, after = (write_ranks([[leaf("w", np.array([1.0, value]))]]) for value in (a, b))
        print_parts(parts_of(compared(before, after), 20))
        (row,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("w "))
        assert row.split()[-2:] == [shown, "[1]"]


def test_a_stale_state_is_flagged_and_exits_1(tmp_path, capsys):
    a, b = trained(tmp_path, Stale("weights", "moments", accumulation_steps=2), 4, 8)
    assert diff(tmp_path, a, b) == 1
    assert "SUSPICIOUS: 2 updates lie between the two" in capsys.readouterr().out


def test_ranks_and_long_states_are_told_shortly(capsys, monkeypatch):
    states = [{"rng": {f"{number:02d}": value for number in range(25)}} for value in (0, 1)]
    leaves = [leaf("w", np.zeros(2))]
    storages = {
        "one": write_ranks([leaves], states=states[:1]),
        "two": write_ranks([leaves, leaves], states=[states[1]] * 2),
    }
    monkeypatch.setattr(diff_module, "open_root", lambda root, *_, **__: storages[root])
    assert diff("one", "latest", "latest", other_root="two") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "ranks: 1 -> 2; what both have of the state is compared" in lines
    places = [line for line in lines if line.startswith("state: ")]
    assert places[0] == "state: rank 0: rng/00: 0 -> 1"
    assert len(places) == 21
    assert places[-1] == "state: 5 more places differ; --json shows all"


def test_json_of_what_is_not_finite_is_json():
    a, b = (write_ranks([[leaf("x", np.array([value]))]]) for value in (1e308, -1e308))
    document = plain(compared(a, b))
    assert document["leaves"][0]["divergence"]["max_abs"] is None
    json.dumps(document, allow_nan=False)


def test_mirrored_runs_alone_are_compared_at_their_newest(tmp_path, capsys):
    root, other = tmp_path / "root", tmp_path / "other"
    (a,), (b, newest) = trained(root, NumpyRun(), 4), trained(other, NumpyRun(), 4, 12)
    at_root, at_other = f"A: {a} at {root}\nB: ", f"{newest} at {other}\n"
    for arguments, options, shown in (
        ((root, str(other), None), {}, f"{at_root}{at_other}"),
        ((other, b, None), {}, f"A: {b} at {other}\nB: {at_other}"),  # one name alone: with the newest there
        ((root, a, None), {"other_root": str(other)}, f"{at_root}{at_other}"),
        ((root, "latest", None), {}, f"{at_root}{a} at {root}\n"),
    ):
        assert diff(*arguments, **options) == 0
        assert capsys.readouterr().out.startswith(shown), arguments
    assert diff(other, b, newest, exit_code=True) == 1
    assert diff(root, a, b, other_root=str(other), exit_code=True) == 0
    capsys.readouterr()
    assert diff(other, b, newest, as_json=True) == 0
    printed = json.loads(capsys.readouterr().out)
    fields = "a b equal progress ranks roles leaves state suspicion read_bytes"
    assert list(printed) == fields.split()
    assert printed["read_bytes"] > 0
