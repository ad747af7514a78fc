from __future__ import annotations

import io
import logging
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlxcel.config import LogConfig
from mlxcel.telemetry.logs import LogFileError, level_of, setup_logging

log = logging.getLogger("mlxcel.test")


@pytest.fixture(autouse=True)
def untouched_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in root.handlers[:]:
        if handler not in handlers:
            root.removeHandler(handler)
            handler.close()
    root.setLevel(level)


def logged(config: LogConfig, *secrets: str) -> io.StringIO:
    stream = io.StringIO()
    setup_logging(config, secrets=secrets, stream=stream)
    return stream


PLAIN = LogConfig(prefix=False, timestamps=False)


@pytest.mark.parametrize(
    ("verbosity", "level"),
    [
        (0, logging.ERROR),
        (1, logging.ERROR),
        (2, logging.WARNING),
        (3, logging.INFO),
        (4, logging.DEBUG),
        (99, logging.DEBUG),
    ],
)
def test_verbosity_is_a_level(verbosity: int, level: int) -> None:
    assert level_of(verbosity) == level


def test_only_what_the_verbosity_lets_through_is_written() -> None:
    stream = logged(LogConfig(verbosity=2, prefix=False, timestamps=False))
    log.info("unseen")
    log.warning("seen")
    assert stream.getvalue() == "seen\n"


def test_time_and_level_stand_in_front() -> None:
    stream = logged(LogConfig())
    log.warning("hello %s", "you")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} W hello you\n", stream.getvalue())


def test_colors_are_for_those_who_ask() -> None:
    stream = logged(LogConfig(colors="on", prefix=False, timestamps=False))
    log.error("red")
    assert stream.getvalue() == "\x1b[31mred\x1b[0m\n"
    stream = logged(LogConfig(colors="auto", prefix=False, timestamps=False))
    log.error("not a terminal")
    assert stream.getvalue() == "not a terminal\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("no_color", "colored"), [("", True), ("1", False)])
def test_auto_colors_look_at_the_terminal(no_color: str, colored: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    stream = Terminal()
    setup_logging(PLAIN, stream=stream)
    log.error("x")
    assert ("\x1b[" in stream.getvalue()) is colored


def test_secrets_are_taken_out_of_messages_arguments_and_traces(tmp_path: Path) -> None:
    file = tmp_path / "log"
    stream = logged(LogConfig(file=file, prefix=False, timestamps=False), "s3cret", "s3cret-longer")
    log.info("in the s3cret message")
    log.info("in %s and %r", "s3cret-longer", {"key": "s3cret"})
    try:
        raise ValueError("s3cret in an exception")
    except ValueError:
        log.exception("failed")
    for text in (stream.getvalue(), file.read_text()):
        assert "s3cret" not in text
        assert "in the [redacted] message" in text
        assert "in [redacted] and {'key': '[redacted]'}" in text
        assert "ValueError: [redacted] in an exception" in text


def test_what_looks_like_a_credential_is_taken_out_too() -> None:
    stream = logged(PLAIN)
    log.info("authorization: Bearer sk-abcdefgh12345 and hf_abcdefghijklmnopqrst")
    assert stream.getvalue() == "authorization: Bearer [redacted] and [redacted]\n"


def test_an_empty_secret_hides_nothing() -> None:
    stream = logged(PLAIN, "")
    log.info("hello")
    assert stream.getvalue() == "hello\n"


def test_disabled_is_silent_everywhere(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    stream = logged(LogConfig(disable=True, file=tmp_path / "log"))
    log.error("unseen")
    assert stream.getvalue() == ""
    assert not (tmp_path / "log").exists()
    assert capfd.readouterr().err == ""


def test_the_file_is_private_and_grows(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("before\n")
    file.chmod(0o644)
    logged(LogConfig(file=file, prefix=False, timestamps=False))
    log.info("after")
    assert file.read_text() == "before\nafter\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_second_setup_replaces_the_first(tmp_path: Path) -> None:
    first = logged(LogConfig(file=tmp_path / "log"))
    second = logged(PLAIN)
    log.info("once")
    assert first.getvalue() == ""
    assert second.getvalue() == "once\n"
    assert (tmp_path / "log").read_text() == ""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("link", "symbolic link"),
        ("directory", "Is a directory"),
        ("missing/log", "No such file"),
        ("pipe", "No such device|not a regular file"),
        ("/dev/null", "not a regular file"),
    ],
)
def test_an_unusable_file_is_one_clear_error(name: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(LogFileError, match=words) as error:
        logged(LogConfig(file=tmp_path / name))
    assert str(tmp_path / name) in str(error.value)
    assert "\n" not in str(error.value)


def test_libraries_speak_up_only_when_everything_is_asked_for() -> None:
    stream = logged(PLAIN)
    logging.getLogger("uvicorn.error").info("unseen")
    logging.getLogger("uvicorn.error").warning("seen")
    assert stream.getvalue() == "seen\n"
    stream = logged(LogConfig(verbosity=5, prefix=False, timestamps=False))
    logging.getLogger("uvicorn.error").info("seen now")
    assert stream.getvalue() == "seen now\n"
