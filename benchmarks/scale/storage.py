"""A bucket in memory that answers as botocore's client does, under the real `S3Storage` and over a `Network`.

So what is counted is what the product asks of an object store, not what somebody thinks that it asks. Every object
says from when on it is there: a rank whose clock is behind does not see it.
"""

from __future__ import annotations

import bisect
import io
from typing import Any, NamedTuple

from botocore.exceptions import ClientError

from ckptkit.storage.s3.errors import Patience, Retry
from ckptkit.storage.s3.options import Client, S3Options
from ckptkit.storage.s3.storage import S3Storage

from .network import Network

PAGE = 1000
_AFTER_ALL = "\U0010ffff"


class Object(NamedTuple):
    data: bytes
    since: float


class Objects:
    """The calls of botocore's client that `Bucket` makes."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._keys: list[str] = []
        self.objects: dict[str, Object] = {}

    def put_object(self, **asked: Any) -> dict[str, Any]:
        key = asked["Key"]
        span = self._network.send("put", key)
        if "IfNoneMatch" in asked and key in self.objects:
            raise _error("PreconditionFailed", 412)
        self.put(key, bytes(asked["Body"]), span.answered)
        return {"ETag": "any"}

    def put(self, key: str, data: bytes, since: float) -> None:
        """Put an object there without a request."""
        if key not in self.objects:
            bisect.insort(self._keys, key)
        self.objects[key] = Object(data, since)

    def remove(self, key: str) -> None:
        """Remove one without a request."""
        if self.objects.pop(key, None) is not None:
            del self._keys[bisect.bisect_left(self._keys, key)]

    def get_object(self, **asked: Any) -> dict[str, Any]:
        span = self._network.send("get", asked["Key"])
        found = self.objects.get(asked["Key"])
        if found is None or found.since > span.sent:
            raise _error("NoSuchKey", 404)
        first, last = map(int, asked["Range"].removeprefix("bytes=").split("-"))
        data = found.data[first : last + 1]
        if not data:
            raise _error("InvalidRange", 416)
        where = f"bytes {first}-{first + len(data) - 1}/{len(found.data)}"
        return {"ETag": "any", "Metadata": {}, "ContentRange": where, "Body": io.BytesIO(data)}

    def delete_object(self, **asked: Any) -> dict[str, Any]:
        self._network.send("delete", asked["Key"])
        self.remove(asked["Key"])
        return {}

    def list_objects(self, **asked: Any) -> dict[str, Any]:
        prefix, delimiter = asked["Prefix"], asked.get("Delimiter", "")
        span = self._network.send("list", prefix)
        marker = asked.get("Marker", "")
        after = f"{marker}{_AFTER_ALL}" if delimiter and marker.endswith(delimiter) else marker
        files: list[dict[str, Any]] = []
        folders: list[dict[str, Any]] = []
        at = max(bisect.bisect_right(self._keys, after), bisect.bisect_left(self._keys, prefix))
        last = ""
        while at < len(self._keys) and self._keys[at].startswith(prefix):
            key = self._keys[at]
            found = self.objects[key]
            at += 1
            if found.since > span.sent:
                continue
            if len(files) + len(folders) == PAGE:
                return {"IsTruncated": True, "NextMarker": last, "Contents": files, "CommonPrefixes": folders}
            name, slash, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            if slash:
                last = f"{prefix}{name}{slash}"
                folders.append({"Prefix": last})
                at = bisect.bisect_left(self._keys, f"{last}{_AFTER_ALL}")
            else:
                last = key
                files.append({"Key": key, "Size": len(found.data)})
        return {"IsTruncated": False, "Contents": files, "CommonPrefixes": folders}

    def list_multipart_uploads(self, **asked: Any) -> dict[str, Any]:
        self._network.send("list", asked["Prefix"])
        return {}


def storage_over(objects: Objects) -> S3Storage:
    """The product's storage; failures were repeated below it already."""
    return S3Storage("s3://simulated", Client(objects, None), Retry(Patience()), S3Options())


def _error(code: str, status: int) -> ClientError:
    answer: Any = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, "Simulated")
