"""Reading JSON request bodies, whatever the client says about their type."""

from __future__ import annotations

from http import HTTPStatus
from typing import TypeVar

import msgspec
from starlette.requests import Request

from mlxcel.api.connection import ClientGone
from mlxcel.api.errors import INVALID_REQUEST, ApiError, invalid

T = TypeVar("T")


async def read_json(request: Request, decoder: msgspec.json.Decoder[T], limit: int) -> T:
    """The request's body as `decoder` types it. Content-Type is not looked at; of repeated keys the last counts.

    limit: largest body in bytes.
    Raises ApiError 413 or 400, msgspec.DecodeError, ClientGone.
    """
    body = await _read(request, limit)
    try:
        body.decode()  # the decoder skips unknown fields unseen
        return decoder.decode(body)
    except UnicodeDecodeError as error:
        raise invalid("The request body is not valid UTF-8.") from error
    except RecursionError as error:
        raise invalid("The request body is nested too deeply.") from error


async def _read(request: Request, limit: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise _too_large(limit)
    body = bytearray()
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body += message.get("body", b"")
        if len(body) > limit:
            raise _too_large(limit)
        if not message.get("more_body", False):
            break
    if not body:
        raise invalid("The request body is empty; a JSON object is expected.")
    return bytes(body)


def _too_large(limit: int) -> ApiError:
    return ApiError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        INVALID_REQUEST,
        f"The request body is larger than {limit} bytes.",
    )
