"""A proxy in front of an S3 server, which fails, stalls or goes away exactly where a test says.

Guarantees: without faults it passes bytes on unchanged, both ways; with one, what reached the server lies there and
nothing else; `FaultProxy.down`, `up`, `release` and `stop` have done it when they return; it never waits for a clock.
It is no model of a server's load: all faults are injected ones. HTTP/1.1 without TLS, on loopback. Any thread.

A client that leaves a stalled upload is noticed if all it sent fits the buffers between, which is so up to 8 MiB; one
that leaves a larger one is noticed when that is released, or when the proxy goes down.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import socket
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

from typing_extensions import Self

from support.servers.exchange import Exchange, ResetError
from support.servers.faults import Request, RequestFault
from support.servers.wire import Head, Peer, reset_at_close

HOST = "127.0.0.1"
_LONG_SECONDS = 30  # for what takes moments, so that a mistake here does not hang a test
_LOGGED = frozenset(
    {"content-length", "content-md5", "content-type", "expect", "host", "if-match", "if-none-match", "range"}
)

T = TypeVar("T")


class FaultProxy:
    """A proxy with faults in it; a context manager.

    Args:
        upstream_host: Where the requests go.
        upstream_port: The port there.

    Attributes:
        without_conditions: Drop ``If-Match`` and ``If-None-Match`` from every request, so that the server acts as one
            that does not know them. Only for servers that check no signatures, which cover these headers.
    """

    def __init__(self, upstream_host: str, upstream_port: int) -> None:
        self.without_conditions = False
        self._connect = functools.partial(Peer.connect, upstream_host, upstream_port)
        self._lock = threading.Lock()
        self._faults: list[RequestFault] = []
        self._requests: list[Request] = []
        self._stalls: set[asyncio.Event] = set()
        self._stalled = threading.Condition(self._lock)
        self._broken: list[BaseException] = []
        # Bound as long as the proxy lives, so that nobody else gets the port while it is down: not even a client that
        # connects to it, which without this may be given the very port as its own and then speak to itself.
        self._place = _bound(0)
        self.port: int = self._place.getsockname()[1]
        self._thread = threading.Thread(target=self._run, name="fault-proxy", daemon=True)
        self._started: concurrent.futures.Future[None] = concurrent.futures.Future()
        # The loop's thread only, from here on.
        self._listener: socket.socket | None = None
        self._clients: dict[asyncio.Task[None], socket.socket] = {}

    @property
    def endpoint(self) -> str:
        """Its URL, for path-style addressing."""
        return f"http://{HOST}:{self.port}"

    @property
    def requests(self) -> list[Request]:
        """Every request whose head came, in the order in which they came."""
        with self._lock:
            return list(self._requests)

    def start(self) -> Self:
        """Start it; it can be started once, and is up."""
        self._thread.start()
        self._started.result(_LONG_SECONDS)
        self.up()
        return self

    def stop(self) -> None:
        """Reset what is open and end it.

        Raises:
            AssertionError: If something in the proxy itself went wrong meanwhile.
        """
        self.down()
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(_LONG_SECONDS)
        self._place.close()
        if self._broken:
            raise AssertionError("the proxy is wrong, not what it tests") from self._broken[0]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def inject(self, fault: RequestFault) -> RequestFault:
        """Add ``fault``, which counts requests from now on, and return it.

        Of two that strike at one request the first one injected happens, and the other one's turn has passed.
        """
        with self._lock:
            self._faults.append(fault)
        return fault

    def clear(self) -> None:
        """Forget all faults; what is stalled stays so."""
        with self._lock:
            self._faults.clear()

    def down(self) -> None:
        """Refuse connections, and reset those that are open; nothing happens if it is down already."""
        self._do(self._go_down())

    def up(self) -> None:
        """Listen again, on the same port; nothing happens if it is up already."""
        self._do(self._go_up())

    def release(self) -> None:
        """Let everything go on that is stalled now."""
        self._do(self._release())

    def wait_stalled(self, count: int = 1, timeout: timedelta = timedelta(seconds=_LONG_SECONDS)) -> None:
        """Return when ``count`` requests are stalled.

        Raises:
            TimeoutError: If that does not come to be.
        """
        with self._stalled:
            if not self._stalled.wait_for(lambda: len(self._stalls) >= count, timeout.total_seconds()):
                raise TimeoutError(f"{len(self._stalls)} requests are stalled, not {count}, after {timeout}")

    def wait_unstalled(self, timeout: timedelta = timedelta(seconds=_LONG_SECONDS)) -> None:
        """Return when nothing is stalled, such as after the clients left.

        Raises:
            TimeoutError: If that does not come to be.
        """
        with self._stalled:
            if not self._stalled.wait_for(lambda: not self._stalls, timeout.total_seconds()):
                raise TimeoutError(f"{len(self._stalls)} requests are still stalled after {timeout}")

    def _do(self, action: Coroutine[object, object, T]) -> T:
        """Run ``action`` in the loop's thread and wait for it."""
        return asyncio.run_coroutine_threadsafe(action, self._loop).result(_LONG_SECONDS)

    def _run(self) -> None:
        asyncio.run(self._live())

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._started.set_result(None)
        await self._over.wait()

    async def _go_up(self) -> None:
        if self._listener is None:
            self._listener = _bound(self.port)
            self._listener.setblocking(False)
            self._listener.listen(128)
            self._loop.add_reader(self._listener, self._accept, self._listener)

    async def _go_down(self) -> None:
        if self._listener is None:
            return
        self._loop.remove_reader(self._listener)
        self._listener.close()
        self._listener = None
        for task, connection in self._clients.items():
            reset_at_close(connection)
            task.cancel()
        if self._clients:
            await asyncio.wait(self._clients)

    async def _release(self) -> None:
        with self._lock:
            for stall in self._stalls:
                stall.set()

    def _accept(self, listener: socket.socket) -> None:
        # Not asyncio's server: that one may have a connection in hand, known to nobody, when it is closed.
        try:
            connection, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        connection.setblocking(False)
        # asyncio leaves this out for a socket that somebody else made; without it, an answer's body waits 40 ms for the
        # client to acknowledge the head.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = asyncio.ensure_future(self._serve(connection))
        self._clients[task] = connection
        task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        self._clients.pop(task).close()
        if not task.cancelled() and (exception := task.exception()) is not None:
            self._broken.append(exception)

    async def _serve(self, connection: socket.socket) -> None:
        """Exchanges on one connection, until one of both sides ends it."""
        client = await Peer.accepted(connection)
        try:
            while await self._exchange(client, await client.head()):
                pass
            await client.close()
        except (ResetError, OSError):
            reset_at_close(connection)
        except EOFError:  # half an answer stays half an answer
            pass
        finally:
            await client.abandon()

    def _exchange(self, client: Peer, head: Head) -> Coroutine[object, object, bool]:
        fault = self._judge(head)
        return Exchange(
            client,
            head,
            fault,
            connect=self._connect,
            without_conditions=self.without_conditions,
            stalling=self._stalling,
        ).run()

    def _judge(self, head: Head) -> RequestFault | None:
        """Log a request, and find what is to happen to it."""
        method, target, _ = head.first_line.split(" ")
        path, _, query = target.partition("?")
        said = {name.lower(): value for name, value in head.fields}
        headers = {name: value for name, value in said.items() if name in _LOGGED or name.startswith("x-amz-")}
        with self._lock:
            struck = [fault for fault in self._faults if fault.strikes(method, target)]
            fault = struck[0] if struck else None
            self._requests.append(Request(method, path, query, fault.action if fault else None, headers))
        return fault

    @contextmanager
    def _stalling(self, released: asyncio.Event) -> Iterator[None]:
        """Have a request among those that `release` lets go on."""
        with self._stalled:
            self._stalls.add(released)
            self._stalled.notify_all()
        try:
            yield
        finally:
            with self._stalled:
                self._stalls.discard(released)
                self._stalled.notify_all()


def _bound(port: int) -> socket.socket:
    """A socket at the port, shared with those of ours that do not listen."""
    place = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    place.bind((HOST, port))
    return place
