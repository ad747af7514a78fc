from tests.chat.tools.cases.case import LENGTH, OSLO_COMPACT, Case


def _marked(text: str) -> str:
    return f"<|tool_call_start|>{text}<|tool_call_end|>"


def _content(name: str, text: str) -> Case:
    return Case(name, text, text)


CASES = [
    Case("one call", _marked('[get_weather(city="Oslo")]'), "", (OSLO_COMPACT,)),
    Case("without marks", '[get_weather(city="Oslo")]', "", (OSLO_COMPACT,)),
    Case("two calls", _marked("[get_weather(city='Oslo'), now()]"), "", (OSLO_COMPACT, ("now", "{}"))),
    Case("two calls without marks", "[get_weather(city='Oslo'),\n now(),]", "", (OSLO_COMPACT, ("now", "{}"))),
    Case("Llama 4's marks", "<|python_start|>[now()]<|python_end|>", "", (("now", "{}"),)),
    Case("prose around", "I look. " + _marked('[get_weather(city="Oslo")]') + " Done.", "I look.", (OSLO_COMPACT,)),
    Case("prose around, no marks", 'I look: [get_weather(city="Oslo")] Done.', "I look:", (OSLO_COMPACT,)),
    Case(
        "scalars",
        _marked("[now(a=1, b=-2.5, c=True, d=false, e=None, f=null, g=1e3, h=word, i = 007)]"),
        "",
        (("now", '{"a":1,"b":-2.5,"c":true,"d":false,"e":null,"f":null,"g":1000.0,"h":"word","i":7}'),),
    ),
    Case(
        "strings",
        _marked("""[send(text='it\\'s "é, 😀)" \\\\', to="]")]"""),
        "",
        (("send", """{"text":"it's \\"é, 😀)\\" \\\\","to":"]"}"""),),
    ),
    Case(
        "lists in lists",
        _marked("[send(to=['a', \"b,c\", [1, []], x])]"),
        "",
        (("send", '{"to":["a","b,c",[1,[]],"x"]}'),),
    ),
    Case(
        "a dict",
        _marked("[send(options={'retries': 1, 'x': [True]})]"),
        "",
        (("send", '{"options":{"retries":1,"x":[true]}}'),),
    ),
    Case("JSON between the marks", _marked('[{"name": "now", "arguments": {"a": 1}}]'), "", (("now", '{"a": 1}'),)),
    Case("no closing mark", '<|tool_call_start|>[get_weather(city="Oslo")]', "", (OSLO_COMPACT,)),
    Case("one of two malformed", _marked('[now("noon"), now()]'), "", (("now", "{}"),)),
    Case("an undeclared name", "Hm. " + _marked("[rm(path='/')]") + " So.", "Hm. So."),
    Case("a name with a dot", _marked("[ns.now()]"), "", (("now", "{}"),)),
    Case("malformed between the marks", "Hm. " + _marked("[now]") + " So.", "Hm. So."),
    _content("an undeclared name without marks", "Call [rm(path='/')]."),
    _content("a link", "See [the docs](https://example.org/now(1))."),
    _content("an index", "x[now] + y[0](z)"),
    _content("JSON of strings", '["now()", "x"]'),
    _content("no closing bracket", "a [now(x=1) b"),
    Case("cut inside the arguments", 'A <|tool_call_start|>[get_weather(city="Os', "A", reason=LENGTH),
    Case("cut inside the arguments, no marks", 'A [get_weather(city="Os', "A", reason=LENGTH),
    Case("the second is cut", "<|tool_call_start|>[now(), now(a=", "", (("now", "{}"),), reason=LENGTH),
    Case("the mark in a sentence", "The <|tool_call_start|> mark", "The mark"),
]
