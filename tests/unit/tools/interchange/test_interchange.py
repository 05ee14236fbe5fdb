"""Weights in files of other programs, without MindSpore: what is read, written, renamed, refused, and left behind."""

import contextlib
import errno
import json
import os
import re
import zlib
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.runs.scenario import AT_6, corrupt, history
from support.thread_ranks import results_of, run_ranks
from typer.testing import CliRunner

from ckptkit.checkpoint import write
from ckptkit.cli import app
from ckptkit.cli.commands.show import document_of
from ckptkit.core.tensors import DTYPES, dtype_of, leaf_of
from ckptkit.errors import CorruptCheckpointError, ResumeError, StorageError
from ckptkit.manager.manager import CheckpointManager
from ckptkit.storage import LocalStorage
from ckptkit.storage.lease import LEASE, PROBE
from ckptkit.testing.faults import MUTATING, Fault, FaultyStorage, Killed
from ckptkit.testing.state import NumpyRun
from ckptkit.tools.interchange import Renames, export_weights, import_weights, weights_file
from ckptkit.tools.interchange.atomic_file import new_file
from ckptkit.tools.interchange.names import of_an_optimizer
from ckptkit.tools.interchange.weights_file import open_weights

GOLDEN = Path(__file__).parents[3] / "exactness/golden/v1"


@pytest.fixture
def weights(tmp_path):
    file = tmp_path / "weights.safetensors"
    rng = np.random.default_rng(3)
    save_file({"a.weight": rng.normal(size=(3, 4)).astype(np.float16), "a.bias": np.arange(5)}, file)
    return file


def bits_of(path):
    with open_weights(path) as file:
        return {name: (tensor.dtype, tensor.shape, tensor.read()) for name, tensor in file.tensors.items()}


def every_dtype():
    """Bits of a tensor of each dtype, NaN payloads among them: a scalar, one of several axes, one without elements."""
    rng = np.random.default_rng(0)
    for dtype, kind in DTYPES.items():
        for shape in [(), (2, 3, 5), (3, 0)]:
            data = rng.integers(0, 2 if dtype == "BOOL" else 256, (*shape, kind.itemsize), np.uint8)
            yield f"{dtype}.{len(shape)}", (dtype, shape, data.tobytes())


def write_safetensors(path, tensors):
    table, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        table[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at := at + len(data)]}
    header = json.dumps(table).encode()
    path.write_bytes(b"".join([len(header).to_bytes(8, "little"), header, *(one[2] for one in tensors.values())]))
    return path


def test_every_dtype_survives_import_and_export_bitwise(tmp_path, monkeypatch):
    monkeypatch.setattr(weights_file, "SLICE_BYTES", 100)  # larger tensors are cut
    large = np.random.default_rng(1).normal(size=(9, 11)).astype(np.float32)
    tensors = {**dict(every_dtype()), "large": ("F32", large.shape, large.tobytes())}
    for end in ("safetensors", "ckpt"):
        held = {name: tensor for name, tensor in tensors.items() if end != "ckpt" or tensor[0] != "C64"}
        import_weights(write_safetensors(tmp_path / "in.safetensors", held), tmp_path / f"run-{end}")
        export_weights(tmp_path / f"run-{end}", tmp_path / f"out.{end}")
        assert bits_of(tmp_path / f"out.{end}") == held
        import_weights(tmp_path / f"out.{end}", tmp_path / f"back-{end}")
        export_weights(tmp_path / f"back-{end}", tmp_path / "last.safetensors", overwrite=True)
        assert bits_of(tmp_path / "last.safetensors") == held
    assert (tmp_path / "out.ckpt").read_bytes().count(b"large") == 4


