"""From a conversation to the tokens of its prompt."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlxcel.chat.dialects import Lead, read_dialect, special_spelling
from mlxcel.chat.errors import PromptError
from mlxcel.chat.kwargs import merge
from mlxcel.chat.messages import TemplateStyle, complete, normalize, probe_style
from mlxcel.chat.template import ChatTemplate
from mlxcel.chat.tools.dialect import dialect_of_template, unescaped
from mlxcel.chat.tools.markers import MARKUP
from mlxcel.engine.backend import Tokenizer
from mlxcel.engine.thinking import ThinkingRule

_NO_TEMPLATE = (
    "This model has no chat template. Use /v1/completions with a prompt of your own, or start the server with "
    "--chat-template-file."
)
_NEXT = ("Why?", '\n\n{"')
"""What may be said next. Unlike each other from the first letter on, also without the line breaks, which a tokenizer
would join to those before them."""
_CUT = "(the answer goes on here)"
"""Marks the end of an answer that is to go on, which is where the prompt ends."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a model is asked to go on from."""

    tokens: tuple[int, ...]
    history: int | None = None
    """Tokens before the generation scaffold, with which the conversation's next prompt begins; None: unknown."""
    thinking: bool = False
    """The answer begins inside a reasoning block, which the prompt has opened."""
    lead: Lead | None = None
    """What the model writes before the answer itself; None: nothing, or nothing tells."""


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
        self._source = unescaped(template_source or "")
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
        self.dialect = read_dialect(template_source, tokenizer)
        """How the model marks its reasoning; None: nothing tells."""
        self.spelling = special_spelling(self.dialect.markers if self.dialect else (), tokenizer)
        """The special tokens among those markers, with their text."""
        self.tool_dialect = None if template_source is None else dialect_of_template(template_source)
        """How the model writes its tool calls; None: nothing tells."""
        self.tool_spelling = self.spelling | special_spelling(MARKUP, tokenizer)
        """The same as `spelling`, and the special tokens that calls are made of."""

    @property
    def supports_tools(self) -> bool:
        """Whether the template describes tools to the model."""
        return self._template is not None and self._template.supports_tools

    def writes(self, text: str) -> bool:
        """Whether the template's source holds `text`."""
        return text in self._source

    def thinking_rule(self, *, inside: bool, budget: int | None, held: bool = False) -> ThinkingRule | None:
        """What the engine needs to follow the reasoning of an answer; None when nothing tells how it is marked.

        inside: the answer begins in a block. budget: tokens that the first block may have; None: any number. held: the
        answer is held to a rule.
        """
        if self.dialect is None:
            return None
        # The first opening is the whole one; a shorter form is no sign that the model has begun to think.
        return ThinkingRule(self.dialect.opens[:1], self.dialect.closes, inside, budget, self.spelling, leading=held)

    def render(
        self,
        messages: Sequence[Any],
        *,
        kwargs: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        prefill: bool = False,
    ) -> str:
        """The prompt text of a conversation, ready for the model's answer, or without the scaffold of one.

        kwargs: the request's template variables, which win over the server's defaults.
        prefill: a last message of the assistant is the beginning of the answer, instead of a turn that is complete.

        Raises PromptError when there is no template, when the messages are malformed, or when the template refuses
        them.
        """
        return self._render(messages, kwargs, tools, add_generation_prompt, prefill)[0]

    def _render(
        self,
        messages: Sequence[Any],
        kwargs: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        prefill: bool,
    ) -> tuple[str, int]:
        """The prompt text, and how many of its last characters are the beginning of the answer."""
        if self._template is None:
            raise PromptError(self.problem or _NO_TEMPLATE)
        variables = merge(self._default_kwargs, kwargs)
        if "reasoning_strength" in self._template.variables and "reasoning_effort" in variables:
            variables.setdefault("reasoning_strength", variables["reasoning_effort"])
        tools = complete(tools, self._style)
        preserve_thinking = variables.get("preserve_thinking") is True
        normalized = normalize(messages, style=self._style, preserve_thinking=preserve_thinking)
        begun = _begun_answer(normalized) if prefill and add_generation_prompt else ""
        if begun:
            unfinished = [*normalized[:-1], {**normalized[-1], "content": f"{begun}{_CUT} "}]
            text = self._template.render(unfinished, tools=tools, add_generation_prompt=False, variables=variables)
            before, cut, after = text.rpartition(_CUT)
            if cut:
                # A template that trims messages would have trimmed this one.
                before = before if after.startswith(" ") else before.rstrip()
                return before, len(begun.strip())
        text = self._template.render(
            normalized, tools=tools, add_generation_prompt=add_generation_prompt, variables=variables
        )
        return text, 0

    def chat(
        self,
        messages: Sequence[Any],
        *,
        kwargs: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] | None = None,
        history: bool = False,
        prefill: bool = False,
    ) -> Prompt:
        """The prompt of a conversation.

        The template writes the special tokens. Where it leaves out a BOS that the tokenizer puts in front of every
        raw text, it is added, as llama-server does; it is never there twice.

        history: find out where the history ends, which costs a second rendering.
        prefill: a last message of the assistant is the beginning of the answer, instead of a turn that is complete.

        Raises PromptError as `render` does, and when no tokens come out.
        """
        text, continued = self._render(messages, kwargs, tools, True, prefill)
        tokens = self._tokenise(text)
        thinking = self.dialect is not None and self.dialect.begins_inside(text, continued)
        lead = None if self.dialect is None else self.dialect.lead(text, continued)
        if not history:
            return Prompt(tokens, thinking=thinking, lead=lead)
        try:
            before = self.render(messages, kwargs=kwargs, tools=tools, add_generation_prompt=False)
        except PromptError:
            return Prompt(tokens, thinking=thinking, lead=lead)
        return Prompt(tokens, self._history_length(text, tokens, before), thinking, lead)

    def next_beginning(
        self,
        messages: Sequence[Any],
        answer: Mapping[str, Any],
        *,
        kwargs: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> tuple[int, ...]:
        """The tokens that the prompt after `answer` will begin with, whatever the user says next, or the functions that
        it calls give back.

        Raises PromptError as `render` does.
        """
        following = [
            self._tokenise(
                self.render(
                    [*messages, answer, *_replies(answer, text)],
                    kwargs=kwargs,
                    tools=tools,
                    add_generation_prompt=False,
                )
            )
            for text in _NEXT
        ]
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(*following, strict=False))
        return tuple(token for token, _ in same)

    def _tokenise(self, text: str) -> tuple[int, ...]:
        try:
            tokens = tuple(self._tokenizer.encode(text, add_special=False, parse_special=True))
        except UnicodeError as error:
            raise PromptError(f"The conversation holds text that is not valid Unicode: {error}") from error
        if tokens[: len(self._bos)] != self._bos:
            tokens = self._bos + tokens
        if not tokens:
            raise PromptError("The chat template makes an empty prompt of this conversation.")
        return tokens

    def _history_length(self, text: str, tokens: tuple[int, ...], before: str) -> int | None:
        """How many tokens are those of `before`, with which `text` should begin; None when no token ends there."""
        if not text.startswith(before):
            return None
        scaffold = tuple(self._tokenizer.encode(text[len(before) :], add_special=False, parse_special=True))
        length = len(tokens) - len(scaffold)
        return length if tokens[length:] == scaffold else None


def _begun_answer(messages: Sequence[Mapping[str, Any]]) -> str:
    """The text of a last message of the assistant, if that is all it is; else nothing."""
    if not messages or messages[-1]["role"] != "assistant" or "tool_calls" in messages[-1]:
        return ""
    return messages[-1]["content"]


def _replies(answer: Mapping[str, Any], text: str) -> list[Mapping[str, Any]]:
    """The messages that `answer` calls for, which all say `text`."""
    if not answer.get("tool_calls"):
        return [{"role": "user", "content": text}]
    return [{"role": "tool", "tool_call_id": call["id"], "content": text} for call in answer["tool_calls"]]


def _leading_special(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Tokens that `tokenizer` puts in front of every text; those it puts behind have no place in a prompt."""
    plain = tokenizer.encode("a", add_special=False)
    special = tokenizer.encode("a", add_special=True)
    for start in range(len(special) - len(plain) + 1):
        if special[start : start + len(plain)] == plain:
            return tuple(special[:start])
    return ()
