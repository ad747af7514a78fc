"""The native kernels against numpy: the same positions, weights and tokens, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mlxcel.engine.request import SamplingParams
from mlxcel.engine.sampling import rows as rows_module
from mlxcel.engine.sampling.candidates import SamplingError
from mlxcel.engine.sampling.chain import Sampler
from mlxcel.engine.sampling.logprobs import token_logprob
from mlxcel.engine.sampling.penalties import TokenCounts
from mlxcel.engine.sampling.rows import Rows, rows
from mlxcel.engine.sampling.rows_numpy import NumpyRows
from mlxcel.kernels import native as extension

from ..scripted import ByteTokenizer

ORACLE = NumpyRows()


def made(seed: int, size: int, step: float, scale: float, masked: float) -> np.ndarray:
    """Random logits, rounded to multiples of `step` for ties, a share of them -inf; the first is finite."""
    random = np.random.default_rng(seed)
    row = random.normal(scale=scale, size=size)
    row = (np.round(row / step) * step if step else row).astype(np.float32)
    row[1:][random.random(size - 1) < masked] = -np.inf
    return row


synthetic = st.builds(
    made,
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 2, 15, 16, 17, 100, 1500, 40000]),
    st.sampled_from([0.0, 0.0625, 1.0, 100.0]),
    st.sampled_from([1e-3, 1.0, 4.0, 1e4]),
    st.sampled_from([0.0, 0.0, 0.9]),
)
finite = arrays.arrays(
    np.float32, st.integers(1, 40), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)
)
any_row = st.one_of(synthetic, finite)
shares = st.one_of(st.floats(0.0, 1.0, exclude_max=True), st.sampled_from([0.1, 0.3, 0.5, 0.9, 0.95, 1.0 - 2.0**-53]))
temperatures = st.one_of(st.floats(0.05, 3.0), st.sampled_from([5e-324, 1e-30, 1.0, 1e30, 1e308]))


@pytest.fixture(scope="module")
def native() -> Rows:
    if isinstance(rows(), NumpyRows):
        pytest.skip("no native kernels here")
    return rows()


@given(row=any_row, k=st.integers(0, 5000))
def test_top_k(native: Rows, row: np.ndarray, k: int) -> None:
    found = native.top_k(row, k)
    assert found.dtype == np.int64
    assert found.tolist() == ORACLE.top_k(row, k).tolist()
    assert found.tolist() == sorted(np.argsort(-row, kind="stable")[:k].tolist())


@given(row=any_row, threshold=st.one_of(st.floats(-20, 20), st.floats(width=32, allow_nan=False)))
def test_at_least(native: Rows, row: np.ndarray, threshold: float) -> None:
    assert native.at_least(row, threshold).tolist() == ORACLE.at_least(row, threshold).tolist()


@given(row=any_row, p=shares)
@example(np.zeros(10, np.float32), 0.3)
@example(np.array([0.0, 1e-45, -1e-45] * 30, np.float32), 0.5)
def test_nucleus(native: Rows, row: np.ndarray, p: float) -> None:
    assert native.nucleus(row, p).tolist() == ORACLE.nucleus(row, p).tolist()


@given(row=any_row, temperature=temperatures, uniform=st.floats(0.0, 1.0, exclude_max=True))
def test_weights_and_draws(native: Rows, row: np.ndarray, temperature: float, uniform: float) -> None:
    weights = native.weights(row, temperature)
    assert np.array_equal(weights.view(np.uint32), ORACLE.weights(row, temperature).view(np.uint32))
    assert native.mass(row, temperature) == ORACLE.mass(row, temperature)
    token = native.draw(row, temperature, uniform)
    assert token == ORACLE.draw(row, temperature, uniform)
    assert weights[token] > 0


@given(st.integers(0, 2**32 - 1), st.floats(0.1, 3.0))
def test_weights_are_those_of_the_softmax(seed: int, temperature: float) -> None:
    row = made(seed, 300, 0.0, 4.0, 0.2)
    exact = np.exp((row.astype(np.float64) - row.max()) / temperature)
    assert np.abs(ORACLE.weights(row, temperature) - exact).max() < 2e-7


@given(row=any_row)
def test_best(native: Rows, row: np.ndarray) -> None:
    assert native.best(row) == ORACLE.best(row) == (int(row.argmax()), float(row.max()))


@given(row=any_row, seed=st.integers(0, 2**32 - 1))
def test_mask(native: Rows, row: np.ndarray, seed: int) -> None:
    words = np.random.default_rng(seed).integers(0, 2**32, -(-row.shape[0] // 32), dtype=np.uint32)
    out, expected = np.empty_like(row), np.empty_like(row)
    native.mask(row, words, out)
    ORACLE.mask(row, words, expected)
    assert np.array_equal(out, expected)
    assert all(out[i] == (row[i] if words[i // 32] >> (i % 32) & 1 else -np.inf) for i in range(min(70, len(row))))


@given(
    row=synthetic,
    seed=st.integers(0, 2**32 - 1),
    repetition=st.floats(0.5, 2.0),
    frequency=st.floats(-2.0, 2.0),
    presence=st.floats(-2.0, 2.0),
)
def test_changes_of_single_logits(
    native: Rows, row: np.ndarray, seed: int, repetition: float, frequency: float, presence: float
) -> None:
    random = np.random.default_rng(seed)
    tokens = random.permutation(row.shape[0])[:50]
    counts = random.integers(1, 9, tokens.shape[0]).astype(np.float32)
    changed, expected = row.copy(), row.copy()
    for operations, target in ((native, changed), (ORACLE, expected)):
        operations.penalise(target, tokens, counts, repetition, frequency, presence)
        operations.add_at(target, tokens, -counts)
    assert np.array_equal(changed.view(np.uint32), expected.view(np.uint32))


def test_the_native_kernels_refuse_what_does_not_fit(native: Rows) -> None:
    row, one = np.zeros(40, np.float32), np.ones(1, np.float32)
    for token in (-1, 40):
        with pytest.raises(IndexError):
            native.add_at(row, np.array([token]), one)
        with pytest.raises(IndexError):
            native.penalise(row, np.array([token]), one, 1.0, 0.0, 1.0)
    with pytest.raises(ValueError, match="do not belong"):
        native.mask(row, np.zeros(1, np.uint32), np.empty_like(row))
    with pytest.raises(ValueError, match="empty"):
        native.draw(row[:0], 1.0, 0.5)
    with pytest.raises(TypeError):  # it would change a converted copy
        native.add_at(row.astype(np.float64), np.array([1]), one)  # pyright: ignore


chains = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 0.8, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 5, 40, 2000]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.1, 0.7]),
    repetition_context_size=st.sampled_from([-1, 0, 3, 64]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    presence_penalty=st.sampled_from([0.0, -0.4, 1.0]),
    seed=st.integers(0, 2**63),
)


@given(row=any_row, params=chains)
@settings(deadline=None, max_examples=60)
@example(made(1, 40000, 0.0625, 4.0, 0.5), SamplingParams(seed=1))
@example(made(2, 40000, 0.0, 3.0, 0.0), SamplingParams(temperature=1.0, top_k=0, top_p=0.95, min_p=0.0, seed=1))
@example(made(3, 40000, 0.0, 3.0, 0.0), SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.05, seed=1))
@example(made(4, 40000, 0.0, 3.0, 0.0), SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=1))
def test_a_seed_gives_the_same_tokens_with_and_without_native_kernels(
    native: Rows, row: np.ndarray, params: SamplingParams
) -> None:
    one, two = Sampler(params, (0, 0), native), Sampler(params, (0, 0), ORACLE)
    for _ in range(4):
        try:
            token = one.sample(row)
        except SamplingError:  # the largest floats overflow under a penalty
            with pytest.raises(SamplingError):
                two.sample(row)
            return
        assert token == two.sample(row)
        assert row[token] > -np.inf
        entries = [token_logprob(row, token, 5, ByteTokenizer(), operations) for operations in (native, ORACLE)]
        assert entries[0] == entries[1]


@pytest.mark.parametrize("bad", [[np.nan, 1.0], [1.0] * 40 + [np.nan], [-np.inf, -np.inf], [np.inf, 0.0]])
def test_rows_that_are_not_numbers_are_refused_by_both(native: Rows, bad: list[float]) -> None:
    for operations in (native, ORACLE):
        with pytest.raises(SamplingError):
            Sampler(SamplingParams(), (), operations).sample(np.array(bad, np.float32))


@pytest.mark.parametrize("reason", [extension.NativeUnavailable("not built"), ValueError("no such kernels")])
def test_without_native_kernels_numpy_does_it(monkeypatch: pytest.MonkeyPatch, reason: Exception) -> None:
    def fail() -> str:
        raise reason

    monkeypatch.setattr(extension, "instruction_set", fail)
    assert isinstance(rows_module.rows.__wrapped__(), NumpyRows)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30))))
def test_token_counts(changes: list[tuple[bool, int]]) -> None:
    counts, expected = TokenCounts(), dict[int, int]()
    for removed, token in changes:
        if not removed:
            counts.add(token)
            expected[token] = expected.get(token, 0) + 1
        elif token in expected:
            counts.remove(token)
            expected[token] -= 1
            if not expected[token]:
                del expected[token]
        assert dict(zip(counts.tokens.tolist(), counts.counts.tolist(), strict=True)) == expected
        assert len(counts) == len(expected)