def test_the_parts_of_all_ranks_are_put_together(tmp_path):
    """Against the golden run of two ranks, which share the storing of what is replicated."""
    done = export_weights(GOLDEN / "ranks", tmp_path / "out.safetensors", with_optimizer=True)
    found = load_file(tmp_path / "out.safetensors")
    assert done.checkpoint == "a000001-c0000000001-m0002"
    assert len(found) == done.tensors == 4
    assert "the accumulators, after micro-step 2 of 4" in done.left_out
    index = json.loads((GOLDEN / f"ranks/checkpoints/{done.checkpoint}/rank-00001.json").read_bytes())
    placements = {one["name"]: one["placement"] for shard in index["shards"] for one in shard["tensors"]}
    assert set(placements.values()) == {"replicated", "sharded", "per_rank"}
    for rank in (0, 1):
        export_weights(GOLDEN / "ranks", tmp_path / f"{rank}.ckpt", with_optimizer=True, rank=rank)
        alone = {name: data for name, (_, _, data) in bits_of(tmp_path / f"{rank}.ckpt").items()}
        assert alone == {name: array.tobytes() for name, array in found.items()}


class WithStatistics(NumpyRun):
    def capture(self):
        captured = super().capture()
        own = np.full(3, self.world.rank, np.int64)
        name = "of the last" if self.world.rank == 2 else "statistics"
        return replace(captured, leaves=(*captured.leaves, leaf_of(name, own, role="weights")))


def test_export_takes_per_rank_tensors_of_wanted_rank(tmp_path):
    root = tmp_path / "run"

    def live(world):
        run = WithStatistics(world=world)
        with CheckpointManager(root) as manager:
            manager.restore(run)
            manager.save(run).result()

    results_of(run_ranks(3, live))
    for rank in (0, 1):
        done = export_weights(root, tmp_path / f"{rank}.safetensors", rank=rank)
        found = load_file(tmp_path / f"{rank}.safetensors")
        assert (done.per_rank, done.tensors) == (("statistics",), len(found))
        # What the wanted rank lacks is taken from other ranks.
        assert (found["statistics"].tolist(), found["of the last"].tolist()) == ([rank] * 3, [2] * 3)
    told = ckptkit("export", root, "-o", tmp_path / "told.safetensors", "--rank", 1).stdout.splitlines()
    assert told[-1] == "each rank has its own of these, and rank 1's were taken: statistics"
    assert ckptkit("export", root, "-o", tmp_path / "none.ckpt", "--rank", 3).exit_code == 2
    assert not (tmp_path / "none.ckpt").exists()
    run = WithStatistics()
    with CheckpointManager(tmp_path / "alone") as manager:
        manager.restore(run)
        manager.save(run).result()
    assert export_weights(tmp_path / "alone", tmp_path / "alone.safetensors").per_rank == ()  # there is one rank


def test_corrupt_checkpoint_is_named_without_export(tmp_path):
    history(tmp_path / "run")
    corrupt(tmp_path / "run", AT_6)
    (tmp_path / "out").mkdir()
    with pytest.raises(CorruptCheckpointError, match=r"weights-000\.safetensors"):
        export_weights(tmp_path / "run", tmp_path / "out/x.ckpt")
    assert list((tmp_path / "out").iterdir()) == []


