"""HTTP/1.1 as uvicorn's h11 protocol speaks it, with our error envelope.

h11 and not httptools: that one drops the body of a request that offers an upgrade, as Java's client does with every
request, and then reads the body as the next request. h11 also limits the size of headers.
"""

from __future__ import annotations

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol


class EnvelopeProtocol(H11Protocol):
    """Answers what is no HTTP at all in the same shape as every other error."""

    def send_400_response(self, msg: str) -> None:
        """Refuse and close. Before a request was read, and never in the middle of an answer."""
        body = msgspec.json.encode({"error": {"message": msg, "type": "invalid_request_error", "code": None}})
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
