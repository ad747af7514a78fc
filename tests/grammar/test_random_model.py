"""A model with random weights at temperature 2 under all kinds of schemas: whatever is complete is valid."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from mlxcel.config import EngineConfig, ModelConfig, ServerConfig
from mlxcel.engine.events import Finished, FinishReason
from mlxcel.engine.loading import load_backend
from mlxcel.engine.request import GenerationRequest, SamplingParams
from mlxcel.grammar.compiler import Compiler
from tests.engine.test_engine import collect, running
from tests.models import tiny

from .test_matcher import NESTED

RUNS = 200
CONTEXT = 2048
SCHEMAS: list[dict[str, Any]] = [
    NESTED,
    {"enum": ["only"]},
    {"type": "array", "items": {"type": "number", "multipleOf": 0.5}, "minItems": 2, "maxItems": 4},
    {"type": "string", "pattern": "^[A-Z]{2}-\\d{3,5}$"},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "uuid"},
    {"anyOf": [{"type": "integer", "minimum": -5, "maximum": 5}, {"type": "null"}, {"type": "boolean"}]},
    {"enum": ["g\u00fcrteltier", "\u6771\u4eac \U0001f389", 'quote " and \\ slash', "tab\there"]},
    {
        "type": "object",
        "properties": {"shape": {"oneOf": [{"$ref": "#/$defs/circle"}, {"$ref": "#/$defs/square"}]}},
        "required": ["shape"],
        "additionalProperties": False,
        "$defs": {
            "circle": {
                "type": "object",
                "properties": {"kind": {"const": "circle"}, "radius": {"type": "number", "exclusiveMinimum": 0}},
                "required": ["kind", "radius"],
                "additionalProperties": False,
            },
            "square": {
                "type": "object",
                "properties": {"kind": {"const": "square"}, "side": {"type": "integer", "minimum": 1}},
                "required": ["kind", "side"],
                "additionalProperties": False,
            },
        },
    },
    {
        "type": "object",
        "properties": {"value": {"type": "integer"}, "next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}},
        "required": ["value", "next"],
        "additionalProperties": False,
    },
    {"type": "object", "patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": False},
    {"type": "object", "additionalProperties": {"type": "string", "maxLength": 4}, "required": ["id"]},
]


@pytest.mark.parametrize("kernels", ["native", "mlx"])
def test_every_complete_text_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernels: str) -> None:
    if kernels == "mlx":
        monkeypatch.setenv("MLXCEL_KERNELS", "mlx")
    config = {**tiny.CONFIG, "max_position_embeddings": CONTEXT}
    path = tiny.write_gguf(tmp_path / "tiny.gguf", config, kind="Q4_1")
    engine_config = EngineConfig(parallel=8, max_queue_depth=RUNS)
    server = ServerConfig(model=ModelConfig(device="cpu"), engine=engine_config)
    runs = RUNS if kernels == "native" else 24

    async def work() -> list[tuple[dict[str, Any], str, Finished]]:
        async with running(load_backend(path, "tiny", server), engine_config) as engine:
            compiler, prompt = Compiler(engine.info), tuple(engine.info.tokenizer.encode("hello the world"))
            asked = []
            for seed in range(runs):
                schema = SCHEMAS[seed % len(SCHEMAS)]
                sampling = SamplingParams(temperature=2.0, top_k=0, top_p=1.0, min_p=0.0, seed=seed)
                request = GenerationRequest(prompt, sampling, 300, rule=compiler.schema(schema))
                asked.append((schema, engine.submit([request])[0]))
            return [(schema, *await collect(generation)) for schema, generation in asked]

    complete = 0
    for schema, text, finished in asyncio.run(work()):
        assert finished.reason is not FinishReason.ERROR, schema
        if finished.reason is FinishReason.STOP:
            complete += 1
            validator = jsonschema.Draft202012Validator(
                schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
            )
            validator.validate(json.loads(text))
    assert complete > runs // 2
