from tests.chat.tools.cases.case import LENGTH, OSLO, Case

CASES = [
    Case("one call", '[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}', "", (OSLO,)),
    Case(
        "the pair repeated",
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]now[ARGS]{}',
        "",
        (OSLO, ("now", "{}")),
    ),
    Case("an id between", '[TOOL_CALLS]get_weather[CALL_ID]abc123[ARGS]{"city": "Oslo"}', "", (OSLO,)),
    Case("prose before", 'Well… [TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}', "Well…", (OSLO,)),
    Case("prose after", '[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}\nDone.', "", (OSLO,)),
    Case(
        "the model's own text",
        '[TOOL_CALLS]send[ARGS]{"to":["a" , "b"], "text": "[ARGS] \\u2028 }{"}',
        "",
        (("send", '{"to":["a" , "b"], "text": "[ARGS] \\u2028 }{"}'),),
    ),
    Case("arguments as a string", '[TOOL_CALLS]send[ARGS]"{\\"text\\": 1}"', "", (("send", '{"text": 1}'),)),
    Case("no arguments", "[TOOL_CALLS]now[ARGS]", "", (("now", "{}"),)),
    Case("no arguments, then another", "[TOOL_CALLS]now[ARGS] [TOOL_CALLS]now[ARGS]{}", "", (("now", "{}"),) * 2),
    Case("no JSON is kept as it stands", "[TOOL_CALLS]now[ARGS]Oslo, tomorrow \n", "", (("now", "Oslo, tomorrow"),)),
    Case(
        "broken JSON is kept as it stands",
        '[TOOL_CALLS]now[ARGS]{"city": Oslo}  [TOOL_CALLS]now[ARGS]{}',
        "",
        (("now", '{"city": Oslo}'), ("now", "{}")),
    ),
    Case("an undeclared name", 'Hm. [TOOL_CALLS]rm[ARGS]{"path": "/"}', "Hm."),
    Case("a name with a dot", "[TOOL_CALLS]functions.now[ARGS]{}", "", (("now", "{}"),)),
    Case("a name that cannot be one", "[TOOL_CALLS]get weather[ARGS]{}", "get weather[ARGS]{}"),
    Case("no [ARGS]", "[TOOL_CALLS]get_weather and more", "get_weather and more"),
    Case("cut inside the arguments", 'A [TOOL_CALLS]now[ARGS]{"a": ', "A", reason=LENGTH, abandoned=1),
    Case("cut inside arguments that are no JSON", "[TOOL_CALLS]now[ARGS]Oslo", "", reason=LENGTH, abandoned=1),
    Case(
        "the second is cut",
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]now[ARGS]{"a',
        "",
        (OSLO,),
        reason=LENGTH,
        abandoned=1,
    ),
]
