from __future__ import annotations

import io

import pytest

from mlxcel.cli.progress import shown_progress

MIB = 1 << 20


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(stream: io.StringIO, environ: dict[str, str]) -> str:
    with shown_progress(stream, environ) as progress:
        for done in range(101):
            progress("model.whl", done * MIB, 100 * MIB)
    return stream.getvalue()


def test_lines_now_and_then_where_there_is_no_terminal() -> None:
    assert shown(io.StringIO(), {}).splitlines() == [
        "model.whl 0 of 100 MiB",
        "model.whl 25 of 100 MiB",
        "model.whl 50 of 100 MiB",
        "model.whl 75 of 100 MiB",
        "model.whl 100 of 100 MiB",
    ]


def test_an_unknown_size_is_said_once() -> None:
    stream = io.StringIO()
    with shown_progress(stream, {}) as progress:
        for done in range(5):
            progress("waiting", done, 0)
    assert stream.getvalue() == "waiting\n"


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    output = shown(Terminal(), {})
    assert "model.whl" in output
    assert "\x1b[" in output


def test_nothing_to_show_shows_nothing() -> None:
    stream = Terminal()
    with shown_progress(stream, {}):
        pass
    assert stream.getvalue() == ""


def test_no_colors_no_bar() -> None:
    assert "\x1b[" not in shown(Terminal(), {"NO_COLOR": "1"})


@pytest.mark.parametrize("environ", [{"MLXCEL_NO_PROGRESS": "1"}, {"CI": "true"}])
def test_quiet(environ: dict[str, str]) -> None:
    assert shown(Terminal(), environ) == ""
    assert shown(io.StringIO(), environ) == ""
