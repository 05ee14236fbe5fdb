"""What an export holds and what it says of that, and that its file is durable before it has its name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from ckptkit.cli import app
from ckptkit.errors import ResumeError
from ckptkit.storage.system_calls import SystemCalls
from ckptkit.tools.interchange import atomic_file, export_weights, import_weights
from ckptkit.tools.interchange.atomic_file import NewFile

GOLDEN = Path(__file__).parents[3] / "exactness/golden/v1"


def export(tmp_path, root, *options):
    """What the command says, and the names in the file."""
    file = tmp_path / "x.safetensors"
    done = CliRunner().invoke(app, ["export", str(GOLDEN / root), "-o", str(file), "--force", "--json", *options])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout), set(load_file(file))


def test_options_decide_what_an_export_holds(tmp_path):
    weights, names = export(tmp_path, "ranks")
    everything, more = export(tmp_path, "ranks", "--with-optimizer")
    assert names < more
    assert weights["tensors"] == len(names)
    assert everything["tensors"] == len(more)
    assert everything["per_rank"] == []  # of accumulators, each rank has its own, and no file gets them
    assert weights["left_out"][0] == f"the optimizer's state ({len(more - names)} tensors)"
    assert not any("optimizer" in one or "dropped" in one for one in everything["left_out"])
    dropped = min(names)
    less, rest = export(tmp_path, "ranks", "--drop", dropped)
    assert rest == names - {dropped}
    assert "1 tensors that were dropped by name" in less["left_out"]
    assert export(tmp_path, "ranks", "--rank", "1")[0]["rank"] == 1


def test_only_accumulators_that_exist_are_left_out(tmp_path):
    boundary, _ = export(tmp_path, "numpy", "a000001-c0000000002-m0000")
    within, _ = export(tmp_path, "numpy", "a000001-c0000000002-m0002")
    told = ["the accumulators, after micro-step" in " ".join(one["left_out"]) for one in (boundary, within)]
    assert told == [False, True]


class Told(SystemCalls):
    """Notes the calls that make a file durable and give it its name."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def fsync(self, descriptor):
        self.calls.append("fsync")
        super().fsync(descriptor)

    def link(self, existing, new):
        self.calls.append("name")
        super().link(existing, new)

    def replace(self, old, new):
        self.calls.append("name")
        super().replace(old, new)

    def fsync_folder(self, folder):
        self.calls.append(f"fsync {folder}")


def test_file_is_durable_before_it_has_its_name(tmp_path, monkeypatch):
    for overwrite in (False, True):
        told = Told()
        monkeypatch.setattr(atomic_file, "SYSTEM", told)
        export_weights(GOLDEN / "numpy", tmp_path / "x.ckpt", overwrite=overwrite)
        assert told.calls == ["fsync", "name", f"fsync {tmp_path}"], overwrite


def test_dangling_link_is_not_replaced(tmp_path):
    (tmp_path / "x").symlink_to(tmp_path / "gone")
    with pytest.raises(ValueError, match="x exists; name another file"), NewFile(tmp_path / "x", overwrite=False):
        raise AssertionError
    assert (tmp_path / "x").is_symlink()


def test_named_checkpoint_of_an_unfinished_import_is_not_exported(tmp_path):
    export_weights(GOLDEN / "numpy", tmp_path / "w.ckpt")
    name = import_weights(tmp_path / "w.ckpt", tmp_path / "run").checkpoint
    (tmp_path / "run/attempts/000001.json").unlink()
    with pytest.raises(ResumeError, match="has not ended"):
        export_weights(tmp_path / "run", tmp_path / "x.ckpt", checkpoint=name)
