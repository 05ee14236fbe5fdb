"""How fast shards go to a bucket and come back: ckptkit beside the clients that it could have been made of.

Two files of 256 MiB (a checkpoint's shards have up to 1 GiB), parts of 16 MiB, four at once, from memory and into
memory that was there before. Each client runs in a process of its own, several times in turn with the others, against
one server; rates are medians of a second put and get, memory is what the process's peak grew by. ckptkit's parts come
out of a stream, as in a save, without the digest. CKPTKIT_BENCH_S3=URL measures against a server of one's own, which
needs the bucket "bench" and the keys "testing".
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from statistics import median
from typing import Any

from .measurement import CHECKOUT
from .options import MIB, Options
from .sink import sink
from .table import table

BUCKET = "bench"
FILES = 2
FILE_BYTES = 256 * MIB
PART_BYTES = 16 * MIB
LANES = 4
KEYS = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
CLIENTS = ("ckptkit", "botocore", "obstore", "s3fs")


class Memory:
    """What is sent, and where it comes back to."""

    def __init__(self) -> None:
        self.source = [bytearray(bytes(range(256)) * (FILE_BYTES // 256)) for _ in range(FILES)]
        self.target = [bytearray(b"\x01") * FILE_BYTES for _ in range(FILES)]

    def parts(self, of: list[bytearray]) -> list[tuple[int, int, memoryview]]:
        """File, offset and memory of every part."""
        starts = range(0, FILE_BYTES, PART_BYTES)
        return [(file, at, memoryview(one)[at : at + PART_BYTES]) for file, one in enumerate(of) for at in starts]


class Stream:
    """A file's bytes as a save gives them."""

    def __init__(self, data: bytearray) -> None:
        self._data = memoryview(data)
        self._at = 0

    def readinto(self, buffer: memoryview, /) -> int:
        count = min(len(buffer), len(self._data) - self._at)
        buffer[:count] = self._data[self._at : self._at + count]
        self._at += count
        return count


def ckptkit(url: str, memory: Memory) -> tuple[Callable[[str], None], Callable[[], None]]:
    """Through `Storage.write` and `Storage.read_into`, whose windows a restore uses."""
    from ckptkit.storage import open_storage

    options = {"key": "testing", "secret": "testing", "endpoint_url": url, "default_block_size": PART_BYTES}
    storage = open_storage(f"s3://{BUCKET}/files", options)

    def put(label: str) -> None:
        for number, data in enumerate(memory.source):
            storage.write(f"{label}/{number}", Stream(data), FILE_BYTES)

    def get() -> None:
        for number, data in enumerate(memory.target):
            view, at = memoryview(data), 0
            while at < FILE_BYTES:
                at += storage.read_into(f"get/{number}", [view[at : at + storage.window_bytes]], at)

    return put, get


