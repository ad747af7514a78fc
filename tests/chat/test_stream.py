"""Parts of a message: every format, and log probabilities that stay with their tokens."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcel.chat.dialects import DIALECTS, HARMONY, THINK
from mlxcel.chat.reasoning import PlainReader, make_reader
from mlxcel.chat.stream import MessagePart, MessageStream, ReasoningFormat
from mlxcel.engine.events import TextPiece, TokenChoice, TokenLogprob


def entry(index: int, text: str) -> TokenLogprob:
    return TokenLogprob(TokenChoice(index, text, text.encode(), -1.0), ())


def pieces(*texts: str) -> list[TextPiece]:
    """One token a piece."""
    return [TextPiece(text, (entry(index, text),)) for index, text in enumerate(texts)]


def parts(stream: MessageStream, given: list[TextPiece]) -> list[MessagePart]:
    return [*itertools.chain.from_iterable(map(stream.feed, given)), *stream.finish()]


def tokens(part: MessagePart) -> list[int]:
    return [entry.chosen.token_id for entry in part.logprobs]


def think(style: ReasoningFormat = ReasoningFormat.SPLIT) -> MessageStream:
    return MessageStream(make_reader(THINK), style)


TEXT = ("<th", "ink>", "\n", "a", " b", "\n", "</think>", "\n\n", "c ", "<thi", "s", " ")


def test_each_token_has_one_entry_and_hidden_ones_have_parts_of_their_own() -> None:
    assert [(part.content, part.reasoning, tokens(part)) for part in parts(think(), pieces(*TEXT))] == [
        ("", "", [0]),
        ("", "", [1]),
        ("", "", [2]),
        ("", "a", [3]),
        ("", " b", [4]),
        ("", "", [5]),
        ("", "", [6]),
        ("", "", [7]),
        ("c", "", []),
        (" <this", "", [8, 9, 10]),
        (" ", "", [11]),
    ]


@pytest.mark.parametrize(
    ("style", "content", "reasoning"),
    [
        (ReasoningFormat.SPLIT, "c <this ", "a b"),
        (ReasoningFormat.BOTH, "".join(TEXT), "a b"),
        (ReasoningFormat.CONTENT, "".join(TEXT), ""),
    ],
)
def test_formats(style: ReasoningFormat, content: str, reasoning: str) -> None:
    shown = parts(think(style), pieces(*TEXT))
    assert "".join(part.content for part in shown) == content
    assert "".join(part.reasoning for part in shown) == reasoning
    assert list(itertools.chain.from_iterable(map(tokens, shown))) == list(range(len(TEXT)))
    # Whatever is shown besides, calls are looked for in the answer alone.
    assert "".join(part.content for part in shown if part.answer) == "c <this "


def test_nothing_is_parsed_where_nothing_is_to_be() -> None:
    shown = parts(MessageStream(PlainReader(), ReasoningFormat.CONTENT), pieces("<think>", "a", ""))
    assert [(part.content, tokens(part)) for part in shown] == [("<think>", [0]), ("a", [1]), ("", [2])]


@pytest.mark.parametrize(
    ("style", "text", "only"),
    [
        (ReasoningFormat.SPLIT, "<think>a", True),
        (ReasoningFormat.SPLIT, "<think>a</think>\n\n", True),
        (ReasoningFormat.SPLIT, "<think></think>", True),
        (ReasoningFormat.SPLIT, "<think>a</think>b", False),
        (ReasoningFormat.SPLIT, "b", False),
        (ReasoningFormat.SPLIT, "", False),
        (ReasoningFormat.BOTH, "<think>a", False),
        (ReasoningFormat.CONTENT, "<think>a", False),
    ],
)
def test_answers_that_are_nothing_but_reasoning(style: ReasoningFormat, text: str, only: bool) -> None:
    stream = think(style)
    parts(stream, pieces(text))
    assert stream.reasoning_only is only


@given(
    st.sampled_from([None, THINK, HARMONY, DIALECTS[1]]),
    st.sampled_from(ReasoningFormat),
    st.lists(
        st.sampled_from(
            ["<think>", "</th", "ink>", "<|channel|>", "final", "analysis", "<|message|>", "a", " ", "", "<"]
        ),
        max_size=12,
    ),
    st.booleans(),
    st.integers(1, 4),
)
def test_streamed_equals_whole(
    dialect: object, style: ReasoningFormat, texts: list[str], inside: bool, group: int
) -> None:
    def message(given: list[TextPiece]) -> tuple[str, str, bool, list[int]]:
        stream = MessageStream(make_reader(dialect, inside=inside), style)  # type: ignore[arg-type]
        shown = parts(stream, given)
        joined = "".join(part.content for part in shown), "".join(part.reasoning for part in shown)
        return *joined, stream.reasoning_only, list(itertools.chain.from_iterable(map(tokens, shown)))

    one_by_one = pieces(*texts)
    grouped = [
        TextPiece(
            "".join(piece.text for piece in one_by_one[at : at + group]),
            tuple(itertools.chain.from_iterable(piece.logprobs for piece in one_by_one[at : at + group])),
        )
        for at in range(0, len(texts), group)
    ]
    assert message(one_by_one) == message(grouped)
    assert message(one_by_one)[-1] == list(range(len(texts)))
