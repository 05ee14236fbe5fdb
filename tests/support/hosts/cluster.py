"""Hosts on this machine: each a network namespace with an address, a disk and a memory of its own, on one switch.

Guarantees: nothing of it can be reached from outside of its namespaces, nor reaches out of them. `Cluster` ends every
process of its hosts and removes namespaces and folders when it is left, however; what a killed test left is removed
by the next `Cluster`. A host that is killed loses its processes, disk and memory at once, and nobody is told: its cable
is cut first. Folders are below that of the test, but for memories, which are on tmpfs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from typing_extensions import Self

from support.hosts.namespace import MEMORY, PREFIX, Namespace, missing, run, sweep
from support.hosts.running import Running
from support.servers.client import ACCESS_KEY, REGION, SECRET_KEY, s3_client
from support.servers.fixtures import Bucket
from support.servers.moto_server import MotoServer

T = TypeVar("T")

TESTS = Path(__file__).parents[2]
S3_PORT = 9000
_NETWORK = "10.77.0"
_CARD = "eth0"


class Host:
    """One host."""

    def __init__(self, switch: Namespace, number: int, disk: Path, memory: Path) -> None:
        self.number = number
        self.address = f"{_NETWORK}.{number}"
        self.port = f"port{number}"
        self.switch = switch
        self.folders = {"disk": disk, "memory": memory}
        for folder in self.folders.values():
            folder.mkdir()
        self.started: list[Running] = []
        self._server: MotoServer | None = None
        self.namespace = Namespace.make(f"host{number}")
        self._plug_in()

    def _plug_in(self) -> None:
        self.namespace.ip("link", "add", _CARD, "type", "veth", "peer", "name", self.port, "netns", self.switch.name)
        self.switch.ip("link", "set", self.port, "master", "switch", "up")
        self.namespace.ip("addr", "add", f"{self.address}/24", "dev", _CARD)
        self.namespace.ip("link", "set", _CARD, "up")

    @property
    def disk(self) -> Path:
        """Its disk."""
        return self.folders["disk"]

    @property
    def memory(self) -> Path:
        """Its memory that is a folder."""
        return self.folders["memory"]

    def home(self, pattern: str) -> str:
        """A root of a run as this host has it."""
        return pattern.format(**self.folders)

    def start(self, *command: object, log: Path, environment: Mapping[str, str] | None = None) -> Running:
        """Start a command on it, in its disk."""
        there = {**_environment(), **(environment or {})}
        self.started.append(Running(self.namespace.command(*command), log, there, self.disk))
        return self.started[-1]

    def call(self, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Call a function of this process with the network of the host, see `Namespace.call`."""
        return self.namespace.call(function, *arguments, **options)

    @property
    def endpoint(self) -> str:
        """The URL of its S3 server for the other hosts."""
        return f"http://{self.address}:{S3_PORT}"

    def serve(self, folder: Path) -> None:
        """Start an S3 server with what is in a folder of its own; returns when it answers."""
        folder.mkdir(exist_ok=True)
        server = MotoServer(address=self.address, port=S3_PORT, folder=folder)
        self.call(server.start)
        self._server = server

    def look(self, function: Callable[[Bucket], T], bucket: str) -> T:
        """Call a function with a bucket of its server as it really is."""

        def looking() -> T:
            with contextlib.closing(s3_client(self.endpoint)) as client:
                return function(Bucket(bucket, self.endpoint, client))

        return self.call(looking)

    def make_bucket(self, name: str) -> None:
        """Make an empty bucket at its server."""
        self.look(lambda bucket: bucket.client.create_bucket(Bucket=bucket.name), name)

    def reaches(self, other: Host, port: int = S3_PORT) -> bool:
        """Whether something that listens there answers within a second."""
        code = f"import socket; socket.create_connection(({other.address!r}, {port}), 1)"
        log = self.disk.with_name(f"{self.disk.name}.reaches.log")
        return self.start(sys.executable, "-c", code, log=log).end() == 0

    def kill(self) -> int:
        """Lose all it has, without a word to the others; returns how many processes were killed."""
        self.switch.ip("link", "set", self.port, "down")
        killed = self.namespace.kill()
        self._gone()
        return killed

    def remove(self) -> None:
        """End all processes, and remove it."""
        self.namespace.delete()
        self._gone()

    def _gone(self) -> None:
        """All processes are: take note of it, and remove what they left."""
        for one in self.started:
            one.end()
        if self._server is not None:
            self._server.kill()
            self._server = None
        for folder in self.folders.values():
            shutil.rmtree(folder, ignore_errors=True)


class StorageHost(Host):
    """A host with an S3 server, of which everything is kept on its disk."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.serve(self.disk)

    def power_off(self) -> None:
        """End the server, without a word to those who are connected."""
        assert self._server is not None
        self.switch.ip("link", "set", self.port, "down")
        server, self._server = self._server, None
        assert server.kill() == -9

    def power_on(self) -> None:
        """Start the server again, at the same address."""
        self.switch.ip("link", "set", self.port, "up")
        self.serve(self.disk)


class Cluster:
    """Some hosts and a storage host; a context manager."""

    def __init__(self, hosts: int, folder: Path) -> None:
        if reason := missing():
            raise RuntimeError(reason)
        sweep()
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self._numbers = iter(range(1, 200))
        self.hosts: list[Host] = []
        try:
            self._make(hosts)
        except BaseException:
            self._stack.close()
            raise

    def _make(self, hosts: int) -> None:
        self._memory = Path(tempfile.mkdtemp(dir=MEMORY, prefix=f"{PREFIX}-{os.getpid()}-"))
        self._stack.callback(shutil.rmtree, self._memory)
        self._folder.mkdir(parents=True, exist_ok=True)
        self.switch = Namespace.make("switch")
        self._stack.callback(self.switch.delete)
        self.switch.ip("link", "add", "switch", "type", "bridge")
        self.switch.ip("link", "set", "switch", "up")
        self.storage = self._added(StorageHost)
        for _ in range(hosts):
            self.add()

    def _added(self, kind: type[T]) -> T:
        number = next(self._numbers)
        host = kind(self.switch, number, self._folder / f"disk{number}", self._memory / f"memory{number}")
        self._stack.callback(host.remove)
        return host

    def add(self) -> Host:
        """Another host, of which disk and memory are empty."""
        self.hosts.append(self._added(Host))
        return self.hosts[-1]

    def replace(self, lost: Host) -> Host:
        """A new host, at another address, in the place of one that was killed."""
        place = self.hosts.index(lost)
        new = self.add()
        self.hosts.remove(new)
        self.hosts[place] = new
        return new

    def variables(self) -> dict[str, str]:
        """What a job has in its environment to reach the storage."""
        return {
            "AWS_ENDPOINT_URL": self.storage.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": REGION,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _environment() -> dict[str, str]:
    """This tree on the path, quiet, one thread per kernel, and no proxy, which a host could not reach."""
    own = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    python_path = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    quiet = {"GLOG_v": "3", "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
    soon = {"MS_RETRY_INTERVAL_LOWER": "1", "MS_RETRY_INTERVAL_UPPER": "1"}
    return {**own, **quiet, **soon, "PYTHONPATH": python_path, "PATH": path}


def counted(host: Host, *path: str) -> int:
    """A number that the kernel has about the host's network card."""
    return int(run(*host.namespace.command("cat", "/".join(["/sys/class/net", _CARD, *path]))))
