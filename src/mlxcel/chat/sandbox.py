"""The Jinja environment chat templates run in: no way out, no file access, and a budget on time and memory."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn, cast

from jinja2 import Environment, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, generate_lorem_ipsum
from jinja2.visitor import NodeTransformer

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
_MAX_SOURCE = 1 << 18
_MAX_TOKENS = 20_000
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
_PADDING_METHODS = frozenset({"center", "ljust", "rjust", "zfill"})
_SPLITTING_METHODS = frozenset({"rsplit", "split", "splitlines"})
_MULTIPLYING_METHODS = frozenset({"encode", "to_bytes", "translate"})
# Lists a template has made may grow and shrink, but only by values without parts: a list that held another one could
# come to hold more than anyone could count.
_LIST_METHODS = frozenset({"append", "pop"})
_LONG_TEXT = 1 << 16
_WORDS = re.compile(r"\S+")
_LINE_ENDS = re.compile(r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_MAX_TIME_PATTERN = 256
_MAX_ROUND_DIGITS = 100
_MAX_JSON_INDENT = 32


class TemplateRefusal(TemplateError):
    """Raised by a template itself, through `raise_exception`."""


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """What the templates of model checkpoints expect around them.

    Whitespace control, globals and filters are those of the Hugging Face `transformers` renderer. Everything that
    runs here, compiling included, needs a current budget (`limits.limited`).
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, _GenerationBlock],
            finalize=_count_output,
        )
        self.filters = {
            name: _counted(name, cast(Callable[..., Any], function))
            for name, function in {**FILTERS, "tojson": _tojson}.items()
        }
        for name in _COMPARING_TESTS:
            self.tests[name] = _sized_test(self.tests[name])
        names = cast(dict[str, Any], self.globals)
        names |= {
            "dict": _TemplateDict(),
            "lipsum": _lipsum,
            "namespace": _TemplateNamespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }

    def instrument(self, tree: nodes.Template) -> nodes.Template:
        """Put the counting of loop turns, macro bodies, joined text and built containers into a parsed template."""
        return cast(nodes.Template, _Instrumenter().visit(tree))

    def check_source(self, source: str) -> None:
        """Refuse a source whose compilation, which nothing counts, would take much time or memory.

        Raises SecurityError, TemplateSyntaxError.
        """
        if len(source) > _MAX_SOURCE or any(count > _MAX_TOKENS for count, _ in enumerate(self.lex(source))):
            raise SecurityError("it is too long")

    def tick(self, units: int) -> bool:
        """Count one run of a body that holds `units` characters of literal text. True, to stand in conditions."""
        current_budget().charge(1 + units)
        return True

    def compared(self, value: Any) -> Any:
        """An operand of a comparison."""
        current_budget().charge()
        current_budget().check_container(value)
        return value

    def counted(self, value: Any) -> Any:
        """A value that may be new."""
        current_budget().count(value)
        return value

    def joined(self, *values: Any) -> str:
        """The `~` operator."""
        limits.check_join("", values)
        return "".join(map(str, values))

    def built(self, container: Any) -> Any:
        """A list, tuple or dict the template has just put together."""
        current_budget().reserve(text_size(container))
        return container

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Also refuse bytes and what makes them; allow a template to append to a list of its own.

        The Kimi templates do, which `transformers` refuses to render.
        """
        if isinstance(obj, bytes) or (isinstance(obj, (str, int)) and attr in _MULTIPLYING_METHODS):
            return False
        if isinstance(obj, list) and attr in _LIST_METHODS:
            return not current_budget().is_given(cast(object, obj))
        return super().is_safe_attribute(obj, attr, value)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        """Refuse private names at once, where Jinja would first see what the template does with them."""
        if attribute.startswith("_"):
            raise SecurityError(f"access to attribute {attribute!r} of {type(obj).__name__!r} object is unsafe.")
        return super().unsafe_undefined(obj, attribute)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Check fields and widths before `str.format` runs."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        pattern = cast(str, value.__self__)

        @functools.wraps(wrapped)
        def checked(*args: Any, **kwargs: Any) -> str:
            limits.check_brace_format(pattern, [args, kwargs])
            return wrapped(*args, **kwargs)

        return checked

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call an object for the template, counted."""
        budget = current_budget()
        budget.reserve_items(len(args) + len(kwargs))
        owner: Any = getattr(obj, "__self__", None)
        for value in (*args, *kwargs.values(), owner):
            budget.check_container(value)
        if isinstance(owner, str):
            args = _check_string_method(owner, cast(str, obj.__name__), args, kwargs)
        elif isinstance(owner, list) and any(isinstance(value, (list, tuple, dict, Namespace)) for value in args):
            if obj.__name__ == "append":
                raise SecurityError("chat templates may only append texts and numbers to a list")
        return self.counted(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Run one of the operators that can build large values, counted."""
        current_budget().charge()
        if operator == "*":
            limits.check_product(left, right)
        elif operator == "**":
            limits.check_power(left, right)
        elif operator == "%" and isinstance(left, str):
            limits.check_percent_format(left, right)
        return self.counted(super().call_binop(context, operator, left, right))


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's words for training; here it is only a scope."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Instrumenter(NodeTransformer):
    """Rewrites a syntax tree so that everything that can repeat or grow reports to the environment."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_tick(node.body)))
        if node.test is not None:  # a loop whose condition is never true does not run its body
            node.test = nodes.And(_tick([]), node.test)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._count_body(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        return self._count_body(node)

    def visit_Block(self, node: nodes.Block) -> nodes.Node:
        return self._count_body(node)

    def _count_body(self, node: nodes.Macro | nodes.CallBlock | nodes.Block) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_tick(node.body)))
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _compared(node.expr)
        for operand in node.ops:
            operand.expr = _compared(operand.expr)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _environment_call("counted", [node]) if isinstance(node.arg, nodes.Slice) else node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _environment_call("joined", node.nodes)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        return self._count_container(node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        return self._count_container(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self._count_container(node) if node.ctx == "load" else node

    def _count_container(self, node: nodes.List | nodes.Dict | nodes.Tuple) -> nodes.Node:
        if all(isinstance(part, (nodes.Const, nodes.Pair)) for part in node.iter_child_nodes()):
            return node
        self.generic_visit(node)
        return _environment_call("built", [node])


def _tick(body: Sequence[nodes.Node]) -> nodes.Call:
    literals = (part for node in body for part in node.find_all((nodes.TemplateData, nodes.Const)))
    texts = (part.data if isinstance(part, nodes.TemplateData) else part.value for part in literals)
    units = sum(len(text) for text in texts if isinstance(text, str))
    return _environment_call("tick", [nodes.Const(units)])


def _compared(operand: nodes.Expr) -> nodes.Expr:
    return operand if isinstance(operand, nodes.Const) else _environment_call("compared", [operand])


def _environment_call(method: str, arguments: list[nodes.Expr]) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(method), arguments, [], None, None)


def _count_output(value: Any) -> Any:
    current_budget().reserve(len(value) if isinstance(value, str) else text_size(value))
    return value


def _check_string_method(owner: str, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    if name in _PADDING_METHODS:
        limits.check_width(owner, [*args, *kwargs.values()])
    elif name == "replace" and len(args) >= 2 and all(isinstance(part, str) for part in args[:2]):
        limits.check_replace(owner, args[0], args[1])
    elif name == "expandtabs":
        size = _argument(args, kwargs, 0, "tabsize", 8)
        current_budget().reserve(len(owner) + owner.count("\t") * max(size, 0) if isinstance(size, int) else 0)
    elif name == "striptags":
        _check_page(owner)
    elif name in _SPLITTING_METHODS and len(owner) > _LONG_TEXT:
        separator = _argument(args, kwargs, 0, "sep", None)
        by_words = _LINE_ENDS if name == "splitlines" else _WORDS
        limits.check_pieces(owner, re.compile(re.escape(separator)) if isinstance(separator, str) else by_words)
    elif name == "join" and len(args) == 1:
        items = list(_ticking(args[0]))  # a generator can be read only once
        limits.check_join(owner, items)
        return (items,)
    return args


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
        _check_page([value, rest, kwargs])
        limits.check_width("", [*rest, *kwargs.values()])
        if len(str(_argument(rest, kwargs, 3, "wrapstring", ""))) > _MAX_WRAP:
            raise SecurityError("the chat template puts too much between lines")
    elif name in _SORTING_FILTERS:
        value = list(_ticking(value))
        current_budget().check_container(value)
    elif check := _FILTER_CHECKS.get(name):
        value = check(value, rest, kwargs)
    path = _argument(rest, kwargs, _PATHS.get(name, len(rest)), "attribute", None)
    if isinstance(path, str) and len(path) > _MAX_PATH:
        raise SecurityError("the chat template names an attribute at too great a depth")
    if name in _WALKING_FILTERS and isinstance(value, Iterable):
        value = _ticking(cast(Iterable[Any], value))
    return value, rest


def _ticking(values: Iterable[Any]) -> Iterator[Any]:
    """The items of `values`, counted as they are read."""
    budget = current_budget()
    for count, value in enumerate(values, 1):
        budget.charge()
        if count % 4096 == 0:
            budget.reserve_items(count)
        yield value


def _check_page(value: Any) -> None:
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


def _argument(rest: tuple[Any, ...], kwargs: Mapping[str, Any], position: int, name: str, default: Any) -> Any:
    return rest[position] if len(rest) > position else kwargs.get(name, default)


def _check_join(value: Any, rest: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    items = list(_ticking(value))
    limits.check_join(str(_argument(rest, kwargs, 0, "d", "")), items)
    return items


def _check_replace(value: Any, rest: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    current_budget().reserve(text_size(value))
    old, new = _argument(rest, kwargs, 0, "old", ""), _argument(rest, kwargs, 1, "new", "")
    limits.check_replace(str(value), str(old), str(new))
    return value


def _check_indent(value: Any, rest: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    current_budget().reserve(text_size(value))
    limits.check_indent(str(value), _argument(rest, kwargs, 0, "width", 4))
    return value


def _check_format(value: Any, rest: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    current_budget().reserve(text_size(value))
    limits.check_percent_format(str(value), rest or kwargs)
    return value


def _check_groups(value: Any, rest: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    limits.check_width("", [*rest, *kwargs.values()])
    return value


def _check_sum(value: Any, rest: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    if not isinstance(_argument(rest, kwargs, 1, "start", 0), (int, float)):
        raise SecurityError("chat templates may only sum numbers")
    return value


def _check_round(value: Any, rest: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    precision = _argument(rest, kwargs, 0, "precision", 0)
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


def _raise_exception(message: object) -> NoReturn:
    raise TemplateRefusal(str(message))


def _strftime_now(pattern: str) -> str:
    if len(pattern) > _MAX_TIME_PATTERN:
        raise SecurityError("the chat template writes a date that is too long")
    return datetime.now().strftime(pattern)


def _lipsum(n: int = 5, html: bool = True, min: int = 20, max: int = 100) -> str:
    current_budget().reserve(n * max * 16)
    return generate_lorem_ipsum(n, html, min, max)


class _TemplateDict:
    """`dict` without the attributes of the class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*map(_read_pairs, args), **kwargs)

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        """A dict in which all `keys` have the same value."""
        return dict.fromkeys(_ticking(keys), value)


def _read_pairs(values: Any) -> Any:
    return values if isinstance(values, dict) else _ticking(values)


class _TemplateNamespace(Namespace):
    """`namespace` without private names, and printed without its contents, which may hold itself."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # `self` is taken out of `args` so that a template may have an attribute of that name.
        values = dict(*args[1:], **kwargs)
        for name in values:
            _check_attribute_name(name)
        Namespace.__init__(args[0], values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute_name(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<namespace>"


def _check_attribute_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"chat templates cannot use the private name {name!r}")
