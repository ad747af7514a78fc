"""The reader of JSON against the standard library's, on valid and on broken text, in pieces."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcel.chat.tools.json_text import Malformed, Unfinished, compact, is_json, loads, quote, string, value
from mlxcel.chat.tools.source import Reading, Source

_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(), inner, max_size=4)),
    max_leaves=10,
)
_LAYOUTS = st.sampled_from([(",", ":"), (" ,\n", "\t: "), (", ", ": ")])


def _read(reader: Callable[..., Reading[None]], pieces: Sequence[str]) -> str:
    """What `reader` makes of a text; it must take all of it."""
    source = Source()
    out: list[str] = []
    reading = reader(source, out.append)
    try:
        next(reading)
        for piece in pieces:
            source.feed(piece)
            next(reading)
        source.end(cut=False)
        next(reading)
    except StopIteration:
        pass
    else:
        raise AssertionError("the reader waits for text after the end")
    assert source.pos == len(source.text)
    return "".join(out)


def _pieces(text: str, data: st.DataObject) -> list[str]:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    return [text[start:end] for start, end in itertools.pairwise([0, *cuts, len(text)])]


@given(data=st.data(), content=_JSON, layout=_LAYOUTS, ascii_only=st.booleans())
def test_valid_json_is_kept_letter_by_letter(
    data: st.DataObject, content: object, layout: tuple[str, str], ascii_only: bool
) -> None:
    text = json.dumps(content, separators=layout, ensure_ascii=ascii_only)
    assert _read(value, _pieces(text, data)) == text
    assert is_json(text)


@given(data=st.data(), text=st.text(alphabet="{}[]\":, \n\t1e.-0truefalsn\\/'\x01é", max_size=16))
def test_what_is_read_is_json(data: st.DataObject, text: str) -> None:
    text = text.strip()
    try:
        read = _read(value, _pieces(text, data))
    except (Malformed, AssertionError):  # none, or some with more after it
        assert not _is_strict_json(text)
    else:
        assert _is_strict_json(read)


def _is_strict_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@given(data=st.data(), content=st.text(alphabet=st.characters(exclude_categories=["Cs"])), ascii_only=st.booleans())
def test_strings_are_unescaped(data: st.DataObject, content: str, ascii_only: bool) -> None:
    text = json.dumps(content, ensure_ascii=ascii_only)
    assert _read(string, _pieces(text, data)) == content


@pytest.mark.parametrize(
    ("text", "mended", "content"),
    [
        ('"a\nb\tc\x00"', '"a\\nb\\tc\\u0000"', "a\nb\tc\x00"),
        (r'"\d \' \u12 \x"', r'''"\\d ' \\u12 \\x"''', r"\d ' \u12 \x"),
        (r'"\ud83d\ude00"', r'"\ud83d\ude00"', "😀"),
        (r'"\ud83d"', r'"\ud83d"', "\ufffd"),
        (r'"\ude00\ud83dx\ud83d\ud83d\ude00"', r'"\ude00\ud83dx\ud83d\ud83d\ude00"', "\ufffd\ufffdx\ufffd😀"),
    ],
)
def test_slips_are_mended(text: str, mended: str, content: str) -> None:
    for pieces in ([text], list(text)):
        assert _read(value, pieces) == mended
        assert _read(string, pieces) == content
    json.loads(mended)


@pytest.mark.parametrize("text", ["", "{", '{"a', '{"a":', '{"a":1', "[1,", '"\\', '"\\u12', "tru", '{"a":"'])
def test_text_that_ends_too_early(text: str) -> None:
    with pytest.raises(Unfinished):
        _read(value, [text])


@pytest.mark.parametrize(
    "text", ["{,", "[,", '{"a" 1}', "{a:1}", "[1 2]", "[01]", "[1.]", "[NaN]", "[1,]", '{"a":1,}', "]", "[+1]"]
)
def test_text_that_is_no_json(text: str) -> None:
    with pytest.raises(Malformed) as caught:
        _read(value, [text + " "])
    assert not isinstance(caught.value, Unfinished)
    assert not is_json(text)


def test_depth_is_not_limited() -> None:
    text = "[" * 50_000 + "]" * 50_000
    assert _read(value, [text]) == text


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "1e999", "[" * 5000, "{", "9" * 5000])
def test_strict_decoding_refuses(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        loads(text)


def test_brackets_inside_strings_are_no_depth() -> None:
    text = json.dumps(["[" * 1000 + '"\\'])
    assert loads(text) == json.loads(text)


@given(parts=st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"]))))
def test_quoting_pieces_quotes_the_whole(parts: list[str]) -> None:
    assert json.loads('"' + "".join(map(quote, parts)) + '"') == "".join(parts)


def test_compact_json_is_valid_unicode() -> None:
    assert compact({"a": ["é\ud800", 1]}) == '{"a":["é\ufffd",1]}'
