"""Arguments built from values that are not JSON, written as a compact JSON object while they come in."""

from __future__ import annotations

from mlxcel.chat.tools.coerce import Rules, coerce, is_plain_string
from mlxcel.chat.tools.json_text import compact, quote
from mlxcel.chat.tools.sink import Sink
from mlxcel.chat.tools.toolset import Schema

_MAX_PARAMETERS = 1024


class Arguments:
    """The arguments of one call, put into a sink key by key. Of a repeated key the first value stands."""

    def __init__(self, sink: Sink, name: str, rules: Rules) -> None:
        """name: the function; its schema decides what the values mean. `sink` must have the call started."""
        self._sink = sink
        self._schemas: Schema = sink.tools.properties(name)
        self._rules = rules
        self._keys: set[str] = set()
        self._text: list[str] | None = None  # whitespace held back inside a text value; None: none is open
        self._said = False

    def accepts(self, key: str) -> bool:
        """Whether a value for `key` will be taken."""
        return key not in self._keys and len(self._keys) < _MAX_PARAMETERS

    def is_text(self, key: str) -> bool:
        """Whether a value for `key` is its own text, which can be put before it is complete."""
        return is_plain_string(self._schemas.get(key))

    def add(self, key: str, raw: str) -> None:
        """A complete value as the model wrote it; whitespace around it is dropped."""
        if self.accepts(key):
            self._open(key)
            self._sink.arguments(compact(coerce(raw.strip(), self._schemas.get(key), self._rules)))

    def begin_text(self, key: str) -> None:
        """A text value begins."""
        self._open(key)
        self._sink.arguments('"')
        self._text = []
        self._said = False

    def more_text(self, text: str) -> None:
        """More of the text value; whitespace around the whole is dropped."""
        if self._text is None:
            raise RuntimeError("no text value is open")
        body = text.rstrip() if self._said else text.strip()
        if body:
            for space in self._text:
                self._sink.arguments(quote(space))
            self._text.clear()
            self._sink.arguments(quote(body))
        if self._said or body:
            space = text[len(text.rstrip()) :]
            if space:
                self._text.append(space)
            self._said = True

    def end_text(self) -> None:
        """The text value is complete."""
        self._text = None
        self._sink.arguments('"')

    def end(self) -> None:
        """The object is complete, and with it the call."""
        self._sink.arguments("}" if self._keys else "{}")
        self._sink.end()

    def _open(self, key: str) -> None:
        self._sink.arguments(("," if self._keys else "{") + compact(key) + ":")
        self._keys.add(key)
