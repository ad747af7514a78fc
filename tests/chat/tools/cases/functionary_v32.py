from mlxcel.chat.tools import Dialect
from tests.chat.tools.cases.case import LENGTH, OSLO, Case

_OWN = Dialect.FUNCTIONARY_V32

CASES = [
    Case("one call", '>>>get_weather\n{"city": "Oslo"}', "", (OSLO,)),
    Case("two calls", '>>>get_weather\n{"city": "Oslo"}\n>>>now\n{}', "", (OSLO, ("now", "{}"))),
    Case("text, then a call", '>>>all\nLet me see.\n>>>get_weather\n{"city": "Oslo"}', "Let me see.", (OSLO,)),
    Case("text without a mark, then a call", "Let me see.\n>>>now\n{}", "Let me see.", (("now", "{}"),)),
    Case("only text", ">>>all\nHello\nthere", "Hello\nthere"),
    Case("the prompt ends with the mark", 'get_weather\n{"city": "Oslo"}', "", (OSLO,), dialect=_OWN),
    Case("the prompt ends with the mark: text", "all\nHello", "Hello", dialect=_OWN),
    Case("the prompt ends with the mark, but text came", "all of it\n", "all of it\n", dialect=_OWN),
    Case(
        "the model's own text, over several lines",
        '>>>send\n{\n  "text": ">>>now",\n  "to": [ "é" ]\n}',
        "",
        (("send", '{\n  "text": ">>>now",\n  "to": [ "é" ]\n}'),),
    ),
    Case("prose after", ">>>now\n{}\nDone.", "", (("now", "{}"),)),
    Case("an undeclared name", 'Hm.\n>>>rm\n{"path": "/"}\nSo.', "Hm.\nSo."),
    Case("a name with a dot", ">>>ns.now\n{}", "", (("now", "{}"),)),
    Case("not at the beginning of a line", "a >>>now\n{}", "a >>>now\n{}"),
    Case("a Python session", ">>> now\n{}", ">>> now\n{}"),
    Case("another Python session", "Try\n>>> x = 1\n>>>now", "Try\n>>> x = 1\n>>>now"),
    Case("no JSON below", ">>>now\nnoon", ">>>now\nnoon"),
    Case("malformed", "Hm.\n>>>now\n{noon}\n>>>now\n{}", "Hm.", (("now", "{}"),)),
    Case("cut inside the arguments", 'A\n>>>now\n{"a": ', "A", reason=LENGTH),
    Case("cut after the name", "A\n>>>now\n", "A", reason=LENGTH),
    Case("the second is cut", '>>>now\n{}\n>>>now\n{"a"', "", (("now", "{}"),), reason=LENGTH),
]
