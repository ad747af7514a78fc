from mlxcel.chat.tools import Dialect
from tests.chat.tools.cases.case import LENGTH, OSLO, Case

CASES = [
    Case("with its tag", '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Oslo"}}', "", (OSLO,)),
    Case("without its tag", '{"name": "get_weather", "parameters": {"city": "Oslo"}}', "", (OSLO,)),
    Case("space around", '\n {"name": "get_weather", "parameters": {"city": "Oslo"}} \n', "", (OSLO,)),
    Case(
        "with its type",
        '{"type": "function", "name": "get_weather", "parameters": {"city": "Oslo"}}',
        "",
        (OSLO,),
    ),
    Case("arguments instead", '<|python_tag|>{"name": "get_weather", "arguments": {"city": "Oslo"}}', "", (OSLO,)),
    Case(
        "two with a semicolon",
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Oslo"}}; {"name": "now", "parameters": {}}',
        "",
        (OSLO, ("now", "{}")),
    ),
    Case(
        "two with a semicolon, without the tag",
        '{"name": "get_weather", "parameters": {"city": "Oslo"}}; {"name": "now", "parameters": {}}',
        "",
        (OSLO, ("now", "{}")),
    ),
    Case(
        "a list",
        '[{"name": "get_weather", "parameters": {"city": "Oslo"}}, {"name": "now", "parameters": {}}]',
        "",
        (OSLO, ("now", "{}")),
    ),
    Case("prose before the tag", 'Look: <|python_tag|>{"name": "now", "parameters": {}}', "Look:", (("now", "{}"),)),
    Case(
        "prose before, no tag: content",
        'Look: {"name": "now", "parameters": {}}',
        'Look: {"name": "now", "parameters": {}}',
    ),
    Case("prose after", '{"name": "now", "parameters": {}} and so on', "", (("now", "{}"),)),
    Case(
        "the model's own text",
        '{"name": "send", "parameters": {"weight" : 1.0E3, "text": "😀 \\u00e9 } ]"}}',
        "",
        (("send", '{"weight" : 1.0E3, "text": "😀 \\u00e9 } ]"}'),),
    ),
    Case("an undeclared name", '<|python_tag|>{"name": "rm", "parameters": {"path": "/"}}', ""),
    Case("an undeclared name without the tag", '{"name": "rm", "parameters": {"path": "/"}}', ""),
    Case("code after the tag", "<|python_tag|>print(1)", "print(1)"),
    Case("JSON with a name", '{"name": "Oslo", "population": 700000}', '{"name": "Oslo", "population": 700000}'),
    Case("a name with a dot", '{"name": "functions.now", "parameters": {}}', "", (("now", "{}"),)),
    Case("cut inside the arguments", '{"name": "now", "parameters": {"a": 1', "", reason=LENGTH, abandoned=1),
    Case("cut before the arguments", '{"name": "now", "param', "", reason=LENGTH),
    Case("malformed after its beginning", '{"name": "now", "parameters": {"a": x}} more', "", abandoned=1),
    Case(
        "arguments stream under Llama's template",
        '{"name": "get_weather", "arguments": {"city": "Oslo"}} more',
        "",
        (OSLO,),
        dialect=Dialect.LLAMA3,
    ),
]
