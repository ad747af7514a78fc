"""Tokenizers of checkpoint folders: `tokenizer.json` and the files beside it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from tokenizers import AddedToken, Tokenizer

from mlxcel.models.errors import ModelError
from mlxcel.models.sidecar import as_mapping, read_json, read_text
from mlxcel.models.tokenizer import TextTokenizer, added_tokens, library_errors, register, turn_end_ids, wrap_sequences

log = logging.getLogger(__name__)


def folder_tokenizer(
    folder: Path, settings: Mapping[str, Any], configs: Iterable[Mapping[str, Any]] = ()
) -> TextTokenizer:
    """The tokenizer of a checkpoint folder.

    settings: contents of `tokenizer_config.json`. configs: contents of `config.json` and `generation_config.json`,
    for the end tokens they name. Without a `tokenizer.json` transformers converts what is there. Raises ModelError
    when that fails.
    """
    with library_errors(folder):
        backend = _backend(folder)
        named = special_tokens(folder, settings)
        _register_declared(backend, settings)
        _make_special(backend, [*_special_texts(settings, named)])
        _follow_settings(backend, settings, named)
        ends = {token_id for config in configs for token_id in _declared_ends(config)}
        if (token_id := backend.token_to_id(named.get("eos_token", ""))) is not None:
            ends.add(token_id)
        converted = not (folder / "tokenizer.json").is_file()
        return TextTokenizer(backend, ends | turn_end_ids(backend), sentencepiece=converted)


def special_tokens(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """The tokens that templates name (`bos_token` and so on) with their text."""
    tokens: dict[str, str] = {}
    for source in (as_mapping(read_json(folder / "special_tokens_map.json")), settings):
        for name, value in source.items():
            if name.endswith("_token") and (text := _content(value)):
                tokens[name] = text
    return tokens


def chat_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """The Jinja source of the checkpoint's chat template; of several named ones the one called `default`."""
    text = read_text(folder / "chat_template.jinja")
    if text is not None:
        return text
    for source in (as_mapping(read_json(folder / "chat_template.json")), settings):
        template = source.get("chat_template")
        if isinstance(template, list):
            named = [as_mapping(entry) for entry in cast(list[Any], template)]
            template = next((entry.get("template") for entry in named if entry.get("name") == "default"), None)
        if isinstance(template, str):
            return template
    return None


def _backend(folder: Path) -> Tokenizer:
    file = folder / "tokenizer.json"
    if file.is_file():
        return Tokenizer.from_file(str(file))
    # Imported late: it takes more than a second, and nearly all checkpoints do without.
    from transformers import AutoTokenizer

    log.info("%s has no tokenizer.json; converting its tokenizer", folder)
    converted: Any = cast(Any, AutoTokenizer).from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    backend: object = getattr(converted, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise ModelError(f"{folder}: has no tokenizer.json, and its tokenizer cannot be converted to one")
    return backend


def _register_declared(backend: Tokenizer, settings: Mapping[str, Any]) -> None:
    """Added tokens that `tokenizer.json` lacks."""
    known = added_tokens(backend)
    declared = as_mapping(settings.get("added_tokens_decoder"))
    for key, value in sorted(declared.items(), key=lambda item: int(item[0])):
        if int(key) not in known and (token := _added_token(as_mapping(value))) is not None:
            register(backend, [token])


def _make_special(backend: Tokenizer, texts: Iterable[str]) -> None:
    """Tokens that a checkpoint names as special are so, even where its `tokenizer.json` says otherwise."""
    special = {token.content for token in added_tokens(backend).values() if token.special}
    missing = [text for text in texts if text not in special and backend.token_to_id(text) is not None]
    register(backend, [AddedToken(text, special=True, normalized=False) for text in missing])


def _added_token(value: Mapping[str, Any]) -> AddedToken | None:
    content = _content(value)
    if not content:
        return None
    flags = {name: bool(value.get(name)) for name in ("single_word", "lstrip", "rstrip", "normalized", "special")}
    return AddedToken(content, **flags)


def _special_texts(settings: Mapping[str, Any], named: Mapping[str, str]) -> Iterator[str]:
    """Tokens that may come out of the model and are not part of its text."""
    for name in ("bos_token", "eos_token"):
        if name in named:
            yield named[name]
    extra = settings.get("additional_special_tokens")
    for value in cast(list[Any], extra) if isinstance(extra, list) else ():
        if text := _content(value):
            yield text


def _follow_settings(backend: Tokenizer, settings: Mapping[str, Any], named: Mapping[str, str]) -> None:
    """`add_bos_token` and `add_eos_token` of `tokenizer_config.json` win over the template in `tokenizer.json`."""
    if "add_bos_token" not in settings and "add_eos_token" not in settings:
        return
    bos = named.get("bos_token") if settings.get("add_bos_token") else None
    eos = named.get("eos_token") if settings.get("add_eos_token") else None
    wrap_sequences(backend, bos, eos)


def _declared_ends(config: Mapping[str, Any]) -> Iterator[int]:
    for scope in (config, as_mapping(config.get("text_config"))):
        value = scope.get("eos_token_id")
        for item in cast(list[Any], value) if isinstance(value, list) else [value]:
            if isinstance(item, int) and not isinstance(item, bool):
                yield item


def _content(value: object) -> str | None:
    """A token's text, which these files give as a string or as an object."""
    if isinstance(value, Mapping):
        value = cast(Mapping[str, Any], value).get("content")
    return value if isinstance(value, str) else None
