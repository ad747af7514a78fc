from mlxcel.chat.tools import Dialect
from tests.chat.tools.cases.case import LENGTH, OSLO, Case


def _content(name: str, text: str, **more: object) -> Case:
    return Case(name, text, text, **more)  # type: ignore[arg-type]


CASES = [
    Case("one call", '{"name": "get_weather", "arguments": {"city": "Oslo"}}', "", (OSLO,)),
    Case("space around", ' \n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n', "", (OSLO,)),
    Case(
        "a list",
        '[{"name": "get_weather", "arguments": {"city": "Oslo"}}, {"name": "now", "arguments": {}}]',
        "",
        (OSLO, ("now", "{}")),
    ),
    Case("arguments first", '{"arguments": {"city": "Oslo"}, "name": "get_weather"}', "", (OSLO,)),
    Case(
        "parameters under a template with arguments",
        '{"name": "now", "parameters": {}}',
        "",
        (("now", "{}"),),
        dialect=Dialect.GENERIC_JSON,
    ),
    Case(
        "the model's own text",
        '{"name": "send", "arguments": {"text":"\\"}","to":[]  }}',
        "",
        (("send", '{"text":"\\"}","to":[]  }'),),
    ),
    _content("text after it", '{"name": "now", "arguments": {}} and so on'),
    _content("text before it", 'So: {"name": "now", "arguments": {}}'),
    _content("an answer in JSON", '{"city": "Oslo", "arguments": {}}'),
    _content("an answer with a name", '{"name": "now", "age": 5}'),
    _content("a name that is no string", '{"name": {"first": "a"}, "arguments": {}}'),
    _content("a name alone", '{"name": "now"}'),
    _content("a list of numbers", "[1, 2, 3]"),
    _content("an empty object", "{}"),
    _content("an empty list", " [ ] "),
    _content("no JSON", "{name: now, arguments: {}}"),
    _content("a list of links", "[a](b) and [c](d)"),
    _content("cut inside an answer", '{"name": "Os', reason=LENGTH),
    Case("an undeclared name", '{"name": "rm", "arguments": {"path": "/"}}', ""),
    Case(
        "one undeclared in a list",
        '[{"name": "rm", "arguments": {}}, {"name": "now", "arguments": {}}]',
        "",
        (("now", "{}"),),
    ),
    Case("one malformed in a list", '[{"name": "now", "arguments": {}}, {"x": 1}, 2]', "", (("now", "{}"),)),
    Case("cut inside the arguments", '{"name": "now", "arguments": {"a": ', "", reason=LENGTH),
    Case("cut in a list", '[{"name": "now", "arguments": {}}, {"name": "now', "", (("now", "{}"),), reason=LENGTH),
    Case("a name with a dot", '{"name": "x.now", "arguments": {}}', "", (("now", "{}"),)),
    Case(
        "JSON, then a call with a marker",
        '{"a": 1}\n<tool_call>{"name": "now", "arguments": {}}</tool_call>',
        '{"a": 1}',
        (("now", "{}"),),
    ),
]
