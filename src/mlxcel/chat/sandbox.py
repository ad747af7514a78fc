"""The Jinja environment chat templates run in: no way out, no file access, and a budget on time and memory."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn, cast

from jinja2 import Environment, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, generate_lorem_ipsum
from jinja2.visitor import NodeTransformer

from mlxcel.chat import limits
from mlxcel.chat.filters import argument, check_page, guarded_filters, guarded_tests, ticking
from mlxcel.chat.limits import current_budget, text_size

_MAX_SOURCE = 1 << 18
_MAX_TOKENS = 20_000
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
        self.filters = guarded_filters()
        self.tests = guarded_tests()
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
        elif isinstance(owner, list) and obj.__name__ == "append" and not all(map(_has_no_parts, args)):
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
        size = argument(args, kwargs, 0, "tabsize", 8)
        current_budget().reserve(len(owner) + owner.count("\t") * max(size, 0) if isinstance(size, int) else 0)
    elif name == "striptags":
        check_page(owner)
    elif name in _SPLITTING_METHODS and len(owner) > _LONG_TEXT:
        separator = argument(args, kwargs, 0, "sep", None)
        by_words = _LINE_ENDS if name == "splitlines" else _WORDS
        limits.check_pieces(owner, re.compile(re.escape(separator)) if isinstance(separator, str) else by_words)
    elif name == "join" and len(args) == 1:
        items = list(ticking(args[0]))  # a generator can be read only once
        limits.check_join(owner, items)
        return (items,)
    return args


def _has_no_parts(value: Any) -> bool:
    return not isinstance(value, (list, tuple, dict, Namespace))


def _raise_exception(message: object) -> NoReturn:
    raise TemplateRefusal(str(message))


def _strftime_now(pattern: str) -> str:
    if len(pattern) > _MAX_TIME_PATTERN:
        raise SecurityError("the chat template writes a date that is too long")
    return datetime.now().strftime(pattern)


def _lipsum(n: int = 5, html: bool = True, min: int = 20, max: int = 100) -> str:
    current_budget().reserve(abs(n) * (abs(min) + abs(max) + 1) * 16)
    return generate_lorem_ipsum(n, html, min, max)


class _TemplateDict:
    """`dict` without the attributes of the class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*map(_read_pairs, args), **kwargs)

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        """A dict in which all `keys` have the same value."""
        return dict.fromkeys(ticking(keys), value)


def _read_pairs(values: Any) -> Any:
    return cast(Any, values) if isinstance(values, dict) else ticking(values)


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
