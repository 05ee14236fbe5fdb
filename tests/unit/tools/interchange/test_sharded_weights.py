"""Weights in several .safetensors files with an index, as Hugging Face writes them."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ckptkit.errors import CheckpointNotFoundError, CorruptCheckpointError
from ckptkit.tools.interchange import Renames, export_weights, import_weights

ARRAYS = {f"layer.{at}.weight": np.full((at + 1, 50), at, np.float32) for at in range(6)}  # 200 to 1,200 bytes
INDEX = "model.safetensors.index.json"


@pytest.fixture
def sharded(tmp_path):
    folder = tmp_path / "hub"
    folder.mkdir()
    file_of = {}
    for number, layers in enumerate([(0, 1, 2), (3,), (4,), (5,)], 1):
        file = f"model-{number:05d}-of-00004.safetensors"
        names = [f"layer.{at}.weight" for at in layers]
        save_file({name: ARRAYS[name] for name in names}, folder / file)
        file_of |= dict.fromkeys(names, file)
    total = sum(array.nbytes for array in ARRAYS.values())
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": file_of}))
    return folder


def test_several_files_hold_what_one_would(sharded, tmp_path):
    done = import_weights(sharded / INDEX, tmp_path / "run")
    assert (done.tensors, done.ignored, done.format) == (len(ARRAYS), (), "safetensors")
    export_weights(tmp_path / "run", tmp_path / "back.safetensors")
    exported = load_file(tmp_path / "back.safetensors")
    assert {name: array.tobytes() for name, array in exported.items()} == {
        name: array.tobytes() for name, array in ARRAYS.items()
    }


def test_tensor_in_two_files_is_taken_from_the_one_that_the_index_names(sharded, tmp_path):
    other = load_file(sharded / "model-00001-of-00004.safetensors")
    save_file({**other, "layer.5.weight": np.zeros(3, np.int8)}, sharded / "model-00001-of-00004.safetensors")
    index = json.loads((sharded / INDEX).read_text())
    del index["weight_map"]["layer.2.weight"]
    (sharded / INDEX).write_text(json.dumps(index))
    renames = Renames.of(["layer.=body."], ["layer.3."])
    assert import_weights(sharded / INDEX, tmp_path / "new", renames=renames).ignored == ("layer.2.weight",)
    export_weights(tmp_path / "new", tmp_path / "out.safetensors")
    exported = load_file(tmp_path / "out.safetensors")
    assert sorted(exported) == [f"body.{at}.weight" for at in (0, 1, 4, 5)]
    assert exported["body.5.weight"].shape == (6, 50)


def test_index_that_is_wrong_is_named_and_nothing_written(sharded, tmp_path):
    beside = "no .safetensors file beside it"
    for text, words in (
        ("{", "no weight_map"),
        ("[]", "no weight_map"),
        ('{"weight_map": {"a": 1}}', "no weight_map"),
        ('{"weight_map": {"a": "../model-00001-of-00004.safetensors"}}', beside),
        ('{"weight_map": {"a": "/etc/passwd"}}', beside),
        ('{"weight_map": {"a": "m\\u0000.safetensors"}}', beside),
        ('{"weight_map": {"a": "weights.bin"}}', beside),
        ('{"weight_map": {"a": "model-00001-of-00004.safetensors"}}', "has no tensor 'a'"),
        (None, "not a file"),
    ):
        (sharded / INDEX).unlink()
        (sharded / INDEX).write_text(text) if text is not None else os.mkfifo(sharded / INDEX)
        with pytest.raises(CorruptCheckpointError, match=INDEX) as caught:
            import_weights(sharded / INDEX, tmp_path / "new")
        assert words in str(caught.value), text
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
