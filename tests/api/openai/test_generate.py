"""What both completion routes share: streams, choices, failures, and clients that leave."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.datastructures import Headers

from mlxcel.api.openai.generate import read_priority
from mlxcel.config import EngineConfig, NetworkConfig, ServerConfig
from mlxcel.engine.generation import Generation
from mlxcel.engine.request import GenerationRequest, Priority
from tests.engine.scripted import EOS, VOCABULARY, Row, ScriptedBackend

from ..stub import AsgiCall, Served, frames, listening, run, says, serving, until, with_info

TEXT = "h\u00e9llo \U0001f389 w\u00f6rld"
ROUTES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
}


class Endless(Sequence[int]):
    """A script without an end."""

    def __len__(self) -> int:
        return 2**40

    def __getitem__(self, index: Any) -> Any:
        return [97] * index.stop if isinstance(index, slice) else 97


def endless() -> ScriptedBackend:
    return ScriptedBackend(lambda prompt: Endless(), context=2**40)


def text_of(choice: dict[str, Any]) -> str:
    if "message" in choice:
        return choice["message"]["content"]
    return choice["text"] if "text" in choice else choice["delta"].get("content", "")


def joined(chunks: list[Any], index: int = 0) -> str:
    return "".join(text_of(c) for chunk in chunks for c in chunk["choices"] if c["index"] == index)


def entries(chunk: dict[str, Any]) -> list[Any]:
    """The log probabilities of the first choice, one item a token."""
    logprobs = chunk["choices"][0]["logprobs"] if chunk["choices"] else None
    if logprobs is None:
        return []
    return logprobs.get("content") or list(zip(*(logprobs[key] for key in sorted(logprobs)), strict=True))


@pytest.fixture(params=ROUTES)
def path(request: pytest.FixtureRequest) -> str:
    return request.param


async def post(served: Served, path: str, **fields: Any) -> httpx.Response:
    return await served.http.post(path, json={**ROUTES[path], **fields})


async def both(served: Served, path: str, **fields: Any) -> tuple[dict[str, Any], list[Any]]:
    """The whole answer, and the chunks of the streamed one."""
    whole = await post(served, path, **fields)
    streamed = await post(served, path, stream=True, stream_options={"include_usage": True}, **fields)
    assert whole.status_code == streamed.status_code == 200
    assert streamed.headers["content-type"].startswith("text/event-stream")
    return whole.json(), frames(streamed.text)


def test_the_stream_joined_is_the_whole_answer(path: str) -> None:
    async def work() -> None:
        async with serving(says(TEXT)) as served:
            whole, chunks = await both(served, path)
            assert joined([whole]) == joined(chunks) == TEXT
            assert chunks[-1]["choices"] == []
            assert chunks[-1]["usage"] == whole["usage"]
            assert all("usage" not in chunk for chunk in chunks[:-1])
            assert len({chunk["id"] for chunk in chunks}) == 1
            reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]]
            assert reasons == [None] * (len(reasons) - 1) + ["stop"]
            assert text_of(chunks[-2]["choices"][0]) == ""
            for body in (whole, *chunks):
                assert body["model"] == "scripted"
                assert body["system_fingerprint"] is None
                assert all("logprobs" in choice for choice in body["choices"])

    run(work())


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_wherever_the_text_is_cut_or_stopped(data: st.DataObject) -> None:
    text = data.draw(st.text(st.sampled_from('ab\u00e9\U0001f389\n\u2028\x00"'), max_size=12))
    stop = data.draw(st.lists(st.text(st.sampled_from("ab\u00e9\U0001f389"), max_size=3), max_size=3))
    fields = {"stop": stop, "max_tokens": data.draw(st.integers(0, 20))}

    async def work() -> None:
        async with serving(says(text)) as served:
            for path in ROUTES:
                whole, chunks = await both(served, path, **fields)
                assert joined([whole]) == joined(chunks)
                assert whole["choices"][0]["finish_reason"] == chunks[-2]["choices"][0]["finish_reason"]
                assert whole["usage"] == chunks[-1]["usage"]

    run(work())


@pytest.mark.parametrize(("stop", "kept"), [("END", "ab"), (["x", "b"], "a"), (["", "bEX"], "abEND")])
def test_stop_strings_never_show(path: str, stop: Any, kept: str) -> None:
    async def work() -> None:
        async with serving(says("abEND")) as served:
            whole, chunks = await both(served, path, stop=stop)
            assert joined([whole]) == joined(chunks) == kept
            assert whole["choices"][0]["finish_reason"] == "stop"

    run(work())


def test_every_token_has_one_entry_streamed_or_not(path: str) -> None:
    wanted = {"logprobs": True, "top_logprobs": 2} if "chat" in path else {"logprobs": 2}

    async def work() -> None:
        async with serving(says(TEXT)) as served:
            # "w" could begin the stop string: its entry is held back with it, and comes all the same.
            whole, chunks = await both(served, path, stop=["wx"], **wanted)
            assert entries(whole) == [one for chunk in chunks for one in entries(chunk)]
            assert len(entries(whole)) == whole["usage"]["completion_tokens"] == len(TEXT.encode())
            if "chat" in path:
                raw = b"".join(bytes(one["bytes"]) for one in entries(whole))
                assert raw.decode() == TEXT
                assert all(len(one["top_logprobs"]) == 2 for one in entries(whole))

    run(work())


@pytest.mark.parametrize(("max_tokens", "text", "reason"), [(3, "abc", "length"), (9, "abcdef", "stop")])
def test_the_reason_names_what_ended_it(path: str, max_tokens: int, text: str, reason: str) -> None:
    async def work() -> None:
        async with serving(says("abcdef")) as served:
            whole, chunks = await both(served, path, max_tokens=max_tokens)
            assert joined([whole]) == joined(chunks) == text
            assert whole["choices"][0]["finish_reason"] == chunks[-2]["choices"][0]["finish_reason"] == reason
            assert whole["usage"]["completion_tokens"] == len(text)

    run(work())


def test_a_budget_of_nothing(path: str) -> None:
    async def work() -> None:
        async with serving() as served:
            whole, chunks = await both(served, path, max_tokens=0)
            assert joined([whole]) == joined(chunks) == ""
            assert whole["choices"][0]["finish_reason"] == "length"
            assert whole["usage"]["completion_tokens"] == 0
            assert whole["usage"]["prompt_tokens"] > 0

    run(work())


def test_the_server_default_budget(path: str) -> None:
    async def work() -> None:
        async with serving(says("abcdef"), ServerConfig(engine=EngineConfig(n_predict=2))) as served:
            assert joined([(await post(served, path)).json()]) == "ab"
            assert joined([(await post(served, path, max_tokens=3)).json()]) == "abc"

    run(work())


def test_several_choices(path: str) -> None:
    async def work() -> None:
        async with serving(says("abc")) as served:
            whole, chunks = await both(served, path, n=3)
            assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
            assert whole["usage"] == chunks[-1]["usage"]
            assert whole["usage"]["completion_tokens"] == 9
            for index in range(3):
                assert text_of(whole["choices"][index]) == joined(chunks, index) == "abc"
                mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
                assert [c["finish_reason"] for c in mine if c["finish_reason"]] == ["stop"]
                assert mine[-1]["finish_reason"] == "stop"

    run(work())


def test_more_choices_than_slots(path: str) -> None:
    async def work() -> None:
        async with serving(config=ServerConfig(engine=EngineConfig(parallel=2))) as served:
            assert (await post(served, path, n=2)).status_code == 200
            refused = await post(served, path, n=3)
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == "n"

    run(work())


def watch_submissions(served: Served, monkeypatch: pytest.MonkeyPatch) -> list[GenerationRequest]:
    """Notes what the application asks of the engine."""
    seen: list[GenerationRequest] = []
    submit = served.engine.submit

    def noting(requests: Sequence[GenerationRequest]) -> list[Generation]:
        seen.extend(requests)
        return submit(requests)

    monkeypatch.setattr(served.engine, "submit", noting)
    return seen


def test_what_the_engine_is_asked(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with serving() as served:
            seen = watch_submissions(served, monkeypatch)
            fields = {"n": 2, "seed": 5, "temperature": 0.5, "max_tokens": 3, "stop": ["x", ""], "cache_prompt": False}
            await served.http.post(path, json={**ROUTES[path], **fields}, headers={"X-Priority": "HIGH"})
            assert [request.sampling.seed for request in seen] == [5, 6]
            for request in seen:
                assert request.sampling.temperature == 0.5
                assert (request.max_tokens, request.stop, request.logprobs) == (3, ("x",), None)
                assert request.priority is Priority.HIGH

    run(work())


@pytest.mark.parametrize(
    ("value", "priority"),
    [
        ("high", Priority.HIGH),
        ("Low", Priority.LOW),
        (" normal ", Priority.NORMAL),
        ("urgent", Priority.NORMAL),
        ("", Priority.NORMAL),
        ("0", Priority.NORMAL),
    ],
)
def test_priorities(value: str, priority: Priority) -> None:
    assert read_priority(Headers({"X-Priority": value})) is priority
    assert read_priority(Headers()) is Priority.NORMAL


def test_a_full_queue_is_refused_before_the_stream_begins(path: str) -> None:
    config = ServerConfig(engine=EngineConfig(parallel=1, max_queue_depth=1))

    async def work() -> None:
        async with serving(endless(), config) as served:
            served.backend.gate.clear()
            calls = [AsgiCall(served.app, path, {**ROUTES[path], "stream": True}) for _ in range(2)]
            await until(lambda: all(call.status == 200 for call in calls))
            await until(lambda: served.snapshot.active_sequences == 1)
            for stream in (True, False):
                refused = await post(served, path, stream=stream)
                assert refused.status_code == 503
                assert refused.json() == {
                    "error": {
                        "message": "All slots are busy. Please try again later.",
                        "type": "server_busy",
                        "code": None,
                    }
                }
            assert (await served.http.get("/health")).json()["status"] == "no slot available"
            for call in calls:
                call.leave()
                await call.task
            served.backend.gate.set()
            await served.idle()
            assert (await post(served, path, max_tokens=1)).status_code == 200

    run(work())


def test_a_prompt_beyond_the_context_is_refused_before_the_stream_begins() -> None:
    async def work() -> None:
        async with serving(config=ServerConfig(engine=EngineConfig(ctx_size=512, parallel=1))) as served:
            for stream in (True, False):
                refused = await served.complete("x" * 600, stream=stream)
                assert refused.status_code == 400
                error = refused.json()["error"]
                assert (error["type"], error["code"]) == ("invalid_request_error", "context_length_exceeded")
                assert "prompt is too long" in error["message"]
                assert "512" in error["message"]

    run(work())


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_slots(path: str, stream: bool) -> None:
    async def work() -> None:
        async with serving(endless()) as served:
            call = AsgiCall(served.app, path, {**ROUTES[path], "stream": stream, "n": 2})
            await until(lambda: served.snapshot.active_sequences == 2)
            call.leave()
            await call.task
            await served.idle()
            assert served.snapshot.sequences_completed == 0
            assert stream or call.sent == []

    run(work())


def test_a_send_that_fails_frees_the_slots(path: str) -> None:
    async def work() -> None:
        async with serving(endless()) as served:
            call = AsgiCall(served.app, path, {**ROUTES[path], "stream": True, "n": 2})
            await until(lambda: "aa" in call.text or call.text.count("data:") > 4)
            call.fail_send = True
            await call.task
            await served.idle()
            assert served.snapshot.sequences_completed == 0

    run(work())


def test_a_client_that_left_before_the_first_byte(path: str) -> None:
    async def work() -> None:
        async with serving(endless()) as served:
            served.backend.gate.clear()
            call = AsgiCall(served.app, path, {**ROUTES[path], "stream": True})
            call.fail_send = True
            await call.task
            served.backend.gate.set()
            await served.idle()
            assert (await post(served, path, stream=False, max_tokens=1)).status_code == 200

    run(work())


def test_pings_come_between_frames_and_never_inside_content(path: str) -> None:
    config = ServerConfig(network=NetworkConfig(sse_ping_interval=0.001))

    async def work() -> None:
        async with serving(says(TEXT), config) as served:
            served.backend.gate.clear()
            call = AsgiCall(served.app, path, {**ROUTES[path], "stream": True})
            await until(lambda: call.text.count(":\n\n") >= 3)
            served.backend.gate.set()
            await call.task
            assert joined(frames(call.text)) == TEXT

    run(work())


def test_a_failure_in_the_middle_of_a_stream(path: str) -> None:
    async def work() -> None:
        async with serving(says("abc")) as served:

            def fail(rows: list[Row]) -> Exception | None:
                return RuntimeError("secret") if len(rows[0].fed) - (rows[0].joined_at or 0) >= 2 else None

            served.backend.fail_decode = fail
            response = await post(served, path, stream=True, stream_options={"include_usage": True})
            assert "secret" not in response.text
            chunks = frames(response.text)
            assert [c["choices"][0]["finish_reason"] for c in chunks][-1] == "error"
            assert all(c["choices"][0]["finish_reason"] is None for c in chunks[:-1])
            assert "usage" not in chunks[-1]
            assert joined(chunks) != ""
            served.backend.fail_decode = lambda rows: None
            assert (await post(served, path)).status_code == 200

    run(work())


def test_thirty_clients_that_read_one_chunk_and_vanish() -> None:
    async def vanish(host: str, port: int) -> None:
        reader, writer = await asyncio.open_connection(host, port)
        body = b'{"prompt": "hi", "stream": true}'
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await reader.readuntil(b"data: ")
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def work() -> None:
        async with serving(endless()) as served, listening(served.app) as address:
            url = httpx.URL(address)
            await asyncio.gather(*(vanish(url.host, url.port or 0) for _ in range(30)))
            await served.idle()
            assert served.snapshot.sequences_completed == 0
            assert (await served.http.get("/health")).json()["status"] == "ok"

    run(work())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"typical_p": 0}, "typical_p"),
        ({"top_n_sigma": -1}, "top_n_sigma"),
        ({"xtc_threshold": 0.6}, "xtc_threshold"),
        ({"dry_sequence_breakers": [-1]}, "dry_sequence_breakers[0]"),
        ({"mirostat": 3}, "mirostat"),
        ({"logit_bias": {"five": 1}}, "logit_bias"),
        ({"logit_bias": {"258": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 30: 1}}, "logit_bias"),
        ({"logit_bias": [[1, True]]}, "logit_bias"),
        ({"max_pattern_size": -1}, "max_pattern_size"),
    ],
)
def test_sampling_fields_out_of_range_are_refused_before_any_stream(
    path: str, fields: dict[str, Any], param: str
) -> None:
    async def work() -> None:
        async with serving(says("ab")) as served:
            for stream in (False, True):
                response = await post(served, path, stream=stream, **fields)
                assert response.status_code == 400
                error = response.json()["error"]
                assert (error["type"], error["param"]) == ("invalid_request_error", param)
            assert served.snapshot.sequences_started == 0

    run(work())


ALL = {str(token): False for token in range(VOCABULARY)}


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({"logit_bias": ALL}, True),
        ({"logit_bias": [[token, value] for token in range(VOCABULARY) for value in (5, False, -3)]}, True),
        ({"logit_bias": {**ALL, str(EOS): -100}, "ignore_eos": True}, True),
        ({"logit_bias": {**ALL, str(EOS): -100}}, False),
        ({"logit_bias": {**ALL, "97": -100}, "ignore_eos": True}, False),
        ({"logit_bias": [[97, False]] * VOCABULARY}, False),
    ],
)
def test_a_bias_that_leaves_no_token_is_refused_before_any_stream(
    path: str, fields: dict[str, Any], refused: bool
) -> None:
    async def work() -> None:
        async with serving(says("ab")) as served:
            for stream in (False, True):
                response = await post(served, path, stream=stream, max_tokens=1, **fields)
                assert response.status_code == (400 if refused else 200)
                if refused:
                    error = response.json()["error"]
                    assert (error["type"], error["param"]) == ("invalid_request_error", "logit_bias")
            assert served.snapshot.sequences_started == (0 if refused else 2)

    run(work())


def test_tokens_that_end_a_text_and_that_the_model_lacks_are_no_part_of_its_vocabulary() -> None:
    async def work() -> None:
        backend = says("ab")
        backend.info.tokenizer.eos_token_ids = frozenset({EOS, VOCABULARY})  # type: ignore[misc]
        async with serving(backend) as served:
            bias = {**ALL, "97": 0}
            assert (await served.complete(logit_bias=bias, ignore_eos=True, max_tokens=1)).status_code == 200

    run(work())


def test_a_bias_and_an_ignored_end_token_change_what_is_said(path: str) -> None:
    async def work() -> None:
        async with serving(says("a")) as served:
            biased = {"logit_bias": {"97": -100, "98": 50}, "max_tokens": 1, "temperature": 0}
            whole, chunks = await both(served, path, **biased)
            assert joined([whole]) == joined(chunks) == "b"
            whole, chunks = await both(served, path, ignore_eos=True, max_tokens=2, temperature=0)
            assert joined([whole]) == joined(chunks) == "a\0"
            assert whole["choices"][0]["finish_reason"] == "length"

    run(work())


def test_a_text_that_repeats_itself_ends(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"min_pattern_size": 2, "max_pattern_size": 2, "min_count": 3}

    async def work() -> None:
        async with serving(says("xababababa")) as served:
            whole, chunks = await both(served, path, **fields)
            assert joined([whole]) == joined(chunks) == "xababab"
            assert whole["choices"][0]["finish_reason"] == "stop"
            assert whole["usage"]["completion_tokens"] == 7
            assert joined([(await post(served, path)).json()]) == "xababababa", "no policy unless somebody asks for it"
        monkeypatch.setenv("MLXCEL_LOOP_DETECTION", "1,2,2")
        async with serving(says("xababababa")) as served:
            assert joined([(await post(served, path)).json()]) == "xabab"
            assert joined([(await post(served, path, max_pattern_size=0)).json()]) == "xababababa"
        monkeypatch.delenv("MLXCEL_LOOP_DETECTION")
        async with serving(with_info(says("a" * 30), architecture="gemma4")) as served:
            assert joined([(await post(served, path)).json()]) == "aaaa"

    run(work())
