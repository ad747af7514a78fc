"""Other functions for one model, and for nobody else."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from mlxcel.kernels.rebind import Rebinder

SOURCE = """
import helper_package

class Base:
    pass

def slow(x):
    return x

def indirect(x):
    return slow(x) + 1

def even(n):
    return True if n == 0 else odd(n - 1)

def odd(n):
    return slow(False) if n == 0 else even(n - 1)

class Parent(Base):
    scale = 2

    def __init__(self):
        self.made_by = slow

    def direct(self, x, *, times=3):
        return slow(x) * times

    def through_a_helper(self, x):
        return indirect(x)

    def recursive(self, n):
        return even(n)

    def elsewhere(self, x):
        return helper_package.call(x)

class Child(Parent):
    def direct(self, x, *, times=3):
        return super().direct(x) + slow(x)
"""


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch) -> Any:
    helper = ModuleType("helper_package")
    helper.__dict__["call"] = lambda x: ("theirs", x)
    monkeypatch.setitem(sys.modules, "helper_package", helper)
    module = ModuleType("family.model")
    exec(SOURCE, module.__dict__)
    for value in module.__dict__.values():
        if hasattr(value, "__module__"):
            value.__module__ = "family.model"
    return module


def rebound(code: Any, kind: str) -> Any:
    rebinder = Rebinder([(code.slow, lambda x: x * 100)], ["family"])
    thing = getattr(code, kind)()
    thing.__class__ = rebinder.subclass(type(thing), code.Base)
    return thing


def test_methods_find_the_exchange(code: Any) -> None:
    thing = rebound(code, "Parent")
    assert thing.direct(1) == 300
    assert thing.direct(1, times=1) == 100
    assert thing.through_a_helper(1) == 101
    assert thing.recursive(3) is False or thing.recursive(3) == 0
    assert thing.elsewhere(1) == ("theirs", 1)
    assert (thing.scale, isinstance(thing, code.Parent)) == (2, True)


def test_an_override_that_calls_its_parent(code: Any) -> None:
    thing = rebound(code, "Child")
    # `super()` reaches the parent as it was written: the exchange is for speed, so that is as right.
    assert thing.direct(1) == 3 + 100


def test_nobody_else_notices(code: Any) -> None:
    rebound(code, "Parent")
    assert code.Parent().direct(1) == 3
    assert code.indirect(1) == 2
    assert code.slow(1) == 1


def test_a_class_is_made_once(code: Any) -> None:
    rebinder = Rebinder([], ["family"])
    assert rebinder.subclass(code.Parent, code.Base) is rebinder.subclass(code.Parent, code.Base)


def test_what_attributes_hold_can_be_exchanged(code: Any) -> None:
    rebinder = Rebinder([(code.slow, 5)], ["family"])
    assert (rebinder.exchanged(code.Parent().made_by), rebinder.exchanged("other")) == (5, "other")
