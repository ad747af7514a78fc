"""The filters and tests of chat templates, each with a look at what it is about to do."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS
from jinja2.tests import TESTS

from mlxcel.chat import limits
from mlxcel.chat.limits import current_budget, text_size

# How many times longer than its input a filter's result, or what it holds on the way to it, can be.
_TEXT_FILTERS = {
    "capitalize": 1,
    "e": 5,
    "escape": 5,
    "forceescape": 5,
    "lower": 1,
    "safe": 1,
    "string": 1,
    "title": 32,
    "trim": 1,
    "truncate": 1,
    "upper": 1,
    "urlencode": 9,
    "wordcount": 32,
    "xmlattr": 5,
}
# Filters that lay out pages for people; their work grows faster than their input.
_PAGE_FILTERS = frozenset({"pprint", "striptags", "urlize", "wordwrap"})
_MAX_PAGE = 1 << 14
_MAX_WRAP = 64
_MAX_PATH = 256
# Filters that walk what they are given, and those of them that compare its items.
_WALKING_FILTERS = frozenset({"batch", "list", "map", "reject", "rejectattr", "select", "selectattr", "slice", "sum"})
_SORTING_FILTERS = frozenset({"groupby", "max", "min", "sort", "unique"})
# Where filters take the dotted path of an attribute.
_PATHS = {
    "groupby": 0,
    "join": 1,
    "max": 1,
    "min": 1,
    "rejectattr": 0,
    "selectattr": 0,
    "sort": 2,
    "sum": 0,
    "unique": 1,
}
_COMPARING_TESTS = frozenset({"!=", "<", "<=", "==", ">", ">=", "eq", "equalto", "ge", "greaterthan", "gt", "in"}) | {
    "le",
    "lessthan",
    "lt",
    "ne",
}
_MAX_ROUND_DIGITS = 100
_MAX_JSON_INDENT = 32


def guarded_filters() -> dict[str, Callable[..., Any]]:
    """Jinja's filters, with `tojson` as prompts want it."""
    filters = {**FILTERS, "tojson": _tojson}
    return {name: _counted(name, cast(Callable[..., Any], function)) for name, function in filters.items()}


def guarded_tests() -> dict[str, Callable[..., Any]]:
    """Jinja's tests."""
    tests = cast(Mapping[str, Callable[..., Any]], TESTS)
    return {name: _sized_test(test) if name in _COMPARING_TESTS else test for name, test in tests.items()}


def _counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter `function` with a look at its arguments before it runs and at its size after."""
    # Some filters get the environment or the evaluation context in front of the filtered value.
    first = int(hasattr(function, "jinja_pass_arg"))

    @functools.wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        current_budget().charge()
        value, rest = _check_filter(name, args[first], args[first + 1 :], kwargs)
        result = function(*args[:first], value, *rest, **kwargs)
        current_budget().count(result)
        return result

    return counted


def _check_filter(
    name: str, value: Any, rest: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, tuple[Any, ...]]:
    if factor := _TEXT_FILTERS.get(name):
        current_budget().reserve(text_size(value) * factor)
    elif name in _PAGE_FILTERS:
        check_page([value, rest, kwargs])
        limits.check_width("", [*rest, *kwargs.values()])
        if len(str(argument(rest, kwargs, 3, "wrapstring", ""))) > _MAX_WRAP:
            raise SecurityError("the chat template puts too much between lines")
    elif name in _SORTING_FILTERS:
        value = list(ticking(value))
        current_budget().check_container(value)
    elif check := _FILTER_CHECKS.get(name):
        value = check(value, rest, kwargs)
    path = argument(rest, kwargs, _PATHS.get(name, len(rest)), "attribute", None)
    if isinstance(path, str) and len(path) > _MAX_PATH:
        raise SecurityError("the chat template names an attribute at too great a depth")
    if name in _WALKING_FILTERS and isinstance(value, Iterable):
        value = ticking(cast(Iterable[Any], value))
    return value, rest


def ticking(values: Iterable[Any]) -> Iterator[Any]:
    """The items of `values`, counted as they are read."""
    budget = current_budget()
    for count, value in enumerate(values, 1):
        budget.charge()
        if count % 4096 == 0:
            budget.reserve_items(count)
        yield value


def check_page(value: Any) -> None:
    """Refuse to lay out a text on which the work would be out of proportion."""
    if text_size(value) > _MAX_PAGE:
        raise SecurityError("the chat template lays out a text that is too long")


def _sized_test(function: Callable[..., Any]) -> Callable[..., Any]:
    """A test that compares, with a look at what it compares."""

    @functools.wraps(function)
    def sized(*args: Any) -> Any:
        current_budget().charge()
        for value in args:
            current_budget().check_container(value)
        return function(*args)

    return sized


def argument(rest: tuple[Any, ...], kwargs: Mapping[str, Any], position: int, name: str, default: Any) -> Any:
    """An argument of a call, given by position or by name."""
    return rest[position] if len(rest) > position else kwargs.get(name, default)


def _check_join(value: Any, rest: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    items = list(ticking(value))
    limits.check_join(str(argument(rest, kwargs, 0, "d", "")), items)
    return items


def _check_replace(value: Any, rest: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    current_budget().reserve(text_size(value))
    old, new = argument(rest, kwargs, 0, "old", ""), argument(rest, kwargs, 1, "new", "")
    limits.check_replace(str(value), str(old), str(new))
    return value


def _check_indent(value: Any, rest: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    current_budget().reserve(text_size(value))
    limits.check_indent(str(value), argument(rest, kwargs, 0, "width", 4))
    return value


def _check_format(value: Any, rest: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    current_budget().reserve(text_size(value))
    limits.check_percent_format(str(value), rest or kwargs)
    return value


def _check_groups(value: Any, rest: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    limits.check_width("", [*rest, *kwargs.values()])
    return value


def _check_sum(value: Any, rest: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    if not isinstance(argument(rest, kwargs, 1, "start", 0), (int, float)):
        raise SecurityError("chat templates may only sum numbers")
    return value


def _check_round(value: Any, rest: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    precision = argument(rest, kwargs, 0, "precision", 0)
    if isinstance(precision, int) and abs(precision) > _MAX_ROUND_DIGITS:
        raise SecurityError("the chat template rounds to too many digits")
    return value


_FILTER_CHECKS: Mapping[str, Callable[[Any, tuple[Any, ...], Mapping[str, Any]], Any]] = {
    "batch": _check_groups,
    "center": _check_groups,
    "format": _check_format,
    "indent": _check_indent,
    "join": _check_join,
    "replace": _check_replace,
    "round": _check_round,
    "slice": _check_groups,
    "sum": _check_sum,
}


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it stands in prompts: without HTML escapes, not reduced to ASCII."""
    current_budget().reserve(text_size(value))
    if indent is None and separators is None:
        return json.dumps(value, ensure_ascii=ensure_ascii, sort_keys=sort_keys)
    if isinstance(indent, int) and indent > _MAX_JSON_INDENT:
        raise SecurityError("the chat template indents JSON too far")
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    chunks: list[str] = []
    for chunk in encoder.iterencode(value):  # what indentation adds depends on the depth of each item
        current_budget().charge(len(chunk))
        chunks.append(chunk)
    return "".join(chunks)
