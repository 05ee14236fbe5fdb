"""What happens to hosts and their cables. Each fault counts, by the kernel's own numbers, what it really did.

A fault is begun and ended by the test, or ends with its ``with`` block; one that is not ended goes on for good.
"""

from __future__ import annotations

import json
import re
import shutil
from abc import ABC, abstractmethod

from typing_extensions import Self

from support.hosts.cluster import Cluster, Host, StorageHost, counted
from support.hosts.namespace import Namespace, run

_CARD = "eth0"


class Fault(ABC):
    """A fault; a context manager."""

    @property
    @abstractmethod
    def fired(self) -> int:
        """How often it struck, in its own unit."""

    @abstractmethod
    def begin(self) -> Self:
        """Let it happen."""

    @abstractmethod
    def end(self) -> None:
        """Make it good."""

    def __enter__(self) -> Self:
        return self.begin()

    def __exit__(self, *_: object) -> None:
        self.end()


class LinkDown(Fault):
    """The cable of a host is pulled out; it counts how often its card lost the carrier."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._before = counted(host, "carrier_down_count")

    @property
    def fired(self) -> int:
        return counted(self._host, "carrier_down_count") - self._before

    def begin(self) -> Self:
        self._host.switch.ip("link", "set", self._host.port, "down")
        return self

    def end(self) -> None:
        self._host.switch.ip("link", "set", self._host.port, "up")


class SlowLink(Fault):
    """The cable of a host carries little in both directions; it counts how often a packet had to wait."""

    def __init__(self, host: Host, kilobits: int) -> None:
        self._kilobits = kilobits
        self._ends: list[tuple[Namespace, str]] = [(host.namespace, _CARD), (host.switch, host.port)]
        self._fired = 0

    @property
    def fired(self) -> int:
        """Up to its end, or up to now."""
        return self._fired + sum(self._waited(*end) for end in self._ends)

    def begin(self) -> Self:
        for namespace, card in self._ends:
            shape = ("tbf", "rate", f"{self._kilobits}kbit", "burst", "4kb", "latency", "2s")
            run("tc", "-n", namespace.name, "qdisc", "add", "dev", card, "root", *shape)
        return self

    def end(self) -> None:
        self._fired = self.fired
        for namespace, card in self._ends:
            run("tc", "-n", namespace.name, "qdisc", "del", "dev", card, "root")

    def _waited(self, namespace: Namespace, card: str) -> int:
        shown = json.loads(run("tc", "-n", namespace.name, "-s", "-j", "qdisc", "show", "dev", card))
        return sum(one["overlimits"] for one in shown if one["kind"] == "tbf")


class PacketLoss(Fault):
    """The cable of a host loses packets, in both directions; it counts them.

    What arrives is dropped, by the statistic match of iptables: a sender would be told of what it cannot send.
    """

    def __init__(self, cluster: Cluster, host: Host, share: float) -> None:
        lost = ("-m", "statistic", "--mode", "random", "--probability", str(share), "-j", "DROP")
        others = [one for one in cluster.everyone if one is not host]
        self._rules = [(host, ("-i", _CARD, *lost)), *((one, ("-s", host.address, *lost)) for one in others)]
        self._fired = 0

    @property
    def fired(self) -> int:
        return self._fired + sum(self._dropped(host) for host in {host for host, _ in self._rules})

    def begin(self) -> Self:
        for host, rule in self._rules:
            run(*host.namespace.command("iptables", "-w", "-A", "INPUT", *rule))
        return self

    def end(self) -> None:
        self._fired = self.fired
        for host, rule in self._rules:
            run(*host.namespace.command("iptables", "-w", "-D", "INPUT", *rule))

    def _dropped(self, host: Host) -> int:
        shown = run(*host.namespace.command("iptables", "-w", "-L", "INPUT", "-v", "-n", "-x"))
        return sum(map(int, re.findall(r"^\s*(\d+)\s+\d+\s+DROP\b.*statistic", shown, re.MULTILINE)))


class HostLost(Fault):
    """A host is gone with its processes, memory and disk, for good; it counts the processes that were killed."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._killed = 0

    @property
    def fired(self) -> int:
        return self._killed

    def begin(self) -> Self:
        self._killed = self._host.kill()
        return self

    def end(self) -> None:
        """Nothing makes it good; `Cluster.replace` is another host."""


class StorageReboot(Fault):
    """The storage host is off until the end, and then starts again; it counts how often its server was killed."""

    def __init__(self, storage: StorageHost, *, keeps: bool = True) -> None:
        self._storage = storage
        self._keeps = keeps
        self._fired = 0

    @property
    def fired(self) -> int:
        return self._fired

    def begin(self) -> Self:
        self._storage.power_off()
        self._fired += 1
        return self

    def end(self) -> None:
        if not self._keeps:
            for bucket in self._storage.disk.iterdir():
                shutil.rmtree(bucket)
        self._storage.power_on()
