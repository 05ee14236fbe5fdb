"""One request through the fault proxy: to the server and back, or as far as a fault lets it come.

Guarantees: without a fault the server gets the request's bytes and the client the answer's; an answer that the server
gives before it has the whole body is passed on at once. Each request has a connection to the server of its own, so that
none is ever found closed. One event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager, aclosing

from support.servers.faults import REFUSALS, Refusal, RequestFault
from support.servers.wire import CONTINUE, Framing, Head, Peer

# Entered as long as a request stalls; the event lets it go on.
Stalling = Callable[[asyncio.Event], AbstractContextManager[None]]


class ResetError(Exception):
    """The client's connection is to be reset, by a fault."""


class Exchange:
    """One request and its answer.

    Args:
        client: Whose request it is; its body is not read yet.
        head: The request.
        fault: What is to happen to it, if anything.
        connect: Connects to the server.
        without_conditions: Drop ``If-Match`` and ``If-None-Match``.
        stalling: Entered as long as it stalls.
    """

    def __init__(
        self,
        client: Peer,
        head: Head,
        fault: RequestFault | None,
        *,
        connect: Callable[[], Awaitable[Peer]],
        without_conditions: bool,
        stalling: Stalling,
    ) -> None:
        self._client = client
        self._head = head
        self._method = head.first_line.split(" ")[0]
        self._fault = fault
        self._connect = connect
        self._dropped = ("if-match", "if-none-match") if without_conditions else ()
        self._stalling = stalling
        self._told_to_continue = not head.expects_continue

    async def run(self) -> bool:
        """Do it; returns whether the client's connection is good for another request.

        Raises:
            ResetError: If the fault says so.
            OSError: If one of both sides broke off.
            EOFError: The same.
        """
        action = self._fault.action if self._fault else None
        if action is not None and action in REFUSALS:
            return await self._refuse(REFUSALS[action])
        if action == "reset_before":
            raise self._reset()
        if action == "reset_mid_body":
            await self._take_half()
            raise self._reset()
        if action == "stall_request":
            await self._stall()
        server = await self._connect()
        try:
            reply, has_whole_request = await self._ask(server)
            stays_open = has_whole_request and self._head.stays_open
            stays_open = await self._answer(server, reply, stays_open=stays_open) and stays_open
        finally:
            await server.abandon()
        if not has_whole_request:
            await self._client.finish()
        return stays_open

    def _reset(self) -> ResetError:
        self._happened()
        return ResetError()

    def _happened(self) -> None:
        assert self._fault is not None
        self._fault.happened()

    async def _refuse(self, refusal: Refusal) -> bool:
        """Answer with an error in the server's place."""
        async for _ in self._request_body(self._head.request_framing()):
            pass
        document = refusal.document()
        fields = (("Content-Type", "application/xml"), ("Content-Length", str(len(document))))
        head = Head(f"HTTP/1.1 {refusal.status}", fields)
        self._happened()
        await self._client.send(
            head.passed_on(connection=self._connection(self._head.stays_open))
            + (b"" if self._method == "HEAD" else document)
        )
        return self._head.stays_open

    async def _take_half(self) -> None:
        """Read half of the request's body, or its first chunk."""
        framing = self._head.request_framing()
        if isinstance(framing, int):
            async for _ in self._request_body(framing // 2):
                pass
        else:
            async with aclosing(self._request_body(framing)) as body:
                await anext(body)

    async def _request_body(self, framing: Framing) -> AsyncGenerator[bytes, None]:
        """The request's body, for which the client may have to be asked first."""
        await self._tell_to_continue()
        async for piece in self._client.body(framing):
            yield piece

    async def _tell_to_continue(self) -> None:
        if not self._told_to_continue:
            self._told_to_continue = True
            await self._client.send(CONTINUE)

    async def _stall(self) -> None:
        """Do nothing until released.

        Raises:
            ConnectionResetError: If the client left before that.
        """
        self._happened()
        released = asyncio.Event()
        with self._stalling(released):
            await _first_of(released, self._client.left)
        if not released.is_set():
            raise ConnectionResetError("the client left a stalled request")

    async def _ask(self, server: Peer) -> tuple[Head, bool]:
        """Pass the request on; returns the answer's head and whether the client got rid of its whole request."""
        await server.send(self._head.passed_on(without=self._dropped, connection="close"))
        sending = asyncio.ensure_future(self._send_body(server))
        hearing = asyncio.ensure_future(self._hear(server))
        try:
            await asyncio.wait((sending, hearing), return_when=asyncio.FIRST_COMPLETED)
            if not hearing.done():
                await sending
            return await hearing, sending.done()
        finally:
            sending.cancel()
            hearing.cancel()
            await asyncio.gather(sending, hearing, return_exceptions=True)

    async def _send_body(self, server: Peer) -> None:
        # Not asked for with a 100: that is the server's to say, or the client loses patience.
        async for piece in self._client.body(self._head.request_framing()):
            await server.send(piece)

    async def _hear(self, server: Peer) -> Head:
        """The head of the server's answer; of what it says before, the client hears one 100 (moto says it twice)."""
        while (head := await server.head()).status < 200:
            await self._tell_to_continue()
        return head

    async def _answer(self, server: Peer, reply: Head, *, stays_open: bool) -> bool:
        """Pass the answer on; returns whether there can be another on this connection."""
        action = self._fault.action if self._fault else None
        framing = reply.reply_framing(self._method)
        if action == "reset_after":
            async for _ in server.body(framing):
                pass
            raise self._reset()
        stays_open = stays_open and framing != "until_close"
        head = reply.passed_on(connection=self._connection(stays_open))
        if action in ("truncate", "stall_body") and framing != 0:
            body = b"".join([piece async for piece in server.body(framing)])
            half = len(body) // 2
            await self._client.send(head + body[:half])
            if action == "truncate":
                self._happened()
                return False
            await self._stall()
            await self._client.send(body[half:])
        else:
            await self._client.send(head)
            async for piece in server.body(framing):
                await self._client.send(piece)
        return stays_open

    @staticmethod
    def _connection(stays_open: bool) -> str | None:
        return None if stays_open else "close"


async def _first_of(*events: asyncio.Event) -> None:
    """Wait until one of the events is set."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
