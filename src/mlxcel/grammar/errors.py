"""Why a text cannot be held to what a request asks for. No message contains any of the request's schema."""

from __future__ import annotations


class GrammarError(Exception):
    """A schema or grammar that cannot be served. The message is for the client."""


class UnsupportedTokenizer(GrammarError):
    """The model's tokenizer cannot be constrained."""

    def __init__(self) -> None:
        super().__init__("UnsupportedTokenizer: this model's tokenizer cannot be constrained; it must be a BPE one")


class NotCompiled(GrammarError):
    """Nobody can say which texts the schema allows, or there are none."""
