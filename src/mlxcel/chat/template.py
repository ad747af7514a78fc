"""A compiled chat template: messages in, prompt text out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Template, meta
from jinja2.exceptions import TemplateError, TemplateSyntaxError

from mlxcel.chat.errors import PromptError
from mlxcel.chat.limits import Limits, limited
from mlxcel.chat.sandbox import TemplateEnvironment, TemplateRefusal

_MAX_MESSAGE = 2000
"""Characters of a template's own words that a client is told."""


class ChatTemplate:
    """A checkpoint's Jinja chat template, compiled once and rendered under limits.

    Written for the conventions of the Hugging Face `transformers` chat templates, with one difference: a variable
    without a value (`tools`, a special token the tokenizer lacks) is undefined, never None.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], *, limits: Limits | None = None) -> None:
        """Compile `source`. Raises PromptError when it is not a valid template."""
        self._special_tokens = dict(special_tokens)
        self._limits = limits or Limits()
        environment = TemplateEnvironment()
        try:
            environment.check_source(source)
            with limited(self._limits):
                tree = environment.parse(source)
                self.variables: frozenset[str] = frozenset(meta.find_undeclared_variables(tree))
                code = environment.compile(environment.instrument(tree))
                self._template = Template.from_code(environment, code, environment.make_globals(None))
        except Exception as error:  # a hostile template can make the compiler fail in any way
            raise PromptError(f"The chat template is not valid: {_explain(error)}") from error

    @property
    def supports_tools(self) -> bool:
        """Whether the template reads the variable `tools`."""
        return "tools" in self.variables

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text of a conversation.

        variables: further template variables; they may replace a special token or `add_generation_prompt`, but
        neither `messages` nor `tools`.

        Raises PromptError with the template's own words when it refuses the conversation, and with the reason when
        it fails or does not stay within its limits.
        """
        values: dict[str, Any] = {
            **self._special_tokens,
            "add_generation_prompt": add_generation_prompt,
            **(variables or {}),
            "messages": messages,
        }
        values.pop("tools", None)
        if tools:
            values["tools"] = tools
        try:
            with limited(self._limits) as budget:
                budget.give(values)
                pieces: list[str] = []
                length = 0
                for piece in self._template.generate(values):
                    length += len(piece)
                    budget.check_size(length)
                    pieces.append(piece)
                return "".join(pieces)
        except TemplateRefusal as refusal:
            words = (refusal.message or "")[:_MAX_MESSAGE]
            raise PromptError(words or "The chat template refuses this conversation.") from refusal
        except Exception as error:  # templates are foreign code: whatever they raise is a refused conversation
            raise PromptError(f"The chat template failed: {_explain(error)}") from error


def _explain(error: Exception) -> str:
    if isinstance(error, TemplateSyntaxError):
        return f"{error.message} (line {error.lineno})"
    if isinstance(error, TemplateError):
        return error.message or type(error).__name__
    if isinstance(error, RecursionError):
        return "it recurses or nests too deeply"
    return f"{type(error).__name__}: {error}"[:_MAX_MESSAGE]
