"""Hosts on this machine: each a network namespace with an address, a disk and a memory of its own, on one switch.

Guarantees: nothing of it can be reached from outside of its namespaces, nor reaches out of them. `Cluster` ends every
process of its hosts and removes namespaces and folders when it is left, however; what a killed test left is removed
by the next `Cluster`. A host that is killed loses its processes, disk and memory at once, and nobody is told: its cable
is cut first. Folders are below that of the test, but for memories, which are on tmpfs.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from typing_extensions import Self

from support.hosts.namespace import MEMORY, PREFIX, Namespace, missing, run, sweep
from support.hosts.running import Running
from support.hosts.running import environment as job_environment
from support.servers.client import ACCESS_KEY, REGION, SECRET_KEY, s3_client
from support.servers.moto_server import MotoServer

T = TypeVar("T")

S3_PORT = 9000
_NETWORK = "10.77.0"
_CARD = "eth0"


class Host:
    def __init__(self, switch: Namespace, number: int, disk: Path, memory: Path) -> None:
        self.number = number
        self.address = f"{_NETWORK}.{number}"
        self.port = f"port{number}"
        self.switch = switch
        self.disk, self.memory = disk, memory
        disk.mkdir()
        memory.mkdir()
        self.started: list[Running] = []
        self._server: MotoServer | None = None
        self.namespace = Namespace.make(f"host{number}")
        self.namespace.ip("link", "add", _CARD, "type", "veth", "peer", "name", self.port, "netns", self.switch.name)
        self.switch.ip("link", "set", self.port, "master", "switch", "up")
        self.namespace.ip("addr", "add", f"{self.address}/24", "dev", _CARD)
        self.namespace.ip("link", "set", _CARD, "up")

    def home(self, pattern: str) -> str:
        return pattern.format(disk=self.disk, memory=self.memory)

    def start(self, *command: object, log: Path, environment: Mapping[str, str] | None = None) -> Running:
        there = {**job_environment(), **(environment or {})}
        there = {name: value for name, value in there.items() if not name.lower().endswith("_proxy")}  # out of reach
        self.started.append(Running(self.namespace.command(*command), log, there, self.disk))
        return self.started[-1]

    def call(self, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Call a function of this process with the network of the host, see `Namespace.call`."""
        return self.namespace.call(function, *arguments, **options)

    @property
    def endpoint(self) -> str:
        return f"http://{self.address}:{S3_PORT}"

    def serve(self) -> None:
        """Start an S3 server in its memory; returns when it answers."""
        self._server = MotoServer(address=self.address, port=S3_PORT)
        self.call(self._server.start)

    def make_bucket(self, name: str) -> None:
        """Make a bucket of its server."""

        def make() -> None:
            with contextlib.closing(s3_client(self.endpoint)) as client:
                client.create_bucket(Bucket=name)

        self.call(make)

    def kill(self) -> int:
        """Lose all it has, without a word to the others; returns how many processes were killed."""
        self.switch.ip("link", "set", self.port, "down")
        killed = self.namespace.kill()
        self._gone()
        return killed

    def remove(self) -> None:
        self.namespace.delete()
        self._gone()

    def _gone(self) -> None:
        for one in self.started:
            one.end()
        if self._server is not None:
            self._server.kill()
            self._server = None
        for folder in (self.disk, self.memory):
            shutil.rmtree(folder, ignore_errors=True)


class LinkDown:
    """A context in which the cable of a host is pulled out; it counts how often the host's card lost the carrier."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._before = self._losses()

    def _losses(self) -> int:
        count = f"/sys/class/net/{_CARD}/carrier_down_count"
        return int(run(*self._host.namespace.command("cat", count)))

    @property
    def fired(self) -> int:
        return self._losses() - self._before

    def __enter__(self) -> Self:
        self._host.switch.ip("link", "set", self._host.port, "down")
        return self

    def __exit__(self, *_: object) -> None:
        self._host.switch.ip("link", "set", self._host.port, "up")


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
        self.storage = self._added()
        self.storage.serve()
        for _ in range(hosts):
            self.add()

    def _added(self) -> Host:
        number = next(self._numbers)
        host = Host(self.switch, number, self._folder / f"disk{number}", self._memory / f"memory{number}")
        self._stack.callback(host.remove)
        return host

    def add(self) -> Host:
        self.hosts.append(self._added())
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
