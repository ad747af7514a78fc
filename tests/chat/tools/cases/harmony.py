from mlxcel.chat.tools import Dialect
from tests.chat.tools.cases.case import LENGTH, OSLO, Case

_CALL = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Oslo"}'

CASES = [
    Case("one call", _CALL + "<|call|>", "", (OSLO,)),
    Case("the last mark is a stop token", _CALL, "", (OSLO,)),
    Case(
        "reasoning, then a call",
        f"<|channel|>analysis<|message|>Need it.<|end|><|start|>assistant{_CALL}<|call|>",
        "",
        (OSLO,),
    ),
    Case(
        "two calls",
        f"{_CALL}<|call|><|start|>assistant<|channel|>commentary to=functions.now<|message|>{{}}<|call|>",
        "",
        (OSLO, ("now", "{}")),
    ),
    Case("a final answer", "<|channel|>final<|message|>Hello <tool_call> there<|return|>", "Hello <tool_call> there"),
    Case(
        "commentary is content",
        f"<|channel|>commentary<|message|>Looking.<|end|><|start|>assistant{_CALL}",
        "Looking.",
        (OSLO,),
    ),
    Case(
        "two contents are two lines",
        "<|channel|>commentary<|message|>One<|end|><|start|>assistant<|channel|>final<|message|>Two",
        "One\nTwo",
    ),
    Case(
        "an unknown channel is dropped",
        "<|channel|>debug<|message|>x<|end|><|start|>assistant<|channel|>final<|message|>Two",
        "Two",
    ),
    Case(
        "the recipient in the role",
        '<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Oslo"}<|call|>',
        "",
        (OSLO,),
    ),
    Case(
        "the prompt ends in the role",
        ' to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Oslo"}<|call|>',
        "",
        (OSLO,),
        dialect=Dialect.HARMONY,
    ),
    Case(
        "the model's own text",
        '<|channel|>commentary to=send<|message|>{ "text" : "é" }\n<|call|>',
        "",
        (("send", '{ "text" : "é" }'),),
    ),
    Case(
        "no JSON is kept as it stands",
        "<|channel|>commentary to=now<|message|>soon <b><|call|>",
        "",
        (("now", "soon <b>"),),
    ),
    Case("no arguments", "<|channel|>commentary to=now<|message|><|call|>", "", (("now", "{}"),)),
    Case(
        "an undeclared name",
        "<|channel|>commentary to=functions.rm<|message|>{}<|call|><|start|>assistant<|channel|>final<|message|>So.",
        "So.",
    ),
    Case("a name with a dot", "<|channel|>commentary to=ns.now<|message|>{}", "", (("now", "{}"),)),
    Case("a call on the reasoning channel", "<|channel|>analysis to=functions.now <|message|>{}", "", (("now", "{}"),)),
    Case("cut inside the arguments", '<|channel|>commentary to=now<|message|>{"a": ', "", reason=LENGTH),
    Case("cut with complete arguments", _CALL, "", (OSLO,), reason=LENGTH),
    Case("cut inside the header", "<|channel|>comment", "", reason=LENGTH),
    Case("cut inside the answer", "<|channel|>final<|message|>Hel", "Hel", reason=LENGTH),
    Case("a marker in a sentence", "The <|channel|> marker\nis special", "The marker\nis special"),
    Case("another marker in a sentence", "The <|start|> marker", "The <|start|> marker", dialect=Dialect.HERMES),
]
