"""From schemas and grammars to rules that sequences can be held to."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import llguidance

from mlxcel.engine.backend import ModelInfo
from mlxcel.engine.constraint import Constraint, ConstraintError, Rule
from mlxcel.grammar.errors import NotCompiled, UnsupportedTokenizer
from mlxcel.grammar.forced_tools import Tool, WireForm, forced_tools
from mlxcel.grammar.limits import check_limits
from mlxcel.grammar.matcher import Matcher
from mlxcel.grammar.schema import engine_schema, refusal
from mlxcel.grammar.thinking import AfterReasoning
from mlxcel.grammar.vocabulary import Vocabulary

log = logging.getLogger(__name__)

KEPT = 64
"""Compiled grammars that are kept, with what their lexers have learnt."""

_LIMITS = llguidance.LLParserLimits(max_grammar_size=100_000, max_lexer_states=50_000, verbose_errors=False)

_FREE_TOKENS = '%llguidance {"no_forcing": true}'
"""Where only one text is possible, the engine would work out the tokens that a tokenizer makes of it. In the middle of
decoding that costs ten times as much as any other mask, and the model knows how it cuts its words."""


class CompiledRule:
    """Implements `mlxcel.engine.constraint.Rule`."""

    def __init__(self, vocabulary: Vocabulary, first: Matcher) -> None:
        self._vocabulary = vocabulary
        self._first = first

    def begin(self) -> Constraint:
        """The state before the first token."""
        return self._first.copy()

    def after_reasoning(self, close: str, opening: str | None = None) -> Rule:
        """The same for a model that thinks first; see `mlxcel.grammar.thinking.AfterReasoning`."""
        return AfterReasoning(self, self._vocabulary, close, opening)


class Compiler:
    """Compiles for one model. Methods take from under a millisecond to seconds, and may be called from any thread."""

    def __init__(self, info: ModelInfo) -> None:
        self._info = info
        self._vocabulary: Vocabulary | UnsupportedTokenizer | None = None
        self._making = threading.Lock()
        self._rules: OrderedDict[bytes, CompiledRule] = OrderedDict()
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Do what the first call would else do: read the vocabulary. Of one that cannot be read the call tells."""
        with contextlib.suppress(UnsupportedTokenizer):
            self._words()

    def schema(self, schema: dict[str, Any]) -> CompiledRule:
        """The rule "JSON that is valid under `schema`". Raises GrammarError."""
        check_limits(schema)
        return self._compiled(f"start: %json {engine_schema(schema)}", refusal)

    def forced_tools(self, tools: Sequence[Tool], form: WireForm, *, once: bool) -> CompiledRule:
        """The rule "calls of `tools`", or with `once` exactly one. Raises GrammarError."""
        for tool in tools:
            check_limits(tool.parameters)
        grammar = forced_tools(tools, form, self._words(), once=once)
        return self._compiled(grammar, lambda detail: NotCompiled("the tools could not be made a grammar"))

    def _compiled(self, rules: str, refused: Callable[[str], NotCompiled]) -> CompiledRule:
        key = hashlib.sha256(rules.encode()).digest()
        with self._lock:
            if key in self._rules:
                self._rules.move_to_end(key)
                return self._rules[key]
        vocabulary = self._words()
        state: Any = llguidance.LLMatcher(vocabulary.trie, f"{_FREE_TOKENS}\n{rules}", log_level=0, limits=_LIMITS)
        if state.is_error():
            error = refused(state.get_error())  # whose text the log must not hold: the engine quotes the schema
            log.info("a grammar was refused: %s", error)
            raise error
        try:
            rule = CompiledRule(vocabulary, Matcher(vocabulary, state))
        except ConstraintError as error:  # no text satisfies it
            raise refused("") from error
        with self._lock:
            self._rules[key] = rule
            while len(self._rules) > KEPT:
                self._rules.popitem(last=False)
        return rule

    def _words(self) -> Vocabulary:
        with self._making:
            if self._vocabulary is None:
                try:
                    self._vocabulary = Vocabulary(self._info)
                except UnsupportedTokenizer as error:
                    self._vocabulary = error
        if isinstance(self._vocabulary, UnsupportedTokenizer):
            raise UnsupportedTokenizer from self._vocabulary
        return self._vocabulary
