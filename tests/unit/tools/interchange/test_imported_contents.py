"""What an import takes from a file, what it says of the rest, and the corners of the formats that it reads."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file
from test_interchange import bits_of, message, value, write_safetensors

from ckptkit.cli.commands.show import document_of
from ckptkit.errors import ResumeError, StorageError
from ckptkit.manager.manager import CheckpointManager
from ckptkit.storage import LocalStorage
from ckptkit.storage.lease import LEASE, PROBE
from ckptkit.testing.faults import MUTATING, Fault, FaultyStorage
from ckptkit.testing.state import NumpyRun
from ckptkit.tools.interchange import Renames, export_weights, import_weights
from ckptkit.tools.interchange.names import of_an_optimizer

FLAG = b"\x08\x01" + message((2, b"Bool"), (3, b"\1"))


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
    (tmp_path / "run").mkdir()
    for name in (LEASE, PROBE):
        (tmp_path / "run" / name).write_bytes(b"{}")
    assert import_weights(tmp_path / "w.safetensors", tmp_path / "run").tensors == 1


def test_file_below_checkpoints_makes_a_root_full(tmp_path):
    save_file({"w": np.ones(2)}, tmp_path / "w.safetensors")
    (tmp_path / "run/checkpoints/mine").mkdir(parents=True)
    (tmp_path / "run/checkpoints/mine/notes").touch()
    with pytest.raises(ResumeError, match="not empty: there is checkpoints"):
        import_weights(tmp_path / "w.safetensors", tmp_path / "run")


@pytest.mark.parametrize("nth", [1, 2])
def test_import_that_cannot_clear_away_stays_unfinished(tmp_path, nth):
    """``run.json``, which keeps every start away, is the last to go."""
    save_file({"w": np.ones(2)}, tmp_path / "w.safetensors")
    storage = FaultyStorage(LocalStorage(tmp_path / "run"))
    storage.inject(Fault("error", operations=MUTATING - {"delete"}, key="*/manifest.json", times=None))
    fault = storage.inject(Fault("error", operations=frozenset({"delete"}), nth=nth))
    with pytest.raises(StorageError):
        import_weights(tmp_path / "w.safetensors", storage)
    assert fault.fired
    with pytest.raises(ResumeError, match="has not ended"):
        CheckpointManager(tmp_path / "run").restore(NumpyRun())


def test_link_to_weights_is_followed(tmp_path):
    save_file({"w": np.ones(2)}, tmp_path / "w.safetensors")
    (tmp_path / "link.safetensors").symlink_to("w.safetensors")
    assert import_weights(tmp_path / "link.safetensors", tmp_path / "run").tensors == 1


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


@pytest.mark.parametrize(
    ("names", "after", "rules", "expected"),
    [
        (["w", "a.w", "m.a.w"], ["m.a.w"], {"a.w": "x"}, {"w": "w", "a.w": "x", "m.a.w": "m.x"}),
        (["w", "m.w"], ["m.w"], {"": "net."}, {"w": "net.w", "m.w": "m.net.w"}),
        (["w", "m.w"], ["m.w"], {"m.w": "own"}, {"w": "w", "m.w": "own"}),
    ],
)
def test_moment_follows_the_longest_weight_name(names, after, rules, expected):
    assert Renames(rules).applied(names, after) == expected


@pytest.mark.parametrize(
    ("shapes", "owned"),
    [
        ({"w": (2,), "vhat.w": (2,)}, set()),
        ({"w": (2,), "vhat.w": (2,), "moment1.w": (2,), "moment2.w": (2,)}, {"vhat.w", "moment1.w", "moment2.w"}),
        ({"learning_rate": (9,), "learning_rate_group_12": (), "momentum": (), "scale_sense": (1,)}, None),
        ({"learning_rate": (2, 3), "net.learning_rate": (1,)}, set()),
        ({"w": (2,), "moments.w": (3,)}, set()),
    ],
)
def test_optimizer_state_is_told_from_weights(shapes, owned):
    assert of_an_optimizer(shapes) == (shapes.keys() if owned is None else owned)
