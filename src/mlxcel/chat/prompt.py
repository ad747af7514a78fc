"""From a conversation to the tokens of its prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlxcel.chat.errors import PromptError
from mlxcel.chat.kwargs import merge
from mlxcel.chat.messages import TemplateStyle, normalize, probe_style
from mlxcel.chat.template import ChatTemplate
from mlxcel.engine.backend import Tokenizer

_NO_TEMPLATE = (
    "This model has no chat template. Use /v1/completions with a prompt of your own, or start the server with "
    "--chat-template-file."
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a model is asked to go on from."""

    tokens: tuple[int, ...]
    history: int | None = None
    """Tokens before the generation scaffold, with which the conversation's next prompt begins; None: unknown."""


class PromptBuilder:
    """Renders conversations with one model's template and tokenizes them.

    A missing or invalid template is not an error here, because the model can still serve raw prompts: it is
    reported by `problem`, and by every call that would need the template.
    """

    def __init__(
        self,
        template_source: str | None,
        special_tokens: Mapping[str, str],
        tokenizer: Tokenizer,
        default_kwargs: Mapping[str, Any],
    ) -> None:
        self._tokenizer = tokenizer
        self._default_kwargs = dict(default_kwargs)
        self._template: ChatTemplate | None = None
        self._style = TemplateStyle()
        self.problem: str | None = None
        """Why there is no usable template; None when there is one."""
        if template_source is None:
            self.problem = _NO_TEMPLATE
        else:
            try:
                self._template = ChatTemplate(template_source, special_tokens)
                self._style = probe_style(self._template)
            except PromptError as error:
                self.problem = str(error)
        self._bos = _leading_special(tokenizer)

    @property
    def supports_tools(self) -> bool:
        """Whether the template describes tools to the model."""
        return self._template is not None and self._template.supports_tools

    def render(
        self,
        messages: Sequence[Any],
        *,
        kwargs: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt text of a conversation, ready for the model's answer, or without the scaffold of one.

        kwargs: the request's template variables, which win over the server's defaults.

        Raises PromptError when there is no template, when the messages are malformed, or when the template refuses
        them.
        """
        if self._template is None:
            raise PromptError(self.problem or _NO_TEMPLATE)
        variables = merge(self._default_kwargs, kwargs)
        if "reasoning_strength" in self._template.variables and "reasoning_effort" in variables:
            variables.setdefault("reasoning_strength", variables["reasoning_effort"])
        preserve_thinking = variables.get("preserve_thinking") is True
        normalized = normalize(messages, style=self._style, preserve_thinking=preserve_thinking)
        return self._template.render(
            normalized, tools=tools, add_generation_prompt=add_generation_prompt, variables=variables
        )

    def chat(
        self,
        messages: Sequence[Any],
        *,
        kwargs: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] | None = None,
        history: bool = False,
    ) -> Prompt:
        """The prompt of a conversation.

        The template writes the special tokens. Where it leaves out a BOS that the tokenizer puts in front of every
        raw text, it is added, as llama-server does; it is never there twice.

        history: find out where the history ends, which costs a second rendering.

        Raises PromptError as `render` does, and when no tokens come out.
        """
        text = self.render(messages, kwargs=kwargs, tools=tools)
        try:
            tokens = tuple(self._tokenizer.encode(text, add_special=False, parse_special=True))
        except UnicodeError as error:
            raise PromptError(f"The conversation holds text that is not valid Unicode: {error}") from error
        if tokens[: len(self._bos)] != self._bos:
            tokens = self._bos + tokens
        if not tokens:
            raise PromptError("The chat template makes an empty prompt of this conversation.")
        if not history:
            return Prompt(tokens)
        try:
            before = self.render(messages, kwargs=kwargs, tools=tools, add_generation_prompt=False)
        except PromptError:
            return Prompt(tokens)
        return Prompt(tokens, self._history_length(text, tokens, before))

    def _history_length(self, text: str, tokens: tuple[int, ...], before: str) -> int | None:
        """How many tokens are those of `before`, with which `text` should begin; None when no token ends there."""
        if not text.startswith(before):
            return None
        scaffold = tuple(self._tokenizer.encode(text[len(before) :], add_special=False, parse_special=True))
        length = len(tokens) - len(scaffold)
        return length if tokens[length:] == scaffold else None


def _leading_special(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Tokens that `tokenizer` puts in front of every text; those it puts behind have no place in a prompt."""
    plain = tokenizer.encode("a", add_special=False)
    special = tokenizer.encode("a", add_special=True)
    for start in range(len(special) - len(plain) + 1):
        if special[start : start + len(plain)] == plain:
            return tuple(special[:start])
    return ()
