"""Documents that somebody made up: refused, named, in bounded time and memory, with nothing applied."""

import functools
import json
import operator
import os
import shutil
import time
import tracemalloc
from functools import partial

import pytest
from support.runs.forge import KINDS, forge, key_of, sealed
from support.runs.grown import WatchedRun, grow, opened
from support.told_watch import ToldWatch

from ckptkit.checkpoint.read import load, verify
from ckptkit.errors import CkptKitError, CorruptCheckpointError, FormatVersionError, StaleAttemptError
from ckptkit.format.documents import MAX_DOCUMENT_BYTES
from ckptkit.manager.manager import CheckpointManager
from ckptkit.storage import LocalStorage
from ckptkit.tools.verify import audit

MOST_SECONDS = 2
MOST_BYTES = 16 << 20
GONE = object()


class Raw(str):
    """JSON text, such as Python's own writer would never write."""


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A run with one checkpoint in mid-cycle, below another attempt's; only the last is attacked."""
    root = tmp_path_factory.mktemp("template") / "run"
    (name,) = grow(root, 6)
    return root, name


@pytest.fixture
def target(template, root):
    shutil.copytree(template[0], root)
    return root, template[1]


def entry_at(document, path):
    return functools.reduce(operator.getitem, path, document)


def put(*path_and_value):
    """An edit that sets one place in the document: to a value, to `Raw` text, or, with `GONE`, to nothing."""
    *path, last, value = path_and_value

    def edit(document):
        inner = entry_at(document, path)
        if value is GONE:
            del inner[last]
            return None
        inner[last] = value
        text = json.dumps(document)
        return text.replace(json.dumps(value), value).encode() if isinstance(value, Raw) else None

    return edit


def both(*edits):
    """One after the other; what the last gives is put in the document's place."""
    return lambda document: [edit(document) for edit in edits][-1]


def repeated(*path):
    return lambda document: entry_at(document, path).append(json.loads(json.dumps(entry_at(document, path)[-1])))


DEEP = "[" * 100_000 + "]" * 100_000
NUMBERS = (Raw("-1"), Raw(str(2**60)), Raw("64.0"), True)
BAD_NUMBERS = (*NUMBERS, Raw("9" * 100_000), Raw("1e400"), "64", None, Raw("NaN"), Raw(DEEP))
KEYS = (  # test_layout_names has more of the first kind
    *("../run.json", "checkpoints/NAME/rank-00000/../rank-00000/weights-000.safetensors", "", None, "x/" * 300 + "x"),
    *("checkpoints/NAME/rank-00000/.weights-000.safetensors", "checkpoints/NAME/rank-00000/weights-000.safetensors\n"),
    *("run.json", "checkpoints/NAME/weights-000.safetensors", "checkpoints/NAME/rank-00000/x/weights-000.safetensors"),
    "checkpoints/a000001-c0000000009-m0000/rank-00000/weights-000.safetensors",
    "checkpoints/NAME/rank-00001/weights-000.safetensors",
    *("frozen/a000002/DIGEST.safetensors", "frozen/a000001/" + "0" * 32 + ".safetensors"),
    *("frozen/DIGEST.safetensors", "frozen/a000001/x/DIGEST.safetensors"),
)
NOT_DOCUMENTS = (
    *(b"", b"this is no JSON", b'{"format_version":1,', b"{}{}", b'{"format_version":1,"host":"\xff\xfe"}'),
    *('{"format_version":1}'.encode("utf-16"), b"\xef\xbb\xbf{}", b"\0" * 1000, b"NaN", b"null", b"[]", b"{}"),
    *(b"[" * 100_000, DEEP.encode(), b'{"a":' * 100_000, b'{"format_version":' + b"9" * 100_000 + b"}"),
    b'{"host":"\\ud800"}',
)

SHARD = ("shards", -1)
TENSOR = (*SHARD, "tensors", 0)
PART = (*TENSOR, "part")
BLOCKS = (*SHARD, "blocks")


def key_at(*path, key):
    def edit(document):
        entry = entry_at(document, path)
        entry["key"] = key and key.replace("NAME", document["checkpoint"]).replace("DIGEST", entry["digest"])

    return edit


def two_tensors_at(first_at, second_at):
    def edit(document):
        (tensor,) = document["shards"][-1]["tensors"]
        document["shards"][-1]["tensors"] = [
            {**tensor, "name": name, "shape": [2], "size_bytes": 8, "offset_bytes": tensor["offset_bytes"] + at}
            for name, at in (("one", first_at), ("two", second_at))
        ]

    return edit


