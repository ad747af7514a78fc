from tests.chat.tools.cases.case import LENGTH, OSLO_COMPACT, Case

_OSLO = "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>"


def _send(*parameters: tuple[str, str]) -> str:
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function=send>\n{body}</function>\n</tool_call>"


CASES = [
    Case("one call", _OSLO, "", (OSLO_COMPACT,)),
    Case("no wrapper", "<function=get_weather><parameter=city>Oslo</parameter></function>", "", (OSLO_COMPACT,)),
    Case(
        "Seed's wrapper",
        "<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>",
        "",
        (("now", "{}"),),
    ),
    Case("two calls", f"{_OSLO}\n{_OSLO}", "", (OSLO_COMPACT, OSLO_COMPACT)),
    Case(
        "two calls in one wrapper",
        "<tool_call><function=now></function>\n<function=now>\n</function></tool_call>",
        "",
        (("now", "{}"), ("now", "{}")),
    ),
    Case("prose around", f"I look.\n{_OSLO}\nDone.", "I look.", (OSLO_COMPACT,)),
    Case(
        "quoted names", "<function=\"get_weather\"><parameter='city'>Oslo</parameter></function>", "", (OSLO_COMPACT,)
    ),
    Case(
        "the last one ends in a brace",
        _send(("weight", "2"), ("text", "a {b}")),
        "",
        (("send", '{"weight":2,"text":"a {b}"}'),),
    ),
    Case(
        "text values keep what is inside, not what is around",
        _send(("text", '\n  a "q" \\n\n\n  <b>\t\u00e9😀  \n')),
        "",
        (("send", '{"text":"a \\"q\\" \\\\n\\n\\n  <b>\\t\u00e9😀"}'),),
    ),
    Case("an empty text", _send(("text", "")), "", (("send", '{"text":""}'),)),
    Case(
        "types",
        _send(("to", '["a", 1]'), ("options", '{"retries": 3}'), ("weight", "2.50")),
        "",
        (("send", '{"to":["a",1],"options":{"retries":3},"weight":2.5}'),),
    ),
    Case("a scalar for a list", _send(("to", "02134")), "", (("send", '{"to":["02134"]}'),)),
    Case("text that looks like a number", _send(("text", "02134")), "", (("send", '{"text":"02134"}'),)),
    Case(
        "null is a word in text",
        _send(("text", "null"), ("weight", "NULL")),
        "",
        (("send", '{"text":"null","weight":null}'),),
    ),
    Case("enum and alternatives", _send(("level", "3"), ("when", "7")), "", (("send", '{"level":3,"when":7}'),)),
    Case(
        "what fits nothing is text",
        _send(("weight", "heavy"), ("options", "{x}")),
        "",
        (("send", '{"weight":"heavy","options":"{x}"}'),),
    ),
    Case(
        "booleans",
        "<function=get_weather><parameter=metric>Yes</parameter></function>",
        "",
        (("get_weather", '{"metric":true}'),),
    ),
    Case(
        "undeclared keys are read as they look",
        _send(("a", "1"), ("b", "x"), ("c", "True")),
        "",
        (("send", '{"a":1,"b":"x","c":true}'),),
    ),
    Case("the first of two values stands", _send(("text", "a"), ("text", "b")), "", (("send", '{"text":"a"}'),)),
    Case(
        "no closing tags",
        "<function=send><parameter=text>a<parameter=weight>1",
        "",
        (("send", '{"text":"a","weight":1}'),),
    ),
    Case(
        "markup in a value",
        _send(("text", "</tool_call> </param <tool_call>")),
        "",
        (("send", '{"text":"</tool_call> </param <tool_call>"}'),),
    ),
    Case(
        "an undeclared name",
        "Hm. <tool_call><function=rm><parameter=a>/</parameter></function></tool_call> So.",
        "Hm. So.",
    ),
    Case("a name with a dot", "<function=ns.now></function>", "", (("now", "{}"),)),
    Case("no parameters inside the wrapper", "<tool_call><function=now>noon</function></tool_call> So.", "So."),
    Case("cut inside a value", "A <tool_call><function=send><parameter=text>ab", "A", reason=LENGTH, abandoned=1),
    Case("cut between values", "<function=send><parameter=text>ab</parameter>\n<para", "", reason=LENGTH, abandoned=1),
    Case("cut inside the name", "A <tool_call>\n<function=se", "A", reason=LENGTH),
    Case("the second is cut", _OSLO + "<tool_call>\n<function=now>", "", (OSLO_COMPACT,), reason=LENGTH, abandoned=1),
]
