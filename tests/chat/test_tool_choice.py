"""Tools of a request: what is refused, what the model is shown and told."""

from __future__ import annotations

from typing import Any

import pytest

from mlxcel.chat.errors import PromptError
from mlxcel.chat.tool_choice import MAX_TOOLS, Choice, instruct, read_tools


def tool(name: str = "f", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}, **fields}


def named(name: str = "f") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


TWO = [tool("f"), tool("g")]


@pytest.mark.parametrize(
    ("tools", "choice", "shown", "kind"),
    [
        (None, None, (), Choice.AUTO),
        ([], "auto", (), Choice.AUTO),
        ([], "none", (), Choice.NONE),
        (TWO, None, ("f", "g"), Choice.AUTO),
        (TWO, "none", (), Choice.NONE),
        (TWO, "required", ("f", "g"), Choice.REQUIRED),
        (TWO, named("g"), ("g",), Choice.NAMED),
        ([tool("g"), tool("f"), tool("f")], named(), ("f",), Choice.NAMED),
    ],
)
def test_what_is_shown(tools: Any, choice: Any, shown: tuple[str, ...], kind: Choice) -> None:
    use = read_tools(tools, choice)
    assert (use.names, use.choice) == (shown, kind)
    assert use.forced is (kind in (Choice.REQUIRED, Choice.NAMED))
    assert bool(use.instruction) is use.forced


def test_definitions_are_shown_as_they_were_sent() -> None:
    odd = {"function": {"name": "f", "strict": True, "parameters": None, "x": [1]}, "y": 2}
    assert read_tools([odd], "auto").shown == (odd,)


@pytest.mark.parametrize(
    ("tools", "choice"),
    [
        (None, "required"),
        ([], "required"),
        (None, named()),
        (TWO, named("h")),
        (TWO, named("")),
        (TWO, {"type": "function", "name": "f"}),
        (TWO, {"type": "function", "function": "f"}),
        (TWO, {"type": "tool", "function": {"name": "f"}}),
        (TWO, {"type": "allowed_tools"}),
        (TWO, {"function": {"name": "f"}}),
        (TWO, {}),
        (TWO, "sometimes"),
        (TWO, ""),
        (TWO, 1),
    ],
)
def test_choices_that_are_refused(tools: Any, choice: Any) -> None:
    with pytest.raises(PromptError) as caught:
        read_tools(tools, choice)
    assert caught.value.param == "tool_choice"


@pytest.mark.parametrize(
    "tools",
    [
        [{}],
        [1],
        [{"type": "function"}],
        [{"type": "web_search", "function": {"name": "f"}}],
        [{"type": "function", "function": {}}],
        [{"type": "function", "function": {"name": ""}}],
        [{"type": "function", "function": {"name": 1}}],
        [{"type": "function", "function": {"name": "f", "parameters": []}}],
        [tool()] * (MAX_TOOLS + 1),
    ],
)
@pytest.mark.parametrize("choice", [None, "none", "required"])
def test_tools_that_are_refused(tools: Any, choice: Any) -> None:
    with pytest.raises(PromptError) as caught:
        read_tools(tools, choice)
    assert caught.value.param == "tools"


def test_as_many_tools_as_are_allowed() -> None:
    assert len(read_tools([tool()] * MAX_TOOLS, None).shown) == MAX_TOOLS


def test_the_instruction_is_the_same_for_the_same_choice() -> None:
    assert read_tools(TWO, "required").instruction == read_tools([tool("x")], "required").instruction
    assert '"g"' in read_tools(TWO, named("g")).instruction


USER = {"role": "user", "content": "question"}
PARTS = {"role": "user", "content": [{"type": "text", "text": "question"}]}
ANSWER = {"role": "assistant", "content": "answer"}


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (
            [{"role": "system", "content": "a"}, {"role": "system", "content": "b"}, USER],
            [{"role": "system", "content": "a\n\nDO"}, {"role": "system", "content": "b"}, USER],
        ),
        ([USER, {"role": "developer", "content": "a"}], [USER, {"role": "developer", "content": "a\n\nDO"}]),
        ([{"role": "system", "content": None}, USER], [{"role": "system", "content": "DO"}, USER]),
        ([USER, ANSWER, USER, ANSWER], [USER, ANSWER, {"role": "user", "content": "question\n\nDO"}, ANSWER]),
        ([PARTS], [{"role": "user", "content": [*PARTS["content"], {"type": "text", "text": "DO"}]}]),
        ([ANSWER], [{"role": "system", "content": "DO"}, ANSWER]),
    ],
)
def test_where_the_instruction_stands(messages: list[Any], expected: list[Any]) -> None:
    before = repr(messages)
    assert instruct(messages, "DO") == expected
    assert repr(messages) == before
    assert instruct(messages, "") == messages
