from tests.chat.tools.cases.case import LENGTH, OSLO_COMPACT, Case


def _call(text: str) -> str:
    return f"<start_function_call>call:{text}<end_function_call>".replace("'", "<escape>")


_OSLO = _call("get_weather{city:'Oslo'}")

CASES = [
    Case("one call", _OSLO, "", (OSLO_COMPACT,)),
    Case("two calls", _OSLO + "\n" + _call("now{}"), "", (OSLO_COMPACT, ("now", "{}"))),
    Case("prose around", f"I look. {_OSLO} Done.", "I look.", (OSLO_COMPACT,)),
    Case(
        "JSON values as written",
        _call('send{weight:1.50,options:{"retries": 2},to:["a", "b,c"]}'),
        "",
        (("send", '{"weight":1.50,"options":{"retries": 2},"to":["a", "b,c"]}'),),
    ),
    Case(
        "no JSON is text",
        _call("send{text:hello world,weight:1}"),
        "",
        (("send", '{"text":"hello world","weight":1}'),),
    ),
    Case(
        "commas and braces in text",
        _call("send{text:'a, {b: c}}',weight:1}"),
        "",
        (("send", '{"text":"a, {b: c}}","weight":1}'),),
    ),
    Case("quotes and Unicode", _call("send{text:'\"é\"\n😀'}"), "", (("send", '{"text":"\\"é\\"\\n😀"}'),)),
    Case("an empty text", _call("send{text:''}"), "", (("send", '{"text":""}'),)),
    Case("spaces", _call(" send { text : 'a' , weight : 2 } "), "", (("send", '{"text":"a","weight":2}'),)),
    Case("no keys: malformed", "Hm. " + _call("now{hello}") + " So.", "Hm. So."),
    Case(
        "text without its end: malformed",
        "Hm. <start_function_call>call:send{text:<escape>a}<end_function_call> So.",
        "Hm. So.",
    ),
    Case("an undeclared name", "Hm. " + _call("rm{path:'/'}") + " So.", "Hm. So."),
    Case("a name with a dot", _call("ns.now{}"), "", (("now", "{}"),)),
    Case("no closing mark", _OSLO.removesuffix("<end_function_call>"), "", (OSLO_COMPACT,)),
    Case("the mark in a sentence", "The <start_function_call> mark", "The mark"),
    Case("a look-alike", "x <start_function> y <start_", "x <start_function> y <start_"),
    Case("cut inside a text", "A <start_function_call>call:send{text:<escape>a}", "A", reason=LENGTH),
    Case("the second is cut", _OSLO + "<start_function_call>call:now{a:{b:1}", "", (OSLO_COMPACT,), reason=LENGTH),
]
