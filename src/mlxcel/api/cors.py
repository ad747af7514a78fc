"""Cross-origin requests from browsers (the Fetch standard's CORS protocol)."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mlxcel.config import NetworkConfig

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class Cors:
    """ASGI middleware: answers every OPTIONS request itself, and names the allowed origin on all other answers.

    An entry of `cors_origins` is `*`, `localhost` (pages served from this machine, any port) or an exact origin.
    """

    def __init__(self, app: ASGIApp, network: NetworkConfig) -> None:
        self._app = app
        self._network = network

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Headers(scope=scope)
        allowed = self._origin_headers(request.get("origin", ""))
        if scope["method"] == "OPTIONS":
            await Response(status_code=204, headers=allowed | self._preflight_headers(request))(scope, receive, send)
            return

        async def send_with_origin(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(allowed)
            await send(message)

        await self._app(scope, receive, send_with_origin if allowed else send)

    def _origin_headers(self, origin: str) -> dict[str, str]:
        credentials = self._network.cors_credentials
        if "*" in self._network.cors_origins and not credentials:
            return {"Access-Control-Allow-Origin": "*"}
        # The answer depends on the Origin header, also when that is missing or refused: caches must know.
        headers = {"Vary": "Origin"} if self._network.cors_origins else {}
        if origin and self._allows(origin):
            headers["Access-Control-Allow-Origin"] = origin
            if credentials:
                headers["Access-Control-Allow-Credentials"] = "true"
        return headers

    def _allows(self, origin: str) -> bool:
        origins = self._network.cors_origins
        return "*" in origins or origin in origins or ("localhost" in origins and _is_local(origin))

    def _preflight_headers(self, request: Headers) -> dict[str, str]:
        headers = self._network.cors_headers
        if headers == "*":
            # A literal `*` covers neither Authorization nor requests with credentials, so name what was asked for.
            headers = request.get("access-control-request-headers", "*")
        return {
            "Access-Control-Allow-Methods": self._network.cors_methods,
            "Access-Control-Allow-Headers": headers,
        }


def _is_local(origin: str) -> bool:
    try:
        parts = urlsplit(origin)
        return parts.scheme in {"http", "https"} and parts.hostname in _LOOPBACK
    except ValueError:
        return False
