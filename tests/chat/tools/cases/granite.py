from tests.chat.tools.cases.case import LENGTH, OSLO, Case

_OSLO = '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>'
_NOW = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'

CASES = [
    Case("one call", f"<response>{_OSLO}</response>", "", (OSLO,)),
    Case("spaces between the tags", f"<response>\n  {_OSLO}\n</response>\n", "", (OSLO,)),
    Case("text before", f"Sure.\n<response>{_OSLO}</response>", "Sure.", (OSLO,)),
    Case("text after", f"<response>{_OSLO}</response> Done.", "", (OSLO,)),
    Case("two in one wrapper", f"<response>{_OSLO}\n{_NOW}</response>", "", (OSLO, ("now", "{}"))),
    Case("two wrappers", f"<response>{_OSLO}</response><response>{_NOW}</response>", "", (OSLO, ("now", "{}"))),
    Case(
        "the model's own text",
        '<response><tool_call>{"name": "send", "arguments": {"text":"é \\" <response>",  "weight": 2.0}}</tool_call>'
        "</response>",
        "",
        (("send", '{"text":"é \\" <response>",  "weight": 2.0}'),),
    ),
    Case(
        "an undeclared name",
        'Hm. <response><tool_call>{"name": "rm", "arguments": {}}</tool_call></response> So.',
        "Hm. So.",
    ),
    Case("XML that is the answer", "<response>\n<ok/>\n</response>", "<response>\n<ok/>\n</response>"),
    Case("an answer in the wrapper", "<response>Hello</response>", "<response>Hello</response>"),
    Case("the wrapper alone", "<response> ", "<response> "),
    Case("a look-alike", "<responses> <respon", "<responses> <respon"),
    Case("no closing tags", '<response><tool_call>{"name": "now", "arguments": {}}', "", (("now", "{}"),)),
    Case(
        "cut inside the arguments",
        'A <response><tool_call>{"name": "now", "arguments": {"a": [1, ',
        "A",
        reason=LENGTH,
        abandoned=1,
    ),
    Case(
        "the second is cut",
        f'<response>{_OSLO}<tool_call>{{"name": "now", "arguments": {{"a',
        "",
        (OSLO,),
        reason=LENGTH,
        abandoned=1,
    ),
    Case("malformed", "<response><tool_call>{]</tool_call></response>", ""),
    Case(
        "a name with a dot",
        '<response><tool_call>{"name": "ns.now", "arguments": {}}</tool_call></response>',
        "",
        (("now", "{}"),),
    ),
]
