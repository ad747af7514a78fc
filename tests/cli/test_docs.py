from __future__ import annotations

from pathlib import Path

from mlxcel.cli.docs import main, page
from mlxcel.cli.flags import SERVER_FLAGS
from mlxcel.cli.usage import usage

PAGE = Path(__file__).parents[2] / "docs" / "flags.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "write it with: python -m mlxcel.cli.docs"


def test_the_page_is_written_where_it_is_wanted(tmp_path: Path) -> None:
    assert main([str(tmp_path / "new" / "flags.md")]) == 0
    assert (tmp_path / "new" / "flags.md").read_text(encoding="utf-8") == page()


def test_every_flag_is_on_the_page_and_every_row_of_a_table_is_whole() -> None:
    lines = page().splitlines()
    for flag in SERVER_FLAGS:
        assert any(f"`{flag.name}" in line for line in lines), flag.name
    width = 0
    for line in lines:
        cells = line.replace("\\|", "").count("|") if line.startswith("|") else 0
        assert not width or not cells or cells == width, line
        width = cells


def test_help_shows_served_flags_with_variable_and_default() -> None:
    shown = usage("mlxcel-server [flags]", "Serve.", SERVER_FLAGS, note="More.")
    assert shown.startswith("usage: mlxcel-server [flags]\nServe.\n")
    assert shown.endswith("\n\nMore.\n")
    assert "\nNetwork and access:\n" in shown
    assert " ".join(shown[shown.index("  --port PORT") :].split()).startswith(
        "--port PORT Port to listen on; 0 picks a free one (default: 8080) [LLAMA_ARG_PORT]"
    )
    for flag in SERVER_FLAGS:
        assert (f"  {flag.name}" in shown) is (flag.unserved is None), flag.name
    assert max(map(len, shown.splitlines())) <= 110
