"""The text format, read back by the Prometheus project's own parser."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from mlxcel.telemetry.exposition import counter, exposition, gauge, labelled

TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.just("\n"), min_size=1).filter(
    lambda text: text == text.strip()
)


def test_how_it_looks() -> None:
    families = [
        counter("a_total", "What a is", 3),
        gauge("b", "What b is", 0.25),
        labelled("c_total", "What c is", "reason", {"x": 1, "y": 2}),
    ]
    assert exposition(families) == (
        "# HELP a_total What a is\n# TYPE a_total counter\na_total 3\n"
        "# HELP b What b is\n# TYPE b gauge\nb 0.25\n"
        '# HELP c_total What c is\n# TYPE c_total counter\nc_total{reason="x"} 1\nc_total{reason="y"} 2\n'
    )


@given(help=TEXT, labels=st.dictionaries(TEXT, st.integers(0, 2**53)), value=st.floats(allow_nan=False))
def test_any_text_and_any_number_come_back(help: str, labels: dict[str, int], value: float) -> None:
    text = exposition([labelled("a:b_total", help, "reason", labels), gauge("c", help, value)])
    first, second = text_string_to_metric_families(text)
    assert (first.type, first.documentation, first.name) == ("counter", help, "a:b")
    assert {sample.labels["reason"]: sample.value for sample in first.samples} == labels
    assert (second.type, second.documentation) == ("gauge", help)
    assert [sample.value for sample in second.samples] == [value]
    assert math.isinf(value) or float(text.split()[-1]) == value
