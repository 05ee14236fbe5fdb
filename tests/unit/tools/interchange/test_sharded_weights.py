"""Weights in several .safetensors files with an index, as Hugging Face writes them."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from ckptkit.cli.app import app
from ckptkit.core.contents import Capture
from ckptkit.core.tensors import leaf_of
from ckptkit.errors import CheckpointNotFoundError, CorruptCheckpointError, StorageError
from ckptkit.manager.manager import CheckpointManager
from ckptkit.storage.system_calls import SYSTEM
from ckptkit.testing.state import NumpyRun
from ckptkit.tools.interchange import Renames, export_weights, import_weights

ARRAYS = {f"layer.{at}.weight": np.full((at + 1, 50), at, np.float32) for at in range(6)}  # 200 to 1,200 bytes
INDEX = "model.safetensors.index.json"


class Layers(NumpyRun):
    def capture(self) -> Capture:
        leaves = [leaf_of(name, array, role="weights", placement="replicated") for name, array in ARRAYS.items()]
        return Capture(super().capture().progress, tuple(leaves), {})


@pytest.fixture
def run(root):
    with CheckpointManager(root) as manager:
        state = Layers()
        manager.restore(state)
        manager.save(state)
    return root


@pytest.fixture
def sharded(run, tmp_path):
    folder = tmp_path / "hub"
    folder.mkdir()
    export_weights(run, folder / "model.safetensors", most_bytes=1500)
    return folder


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_files_and_index_are_as_hugging_face_has_them(sharded):
    files = [f"model-{number:05d}-of-00004.safetensors" for number in (1, 2, 3, 4)]
    assert names(sharded) == sorted([*files, INDEX])
    index = json.loads((sharded / INDEX).read_text())
    assert index["metadata"] == {"total_size": sum(array.nbytes for array in ARRAYS.values())}
    found = {name: load_file(sharded / file) for name, file in index["weight_map"].items()}
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert found[name][name].tobytes() == array.tobytes()
    assert all(sum(one.nbytes for one in load_file(sharded / file).values()) <= 1500 for file in files)


def test_several_files_hold_what_one_would(run, sharded, tmp_path):
    whole = export_weights(run, tmp_path / "whole.safetensors")
    again = tmp_path / "again"
    done = import_weights(sharded / INDEX, again)
    assert (done.tensors, done.ignored, done.format) == (len(ARRAYS), (), "safetensors")
    export_weights(again, tmp_path / "back.safetensors")
    assert (tmp_path / "back.safetensors").read_bytes() == (tmp_path / "whole.safetensors").read_bytes()
    assert whole.files == 1


def test_what_fits_into_one_file_has_no_index(run, tmp_path):
    done = export_weights(run, tmp_path / "model.safetensors", most_bytes=1 << 20)
    assert (done.files, done.file) == (1, str(tmp_path / "model.safetensors"))
    assert not (tmp_path / INDEX).exists()


def test_larger_tensor_has_a_file_of_its_own(run, tmp_path):
    done = export_weights(run, tmp_path / "model.safetensors", most_bytes=1)
    assert done.files == len(ARRAYS)
    assert done.file == str(tmp_path / INDEX)


def test_command_says_how_many_files(run, tmp_path):
    target = tmp_path / "model.safetensors"
    done = CliRunner().invoke(app, ["export", str(run), "-o", str(target), "--shard-size", "1500B"])
    assert done.exit_code == 0, done.output
    assert f"4 files, with {tmp_path / INDEX}" in done.output.replace("\n", "")
    done = CliRunner().invoke(app, ["import", str(tmp_path / INDEX), str(tmp_path / "new")])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("file", "size", "words"),
    [
        ("a.ckpt", "1500B", "only .safetensors"),
        ("a.safetensors", "many", "--shard-size must be a size such as 5GB"),
        ("a.safetensors", "0", "at least a byte"),
        ("a.safetensors", "5GB 3MB", "--shard-size must be a size such as 5GB"),
        ("a.safetensors", "5_000", "--shard-size must be a size such as 5GB"),
    ],
)
def test_wrong_size_is_wrong_usage(run, tmp_path, file, size, words):
    done = CliRunner().invoke(app, ["export", str(run), "-o", str(tmp_path / file), "--shard-size", size])
    assert done.exit_code == 2
    assert words in " ".join(done.output.split())
    assert not (tmp_path / file).exists()


def test_file_that_exists_is_kept(run, tmp_path):
    there = tmp_path / "model-00003-of-00004.safetensors"
    there.write_text("mine")
    with pytest.raises(ValueError, match=r"00003-of-00004\.safetensors exists"):
        export_weights(run, tmp_path / "model.safetensors", most_bytes=1500)
    assert there.read_text() == "mine"
    assert names(tmp_path) == sorted([there.name, "run"])
    export_weights(run, tmp_path / "model.safetensors", most_bytes=1500, overwrite=True)
    assert load_file(there)


def test_index_is_written_last(run, tmp_path, monkeypatch):
    """A disk that fails at the third name leaves no index, and no file that is not whole."""
    link, linked = SYSTEM.link, []

    def failing(old, new):
        if len(linked) == 2:
            raise OSError(28, "No space left on device")
        linked.append(new.name)
        link(old, new)

    monkeypatch.setattr(SYSTEM, "link", failing)
    monkeypatch.setattr(SYSTEM, "replace", failing)  # tried where a link fails
    with pytest.raises(StorageError, match="No space"):
        export_weights(run, tmp_path / "model.safetensors", most_bytes=1500)
    assert names(tmp_path) == sorted([*linked, "run"])
    assert len(linked) == 2
    assert all(load_file(tmp_path / name) for name in linked)


def test_names_are_changed_across_files(sharded, tmp_path):
    import_weights(sharded / INDEX, tmp_path / "new", renames=Renames.of(["layer.=body."], ["layer.3."]))
    export_weights(tmp_path / "new", tmp_path / "out.safetensors")
    assert sorted(load_file(tmp_path / "out.safetensors")) == [f"body.{at}.weight" for at in range(6) if at != 3]


def test_tensor_that_the_index_does_not_name_is_left_out(sharded, tmp_path):
    index = json.loads((sharded / INDEX).read_text())
    del index["weight_map"]["layer.2.weight"]
    (sharded / INDEX).write_text(json.dumps(index))
    assert import_weights(sharded / INDEX, tmp_path / "new").ignored == ("layer.2.weight",)


def test_tensor_in_two_files_is_taken_from_the_one_that_the_index_names(sharded, tmp_path):
    other = load_file(sharded / "model-00001-of-00004.safetensors")
    save_file({**other, "layer.5.weight": np.zeros(3, np.int8)}, sharded / "model-00001-of-00004.safetensors")
    import_weights(sharded / INDEX, tmp_path / "new")
    export_weights(tmp_path / "new", tmp_path / "out.safetensors")
    assert load_file(tmp_path / "out.safetensors")["layer.5.weight"].shape == (6, 50)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "no weight_map"),
        ("[]", "no weight_map"),
        ('{"weight_map": {"a": 1}}', "no weight_map"),
        ('{"weight_map": {"a": "../model-00001-of-00004.safetensors"}}', "no .safetensors file beside it"),
        ('{"weight_map": {"a": "/etc/passwd"}}', "no .safetensors file beside it"),
        ('{"weight_map": {"a": "m\\u0000.safetensors"}}', "no .safetensors file beside it"),
        ('{"weight_map": {"a": "weights.bin"}}', "no .safetensors file beside it"),
        ('{"weight_map": {"a": "model-00001-of-00004.safetensors"}}', "has no tensor 'a'"),
    ],
)
def test_index_that_is_wrong_is_named_and_nothing_written(sharded, tmp_path, text, words):
    (sharded / INDEX).write_text(text)
    with pytest.raises(CorruptCheckpointError, match=INDEX) as caught:
        import_weights(sharded / INDEX, tmp_path / "new")
    assert words in str(caught.value)
    assert not (tmp_path / "new").exists()


def test_file_that_is_missing_or_cut_is_named(sharded, tmp_path):
    file = sharded / "model-00002-of-00004.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[:-1])
    with pytest.raises(CorruptCheckpointError, match="00002-of-00004"):
        import_weights(sharded / INDEX, tmp_path / "new")
    file.unlink()
    with pytest.raises(CheckpointNotFoundError, match="00002-of-00004"):
        import_weights(sharded / INDEX, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_index_that_is_no_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / INDEX)
    with pytest.raises(CorruptCheckpointError, match="not a file"):
        import_weights(tmp_path / INDEX, tmp_path / "new")


def test_old_index_never_names_files_of_two_exports(run, sharded, monkeypatch):
    replace = SYSTEM.replace

    def failing(old, new):
        if "00002" in new.name:
            raise OSError(28, "No space left on device")
        replace(old, new)

    monkeypatch.setattr(SYSTEM, "replace", failing)
    with pytest.raises(StorageError, match="No space"):
        export_weights(run, sharded / "model.safetensors", most_bytes=1500, overwrite=True)
    assert not (sharded / INDEX).exists()
