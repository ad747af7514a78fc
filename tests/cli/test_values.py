from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlxcel.cli.flag import FlagError, Kind
from mlxcel.cli.values import (
    OBJECT,
    SWITCH,
    api_prefix,
    auto_parallel,
    budget,
    choice,
    integer,
    keys_of_file,
    number,
    parse_size,
    path,
    ping_interval,
    read_text,
    seed,
    template_source,
    text,
    words,
)


@pytest.mark.parametrize(
    ("kind", "given", "value"),
    [
        (SWITCH, "on", True),
        (SWITCH, "Enabled", True),
        (SWITCH, "true", True),
        (SWITCH, "1", True),
        (SWITCH, "off", False),
        (SWITCH, "disabled", False),
        (SWITCH, "FALSE", False),
        (SWITCH, "0", False),
        (integer(), "-5", -5),
        (integer(least=0, most=9), "9", 9),
        (number(), "0.5", 0.5),
        (number(least=0), "0", 0.0),
        (number(least=0, most=1), "1", 1.0),
        (choice("a", "b"), "b", "b"),
        (text("X"), " x ", " x "),
        (words("X"), "a, b,,c ", ("a", "b", "c")),
        (path(), "/a/b", Path("/a/b")),
        (OBJECT, '{"a": [1]}', {"a": [1]}),
    ],
)
def test_values_that_are_read(kind: Kind, given: str, value: Any) -> None:
    assert kind.parse(given) == value


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (SWITCH, "yes"),
        (SWITCH, ""),
        (integer(), "1.5"),
        (integer(), "x"),
        (integer(), "9" * 5000),
        (integer(least=0), "-1"),
        (integer(most=9), "10"),
        (number(), "nan"),
        (number(), "inf"),
        (number(), "x"),
        (number(least=0), "-0.1"),
        (number(least=0, most=1), "1.01"),
        (choice("a", "b"), "c"),
        (text("X"), ""),
        (words("X"), " , "),
        (path(), ""),
        (path(), "a\0b"),
        (path(), "~no-such-user/x"),
        (OBJECT, "[]"),
        (OBJECT, "{"),
        (OBJECT, "[" * 100_000),
    ],
)
def test_values_that_are_not(kind: Kind, given: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        kind.parse(given)


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ("123", 123),
        ("1K", 1024),
        ("1kb", 1024),
        ("2M", 2 << 20),
        ("1.5G", 3 << 29),
        ("0.5 MB", 1 << 19),
        ("0", None),
        ("0G", None),
        ("none", None),
        ("NONE", None),
        ("", None),
    ],
)
def test_sizes(given: str, value: int | None) -> None:
    assert parse_size(given) == value


@pytest.mark.parametrize("given", ["1.5", "-1", "1T", "K", "x", "1 2", "1e3"])
def test_sizes_that_are_none(given: str) -> None:
    with pytest.raises(ValueError, match="bytes"):
        parse_size(given)


def test_conversions() -> None:
    assert [auto_parallel(-1), auto_parallel(7)] == [4, 7]
    assert [seed(-1), seed(-9), seed(0)] == [None, None, 0]
    assert [budget(-1), budget(1)] == [-1, 1]
    assert [ping_interval(-1), ping_interval(0.5)] == [-1, 0.5]
    assert [api_prefix("/"), api_prefix("v"), api_prefix("/v/w/")] == ["", "/v", "/v/w"]
    assert template_source("{{ x }}") == "{{ x }}"


@pytest.mark.parametrize(
    ("convert", "value"),
    [(auto_parallel, 0), (budget, 0), (ping_interval, 0), (ping_interval, -0.5), (template_source, "chatml")],
)
def test_conversions_that_refuse(convert: Any, value: Any) -> None:
    with pytest.raises(FlagError):
        convert(value)


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("one\n\n# a note\n  two #2 \r\n")
    assert keys_of_file(file) == ("one", "  two #2 "), "nothing of a key is cut off"
    file.write_text("\n# nothing\n")
    with pytest.raises(FlagError, match="holds no key"):
        keys_of_file(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(FlagError, match="not UTF-8"):
        read_text(file)
    for unreadable in (tmp_path, tmp_path / "missing"):
        with pytest.raises(FlagError, match="cannot read"):
            read_text(unreadable)
