from tests.chat.tools.cases.case import LENGTH, OSLO_COMPACT, Case

_OSLO = '<invoke name="get_weather"><parameter name="city">Oslo</parameter></invoke>'

CASES = [
    Case("one call", _OSLO, "", (OSLO_COMPACT,)),
    Case("in its wrapper", f"<minimax:tool_call>\n{_OSLO}\n</minimax:tool_call>", "", (OSLO_COMPACT,)),
    Case("two calls", f"<minimax:tool_call>\n{_OSLO}\n{_OSLO}\n</minimax:tool_call>", "", (OSLO_COMPACT,) * 2),
    Case("prose around", f"I look.\n<minimax:tool_call>{_OSLO}</minimax:tool_call> Done.", "I look.", (OSLO_COMPACT,)),
    Case(
        "other quotes", "<invoke name='get_weather'><parameter name=city>Oslo</parameter></invoke>", "", (OSLO_COMPACT,)
    ),
    Case("no parameters", '<invoke name="now">\n</invoke>', "", (("now", "{}"),)),
    Case(
        "values over lines, in Unicode",
        '<invoke name="send">\n<parameter name="text">\né "q"\n😀\n</parameter>\n</invoke>',
        "",
        (("send", '{"text":"é \\"q\\"\\n😀"}'),),
    ),
    Case(
        "types",
        '<invoke name="send"><parameter name="weight">5</parameter><parameter name="to">a</parameter>'
        '<parameter name="options">{"retries": 1}</parameter></invoke>',
        "",
        (("send", '{"weight":5,"to":["a"],"options":{"retries":1}}'),),
    ),
    Case(
        "null",
        '<invoke name="get_weather"><parameter name="days">null</parameter></invoke>',
        "",
        (("get_weather", '{"days":null}'),),
    ),
    Case(
        "lax booleans",
        '<invoke name="get_weather"><parameter name="metric">OFF</parameter></invoke>',
        "",
        (("get_weather", '{"metric":false}'),),
    ),
    Case(
        "an integer with a fraction",
        '<invoke name="get_weather"><parameter name="days">5.0</parameter></invoke>',
        "",
        (("get_weather", '{"days":5}'),),
    ),
    Case("an undeclared name", 'Hm. <invoke name="rm"><parameter name="a">/</parameter></invoke> So.', "Hm. So."),
    Case("a name with a dot", '<invoke name="ns.now"></invoke>', "", (("now", "{}"),)),
    Case("no closing tags", '<invoke name="get_weather"><parameter name="city">Oslo', "", (OSLO_COMPACT,)),
    Case(
        "the wrapper closes the call",
        '<minimax:tool_call><invoke name="now"><parameter name="a">1</parameter></minimax:tool_call>',
        "",
        (("now", '{"a":1}'),),
    ),
    Case("XML that is the answer", '<invoke name="x">text</invoke>', '<invoke name="x">text</invoke>'),
    Case("a look-alike", "<invoke name= <invoke>", "<invoke name= <invoke>"),
    Case("cut inside a value", 'A <invoke name="get_weather"><parameter name="city">Os', "A", reason=LENGTH),
    Case("cut before the end", '<invoke name="get_weather"><parameter name="city">Oslo</parameter>', "", reason=LENGTH),
    Case("the second is cut", _OSLO + '<invoke name="now"><par', "", (OSLO_COMPACT,), reason=LENGTH),
]