def botocore(url: str, memory: Memory) -> tuple[Callable[[str], None], Callable[[], None]]:
    """By hand: every part of every file a job of one pool, bodies over the memory itself."""
    import botocore.session
    from botocore.config import Config

    config = Config(
        s3={"addressing_style": "path", "payload_signing_enabled": False},
        max_pool_connections=16,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    session = botocore.session.Session()
    client = session.create_client("s3", endpoint_url=url, region_name="us-east-1", config=config, **KEYS)

    class Body:
        def __init__(self, data: memoryview) -> None:
            self._data, self._at = data, 0

        def __len__(self) -> int:
            return len(self._data)

        def read(self, size: int = -1) -> memoryview:
            block = self._data[self._at : self._at + (len(self._data) if size is None or size < 0 else size)]
            self._at += len(block)
            return block

        def seek(self, offset: int, whence: int = 0) -> int:
            self._at = offset + (0, self._at, len(self._data))[whence]
            return self._at

        def tell(self) -> int:
            return self._at

    def put(label: str) -> None:
        names = [f"files/{label}/{number}" for number in range(FILES)]
        ids = [client.create_multipart_upload(Bucket=BUCKET, Key=name)["UploadId"] for name in names]

        def part(job: tuple[int, int, memoryview]) -> tuple[int, int, str]:
            file, at, data = job
            number = at // PART_BYTES + 1
            answer = client.upload_part(
                Bucket=BUCKET, Key=names[file], UploadId=ids[file], PartNumber=number, Body=Body(data)
            )
            return file, number, answer["ETag"]

        with ThreadPoolExecutor(LANES) as pool:
            done = list(pool.map(part, memory.parts(memory.source)))
        for file, name in enumerate(names):
            parts = [{"PartNumber": number, "ETag": tag} for of, number, tag in done if of == file]
            client.complete_multipart_upload(
                Bucket=BUCKET, Key=name, UploadId=ids[file], MultipartUpload={"Parts": parts}
            )

    def get() -> None:
        def part(job: tuple[int, int, memoryview]) -> None:
            file, at, data = job
            span = f"bytes={at}-{at + len(data) - 1}"
            body = client.get_object(Bucket=BUCKET, Key=f"files/get/{file}", Range=span)["Body"]
            done = 0
            while count := body.readinto(data[done:]):
                done += count

        with ThreadPoolExecutor(LANES) as pool:
            list(pool.map(part, memory.parts(memory.target)))

    return put, get


def obstore(url: str, memory: Memory) -> tuple[Callable[[str], None], Callable[[], None]]:
    """Its multipart put, and ranges from a pool."""
    import obstore as client
    from obstore.store import S3Store

    store = S3Store(
        BUCKET,
        endpoint=url,
        access_key_id="testing",
        secret_access_key="testing",
        region="us-east-1",
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
        config={"unsigned_payload": "true"},
    )

    def put(label: str) -> None:
        for number, data in enumerate(memory.source):
            place = f"files/{label}/{number}"
            client.put(store, place, memoryview(data), use_multipart=True, chunk_size=PART_BYTES, max_concurrency=LANES)

    def get() -> None:
        def part(job: tuple[int, int, memoryview]) -> None:
            file, at, data = job
            data[:] = memoryview(client.get_range(store, f"files/get/{file}", start=at, length=len(data)))

        with ThreadPoolExecutor(LANES) as pool:
            list(pool.map(part, memory.parts(memory.target)))

    return put, get


def s3fs(url: str, memory: Memory) -> tuple[Callable[[str], None], Callable[[], None]]:
    """Open files, as most libraries use it."""
    import s3fs as client

    system = client.S3FileSystem(
        key="testing",
        secret="testing",
        endpoint_url=url,
        client_kwargs={"region_name": "us-east-1"},
        config_kwargs={
            "s3": {"addressing_style": "path", "payload_signing_enabled": False},
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
        },
        max_concurrency=LANES,
    )

    def put(label: str) -> None:
        for number, data in enumerate(memory.source):
            with system.open(f"{BUCKET}/files/{label}/{number}", "wb", block_size=PART_BYTES) as file:
                file.write(memoryview(data))

    def get() -> None:
        for number, data in enumerate(memory.target):
            name = f"{BUCKET}/files/get/{number}"
            with system.open(name, "rb", block_size=PART_BYTES, cache_type="none") as file:
                file.readinto(memoryview(data))

    return put, get


def measure_client(name: str, url: str, label: str) -> dict[str, Any]:
    """Two puts and gets of everything; the first of each makes connections and memory."""
    memory = Memory()
    put, get = globals()[name](url, memory)
    found: dict[str, Any] = {"client": name}
    for verb, action in (("put", lambda turn: put(f"{label}-{turn}")), ("get", lambda turn: get())):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for turn in range(2):
            cpu, begun = time.process_time(), time.perf_counter()
            action(turn)
            seconds = time.perf_counter() - begun
        found[f"{verb}_mb_s"] = FILES * FILE_BYTES / seconds / 1e6
        found[f"{verb}_cpu_s_gb"] = (time.process_time() - cpu) / (FILES * FILE_BYTES / 1e9)
        found[f"{verb}_extra_mib"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) / 1024
    if memory.target != memory.source:
        raise RuntimeError(f"{name} brought back other bytes")
    return found


def run(options: Options) -> Iterator[list[dict[str, Any]]]:
    """Every client that is installed, in turn."""
    found: list[dict[str, Any]] = []
    clients = [name for name in CLIENTS if find_spec(name)]
    files = {f"files/get/{number}": FILE_BYTES for number in range(FILES)}
    given = os.environ.get("CKPTKIT_BENCH_S3")
    with sink(BUCKET, files) as (server, url):
        for round_number in range(1 if options.quick else options.rounds):
            for name in clients if round_number % 2 == 0 else reversed(clients):
                label = f"put-{round_number}-{name}"
                command = [sys.executable, "-m", "benchmarks.bench.transfer", name, given or url, label]
                done = subprocess.run(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, check=True)
                found.append({"server": given or server, **json.loads(done.stdout)})
                yield found


def tables(found: list[dict[str, Any]]) -> str:
    """Medians, and rates as a part of the fastest other client's."""
    columns = ("put_mb_s", "get_mb_s", "put_cpu_s_gb", "get_cpu_s_gb", "put_extra_mib", "get_extra_mib")
    rows = {}
    for name in dict.fromkeys(one["client"] for one in found):
        mine = [one for one in found if one["client"] == name]
        rows[name] = {column: median(one[column] for one in mine) for column in columns}
    others = [row for name, row in rows.items() if name != "ckptkit"]
    best = {column: max(row[column] for row in others) for column in columns[:2]}
    lines = [
        [
            name,
            *(f"{row[column]:.0f} ({row[column] / best[column]:.2f})" for column in columns[:2]),
            *(f"{row[column]:.2f}" for column in columns[2:4]),
            *(f"{row[column]:.0f}" for column in columns[4:]),
        ]
        for name, row in rows.items()
    ]
    heads = ["client", "put MB/s", "get MB/s", "put CPU s/GB", "get CPU s/GB", "put extra MiB", "get extra MiB"]
    return f"Server: {found[0]['server']}\n\n" + table(heads, lines)


if __name__ == "__main__":
    print(json.dumps(measure_client(*sys.argv[1:4])))
