"""Where a sequence thinks, and how its thinking ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcel.engine.events import Finished, FinishReason
from mlxcel.engine.request import GenerationRequest, SamplingParams
from mlxcel.engine.thinking import Thinking, ThinkingRule

from .scripted import EOS, ByteTokenizer, ScriptedBackend
from .test_engine import collect, running


class Words(ByteTokenizer):
    """Bytes, but the two markers are special tokens, without text of their own."""

    spelling = {300: "<think>", 301: "</think>"}  # noqa: RUF012

    def encode(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        for token, marker in self.spelling.items():
            if text == marker:
                return [token]
        return super().encode(text)


def rule(budget: int | None = None, *, inside: bool = False) -> ThinkingRule:
    return ThinkingRule(("<think>",), ("</think>",), inside, budget)


def said(thinking: Thinking, tokens: Sequence[int], count: int) -> bytes:
    """What a model says that wants to say `tokens`, of which forced ones take the place."""
    out: list[int] = []
    for index in range(count):
        wanted = tokens[index] if index < len(tokens) else ord(".")
        out.append(wanted if thinking.forced is None else thinking.forced)
        thinking.push(out[-1])
    return bytes(out)


def test_tokens_inside_blocks_are_counted() -> None:
    thinking = Thinking(rule(), ByteTokenizer())
    said(thinking, b"a<think>bcd</think>e", 20)
    # Every byte after the opening marker but the last of the closing one.
    assert (thinking.tokens, thinking.inside, thinking.forced) == (3 + len("</think"), False, None)
    said(thinking, b"<think>x", 8)
    assert (thinking.tokens, thinking.inside) == (3 + len("</think") + 1, True)


@pytest.mark.parametrize(
    ("budget", "inside", "wanted", "heard"),
    [
        (0, True, b"hmm", b"</think>..."),
        (2, True, b"hmmmm", b"hm</think>."),
        (0, False, b"<think>hm", b"<think></think>."),
        (1, False, b"x<think>hm", b"x<think>h</think>."),
        (9, True, b"a</think><think>bcdefghijklmno", b"a</think><think>bcdefghijklmno"),  # inert after the first block
        (3, True, b"a</bcdef", b"a</think>."),  # what it had begun to write is completed
        (None, True, b"hmmmmmmmmmm", b"hmmmmmmmmmm"),
        (5, False, b"no thinking at all", b"no thinking at all"),
    ],
)
def test_budget(budget: int | None, inside: bool, wanted: bytes, heard: bytes) -> None:
    assert said(Thinking(rule(budget, inside=inside), ByteTokenizer()), wanted, len(heard)) == heard


def test_markers_that_are_special_tokens() -> None:
    tokenizer = Words()
    thinking = Thinking(ThinkingRule(("<think>",), ("</think>",), False, 2, tokenizer.spelling), tokenizer)
    for token in (300, 65, 66):
        assert thinking.forced is None
        thinking.push(token)
    assert thinking.forced == 301
    thinking.push(301)
    assert (thinking.forced, thinking.inside, thinking.tokens) == (None, False, 2)


def test_a_rule_without_an_end_forces_nothing() -> None:
    thinking = Thinking(ThinkingRule((), (), True, 0), ByteTokenizer())
    assert said(thinking, b"abc", 3) == b"abc"


@given(st.binary(max_size=40), st.integers(0, 12), st.booleans())
def test_the_first_block_never_has_more_tokens_than_its_budget(wanted: bytes, budget: int, inside: bool) -> None:
    thinking = Thinking(ThinkingRule((), ("</>",), inside, budget), ByteTokenizer())
    heard = said(thinking, wanted, 60)
    if inside:
        assert heard.find(b"</>") <= budget
        assert not thinking.inside
    else:
        assert heard.startswith(wanted)


def generate(
    request: GenerationRequest, wanted: bytes, neighbour: GenerationRequest | None = None
) -> list[Finished | str]:
    """Text and end of a generation by a model that goes through `wanted`, whatever it was made to say."""

    def follow(fed: Sequence[int]) -> int:
        said = len(fed) - 1
        return wanted[said] if said < len(wanted) else EOS

    async def work() -> list[Finished | str]:
        async with running(ScriptedBackend(follow=follow)) as engine:
            first, *others = engine.submit([request, *([neighbour] if neighbour else [])])
            text, finished = await collect(first)
            for other in others:
                assert (await collect(other))[0] == wanted.decode()
            return [text, finished]

    return asyncio.run(work())


def think(budget: int, **values: object) -> GenerationRequest:
    greedy = SamplingParams(temperature=0.0)
    return GenerationRequest((1,), greedy, thinking=rule(budget, inside=True), **values)  # type: ignore[arg-type]


def test_the_engine_ends_a_block_and_counts_its_tokens() -> None:
    plain = GenerationRequest((1,), SamplingParams(temperature=0.0))
    text, finished = generate(think(3), b"abcdefghijklmnop", neighbour=plain)
    assert text == "abc</think>lmnop"
    assert isinstance(finished, Finished)
    assert finished.reason is FinishReason.STOP
    assert (finished.usage.completion_tokens, finished.usage.reasoning_tokens) == (16, 3 + len("</think"))


def test_an_end_token_cannot_take_the_place_of_a_forced_one() -> None:
    text, _ = generate(think(2), b"ab")
    assert text == "ab</think>"


def test_half_a_character_before_a_forced_token_is_dropped() -> None:
    text, _ = generate(think(2), "a\u20ac".encode())
    assert text == "a</think>"


def test_the_budget_of_all_tokens_counts_the_forced_ones() -> None:
    text, finished = generate(think(2, max_tokens=5), b"abcdefgh")
    assert text == "ab</t"
    assert isinstance(finished, Finished)
    assert finished.reason is FinishReason.LENGTH


def test_stop_strings_see_the_forced_text() -> None:
    text, finished = generate(think(2, stop=("/th",)), b"abcdefgh")
    assert text == "ab<"
    assert isinstance(finished, Finished)
    assert finished.stop_string == "/th"


@pytest.mark.parametrize(
    ("text", "tokens"), [("<think>ab</think><think>abc", 2 + 7), ('"<think>abc', 0), ("<tool_call><think>abc", 0)]
)
def test_only_what_an_answer_begins_with(text: str, tokens: int) -> None:
    thinking = Thinking(ThinkingRule(("<think>",), ("</think>",), leading=True), ByteTokenizer())
    for token in text.encode():
        thinking.push(token)
    assert thinking.tokens == tokens
    assert not thinking.inside
