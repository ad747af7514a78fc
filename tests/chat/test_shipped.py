"""Templates that come with the packages models are run by render as `transformers` renders them."""

from __future__ import annotations

import pytest
from jinja2.exceptions import TemplateSyntaxError
from transformers.utils.chat_template_utils import render_jinja_template

from mlxcel.chat.errors import PromptError
from mlxcel.chat.messages import normalize, probe_style
from mlxcel.chat.template import ChatTemplate
from tests.chat.shipped import templates
from tests.chat.test_parity import ASK, CONVERSATIONS, SPECIAL, TOOLS, ours, theirs

SHIPPED = templates()
CHOSEN = ("system", "three turns", "two calls", "reasoning field", "markup", "empty")


def test_there_are_some() -> None:
    assert any("llama4" in name for name in SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_same_text_as_transformers(name: str) -> None:
    source = SHIPPED[name]
    try:
        template = ChatTemplate(source, SPECIAL)
    except PromptError:  # an example cut out of a text
        with pytest.raises(TemplateSyntaxError):
            render_jinja_template([[ASK]], chat_template=source)
        return
    style = probe_style(template)
    for chosen in CHOSEN:
        messages = normalize(CONVERSATIONS[chosen], style=style, preserve_thinking=True)
        for tools in (None, TOOLS):
            options = {"add_generation_prompt": tools is None, "date_string": "today"}
            assert ours(template, messages, tools, options) == theirs(source, messages, tools, options), chosen
