"""Every refusal as one exception, and one envelope for all of them:
`{"error": {"message", "type", "code"[, "param"]}}`."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from http import HTTPStatus

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mlxcel.api.connection import ClientGone
from mlxcel.chat.errors import PromptError
from mlxcel.engine.errors import (
    AllBanned,
    Busy,
    Closing,
    ContextOverflow,
    Dead,
    Loading,
    OverBudget,
    Stuck,
    UnknownToken,
)
from mlxcel.grammar.errors import GrammarError

log = logging.getLogger(__name__)

INVALID_REQUEST = "invalid_request_error"
NOT_SUPPORTED = "not_supported_error"
SERVER_ERROR = "server_error"
SERVER_BUSY = "server_busy"
OVER_BUDGET = "request_memory_budget_exceeded"

_DECODE_ERROR = re.compile(r"(?P<what>.*?)(?: - at `(?:key` in `)?\$\.?(?P<path>.*)`)?", re.DOTALL)
_MISSING_FIELD = re.compile(r"Object missing required field `(?P<name>\w+)`")
_MAX_DETAIL = 300


class ApiError(Exception):
    """An answer that is not a success.

    type: the envelope's `type`. code: a machine-readable reason, mostly absent. param: the request field at fault.
    numbers: further members of the envelope.
    """

    def __init__(
        self,
        status: int,
        type: str,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
        numbers: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.type = type
        self.message = message
        self.code = code
        self.param = param
        self.headers = headers
        self.numbers = numbers or {}

    def response(self) -> Response:
        """The JSON answer."""
        error: dict[str, str | int | None] = {"message": self.message, "type": self.type, "code": self.code}
        if self.param is not None:
            error["param"] = self.param
        error.update(self.numbers)
        return Response(
            msgspec.json.encode({"error": error}),
            status_code=self.status,
            media_type="application/json",
            headers=self.headers,
        )


def invalid(message: str, param: str | None = None, *, code: str | None = None) -> ApiError:
    """A 400: the request itself is wrong."""
    return ApiError(HTTPStatus.BAD_REQUEST, INVALID_REQUEST, message, code=code, param=param)


def generation_failed() -> ApiError:
    """A 500: the model failed while it generated. What exactly is in the server's log only."""
    return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, SERVER_ERROR, "The model failed to generate an answer.")


def to_api_error(error: Exception) -> ApiError:
    """The answer to anything that was raised while a request was served."""
    match error:
        case ApiError():
            return error
        case ContextOverflow():
            return invalid(str(error), code="context_length_exceeded")
        case PromptError():
            return invalid(str(error), error.param)
        case GrammarError():
            return invalid(str(error), "response_format")
        case OverBudget():
            numbers = {"estimated_bytes": error.needed, "budget_bytes": error.budget}
            return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, OVER_BUDGET, str(error), code=OVER_BUDGET, numbers=numbers)
        case UnknownToken() | AllBanned():
            return invalid(str(error), error.field)
        case Busy() | Loading():
            return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, SERVER_BUSY, str(error))
        case Dead():
            # The cause may name files and addresses; it is in the log.
            return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, SERVER_ERROR, "The model worker has exited.")
        case Stuck() | Closing():
            return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, SERVER_ERROR, str(error))
        case msgspec.DecodeError():
            return _undecodable(error)
        case HTTPException():
            return _unroutable(error)
        case _:
            return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, SERVER_ERROR, "Internal server error.")


async def answer_routing_error(request: Request, error: Exception) -> Response:
    """Starlette's handler for unknown paths and methods."""
    return to_api_error(error).response()


class ErrorBoundary:
    """ASGI middleware that turns what the application raises into an answer.

    Sending raises ClientGone inside it when the connection is lost, whatever the server itself raises then.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def tracked_send(message: Message) -> None:
            nonlocal started
            started = True
            try:
                await send(message)
            except (OSError, RuntimeError) as error:  # RuntimeError: what uvloop says of a closed transport
                raise ClientGone from error

        try:
            await self._app(scope, receive, tracked_send)
        except ClientGone:
            return
        except Exception as error:
            if started:
                raise
            answer = to_api_error(error)
            if answer.status == HTTPStatus.INTERNAL_SERVER_ERROR and answer is not error:
                log.exception("unexpected error in %s %s", scope["method"], scope["path"])
            await answer.response()(scope, receive, send)


def _undecodable(error: msgspec.DecodeError) -> ApiError:
    if not isinstance(error, msgspec.ValidationError):
        return invalid(f"The request body is not valid JSON: {error}")
    matched = _DECODE_ERROR.fullmatch(str(error))
    what, path = (matched["what"], matched["path"] or "") if matched else (str(error), "")
    path = path[:_MAX_DETAIL]  # a value can look like one
    missing = _MISSING_FIELD.match(what)
    if missing:
        param = f"{path}.{missing['name']}" if path else missing["name"]
        return invalid(f"Missing required field '{param}'", param)
    if len(what) > _MAX_DETAIL:
        what = what[:_MAX_DETAIL] + "..."
    if not path:
        return invalid(f"Invalid request body: {what}")
    return invalid(f"Invalid value for '{path}': {what}", path)


def _unroutable(error: HTTPException) -> ApiError:
    if error.status_code == HTTPStatus.NOT_FOUND:
        return ApiError(HTTPStatus.NOT_FOUND, "not_found_error", "There is no such path on this server.")
    message = error.detail
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        message = "This path does not serve that method; the Allow header names those it serves."
    return ApiError(error.status_code, INVALID_REQUEST, message, headers=error.headers)
