"""The native kernels against numpy: the same tokens, shares and logits, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mlxcel.engine.constraint import Words
from mlxcel.engine.request import SamplingParams
from mlxcel.engine.sampling.candidates import SamplingError
from mlxcel.engine.sampling.chain import NO_TOKEN, Step
from mlxcel.engine.sampling.rows import Rows, make_rows
from mlxcel.engine.sampling.rows_numpy import NumpyRows
from mlxcel.kernels import native as extension

from .oracle import OFF, Voice

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
shares = st.one_of(st.floats(0.0, 1.0, exclude_max=True), st.sampled_from([0.1, 0.5, 0.9, 0.95, 1.0 - 2.0**-53]))
temperatures = st.one_of(st.floats(0.05, 3.0), st.sampled_from([5e-324, 1e-30, 1.0, 1e30, 1e308]))
counts = st.sampled_from([0, 1, 2, 10, 500, 100_000])
steps = st.builds(Step, shares, st.booleans(), st.floats(0.0, 20.0))


@pytest.fixture(scope="module")
def native() -> Rows:
    found = make_rows()
    if isinstance(found, NumpyRows):
        pytest.skip("no native kernels here")
    return found


def same_choice(native: Rows, row: np.ndarray, step: Step, **values: Any) -> None:
    params = SamplingParams(**{**OFF, **values})
    (found,) = native.choose(row[None], [native.chain(params)], [step])
    (expected,) = ORACLE.choose(row[None], [params], [step])
    assert found == expected
    token, share = found
    assert row[token] > -np.inf
    assert 0 < share <= 1


@given(row=any_row, step=steps, temperature=temperatures)
def test_draws(native: Rows, row: np.ndarray, step: Step, temperature: float) -> None:
    same_choice(native, row, step._replace(exclude_top=False), temperature=temperature)


@given(row=any_row, step=steps, k=st.integers(0, 5000))
def test_top_k(native: Rows, row: np.ndarray, step: Step, k: int) -> None:
    same_choice(native, row, step, top_k=k)


@given(row=any_row, step=steps, p=shares)
@example(np.zeros(10, np.float32), Step(0.95, False, 0.0), 0.3)
@example(np.array([0.0, 1e-45, -1e-45] * 30, np.float32), Step(0.95, False, 0.0), 0.5)
def test_top_p(native: Rows, row: np.ndarray, step: Step, p: float) -> None:
    same_choice(native, row, step, top_p=p)


@given(row=any_row, step=steps, p=shares.filter(bool))
@example(made(4, 40000, 0.0, 3.0, 0.0), Step(0.5, False, 0.0), 0.9)
@example(made(4, 40000, 0.0, 3.0, 0.0), Step(0.5, False, 0.0), 0.999)
@example(np.array([0.0, 1.0, -1.0] * 30, np.float32), Step(0.95, False, 0.0), 0.5)
@example(np.array([3e38, -3e38, 1e38], np.float32), Step(0.5, False, 0.0), 0.99)
def test_typical_p(native: Rows, row: np.ndarray, step: Step, p: float) -> None:
    same_choice(native, row, step, typical_p=p)


@given(row=any_row, step=steps, p=shares)
def test_min_p(native: Rows, row: np.ndarray, step: Step, p: float) -> None:
    same_choice(native, row, step, min_p=p)


@given(
    row=any_row, step=steps, p=shares.filter(bool), stage=st.sampled_from(["typical_p", "top_p", "min_p"]), count=counts
)
def test_min_keep(native: Rows, row: np.ndarray, step: Step, p: float, stage: str, count: int) -> None:
    same_choice(native, row, step, **{stage: p}, min_keep=count)


@given(row=any_row, step=steps, n=st.floats(0.01, 5.0))
@example(np.array([3e38, -3e38, 1e38], np.float32), Step(0.9, False, 0.0), 1.0)
def test_top_n_sigma(native: Rows, row: np.ndarray, step: Step, n: float) -> None:
    same_choice(native, row, step, top_n_sigma=n)


@given(row=any_row, step=steps, temperature=temperatures)
def test_p_less(native: Rows, row: np.ndarray, step: Step, temperature: float) -> None:
    same_choice(native, row, step, p_less=True, temperature=temperature)


@given(row=any_row, step=steps, threshold=st.floats(0.0, 0.5))
def test_xtc(native: Rows, row: np.ndarray, step: Step, threshold: float) -> None:
    same_choice(native, row, step._replace(exclude_top=True), xtc_threshold=threshold)


@given(row=any_row, step=steps, temperature=st.floats(0.05, 2.0), spread=st.floats(0.0, 3.0), shape=st.floats(0.0, 4.0))
def test_dynamic_temperature(
    native: Rows, row: np.ndarray, step: Step, temperature: float, spread: float, shape: float
) -> None:
    same_choice(native, row, step, temperature=temperature, dynatemp_range=spread, dynatemp_exponent=shape)


@given(row=any_row, step=steps, version=st.integers(1, 2), temperature=st.floats(0.05, 3.0))
@example(np.zeros(200, np.float32), Step(0.99, False, 2.0), 1, 1.0)
@example(-np.log(np.arange(1, 300, dtype=np.float32)), Step(0.99, False, 4.0), 1, 1.0)
def test_mirostat(native: Rows, row: np.ndarray, step: Step, version: int, temperature: float) -> None:
    same_choice(native, row, step, mirostat=version, temperature=temperature)


@given(row=any_row, step=steps, temperature=st.floats(0.05, 3.0), aim=st.floats(0.0, 1.0))
def test_adaptive_p(native: Rows, row: np.ndarray, step: Step, temperature: float, aim: float) -> None:
    same_choice(native, row, step._replace(feedback=aim), temperature=temperature, adaptive_target=0.5)


chains = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 0.8, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 5, 40, 2000]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    min_keep=st.sampled_from([0, 1, 3, 50, 100_000]),
    p_less=st.booleans(),
    typical_p=st.sampled_from([1.0, 0.95, 0.5]),
    top_n_sigma=st.sampled_from([0.0, 1.0, 3.0]),
    xtc_probability=st.sampled_from([0.0, 0.5, 1.0]),
    xtc_threshold=st.sampled_from([0.0, 0.1, 0.6]),
    repetition_penalty=st.sampled_from([1.0, 1.1, 0.7]),
    repetition_context_size=st.sampled_from([-1, 0, 3, 64]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    presence_penalty=st.sampled_from([0.0, -0.4, 1.0]),
    dry_multiplier=st.sampled_from([0.0, 0.8]),
    dry_allowed_length=st.sampled_from([1, 2]),
    logit_bias=st.sampled_from([(), ((0, 1.5),)]),
    mirostat=st.sampled_from([0, 0, 1, 2]),
    dynatemp_range=st.sampled_from([0.0, 0.5]),
    adaptive_target=st.sampled_from([-1.0, 0.3]),
    seed=st.integers(0, 2**63),
)


@given(row=any_row, params=chains)
@settings(max_examples=100)
@example(made(1, 40000, 0.0625, 4.0, 0.5), SamplingParams(seed=1))
@example(made(2, 40000, 0.0, 3.0, 0.0), SamplingParams(temperature=1.0, top_k=0, top_p=0.95, min_p=0.0, seed=1))
@example(made(3, 40000, 0.0, 3.0, 0.0), SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.05, seed=1))
@example(made(4, 40000, 0.0, 3.0, 0.0), SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=1))
@example(np.zeros(6, np.float32), SamplingParams(temperature=1.0, top_k=2, top_p=1.0, min_p=0.0, min_keep=5, seed=1))
def test_a_seed_gives_the_same_tokens_with_and_without_native_kernels(
    native: Rows, row: np.ndarray, params: SamplingParams
) -> None:
    one, two = (Voice(params, (0, 0), operations, alternatives=5) for operations in (native, ORACLE))
    for _ in range(4):
        try:
            chosen = one.next(row)
        except SamplingError:  # the largest floats overflow under a penalty
            with pytest.raises(SamplingError):
                two(row)
            return
        assert chosen == two.next(row)
        assert row[chosen.token] > -np.inf


def test_the_rows_of_a_step_do_not_mix(native: Rows) -> None:
    """Rows of different settings, many more than there are threads."""
    batch = np.stack([made(i, 3000, 0.0, 3.0, 0.0) for i in range(40)])
    settings = [SamplingParams(**{**OFF, "top_k": i % 7, "typical_p": 1 - i % 3 * 0.2}) for i in range(40)]
    draws = [Step(float(u), i % 2 == 0, 0.0) for i, u in enumerate(np.random.default_rng(3).random(40))]
    together = native.choose(batch, [native.chain(params) for params in settings], draws)
    assert together == ORACLE.choose(batch, settings, draws)
    wanted = [(i, i, i) for i in range(0, 40, 3)]
    assert native.logprobs(batch, wanted) == ORACLE.logprobs(batch, wanted)


@pytest.mark.parametrize("bad", [[np.nan, 1.0], [1.0] * 40 + [np.nan], [-np.inf, -np.inf], [np.inf, 0.0]])
def test_rows_that_are_not_numbers_have_no_token(native: Rows, bad: list[float]) -> None:
    row, step = np.array(bad, np.float32), Step(0.5, False, 0.0)
    for params in (SamplingParams(), SamplingParams(temperature=0.0)):
        assert native.choose(row[None], [native.chain(params)], [step]) == [(NO_TOKEN, 0.0)]
        assert ORACLE.choose(row[None], [params], [step]) == [(NO_TOKEN, 0.0)]


@given(row=any_row, count=st.integers(0, 5000))
def test_logprobs(native: Rows, row: np.ndarray, count: int) -> None:
    token = row.shape[0] // 2
    (found,) = native.logprobs(row[None], [(0, token, count)])
    assert [found] == ORACLE.logprobs(row[None], [(0, token, count)])
    assert [listed for listed, _ in found[1]] == np.argsort(-row, kind="stable")[:count].tolist()


def words_of(row: np.ndarray, seed: int, share: float = 0.5) -> Words:
    """A random mask that allows a share of the tokens, longer than it must be."""
    bits = np.random.default_rng(seed).random((row.shape[0] // 32 + 2, 32)) < share
    return np.packbits(bits, axis=1, bitorder="little").view(np.uint32).ravel()


def allowed(words: Words, token: int) -> bool:
    return bool(words[token // 32] >> np.uint32(token % 32) & 1)


@given(
    row=any_row,
    params=chains,
    step=steps,
    seed=st.integers(0, 2**32 - 1),
    share=st.sampled_from([0.001, 0.06, 0.0625, 0.5, 1.0]),
)
@settings(max_examples=200)
def test_a_mask_comes_before_everything_else(
    native: Rows, row: np.ndarray, params: SamplingParams, step: Step, seed: int, share: float
) -> None:
    words = words_of(row, seed, share)
    bits = words[:, None] >> np.arange(32, dtype=np.uint32) & 1
    masked = np.where(bits.ravel()[: row.shape[0]], row, np.float32(-np.inf))
    before = row.copy()
    (found,) = native.choose(row[None], [native.chain(params)], [step], [words])
    assert [found] == ORACLE.choose(row[None], [params], [step], [words])
    assert [found] == ORACLE.choose(masked[None], [params], [step])
    assert found[0] == NO_TOKEN or allowed(words, found[0])
    assert np.array_equal(row, before)


def test_a_mask_is_for_its_row_only(native: Rows) -> None:
    batch = np.stack([made(i, 3000, 0.0, 3.0, 0.0) for i in range(20)])
    masks = [None if i % 3 else words_of(batch[0], i) for i in range(20)]
    settings = [SamplingParams(**{**OFF, "top_k": i % 4}) for i in range(20)]
    draws = [Step(i / 20, False, 0.0) for i in range(20)]
    native_chains = [native.chain(params) for params in settings]
    together = native.choose(batch, native_chains, draws, masks)
    assert together == ORACLE.choose(batch, settings, draws, masks)
    free = native.choose(batch, native_chains, draws)
    assert [chosen for i, chosen in enumerate(together) if i % 3] == [chosen for i, chosen in enumerate(free) if i % 3]


def test_an_empty_mask_leaves_no_token(native: Rows) -> None:
    row, words = made(1, 100, 0.0, 1.0, 0.0), np.zeros(4, np.uint32)
    for operations in (native, ORACLE):
        for params in (SamplingParams(), SamplingParams(temperature=0.0)):
            chosen = operations.choose(row[None], [operations.chain(params)], [Step(0.5, False, 0.0)], [words])
            assert chosen == [(NO_TOKEN, 0.0)]


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
    chain, step = native.chain(SamplingParams()), Step(0.5, False, 0.0)
    with pytest.raises(ValueError, match="shorter than its row"):
        native.choose(row[None], [chain], [step], [np.zeros(1, np.uint32)])
    with pytest.raises(ValueError, match="mask or None"):
        native.choose(row[None], [chain], [step], [None, None])
    with pytest.raises(ValueError, match="empty"):
        native.choose(row[None, :0], [chain], [step])
    with pytest.raises(ValueError, match="each row"):
        native.choose(row[None], [chain, chain], [step])
    for wanted in ((0, -1, 1), (0, 40, 1), (1, 0, 1), (-1, 0, 1)):
        with pytest.raises(IndexError):
            native.logprobs(row[None], [wanted])
    with pytest.raises(TypeError):  # it would change a converted copy
        native.add_at(row.astype(np.float64), np.array([1]), one)  # pyright: ignore


@pytest.mark.parametrize("reason", [extension.NativeUnavailable("not built"), ValueError("no such kernels")])
def test_without_native_kernels_numpy_does_it(monkeypatch: pytest.MonkeyPatch, reason: Exception) -> None:
    def fail() -> str:
        raise reason

    monkeypatch.setattr(extension, "instruction_set", fail)
    assert isinstance(make_rows(), NumpyRows)
