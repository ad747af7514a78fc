"""Reasoning, answer and markup: nothing depends on how the text is cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcel.chat.dialects import DIALECTS, HARMONY, THINK, Dialect
from mlxcel.chat.reasoning import Kind, PlainReader, Segment, make_reader

BY_NAME = {dialect.name: dialect for dialect in DIALECTS}
GEMMA, INKLING, KIMI = BY_NAME["gemma4"], BY_NAME["inkling"], BY_NAME["kimi-k3"]
ANALYSIS = "<|channel|>analysis<|message|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>"
CALL = '<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>'


def read(dialect: Dialect | None, pieces: list[str], *, inside: bool = False, calls: bool = False) -> list[Segment]:
    reader = make_reader(dialect, inside=inside, calls=calls)
    return [*itertools.chain.from_iterable(map(reader.feed, pieces)), *reader.finish()]


def joined(segments: list[Segment], kind: Kind) -> str:
    return "".join(segment.text for segment in segments if segment.kind is kind)


def split(dialect: Dialect | None, text: str, *, inside: bool = False, calls: bool = False) -> tuple[str, str]:
    """Reasoning and content, which are the same for a text in one piece, in two at any place, and in characters."""
    cuts = [[text], list(text), *([text[:at], text[at:]] for at in range(1, len(text)))]
    results = set()
    for pieces in cuts:
        segments = read(dialect, pieces, inside=inside, calls=calls)
        assert "".join(segment.raw for segment in segments) == text
        results.add((joined(segments, Kind.REASONING), joined(segments, Kind.CONTENT)))
    (result,) = results
    return result


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("Hello  world \n", "", "Hello  world \n"),
        (" \n Hello", "", " \n Hello"),
        ("<think>\nhm hm\n</think>\n\nYes. ", "hm hm", "Yes. "),
        ("<think>hm", "hm", ""),
        ("<think>hm \n", "hm \n", ""),
        ("<think>\n\n</think>\n\nYes", "", "Yes"),
        ("<think></think>", "", ""),
        ("one <think>a</think> two <think> b </think> three", "ab", "onetwothree"),
        ("before</think>after", "", "beforeafter"),  # nothing opened it
        ("<think>a<think>b</think>c", "ab", "c"),
        ("<thin", "", "<thin"),
        ("a < b </thing> <think", "", "a < b </thing> <think"),
        ("<think>a </thin</think>b", "a </thin", "b"),
        ("", "", ""),
    ],
)
def test_think_tags(text: str, reasoning: str, content: str) -> None:
    assert split(THINK, text) == (reasoning, content)


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("hm</think>Yes", "hm", "Yes"),
        ("\nhm\n</think>\n\nYes", "hm", "Yes"),
        ("\n<think>\nhm</think>Yes", "hm", "Yes"),  # opened once more by the model
        ("hm \n", "hm \n", ""),
        ("</think>Yes", "", "Yes"),
        ("\n\n", "", ""),
        ("a</think>b<think>c</think>d", "ac", "bd"),
    ],
)
def test_think_tags_after_a_prompt_that_opened_the_block(text: str, reasoning: str, content: str) -> None:
    assert split(THINK, text, inside=True) == (reasoning, content)


@pytest.mark.parametrize(
    ("dialect", "text", "reasoning", "content"),
    [
        (GEMMA, "<|channel>thought\nhm\n<channel|>Yes<turn|>", "hm", "Yes"),
        (GEMMA, "<|channel>thought<channel|>Yes", "", "Yes"),
        (GEMMA, "<|channel>hm<channel|>Yes", "hm", "Yes"),
        (GEMMA, "<|channel>though", "though", ""),
        (GEMMA, "Yes<|think|>, <|turn>no", "", "Yes,no"),
        (GEMMA, "<|channel|>", "", "<|channel|>"),
        (
            INKLING,
            "<|content_thinking|>hm<|end_message|><|message_model|><|content_text|>Yes<|end_message|>",
            "hm",
            "Yes",
        ),
        (INKLING, "<|content_text|>Yes", "", "Yes"),
        (KIMI, "<|open|>think<|sep|>hm<|close|>think<|sep|>Yes", "hm", "Yes"),
        (KIMI, "<|open|>thinker<|sep|>", "", "<|open|>thinker<|sep|>"),
        (BY_NAME["longcat"], "<longcat_think>hm</longcat_think>Yes", "hm", "Yes"),
        (BY_NAME["magistral"], "[THINK]hm[/THINK]Yes", "hm", "Yes"),
        (BY_NAME["seed"], "<seed:think>hm</seed:think>Yes", "hm", "Yes"),
    ],
)
def test_other_families(dialect: Dialect, text: str, reasoning: str, content: str) -> None:
    assert split(dialect, text) == (reasoning, content)


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        (f"{ANALYSIS}hm<|end|>{FINAL}Yes<|return|>", "hm", "Yes"),
        (f"{ANALYSIS}hm{FINAL}Yes", "hm", "Yes"),  # no end between them
        (f"{ANALYSIS}hm", "hm", ""),
        (f"{ANALYSIS} a <|end|>{ANALYSIS}b<|end|>{FINAL} Yes ", "ab", "Yes "),
        ("<|channel|>commentary<|message|>Wait.<|end|>" + FINAL + "Yes", "", "Wait.\nYes"),
        ("<|channel|>secret<|message|>x<|end|>" + FINAL + "Yes", "", "Yes"),
        ("<|message|>Yes", "", "Yes"),
        ("Yes, without any markup", "", "Yes, without any markup"),
        ("to be or not", "", "to be or not"),
        ("<|channel|>analy", "", ""),  # a header that was cut off
        ("<|channel|>analysis<|end|>", "", ""),
        (f"{FINAL}a<|message|>b", "", "ab"),
        (f"{FINAL}a < b <|chan", "", "a < b <|chan"),
        (f"hm<|end|>{FINAL}Yes", "", "hm\nYes"),
    ],
)
def test_harmony(text: str, reasoning: str, content: str) -> None:
    assert split(HARMONY, text) == (reasoning, content)
    if not text.startswith("hm"):
        return
    assert split(HARMONY, text, inside=True) == ("hm", "Yes")


def test_harmony_calls_are_left_to_who_reads_them() -> None:
    text = f"{ANALYSIS}hm<|end|>{CALL}{FINAL}Done"
    assert split(HARMONY, text, calls=True) == ("hm", f"{CALL}Done")
    assert split(HARMONY, text) == ("hm", '{"a": 1}\nDone')
    open_call = CALL.removesuffix("<|call|>")
    assert split(HARMONY, f"{open_call}{FINAL}Done", calls=True) == ("", f"{open_call}<|end|>Done")
    assert split(HARMONY, open_call, calls=True) == ("", open_call)  # cut off: it has no end
    by_role = CALL.removeprefix("<|start|>assistant")
    assert split(HARMONY, by_role, calls=True) == ("", by_role)
    named = ' to=functions.f<|channel|>commentary<|message|>{"a": 1}<|call|>'
    assert split(HARMONY, named, calls=True) == ("", named)


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("\n<think>hm</think>Yes", "hm", "Yes"),
        ("<|channel>thought\nhm<channel|>Yes", "hm", "Yes"),
        (f"{ANALYSIS}hm<|end|>{FINAL}Yes", "hm", "Yes"),
        ("<|channel|>final<|message|>Yes", "", "Yes"),
        ("The tag <think> opens", "", "The tag <think> opens"),
        ("one</think>two", "", "onetwo"),
        (" \n", "", " \n"),
        ("<thi", "", "<thi"),
        ("", "", ""),
    ],
)
def test_a_family_that_nothing_tells_is_read_off_the_beginning(text: str, reasoning: str, content: str) -> None:
    assert split(None, text) == (reasoning, content)


PIECES = [
    *("<think>", "</think>", "<|channel>thought", "<|channel>", "<channel|>", "<turn|>"),
    *("<|start|>", "assistant", "<|channel|>", "analysis", "final", "<|message|>", "<|end|>", "<|call|>", " to=f"),
    *("<|open|>think<|sep|>", "<|close|>think<|sep|>", "<", ">", "|", "a", "bc", " ", "\n", "\u20ac"),
]


@given(
    st.sampled_from([None, *DIALECTS]),
    st.lists(st.sampled_from(PIECES), max_size=14).map("".join),
    st.lists(st.integers(0, 60), max_size=8),
    st.booleans(),
    st.booleans(),
)
def test_any_text_cut_anywhere(
    dialect: Dialect | None, text: str, borders: list[int], inside: bool, calls: bool
) -> None:
    edges = [0, *sorted(min(border, len(text)) for border in borders), len(text)]
    cut = read(dialect, [text[a:b] for a, b in itertools.pairwise(edges)], inside=inside, calls=calls)
    whole = read(dialect, [text], inside=inside, calls=calls)
    for segments in (cut, whole):
        assert "".join(segment.raw for segment in segments) == text
    for kind in Kind:
        assert joined(cut, kind) == joined(whole, kind)
    if dialect is not None and not calls:
        markers = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>") if dialect is HARMONY else dialect.markers
        assert not [(marker, segment) for marker in markers for segment in whole if marker in segment.text]


def test_text_flows_while_nothing_is_undecided() -> None:
    reader = make_reader(THINK)
    assert [segment.text for segment in reader.feed("One two")] == ["One two"]
    assert reader.feed(" <thi") == []
    assert [segment.text for segment in reader.feed("s")] == [" <this"]
    reader = make_reader(HARMONY)
    assert [segment.text for segment in reader.feed("The")] == ["The"]


def test_a_plain_reader_changes_nothing() -> None:
    reader = PlainReader()
    assert reader.feed("<think> ") == [Segment(Kind.CONTENT, "<think> ", "<think> ")]
    assert reader.feed("") == reader.finish() == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hunyuan3", "<think:opensource>hm</think:opensource>Yes."),
        ("solar", "<|think|>hm<|end|><|begin|>assistant<|content|>Yes."),
    ],
)
def test_families_with_marks_of_their_own(name: str, text: str) -> None:
    assert split(BY_NAME[name], text) == ("hm", "Yes.")
