"""The servers as fixtures: one moto per pytest worker, a bucket and a proxy per test."""

import re
import socket
import subprocess
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.servers.client import ACCESS_KEY, SECRET_KEY, s3_client
from support.servers.moto_server import HOST, MotoServer
from support.servers.proxy import FaultProxy

_RADOSGW = Path(__file__).with_name("radosgw.sh")


@dataclass(frozen=True)
class Bucket:
    name: str
    endpoint: str
    client: Any

    def keys(self) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name)
        return [entry["Key"] for page in pages for entry in page.get("Contents", ())]

    def get(self, key: str) -> bytes | None:
        try:
            return bytes(self.client.get_object(Bucket=self.name, Key=key)["Body"].read())
        except self.client.exceptions.NoSuchKey:
            return None

    def put(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.name, Key=key, Body=data)

    def uploads(self) -> list[str]:
        """The keys of multipart uploads that nobody has completed or aborted."""
        return [entry["Key"] for entry in self._uploads()]

    def delete(self) -> None:
        """Delete the bucket with all that is in it."""
        for upload in self._uploads():
            self.client.abort_multipart_upload(Bucket=self.name, Key=upload["Key"], UploadId=upload["UploadId"])
        while keys := self.keys()[:1000]:
            self.client.delete_objects(Bucket=self.name, Delete={"Objects": [{"Key": key} for key in keys]})
        self.client.delete_bucket(Bucket=self.name)

    def _uploads(self) -> list[dict[str, Any]]:
        try:
            return list(self.client.list_multipart_uploads(Bucket=self.name).get("Uploads", ()))
        except self.client.exceptions.NoSuchUpload:  # rclone's way to say that there are none
            return []


@pytest.fixture(scope="session")
def moto() -> Iterator[MotoServer]:
    with MotoServer() as server:
        yield server


@pytest.fixture
def moto_in_environment(moto: MotoServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables that give the server, and keys for it, to what takes them from the environment."""
    for name in ("AWS_ENDPOINT_URL", "OBS_ENDPOINT"):
        monkeypatch.setenv(name, moto.endpoint)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "OBS_ACCESS_KEY_ID", "OBS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, ACCESS_KEY)


@pytest.fixture(scope="session")
def _moto_client(moto: MotoServer) -> Iterator[Any]:
    client = s3_client(moto.endpoint)
    yield client
    client.close()


@pytest.fixture
def bucket(moto: MotoServer, _moto_client: Any) -> Iterator[Bucket]:
    """An empty bucket in moto, which keeps everything in memory: it is emptied afterwards."""
    made = Bucket(f"test-{uuid.uuid4().hex}", moto.endpoint, _moto_client)
    made.client.create_bucket(Bucket=made.name)
    yield made
    made.delete()


@pytest.fixture
def proxy(moto: MotoServer) -> Iterator[FaultProxy]:
    with FaultProxy(HOST, moto.port) as server:
        yield server


@pytest.fixture
def localhost_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """``BUCKET.localhost`` is this machine, which RFC 6761 asks of resolvers and glibc's does not do."""
    resolve = socket.getaddrinfo

    def resolve_locally(host: Any, *arguments: Any, **options: Any) -> Any:
        is_ours = isinstance(host, str) and host.endswith(".localhost")
        return resolve(HOST if is_ours else host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve_locally)


@pytest.fixture(scope="session")
def radosgw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Ceph gateway; only for tests marked ``radosgw``. Not there is a failure, not a skip."""
    folder = tmp_path_factory.mktemp("radosgw")
    port, monitor_port = _free_ports(2)
    try:
        subprocess.run([_RADOSGW, "start", folder, str(port), str(monitor_port)], check=True, timeout=300)
        yield f"http://{HOST}:{port}"
    finally:
        subprocess.run([_RADOSGW, "stop", folder], check=True, timeout=120)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        places = [stack.enter_context(socket.socket()) for _ in range(count)]
        for place in places:
            place.bind((HOST, 0))
        return [place.getsockname()[1] for place in places]


@pytest.fixture(scope="session")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an rclone of this process; only for tests marked ``rclone``. Not there is a failure, not a skip.

    Plain files, real signatures, and no conditions, which it ignores without a word; path-style only.
    """
    command = [
        "rclone",
        "serve",
        "s3",
        "--config",
        "",
        "--addr",
        f"{HOST}:0",
        "--auth-key",
        f"{ACCESS_KEY},{SECRET_KEY}",
    ]
    with subprocess.Popen([*command, tmp_path_factory.mktemp("rclone")], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said: list[str] = []
        while not (endpoint := re.search(rf"http://{re.escape(HOST)}:\d+", said[-1] if said else "")):
            said.append(process.stderr.readline())
            assert said[-1], f"rclone did not start:\n{''.join(said)}"
        # It goes on to complain, and must not stop because nobody reads that.
        draining = threading.Thread(target=process.stderr.read, daemon=True)
        draining.start()
        yield endpoint[0]
        process.terminate()
        draining.join()
