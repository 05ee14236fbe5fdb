"""What an import takes from a file, what it says of the rest, and the corners of the formats that it reads."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file
from test_interchange import FLAG, bits_of, message, value, write_safetensors

from ckptkit.cli.commands.show import document_of
from ckptkit.errors import ResumeError, StorageError
from ckptkit.manager.manager import CheckpointManager
from ckptkit.storage import LocalStorage
from ckptkit.storage.lease import LEASE, PROBE
from ckptkit.testing.faults import MUTATING, Fault, FaultyStorage
from ckptkit.testing.state import NumpyRun
from ckptkit.tools.interchange import Renames, export_weights, import_weights


def test_checkpoint_names_what_the_import_left(tmp_path):
    """Texts among the values as well as an optimizer's tensors."""
    step = b"\x08\x01" + message((2, b"Int32"), (3, bytes(4)))
    text = message((2, b"str"), (3, b"17 epochs"))
    values = value(FLAG), value(step, b"global_step"), value(text, b"note")
    (tmp_path / "x.ckpt").write_bytes(b"".join(values))
    done = import_weights(tmp_path / "x.ckpt", tmp_path / "run")
    state = document_of(LocalStorage(tmp_path / "run"), with_state=True)["state"]
    assert done.ignored == ("global_step", "note")
    assert state["imported"] == {"file": "x.ckpt", "format": "ckpt", "left_out": ["global_step", "note"]}


def test_lease_and_probe_make_no_root_full(tmp_path):
    save_file({"w": np.ones(2)}, tmp_path / "w.safetensors")
    (tmp_path / "link.safetensors").symlink_to("w.safetensors")
    (tmp_path / "run").mkdir()
    for name in (LEASE, PROBE):
        (tmp_path / "run" / name).write_bytes(b"{}")
    assert import_weights(tmp_path / "link.safetensors", tmp_path / "run").tensors == 1
    for key, named in (("notes.txt", "notes"), ("checkpoints/mine/notes", "checkpoints")):
        file = tmp_path / named / key
        file.parent.mkdir(parents=True)
        file.touch()
        with pytest.raises(ResumeError, match=f"not empty: there is {named}"):
            import_weights(tmp_path / "w.safetensors", tmp_path / named)


def test_import_that_cannot_clear_away_stays_unfinished(tmp_path):
    """``run.json``, which keeps every start away, is the last to go; the first error is the one that is named."""
    save_file({"w": np.ones(2)}, tmp_path / "w.safetensors")
    for nth in (1, 2):
        root = tmp_path / f"run-{nth}"
        storage = FaultyStorage(LocalStorage(root))
        storage.inject(Fault("error", operations=MUTATING - {"delete"}, key="*/manifest.json", times=None))
        fault = storage.inject(Fault("error", operations=frozenset({"delete"}), nth=nth))
        with pytest.raises(StorageError, match="manifest"):
            import_weights(tmp_path / "w.safetensors", storage)
        assert fault.fired
        with pytest.raises(ResumeError, match=r"the import of .* has not ended"):
            CheckpointManager(root).restore(NumpyRun())


def test_header_names_tensors_in_any_order(tmp_path):
    table = {"a": [2, 4], "b": [0, 1], "c": [1, 2]}
    header = json.dumps(
        {
            name: {"dtype": "U8", "shape": [end - start], "data_offsets": [start, end]}
            for name, (start, end) in table.items()
        }
    ).encode()
    (tmp_path / "x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"bcaa")
    expected = {"a": ("U8", (2,), b"aa"), "b": ("U8", (1,), b"b"), "c": ("U8", (1,), b"c")}
    assert bits_of(tmp_path / "x.safetensors") == expected


def test_exported_tensors_are_aligned_to_their_elements(tmp_path):
    tensors = {"a": ("U8", (3,), b"abc"), "b": ("F64", (1,), bytes(8)), "c": ("F16", (1,), bytes(2))}
    import_weights(write_safetensors(tmp_path / "in.safetensors", tensors), tmp_path / "run")
    for number in range(1, 9):  # each length of the header
        out = tmp_path / f"{number}.safetensors"
        export_weights(tmp_path / "run", out, renames=Renames({"a": "a" * number}))
        data = out.read_bytes()
        begin = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:begin])
        assert header.pop("__metadata__") == {"format": "ms"}
        for name, entry in header.items():
            width = {"U8": 1, "F16": 2, "F64": 8}[entry["dtype"]]
            assert (begin + entry["data_offsets"][0]) % width == 0, name
