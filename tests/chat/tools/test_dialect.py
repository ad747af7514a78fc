"""The format of a template, and that a call as the template writes it is read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlxcel.chat.messages import normalize, probe_style
from mlxcel.chat.template import ChatTemplate
from mlxcel.chat.tools import Dialect, ToolSet, dialect_of_template, whole

_TEMPLATES = Path(__file__).parent.parent / "templates"
_ARGUMENTS = {"city": "Oslo", "days": 2}
_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "How it is",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    },
}

# How each format's templates write the calls of `message`. `c` is a call's function, `a` its arguments.
_CALLS = "{% for call in message.tool_calls %}{% set c = call.function %}{% set a = c.arguments %}"
_EACH = "{% for k, v in a.items() %}"
_COMMA = "{% if not loop.last %},{% endif %}{% endfor %}"
_WRITERS: dict[Dialect, str] = {
    Dialect.HERMES: '<tool_call>\n{"name": "{{ c.name }}", "arguments": {{ a|tojson }}}\n</tool_call>',
    Dialect.QWEN3_CODER: (
        f"<tool_call>\n<function={{{{ c.name }}}}>\n{_EACH}<parameter={{{{ k }}}}>\n{{{{ v }}}}\n</parameter>\n"
        "{% endfor %}</function>\n</tool_call>"
    ),
    Dialect.MISTRAL_NEMO: '[TOOL_CALLS] [{"name": "{{ c.name }}", "arguments": {{ a|tojson }}, "id": "123456789"}]',
    Dialect.MISTRAL_BRACKETED: "[TOOL_CALLS]{{ c.name }}[ARGS]{{ a|tojson }}",
    Dialect.MINIMAX_M2: (
        f'<minimax:tool_call>\n<invoke name="{{{{ c.name }}}}">{_EACH}<parameter name="{{{{ k }}}}">'
        "{{ v }}</parameter>"
        "{% endfor %}</invoke>\n</minimax:tool_call>"
    ),
    Dialect.MINIMAX_M3: (
        "{% set n = ']<]minimax[>[' %}{{ n }}<tool_call>{{ n }}<invoke name=\"{{ c.name }}\">"
        f"{_EACH}{{{{ n }}}}<{{{{ k }}}}>{{{{ v }}}}{{{{ n }}}}</{{{{ k }}}}>{{% endfor %}}"
        "{{ n }}</invoke>{{ n }}</tool_call>"
    ),
    Dialect.FUNCTIONARY_V31: "<function={{ c.name }}>{{ a|tojson }}</function>",
    Dialect.FUNCTIONARY_V32: ">>>{{ c.name }}\n{{ a|tojson }}",
    Dialect.COMMAND_R: "Action: {{ c.name }}\nAction Input: {{ a|tojson }}",
    Dialect.GRANITE: (
        '<response><tool_call>{"name": "{{ c.name }}", "arguments": {{ a|tojson }}}</tool_call></response>'
    ),
    Dialect.GEMMA4: (
        f"<|tool_call>call:{{{{ c.name }}}}{{{{ '{{' }}}}{_EACH}{{{{ k }}}}:"
        f'{{% if v is string %}}<|"|>{{{{ v }}}}<|"|>{{% else %}}{{{{ v }}}}{{% endif %}}{_COMMA}'
        "{{ '}' }}<tool_call|>"
    ),
    Dialect.FUNCTION_GEMMA: (
        f"<start_function_call>call:{{{{ c.name }}}}{{{{ '{{' }}}}{_EACH}{{{{ k }}}}:"
        f"{{% if v is string %}}<escape>{{{{ v }}}}<escape>{{% else %}}{{{{ v }}}}{{% endif %}}{_COMMA}"
        "{{ '}' }}<end_function_call>"
    ),
    Dialect.LLAMA3: '<|python_tag|>{"name": "{{ c.name }}", "parameters": {{ a|tojson }}}',
    Dialect.GENERIC_JSON: '{"name": "{{ c.name }}", "arguments": {{ a|tojson }}}',
    Dialect.KIMI_K2: (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.{{ c.name }}:0"
        "<|tool_call_argument_begin|>{{ a|tojson }}<|tool_call_end|><|tool_calls_section_end|>"
    ),
    Dialect.PYTHONIC: (
        f"<|tool_call_start|>[{{{{ c.name }}}}({_EACH}{{{{ k }}}}={{{{ v|tojson }}}}{_COMMA})]<|tool_call_end|>"
    ),
    Dialect.GLM47: (
        f"<tool_call>{{{{ c.name }}}}{_EACH}<arg_key>{{{{ k }}}}</arg_key><arg_value>{{{{ v }}}}</arg_value>"
        "{% endfor %}</tool_call>"
    ),
    Dialect.LONGCAT: (
        f"<longcat_tool_call>{{{{ c.name }}}}{_EACH}<longcat_arg_key>{{{{ k }}}}</longcat_arg_key>"
        "<longcat_arg_value>{{ v }}</longcat_arg_value>{% endfor %}</longcat_tool_call>"
    ),
    Dialect.HARMONY: (
        "<|channel|>commentary to=functions.{{ c.name }} <|constrain|>json<|message|>{{ a|tojson }}<|call|>"
    ),
}


def _template(writer: str) -> str:
    return (
        "{% for message in messages %}[{{ message.role }}] {{ message.content }}{% if message.tool_calls %}"
        + _CALLS
        + writer
        + "{% endfor %}{% endif %}{% endfor %}"
    )


def _written_call(source: str) -> str:
    """What a template adds for an assistant's call."""
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": ""})
    call = {"id": "abcdefghi", "function": {"name": "get_weather", "arguments": json.dumps(_ARGUMENTS)}}
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    style = probe_style(template)
    before, after = (
        template.render(
            normalize(turns[:count], style=style, preserve_thinking=True),
            tools=[_TOOL],
            add_generation_prompt=count == 1,
        )
        for count in (1, 2)
    )
    # A template may write the beginning of an answer, of a block for its reasoning say, that no call goes on from.
    assert after.startswith(before)
    return after[len(before) :]


