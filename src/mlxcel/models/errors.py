"""Why a checkpoint cannot be used."""

from __future__ import annotations

_MAX_CHARACTERS = 300


class ModelError(Exception):
    """A model reference or a checkpoint that cannot be used: one line that names it and says what is wrong."""


def one_line(error: BaseException) -> str:
    """The message of an error from elsewhere, fit to become part of a ModelError."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}..."
