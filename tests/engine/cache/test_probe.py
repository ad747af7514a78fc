"""What is found out about a model by trying."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from mlxcel.engine.cache.probe import row_caches
from mlxcel.models.mlxlm import make_prompt_cache
from tests.kernels.small_models import random_model


class Odd(nn.Module):
    """A model that is fine alone."""

    def __init__(self, in_company: Any) -> None:
        super().__init__()
        self.inner: Any = random_model("llama")
        self._in_company = in_company

    def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
        logits = self.inner(tokens, cache=cache)
        return logits if tokens.shape[0] == 1 else self._in_company(logits)


def crash(logits: mx.array) -> mx.array:
    raise ValueError("one at a time")


@pytest.mark.parametrize(
    ("in_company", "expected", "warning"),
    [
        (lambda logits: logits, True, ""),
        (lambda logits: logits[::-1], False, "says other things in company"),
        (lambda logits: 1.01 * logits, False, "says other things in company"),
        (crash, False, "ValueError('one at a time')"),
    ],
)
def test_a_model_that_does_not_bear_company_is_not_batched(
    in_company: Any, expected: bool, warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    mx.set_default_device(mx.Device(mx.cpu))
    model = Odd(in_company)
    rows = row_caches(model, lambda: make_prompt_cache(model.inner), None, lambda cost: 1 << 30)
    assert rows.can_batch is expected
    assert warning in caplog.text
    assert bool(caplog.text) is not expected
