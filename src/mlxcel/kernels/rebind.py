"""Give one model other functions than the ones its code names, without touching the modules that others import.

A model's code says `mx.fast.rope` or `swiglu`, names that are looked up in the module it was defined in. `Rebinder`
makes subclasses of the model's classes whose methods look the same names up in a copy of that module, in which some
things have been exchanged. Only the model's own modules get these classes; everything else in the process keeps
running on MLX.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import FunctionType
from typing import Any

_KEPT = frozenset({"__init__", "__init_subclass__", "__new__", "__getattr__", "__setattr__", "__delattr__"})


class Rebinder:
    """Exchanges objects for others in the code of classes.

    exchanges: pairs of what the code names now (a module, a function) and what it shall find there.
    packages: top-level names of packages whose functions may be copied; others are called as they are.
    """

    def __init__(self, exchanges: Iterable[tuple[Any, Any]], packages: Iterable[str]) -> None:
        # By identity: some of these objects have no hash. The originals are kept so that no id is used again.
        self._exchanges = {id(old): (old, new) for old, new in exchanges}
        self._packages = frozenset(packages)
        self._namespaces: dict[int, dict[str, Any]] = {}
        self._classes: dict[type, type] = {}

    def exchange(self, old: Any, new: Any) -> None:
        """One more pair, before the first class is made."""
        self._exchanges[id(old)] = (old, new)

    def function(self, function: FunctionType) -> FunctionType:
        """A copy of `function` that finds the exchanges."""
        return self._rebound(function)

    def exchanged(self, value: Any) -> Any:
        """What `value` is exchanged for; itself if for nothing."""
        return self._exchanges.get(id(value), (None, value))[1]

    def subclass(self, base: type, stop: type) -> type:
        """A subclass of `base` with the methods of `base` and its ancestors, down to but without `stop`, rebound."""
        if base not in self._classes:
            methods: dict[str, Any] = {}
            for ancestor in reversed(base.__mro__):
                if issubclass(ancestor, stop) and ancestor is not stop and self._may_copy(ancestor.__module__):
                    for name, value in vars(ancestor).items():
                        if isinstance(value, FunctionType) and name not in _KEPT:
                            methods[name] = self._rebound(value)
            names = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
            self._classes[base] = type(base.__name__, (base,), methods | names)
        return self._classes[base]

    def _may_copy(self, module: str | None) -> bool:
        return (module or "").partition(".")[0] in self._packages

    def _rebound(self, function: FunctionType) -> FunctionType:
        copy = FunctionType(
            function.__code__,
            self._namespace(function.__globals__),
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        copy.__kwdefaults__ = function.__kwdefaults__
        copy.__qualname__ = function.__qualname__
        copy.__doc__ = function.__doc__
        return copy

    def _namespace(self, names: dict[str, Any]) -> dict[str, Any]:
        if id(names) not in self._namespaces:
            copy = dict(names)
            self._namespaces[id(names)] = copy  # before the functions, which may refer to each other
            for name, value in names.items():
                if id(value) in self._exchanges:
                    copy[name] = self.exchanged(value)
                elif isinstance(value, FunctionType) and self._may_copy(value.__module__):
                    copy[name] = self._rebound(value)
        return self._namespaces[id(names)]
