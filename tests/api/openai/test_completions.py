"""POST /v1/completions: prompts and their refusals, and the two places of streamed text."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.scripted import ByteTokenizer, ScriptedBackend, echo

from ..stub import frames, run, says, serving, with_info


class BareTokenizer(ByteTokenizer):
    """Puts nothing in front of a text; knows the spelling of one token."""

    def encode(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        return [65] if text == "<s>" and parse_special else list(text.encode())


def ask(prompt: Any = "hi", backend: ScriptedBackend | None = None, **fields: Any) -> Any:
    """The answer, or the error."""

    async def work() -> Any:
        async with serving(backend or ScriptedBackend(echo)) as served:
            response = await served.complete(prompt, **fields)
            return response.json() if response.is_success else response.json()["error"]

    return run(work())


def text(prompt: Any = "hi", backend: ScriptedBackend | None = None, **fields: Any) -> str:
    return ask(prompt, backend, **fields)["choices"][0]["text"]


def test_the_prompt_is_taken_as_it_is() -> None:
    answer = ask("a {{ b }} <x> \u00e9\n")
    assert answer["choices"][0]["text"] == "a {{ b }} <x> \u00e9\n"
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["usage"]["prompt_tokens"] == 1 + len("a {{ b }} <x> \u00e9\n".encode())  # with the first token


def test_other_forms_of_one_prompt() -> None:
    assert text(["one"]) == "one"
    assert text([104, 105]) == "hi"
    assert ask([104, 105])["usage"]["prompt_tokens"] == 2


@pytest.mark.parametrize(
    "prompt",
    [" ", "\n\t\u00a0", ["  "], None, 3, {}, [], ["a", "b"], [1, "a"], ["a", 1], [-1], [258], [2**70], [[1]], [True]],
)
def test_prompts_that_are_none(prompt: Any) -> None:
    error = ask(prompt)
    assert error["type"] == "invalid_request_error"
    assert "prompt" in error["message"] + error.get("param", "")


def test_an_empty_prompt_begins_a_text() -> None:
    for prompt in ("", [""]):
        answer = ask(prompt, says("once"))
        assert answer["choices"][0]["text"] == "once"
        assert answer["usage"]["prompt_tokens"] == 1
    named = with_info(ScriptedBackend(echo), tokenizer=BareTokenizer(), special_tokens={"bos_token": "<s>"})
    assert text("", named) == "A"
    assert "begin" in ask("", with_info(ScriptedBackend(echo), tokenizer=BareTokenizer()))["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"best_of": 0}, "best_of"),
        ({"best_of": 3, "n": 2}, "best_of"),
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"grammar": "root ::= x"}, "grammar"),
        ({"n": 99}, "n"),
    ],
)
def test_refusals_come_before_any_stream(fields: dict[str, Any], param: str) -> None:
    for stream in (False, True):
        error = ask(stream=stream, **fields)
        assert (error["type"], error["param"]) == ("invalid_request_error", param)


def test_fields_that_ask_for_nothing() -> None:
    assert text(echo=False, suffix="", best_of=1, logprobs=None, n=None) == "hi"
    assert text(best_of=2, n=2) == "hi"


def test_streamed_text_stands_in_both_places() -> None:
    async def work() -> None:
        async with serving(says("abc")) as served:
            chunks = frames((await served.complete(stream=True)).text)
            for chunk in chunks:
                (choice,) = chunk["choices"]
                assert choice["delta"] == {"text": choice["text"]}
                assert chunk["object"] == "text_completion"
            assert [chunk["choices"][0]["text"] for chunk in chunks] == ["a", "b", "c", ""]

    run(work())


@pytest.mark.parametrize(("logprobs", "listed"), [(0, None), (1, 1), (5, 5)])
def test_log_probabilities(logprobs: int, listed: int | None) -> None:
    answer = ask("h\u00e9", logprobs=logprobs)["choices"][0]["logprobs"]
    assert answer["tokens"] == ["h", "\ufffd", "\ufffd"]
    assert answer["text_offset"] == [0, 1, 1]
    assert len(answer["token_logprobs"]) == 3
    for top in answer["top_logprobs"]:
        assert (top and len(top)) == listed


def test_log_probabilities_are_null_unless_asked_for() -> None:
    assert ask()["choices"][0]["logprobs"] is None
