"""Makes an `S3Storage` from what a user typed: ``s3://bucket/prefix`` or ``obs://bucket/prefix``. Sends nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ckptkit.errors import StorageError
from ckptkit.scrubber import learn, learn_url
from ckptkit.storage.lease import Lease
from ckptkit.storage.s3 import obs
from ckptkit.storage.s3.options import Client, S3Options, connect
from ckptkit.storage.s3.requests import Bucket
from ckptkit.storage.s3.retry import Retry
from ckptkit.storage.s3.storage import S3Storage


def open_s3(scheme: str, path: str, storage_options: Mapping[str, Any]) -> S3Storage:
    """Open a run root in a bucket.

    Args:
        scheme: ``obs``, ``s3`` or ``s3a``.
        path: ``bucket/prefix``.
        storage_options: See `S3Options`.

    Raises:
        StorageError: If the path names no folder in a bucket, or the options are invalid.
    """
    learn(*(os.environ.get(name) for name in obs.SECRETS))
    for name in obs.ENDPOINTS:
        learn_url(os.environ.get(name))
    options = S3Options.of(storage_options, scheme)
    bucket, _, prefix = path.partition("/")
    prefix = prefix.removesuffix("/")
    if "@" in bucket or ":" in bucket:
        raise StorageError(f"a {scheme}:// URL must not contain keys: give key and secret in storage_options")
    if "?" in path:
        raise StorageError(f"a {scheme}:// URL must not have a query: leave out what follows the question mark")
    if not prefix.isprintable():
        raise StorageError(f"{scheme}://{bucket}/... has characters that cannot be printed")
    if not bucket or not prefix or "//" in f"/{prefix}/":
        raise StorageError(
            f"{scheme}://{path} names no folder in a bucket: give {scheme}://bucket/folder, one folder for each run"
        )
    client = _obs_client(options) if scheme == "obs" else connect(options, {}, options.keys())
    return S3Storage(
        f"{scheme}://{bucket}/{prefix}",
        Bucket(bucket, client, Retry(options.patience), options.s3_additional_kwargs, scheme=scheme),
        prefix,
        part_bytes=options.default_block_size,
        lanes=options.max_concurrency,
        lease=lambda storage: Lease(storage, settle=options.settle),
    )


def _obs_client(options: S3Options) -> Client:
    options = obs.with_endpoint(options)
    endpoint = str(options.endpoint_url)
    return connect(options, obs.config_of(endpoint), obs.keys_of(options), obs.region_of(endpoint))
