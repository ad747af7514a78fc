"""Values that are not JSON, under every declared type and each format's rules."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcel.chat.tools.coerce import Rules, coerce, is_plain_string
from mlxcel.chat.tools.json_text import compact

K, M, X = Rules.LOOSE, Rules.STRICT, Rules.LAX
_ALL = (K, M, X)


def _type(name: Any, **more: Any) -> dict[str, Any]:
    return {"type": name, **more}


@pytest.mark.parametrize(
    ("rules", "schema", "raw", "value"),
    [
        *((rules, _type(name), "02134", "02134") for rules in _ALL for name in ("string", "str")),
        *((rules, _type("string"), "null", "null") for rules in _ALL),
        *((rules, _type("string"), '"a"', '"a"') for rules in _ALL),
        *(
            (rules, _type(name), "5", 5)
            for rules in _ALL
            for name in ("integer", "int", "uint", "long", "int32", "int64")
        ),
        *(
            (rules, _type("integer"), raw, value)
            for rules in _ALL
            for raw, value in (("5.0", 5), ("-7", -7), ("+3", 3))
        ),
        *(
            (rules, _type("integer"), raw, raw)
            for rules in _ALL
            for raw in ("5.5", "1e3", "five", "9223372036854775808")
        ),
        *((rules, _type("integer"), "-9223372036854775808", -(2**63)) for rules in _ALL),
        *((rules, _type(name), "2.5", 2.5) for rules in _ALL for name in ("number", "num", "float", "double")),
        *((rules, _type("number"), "1e3", 1000.0) for rules in _ALL),
        *((rules, _type("number"), raw, raw) for rules in _ALL for raw in ("heavy", "NaN", "inf", "1e999", "1_0")),
        *(
            (rules, _type(name), raw, value)
            for rules in _ALL
            for name in ("boolean", "bool")
            for raw, value in (("true", True), ("True", True), ("false", False), ("False", False))
        ),
        *(
            (X, _type("boolean"), raw, raw.lower() in ("yes", "on", "1", "true"))
            for raw in ("yes", "ON", "1", "No", "off", "0", "TRUE")
        ),
        *((M, _type("boolean"), raw, raw) for raw in ("yes", "ON", "1", "TRUE")),
        (K, _type("boolean"), "1", 1),
        *((rules, _type(name), '{"a": [1]}', {"a": [1]}) for rules in _ALL for name in ("object", "dict")),
        *((rules, _type(name), '[1, "a"]', [1, "a"]) for rules in _ALL for name in ("array", "list")),
        *((rules, _type("object"), "{a}", "{a}") for rules in _ALL),
        *((rules, _type("object"), "[1]", "[1]") for rules in (M, X)),
        *((rules, _type("array", items=_type("string")), "5", ["5"]) for rules in (M, X)),
        *((rules, _type("array", items=_type("integer")), "5", [5]) for rules in (M, X)),
        *((rules, _type("array"), "5", [5]) for rules in (M, X)),
        *((rules, _type("array"), raw, raw) for rules in (M, X) for raw in ("[1", '{"a": 1}', "")),
        *((rules, _type(["null", "integer"]), "5", 5) for rules in _ALL),
        *((rules, _type(["string", "null"]), "5", "5") for rules in _ALL),
        *(
            (X, schema, raw, None)
            for schema in (_type("integer"), _type(["string", "null"]), {}, {"enum": ["a"]})
            for raw in ("null", "NULL", "Null")
        ),
        *(
            (rules, {"enum": ["low", 3, True, None]}, raw, value)
            for rules in (M, X)
            for raw, value in (("low", "low"), ("3", 3), ("true", True), ("other", "other"), ("4", 4))
        ),
        *(
            (rules, {choice: [_type("integer"), _type("boolean"), _type("null")]}, raw, value)
            for rules in (M, X)
            for choice in ("anyOf", "oneOf")
            for raw, value in (("5", 5), ("true", True), ("null", None), ("x", "x"))
        ),
        *((rules, {"anyOf": [_type("integer"), _type("string")]}, "5.5", "5.5") for rules in (M, X)),
        *(
            (rules, schema, raw, value)
            for rules in _ALL
            for schema in ({}, None, True, _type("unknown"), _type(7), _type([]))
            for raw, value in (
                ("5", 5),
                ("02134", 2134),
                ("1.", 1.0),
                ("True", True),
                ("x", "x"),
                ('{"a": 1}', {"a": 1}),
                ("", ""),
            )
        ),
    ],
)
def test_values(rules: Rules, schema: Any, raw: str, value: Any) -> None:
    result = coerce(raw, schema, rules)
    assert result == value
    assert type(result) is type(value)


def test_numbers_as_written() -> None:
    assert compact(coerce("5", _type("number"), M)) == "5"
    assert compact(coerce("5.0", _type("number"), M)) == "5.0"


@pytest.mark.parametrize("raw", ["[" * 100_000, "1" * 10_000, '{"a":' * 5000, "-", "1" * 10_000 + "x"])
def test_extreme_texts_stay_text(raw: str) -> None:
    for rules in _ALL:
        for schema in ({}, _type("integer"), _type("number"), _type("object"), _type("array")):
            assert coerce(raw, schema, rules) in (raw, [raw])


def test_schemas_nested_without_end_are_left() -> None:
    schema: dict[str, Any] = {}
    schema["anyOf"] = [schema] * 3
    array: dict[str, Any] = {"type": "array"}
    array["items"] = array
    assert coerce("x", {"anyOf": [{"anyOf": [{"type": "integer"}]}, {"type": "string"}]}, X) == "x"
    assert json.dumps(coerce("x", array, X)).strip("[]") == '"x"'


_SCHEMAS = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.builds(
            _type,
            st.sampled_from(["string", "integer", "number", "boolean", "object", "array", "null", "odd", 3, None]),
        ),
    ),
    lambda inner: st.one_of(
        st.builds(lambda items: _type("array", items=items), inner),
        st.builds(lambda choices: {"anyOf": choices}, st.lists(inner, max_size=3)),
        st.builds(lambda choices: {"oneOf": choices, "enum": "x"}, st.lists(inner, max_size=3)),
    ),
    max_leaves=5,
)


@given(
    raw=st.text(alphabet='0123456789.eE+-[]{}":,truefalsn\\u d', max_size=20),
    schema=_SCHEMAS,
    rules=st.sampled_from(Rules),
)
def test_any_text_under_any_schema_gives_json(raw: str, schema: Any, rules: Rules) -> None:
    json.loads(compact(coerce(raw, schema, rules)), parse_constant=lambda name: pytest.fail(name))


def test_plain_strings() -> None:
    assert is_plain_string(_type("string"))
    assert not any(is_plain_string(schema) for schema in (None, {}, _type(["string"]), _type("integer")))