def _check(source: str, dialect: Dialect, prefix: str = "") -> None:
    text = _written_call(source).removeprefix(prefix)
    message = whole(text, ToolSet.of_request([_TOOL]), dialect)
    assert [(call.name, json.loads(call.arguments)) for call in message.calls] == [("get_weather", _ARGUMENTS)]


def test_every_format_has_a_template() -> None:
    assert _WRITERS.keys() == set(Dialect)


@pytest.mark.parametrize("dialect", _WRITERS)
def test_a_template_of_each_format(dialect: Dialect) -> None:
    source = _template(_WRITERS[dialect])
    assert dialect_of_template(source) is dialect
    _check(source, dialect, prefix="[assistant] ")


@pytest.mark.parametrize(
    ("name", "dialect"), [("qwen3", Dialect.HERMES), ("llama3", Dialect.LLAMA3), ("mistral", Dialect.MISTRAL_NEMO)]
)
def test_templates_of_models(name: str, dialect: Dialect) -> None:
    source = (_TEMPLATES / f"{name}.jinja").read_text()
    assert dialect_of_template(source) is dialect
    _check(source, dialect)


@pytest.mark.parametrize("name", ["chatml", "gemma", "llama2", "phi", "deepseek", "typescript_tools"])
def test_templates_without_a_known_format(name: str) -> None:
    assert dialect_of_template((_TEMPLATES / f"{name}.jinja").read_text()) is None


@pytest.mark.parametrize(
    ("source", "dialect"),
    [
        ("", None),
        ("<tools> <tool_response>", None),
        (r'{{- "{\"name\": <name>, \"arguments\": <args>}" }}', Dialect.GENERIC_JSON),
        ("<tool_call>\\n<function=example>\\n<parameter=x>", Dialect.QWEN3_CODER),
        ("<tool_call>{name}<arg_key>", Dialect.GLM47),
        ("<|python_tag|> <function=example>", Dialect.FUNCTIONARY_V31),
        ("[TOOL_CALLS] [CALL_ID] [ARGS]", Dialect.MISTRAL_BRACKETED),
        ("<|channel|> alone", None),
        ('<tool_calls>{"name": "f", "arguments": {}}</tool_calls>', None),
        ('within <tool_call></tool_call> tags: <tool_calls>[{"name": "f", "arguments": {}}]</tool_calls>', None),
        ('<TOOLCALL>[{"name": "f", "arguments": {}}]</TOOLCALL>', None),
        (r"<|python_start|> {\"name\": function name, \"parameters\": dictionary}", Dialect.LLAMA3),
        ("<|python_start|> [func_name1(params_name1=params_value1...)]", Dialect.PYTHONIC),
        ("[func_name1(params_name1=params_value1...)]", Dialect.PYTHONIC),
    ],
)
def test_marks(source: str, dialect: Dialect | None) -> None:
    assert dialect_of_template(source) is dialect
