"""One envelope for everything that goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx
import msgspec
import pytest
from starlette.exceptions import HTTPException

from mlxcel.api.app import create_app
from mlxcel.api.connection import ClientGone
from mlxcel.api.errors import ApiError, ErrorBoundary, invalid, to_api_error
from mlxcel.chat.errors import PromptError
from mlxcel.config import EngineConfig, NetworkConfig, ServerConfig
from mlxcel.engine.backend import Backend, KvLimit
from mlxcel.engine.engine import Engine, EngineState
from mlxcel.engine.errors import Busy, Closing, ContextOverflow, Dead, Loading, Stuck

from .stub import AsgiCall, client, frames, run, says, serving, until, with_info


def body(response: httpx.Response) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert set(error) - {"param"} == {"message", "type", "code"}
    return error


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (Busy(), 503, "server_busy", None),
        (Loading(), 503, "server_busy", None),
        (Dead("secret"), 503, "server_error", None),
        (Stuck(), 503, "server_error", None),
        (Closing(), 503, "server_error", None),
        (ContextOverflow(900, 512), 400, "invalid_request_error", "context_length_exceeded"),
        (PromptError("roles must alternate"), 400, "invalid_request_error", None),
        (HTTPException(418, "teapot"), 418, "invalid_request_error", None),
        (ZeroDivisionError("secret"), 500, "server_error", None),
    ],
)
def test_every_exception_has_one_answer(error: Exception, status: int, kind: str, code: str | None) -> None:
    answer = to_api_error(error)
    assert (answer.status, answer.type, answer.code) == (status, kind, code)
    assert "secret" not in answer.message


def test_messages_that_clients_rely_on() -> None:
    assert to_api_error(Busy()).message == "All slots are busy. Please try again later."
    overflow = to_api_error(ContextOverflow(900, 512)).message
    assert "prompt is too long" in overflow
    assert "900" in overflow
    assert "512" in overflow
    assert to_api_error(PromptError("roles must alternate")).message == "roles must alternate"


class Inner(msgspec.Struct):
    size: int
    names: dict[str, int] = {}


class Outer(msgspec.Struct):
    parts: list[Inner]


@pytest.mark.parametrize(
    ("document", "param"),
    [
        (b'{"parts": [{"size": 1}, {"size": "x"}]}', "parts[1].size"),
        (b'{"parts": [{}]}', "parts[0].size"),
        (b'{"parts": [{"size": 1, "names": {"a": "b"}}]}', "parts[0].names[...]"),
        (b"{}", "parts"),
        (b"3", None),
    ],
)
def test_decoding_errors_name_the_field(document: bytes, param: str | None) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(document, type=Outer)
    answer = to_api_error(caught.value)
    assert (answer.status, answer.param) == (400, param)
    assert param is None or param in answer.message


def test_input_is_not_sent_back_at_length() -> None:
    error = msgspec.ValidationError("Invalid enum value 'x" + "y" * 100_000 + "' - at `$.role`")
    answer = to_api_error(error)
    assert answer.param == "role"
    assert len(answer.message) < 500


def test_unknown_paths_and_methods() -> None:
    async def work() -> None:
        async with serving() as served:
            for path in ("/nowhere", "/v1/models/", "/v1/models/x", "/health/x"):
                response = await served.http.get(path)
                assert response.status_code == 404
                assert body(response)["type"] == "not_found_error"
            response = await served.http.get("/v1/chat/completions")
            assert response.status_code == 405
            assert response.headers["allow"] == "POST"
            assert body(response)["type"] == "invalid_request_error"
            response = await served.http.post("/v1/models")
            assert response.status_code == 405
            assert set(response.headers["allow"].split(", ")) == {"GET", "HEAD"}
            assert (await served.http.head("/v1/models")).status_code == 200

    run(work())


class Boundary:
    """The boundary around an application that raises, before or after its first byte."""

    def __init__(self, error: Exception, *, started: bool = False) -> None:
        self.sent: list[Any] = []
        self._error = error
        self._started = started

    def call(self) -> None:
        scope = {"type": "http", "method": "GET", "path": "/x"}
        run(ErrorBoundary(self._app)(scope, asyncio.Queue[Any]().get, self._send))

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        if self._started:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise self._error

    async def _send(self, message: Any) -> None:
        self.sent.append(message)


def test_bugs_answer_500_without_internals_and_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    boundary = Boundary(KeyError("secret"))
    boundary.call()
    assert boundary.sent[0]["status"] == 500
    assert b"secret" not in boundary.sent[1]["body"]
    assert "secret" in caplog.text


def test_chosen_answers_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    boundary = Boundary(ApiError(500, "server_error", "known"))
    boundary.call()
    assert b"known" in boundary.sent[1]["body"]
    assert caplog.text == ""


def test_a_response_that_began_is_not_answered_again() -> None:
    boundary = Boundary(KeyError("late"), started=True)
    with pytest.raises(KeyError):
        boundary.call()
    assert len(boundary.sent) == 1


def test_nobody_is_answered_when_the_client_left() -> None:
    boundary = Boundary(ClientGone())
    boundary.call()
    assert boundary.sent == []


def test_param_is_given_only_where_there_is_one() -> None:
    assert b"param" not in bytes(invalid("bad").response().body)
    assert msgspec.json.decode(bytes(invalid("bad", "n").response().body)) == {
        "error": {"message": "bad", "type": "invalid_request_error", "code": None, "param": "n"}
    }


def test_a_server_without_a_model_yet_says_so() -> None:
    async def work() -> None:
        release = asyncio.Event()
        loop = asyncio.get_running_loop()

        def load() -> Backend:
            asyncio.run_coroutine_threadsafe(release.wait(), loop).result()
            return says("late")

        engine = Engine(ServerConfig().engine, load)
        engine.start()
        async with client(create_app(engine, ServerConfig())) as http:
            health = await http.get("/health")
            assert (health.status_code, health.json()) == (503, {"status": "loading model"})
            for stream in (False, True):
                refused = await http.post("/v1/completions", json={"prompt": "x", "stream": stream})
                assert refused.status_code == 503
                assert body(refused)["type"] == "server_busy"
            bad = await http.post("/v1/completions", json={"prompt": 3})
            assert bad.status_code == 400
            assert (await http.get("/v1/models")).status_code == 503
            release.set()
            await engine.wait_ready()
            assert (await http.post("/v1/completions", json={"prompt": "x"})).status_code == 200
        await engine.close()

    run(work())


def test_a_server_whose_worker_died_says_so() -> None:
    async def work() -> None:
        def load() -> Backend:
            raise OSError("/secret/path")

        engine = Engine(ServerConfig().engine, load)
        engine.start()
        with pytest.raises(OSError, match="secret"):
            await engine.wait_ready()
        async with client(create_app(engine, ServerConfig())) as http:
            for response in (
                await http.get("/health"),
                await http.post("/v1/completions", json={"prompt": "x"}),
                await http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}]}),
            ):
                assert response.status_code == 503
                error = body(response)
                assert error["type"] == "server_error"
                assert "secret" not in error["message"]
        await engine.close()

    run(work())


def test_what_a_stop_cuts_off_in_the_middle_of_a_step_is_no_fault_of_the_model() -> None:
    async def work() -> None:
        async with serving() as served:
            served.backend.gate.clear()
            asked = asyncio.create_task(served.chat())
            await until(lambda: served.snapshot.active_sequences > 0)
            await served.engine.close(patience=0.01)
            assert (await asked).status_code == 503

    run(work())


def test_a_failing_model_is_a_500_and_the_server_lives() -> None:
    async def work() -> None:
        async with serving() as served:

            def fail(tokens: Sequence[int]) -> Exception:
                return RuntimeError("secret")

            served.backend.fail_prefill = fail
            failed = await served.chat()
            assert failed.status_code == 500
            error = body(failed)
            assert error["type"] == "server_error"
            assert "secret" not in error["message"]
            served.backend.fail_prefill = lambda tokens: None
            assert (await served.chat()).status_code == 200

    run(work())


def test_requests_that_wait_when_the_worker_dies_get_503() -> None:
    async def work() -> None:
        async with serving() as served:
            served.backend.fail_decode = lambda rows: RuntimeError("broken")
            answers = await asyncio.gather(*(served.chat() for _ in range(30)))
            statuses = {answer.status_code for answer in answers}
            assert 503 in statuses
            assert statuses <= {500, 503}
            assert (await served.http.get("/health")).status_code == 503

    run(work())


def test_what_a_shutdown_cuts_off_says_so() -> None:
    async def work() -> None:
        async with serving(says("x" * 10_000)) as served:
            under_way = asyncio.create_task(served.chat(max_tokens=10_000))
            await until(lambda: served.engine.snapshot().active_sequences == 1)
            closing = asyncio.create_task(served.engine.close(drain=0.05))
            await asyncio.sleep(0)
            for answer in (await served.chat(), await under_way):
                assert answer.status_code == 503
                assert body(answer)["message"] == "The server is shutting down."
            await closing

    run(work())


def test_a_step_that_hangs_is_no_health_and_ends_what_waits_for_it() -> None:
    """A stream gets pings, then an end that says what it is; a whole answer gets an error."""

    async def work() -> None:
        config = ServerConfig(engine=EngineConfig(decode_timeout=0.5), network=NetworkConfig(sse_ping_interval=0.01))
        async with serving(says("abc"), config) as served:
            served.backend.gate.clear()
            stream = AsgiCall(served.app, "/v1/completions", {"prompt": "hi", "stream": True})
            whole = await served.chat()
            await stream.task
            assert stream.text.count(":\n\n") >= 2
            assert frames(stream.text)[-1]["choices"][0]["finish_reason"] == "error"
            for refused in (
                whole,
                await served.http.get("/health"),
                await served.http.get("/v1/models"),
                await served.chat(),
                await served.chat(stream=True),
            ):
                assert refused.status_code == 503
                assert body(refused)["type"] == "server_error"
            served.backend.gate.set()
            await until(lambda: served.engine.state is EngineState.READY)
            await served.idle()
            assert (await served.http.get("/health")).json()["status"] == "ok"
            assert (await served.chat()).status_code == 200

    run(work())


def test_a_prompt_that_memory_never_holds_is_a_503_with_both_numbers() -> None:
    async def work() -> None:
        backend = with_info(says("x"), kv_limit=KvLimit(tokens=40, bytes=4000))
        async with serving(backend) as served:
            for stream in (False, True):
                refused = await served.complete([120] * 60, stream=stream)
                assert refused.status_code == 503
                error = refused.json()["error"]
                assert error["type"] == error["code"] == "request_memory_budget_exceeded"
                assert (error["estimated_bytes"], error["budget_bytes"]) == (6000, 4000)
            assert (await served.complete("x" * 30)).status_code == 200

    run(work())
