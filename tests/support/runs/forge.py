"""Puts a hostile document into a committed checkpoint and seals everything around it anew.

So the digests agree, and what refuses the document is its validation.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ckptkit.format.documents import canonical, digest_of
from ckptkit.format.layout import CheckpointName, attempt_key

Edit = Callable[[dict[str, Any]], bytes | None]
"""Changes a parsed document in place, or gives the bytes to put in its place."""

KINDS = ("run", "attempt", "commit", "manifest", "rank")


def key_of(kind: str, name: str) -> str:
    """Where the document of this kind lies that belongs to the checkpoint ``name``."""
    parsed = CheckpointName.parse(name)
    assert parsed is not None
    return {
        "run": "run.json",
        "attempt": attempt_key(parsed.attempt),
        "commit": parsed.commit_key,
        "manifest": parsed.manifest_key,
        "rank": parsed.rank_key(0),
    }[kind]


def sealed(fields: dict[str, Any]) -> bytes:
    """The document with its own digest set right."""
    rest = {key: value for key, value in fields.items() if key != "digest"}
    return canonical({**rest, "digest": digest_of(canonical(rest))})


def forge(root: Path, name: str, kind: str, edit: Edit) -> None:
    """Apply ``edit`` to one document of ``name`` and re-seal what vouches for it."""
    path = root / key_of(kind, name)
    fields = json.loads(path.read_bytes())
    data = edit(fields)
    if data is None:
        data = sealed(fields) if kind in ("run", "attempt", "commit") else json.dumps(fields).encode()
    path.write_bytes(data)
    if kind == "rank":

        def vouch_for_rank(manifest: dict[str, Any]) -> None:
            manifest["rank_files"][0].update(size_bytes=len(data), digest=digest_of(data))
            manifest["size_bytes"] = _total_bytes(data, manifest["size_bytes"])

        forge(root, name, "manifest", vouch_for_rank)
    if kind == "manifest":

        def vouch_for_manifest(commit: dict[str, Any]) -> None:
            commit.update(manifest_size_bytes=len(data), manifest_digest=digest_of(data))

        forge(root, name, "commit", vouch_for_manifest)


def _total_bytes(rank_file: bytes, otherwise: int) -> int:
    """What the manifest says of all shards, if ``rank_file`` is sound enough to have a sum."""
    try:
        sizes = [shard["size_bytes"] for shard in json.loads(rank_file)["shards"]]
        total = sum(sizes)
    except (ValueError, KeyError, TypeError, RecursionError):
        return otherwise
    return total if type(total) is int and 0 <= total < 1 << 59 else otherwise
