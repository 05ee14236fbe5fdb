"""Documents that somebody made up: refused, named, in bounded time and memory, with nothing applied."""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
import tracemalloc

import pytest
from support.runs.forge import KINDS, forge, key_of, sealed
from support.runs.grown import WatchedRun, grow, opened

from ckptkit.checkpoint.read import load, verify
from ckptkit.errors import CorruptCheckpointError, FormatVersionError, StaleAttemptError
from ckptkit.format.documents import MAX_DOCUMENT_BYTES
from ckptkit.manager.manager import CheckpointManager
from ckptkit.storage import LocalStorage
from ckptkit.tools.verify import audit

MOST_SECONDS = 2
MOST_BYTES = 16 << 20
RAW = "RAW-JSON-GOES-HERE"


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


def set_at(*path_and_value):
    """An edit that sets one place in the document."""
    *path, last, value = path_and_value

    def edit(document):
        for step in path:
            document = document[step]
        document[last] = value

    return edit


def raw_at(*path_and_json):
    """An edit that puts JSON text in one place, such as Python's own writer would never write."""
    *path, text = path_and_json

    def edit(document):
        set_at(*path, RAW)(document)
        return json.dumps(document).encode().replace(f'"{RAW}"'.encode(), text.encode())

    return edit


def without(*path):
    *path, last = path

    def edit(document):
        for step in path:
            document = document[step]
        del document[last]

    return edit


def instead(data: bytes):
    return lambda document: data


def both(*edits):
    """One after the other; what the last gives is put in the document's place."""

    def edit(document):
        given = None
        for one in edits:
            given = one(document)
        return given

    return edit


def repeated(*path):
    """Puts the last item of a list there once more."""

    def edit(document):
        for step in path:
            document = document[step]
        document.append(json.loads(json.dumps(document[-1])))

    return edit


BAD_NUMBERS = {
    "negative": "-1",
    "huge": str(2**60),
    "beyond-int64": str(2**70),
    "4000-digits": "9" * 4000,
    "100000-digits": "9" * 100_000,
    "float": "64.0",
    "infinite": "1e400",
    "bool": "true",
    "text": '"64"',
    "null": "null",
    "nan": "NaN",
    "list": "[64]",
    "deep": "[" * 100_000 + "]" * 100_000,
}

BAD_KEYS = {
    "absolute": "/etc/passwd",
    "parent": "../run.json",
    "parent-inside": "checkpoints/NAME/rank-00000/../rank-00000/weights-000.safetensors",
    "dot": "./checkpoints/NAME/rank-00000/weights-000.safetensors",
    "dot-inside": "checkpoints/NAME/./rank-00000/weights-000.safetensors",
    "hidden": "checkpoints/NAME/rank-00000/.weights-000.safetensors",
    "double-slash": "checkpoints/NAME/rank-00000//weights-000.safetensors",
    "trailing-slash": "checkpoints/NAME/rank-00000/",
    "backslash": "checkpoints\\NAME\\rank-00000\\weights-000.safetensors",
    "nul": "checkpoints/NAME/rank-00000/weights-000.safetensors\0",
    "newline": "checkpoints/NAME/rank-00000/weights-000.safetensors\n",
    "drive": "C:/weights-000.safetensors",
    "url": "file://etc/passwd",
    "home": "~/weights-000.safetensors",
    "space": "checkpoints/NAME/rank-00000/weights 000.safetensors",
    "look-alike": "checkpoints/NAME/rank-0000\u0660/weights-000.safetensors",
    "empty": "",
    "long": "x/" * 300 + "x",
    "other-place": "run.json",
    "number": 3,
}

