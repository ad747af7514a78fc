from tests.chat.tools.cases.case import LENGTH, OSLO_COMPACT, Case

_P = "]<]minimax[>["


def _tags(text: str) -> str:
    """`text` with M3's prefix before every tag."""
    return text.replace("<", _P + "<")


_OSLO = _tags('<invoke name="get_weather"><city>Oslo</city></invoke>')

CASES = [
    Case("one call", _tags("<tool_call>") + _OSLO + _tags("</tool_call>"), "", (OSLO_COMPACT,)),
    Case("no block", _OSLO, "", (OSLO_COMPACT,)),
    Case("two calls", _tags("<tool_call>\n") + _OSLO + "\n" + _OSLO + _tags("</tool_call>"), "", (OSLO_COMPACT,) * 2),
    Case(
        "prose around",
        f"I look. {_tags('<tool_call>')}{_OSLO}{_tags('</tool_call>')} Done.",
        "I look.",
        (OSLO_COMPACT,),
    ),
    Case("no parameters", _tags('<invoke name="now"></invoke>'), "", (("now", "{}"),)),
    Case(
        "types",
        _tags('<invoke name="get_weather"><days>5.0</days><metric>False</metric></invoke>'),
        "",
        (("get_weather", '{"days":5,"metric":false}'),),
    ),
    Case(
        "a list of items",
        _tags('<invoke name="send"><to><item>a</item><item>02</item></to></invoke>'),
        "",
        (("send", '{"to":["a","02"]}'),),
    ),
    Case(
        "a repeated name",
        _tags('<invoke name="send"><to>a</to><to>b</to></invoke>'),
        "",
        (("send", '{"to":["a","b"]}'),),
    ),
    Case("one value for a list", _tags('<invoke name="send"><to>1</to></invoke>'), "", (("send", '{"to":["1"]}'),)),
    Case(
        "an object",
        _tags('<invoke name="send"><options><retries>2</retries><x><y>z</y></x></options></invoke>'),
        "",
        (("send", '{"options":{"retries":2,"x":{"y":"z"}}}'),),
    ),
    Case(
        "text beside elements",
        _tags('<invoke name="now"><a>t<b>1</b></a></invoke>'),
        "",
        (("now", '{"a":{"b":1,"$text":"t"}}'),),
    ),
    Case(
        "elements of one name in each other",
        _tags('<invoke name="now"><a><a>1</a></a></invoke>'),
        "",
        (("now", '{"a":{"a":1}}'),),
    ),
    Case(
        "tags without the prefix are text",
        _tags('<invoke name="send"><text>') + "<b>é</b>" + _tags("</text></invoke>"),
        "",
        (("send", '{"text":"<b>é</b>"}'),),
    ),
    Case("no closing tags", _tags('<tool_call><invoke name="get_weather"><city>Oslo'), "", (OSLO_COMPACT,)),
    Case(
        "too deep is text",
        _tags('<invoke name="now">' + "<a>" * 70 + "x" + "</a>" * 70 + "</invoke>"),
        "",
        (("now", '{"a":' * 64 + '"' + "<a>" * 6 + "x" + "</a>" * 6 + '"' + "}" * 64),),
    ),
    Case("an undeclared name", "Hm. " + _tags('<invoke name="rm"><a>/</a></invoke>') + " So.", "Hm. So."),
    Case("a name with a dot", _tags('<invoke name="ns.now"></invoke>'), "", (("now", "{}"),)),
    Case("cut inside a value", "A " + _tags('<tool_call><invoke name="get_weather"><city>Os'), "A", reason=LENGTH),
    Case(
        "the second is cut",
        _tags("<tool_call>") + _OSLO + _tags('<invoke name="now"><a>'),
        "",
        (OSLO_COMPACT,),
        reason=LENGTH,
    ),
    Case("cut inside the block's tag", "A " + _P + "<tool_", "A", reason=LENGTH),
    Case("a stray tag", f"a {_P}</mm:think> b", "a b"),
    Case("a look-alike", "x ]<]minimax[ y", "x ]<]minimax[ y"),
]
