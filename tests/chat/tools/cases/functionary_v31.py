from tests.chat.tools.cases.case import LENGTH, OSLO, Case

CASES = [
    Case("one call", '<function=get_weather>{"city": "Oslo"}</function>', "", (OSLO,)),
    Case(
        "two calls",
        '<function=get_weather>{"city": "Oslo"}</function>\n<function=now>{}</function>',
        "",
        (OSLO, ("now", "{}")),
    ),
    Case("prose before", "Let me see: <function=now>{}</function>", "Let me see:", (("now", "{}"),)),
    Case("prose after", "<function=now>{}</function> Done.", "", (("now", "{}"),)),
    Case("space around the body", '<function=get_weather>\n {"city": "Oslo"} \n</function>', "", (OSLO,)),
    Case(
        "the model's own text",
        '<function=send>{"text": "</function> é\\t", "weight":0.10}</function>',
        "",
        (("send", '{"text": "</function> é\\t", "weight":0.10}'),),
    ),
    Case("no closing tag", '<function=get_weather>{"city": "Oslo"}', "", (OSLO,)),
    Case("an undeclared name", 'Hm. <function=rm>{"path": "/"}</function> So.', "Hm. So."),
    Case("a name with a dot", "<function=ns.now>{}</function>", "", (("now", "{}"),)),
    Case("malformed", 'Hm. <function=now>{"a": }</function> So.', "Hm. So."),
    Case("one of two malformed", "<function=now>{a}</function><function=now>{}</function>", "", (("now", "{}"),)),
    Case("no JSON: not this format", "<function=now>soon</function>", "<function=now>soon</function>"),
    Case("a look-alike", "Write <function=name> here, or <function", "Write <function=name> here, or <function"),
    Case("no end of the name", "if a <function= b\nthen", "if a <function= b\nthen"),
    Case("cut inside the arguments", 'A <function=now>{"a": "', "A", reason=LENGTH),
    Case("cut inside the name", "A <function=no", "A <function=no", reason=LENGTH),
    Case("the second is cut", '<function=now>{}</function><function=now>{"a', "", (("now", "{}"),), reason=LENGTH),
]