ELSEWHERE = {
    "other-checkpoint": "checkpoints/a000001-c0000000009-m0000/rank-00000/weights-000.safetensors",
    "other-rank": "checkpoints/NAME/rank-00001/weights-000.safetensors",
    "own-folder": "checkpoints/NAME/weights-000.safetensors",
    "deeper": "checkpoints/NAME/rank-00000/x/weights-000.safetensors",
    "other-attempt-frozen": "frozen/a000002/DIGEST.safetensors",
    "frozen-not-its-digest": "frozen/a000001/" + "0" * 32 + ".safetensors",
    "frozen-root": "frozen/DIGEST.safetensors",
    "frozen-deeper": "frozen/a000001/x/DIGEST.safetensors",
}

WRONG_TYPES = {"null": None, "list": [], "object": {}, "number": 7, "text": "x", "bool": True}

NOT_DOCUMENTS = {
    "empty": b"",
    "blank": b" \n",
    "words": b"this is no JSON",
    "half": b'{"format_version":1,',
    "two": b"{}{}",
    "not-utf-8": b'{"format_version":1,"host":"\xff\xfe"}',
    "utf-16": '{"format_version":1}'.encode("utf-16"),
    "bom": b"\xef\xbb\xbf{}",
    "nuls": b"\0" * 1000,
    "nan": b"NaN",
    "null": b"null",
    "list": b"[]",
    "number": b"1",
    "text": b'"x"',
    "nothing-in-it": b"{}",
    "deep-list": b"[" * 100_000,
    "deep-closed-list": b"[" * 100_000 + b"]" * 100_000,
    "deep-object": b'{"a":' * 100_000,
    "huge-number": b'{"format_version":' + b"9" * 100_000 + b"}",
    "lone-surrogate": b'{"host":"\\ud800"}',
    "pickle": b"\x80\x04\x95\x00",
}

SHARD = ("shards", -1)
TENSOR = (*SHARD, "tensors", 0)


def shard_key(key):
    def edit(document):
        shard = document["shards"][-1]
        if isinstance(key, str):
            shard["key"] = key.replace("NAME", document["checkpoint"]).replace("DIGEST", shard["digest"])
        else:
            shard["key"] = key

    return edit


def rank_file_key(key):
    def edit(document):
        document["rank_files"][0]["key"] = key.replace("NAME", document["checkpoint"]) if isinstance(key, str) else key

    return edit


def shape_with_size(shape, size_bytes):
    return both(set_at(*TENSOR, "shape", shape), set_at(*TENSOR, "size_bytes", size_bytes))


def two_tensors_at(first_at, second_at):
    """Splits the last shard's only tensor, five floats from byte 0 of its place, into two."""

    def edit(document):
        (tensor,) = document["shards"][-1]["tensors"]
        document["shards"][-1]["tensors"] = [
            {**tensor, "name": name, "shape": [2], "size_bytes": 8, "offset_bytes": tensor["offset_bytes"] + at}
            for name, at in (("one", first_at), ("two", second_at))
        ]

    return edit


def beyond_the_file(document):
    shard = document["shards"][-1]
    shard["tensors"][0]["offset_bytes"] = shard["size_bytes"] - shard["tensors"][0]["size_bytes"] + 1


def part(global_shape, offsets, **fields):
    """Makes the last shard's only tensor, five floats, a part of a whole."""

    def edit(document):
        document["shards"][-1]["tensors"][0].update(
            placement="replicated", part={"global_shape": global_shape, "offsets": offsets}, **fields
        )

    return edit


