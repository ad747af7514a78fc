from tests.chat.tools.cases.case import LENGTH, OSLO, Case

CASES = [
    Case("one call", '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Oslo"}}]', "", (OSLO,)),
    Case("no space", '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Oslo"}}]', "", (OSLO,)),
    Case("more space", '[TOOL_CALLS] \n [ {"name": "get_weather", "arguments": {"city": "Oslo"}} ] ', "", (OSLO,)),
    Case(
        "two calls, with ids",
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Oslo"}, "id": "123456789"}, '
        '{"name": "now", "arguments": {}, "id": "987654321"}]',
        "",
        (OSLO, ("now", "{}")),
    ),
    Case("prose before", 'Sure! [TOOL_CALLS] [{"name": "now", "arguments": {}}]', "Sure!", (("now", "{}"),)),
    Case("prose after", '[TOOL_CALLS] [{"name": "now", "arguments": {}}] Done.', "", (("now", "{}"),)),
    Case(
        "the model's own text",
        '[TOOL_CALLS] [{"name": "send", "arguments": {"text": "é \\\\ [TOOL_CALLS] ]",\t"weight": -0.50}}]',
        "",
        (("send", '{"text": "é \\\\ [TOOL_CALLS] ]",\t"weight": -0.50}'),),
    ),
    Case(
        "arguments as a string",
        '[TOOL_CALLS] [{"name": "send", "arguments": "{\\"text\\": \\"a\\"}"}]',
        "",
        (("send", '{"text": "a"}'),),
    ),
    Case("one object without a list", '[TOOL_CALLS] {"name": "now", "arguments": {}}', "", (("now", "{}"),)),
    Case(
        "an undeclared one among others",
        '[TOOL_CALLS] [{"name": "rm", "arguments": {"a": 1}}, {"name": "now", "arguments": {}}]',
        "",
        (("now", "{}"),),
    ),
    Case("only an undeclared one", 'Hm. [TOOL_CALLS] [{"name": "rm", "arguments": {}}] So.', "Hm. So."),
    Case(
        "an entry that is none",
        '[TOOL_CALLS] [1, {"a": 2}, {"name": "now", "arguments": {}}]',
        "",
        (("now", "{}"),),
    ),
    Case("an empty list", "Nothing. [TOOL_CALLS] []", "Nothing."),
    Case("malformed", "[TOOL_CALLS] [{name: now}]", ""),
    Case(
        "cut after the first",
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Oslo"}}, {"name": "now", "arguments": {"a": "',
        "",
        (OSLO,),
        reason=LENGTH,
        abandoned=1,
    ),
    Case("cut at the marker", "Hi [TOOL_CALLS]", "Hi", reason=LENGTH),
    Case("a look-alike", "See [TOOL_CALL] and [TOOL_CALLS", "See [TOOL_CALL] and [TOOL_CALLS"),
    Case("the marker in a sentence", "The marker [TOOL_CALLS] is special.", "The marker is special."),
    Case("a name with a dot", '[TOOL_CALLS] [{"name": "a.now", "arguments": {}}]', "", (("now", "{}"),)),
]
