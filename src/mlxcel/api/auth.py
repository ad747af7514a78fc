"""API keys: `Authorization: Bearer KEY` or `Authorization: KEY`."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from mlxcel.api.errors import ApiError

PUBLIC = frozenset({("GET", "/health"), ("GET", "/")})
"""Requests that need no key, by the path as sent: below an API prefix nothing is public."""

_TENANT = "mlxcel.tenant"


def tenant(scope: Scope) -> str:
    """Who sends a request, as far as keys tell: a name for its key that does not give it away; empty without keys."""
    return scope.get(_TENANT, "")


class KeyAuth:
    """ASGI middleware that lets in only requests with one of `keys`; with no keys it lets in everything.

    Which key it was stands in the scope, as `tenant` reads it.
    """

    def __init__(self, app: ASGIApp, keys: Iterable[str]) -> None:
        self._app = app
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._digests or scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            if (scope["method"], scope["path"]) not in PUBLIC:
                scope[_TENANT] = self._check(Headers(scope=scope))
            await self._app(scope, receive, send)
        else:
            try:
                scope[_TENANT] = self._check(Headers(scope=scope))
            except ApiError:
                await send({"type": "websocket.close", "code": 1008})
                return
            await self._app(scope, receive, send)

    def _check(self, headers: Headers) -> str:
        """The name of the key that was sent. Raises ApiError 401."""
        sent = headers.get("authorization", "").encode("latin-1")
        if not sent:
            raise _unauthorized("missing_api_key", "An API key is required: send 'Authorization: Bearer KEY'.")
        candidates = [sent]
        if sent[:7].lower() == b"bearer ":
            candidates.append(sent[7:])
        # Digests of one length, all compared: the time taken tells nothing about the keys.
        matches = [
            key
            for candidate in map(_digest, candidates)
            for key in self._digests
            if hmac.compare_digest(candidate, key)
        ]
        if not matches:
            raise _unauthorized("invalid_api_key", "The API key is not valid.")
        return matches[0].hex()


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _unauthorized(type: str, message: str) -> ApiError:
    return ApiError(HTTPStatus.UNAUTHORIZED, type, message, headers={"WWW-Authenticate": "Bearer"})
