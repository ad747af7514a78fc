"""Answers under a rule: what comes before is read, the answer itself is left alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mlxcel.chat.dialects import DIALECTS, HARMONY, THINK, Dialect, Lead
from mlxcel.chat.held import HeldReader
from mlxcel.chat.reasoning import Kind, Segment, make_reader

JSON = '{"tag": "<think>a</think> <|channel|>analysis<|message|> b"}'
K3 = next(dialect for dialect in DIALECTS if dialect.name == "kimi-k3")


def _shown(segments: Sequence[Segment], kind: Kind) -> str:
    return "".join(segment.text for segment in segments if segment.kind is kind)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("dialect", "inside", "lead", "before", "reasoning"),
    [
        (THINK, False, Lead("</think>", "<think>"), "<think>\nHm.\n</think>\n\n", "Hm."),
        (THINK, False, Lead("</think>", "<think>"), "", ""),
        (THINK, True, Lead("</think>"), "\nHm <think>.</think>\n", "Hm."),
        (THINK, False, None, "", ""),
        (HARMONY, False, Lead(HARMONY.answer), f"<|channel|>analysis<|message|>Hm.<|end|>{HARMONY.answer}", "Hm."),
        (K3, False, Lead(K3.answer), f"<|open|>think<|sep|>Hm.<|close|>think<|sep|>{K3.answer}", "Hm."),
        (K3, False, Lead(K3.answer), K3.answer, ""),
        (None, False, None, "", ""),
    ],
)
def test_the_answer_is_left_alone(
    dialect: Dialect | None, inside: bool, lead: Lead | None, before: str, reasoning: str, size: int
) -> None:
    reader = HeldReader(make_reader(dialect, inside=inside), lead)
    text = before + JSON
    segments = [part for start in range(0, len(text), size) for part in reader.feed(text[start : start + size])]
    segments += reader.finish()
    assert _shown(segments, Kind.CONTENT) == JSON
    assert _shown(segments, Kind.REASONING) == reasoning
    assert "".join(segment.raw for segment in segments) == text


@pytest.mark.parametrize("text", ["<thi", "<think>Hm", "<think>Hm</thi"])
def test_an_answer_that_never_came(text: str) -> None:
    reader = HeldReader(make_reader(THINK), Lead("</think>", "<think>"))
    segments = [*reader.feed(text), *reader.finish()]
    assert "".join(segment.raw for segment in segments) == text
