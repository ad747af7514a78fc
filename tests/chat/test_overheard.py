from __future__ import annotations

import pytest

from mlxcel.chat.dialects import THINK
from mlxcel.chat.overheard import OverheardStream
from mlxcel.chat.reasoning import make_reader
from mlxcel.chat.stream import MessageStream, ReasoningFormat
from mlxcel.engine.events import TextPiece

PIECES = ("<think>hm ", "hm</think>\n\nY", "es.")


@pytest.mark.parametrize("style", list(ReasoningFormat))
def test_it_is_the_same_stream_and_tells_what_was_shown_once_it_has_ended(style: ReasoningFormat) -> None:
    told: list[tuple[str, str]] = []
    stream = OverheardStream(make_reader(THINK), style, lambda *answer: told.append(answer))
    plain = MessageStream(make_reader(THINK), style)
    parts = []
    for text in PIECES:
        parts += stream.feed(TextPiece(text))
    assert not told
    parts += stream.finish()
    assert parts == [part for text in PIECES for part in plain.feed(TextPiece(text))] + plain.finish()
    assert told == [("".join(part.content for part in parts), "".join(part.reasoning for part in parts))]
