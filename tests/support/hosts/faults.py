"""What happens to hosts and their cables. Each fault counts, by the kernel's own numbers, what it really did.

A fault is begun and ended by the test, or ends with its ``with`` block; one that is not ended goes on for good.
"""

from typing_extensions import Self

from support.hosts.cluster import Host, counted


class LinkDown:
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

    def __enter__(self) -> Self:
        return self.begin()

    def __exit__(self, *_: object) -> None:
        self.end()
