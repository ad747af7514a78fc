from tests.chat.tools.cases.case import LENGTH, OSLO_COMPACT, Case

_Q = '<|"|>'


def _call(text: str) -> str:
    return f"<|tool_call>call:{text}<tool_call|>".replace("'", _Q)


_OSLO = _call("get_weather{city:'Oslo'}")

CASES = [
    Case("one call", _OSLO, "", (OSLO_COMPACT,)),
    Case("two calls", _OSLO + _call("now{}"), "", (OSLO_COMPACT, ("now", "{}"))),
    Case("prose around", f"I look.\n{_OSLO}\nDone.", "I look.", (OSLO_COMPACT,)),
    Case(
        "commas and braces in strings",
        _call("send{text:'a, {b}: [c]',weight:2}"),
        "",
        (("send", '{"text":"a, {b}: [c]","weight":2}'),),
    ),
    Case(
        "quotes, newlines and Unicode",
        _call("send{text:'\"é\"\n😀\\'}"),
        "",
        (("send", '{"text":"\\"é\\"\\n😀\\\\"}'),),
    ),
    Case(
        "nested",
        _call("send{options:{retries:3,x:[1,{y:'z'}]},to:['a','b']}"),
        "",
        (("send", '{"options":{"retries":3,"x":[1,{"y":"z"}]},"to":["a","b"]}'),),
    ),
    Case(
        "scalars as written",
        _call("now{a:true,b:null,c:-1.50,d:1e3}"),
        "",
        (("now", '{"a":true,"b":null,"c":-1.50,"d":1e3}'),),
    ),
    Case("spaces", _call(" send { text : 'a' , weight : 1 } "), "", (("send", '{"text":"a","weight":1}'),)),
    Case("an empty string", _call("send{text:''}"), "", (("send", '{"text":""}'),)),
    Case("a bare word is malformed", "Hm. " + _call("send{text:hello}") + " So.", "Hm. So."),
    Case("one of two malformed", _call("now{a:}") + _OSLO, "", (OSLO_COMPACT,)),
    Case("an undeclared name", "Hm. " + _call("rm{path:'/'}") + " So.", "Hm. So."),
    Case("a name with a dot", _call("ns.now{}"), "", (("now", "{}"),)),
    Case("no closing mark", _OSLO.removesuffix("<tool_call|>"), "", (OSLO_COMPACT,)),
    Case(
        "the next mark closes it",
        _OSLO.removesuffix("<tool_call|>") + _call("now{}"),
        "",
        (OSLO_COMPACT, ("now", "{}")),
    ),
    Case("no call between the marks", "Hm. <|tool_call>what?<tool_call|> So.", "Hm. So."),
    Case("the mark in a sentence", "The <|tool_call> mark", "The mark"),
    Case("a look-alike", "x <|tool_cal> y <|tool", "x <|tool_cal> y <|tool"),
    Case("cut inside a string", "A <|tool_call>call:get_weather{city:" + _Q + "Os", "A", reason=LENGTH),
    Case("cut inside the name", "A <|tool_call>call:get_w", "A", reason=LENGTH),
    Case("the second is cut", _OSLO + "<|tool_call>call:now{a:1", "", (OSLO_COMPACT,), reason=LENGTH),
]
