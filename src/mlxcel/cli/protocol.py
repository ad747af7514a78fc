"""HTTP/1.1 as uvicorn's h11 protocol speaks it, with our error envelope and limits on waiting for the client.

h11 and not httptools: that one drops the body of a request that offers an upgrade, as Java's client does with every
request, and then reads the body as the next request. h11 also limits the size of headers.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

_MAX_HEADERS = 16 * 1024
"""Bytes of a request's line and headers; h11's own default."""
_FREE_PIECES = 1000
_LEAST_PIECE = 32
"""Bytes that the pieces of a body have on average, where there are more than those: each takes as long as a token, and
in a single read there may be ten thousand of one byte."""
_LAST_ASKING = 1.0
"""Seconds for a client to finish asking, once the server is told to stop."""


class _Connection(h11.Connection):
    """Puts the pieces of a chunked body into their frames by itself, and refuses bodies in very many small pieces.

    h11 takes each piece through its state machine, which costs as much as everything else that HTTP does for a token.
    """

    _chunked = False
    _pieces = 0
    _received = 0

    def next_event(self) -> Any:
        """What has arrived. Raises RemoteProtocolError for what is no HTTP, and for crumbs of a body."""
        event: Any = super().next_event()
        if type(event) is h11.Request:
            self._pieces = self._received = 0
        elif type(event) is h11.Data:
            self._pieces += 1
            self._received += len(event.data)
            if self._pieces > _FREE_PIECES and self._received < self._pieces * _LEAST_PIECE:
                raise h11.RemoteProtocolError("a body in crumbs")
        return event

    def send(self, event: h11.Event) -> bytes | None:  # type: ignore[override]  # h11's stub leaves out the result
        """The bytes of an event."""
        if self._chunked and type(event) is h11.Data:
            return b"%x\r\n%b\r\n" % (len(event.data), event.data) if event.data else b""
        output = super().send(event)
        self._chunked = isinstance(event, h11.Response) and b"transfer-encoding: chunked" in (output or b"").lower()
        return output


class EnvelopeProtocol(H11Protocol):
    """Answers what is no HTTP at all in the same shape as every other error, and closes connections whose client takes
    longer than the keep-alive time to send a whole request, or to read what it was sent.

    uvicorn itself only closes those that are idle after an answer.
    """

    _asking: asyncio.TimerHandle | None = None
    """Runs out unless the request under way is complete by then."""
    _reading: asyncio.TimerHandle | None = None
    """Runs out unless the client has taken enough of the answer by then."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Arguments as uvicorn gives them."""
        super().__init__(*arguments, **options)
        self.conn = _Connection(h11.SERVER, _MAX_HEADERS)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there; from now on it has to ask something."""
        super().connection_made(transport)
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the limits."""
        super().connection_lost(exc)
        self._asking = _cancelled(self._asking)
        self._reading = _cancelled(self._reading)

    def data_received(self, data: bytes) -> None:
        """Bytes of a request; with the first of them its time begins."""
        if self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
            self._asking = _cancelled(self._asking)
        super().data_received(data)

    def handle_events(self) -> None:
        """What has arrived so far is looked at: after each piece of it, and after each answer."""
        super().handle_events()
        if not self.transport.is_closing():
            self._await_request()

    def shutdown(self) -> None:
        """The server stops: answers go on, but a request that is not all there is not waited for."""
        super().shutdown()
        if self._asking is not None:
            self._asking.cancel()
            self._asking = self.loop.call_later(_LAST_ASKING, self.transport.close)

    def pause_writing(self) -> None:
        """The client does not take its answer as fast as it is made."""
        super().pause_writing()
        self._reading = self.loop.call_later(self.timeout_keep_alive, self.transport.abort)

    def resume_writing(self) -> None:
        """It has taken most of it."""
        super().resume_writing()
        self._reading = _cancelled(self._reading)

    def send_400_response(self, msg: str) -> None:
        """Refuse and close; only close where the answer has begun."""
        body = msgspec.json.encode({"error": {"message": msg, "type": "invalid_request_error", "code": None}})
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):  # else its answer has begun before its body ended
            for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _await_request(self) -> None:
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._asking = _cancelled(self._asking)
        elif self._asking is None:
            self._asking = self.loop.call_later(self.timeout_keep_alive, self.transport.close)


def _cancelled(timer: asyncio.TimerHandle | None) -> None:
    """Stop a timer, if there is one."""
    if timer is not None:
        timer.cancel()
