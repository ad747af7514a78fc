from tests.chat.tools.cases.case import LENGTH, OSLO, Case

CASES = [
    Case("one call", '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>', "", (OSLO,)),
    Case(
        "two calls, one after the other",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        "",
        (OSLO, ("now", "{}")),
    ),
    Case(
        "prose before is kept, prose after is dropped",
        'Let me look.\n\n<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>\nDone.',
        "Let me look.",
        (OSLO,),
    ),
    Case(
        "the model's own text: order, spaces, numbers, escapes",
        '<tool_call>{"name": "send", "arguments": { "weight":1.50e+2 ,"text" : "\\u00e9\\ud83d\\ude00\\n" , '
        '"options": {"retries":[ ]} }}</tool_call>',
        "",
        (
            (
                "send",
                '{ "weight":1.50e+2 ,"text" : "\\u00e9\\ud83d\\ude00\\n" , "options": {"retries":[ ]} }',
            ),
        ),
    ),
    Case(
        "arguments as a string are unescaped",
        '<tool_call>{"name": "send", "arguments": "{\\"text\\": \\"a\\\\nb \\ud83d\\ude00 \\u00e9\\"}"}</tool_call>',
        "",
        (("send", '{"text": "a\\nb 😀 é"}'),),
    ),
    Case(
        "half a surrogate pair cannot be sent",
        '<tool_call>{"name": "send", "arguments": "\\ud83d!"}</tool_call>',
        "",
        (("send", "\ufffd!"),),
    ),
    Case(
        "the name comes last",
        '<tool_call>{"arguments": {"city": "Oslo"}, "name": "get_weather"}</tool_call>',
        "",
        (OSLO,),
    ),
    Case("null arguments are none", '<tool_call>{"name": "now", "arguments": null}</tool_call>', "", (("now", "{}"),)),
    Case(
        "the closing tag inside a string",
        '<tool_call>{"name": "send", "arguments": {"text": "</tool_call> and <tool_call>"}}</tool_call>',
        "",
        (("send", '{"text": "</tool_call> and <tool_call>"}'),),
    ),
    Case(
        "a raw newline and a stray backslash are mended",
        '<tool_call>{"name": "send", "arguments": {"text": "a\nb \\d \\\'"}}</tool_call>',
        "",
        (("send", '{"text": "a\\nb \\\\d \'"}'),),
    ),
    Case(
        "other keys are passed over",
        '<tool_call>{"id": {"a": [1, "]"]}, "name": "get_weather", "arguments": {"city": "Oslo"}, "x": null}'
        "</tool_call>",
        "",
        (OSLO,),
    ),
    Case(
        "OpenAI's wrapper",
        '<tool_call>{"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}'
        "</tool_call>",
        "",
        (OSLO,),
    ),
    Case("no closing tag", '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}', "", (OSLO,)),
    Case(
        "the last brace is missing",
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}</tool_call>',
        "",
        (OSLO,),
    ),
    Case(
        "an undeclared name",
        'Hm. <tool_call>{"name": "rm", "arguments": {"path": "/"}}</tool_call>',
        "Hm.",
    ),
    Case(
        "an undeclared name between texts",
        'One <tool_call>{"name": "rm", "arguments": {}}</tool_call> two',
        "One two",
    ),
    Case(
        "a name with a dot",
        '<tool_call>{"name": "functions.get_weather", "arguments": {"city": "Oslo"}}</tool_call>',
        "",
        (OSLO,),
    ),
    Case(
        "no arguments: no call; the next one is",
        '<tool_call>{"name": "now"}</tool_call><tool_call>{"name": "now", "arguments": {}}</tool_call>',
        "",
        (("now", "{}"),),
    ),
    Case(
        "malformed: passed over; the next one is a call",
        '<tool_call>{"name": "now", arguments: {}}</tool_call>\n'
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>',
        "",
        (OSLO,),
    ),
    Case(
        "malformed inside its arguments",
        '<tool_call>{"name": "now", "arguments": {"a": Oslo}}</tool_call>\n'
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>',
        "",
        (OSLO,),
        abandoned=1,
    ),
    Case("no JSON between the tags", "Hm. <tool_call>not json</tool_call> So.", "Hm. So."),
    Case("the tag in a sentence", "Use the <tool_call> tag to call.", "Use the tag to call."),
    Case("a look-alike", "Use <tool_calls>, <tool_cal or <tool", "Use <tool_calls>, <tool_cal or <tool"),
    Case(
        "cut inside the arguments",
        'Look: <tool_call>{"name": "get_weather", "arguments": {"city": "Os',
        "Look:",
        reason=LENGTH,
        abandoned=1,
    ),
    Case("cut inside the name", 'Look: <tool_call>\n{"name": "get_w', "Look:", reason=LENGTH),
    Case(
        "the second of two is cut",
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call><tool_call>{"name": "now", "argu',
        "",
        (OSLO,),
        reason=LENGTH,
    ),
    Case(
        "stopped by itself inside the arguments",
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Os',
        "",
        abandoned=1,
    ),
    Case("closing tags alone", "a </tool_call> b", "a b"),
    Case("nothing but text", "  Hello < world > \n", "  Hello < world > \n"),
    Case(
        "two objects in one block",
        '<tool_call>{"name": "now", "arguments": {}}\n{"name": "now", "arguments": {"a": 1}}</tool_call>',
        "",
        (("now", "{}"), ("now", '{"a": 1}')),
    ),
]
