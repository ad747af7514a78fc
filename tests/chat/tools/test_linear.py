"""Hostile texts cost no more than their length: twice the text is twice the work, at any size of the pieces.

Work is counted, not timed: calls of functions, and characters that the source copies.
"""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from mlxcel.chat.tools import ToolStream
from mlxcel.chat.tools.source import Source
from mlxcel.engine.events import FinishReason, TextPiece
from tests.chat.tools.cases import FORMATS, TOOLS

_M3 = "]<]minimax[>["
_KIMI = "<|tool_calls_section_begin|><|tool_call_begin|>now:0<|tool_call_argument_begin|>"

# For each format: a beginning, and what is repeated after it.
_HOSTILE: dict[str, list[tuple[str, str]]] = {
    "hermes": [
        *(
            ("", "<"),
            ("", "<tool_call>"),
            ("<tool_call>", "{"),
            ("<tool_call>", "x "),
            ("", "<tool_call>{"),
            ("", "</tool_c"),
        ),
        *(('<tool_call>{"name": "now", "arguments": ', "["), ('<tool_call>{"name": "now", "arguments": ', '{"a":')),
        *(
            ('<tool_call>{"name": "now", "arguments": {"a": "', "\\"),
            ('<tool_call>{"name": "now", "arguments": "', "\\ud83d"),
        ),
        *(
            ('<tool_call>{"name": "now", "arguments": {"a": "', "</tool_call>"),
            ('<tool_call>{"', "a"),
            ("<tool_call>", " "),
        ),
        *(
            ('<tool_call>{"arguments": {"a": "', "x"),
            ('<tool_call>{"name": "', "n"),
            ("", '<tool_call>{"a":"</tool_call>'),
        ),
    ],
    "qwen3_coder": [
        *(("", "<function="), ("", "<function=now>"), ("", "<function=now><parameter=a>"), ("<function=now>", " ")),
        *(
            ("<function=send><parameter=text>", " "),
            ("<function=send><parameter=text>", "<"),
            ("<function=send><parameter=text>", "a "),
        ),
        *(
            ("<function=now><parameter=a>", "1"),
            ("<function=now><parameter=a>", "["),
            ("<tool_call><function=now>", "<para"),
        ),
        *(("<function=now><parameter=a>", '"'), ("<function=now>", "<parameter=a>1</parameter>"), ("<function=", "n")),
    ],
    "mistral_nemo": [
        ("", "[TOOL_CALLS]"),
        ("[TOOL_CALLS]", "["),
        ("[TOOL_CALLS][", "{},"),
        ("[TOOL_CALLS]", "[{"),
        ("", "["),
    ],
    "mistral_bracketed": [
        *(
            ("", "[TOOL_CALLS]now[ARGS]"),
            ("[TOOL_CALLS]now[ARGS]", " "),
            ("[TOOL_CALLS]now[ARGS]", "x "),
            ("[TOOL_CALLS]", "n"),
        ),
        *(("[TOOL_CALLS]now[ARGS]", '{"a":'), ("", "[TOOL_CALLS]now[ARGS]{"), ("[TOOL_CALLS]now[ARGS]", "[TOOL_")),
    ],
    "minimax_m2": [
        *(
            ("", '<invoke name="now">'),
            ("", '<invoke name="now"><parameter name="a">'),
            ('<invoke name="now">', "</invok"),
        ),
        *(("", "<invoke name="), ('<invoke name="now"><parameter name="a">', "1"), ("", "<minimax:tool_call>")),
    ],
    "minimax_m3": [
        *(
            ("", _M3),
            ("", _M3 + "<tool_call>"),
            (_M3 + '<invoke name="now">', _M3 + "<a>"),
            ("", _M3 + '<invoke name="now">'),
        ),
        *(
            (_M3 + '<invoke name="now">', _M3 + "<a>x" + _M3 + "</a>"),
            (_M3 + '<invoke name="now">' + (_M3 + "<a>") * 60, _M3 + "</b>"),
        ),
        *(("", "]<]minimax["), (_M3 + "<tool_call>", "<")),
    ],
    "functionary_v31": [
        ("", "<function=now>{}"),
        ("<function=now>", '{"a":'),
        ("", '<function=now>{"'),
        ("", "</function>"),
    ],
    "functionary_v32": [
        ("", "\n>>>"),
        ("", "\n>>>now\n"),
        ("\n>>>now\n", '{"a":'),
        ("", "\n>>>all\n"),
        ("\n>>>", "n"),
        ("", "\n>>>now\n{"),
    ],
    "command_r": [
        ("", "Action: now\nAction Input: {}\n"),
        ("Action: now\nAction Input: ", '{"a":'),
        ("", "Action: "),
        ("Action: ", "n"),
        ("Action: now\n", "\n"),
    ],
    "granite": [
        ("", "<response>"),
        ("", "<response> "),
        ("", "<response><tool_call>"),
        ("<response>", " "),
        ("", "<response><tool_call>{"),
    ],
    "gemma4": [
        *(
            ("", "<|tool_call>"),
            ("", "<|tool_call>call:now{"),
            ("<|tool_call>call:now{", "a:{"),
            ("<|tool_call>call:now{a:", '<|"|>'),
        ),
        *(("<|tool_call>call:now{", "a:1,"), ("<|tool_call>call:", "n"), ("<|tool_call>", "<tool_cal")),
    ],
    "function_gemma": [
        *(
            ("", "<start_function_call>"),
            ("<start_function_call>call:now{", "a:<escape>"),
            ("<start_function_call>call:now{", "a:{"),
        ),
        *(
            ("<start_function_call>call:now{", "a:1,"),
            ("<start_function_call>call:now{", 'a:"'),
            ("<start_function_call>call:now{a:", "}"),
        ),
        *(("<start_function_call>call:now{a:", '"\\'), ("<start_function_call>call:now{a", " ")),
    ],
    "llama3": [
        *(
            ("", "<|python_tag|>"),
            ("<|python_tag|>", '{"a":'),
            ("<|python_tag|>", "{};"),
            ('{"name": "now", "parameters": ', '{"a":'),
        ),
        *(
            ('{"name": "now", "parameters": {"a": "', "x"),
            ('{"name": "now", "parameters": {}}', ";"),
            ("", "<|python_tag|>["),
        ),
    ],
    "generic_json": [
        *(
            ("", '{"name": "now", "arguments": {'),
            ('{"arguments": ', '{"a":'),
            ("", "["),
            ("[", "{},"),
            ('{"name": "now", "arguments": {"a": "', "x"),
        ),
        *(("[", '{"name": "now", "arguments": {}},'), ("", "[{"), ("", " "), ('{"', "a"), ("{", "\n")),
    ],
    "kimi_k2": [
        *(
            ("", "<|tool_calls_section_begin|>"),
            ("", _KIMI),
            (_KIMI, "'"),
            (_KIMI, "'\\"),
            (_KIMI, "{"),
            (_KIMI, '"\\"'),
        ),
        *(("", "<|tool_call_begin|>"), (_KIMI + "{'a': ", "True, "), ("<|tool_calls_section_begin|>", "x")),
    ],
    "pythonic": [
        *(
            ("", "<|tool_call_start|>"),
            ("", "[now("),
            ("[now(a=", "["),
            ("[now(", "a=1,"),
            ("<|tool_call_start|>[now(a=", "'\\'"),
        ),
        *(
            ("<|tool_call_start|>[now(a=", "("),
            ("[", "now(),"),
            ("", "[now(a='"),
            ("<|tool_call_start|>[now(a='", "\\"),
            ("", "[now"),
        ),
        *(("<|tool_call_start|>[", "now(a=[[1],2]),"), ("", "[now()")),
    ],
    "glm47": [
        *(
            ("<tool_call>now", "<arg_key>"),
            ("<tool_call>now", "<arg_key>a</arg_key><arg_value>"),
            ("<tool_call>now ", 'a="'),
        ),
        *(("<tool_call>now ", "a=b "), ("<tool_call>now ", "{}"), ("<tool_call>", "n"), ("", "<tool_call>now ")),
    ],
    "longcat": [
        ("", "<longcat_tool_call>"),
        ("<longcat_tool_call>", "{"),
        ("<longcat_tool_call>now", "<longcat_arg_key>"),
        ("", "<longcat_tool_call>x "),
    ],
    "harmony": [
        *(
            ("", "<|channel|>"),
            ("", "<|channel|>commentary to=now<|message|>"),
            ("", "<|start|>"),
            ("<|channel|>", "<|mess"),
        ),
        *(
            ("<|channel|>final<|message|>", "<|end|"),
            ("<|channel|>commentary to=now<|message|>", "{"),
            ("<|channel|>x<|message|>", "y "),
        ),
        *(("", "<|start|>assistant<|channel|>final<|message|>a"), ("<|channel|>", "x")),
    ],
}
_CASES = [
    pytest.param(*case, id=f"{name} {case[0][-24:]!r} + {case[1]!r}")
    for name, cases in _HOSTILE.items()
    for case in cases
]


