"""Reading JSON request bodies, whatever the client says about their type."""

from __future__ import annotations

from http import HTTPStatus
from typing import TypeVar

import msgspec
from starlette.requests import Request

from mlxcel.api.connection import ClientGone
from mlxcel.api.errors import INVALID_REQUEST, SERVER_BUSY, ApiError, invalid

T = TypeVar("T")


MAX_CONTAINERS = 50_000
"""Lists and objects in a body. Python's collector looks at each again and again while more are made: 800,000 of them,
in 2 MiB, stopped everything for seconds, and took 60 MiB."""

MAX_ARRIVING = 64 << 20
"""Bytes of large bodies that have arrived in part."""

_LARGE = 64 << 10


class BodyReader:
    """Reads JSON bodies of up to `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._arriving = 0

    async def read_json(self, request: Request, decoder: msgspec.json.Decoder[T]) -> T:
        """The request's body as `decoder` types it. Content-Type is not looked at; of repeated keys the last counts.

        Raises ApiError 413, 400 or 503 (too many large bodies are arriving), msgspec.DecodeError, ClientGone.
        """
        body = await self._read(request)
        try:
            body.decode()  # the decoder skips unknown fields unseen
            if _containers(body) > MAX_CONTAINERS:
                raise invalid(f"The request body holds more than {MAX_CONTAINERS} lists and objects.")
            return decoder.decode(body)
        except UnicodeDecodeError as error:
            raise invalid("The request body is not valid UTF-8.") from error
        except RecursionError as error:
            raise invalid("The request body is nested too deeply.") from error

    async def _read(self, request: Request) -> bytes:
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > self._limit:
            raise _too_large(self._limit)
        body = bytearray()
        counted = 0
        try:
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                body += message.get("body", b"")
                if len(body) > self._limit:
                    raise _too_large(self._limit)
                if not message.get("more_body", False):
                    break
                if len(body) > _LARGE:
                    self._arriving += len(body) - counted
                    counted = len(body)
                    if self._arriving > MAX_ARRIVING:
                        raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, SERVER_BUSY, "Too many large requests at once.")
        finally:
            self._arriving -= counted
        if not body:
            raise invalid("The request body is empty; a JSON object is expected.")
        return bytes(body)


def _containers(body: bytes) -> int:
    """Lists and objects in JSON text; as many as there could be, if those are few enough."""
    most = body.count(b"[") + body.count(b"{")
    if most <= MAX_CONTAINERS:
        return most
    parts = body.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')
    bare = b"".join(parts[::2])  # what stands outside of texts
    return bare.count(b"[") + bare.count(b"{")


def _too_large(limit: int) -> ApiError:
    return ApiError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        INVALID_REQUEST,
        f"The request body is larger than {limit} bytes.",
    )