def part(global_shape, offsets, **fields):
    def edit(document):
        document["shards"][-1]["tensors"][0].update(
            placement="replicated", part={"global_shape": global_shape, "offsets": offsets}, **fields
        )

    return edit


def sharded(*edits, blocks=None):
    """The same as a sharded leaf, in a file with digests of blocks; ``blocks`` in their place."""

    def edit(document):
        shard = document["shards"][-1]
        digests = ["0" * 32] * (-(-shard["size_bytes"] // 64))
        shard["blocks"] = {"size_bytes": 64, "digests": digests, **(blocks or {})}
        shard["tensors"][0].update(placement="sharded", part={"global_shape": [5], "offsets": [0]})
        return [edit(document) for edit in edits][-1] if edits else None

    return edit


def same_shard_under_other_names(document):
    repeated("shards")(document)
    for tensor in document["shards"][-1]["tensors"]:
        tensor["name"] += "-copy"


def at(*path, values):
    return {f"{path} {number}: {value!r:.60}": put(*path, value) for number, value in enumerate(values)}


def broken_everywhere(document, *path):
    """Breaks each number, leaves each field out and adds one to each object; of a list, in its last item."""
    if isinstance(document, dict):
        edits = {f"{path} has more": put(*path, "pickle", "gASV")}
        for field in document.keys() - {"digest"} if not path and "digest" in document else document:
            edits[f"{path} lacks {field}"] = put(*path, field, GONE)
        for field in document.keys() - {"state", "metrics", "libraries"}:
            edits |= broken_everywhere(document[field], *path, field)
        return edits
    if isinstance(document, list) and document:
        return broken_everywhere(document[-1], *path, -1)
    return at(*path, values=(-1, 2**60, 64.0, True)) if type(document) is int else {}


def instead(documents):
    return {f"{number} is {data[:40]}": lambda _, data=data: data for number, data in enumerate(documents)}


RANK = {
    **{f"key {key}": key_at(*SHARD, key=key) for key in KEYS},
    **at(*SHARD, "size_bytes", values=BAD_NUMBERS),
    **at("rank", values=[1]),
    **at("save_number", values=[0]),
    **at(*TENSOR, "name", values=("", "n" * 10**6)),
    **at("token", values=["0" * 32, "A" * 32]),
    **at(*SHARD, "digest", values=["0" * 31, "0" * 32 + "\n"]),
    **at("checkpoint", values=["a000001-c0000000009-m0000"]),
    **at(*SHARD, "role", values=["gradients"]),
    **at(*TENSOR, "dtype", values=["O", "F" * 10**6]),
    **at(*TENSOR, "shape", values=([6], [-1], [2**60], [True], [-1, -5], [5] + [1] * 32)),
    "shape overflows": both(put(*TENSOR, "shape", [2**31] * 3), put(*TENSOR, "size_bytes", 0)),
    "shape empty and absurd": both(put(*TENSOR, "shape", [0, 2**50, 2**50]), put(*TENSOR, "size_bytes", 0)),
    "overlap": two_tensors_at(0, 7),
    "backwards": two_tensors_at(8, 0),
    "beyond the file": two_tensors_at(0, 13),
    "tensor twice": repeated(*SHARD, "tensors"),
    "shard twice": repeated("shards"),
    "tensor in two shards": put("shards", 0, "tensors", 0, "name", "accumulators"),
    "shard under other names": same_shard_under_other_names,
    **{
        f"part {field} {value}": both(part([5], [0]), put(*PART, field, value))
        for field in ("global_shape", "offsets")
        for value in ([-1], [2**60], [True], GONE)
    },
    "part of a rank's own": both(part([5], [0]), put(*TENSOR, "placement", "per_rank")),
    "part outside": part([5], [1]),
    "part larger than the whole": part([4], [0]),
    "part other axes": part([5, 1], [0, 0]),
    "part fewer offsets": part([5], []),
    "part not in one run": part([5, 2], [0, 0], shape=[5, 1]),
    "part absurd whole": part([2**50, 2**50], [0, 0], shape=[1, 5]),
    "part 32 dimensions": part([1] * 31 + [5], [0] * 32, shape=[1] * 31 + [5]),
    "sharded without blocks": sharded(put(*BLOCKS, None)),
    "sharded without part": sharded(put(*PART, None)),
    "sharded of which the rest is missing": sharded(put(*PART, "global_shape", [6])),
    "blocks of a file that is not sharded": sharded(put(*TENSOR, "placement", "replicated")),
    **{f"block size {value}": sharded(put(*BLOCKS, "size_bytes", value)) for value in (0, 128, 2**60)},
    "blocks too large": sharded(blocks={"size_bytes": (1 << 20) + 1, "digests": ["0" * 32]}),
    "blocks one more": sharded(repeated(*BLOCKS, "digests")),
    "blocks short digest": sharded(put(*BLOCKS, "digests", 0, "0" * 31)),
    "blocks of other bytes": sharded(),
    "two placements in a file": both(two_tensors_at(0, 8), put(*TENSOR, "placement", "replicated")),
    **at("state", "rng", values=(Raw('{"a":[1,-Infinity]}'), Raw('{"a":[1e400]}'), Raw(DEEP))),
    **instead(NOT_DOCUMENTS),
}

MANIFEST = {
    **{
        f"key {key}": key_at("rank_files", 0, key=f"checkpoints/{key}.json")
        for key in ("a000001-c0000000009-m0000/rank-00000", "NAME/rank-00001", "NAME/../NAME/rank-00000")
    },
    **at("rank_files", 0, "size_bytes", values=[MAX_DOCUMENT_BYTES + 1]),
    "rank file twice": repeated("rank_files"),
    "rank file twice for two": both(repeated("rank_files"), put("world_size", 2)),
    **at("world_size", values=(0, 2)),
    **at("size_bytes", values=[0]),
    "total one more": lambda document: put("size_bytes", document["size_bytes"] + 1)(document),
    **at("progress", "cycles", values=[2]),
    **at("checkpoint", values=["a000001-c0000000009-m0000"]),
    **at("mid_cycle", values=["align"]),
    **at("metrics", values=[Raw(f'{{"loss":{text}}}') for text in ("NaN", "1e400", "true", '"0.5"')]),
    **at("format_version", values=[0]),
    **at("created_at", values=["x" * 10**6]),
    **instead([b""]),
}

OF_SEALED = {
    **at("format_version", values=(0, int("9" * 4000))),
    **at("token", values=("0" * 32, "../" * 10 + "xx")),
    "unsealed": lambda document: json.dumps({**document, "digest": None}).encode(),
    "not canonical": lambda document: json.dumps(document).encode(),
    "too long": lambda document: sealed(document) + b" " * (1 << 17),
}
COMMIT = {
    **OF_SEALED,
    **at("manifest_size_bytes", values=(int("9" * 4000), "64", None, MAX_DOCUMENT_BYTES + 1, 64)),
    **at("manifest_digest", values=("0" * 32, "0" * 31, "A" * 32, "../../etc/passwd", None)),
    "field twice": lambda document: sealed(document)[:-1] + b',"token":"' + b"0" * 32 + b'"}',
    **at("void_by", values=["0" * 32]),
    **instead([b'{"void_by":""}', b'{"void_by": "' + b"0" * 32 + b'"}', b'{"void_by":"' + b"0" * 32 + b'","x":1}']),
    **instead(NOT_DOCUMENTS),
}
ATTEMPT = {
    **OF_SEALED,
    **at("attempt", values=(2, 0, 10**6, "1")),
    **at("parent", values=("../../etc/passwd", "a000001-c0000000001-m0002", "a000002-c0000000001-m0002", "", 1, [])),
    **at("passed_over", values=(None, {}, 7, "x", Raw("[" * 10_000 + "]" * 10_000))),
    **at("host", values=["x" * 70_000, "x" * 5000]),
    **instead([b""]),
}

TABLES = {"rank": RANK, "manifest": MANIFEST, "commit": COMMIT, "attempt": ATTEMPT}
BLAMED = {  # a well-formed document may vouch for another one, or be of another process
    "rank": ["weights-000.safetensors", "accumulators-000.safetensors"],
    "manifest": ["rank-00000.json"],
    "commit": ["manifest.json", "attempts/000001.json"],
    "attempt": [],
}


def attack(root, run=None):
    """Start the run and return the error, which must come before anything was applied or written; None if none."""
    run = run or WatchedRun()
    before = run.digest()
    try:
        CheckpointManager(root).restore(run)
    except CkptKitError as caught:
        error = caught
    else:
        return None
    assert (run.applied, run.digest()) == ([], before)
    assert os.listdir(root / "attempts") == ["000001.json"]
    assert len(str(error)) < 3000
    return error


@pytest.mark.parametrize("kind", TABLES)
def test_a_hostile_document_is_refused_by_name(target, kind):
    root, name = target
    sound = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    named, wrong = [key_of(kind, name), *BLAMED[kind]], {}
    cases = TABLES[kind] | broken_everywhere(json.loads((root / key_of(kind, name)).read_bytes()))
    begun = time.process_time()
    for case, edit in cases.items():
        forge(root, name, kind, edit)
        error = attack(root)
        if not isinstance(error, CorruptCheckpointError) or not any(key in str(error) for key in named):
            wrong[case] = error
        seen = audit(LocalStorage(root), ToldWatch())
        if seen.is_fine or not seen.start.problem or seen.checkpoints[0].outcome != "corrupt":
            wrong[f"{case}, verified"] = seen
        for path, data in sound.items():
            path.write_bytes(data)
    assert wrong == {}
    assert time.process_time() - begun < MOST_SECONDS * 10


def test_forgeries_of_sound_values_are_accepted(target):
    """So what refuses the others is what was forged into them."""
    root, name = target
    for kind in KINDS:
        forge(root, name, kind, lambda document: None)
    run = WatchedRun()
    assert attack(root, run) is None
    assert run.applied == [name]
    storage = LocalStorage(root)
    for edit in (part([5], [0]), part([1, 5], [0, 0], shape=[1, 5])):
        forge(root, name, "rank", edit)
        contents = load(storage, opened(storage, name))
        assert [one for one in contents.entries.values() if one.placement == "replicated"]
        assert all(array.size for array in contents.tensors.values())
    forge(root, name, "rank", put(*TENSOR, "part", None))
    forge(root, name, "rank", two_tensors_at(0, 8))
    tensors = load(storage, opened(storage, name)).tensors
    assert tensors["one"].shape == tensors["two"].shape == (2,)


@pytest.mark.parametrize("kind", KINDS)
def test_a_newer_format_is_told_from_corruption(target, kind):
    root, name = target
    forge(root, name, kind, both(put("format_version", 17), put("a_new_field", {"x": 1})))
    error = attack(root)
    assert isinstance(error, FormatVersionError)
    said = f"{key_of(kind, name)} has format version 17; this ckptkit reads up to 1. Upgrade ckptkit"
    assert said in str(error)
    if kind in ("attempt", "commit"):  # which have a digest of their own: it is altered
        path = root / key_of(kind, name)
        path.write_bytes(path.read_bytes().replace(b'"format_version":17', b'"format_version":3'))
        assert isinstance(attack(root), CorruptCheckpointError)


def test_newer_format_prevents_fallback_to_older_checkpoint(target):
    """Going back silently would throw away the training that the newer ckptkit did."""
    root, _ = target
    (later,) = grow(root, 9)
    forge(root, later, "manifest", put("format_version", 2))
    with pytest.raises(FormatVersionError, match=key_of("manifest", later)):
        CheckpointManager(root).restore(WatchedRun())


def test_absurd_sizes_take_neither_time_nor_memory(target):
    root, name = target
    shard = f"checkpoints/{name}/rank-00000/weights-000.safetensors"
    sound = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    rows = {key_of(kind, name): partial(os.truncate, root / key_of(kind, name), 200_000_000) for kind in TABLES}
    rows[f"{shard} has 200000000 bytes"] = partial(os.truncate, root / shard, 200_000_000)
    rows[f"expected {2**50}"] = partial(forge, root, name, "rank", put(*SHARD, "size_bytes", 2**50))
    for said, spoil in rows.items():
        spoil()
        tracemalloc.start()
        begun = time.process_time()
        try:
            errors = [attack(root)]
            for read in (load, verify) if said.startswith("expected") else ():
                with pytest.raises(CorruptCheckpointError) as caught:
                    read(LocalStorage(root), opened(LocalStorage(root), name))
                errors.append(caught.value)
            assert time.process_time() - begun < MOST_SECONDS, said
            assert tracemalloc.get_traced_memory()[1] < MOST_BYTES, said
        finally:
            tracemalloc.stop()
        assert all(isinstance(error, CorruptCheckpointError) and said in str(error) for error in errors), said
        for path, data in sound.items():
            path.write_bytes(data)


def test_takeover_fences_whatever_its_document_holds(root):
    """The number alone fences; a job that goes on because it cannot read the rest would write against another."""
    run, manager = WatchedRun(), CheckpointManager(root)
    manager.restore(run)
    (root / "attempts/000002.json").write_bytes(b"[" * 100_000)
    with pytest.raises(StaleAttemptError, match="attempt 2"):
        manager.save(run).result()
    assert list(root.glob("checkpoints/*")) == []
