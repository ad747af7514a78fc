"""Templates of the main model families, written for these tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

TEMPLATES = Path(__file__).parent / "templates"


@pytest.fixture
def template_source() -> Callable[[str], str]:
    """Reads a template of `tests/chat/templates` by its family name."""
    return lambda name: (TEMPLATES / f"{name}.jinja").read_text()