def _text(start: str, unit: str, length: int, end: str = "") -> str:
    return start + unit * (length // len(unit)) + end


def _run(text: str, size: int) -> ToolStream:
    stream = ToolStream(TOOLS)
    for position in range(0, len(text), size):
        stream.feed(TextPiece(text[position : position + size]))
    stream.finish(FinishReason.STOP)
    return stream


def _work(monkeypatch: pytest.MonkeyPatch, text: str, size: int) -> int:
    count = 0
    feed, rewind = Source.feed, Source.rewind

    def counted_feed(source: Source, text: str) -> None:
        nonlocal count
        feed(source, text)
        count += len(source.text)

    def counted_rewind(source: Source) -> None:
        nonlocal count
        rewind(source)
        # Going back inside the text at hand costs what is read again; fetching older text copies all of it.
        count += len(source.text) if source.pos == 0 else 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += 1

    with monkeypatch.context() as patch:
        patch.setattr(Source, "feed", counted_feed)
        patch.setattr(Source, "rewind", counted_rewind)
        sys.setprofile(profile)
        try:
            _run(text, size)
        finally:
            sys.setprofile(None)
    return count


def test_every_format_is_attacked() -> None:
    assert _HOSTILE.keys() == FORMATS.keys()


@pytest.mark.parametrize(("start", "unit"), _CASES)
def test_twice_the_text_is_twice_the_work(start: str, unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Far above every limit on lengths and depths; those make work grow more slowly from there on.
    for size, length, end in ((1, 1500, ""), (100_000, 4000, "</tool_call>!")):
        small, large = (_work(monkeypatch, _text(start, unit, factor * length, end), size) for factor in (1, 2))
        assert large < 2.3 * small + 2000


@pytest.mark.parametrize("name", _HOSTILE)
def test_200_kb_go_through(name: str) -> None:
    cases = _HOSTILE[name]
    for end in ("", "\n"):
        text = end.join(_text(start, unit, 200_000 // len(cases)) for start, unit in cases)
        stream = _run(text, 200_000)
        assert len(stream.message.content) <= len(text)
