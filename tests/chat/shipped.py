"""The chat templates that stand in the source of installed packages."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("mlx_lm", "mlx_vlm", "llama_cpp", "transformers")
"""Looked for; the first and the last are always there."""


def templates() -> dict[str, str]:
    """Every text in the packages' modules that loops over messages, by package, module and number."""
    found: dict[str, str] = {}
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)  # imports nothing
        for path in sorted(Path(spec.origin).parent.rglob("*.py")) if spec and spec.origin else ():
            source = path.read_text(encoding="utf-8")
            if "{%" in source:
                for number, template in enumerate(_templates_of(ast.parse(source))):
                    found[f"{package}:{path.stem}:{number}"] = template
    return found


def _templates_of(tree: ast.Module) -> list[str]:
    known: dict[str, str] = {}
    # In the order of the file, so that a part is known where it is put into a whole.
    assigned = (node for node in ast.walk(tree) if isinstance(node, ast.Assign))
    for node in sorted(assigned, key=lambda node: node.lineno):
        if isinstance(node.targets[0], ast.Name) and (text := _text(node.value, known)):
            known[node.targets[0].id] = text
    texts = {text for text in (*known.values(), *_inner_texts(tree, known)) if _is_template(text)}
    return sorted(text for text in texts if not any(text in other for other in texts - {text}))


def _inner_texts(tree: ast.Module, known: dict[str, str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Constant, ast.BinOp)) and (text := _text(node, known)):
            yield text


def _text(node: ast.expr, known: dict[str, str]) -> str | None:
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.Name(id=name):
            return known.get(name)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            parts = (_text(left, known), _text(right, known))
            return parts[0] + parts[1] if parts[0] is not None and parts[1] is not None else None
        case _:
            return None


def _is_template(text: str) -> bool:
    # The text around an example in a docstring is no template.
    return "messages" in text and "{%" in text and text.count("{%") == text.count("%}") and ">>>" not in text
