"""Where the crash suites keep a run: a directory or a bucket, seen past ckptkit.

What lies in a root is read, damaged, copied and deleted with the means of the place itself, so that no mistake of the
product's storage is repeated in its tests. Only `Root.storage` is the product's.
"""

from __future__ import annotations

import os
import random
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from ckptkit.storage import LocalStorage, Storage
from ckptkit.storage.s3.errors import Patience, Retry
from ckptkit.storage.s3.options import Client, S3Options, connect
from ckptkit.storage.s3.storage import S3Storage
from support.clock import Clock
from support.servers.client import ACCESS_KEY, SECRET_KEY, s3_client

Tree = dict[str, bytes]

# What S3Storage keeps beside the run: it finds out what the server can do, and is no part of any checkpoint.
OF_THE_STORAGE = frozenset({"probe", "lease.json"})


class LocalRoot:
    """A directory; it need not exist."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.url = str(path)
        self.options: Mapping[str, Any] = {}

    def storage(self) -> Storage:
        return LocalStorage(self.path)

    def tree(self) -> Tree:
        paths = sorted(self.path.rglob("*"))
        files = {str(path.relative_to(self.path)): path for path in paths if path.is_file()}
        return {key: path.read_bytes() for key, path in files.items() if not key.startswith(".reserve/")}

    def get(self, key: str) -> bytes:
        return (self.path / key).read_bytes()

    def put(self, key: str, data: bytes) -> None:
        path = self.path / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # never through a hard link
        path.write_bytes(data)

    def remove(self, *keys: str) -> None:
        for key in keys:
            path = self.path / key
            path.unlink()
            for folder in list(path.relative_to(self.path).parents)[:-1]:
                if not any((self.path / folder).iterdir()):
                    (self.path / folder).rmdir()

    def clear(self) -> None:
        if self.path.exists():
            shutil.rmtree(self.path)

    def uploads(self) -> list[str]:
        return []


class Store:
    """An S3 server: one client for all roots of it, since making one takes longer than a save."""

    def __init__(
        self,
        endpoint: str,
        *,
        part_bytes: int = 5 << 20,
        patience: timedelta = timedelta(seconds=60),
        request_timeout: timedelta = Patience.request,
        real: Callable[[], float] = time.monotonic,
    ) -> None:
        self.endpoint = endpoint
        self.part_bytes = part_bytes
        self._patience = Patience(request_timeout, patience, patience)
        self._real = real
        self.contents: dict[tuple[str, int], bytes] = {}

    @property
    def options(self) -> Mapping[str, Any]:
        return {"key": ACCESS_KEY, "secret": SECRET_KEY, "endpoint_url": self.endpoint}

    @cached_property
    def raw(self) -> Any:
        """A client of which the product knows nothing."""
        return s3_client(self.endpoint)

    @cached_property
    def products(self) -> Client:
        options = S3Options.of({**self.options, "request_timeout": self._patience.request}, "s3")
        return connect(options, region="us-east-1")

    def retry(self) -> Retry:
        clock = Clock(self._real)
        return Retry(self._patience, monotonic=clock, wait=clock.wait, rng=random.Random(1))

    def new(self) -> BucketRoot:
        bucket = f"crash-{uuid.uuid4().hex}"
        self.raw.create_bucket(Bucket=bucket)
        return BucketRoot(self, bucket)

    def close(self) -> None:
        self.raw.close()
        self.products.api.close()


class BucketRoot:
    """The folder ``run`` of a bucket that has nothing else in it."""

    def __init__(self, store: Store, bucket: str) -> None:
        self.store = store
        self.bucket = bucket
        self.url = f"s3://{bucket}/run"
        self.options = store.options

    def through(self, store: Store) -> BucketRoot:
        return BucketRoot(store, self.bucket)

    def storage(self) -> Storage:
        options = S3Options(default_block_size=self.store.part_bytes)
        return S3Storage(self.url, self.store.products, self.store.retry(), options)

    def tree(self) -> Tree:
        found: Tree = {}
        pages = self.store.raw.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix="run/")
        for entry in (entry for page in pages for entry in page.get("Contents", ())):
            key = entry["Key"].removeprefix("run/")
            if key not in OF_THE_STORAGE:
                # An ETag is the digest of the content, and the same few files are read a thousand times.
                content = (entry["ETag"], entry["Size"])
                if content not in self.store.contents:
                    self.store.contents[content] = self.get(key)
                found[key] = self.store.contents[content]
        return found

    def get(self, key: str) -> bytes:
        return bytes(self.store.raw.get_object(Bucket=self.bucket, Key=f"run/{key}")["Body"].read())

    def put(self, key: str, data: bytes) -> None:
        self.store.raw.put_object(Bucket=self.bucket, Key=f"run/{key}", Body=data)

    def remove(self, *keys: str) -> None:
        for key in keys:
            self.store.raw.delete_object(Bucket=self.bucket, Key=f"run/{key}")

    def clear(self) -> None:
        self.remove(*self.tree(), *OF_THE_STORAGE)

    def uploads(self) -> list[str]:
        answer = self.store.raw.list_multipart_uploads(Bucket=self.bucket)
        return [entry["Key"].removeprefix("run/") for entry in answer.get("Uploads", ())]


Root = LocalRoot | BucketRoot
Place = Root | str | os.PathLike[str]  # a path is a root in that directory


def root_at(place: Place) -> Root:
    return LocalRoot(place) if isinstance(place, str | os.PathLike) else place


def copied(tree: Tree, root: Root) -> Root:
    """Put the files of another root into ``root``, and return that."""
    for key, data in tree.items():
        root.put(key, data)
    return root
