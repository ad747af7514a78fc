"""GLM-4.7 and LongCat-Flash: the same format under two sets of tags."""

from dataclasses import replace

from tests.chat.tools.cases.case import LENGTH, OSLO, OSLO_COMPACT, Case


def _call(name: str, *pairs: tuple[str, str]) -> str:
    body = "".join(f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>\n" for key, value in pairs)
    return f"<tool_call>{name}\n{body}</tool_call>"


_OSLO = _call("get_weather", ("city", "Oslo"))

CASES = [
    Case("one call", _OSLO, "", (OSLO_COMPACT,)),
    Case("two calls", _OSLO + "\n" + _call("now", ("a", "b")), "", (OSLO_COMPACT, ("now", '{"a":"b"}'))),
    Case("prose around", f"I look.\n{_OSLO}\nDone.", "I look.", (OSLO_COMPACT,)),
    Case(
        "spaces between key and value",
        "<tool_call>get_weather\n<arg_key> city </arg_key>\n<arg_value>\nOslo\n</arg_value>\n</tool_call>",
        "",
        (OSLO_COMPACT,),
    ),
    Case(
        "values over lines, in Unicode",
        _call("send", ("text", 'é "q"\n\n😀')),
        "",
        (("send", '{"text":"é \\"q\\"\\n\\n😀"}'),),
    ),
    Case("text that looks like a number", _call("send", ("text", "02134")), "", (("send", '{"text":"02134"}'),)),
    Case(
        "integers",
        _call("get_weather", ("days", "5.0"), ("city", "5")),
        "",
        (("get_weather", '{"days":5,"city":"5"}'),),
    ),
    Case("no integer stays text", _call("get_weather", ("days", "soon")), "", (("get_weather", '{"days":"soon"}'),)),
    Case(
        "others are read as they look",
        _call("send", ("to", '["a"]'), ("weight", "x"), ("options", '{"a": [null]}')),
        "",
        (("send", '{"to":["a"],"weight":"x","options":{"a":[null]}}'),),
    ),
    Case(
        "no NaN",
        _call("now", ("a", "NaN"), ("b", "-Infinity"), ("c", "1e999")),
        "",
        (("now", '{"a":"NaN","b":"-Infinity","c":"1e999"}'),),
    ),
    Case(
        "the first of two values stands", _call("send", ("text", "a"), ("text", "b")), "", (("send", '{"text":"a"}'),)
    ),
    Case("a name alone", _call("now"), "", (("now", "{}"),)),
    Case("a name and JSON", '<tool_call>get_weather {"city": "Oslo"}</tool_call>', "", (OSLO,)),
    Case(
        "a name and pairs",
        '<tool_call>send text="two words" weight=2</tool_call>',
        "",
        (("send", '{"text":"two words","weight":2}'),),
    ),
    Case(
        "JSON with tool",
        '<tool_call>{"tool": {"name": "get_weather", "arguments": {"city": "Oslo"}}}</tool_call>',
        "",
        (OSLO,),
    ),
    Case(
        "JSON with function",
        '<tool_call>{"function": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>',
        "",
        (OSLO,),
    ),
    Case(
        "JSON with a name", '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>', "", (OSLO,)
    ),
    Case("an undeclared name", "Hm. " + _call("rm", ("path", "/")) + " So.", "Hm. So."),
    Case("an undeclared name alone", "Hm. " + _call("rm") + " So.", "Hm. So."),
    Case("a name with a dot", _call("ns.now", ("a", "1")), "", (("now", '{"a":1}'),)),
    Case("no closing tags", "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo", "", (OSLO_COMPACT,)),
    Case("one of two malformed", "<tool_call>what is it</tool_call>" + _OSLO, "", (OSLO_COMPACT,)),
    Case("cut inside a value", "A <tool_call>get_weather<arg_key>city</arg_key><arg_value>Os", "A", reason=LENGTH),
    Case("cut inside the name", "A <tool_call>now", "A", reason=LENGTH),
    Case("cut after the name", "A <tool_call>now\n<arg_k", "A", reason=LENGTH),
    Case("the second is cut", _OSLO + "<tool_call>now<arg_key>a", "", (OSLO_COMPACT,), reason=LENGTH),
    Case("the tag in a sentence", "The <tool_call> is here.", "The is here."),
]

_LONGCAT = (("tool_call>", "longcat_tool_call>"), ("arg_key", "longcat_arg_key"), ("arg_value", "longcat_arg_value"))


def _longcat(text: str) -> str:
    for ours, theirs in (*_LONGCAT, ("<arg_k", "<longcat_arg_k")):
        text = text.replace(ours, theirs)
    return text


LONGCAT_CASES = [replace(case, text=_longcat(case.text)) for case in CASES]
