"""Grammars of answers that must call tools."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from mlxcel.grammar.compiler import Compiler
from mlxcel.grammar.errors import GrammarError, NotCompiled
from mlxcel.grammar.forced_tools import HERMES, LLAMA3, LLAMA3_TAGGED, MISTRAL_NEMO, Tool, WireForm
from mlxcel.grammar.vocabulary import Vocabulary

from .tokenizers import allowed, byte_tokenizer, info_of, spell, wander

UNIT = {"$ref": "#/$defs/unit"}
TOOLS = [
    Tool(
        "weather",
        {
            "type": "object",
            "properties": {"unit": UNIT, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["unit", "days"],
            "additionalProperties": False,
            "$defs": {"unit": {"enum": ["C", "F"]}},
        },
    ),
    Tool("no-\u00fcse", None),
]
TOKENIZER = byte_tokenizer("[TOOL_CALLS]", "<|python_tag|>")
CALLS, TAG = 266, 267
CALL = re.compile(
    r'\{"name": ("[^"]*"), "(arguments|parameters)": (.*?\})\}(?=\n</tool_call>|; \{|, \{"name|\]$|$)', re.S
)


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    return Compiler(info_of(TOKENIZER))


@pytest.mark.parametrize("form", [HERMES, MISTRAL_NEMO, LLAMA3, LLAMA3_TAGGED])
@pytest.mark.parametrize("once", [True, False])
def test_random_answers_are_calls(compiler: Compiler, form: WireForm, once: bool) -> None:
    rule = compiler.forced_tools(TOOLS[:1], form, once=once)
    counts = set()
    for seed in range(15):
        text = wander(rule.begin(), TOKENIZER, seed, 900)
        if text is None:
            continue
        calls = CALL.findall(text.decode())
        counts.add(len(calls))
        for name, key, arguments in calls:
            assert json.loads(name) == "weather"
            assert key == form.arguments_key
            value = json.loads(arguments)
            assert value["unit"] in ("C", "F")
            assert value["days"] in range(1, 10)
    assert counts
    assert (counts == {1}) is once or not once


def test_the_wrapper_is_made_of_the_tokenizers_own_special_tokens(compiler: Compiler) -> None:
    assert allowed(compiler.forced_tools(TOOLS, MISTRAL_NEMO, once=True).begin()) == [CALLS]
    assert allowed(compiler.forced_tools(TOOLS, LLAMA3_TAGGED, once=True).begin()) == [TAG]
    assert ord("<") in allowed(compiler.forced_tools(TOOLS, HERMES, once=True).begin())


def test_only_declared_names_may_be_said(compiler: Compiler) -> None:
    constraint = compiler.forced_tools(TOOLS, LLAMA3, once=True).begin()
    assert spell(constraint, TOKENIZER, '{"name": "') is False
    assert allowed(constraint) == [ord("n"), ord("w")]
    rest = json.dumps("no-\u00fcse")[1:] + ', "parameters": {"a": [1]}}'
    assert spell(constraint, TOKENIZER, rest) is True


def test_one_call_or_several(compiler: Compiler) -> None:
    call = b'<tool_call>\n{"name": "weather", "arguments": {"unit":"C","days":2}}\n</tool_call>'
    one = compiler.forced_tools(TOOLS, HERMES, once=True).begin()
    assert spell(one, TOKENIZER, call) is True
    several = compiler.forced_tools(TOOLS, HERMES, once=False).begin()
    assert spell(several, TOKENIZER, call) is False
    assert allowed(several) == [ord("\n"), 256]
    assert spell(several, TOKENIZER, b"\n" + call) is False


@pytest.mark.parametrize(
    "parameters",
    [{"type": None, "properties": None, "required": None}, {"type": "string"}, {"type": ["object", "null"]}],
)
def test_arguments_are_an_object_whatever_a_client_writes(compiler: Compiler, parameters: dict[str, Any]) -> None:
    rule = compiler.forced_tools([Tool("now", parameters)], LLAMA3, once=True)
    assert spell(rule.begin(), TOKENIZER, '{"name": "now", "parameters": {}}')
    for other in ("null", '"'):
        assert spell(rule.begin(), TOKENIZER, f'{{"name": "now", "parameters": {other}') is None


def test_what_no_grammar_can_be_made_of(compiler: Compiler) -> None:
    many = [Tool(f"f{i}", {"description": "x" * 1000}) for i in range(70)]
    for tools in ([], many, [Tool("f", {"not": {}})], [Tool("f", {"anyOf": [{"$ref": "#"}] * 65})]):
        with pytest.raises(GrammarError):
            compiler.forced_tools(tools, HERMES, once=True)
    with pytest.raises(NotCompiled, match="no tool"):
        compiler.forced_tools([], HERMES, once=True)


def test_tools_that_can_be_borne_one_by_one_may_be_too_much_together(compiler: Compiler) -> None:
    def tools(count: int) -> list[Tool]:
        return [Tool(f"f{i}", {"properties": {"a": {"multipleOf": 9001 + 2 * i}}}) for i in range(count)]

    compiler.forced_tools(tools(2), HERMES, once=True)
    with pytest.raises(NotCompiled, match="multipleOf"):
        compiler.forced_tools(tools(20), HERMES, once=True)


def test_a_vocabulary_spells_special_tokens() -> None:
    vocabulary = Vocabulary(info_of(TOKENIZER))
    assert vocabulary.spelled(TAG) == b"<|python_tag|>"
    assert vocabulary.tokens_of("a<|python_tag|>") == [ord("a"), TAG]