def sharded(*edits, blocks=None, **fields):
    """The same as a sharded leaf, in a file with digests of blocks; ``blocks`` and ``fields`` in their place."""

    def edit(document):
        shard = document["shards"][-1]
        digests = ["0" * 32] * (-(-shard["size_bytes"] // 64))
        shard["blocks"] = {"size_bytes": 64, "digests": digests, **(blocks or {})}
        shard["tensors"][0].update(placement="sharded", part={"global_shape": [5], "offsets": [0]}, **fields)
        for one in edits:
            one(document)

    return edit


def two_placements_in_a_file(document):
    two_tensors_at(0, 8)(document)
    document["shards"][-1]["tensors"][0]["placement"] = "replicated"


def same_name_in_two_shards(document):
    document["shards"][0]["tensors"][0]["name"] = document["shards"][-1]["tensors"][0]["name"]


def same_shard_under_other_names(document):
    again = json.loads(json.dumps(document["shards"][-1]))
    for tensor in again["tensors"]:
        tensor["name"] += "-again"
    document["shards"].append(again)


RANK = {
    **{f"shard-key-{case}": shard_key(key) for case, key in {**BAD_KEYS, **ELSEWHERE}.items()},
    **{f"shard-size-{case}": raw_at(*SHARD, "size_bytes", text) for case, text in BAD_NUMBERS.items()},
    **{f"tensor-size-{case}": raw_at(*TENSOR, "size_bytes", text) for case, text in BAD_NUMBERS.items()},
    **{f"tensor-offset-{case}": raw_at(*TENSOR, "offset_bytes", text) for case, text in BAD_NUMBERS.items()},
    **{f"extent-{case}": raw_at(*TENSOR, "shape", f"[{text}]") for case, text in BAD_NUMBERS.items()},
    **{f"rank-{case}": raw_at("rank", text) for case, text in BAD_NUMBERS.items()},
    **{f"save-number-{case}": raw_at("save_number", text) for case, text in BAD_NUMBERS.items()},
    **{f"version-{case}": raw_at("format_version", text) for case, text in BAD_NUMBERS.items()},
    **{f"shards-{case}": set_at("shards", value) for case, value in WRONG_TYPES.items() if value != []},
    **{f"state-{case}": set_at("state", value) for case, value in WRONG_TYPES.items() if value != {}},
    **{f"tensors-{case}": set_at(*SHARD, "tensors", value) for case, value in WRONG_TYPES.items() if value != []},
    **{f"name-{case}": set_at(*TENSOR, "name", value) for case, value in WRONG_TYPES.items() if value != "x"},
    **{f"missing-{field}": without(field) for field in ("checkpoint", "rank", "token", "save_number", "shards")},
    **{f"shard-missing-{f}": without(*SHARD, f) for f in ("key", "size_bytes", "digest", "role", "tensors")},
    **{f"tensor-missing-{f}": without(*TENSOR, f) for f in ("name", "dtype", "shape", "offset_bytes", "size_bytes")},
    **{f"missing-{f}": without(f) for f in ("state", "format_version")},
    "unknown-field": set_at("pickle", "gASV"),
    "unknown-shard-field": set_at(*SHARD, "url", "http://x"),
    "unknown-tensor-field": set_at(*TENSOR, "code", "x"),
    "wrong-rank": set_at("rank", 1),
    "wrong-token": set_at("token", "0" * 32),
    "upper-case-token": set_at("token", "A" * 32),
    "short-digest": set_at(*SHARD, "digest", "0" * 31),
    "newline-digest": set_at(*SHARD, "digest", "0" * 32 + "\n"),
    "other-checkpoint": set_at("checkpoint", "a000001-c0000000009-m0000"),
    "unknown-role": set_at(*SHARD, "role", "gradients"),
    "unknown-dtype": set_at(*TENSOR, "dtype", "O"),
    "long-dtype": set_at(*TENSOR, "dtype", "F" * 10**6),
    "empty-name": set_at(*TENSOR, "name", ""),
    "long-name": set_at(*TENSOR, "name", "n" * 10**6),
    "shape-not-its-size": set_at(*TENSOR, "shape", [6]),
    "shape-overflows": shape_with_size([2**31, 2**31, 2**31], 0),
    "shape-33-dimensions": set_at(*TENSOR, "shape", [1] * 33),
    "shape-empty-and-absurd": shape_with_size([0, 2**50, 2**50], 0),
    "shape-negative-pair": set_at(*TENSOR, "shape", [-1, -5]),
    "overlap": two_tensors_at(0, 7),
    "same-place": two_tensors_at(0, 0),
    "backwards": two_tensors_at(8, 0),
    "beyond-the-file": beyond_the_file,
    "offset-max": set_at(*TENSOR, "offset_bytes", 2**50),
    "tensor-twice": repeated(*SHARD, "tensors"),
    "shard-twice": repeated("shards"),
    "tensor-in-two-shards": same_name_in_two_shards,
    "shard-under-other-names": same_shard_under_other_names,
    **{f"tensor-missing-{f}": without(*TENSOR, f) for f in ("placement", "part")},
    **{f"placement-{case}": set_at(*TENSOR, "placement", value) for case, value in WRONG_TYPES.items()},
    **{
        f"part-{case}": both(part([5], [0]), set_at(*TENSOR, "part", value))
        for case, value in WRONG_TYPES.items()
        if value is not None
    },
    **{
        f"part-{field}-{case}": both(part([5], [0]), set_at(*TENSOR, "part", field, value))
        for field in ("global_shape", "offsets")
        for case, value in WRONG_TYPES.items()
    },
    **{
        f"whole-extent-{case}": both(part([5], [0]), raw_at(*TENSOR, "part", "global_shape", f"[{text}]"))
        for case, text in BAD_NUMBERS.items()
    },
    **{
        f"part-offset-{case}": both(part([5], [0]), raw_at(*TENSOR, "part", "offsets", f"[{text}]"))
        for case, text in BAD_NUMBERS.items()
    },
    **{
        f"block-size-{case}": both(sharded(), raw_at(*SHARD, "blocks", "size_bytes", text))
        for case, text in BAD_NUMBERS.items()
    },
    "part-unknown-field": both(part([5], [0]), set_at(*TENSOR, "part", "x", 1)),
    "part-missing-offsets": both(part([5], [0]), without(*TENSOR, "part", "offsets")),
    "part-of-a-rank-s-own": both(part([5], [0]), set_at(*TENSOR, "placement", "per_rank")),
    "part-outside": part([5], [1]),
    "part-larger-than-the-whole": part([4], [0]),
    "part-other-axes": part([5, 1], [0, 0]),
    "part-fewer-offsets": part([5], []),
    "part-not-in-one-run": part([5, 2], [0, 0], shape=[5, 1]),
    "part-absurd-whole": part([2**50, 2**50], [0, 0], shape=[1, 5]),
    "part-33-dimensions": part([1] * 32 + [5], [0] * 33, shape=[1] * 32 + [5]),
    "part-32-dimensions": part([1] * 31 + [5], [0] * 32, shape=[1] * 31 + [5]),
    "sharded-32-dimensions": both(
        sharded(), part([1] * 31 + [5], [0] * 32, shape=[1] * 31 + [5]), set_at(*TENSOR, "placement", "sharded")
    ),
    "part-of-which-the-rest-is-missing": part([10], [0]),
    "part-that-does-not-begin-the-whole": part([10], [5]),
    "sharded-without-blocks": both(sharded(), set_at(*SHARD, "blocks", None)),
    "sharded-without-part": sharded(set_at(*TENSOR, "part", None)),
    "sharded-outside": sharded(set_at(*TENSOR, "part", "offsets", [1])),
    "sharded-of-which-the-rest-is-missing": sharded(set_at(*TENSOR, "part", "global_shape", [6])),
    "blocks-of-a-file-that-is-not-sharded": both(sharded(), set_at(*TENSOR, "placement", "replicated")),
    "blocks-missing": without(*SHARD, "blocks"),
    **{f"blocks-{case}": sharded(set_at(*SHARD, "blocks", value)) for case, value in WRONG_TYPES.items()},
    "blocks-one-less": sharded(lambda document: document["shards"][-1]["blocks"]["digests"].pop()),
    "blocks-one-more": sharded(repeated(*SHARD, "blocks", "digests")),
    "blocks-none": sharded(blocks={"digests": []}),
    "blocks-too-large": sharded(blocks={"size_bytes": (1 << 20) + 1, "digests": ["0" * 32]}),
    "blocks-short-digest": sharded(set_at(*SHARD, "blocks", "digests", 0, "0" * 31)),
    "blocks-unknown-field": sharded(blocks={"x": 1}),
    "blocks-of-other-bytes": sharded(),
    "two-placements-in-a-file": two_placements_in_a_file,
    "state-nan": raw_at("state", "rng", "NaN"),
    "state-infinite": raw_at("state", "rng", '{"a":[1,-Infinity]}'),
    "state-overflow": raw_at("state", "rng", '{"a":[1e400]}'),
    "state-deep": raw_at("state", "rng", "[" * 100_000 + "]" * 100_000),
    "state-huge-number": raw_at("state", "rng", "9" * 100_000),
}

MANIFEST = {
    **{f"key-{case}": rank_file_key(key) for case, key in BAD_KEYS.items()},
    "key-other-checkpoint": rank_file_key("checkpoints/a000001-c0000000009-m0000/rank-00000.json"),
    "key-other-rank": rank_file_key("checkpoints/NAME/rank-00001.json"),
    **{f"size-{case}": raw_at("rank_files", 0, "size_bytes", text) for case, text in BAD_NUMBERS.items()},
    "size-above-all-documents": set_at("rank_files", 0, "size_bytes", MAX_DOCUMENT_BYTES + 1),
    **{f"world-{case}": raw_at("world_size", text) for case, text in BAD_NUMBERS.items()},
    "world-of-none": set_at("world_size", 0),
    **{f"total-{case}": raw_at("size_bytes", text) for case, text in BAD_NUMBERS.items()},
    "total-one-more": lambda document: set_at("size_bytes", document["size_bytes"] + 1)(document),
    "total-of-none": set_at("size_bytes", 0),
    "world-larger-than-listed": set_at("world_size", 2),
    **{f"cycles-{case}": raw_at("progress", "cycles", text) for case, text in BAD_NUMBERS.items()},
    **{f"k-{case}": raw_at("progress", "accumulation_steps", text) for case, text in BAD_NUMBERS.items()},
    **{f"rank-files-{case}": set_at("rank_files", value) for case, value in WRONG_TYPES.items()},
    **{f"progress-{case}": set_at("progress", value) for case, value in WRONG_TYPES.items()},
    **{f"metrics-{case}": set_at("metrics", value) for case, value in WRONG_TYPES.items() if value != {}},
    **{f"missing-{f}": without(f) for f in ("checkpoint", "created_at", "progress", "world_size", "rank_files")},
    **{
        f"missing-{f}": without(f)
        for f in ("size_bytes", "format_version", "mid_cycle", "metrics", "libraries", "cost")
    },
    **{f"progress-missing-{f}": without("progress", f) for f in ("epoch", "cycles", "cycle_first_batch")},
    "unknown-field": set_at("exec", "x"),
    "unknown-progress-field": set_at("progress", "x", 1),
    "unknown-entry-field": set_at("rank_files", 0, "x", 1),
    "no-rank-files": set_at("rank_files", []),
    "rank-file-twice": repeated("rank_files"),
    "rank-file-twice-for-two": both(repeated("rank_files"), set_at("world_size", 2)),
    "other-checkpoint": set_at("checkpoint", "a000001-c0000000009-m0000"),
    "other-cycles": set_at("progress", "cycles", 2),
    "updates-above-cycles": set_at("progress", "updates", 2),
    "contradicting-counters": set_at("progress", "batches_delivered", 7),
    "unknown-mid-cycle": set_at("mid_cycle", "align"),
    "metric-nan": raw_at("metrics", '{"loss":NaN}'),
    "metric-infinite": raw_at("metrics", '{"loss":1e400}'),
    "metric-bool": raw_at("metrics", '{"loss":true}'),
    "metric-text": raw_at("metrics", '{"loss":"0.5"}'),
    "version-bool": raw_at("format_version", "true"),
    "version-float": raw_at("format_version", "1.0"),
    "version-zero": raw_at("format_version", "0"),
    "long-text": set_at("created_at", "x" * 10**6),
    "deep-libraries": raw_at("libraries", "[" * 100_000 + "]" * 100_000),
}

COMMIT = {
    **{f"size-{case}": set_at("manifest_size_bytes", value) for case, value in {
        "negative": -1, "huge": 2**60, "4000-digits": int("9" * 4000), "float": 64.0, "bool": True, "text": "64",
        "null": None, "above-all-documents": MAX_DOCUMENT_BYTES + 1, "one-less": 64,
    }.items()},
    **{f"digest-{case}": set_at("manifest_digest", value) for case, value in {
        "other": "0" * 32, "short": "0" * 31, "upper": "A" * 32, "path": "../../etc/passwd", "null": None,
    }.items()},
    **{f"missing-{f}": without(f) for f in ("token", "manifest_digest", "manifest_size_bytes")},
    "other-token": set_at("token", "0" * 32),
    "unknown-field": set_at("key", "../x"),
    "version-bool": set_at("format_version", True),
    "version-float": set_at("format_version", 1.0),
    "version-zero": set_at("format_version", 0),
    "version-absurd": set_at("format_version", int("9" * 4000)),
    "unsealed": lambda document: json.dumps({**document, "digest": None}).encode(),
    "sealed-for-another": lambda document: json.dumps({**document, "manifest_size_bytes": 1}).encode(),
    "not-canonical": lambda document: json.dumps(document).encode(),
    "field-twice": lambda document: sealed(document)[:-1] + b',"token":"' + b"0" * 32 + b'"}',
    "void-of-nobody": instead(b'{"void_by":""}'),
    "void-and-real": set_at("void_by", "0" * 32),
    "void-not-canonical": instead(b'{"void_by": "' + b"0" * 32 + b'"}'),
    "void-with-more": instead(b'{"void_by":"' + b"0" * 32 + b'","x":1}'),
    "too-long": lambda document: sealed(document) + b" " * (1 << 17),
}  # fmt: skip

ATTEMPT = {
    **{f"number-{case}": set_at("attempt", value) for case, value in {
        "other": 2, "zero": 0, "negative": -1, "seven-digits": 10**6, "huge": 2**70, "float": 1.0, "bool": True,
        "text": "1", "null": None,
    }.items()},
    **{f"parent-{case}": set_at("parent", value) for case, value in {
        "path": "../../etc/passwd", "itself": "a000001-c0000000001-m0002", "later": "a000002-c0000000001-m0002",
        "empty": "", "number": 1, "list": [], "long": "x" * 5000,
    }.items()},
    **{f"passed-over-{case}": set_at("passed_over", value) for case, value in WRONG_TYPES.items() if value != []},
    **{f"missing-{f}": without(f) for f in ("attempt", "token", "parent", "branch", "host", "created_at")},
    "other-token": set_at("token", "0" * 32),
    "bad-token": set_at("token", "../" * 10 + "xx"),
    "unknown-field": set_at("pid", 1),
    "version-bool": set_at("format_version", True),
    "version-float": set_at("format_version", 1.0),
    "deep-passed-over": raw_at("passed_over", "[" * 10_000 + "]" * 10_000),
    "unsealed": lambda document: json.dumps({**document, "digest": None}).encode(),
    "not-canonical": lambda document: json.dumps(document).encode(),
    "too-long": lambda document: sealed(document) + b" " * (1 << 17),
    "too-long-by-one-field": set_at("host", "x" * 70_000),
}  # fmt: skip

CASES = [
    pytest.param(kind, edit, id=f"{kind}-{case}")
    for kind, table in (("rank", RANK), ("manifest", MANIFEST), ("commit", COMMIT), ("attempt", ATTEMPT))
    for case, edit in {**table, **{f"is-{case}": instead(data) for case, data in NOT_DOCUMENTS.items()}}.items()
]


def attack(root, expected):
    """Start the run and return the error, which must come soon, cheaply and before anything was applied."""
    run = WatchedRun()
    before = run.digest()
    tracemalloc.start()
    begun = time.process_time()
    try:
        with pytest.raises(expected) as caught:
            CheckpointManager(root).restore(run)
        elapsed = time.process_time() - begun
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert elapsed < MOST_SECONDS
    assert peak < MOST_BYTES
    assert run.applied == []
    assert run.digest() == before
    assert len(str(caught.value)) < 3000
    return caught.value


@pytest.mark.parametrize(("kind", "edit"), CASES)
def test_a_hostile_document_is_refused_by_name(target, kind, edit):
    root, name = target
    forge(root, name, kind, edit)
    error = attack(root, CorruptCheckpointError)
    named = [key_of(kind, name)]
    if kind == "commit":
        named.append(key_of("manifest", name))  # a well-formed COMMIT may vouch for another manifest
        named.append(key_of("attempt", name))  # or be of another process than the attempt
    if kind == "manifest":
        named.append(key_of("rank", name))
    if kind == "rank":
        named.append("weights-000.safetensors")
        named.append("accumulators-000.safetensors")
    assert any(key in str(error) for key in named)
    assert sorted(os.listdir(root / "attempts")) == ["000001.json"]


class _Nobody:
    def plan(self, checkpoints, size_bytes):
        pass

    def advance(self, size_bytes):
        pass

    def end(self, name, outcome):
        pass


@pytest.mark.parametrize(("kind", "edit"), CASES)
def test_verify_finds_whatever_a_start_refuses(target, kind, edit):
    root, name = target
    forge(root, name, kind, edit)
    found = audit(LocalStorage(root), _Nobody())
    (proof,) = found.checkpoints
    assert (proof.name, proof.outcome) == (name, "corrupt")
    assert not found.is_fine
    assert found.start.problem


def test_tensors_side_by_side_are_accepted(target):
    """The counterpart of the overlaps: the same forgery with places that do not touch."""
    root, name = target
    forge(root, name, "rank", two_tensors_at(0, 8))
    tensors = load(LocalStorage(root), opened(LocalStorage(root), name)).tensors
    assert tensors["one"].shape == tensors["two"].shape == (2,)


@pytest.mark.parametrize("edit", [part([5], [0]), part([1, 5], [0, 0], shape=[1, 5])])
def test_parts_that_make_the_whole_are_accepted(target, edit):
    """The counterpart of the parts that do not."""
    root, name = target
    forge(root, name, "rank", edit)
    contents = load(LocalStorage(root), opened(LocalStorage(root), name))
    assert [one for one in contents.entries.values() if one.placement == "replicated"]
    assert all(array.size for array in contents.tensors.values())


def test_the_forgery_itself_is_accepted(target):
    """So what refuses the others is what was forged into them."""
    root, name = target
    for kind in KINDS:
        forge(root, name, kind, lambda document: None)
    run = WatchedRun()
    CheckpointManager(root).restore(run)
    assert run.applied == [name]


@pytest.mark.parametrize("version", [2, 17])
@pytest.mark.parametrize("kind", ["attempt", "commit", "manifest", "rank", "run"])
def test_a_newer_format_is_told_from_corruption(target, kind, version):
    root, name = target
    forge(root, name, kind, both(set_at("format_version", version), set_at("a_new_field", {"x": 1})))
    message = str(attack(root, FormatVersionError))
    assert f"{key_of(kind, name)} has format version {version}; this ckptkit reads up to 1" in message
    assert "Upgrade ckptkit" in message
    assert sorted(os.listdir(root / "attempts")) == ["000001.json"]


@pytest.mark.parametrize("kind", ["attempt", "commit"])
def test_altered_byte_is_not_newer_format(target, kind):
    root, name = target
    path = root / key_of(kind, name)
    path.write_bytes(path.read_bytes().replace(b'"format_version":1', b'"format_version":3'))
    assert key_of(kind, name) in str(attack(root, CorruptCheckpointError))


def test_newer_format_prevents_fallback_to_older_checkpoint(target):
    """Going back silently would throw away the training that the newer ckptkit did."""
    root, _ = target
    (later,) = grow(root, 9)
    forge(root, later, "manifest", set_at("format_version", 2))
    assert key_of("manifest", later) in str(attack(root, FormatVersionError))


@pytest.mark.parametrize("kind", ["attempt", "commit", "manifest", "rank"])
def test_oversized_document_is_refused(target, kind):
    root, name = target
    path = root / key_of(kind, name)
    os.truncate(path, 200_000_000)
    assert key_of(kind, name) in str(attack(root, CorruptCheckpointError))


def test_oversized_shard_is_refused(target):
    root, name = target
    path = root / "checkpoints" / name / "rank-00000" / "weights-000.safetensors"
    os.truncate(path, 200_000_000)
    assert "weights-000.safetensors has 200000000 bytes" in str(attack(root, CorruptCheckpointError))


def test_a_shard_listed_with_a_petabyte(target):
    root, name = target
    forge(root, name, "rank", set_at(*SHARD, "size_bytes", 2**50))
    assert f"expected {2**50}" in str(attack(root, CorruptCheckpointError))


@pytest.mark.parametrize(
    "data",
    [b for case, b in NOT_DOCUMENTS.items()] + [b'{"run_id":"../../x"}', b" " * (1 << 17)],
    ids=[*NOT_DOCUMENTS, "bad-id", "too-long"],
)
def test_no_checkpoint_depends_on_run_json(target, data, caplog):
    """A damaged one is named in a warning, and the run goes on."""
    root, name = target
    (root / "run.json").write_bytes(data)
    run = WatchedRun()
    with caplog.at_level(logging.WARNING, "ckptkit"):
        CheckpointManager(root).restore(run)
    assert run.applied == [name]
    assert "run.json is not a valid RunDocument" in caplog.text
    assert len(caplog.text) < 3000


def test_listing_names_what_is_wrong_and_goes_on(target):
    root, name = target
    (later,) = grow(root, 9)
    forge(root, later, "rank", shard_key("../x"))
    first, second = CheckpointManager(root).checkpoints()
    assert (first.name, first.problem) == (name, None)
    assert second.name == later
    assert key_of("rank", later) in second.problem


def test_the_reading_commands_refuse_the_same(target):
    root, name = target
    forge(root, name, "rank", set_at(*SHARD, "size_bytes", 2**50))
    storage = LocalStorage(root)
    checkpoint = opened(storage, name)
    for read in (load, verify):
        with pytest.raises(CorruptCheckpointError, match="expected 1125899906842624"):
            read(storage, checkpoint)


@pytest.mark.parametrize(
    "document",
    [
        sealed({"format_version": 2, "attempt": 2, "something": "new"}),
        b"",
        b"{}",
        b"[" * 100_000,
        b"\xff" * 100_000,
    ],
    ids=["newer-format", "empty", "nothing-in-it", "deep", "long"],
)
def test_takeover_fences_whatever_its_document_holds(root, document):
    """The number alone fences; a job that goes on because it cannot read the rest would write against another."""
    run = WatchedRun()
    manager = CheckpointManager(root)
    manager.restore(run)
    (root / "attempts" / "000002.json").write_bytes(document)
    error = manager.save(run).exception()
    assert isinstance(error, StaleAttemptError)
    assert "attempt 2" in str(error)
    assert list(root.glob("checkpoints/*")) == []
