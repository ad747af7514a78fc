"""Compiling and rendering: variables, refusals, and templates that mean harm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

import pytest

from mlxcel.chat.errors import PromptError
from mlxcel.chat.limits import Limits
from mlxcel.chat.template import ChatTemplate

USER = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


def render(source: str, **options: object) -> str:
    return ChatTemplate(source, {"eos_token": "</s>"}).render(USER, **options)  # pyright: ignore


class TestVariables:
    def test_tools_are_undefined_without_tools(self) -> None:
        source = "{{ tools is defined }} {{ documents is defined }}"
        assert render(source) == "False False"
        assert render(source, tools=[]) == "False False"
        assert render(source, tools=[TOOL]) == "True False"

    def test_missing_special_tokens_are_undefined(self) -> None:
        assert render("{{ bos_token is defined }}{{ bos_token }}{{ eos_token }}") == "False</s>"

    def test_variables_reach_the_template_but_not_over_messages_and_tools(self) -> None:
        source = "{{ depth }}{{ messages|length }}{{ tools is defined }}{{ add_generation_prompt }}"
        variables = {"depth": [1], "messages": [], "tools": [TOOL], "add_generation_prompt": False}
        assert render(source, variables=variables) == "[1]1FalseFalse"

    @pytest.mark.parametrize(
        ("family", "expected"),
        [
            ("llama3", True),
            ("mistral", True),
            ("qwen3", True),
            ("typescript_tools", True),
            ("chatml", False),
            ("gemma", False),
            ("phi", False),
            ("deepseek", False),
        ],
    )
    def test_supports_tools(self, template_source: Callable[[str], str], family: str, expected: bool) -> None:
        assert ChatTemplate(template_source(family), {}).supports_tools is expected

    def test_names_its_variables(self) -> None:
        source = "{% set own = 1 %}{% macro m(x) %}{{ x }}{{ inner }}{% endmacro %}{{ m(own) }}{{ outer }}"
        assert ChatTemplate(source, {}).variables == {"inner", "outer"}

    def test_strftime_now(self) -> None:
        assert render("{{ strftime_now('%Y') }}") in (str(datetime.now().year), str(datetime.now().year - 1))

    @pytest.mark.parametrize(
        ("source", "text"),
        [
            ("{{ [1, 2, 3] | batch(2, 0) | list }}", "[[1, 2], [3, 0]]"),
            ("{{ [1, 2, 3] | slice(2) | list }}", "[[1, 2], [3]]"),
            ("{{ [1, 2.5] | sum }} {{ 2.567 | round(1) }}", "3.5 2.6"),
            ("{{ '%s-%03d' | format('a', 7) }} {{ '%(x)s' % {'x': 1} }}", "a-007 1"),
            ("{{ '{:>3}|{x!r}'.format(1, x='a') }}", "  1|'a'"),
            ("{{ 3 * 'ab' }}{{ [0] * 2 }}{{ 2 ** 10 }}", "ababab[0, 0]1024"),
            ("{{ 'ab'.ljust(3) }}|{{ ','.join(['a', 'b']) }}|{{ 'aa'.replace('a', 'bc', 1) }}", "ab |a,b|bca"),
            ("{{ messages | tojson(indent=1, sort_keys=true) }}", '[\n {\n  "content": "Hi",\n  "role": "user"\n }\n]'),
            ("{% for x in [1, 2, 3] if x != 2 %}{{ loop.index }}/{{ loop.length }} {% endfor %}", "1/2 2/2 "),
            ("{% generation %}{{ none }}{{ 'é<' | tojson }}{% endgeneration %}", 'None"é<"'),
        ],
    )
    def test_guards_leave_honest_values_alone(self, source: str, text: str) -> None:
        assert render(source) == text

    @pytest.mark.parametrize(
        ("source", "text"),
        [
            ("{{ 'ab' | center(4) }}|{{ 'a b' | wordwrap(1) }}|{{ 2048 | filesizeformat }}", " ab |a\nb|2.0 kB"),
            ("{{ '<b>x</b>' | striptags }}|{{ {'a': 1} | xmlattr }}|{{ '<' | forceescape }}", 'x| a="1"|&lt;'),
            ("{{ [1] | pprint }}|{{ [7] | random }}|{{ 'http://a.bc' | urlize | length > 9 }}", "[1]|7|True"),
            ("{{ lipsum(1, false, 3, 4) | length > 3 }}|{{ dict.fromkeys('ab', 0) }}", "True|{'a': 0, 'b': 0}"),
            (
                "{{ 'a\tb'.expandtabs(2) }}|{{ 'a,b'.split(',') }}|{{ 'a\nb'.splitlines() }}",
                "a b|['a', 'b']|['a', 'b']",
            ),
            ("{{ dict([('a', 1)], b=2) }}|{{ [3, 1] | sort | first }}|{{ [[1]] == [[1]] }}", "{'a': 1, 'b': 2}|1|True"),
            ("{{ 'role' in messages[0] }}|{{ messages[::-1] | map(attribute='role') | join }}", "True|user"),
            ("{% if [1, 2] is eq([1, 2]) and 1 is in([1]) %}{{ [2, 2] | unique | list }}{% endif %}", "[2]"),
        ],
    )
    def test_everything_of_transformers_works(self, source: str, text: str) -> None:
        assert render(source) == text

    def test_a_list_of_the_templates_own_grows_and_shrinks(self) -> None:
        source = (
            "{% set queue = namespace(ids=[]) %}"
            "{% for id in 'abc' %}{% set _ = queue.ids.append(id) %}{% endfor %}"
            "{{ queue.ids.pop(0) }}{{ queue.ids }}"
        )
        template = ChatTemplate(source, {})
        assert template.render(USER) == template.render(USER) == "a['b', 'c']"

    def test_messages_are_not_changed(self) -> None:
        with pytest.raises(PromptError, match="unsafe"):
            render("{{ messages.append(1) }}")
        assert len(USER) == 1


class TestRefusals:
    def test_own_words_of_the_template(self) -> None:
        with pytest.raises(PromptError) as caught:
            render("{{ raise_exception('No system role, sorry <&>') }}")
        assert str(caught.value) == "No system role, sorry <&>"

    def test_long_words_are_cut(self) -> None:
        for source in ("{{ raise_exception('a' * 10**6) }}", "{{ {'a': 1}[messages] }}{{ ('a' * 10**6) | int / 0 }}"):
            with pytest.raises(PromptError) as caught:
                render(source)
            assert 0 < len(str(caught.value)) < 3000

    def test_refusal_without_words(self) -> None:
        with pytest.raises(PromptError, match="refuses"):
            render("{{ raise_exception('') }}")

    @pytest.mark.parametrize(
        ("source", "reason"),
        [
            ("{{ nowhere.at.all }}", "'nowhere' is undefined"),
            ("{{ messages[0].content + 1 }}", "TypeError"),
            ("{{ tools | tojson }}", "not JSON serializable"),
            ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ],
    )
    def test_failures_carry_their_reason(self, source: str, reason: str) -> None:
        with pytest.raises(PromptError, match=reason):
            render(source)

    @pytest.mark.parametrize(
        ("source", "reason"),
        [
            ("{% if true %}", "Unexpected end.*line 1"),
            ("\n{{ 'a' | no_such_filter }}", "no_such_filter.*line 2"),
            ("{{ " + "(" * 2000 + "1" + ")" * 2000 + " }}", "too deeply"),
        ],
    )
    def test_invalid_templates(self, source: str, reason: str) -> None:
        with pytest.raises(PromptError, match=f"not valid: .*{reason}"):
            ChatTemplate(source, {})


DOUBLING = "{{% set ns = namespace(x={0}) %}}{{% for i in range(200) %}}{{% set ns.x = {1} %}}{{% endfor %}}{2}"

ESCAPES = [
    "{{ ''.__class__.__mro__ }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ raise_exception.__globals__['os'] }}",
    "{{ namespace(__class__=1) }}",
    "{% set ns = namespace() %}{% set ns._x = 1 %}",
    "{{ ''.__class__ }}",
    "{{ '' | attr('__class__') }}",
    "{{ messages | map(attribute='__class__') | list }}",
    "{{ ('{0.__class__}' | attr('format'))(1) }}",
    "{{ ('{0.__class__}' | safe).format(1) }}",
    "{{ '{a.__class__}'.format_map({'a': 1}) }}",
    "{{ joiner.__init__ }}",
    "{{ self._TemplateReference__context }}",
    "{% macro f() %}{{ caller._func.__globals__ }}{% endmacro %}{% call f() %}{% endcall %}",
    "{% set g = messages | map(attribute='role') %}{{ g.gi_frame.f_globals }}",
    "{{ messages[0].clear() }}",
    "{{ messages.pop() }}",
    "{% set x = [] %}{% set _ = x.append(x) %}",
    "{{ 'ab'.encode('idna') }}",
    "{% debug %}",
    "{% from '/etc/passwd' import x %}",
    "{{ dict.mro() }}",
    "{{ '{0.__class__.__mro__}'.format(1) }}",
    "{{ lipsum.__globals__ }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{% extends '/etc/passwd' %}",
]
ENDLESS = [
    "{% for i in range(10**9) %}{% endfor %}",
    "{% for i in range(9**5) %}{% for j in range(9**5) %}{% endfor %}{% endfor %}",
    "{% for i in range(9**5) %}{% for j in range(9**5) if false %}{% endfor %}{% endfor %}",
    "{% for i in range(9**5) if messages|map(attribute='role')|list|length == 2 %}{% endfor %}"
    "{% for i in range(9**5) %}{% for j in range(9**5) %}{% continue %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% for x in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
    "{% block a %}{{ self.a() }}{% endblock %}",
    "{% set x = [1] %}{% for i in x %}{% set _ = x.append(1) %}{% endfor %}",
    "{% set c = cycler(1) %}{% for i in range(9**5) %}{% for j in range(9**5) %}{{ c.next() }}{% endfor %}{% endfor %}",
    "{{ ('a' * 10**6) | map(attribute='b') | list | length }}",
    "{{ ('a' * 10**6) | selectattr('b', 'undefined') | list | length }}",
    "{{ ('a' * 10**6) | sort(attribute='b.c') | length }}",
    "{{ ('a' * 10**6) | map('upper') | join }}",
    "{% set x = [1] * 10**5 %}{{ ([2] * 10**5) | select('in', x) | list }}",
    "{% set x = [1] * 10**5 %}{% for i in range(9**5) %}{{ 2 in x }}{% endfor %}",
    "{% set x = 'ab' * 10**5 %}{% for i in range(9**5) %}{{ 'bb' in x }}{% endfor %}",
    "{% macro f(n) %}{% if n %}{% call f(n - 1) %}{% endcall %}{% call f(n - 1) %}{% endcall %}{% endif %}"
    "{% endmacro %}{{ f(60) }}",
]
# Tuples and dicts of arguments that hold the previous ones twice: comparing two of them would take for ever.
ARGUMENTS = (
    "{%% macro f(n, other) %%}{%% if n %%}{{ f(n - 1, other, %s) }}{%% elif other %%}{{ f(60, 0, %s) }}"
    "{%% else %%}{{ varargs == varargs[0] }}{{ kwargs == other }}{%% endif %%}{%% endmacro %%}{{ f(60, 1, %s) }}"
)
BOMBS = [
    ARGUMENTS % ("varargs, varargs", "1, 1", "1, 1"),
    ARGUMENTS % ("a=kwargs, b=kwargs", "a=1, b=1", "a=1, b=1"),
    "{% macro f(n) %}{{ f(n - 1, *varargs) }}{% endmacro %}{{ f(100, *('a' * 10**6)) }}",
    "{{ ('a ' * 10**5 * 5).split() | length }}",
    "{{ ('a,' * 10**5 * 5).split(',') | length }}",
    "{{ ('\n' * 10**6).splitlines() | length }}",
    "{{ ('a' * 10**6) | list | length }}",
    "{{ [1] | map(attribute='real.' * 10**5) | list }}",
    "{{ [1] | sort(attribute='real.' * 10**5) }}",
    "{{ ('a ' * 10**4) | wordwrap(1) }}",
    "{{ ('a ' * 10**3) | wordwrap(1, wrapstring='x' * 10**6) }}",
    "{{ ([1] * 10**4) | pprint }}",
    "{{ ('<' * 10**5) | striptags }}",
    "{{ (('<' * 10**5) | safe).striptags() }}",
    "{{ ('a@' * 10**5) | urlize }}",
    "{{ ('a' * 10**5 * 9) | title }}",
    "{{ ('<' * 10**6) | forceescape }}",
    "{{ ('<' * 10**6) | urlencode }}",
    "{{ {'a': '<' * 10**6} | xmlattr }}",
    "{{ strftime_now('%c' * 10**5) }}",
    "{{ dict.fromkeys('a' * 10**6) }}{{ dict(('ab' * 10**5 * 5) | batch(2)) }}",
    "{{ lipsum(1, min=10**8, max=10**9) }}",
    "{{ lipsum(10**9, max=0) }}",
    "{{ ('a' * 10**6) | tojson }}{{ ('a' * 10**6) | tojson(ensure_ascii=true) }}",
    "{{ 'a' * 10**10 }}",
    "{{ 10**10 * [0] }}",
    "{{ 10**(10**8) }}",
    "{{ range(10**12) | list }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '%(a)999999999d' % {'a': 1} }}",
    "{{ '%.999999999f' % 1 }}",
    "{{ '%*d' % (999999999, 1) }}",
    "{{ '%999999999d' | format(1) }}",
    "{{ '{:>999999999}'.format(1) }}",
    "{{ '{:{}}'.format(1, 999999999) }}",
    "{{ '{x:>999999999}'.format_map({'x': 1}) }}",
    "{{ ('{0}' * 100000).format('a' * 100000) }}",
    "{{ ('%(a)s' * 100000) % {'a': 'a' * 100000} }}",
    "{{ 'x'.ljust(10**10) }}{{ 'x'.zfill(10**10) }}",
    "{{ 'a\tb'.expandtabs(10**10) }}",
    "{{ 'ab'.encode() }}",
    "{{ (5).to_bytes(10**10, 'big') }}",
    "{{ 'ab'.translate({97: 'x' * 10**6}) }}",
    "{{ ('a' * 10**6).replace('', 'a' * 10**6) }}",
    "{{ ('a' * 10**6) | replace('a', 'a' * 10**6) }}",
    "{{ ('a' * 10**5).join(['b'] * 10**5) }}",
    "{{ (['b'] * 10**5) | join('a' * 10**5) }}",
    "{{ 'x' | indent(10**10) }}",
    "{{ ('\n' * 10**6) | indent('a' * 10**6) }}",
    "{% filter indent(10**10) %}x{% endfilter %}",
    "{{ [1] | batch(10**10, 0) | list }}",
    "{{ [1] | slice(10**10) | list }}",
    "{{ 1.5 | round(10**10, 'ceil') }}",
    "{{ ('x' * 10**6) | map('list') | sum(start=[]) }}",
    "{{ messages | tojson(indent=10**10) }}",
    "{{ messages | tojson(indent='a' * 10**6) | length }}{{ ([[]] * 10**5) | tojson(indent='a' * 10**6) }}",
    "{{ lipsum(10**9) }}",
    "{{ 'x' | center(10**10) }}",
    "{% set x %}{% for i in range(9**5) %}" + "A" * 10**5 + "{% endfor %}{% endset %}",
    "{% for i in range(9**5) %}{{ 'A' * 10**6 }}{% endfor %}",
    DOUBLING.format("9", "ns.x * ns.x", ""),
    DOUBLING.format("'a'", "ns.x + ns.x", ""),
    DOUBLING.format("'a'", "ns.x ~ ns.x", ""),
    DOUBLING.format("[0]", "ns.x + ns.x", ""),
    DOUBLING.format("[]", "[ns.x, ns.x]", "{{ ns.x }}"),
    DOUBLING.format("[]", "(ns.x, ns.x)", "{{ ns.x ~ '' }}"),
    DOUBLING.format("[]", "{'a': ns.x, 'b': ns.x}", "{{ ns.x | tojson }}"),
    DOUBLING.format("[]", "dict(a=ns.x, b=ns.x)", "{{ ns.x | string }}"),
    DOUBLING.format("[]", "dict(a=ns.x, b=ns.x)", "{{ '%s' % ns.x }}"),
    DOUBLING.format("[]", "dict(a=ns.x, b=ns.x)", "{{ [ns.x] | join }}"),
    DOUBLING.format("[]", "[[ns.x]]", "{{ ns.x }}") * 6,
]


class TestHostileTemplates:
    LIMITS = Limits(text=1 << 20, work=1 << 23, seconds=0.2)
    PATIENT = replace(LIMITS, seconds=60.0)
    """For what is to end well, however slow the machine is."""

    @pytest.mark.parametrize("source", [*ESCAPES, *ENDLESS, *BOMBS])
    def test_ends_in_a_clear_error(self, source: str) -> None:
        with pytest.raises(PromptError):
            ChatTemplate(source, {}, limits=self.LIMITS).render(USER)

    @pytest.mark.parametrize("value", ["'ab' * 10**6", "[0] * 10**5", "x[1:]", "('ab' * 10**6) | reverse"])
    def test_many_values_that_are_small_enough(self, value: str) -> None:
        sets = "".join(f"{{% set a{index} = {value} %}}" for index in range(600))
        template = ChatTemplate("{% set x = 'a' * 10**6 %}" + sets, {}, limits=Limits(seconds=60, memory=16 << 20))
        with pytest.raises(PromptError, match="too much memory"):
            template.render(USER)

    @pytest.mark.parametrize("source", ["x" * 300_000, "{{ a }}" * 10_000, "{{ " + "~".join(["a"] * 90_000) + " }}"])
    def test_sources_that_are_too_long_to_compile(self, source: str) -> None:
        with pytest.raises(PromptError, match="too long"):
            ChatTemplate(source, {})

    def test_values_from_a_request_are_bounded_too(self) -> None:
        template = ChatTemplate("{{ '=' * width }}", {}, limits=self.PATIENT)
        assert template.render(USER, variables={"width": 3}) == "==="
        with pytest.raises(PromptError, match="too large"):
            template.render(USER, variables={"width": 10**12})
        nested: list[object] = []
        for _ in range(10_000):
            nested = [nested]
        with pytest.raises(PromptError, match="too deeply"):
            template.render(USER, variables={"width": 3, "nested": nested})

    def test_templates_that_walk_every_character_of_a_large_conversation(self) -> None:
        template = ChatTemplate("{% for c in messages[0].content %}{{ c }}{% endfor %}", {}, limits=self.PATIENT)
        text = "a" * 50_000
        assert template.render([{"role": "user", "content": text}]) == text

    def test_a_namespace_that_holds_itself(self) -> None:
        assert render("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}") == "<namespace>"

    def test_a_failed_rendering_leaves_nothing_behind(self) -> None:
        template = ChatTemplate("{% for i in range(n) %}{{ 'x' * 1000 }}{% endfor %}", {}, limits=self.PATIENT)
        with pytest.raises(PromptError):
            template.render(USER, variables={"n": 100_000})
        assert template.render(USER, variables={"n": 3}) == "x" * 3000

    def test_large_honest_conversations_fit(self, template_source: Callable[[str], str]) -> None:
        pair = [{"role": "user", "content": "q" * 4000}, {"role": "assistant", "content": "a" * 4000}]
        text = ChatTemplate(template_source("qwen3"), {}).render(pair * 500)
        assert len(text) > 4_000_000
