"""Which format a model's own chat template writes its tool calls in."""

from __future__ import annotations

import enum


class Dialect(enum.StrEnum):
    """The formats, in the order in which a template's text is asked for them."""

    HARMONY = "harmony"
    MINIMAX_M3 = "minimax_m3"
    LONGCAT = "longcat"
    GLM47 = "glm47"
    KIMI_K2 = "kimi_k2"
    GEMMA4 = "gemma4"
    FUNCTION_GEMMA = "function_gemma"
    MINIMAX_M2 = "minimax_m2"
    QWEN3_CODER = "qwen3_coder"
    GRANITE = "granite"
    HERMES = "hermes"
    MISTRAL_BRACKETED = "mistral_bracketed"
    MISTRAL_NEMO = "mistral_nemo"
    FUNCTIONARY_V32 = "functionary_v32"
    FUNCTIONARY_V31 = "functionary_v31"
    PYTHONIC = "pythonic"
    LLAMA3 = "llama3"
    COMMAND_R = "command_r"
    GENERIC_JSON = "generic_json"


_SIGNS: dict[Dialect, tuple[tuple[str, ...], ...]] = {
    Dialect.HARMONY: (("<|channel|>", "<|message|>"),),
    Dialect.MINIMAX_M3: (("]<]minimax[>[",),),
    Dialect.LONGCAT: (("<longcat_tool_call>",), ("<longcat_arg_key>",)),
    Dialect.GLM47: (("<arg_key>",),),
    Dialect.KIMI_K2: (("<|tool_calls_section_begin|>",),),
    Dialect.GEMMA4: (("<|tool_call>",),),
    Dialect.FUNCTION_GEMMA: (("<start_function_call>",),),
    Dialect.MINIMAX_M2: (("<minimax:tool_call>",), ("<invoke name=",)),
    Dialect.QWEN3_CODER: (("<function=", "<parameter="),),
    Dialect.GRANITE: (("<response>", "<tool_call>"),),
    Dialect.HERMES: (("<tool_call>",),),
    Dialect.MISTRAL_BRACKETED: (("[TOOL_CALLS]", "[ARGS]"),),
    Dialect.MISTRAL_NEMO: (("[TOOL_CALLS]",),),
    Dialect.FUNCTIONARY_V32: ((">>>",),),
    Dialect.FUNCTIONARY_V31: (("<function=",),),
    Dialect.PYTHONIC: (("<|tool_call_start|>",), ("<|tool_list_start|>",), ("[func_name1(",)),
    Dialect.LLAMA3: (
        ("<|python_tag|>",),
        ("<|start_header_id|>", '{"name": ', '"parameters": '),
        ("<|python_start|>", '{"name": ', '"parameters": '),
    ),
    Dialect.COMMAND_R: (("Action:", "Action Input:"),),
    Dialect.GENERIC_JSON: (('"name"', '"arguments"'),),
}
"""For each format: groups of marks. A template that holds all marks of a group writes that format."""

_FOREIGN = ("<tool_calls>", "<TOOLCALL>", "<|function_call|>", " functools[")
"""Wrappers of formats that nothing here reads. What is inside looks like one of these two."""
_BEHIND_FOREIGN = frozenset({Dialect.HERMES, Dialect.GENERIC_JSON})


def dialect_of_template(source: str) -> Dialect | None:
    """The format that a chat template shows its model; None when it shows none we know.

    source: the Jinja text, in which quotes may be escaped.
    """
    text = unescaped(source)
    for dialect, groups in _SIGNS.items():
        if any(all(mark in text for mark in group) for group in groups):
            foreign = dialect in _BEHIND_FOREIGN and any(mark in text for mark in _FOREIGN)
            return None if foreign else dialect
    return None


def unescaped(source: str) -> str:
    """A template's text with the quotes inside its strings as they are rendered."""
    return source.replace('\\"', '"').replace("\\'", "'")
