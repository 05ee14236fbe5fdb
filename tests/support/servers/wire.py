"""HTTP/1.1 as it goes over the wire: heads, bodies, and connections that can be reset.

Guarantees: a head that is read and encoded again says the same in the same order; a body's bytes, chunk sizes and
trailers included, are passed on as they came. Nothing is decoded. One event loop.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

# How many bytes a body has, or how its end is known.
Framing = int | Literal["chunked", "until_close"]

_PIECE_BYTES = 1 << 18
# What is taken from a peer before it is asked for; then its own sending stops.
_READ_AHEAD_BYTES = 8 << 20
# These are between two neighbours; Transfer-Encoding is too, but bodies are passed on in the encoding they came in.
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "proxy-connection", "te", "upgrade"})


@dataclass(frozen=True)
class Head:
    """What comes before the body of a request or an answer."""

    first_line: str
    fields: tuple[tuple[str, str], ...]

    def get(self, name: str) -> str:
        """The first value of a field, whose name is given in lower case; empty if there is none."""
        return next((value for field, value in self.fields if field.lower() == name), "")

    def passed_on(self, *, without: Collection[str] = (), connection: str | None = None) -> bytes:
        """The head for the next hop, without some more fields, and with that ``Connection`` field if any."""
        dropped = _HOP_BY_HOP.union(without)
        fields = [f"{name}: {value}" for name, value in self.fields if name.lower() not in dropped]
        if connection is not None:
            fields.append(f"Connection: {connection}")
        return "\r\n".join([self.first_line, *fields, "", ""]).encode("latin-1")

    @property
    def status(self) -> int:
        """That of an answer."""
        return int(self.first_line.split(" ")[1])

    @property
    def expects_continue(self) -> bool:
        """Whether a client may wait for a 100 before it sends its body."""
        return self.get("expect").lower() == "100-continue"

    @property
    def stays_open(self) -> bool:
        """Whether a client's connection is for more requests after this one."""
        return self.first_line.endswith("HTTP/1.1") and self.get("connection").lower() != "close"

    def request_framing(self) -> Framing:
        """How long a request's body is."""
        return "chunked" if self._is_chunked else int(self.get("content-length") or 0)

    def reply_framing(self, method: str) -> Framing:
        """How long an answer's body is, to a request with that method."""
        if method == "HEAD" or self.status in (204, 304):
            return 0
        if self._is_chunked:
            return "chunked"
        length = self.get("content-length")
        return int(length) if length else "until_close"

    @property
    def _is_chunked(self) -> bool:
        return self.get("transfer-encoding").lower() == "chunked"


class _Reader(asyncio.StreamReader):
    """A reader that says at once when nothing more comes, however much is still to be read."""

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=limit, loop=loop)
        self.left = asyncio.Event()

    def feed_eof(self) -> None:
        super().feed_eof()
        self.left.set()

    def set_exception(self, exc: Exception) -> None:
        super().set_exception(exc)
        self.left.set()


class Peer:
    """One end of a connection.

    Args:
        reader: What it sends.
        writer: Where to answer.
    """

    def __init__(self, reader: _Reader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, host: str, port: int) -> Peer:
        """Connect to a server."""
        return await cls._opened(host=host, port=port)

    @classmethod
    async def accepted(cls, connection: socket.socket) -> Peer:
        """A client's connection, which closes with it."""
        return await cls._opened(sock=connection)

    @classmethod
    async def _opened(cls, **where: Any) -> Peer:
        loop = asyncio.get_running_loop()
        reader = _Reader(limit=_READ_AHEAD_BYTES // 2, loop=loop)  # stops at twice its limit
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.create_connection(lambda: protocol, **where)
        return cls(reader, asyncio.StreamWriter(transport, protocol, reader, loop))

    @property
    def left(self) -> asyncio.Event:
        """Set when the peer closed its end, and not more than the read-ahead is unread before that."""
        return self._reader.left

    async def head(self) -> Head:
        """Read the next head.

        Raises:
            asyncio.IncompleteReadError: If the peer left.
        """
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = [line.partition(":") for line in lines[1:] if line]
        return Head(lines[0], tuple((name, value.strip()) for name, _, value in fields))

    async def body(self, framing: Framing) -> AsyncIterator[bytes]:
        """Read a body in pieces, which joined are what came.

        Raises:
            asyncio.IncompleteReadError: If the peer left in the middle of it.
        """
        if framing == "chunked":
            async for piece in self._chunks():
                yield piece
        elif framing == "until_close":
            while piece := await self._reader.read(_PIECE_BYTES):
                yield piece
        else:
            async for piece in self._counted(framing):
                yield piece

    async def _counted(self, left_bytes: int) -> AsyncIterator[bytes]:
        while left_bytes:
            piece = await self._reader.read(min(left_bytes, _PIECE_BYTES))
            if not piece:
                raise asyncio.IncompleteReadError(b"", left_bytes)
            left_bytes -= len(piece)
            yield piece

    async def _chunks(self) -> AsyncIterator[bytes]:
        while True:
            line = await self._reader.readuntil(b"\r\n")
            size_bytes = int(line.split(b";")[0], 16)
            if not size_bytes:
                break
            yield line + await self._reader.readexactly(size_bytes + len(b"\r\n"))
        while line != b"\r\n":  # the last chunk's own line, then trailers, then an empty line
            yield line
            line = await self._reader.readuntil(b"\r\n")
        yield line

    async def send(self, data: bytes) -> None:
        """Send ``data`` and return when most of it is on its way."""
        self._writer.write(data)
        await self._writer.drain()

    async def abandon(self) -> None:
        """Close the connection; what is not sent yet is lost. Nothing happens if it is closed already."""
        self._writer.transport.abort()
        await self._closed()

    async def close(self) -> None:
        """Send what is left, then end the connection."""
        self._writer.close()
        await self._closed()

    async def finish(self) -> None:
        """Say that nothing more comes, and let the peer send what it has to, so that it gets to read the answer."""
        self._writer.write_eof()
        while await self._reader.read(_PIECE_BYTES):
            pass
        await self.close()

    async def _closed(self) -> None:
        with suppress(OSError):  # how a connection ended is no news once it is closed
            await self._writer.wait_closed()


def reset_at_close(connection: socket.socket) -> None:
    """Make closing the connection a reset, which takes even what the other side has not read yet."""
    with suppress(OSError):  # closed already
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
