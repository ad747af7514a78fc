"""Numbers as text in the Prometheus exposition format, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})
_LABEL_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a family."""

    value: float
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Family:
    """All values of one name."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    samples: tuple[Sample, ...]


def counter(name: str, help: str, value: float) -> Family:
    """A number that only grows until the process ends."""
    return Family(name, "counter", help, (Sample(value),))


def gauge(name: str, help: str, value: float) -> Family:
    """A number that comes and goes."""
    return Family(name, "gauge", help, (Sample(value),))


def labelled(name: str, help: str, label: str, values: Mapping[str, float]) -> Family:
    """Counters of one kind, told apart by one label."""
    return Family(name, "counter", help, tuple(Sample(value, {label: word}) for word, value in values.items()))


def exposition(families: Iterable[Family]) -> str:
    """The text of all families, in their order."""
    return "".join(line + "\n" for family in families for line in _lines(family))


def _lines(family: Family) -> Iterable[str]:
    yield f"# HELP {family.name} {family.help.translate(_HELP_ESCAPES)}"
    yield f"# TYPE {family.name} {family.kind}"
    for sample in family.samples:
        labels = ",".join(f'{name}="{value.translate(_LABEL_ESCAPES)}"' for name, value in sample.labels.items())
        yield f"{family.name}{{{labels}}} {sample.value}" if labels else f"{family.name} {sample.value}"
