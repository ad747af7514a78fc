from tests.chat.tools.cases.case import LENGTH, OSLO, Case

_BEGIN, _END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"


def _call(name: str, arguments: str) -> str:
    return f"<|tool_call_begin|>{name}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


_OSLO = _call("functions.get_weather:0", '{"city": "Oslo"}')

CASES = [
    Case("one call", _BEGIN + _OSLO + _END, "", (OSLO,)),
    Case("two calls", _BEGIN + _OSLO + _call("functions.now:1", "{}") + _END, "", (OSLO, ("now", "{}"))),
    Case("spaces between", f"{_BEGIN}\n{_OSLO}\n {_call(' now:1 ', ' {} ')}\n{_END}\n", "", (OSLO, ("now", "{}"))),
    Case("no prefix", _BEGIN + _call("get_weather:0", '{"city": "Oslo"}') + _END, "", (OSLO,)),
    Case("a name with a dot", _BEGIN + _call("ns.now:3", "{}") + _END, "", (("now", "{}"),)),
    Case(
        "no wrappers: one call",
        f'{_BEGIN}functions.get_weather:0<|tool_call_argument_begin|>{{"city": "Oslo"}}{_END}',
        "",
        (OSLO,),
    ),
    Case("no section", _OSLO + " Done.", "", (OSLO,)),
    Case("prose around", f"Let me see. {_BEGIN}{_OSLO}{_END} Done.", "Let me see.", (OSLO,)),
    Case(
        "the model's own text",
        _BEGIN + _call("send:0", '{"text":"é \\ud83d\\ude00",  "weight":1.0}') + _END,
        "",
        (("send", '{"text":"é \\ud83d\\ude00",  "weight":1.0}'),),
    ),
    Case("no arguments", _BEGIN + _call("now:0", "  ") + _END, "", (("now", "{}"),)),
    Case(
        "a Python dict",
        _BEGIN + _call("send:0", """{'text': 'it\\'s "x" True', 'to': [True, None], "k": False}""") + _END,
        "",
        (("send", """{"text": "it's \\"x\\" True", "to": [true, null], "k": false}"""),),
    ),
    Case("neither is kept as it stands", _BEGIN + _call("now:0", "soon, 'x") + _END, "", (("now", "soon, 'x"),)),
    Case("no index: no call", "Hm. " + _BEGIN + _call("functions.now", "{}") + _END + " So.", "Hm. So."),
    Case("an undeclared name", "Hm. " + _BEGIN + _call("functions.rm:0", "{}") + _END + " So.", "Hm. So."),
    Case("one of two malformed", _BEGIN + "<|tool_call_begin|>x<|tool_call_end|>" + _OSLO + _END, "", (OSLO,)),
    Case("an empty section", f"Hm. {_BEGIN}{_END}", "Hm."),
    Case("no end", _BEGIN + "<|tool_call_begin|>now:0<|tool_call_argument_begin|>{}", "", (("now", "{}"),)),
    Case(
        "cut inside the arguments",
        "A " + _BEGIN + _OSLO + '<|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{"a',
        "A",
        (OSLO,),
        reason=LENGTH,
    ),
    Case("cut inside the header", "A " + _BEGIN + "<|tool_call_begin|>functions.n", "A", reason=LENGTH),
    Case("a stray marker in a sentence", f"The {_BEGIN} marker", "The marker"),
    Case("a look-alike", "a <|tool_calls_section| b", "a <|tool_calls_section| b"),
]
