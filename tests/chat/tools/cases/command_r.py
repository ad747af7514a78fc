from tests.chat.tools.cases.case import LENGTH, OSLO, Case

CASES = [
    Case("one call", 'Action: get_weather\nAction Input: {"city": "Oslo"}', "", (OSLO,)),
    Case(
        "two calls",
        'Action: get_weather\nAction Input: {"city": "Oslo"}\n\nAction: now\nAction Input: {}\n',
        "",
        (OSLO, ("now", "{}")),
    ),
    Case("more space", '\n Action:  get_weather \n Action Input:{"city": "Oslo"} \n', "", (OSLO,)),
    Case(
        "the model's own text",
        'Action: send\nAction Input: {"text":"Action: é\\n",  "weight": 1e0}',
        "",
        (("send", '{"text":"Action: é\\n",  "weight": 1e0}'),),
    ),
    Case("text before", "Hm.\nAction: now\nAction Input: {}", "Hm.\nAction: now\nAction Input: {}"),
    Case("text after", "Action: now\nAction Input: {}\nDone.", "Action: now\nAction Input: {}\nDone."),
    Case("text on the same line", "Action: now\nAction Input: {} Done.", "Action: now\nAction Input: {} Done."),
    Case("an action film", "Action: a genre of film", "Action: a genre of film"),
    Case("one label", "Action: now\nand so on", "Action: now\nand so on"),
    Case("the other label", "Action Input: {}", "Action Input: {}"),
    Case("a look-alike", "Actions: now", "Actions: now"),
    Case("no name", "Action:\nAction Input: {}", "Action:\nAction Input: {}"),
    Case("an undeclared name", 'Action: rm\nAction Input: {"path": "/"}', ""),
    Case("a name with a dot", "Action: ns.now\nAction Input: {}", "", (("now", "{}"),)),
    Case(
        "one of two malformed",
        "Action: now\nAction Input: {noon}\nAction: now\nAction Input: {}",
        "",
        (("now", "{}"),),
    ),
    Case("cut inside the arguments", 'Action: now\nAction Input: {"a": "', "", reason=LENGTH),
    Case("cut after the name", "Action: now\nAction In", "", reason=LENGTH),
    Case(
        "the second is cut",
        'Action: get_weather\nAction Input: {"city": "Oslo"}\nAction: now\nAction Input: {"',
        "",
        (OSLO,),
        reason=LENGTH,
    ),
]
