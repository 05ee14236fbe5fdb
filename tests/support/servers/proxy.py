"""A proxy in front of an S3 server, which fails, stalls or goes away exactly where a test says.

Guarantees: without faults it passes requests and answers on, each when it is whole; with one, what reached the server
lies there and nothing else; `FaultProxy.down` and `up` have done it when they return; it never waits for a clock. All
faults are injected ones. HTTP/1.1 without TLS, on loopback. Any thread.
"""

from __future__ import annotations

import http.client
import select
import socket
import struct
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler

from typing_extensions import Self

from ckptkit.testing.faults import Call
from support.servers.faults import REFUSALS, Request, RequestFault

HOST = "127.0.0.1"
_LONG_SECONDS = 30  # for what takes moments, so that a mistake here does not hang a test
_OF_ONE_HOP = frozenset({"connection", "keep-alive", "te", "transfer-encoding", "content-length", "expect"})


class ResetError(ConnectionError):
    """The client's connection is to be reset, by a fault."""


class _Handler(BaseHTTPRequestHandler):
    """One connection of a client; each request has a connection to the server of its own."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: FaultProxy  # type: ignore[assignment]

    def log_message(self, *_: object) -> None:
        pass

    def _exchange(self) -> None:
        fault = self.server.judge(self.requestline, dict(self.headers.items()))
        action = fault.action if fault else None
        if fault and action in ("reset_before", "reset_mid_body"):
            if action == "reset_mid_body":
                self.rfile.read(int(self.headers.get("Content-Length", 0)) // 2)
            fault.happened()
            raise ResetError
        assert "Transfer-Encoding" not in self.headers, "no client of ours sends chunks"
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if fault and action in REFUSALS:
            refusal = REFUSALS[action]
            fault.happened()
            self._answer(f"HTTP/1.1 {refusal.status}", {"Content-Type": "application/xml"}, refusal.document())
            return
        if fault and action == "stall_request":
            fault.happened()
            _stall(self.connection)
        status, fields, data = self._passed_on(body)
        if fault and action == "reset_after":
            fault.happened()
            raise ResetError
        if not (fault and action in ("truncate", "stall_body") and data):
            self._answer(status, fields, data)
            return
        fault.happened()
        self._answer(status, fields, data, sent_bytes=len(data) // 2)
        if action == "stall_body":
            _stall(self.connection)
        self.close_connection = True

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _exchange  # noqa: N815 - http.server's names

    def _passed_on(self, body: bytes) -> tuple[str, dict[str, str], bytes]:
        """The server's answer: its first line, its fields and its body."""
        connection = http.client.HTTPConnection(*self.server.upstream, timeout=_LONG_SECONDS)
        try:
            connection.putrequest(*self.requestline.split(" ")[:2], skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _OF_ONE_HOP:
                    connection.putheader(name, value)
            if body or self.command in ("PUT", "POST"):
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            fields = {name: value for name, value in answer.getheaders() if name.lower() not in _OF_ONE_HOP}
            if self.command == "HEAD":
                fields["Content-Length"] = answer.headers["Content-Length"] or "0"
            return f"HTTP/1.1 {answer.status} {answer.reason}", fields, answer.read()
        finally:
            connection.close()

    def _answer(self, status: str, fields: dict[str, str], data: bytes, sent_bytes: int | None = None) -> None:
        has_no_body = self.command == "HEAD" or status.split(" ")[1] in ("204", "304")
        length = {} if has_no_body else {"Content-Length": str(len(data))}
        closes = {"Connection": "close"} if self.close_connection else {}
        head = [status, *(f"{name}: {value}" for name, value in {**fields, **length, **closes}.items()), "", ""]
        self.wfile.write("\r\n".join(head).encode("latin-1") + (b"" if has_no_body else data[:sent_bytes]))


class FaultProxy:
    """A proxy with faults in it; a context manager."""

    def __init__(self, upstream_host: str, upstream_port: int) -> None:
        self.upstream = (upstream_host, upstream_port)
        self._lock = threading.Lock()
        self._faults: list[RequestFault] = []
        self._requests: list[Request] = []
        self._broken: list[BaseException] = []
        # Bound as long as the proxy lives, so that nobody else gets the port while it is down: not even a client that
        # connects to it, which without this may be given the very port as its own and then speak to itself.
        self._place = _bound(0)
        self.port: int = self._place.getsockname()[1]
        self._listener: socket.socket | None = None
        self._accepting: threading.Thread | None = None
        self._clients: dict[threading.Thread, socket.socket] = {}

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def requests(self) -> list[Request]:
        """Every request whose head came, in the order in which they came."""
        with self._lock:
            return list(self._requests)

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()
        self._place.close()
        if self._broken:
            raise AssertionError("the proxy is wrong, not what it tests") from self._broken[0]

    def inject(self, fault: RequestFault) -> RequestFault:
        """Add ``fault``, which counts requests from now on, and return it.

        Of two that strike at one request the first one injected happens, and the other one's turn has passed.
        """
        with self._lock:
            self._faults.append(fault)
        return fault

    def clear(self) -> None:
        with self._lock:
            self._faults.clear()

    def down(self) -> None:
        """Refuse connections, and reset those that are open; nothing happens if it is down already."""
        if self._listener is None or self._accepting is None:
            return
        self._listener.shutdown(socket.SHUT_RDWR)  # ends the thread that accepts
        self._accepting.join(_LONG_SECONDS)
        self._listener.close()
        self._listener = None
        with self._lock:
            clients = dict(self._clients)
        for thread, connection in clients.items():
            with suppress(OSError):  # closed already
                _reset_at_close(connection)
                connection.shutdown(socket.SHUT_RD)  # its thread hears that the client has left
            thread.join(_LONG_SECONDS)

    def up(self) -> None:
        """Listen again, on the same port; nothing happens if it is up already."""
        if self._listener is None:
            self._listener = _bound(self.port)
            self._listener.listen(128)
            self._accepting = threading.Thread(target=self._accept, args=(self._listener,), daemon=True)
            self._accepting.start()

    def judge(self, line: str, fields: dict[str, str]) -> RequestFault | None:
        method, target, _ = line.split(" ")
        path, _, query = target.partition("?")
        headers = {name.lower(): value for name, value in fields.items()}
        with self._lock:
            struck = [fault for fault in self._faults if fault.strikes(Call(method, (target,)))]
            fault = struck[0] if struck else None
            self._requests.append(Request(method, path, query, fault.action if fault else None, headers))
        return fault

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, address = listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection, address), daemon=True)
            with self._lock:
                self._clients[thread] = connection
            thread.start()

    def _serve(self, connection: socket.socket, address: tuple[str, int]) -> None:
        with connection:
            try:
                _Handler(connection, address, self)  # type: ignore[arg-type]
            except (OSError, http.client.HTTPException):
                with suppress(OSError):
                    _reset_at_close(connection)
            except BaseException as error:  # noqa: BLE001 - told when the proxy ends
                self._broken.append(error)
        with self._lock:
            del self._clients[threading.current_thread()]


def _stall(connection: socket.socket) -> None:
    """Wait until the client leaves."""
    select.select([connection], [], [])
    raise ConnectionResetError("the client left a stalled request")


def _bound(port: int) -> socket.socket:
    """A socket at the port, shared with those of ours that do not listen."""
    place = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    place.bind((HOST, port))
    return place


def _reset_at_close(connection: socket.socket) -> None:
    """Make closing the connection a reset, which takes even what the other side has not read yet."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
