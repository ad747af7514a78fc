from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcel.cli.flag import Flag, FlagError, Inert, Unserved, row
from mlxcel.cli.flags import SERVER_FLAGS
from mlxcel.cli.parser import Arguments, parse
from mlxcel.cli.values import SIZE, SWITCH, integer, text, words

TABLE = (
    row("S", "--count -c", integer(), "", "", env="LLAMA_ARG_COUNT MLXCEL_COUNT"),
    row("S", "--name", text("NAME"), "", ""),
    row("S", "--warm -w", SWITCH, "", "", env="LLAMA_ARG_WARM", off="--no-warm -nw"),
    row("S", "--quiet", SWITCH, "", "", env="LLAMA_ARG_QUIET"),
    row("S", "--key", words("KEY"), "", "", env="API_KEY", adds=True, secret=True),
    Flag(("--range",), text("A B"), "S", values=2),
    Flag(("--old",), integer(), "S", env=("OLD",), unserved=Unserved(Inert(("0",)), "it is gone", "use --name")),
    Flag(("--lock",), SWITCH, "S", unserved=Unserved(Inert(("off",)), "no locks", "leave it out")),
    Flag(("--room",), SIZE, "S", unserved=Unserved(Inert(("none",)), "no room", "leave it out")),
)


def read(*argv: str, operands: int = 0, **environ: str) -> Arguments:
    return parse(argv, TABLE, environ, operands=operands)


@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        (["--count", "5"], "--count", 5),
        (["--count=5"], "--count", 5),
        (["-c", "5"], "--count", 5),
        (["-c=5"], "--count", 5),
        (["--count", "-1"], "--count", -1),
        (["--count", "1", "-c", "2"], "--count", 2),
        (["--name", "--not-a-flag"], "--name", "--not-a-flag"),
        (["--name", "a=b"], "--name", "a=b"),
        (["--name=a=b"], "--name", "a=b"),
        (["--name=--count"], "--name", "--count"),
        (["--warm"], "--warm", True),
        (["-w"], "--warm", True),
        (["--no-warm"], "--warm", False),
        (["-nw"], "--warm", False),
        (["--no_warm"], "--warm", False),
        (["--no-warm", "--warm"], "--warm", True),
        (["--warm=off"], "--warm", False),
        (["--range", "1", "2"], "--range", "1 2"),
        (["--old", "0"], "--old", 0),
        (["--old", "00"], "--old", 0),
        (["--lock=off"], "--lock", False),
        (["--room", "0K"], "--room", None),
        ([], "--count", None),
    ],
)
def test_what_is_given_is_read(argv: list[str], name: str, value: Any) -> None:
    assert read(*argv).get(name) == value


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--cuont", "5"], "unknown flag --cuont; did you mean --count?"),
        (["--zzz"], "unknown flag --zzz; see --help"),
        (["-x"], "unknown flag -x; see --help"),
        (["--count"], "--count expects a value"),
        (["--count", "--name", "x"], "--count expects a value"),
        (["--count", "--name=x"], "--count expects a value"),
        (["--range", "1"], "--range expects a value"),
        (["--count", "five"], "--count expects a whole number, not 'five'"),
        (["-c", "five"], "-c expects a whole number, not 'five'"),
        (["--no-warm=on"], "--no-warm takes no value"),
        (["--warm=perhaps"], "--warm expects on, enabled, true, 1, off, disabled, false or 0, not 'perhaps'"),
        (["--key", ","], "--key expects a comma list that is not empty, not the given value"),
        (["stray"], "unexpected argument 'stray'"),
        (["--old", "3"], "--old '3' is not served: it is gone; use --name"),
        (["--lock"], "--lock is not served: no locks; leave it out"),
        (["--room", "5G"], "--room '5G' is not served: no room; leave it out"),
    ],
)
def test_what_is_wrong_is_named(argv: list[str], message: str) -> None:
    with pytest.raises(FlagError) as error:
        read(*argv)
    assert str(error.value) == message


def test_a_flag_beats_its_variables_and_the_first_variable_beats_the_second() -> None:
    both = {"LLAMA_ARG_COUNT": "2", "MLXCEL_COUNT": "3"}
    assert read("-c", "1", **both).get("--count") == 1
    assert read(**both).get("--count") == 2
    assert read(MLXCEL_COUNT="3").get("--count") == 3
    assert read(LLAMA_ARG_COUNT="", MLXCEL_COUNT="3").get("--count") == 3
    assert "--count" not in read(LLAMA_ARG_COUNT="")


def test_a_variable_that_loses_is_not_even_looked_at() -> None:
    assert read("-c", "1", LLAMA_ARG_COUNT="rubbish").get("--count") == 1


def test_errors_name_the_variable() -> None:
    for environ, words_ in {
        ("LLAMA_ARG_COUNT", "x"): "LLAMA_ARG_COUNT expects a whole number, not 'x'",
        ("LLAMA_ARG_WARM", "yes"): "LLAMA_ARG_WARM expects on, enabled",
        ("OLD", "9"): "OLD '9' is not served: it is gone",
    }.items():
        with pytest.raises(FlagError, match=words_):
            read(**dict([environ]))


@pytest.mark.parametrize(
    ("environ", "value"),
    [
        ({"LLAMA_ARG_WARM": "off"}, False),
        ({"LLAMA_ARG_WARM": "1"}, True),
        ({"LLAMA_ARG_NO_WARM": "1"}, False),
        ({"LLAMA_ARG_NO_WARM": ""}, False),
        ({"LLAMA_ARG_WARM": "on", "LLAMA_ARG_NO_WARM": "1"}, True),
        ({}, None),
    ],
)
def test_switches_from_variables(environ: dict[str, str], value: bool | None) -> None:
    assert read(**environ).get("--warm") == value


def test_only_a_switch_with_an_off_form_has_a_no_variable() -> None:
    assert "--quiet" not in read(LLAMA_ARG_NO_QUIET="1")


def test_values_that_add_up() -> None:
    arguments = read("--key", "a,b", "--key=c", API_KEY="d")
    assert [setting.value for setting in arguments.settings] == [("a", "b"), ("c",), ("d",)]


def test_plain_words() -> None:
    assert read("model", "-c", "1", operands=1).operands == ["model"]
    assert read("--", "-c", operands=1).operands == ["-c"]
    assert read("-", operands=1).operands == ["-"]
    with pytest.raises(FlagError, match="unexpected argument 'two'"):
        read("one", "two", operands=1)


@given(st.lists(st.text(max_size=12) | st.sampled_from([n for f in SERVER_FLAGS for n in f.names]), max_size=6))
def test_no_command_line_is_worse_than_an_error(argv: list[str]) -> None:
    with contextlib.suppress(FlagError):
        parse(argv, SERVER_FLAGS, {})