def test_existing_file_is_replaced_only_with_overwrite(tmp_path):
    path = tmp_path / "x.ckpt"
    with pytest.raises(ValueError, match="overwrite=True"):
        write_new(path, lambda: path.write_bytes(b"mine"))  # it appears meanwhile
    with pytest.raises(ValueError, match="overwrite=True"):
        export_weights(GOLDEN / "numpy", path)
    assert path.read_bytes() == b"mine"
    export_weights(GOLDEN / "numpy", path, overwrite=True)
    assert len(bits_of(path)) == 2
    assert [file.name for file in tmp_path.iterdir()] == ["x.ckpt"]
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(ValueError, match="link exists; name another file"):
        write_new(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()


def write_new(path, meanwhile=lambda: None):
    with new_file(path, overwrite=False) as file:
        file.put(b"ours")
        meanwhile()


def test_disk_without_links_gets_whole_file(tmp_path, monkeypatch):
    def failing(code):
        def fail(existing, new):
            raise OSError(code, os.strerror(code))

        return fail

    path = tmp_path / "y.ckpt"
    monkeypatch.setattr(os, "link", failing(errno.EOPNOTSUPP))
    write_new(tmp_path / "x.ckpt")
    with pytest.raises(ValueError, match="overwrite=True"):
        write_new(path, lambda: path.write_bytes(b"mine"))
    monkeypatch.setattr(os, "replace", failing(errno.EIO))
    with pytest.raises(StorageError, match="Input/output error"):
        write_new(tmp_path / "z.ckpt")
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {"x.ckpt": b"ours", "y.ckpt": b"mine"}


def test_file_that_cannot_be_closed_leaves_nothing(tmp_path, monkeypatch):
    """As over a quota on a network file system; the first error is the one that is named."""
    close = os.close

    def failing(descriptor):
        close(descriptor)
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    def interrupt():
        raise KeyboardInterrupt("asked")

    monkeypatch.setattr(os, "close", failing)
    with pytest.raises(StorageError, match=r"could not write .*quota exceeded"):
        write_new(tmp_path / "x.ckpt")
    with pytest.raises(KeyboardInterrupt, match="asked"):
        write_new(tmp_path / "x.ckpt", interrupt)
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


def test_file_is_durable_before_it_has_its_name(tmp_path, monkeypatch):
    calls = []
    for name in ("fsync", "link", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *given, name=name, real=real: calls.append(name) or real(*given))
    for overwrite, named in ((False, "link"), (True, "replace")):
        export_weights(GOLDEN / "numpy", tmp_path / "x.ckpt", overwrite=overwrite)
        assert calls == ["fsync", named, "fsync"]
        calls.clear()


def test_export_that_cannot_be_meant_is_refused(tmp_path):
    zeros = {"empty": np.zeros(0, np.float32), "complex": np.zeros(1, np.complex64)}
    for name, array in zeros.items():
        write_safetensors(tmp_path / "in.safetensors", {"w": (dtype_of("w", array), array.shape, array.tobytes())})
        import_weights(tmp_path / "in.safetensors", tmp_path / name)
    before = sorted(tmp_path.iterdir())
    for root, file, options, words in (
        *(
            (GOLDEN / "numpy", name, {}, "must end in .ckpt or .safetensors")
            for name in ("x.pth", "xckpt", "x.ckpt.gz")
        ),
        (GOLDEN / "numpy", "no/such/folder/x.ckpt", {}, "does not exist; create it"),
        (GOLDEN / "numpy", "x.ckpt", {"rank": -1}, "there is no rank -1"),
        (GOLDEN / "numpy", "x.ckpt", {"renames": Renames({"": None})}, "no tensor is left to export"),
        (tmp_path / "empty", "x.ckpt", {}, "w has no elements"),
        (tmp_path / "complex", "x.ckpt", {}, "w: MindSpore's .ckpt has no C64"),
    ):
        with pytest.raises(ValueError, match=re.escape(words)):
            export_weights(root, tmp_path / file, **options)
    assert sorted(tmp_path.iterdir()) == before
    os.mkfifo(tmp_path / "pipe.ckpt")
    with pytest.raises(ValueError, match="cannot overwrite"):
        export_weights(GOLDEN / "numpy", tmp_path / "pipe.ckpt", overwrite=True)
    with pytest.raises(CorruptCheckpointError, match=r"pipe\.ckpt is not a file; it is a"):
        import_weights(tmp_path / "pipe.ckpt", tmp_path / "run")


def ckptkit(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


HOSTILE_HEADERS = {
    "an overlap": {
        "a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
        "b": {"dtype": "U8", "shape": [4], "data_offsets": [2, 6]},
    },
    "an end outside": {"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}},
    "another size": {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}},
    "a negative dimension": {"a": {"dtype": "U8", "shape": [-1, -4], "data_offsets": [0, 4]}},
    "an absurd extent": {"a": {"dtype": "U8", "shape": [0, 1 << 62], "data_offsets": [0, 0]}},
    "no known dtype": {"a": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}},
    "packed integers": {"__metadata__": {"a": "Int4"}, "a": {"dtype": "I8", "shape": [4], "data_offsets": [0, 4]}},
}


def message(*fields):
    return b"".join(bytes([number << 3 | 2]) + length(data) + data for number, data in fields)


def length(data):
    low, high = len(data) & 127, len(data) >> 7
    return bytes([low | 128, high]) if high else bytes([low])


def value(tensor, tag=b"w"):
    return message((1, message((1, tag), (2, tensor))))


FLAG = b"\x08\x01" + message((2, b"Bool"), (3, b"\1"))
HOSTILE = {
    **{
        f"{what}.safetensors": len(header := json.dumps(given).encode()).to_bytes(8, "little") + header + bytes(16)
        for what, given in HOSTILE_HEADERS.items()
    },
    "a long header.safetensors": (1 << 40).to_bytes(8, "little") + b"{}",
    "empty.safetensors": b"",
    "noise.ckpt": bytes(range(200)),
    "more content than shape.ckpt": value(b"\x08\x03" + message((2, b"Float32"), (3, bytes(16)))),
    "a huge dimension.ckpt": value(b"\x08" + b"\xff" * 9 + b"\x01" + message((2, b"Float32"), (3, bytes(16)))),
    "no type.ckpt": value(message((3, bytes(4)))),
    "a foreign type.ckpt": value(message((2, b"Int4"), (3, bytes(4)))),
    "no name.ckpt": value(FLAG[2:], tag=b""),
    "not text.ckpt": value(FLAG[2:], tag=b"\xff\xfe"),
    "twice.ckpt": b"".join(value(FLAG, tag=tag) for tag in (b"a", b"b", b"a")),
    "pieces apart.ckpt": b"".join(
        value(bytes([8, axis]) + message((2, b"Bool"), (3, b"\1")), tag=tag)
        for tag, axis in ((b"a", 2), (b"b", 1), (b"a", 2))
    ),
    "pieces of two types.ckpt": b"".join(
        value(b"\x08\x02" + message((2, kind), (3, b"\1"))) for kind in (b"Bool", b"UInt8")
    ),
    "a wrong crc.ckpt": value(FLAG) + b"crc_num" + bytes(10),
    "many axes.ckpt": value(b"\x08\x01" * 60 + message((2, b"Bool"), (3, b"\1"))),
    "a long name.ckpt": value(FLAG[2:], tag=b"w" * 9000),
}


def test_hostile_file_is_named_and_nothing_is_written(tmp_path):
    for file, data in HOSTILE.items():
        path = tmp_path / file
        path.write_bytes(data)
        with pytest.raises(CorruptCheckpointError) as refused:
            import_weights(path, tmp_path / "run")
        assert file in str(refused.value)
        assert not (tmp_path / "run").exists(), file


def test_what_other_writers_write_is_read(tmp_path):
    """Packed dimensions, fields of fixed width that mean nothing here, and a CRC-32 that is right."""
    tensor = bytes([9 << 3 | 1, *range(8), 9 << 3 | 5, *range(4)])
    tensor += message((1, b"\2\3"), (2, b"UInt8"), (3, b"abcdef"))
    scalar = b"\x08\x00" + message((2, b"Int8"), (3, b"a"))  # of older MindSpore
    data = value(tensor) + value(scalar, b"s")
    (tmp_path / "x.ckpt").write_bytes(data + b"crc_num" + zlib.crc32(data).to_bytes(10, "big"))
    assert bits_of(tmp_path / "x.ckpt") == {"w": ("U8", (2, 3), b"abcdef"), "s": ("I8", (), b"a")}
    places = {"a": [2, 4], "b": [0, 1], "c": [1, 2]}  # in any order
    table = {name: {"dtype": "U8", "shape": [at[1] - at[0]], "data_offsets": at} for name, at in places.items()}
    header = json.dumps(table).encode()
    (tmp_path / "x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"bcaa")
    assert {name: data for name, (_, _, data) in bits_of(tmp_path / "x.safetensors").items()} == {
        **{"a": b"aa", "b": b"b", "c": b"c"}
    }


@pytest.mark.parametrize("end", ["ckpt", "safetensors"])
def test_a_file_cut_off_anywhere_is_refused(tmp_path, end):
    path = tmp_path / f"cut.{end}"
    export_weights(GOLDEN / "numpy", path)
    data, readable = path.read_bytes(), []
    for size in range(1, len(data)):
        path.write_bytes(data[:size])
        with contextlib.suppress(CorruptCheckpointError), open_weights(path) as file:
            readable.append((size, len(file.tensors)))
    # A .ckpt is a list of values, and says nowhere how many: cut between two, it is a shorter one.
    assert [tensors for _, tensors in readable] == ([1] if end == "ckpt" else [])


def test_optimizer_state_is_not_imported_but_reported(tmp_path):
    w, step = np.ones((2, 3), np.float32), np.ones(1, np.int32)
    tensors = {"a.w": w, "moments.a.w": w, "linear.w": w, "w": w, "global_step": step, "momentum": w}
    save_file(tensors, tmp_path / "x.safetensors")
    done = import_weights(tmp_path / "x.safetensors", tmp_path / "run")
    assert (done.ignored, done.tensors) == (("global_step", "moments.a.w"), 4)
    named = Renames({"moments.a.w": "moments.a.w"})
    kept = import_weights(tmp_path / "x.safetensors", tmp_path / "other", renames=named)
    assert (kept.ignored, kept.tensors) == (("global_step",), 5)
    save_file({"global_step": step}, tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match="no weights"):
        import_weights(tmp_path / "x.safetensors", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_import_that_fails_leaves_nothing(tmp_path, weights, monkeypatch):
    large = tmp_path / "large.safetensors"
    save_file({"w": np.zeros(100_000)}, large)

    def interrupt():
        raise KeyboardInterrupt("asked")

    for name, file, meanwhile, key, error, words in (
        ("a", weights, interrupt, "*/manifest.json", KeyboardInterrupt, "asked"),
        ("b", large, lambda: os.truncate(large, 500_000), "*.safetensors", CorruptCheckpointError, "became shorter"),
    ):
        fault = Fault(meanwhile, operations={"write"}, key=key)
        with pytest.raises(error, match=words):
            import_weights(file, FaultyStorage(LocalStorage(tmp_path / name), [fault]))
        assert set(LocalStorage(tmp_path / name).walk("")) <= {"probe"}, words
    monkeypatch.setattr(write, "MAX_DOCUMENT_BYTES", 300)
    with pytest.raises(ResumeError, match=r"these weights cannot be stored: checkpoints/.* would have"):
        import_weights(weights, tmp_path / "run")
    assert set(LocalStorage(tmp_path / "run").walk("")) <= {"probe"}


def test_import_into_anothers_root_ends_with_error(tmp_path, weights):
    """Where it is not empty, but for a lease and a probe, and where another process begins meanwhile."""
    (tmp_path / "free").mkdir()
    for name in (LEASE, PROBE):
        (tmp_path / "free" / name).write_bytes(b"{}")
    assert import_weights(weights, tmp_path / "free").tensors == 2
    (tmp_path / "other/checkpoints/mine").mkdir(parents=True)
    (tmp_path / "other/checkpoints/mine/notes").touch()
    with pytest.raises(ResumeError, match="not empty: there is checkpoints"):
        import_weights(weights, tmp_path / "other")
    for key in ("run.json", "attempts/000001.json"):
        there = LocalStorage(tmp_path / key.partition(".")[0])
        other = Fault(lambda there=there, key=key: there.create(key, b"theirs"), operations={"create"}, key=key)
        with pytest.raises(ResumeError, match="another process has just"):
            import_weights(weights, FaultyStorage(there, [other]))
        assert there.read(key, 100) == b"theirs", "what the other one has made stays"


def test_interrupted_import_is_never_taken_for_a_run(tmp_path, weights):
    """If writing fails, nothing is left; if it dies, no start takes the root."""
    counted = FaultyStorage(LocalStorage(tmp_path / "count"))
    import_weights(weights, counted)
    calls = [call for call in counted.calls if call.operation in MUTATING]
    for number in range(1, len(calls) + 1):
        for action in ("error", "kill"):
            root = tmp_path / f"{action}-{number}"
            fault = Fault(action, operations=MUTATING, nth=number, times=1)
            with contextlib.suppress(StorageError, Killed):
                import_weights(weights, FaultyStorage(LocalStorage(root), [fault]))
            assert fault.fired
            there = {key for key in LocalStorage(root).walk("") if key != "probe"}
            if "attempts/000001.json" in there:
                export_weights(root, tmp_path / "out.safetensors", overwrite=True)
                assert bits_of(tmp_path / "out.safetensors").keys() == {"a.weight", "a.bias"}
            elif "run.json" in there:
                with pytest.raises(ResumeError, match=r"is an import of .* that has not ended"):
                    CheckpointManager(root).restore(NumpyRun())
                with pytest.raises(ResumeError, match=r"is an import of .* that has not ended"):
                    export_weights(root, tmp_path / "none.ckpt")
                assert action == "kill" or "COMMIT" in str(there)
            else:
                assert there == set()
                import_weights(weights, LocalStorage(root))  # folders that it has left are not in the way


def test_longest_rename_rule_applies_once_without_collisions():
    """A moment, which comes after the weights, follows the longest name of one."""
    names, moment = ["a.w", "a.b.w", "w"], ["w", "m.w", "step"]
    for rules, expected, given, after in (
        ({}, {"a.w": "a.w", "a.b.w": "a.b.w", "w": "w"}, names, ()),
        ({"a.": "x.", "a.b.": "y."}, {"a.w": "x.w", "a.b.w": "y.w", "w": "w"}, names, ()),
        ({"a.": "x.", "a.w": "z"}, {"a.w": "z", "a.b.w": "x.b.w", "w": "w"}, names, ()),
        ({"": "net."}, {"a.w": "net.a.w", "a.b.w": "net.a.b.w", "w": "net.w"}, names, ()),
        ({"a.": None}, {"w": "w"}, names, ()),
        ({"w": "a.w", "a.w": "w"}, {"a.w": "w", "a.b.w": "a.b.w", "w": "a.w"}, names, ()),
        ({"a.b.": ""}, "would both be", names, ()),
        ({"b.": "x."}, "no tensor matches", names, ()),
        ({"w": "__metadata__"}, "can have the new names", names, ()),
        ({"w": "v" * 2049}, "can have the new names", names, ()),
        ({"a.w": "x"}, {"w": "w", "a.w": "x", "m.a.w": "m.x"}, ["w", "a.w", "m.a.w"], ["m.a.w"]),
        ({"": "net."}, {"w": "net.w", "m.w": "m.net.w"}, moment[:2], ["m.w"]),
        ({"m.w": "own"}, {"w": "w", "m.w": "own"}, moment[:2], ["m.w"]),
        ({"w": None}, {"step": "step"}, moment, ["m.w", "step"]),
        ({"m.": "n.", "": "x."}, {"w": "x.w", "m.w": "n.w", "step": "x.step"}, moment, ["m.w", "step"]),
    ):
        if isinstance(expected, str):
            with pytest.raises(ValueError, match=expected):
                Renames(rules).applied(given, after)
        else:
            assert Renames(rules).applied(given, after) == expected, rules


def test_optimizer_state_is_told_from_weights():
    vhat = {"w": (2,), "vhat.w": (2,)}
    for shapes, owned in (
        (vhat, ""),
        ({**vhat, "moment1.w": (2,), "moment2.w": (2,)}, "vhat.w moment1.w moment2.w"),
        ({"learning_rate": (9,), "momentum": (), "scale_sense": (1,)}, "learning_rate momentum scale_sense"),
        ({"learning_rate": (2, 3), "net.learning_rate": (1,)}, ""),
        ({"w": (2,), "moments.w": (3,)}, ""),
        ({"a": (2,), "linear.a": (2,), "exp_avg.a": (3,), "adam_m.a": (2,), "adam_v.a": (2,)}, "adam_m.a adam_v.a"),
    ):
        assert of_an_optimizer(shapes) == set(owned.split()), shapes


def test_rules_that_cannot_be_meant_are_refused(tmp_path):
    for given, dropped, words in (
        (["a"], [], "OLD=NEW"),
        (["a=b", "a=c"], [], "twice"),
        (["a.=b"], [], "to something else"),
    ):
        with pytest.raises(ValueError, match=words):
            Renames.of(given, dropped)
    for text in (None, "[1]", '{"a": 1}', '{"a": "b", "a": "c"}', "{" * 10, "[" * 100_000):
        if text is not None:
            (tmp_path / "map.json").write_text(text)
        with pytest.raises(ValueError, match="cannot be used"):
            Renames.read(tmp_path / "map.json")


def test_the_commands_go_there_and_back(tmp_path, weights):
    root, out = tmp_path / "run", tmp_path / "out.safetensors"
    done = ckptkit("import", weights, root, "--rename", "a.=b.", "--json")
    assert done.exit_code == 0, done.stderr
    printed = json.loads(done.stdout)
    assert list(printed) == ["file", "format", "root", "checkpoint", "tensors", "size_bytes", "ignored", "not_in_it"]
    assert (printed["checkpoint"], printed["tensors"], printed["root"]) == ("a000001-c0000000000-m0000", 2, str(root))
    (tmp_path / "map.json").write_text('{"b.weight": "w", "b.bias": null}')
    done = ckptkit("export", root, "latest", "-o", out, "--map", tmp_path / "map.json", "--json")
    assert done.exit_code == 0, done.stderr
    assert set(bits_of(out)) == {"w"}
    exported = json.loads(done.stdout)
    assert list(exported) == ["root", *asdict(export_weights(root, out, overwrite=True))]
    assert "1 tensors that were dropped by name" in exported["left_out"]
    assert bits_of(out)["b.bias"] == bits_of(weights)["a.bias"]
    assert ckptkit("export", root, "-o", out, "--force", "--rename", "b.=c.").exit_code == 0
    assert set(bits_of(out)) == {"c.weight", "c.bias"}


def test_exit_codes(tmp_path, weights, monkeypatch):
    monkeypatch.chdir(tmp_path)
    import_weights(weights, "run")
    (tmp_path / "broken.ckpt").write_bytes(b"\xff" * 50)
    (tmp_path / "there.ckpt").touch()
    before = sorted(tmp_path.iterdir())
    for arguments, code, words in (
        ("export run -o there.ckpt", 2, "--force"),
        ("export run -o x.ckpt --map m --drop x", 2, "--map cannot be combined"),
        ("import none.ckpt new", 1, "there is no file"),
        ("import weights.safetensors run", 1, "not empty"),
        ("import broken.ckpt new", 1, "broken.ckpt is not a readable ckpt file"),
        (f"import {'x' * 300}.ckpt new", 3, "could not read"),
    ):
        done = ckptkit(*arguments.split())
        assert done.exit_code == code, (arguments, done.stderr)
        assert words in " ".join(done.stderr.split()), arguments
        assert "Traceback" not in done.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_checkpoint_names_what_the_import_left(tmp_path):
    step = b"\x08\x01" + message((2, b"Int32"), (3, bytes(4)))
    text = message((2, b"str"), (3, b"17 epochs"))
    values = value(FLAG), value(step, b"global_step"), value(text, b"note")
    (tmp_path / "x.ckpt").write_bytes(b"".join(values))
    done = import_weights(tmp_path / "x.ckpt", tmp_path / "run")
    state = document_of(LocalStorage(tmp_path / "run"), with_state=True)["state"]
    assert done.ignored == ("global_step", "note")
    assert state["imported"] == {"file": "x.ckpt", "format": "ckpt", "left_out": ["global_step", "note"]}


def test_import_that_cannot_clear_away_stays_unfinished(tmp_path, weights):
    """``run.json``, which keeps every start away, is the last to go; the first error is the one that is named."""
    for nth in (1, 2):
        root = tmp_path / f"run-{nth}"
        storage = FaultyStorage(LocalStorage(root))
        storage.inject(Fault("error", operations=MUTATING - {"delete"}, key="*/manifest.json", times=None))
        fault = storage.inject(Fault("error", operations=frozenset({"delete"}), nth=nth))
        with pytest.raises(StorageError, match="manifest"):
            import_weights(weights, storage)
        assert fault.fired
        with pytest.raises(ResumeError, match=r"is an import of .* that has not ended"):
            CheckpointManager(root).restore(NumpyRun())


def test_exported_tensors_are_aligned_to_their_elements(tmp_path):
    widths = {"U8": 1, "F16": 2, "F64": 8}
    tensors = {"a": ("U8", (3,), b"abc"), "b": ("F64", (1,), bytes(8)), "c": ("F16", (1,), bytes(2))}
    import_weights(write_safetensors(tmp_path / "in.safetensors", tensors), tmp_path / "run")
    for number in range(1, 9):  # each length of the header
        out = tmp_path / f"{number}.safetensors"
        export_weights(tmp_path / "run", out, renames=Renames({"a": "a" * number}))
        begin = 8 + int.from_bytes(out.read_bytes()[:8], "little")
        header = json.loads(out.read_bytes()[8:begin])
        assert header.pop("__metadata__") == {"format": "ms"}
        assert not any((begin + entry["data_offsets"][0]) % widths[entry["dtype"]] for entry in header.values())


ARRAYS = {f"layer.{at}.weight": np.full((at + 1, 50), at, np.float32) for at in range(6)}  # 200 to 1,200 bytes
INDEX = "model.safetensors.index.json"


@pytest.fixture
def sharded(tmp_path):
    folder, file_of = tmp_path / "hub", {}
    folder.mkdir()
    for number, layers in enumerate([(0, 1, 2), (3,), (4, 5)], 1):
        names = [f"layer.{at}.weight" for at in layers]
        save_file({name: ARRAYS[name] for name in names}, folder / f"model-{number}.safetensors")
        file_of |= dict.fromkeys(names, f"model-{number}.safetensors")
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": file_of}))
    return folder


def test_tensor_is_taken_from_the_file_that_the_index_names(sharded, tmp_path):
    assert import_weights(sharded / INDEX, tmp_path / "run").ignored == ()
    export_weights(tmp_path / "run", tmp_path / "back.safetensors")
    exported = load_file(tmp_path / "back.safetensors")
    assert {name: array.tolist() for name, array in exported.items()} == {
        name: array.tolist() for name, array in ARRAYS.items()
    }
    other = load_file(sharded / "model-1.safetensors")
    save_file({**other, "layer.5.weight": np.zeros(3, np.int8)}, sharded / "model-1.safetensors")
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
        ('{"weight_map": {"a": 1}}', "no weight_map"),
        ('{"weight_map": {"a": "../model-1.safetensors"}}', beside),
        ('{"weight_map": {"a": "m\\u0000.safetensors"}}', beside),
        ('{"weight_map": {"a": "weights.bin"}}', beside),
        ('{"weight_map": {"a": "model-1.safetensors"}}', "has no tensor 'a'"),
        (None, "not a file"),
    ):
        (sharded / INDEX).unlink()
        if text is None:
            os.mkfifo(sharded / INDEX)
        else:
            (sharded / INDEX).write_text(text)
        with pytest.raises(CorruptCheckpointError, match=INDEX) as caught:
            import_weights(sharded / INDEX, tmp_path / "new")
        assert words in str(caught.value), text
        assert not (tmp_path / "new").exists()
