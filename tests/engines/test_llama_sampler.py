"""The sampler against a slow, plain reading of contract 4.3."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rejoinder.engines.llama.sampler import Sampler, _nucleus, describe, sample, uniform
from rejoinder.types import SamplingParams

VOCABULARY = 600


def row(seed: int, scale: float = 4.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, scale, VOCABULARY).astype(np.float32)


def params(**changes: object) -> SamplingParams:
    return SamplingParams(max_tokens=10, **changes)  # type: ignore[arg-type]


def sampler(p: SamplingParams, prompt: tuple[int, ...] = (), out: tuple[int, ...] = ()) -> Sampler:
    made = Sampler(p, prompt, vocab_size=VOCABULARY)
    for token in out:
        made.accept(token)
    return made


def distribution(
    logits: np.ndarray,
    p: SamplingParams,
    prompt: tuple[int, ...] = (),
    out: tuple[int, ...] = (),
    allowed: np.ndarray | None = None,
) -> dict[int, float]:
    """The probability of each token by the contract's order, word for word."""
    values = logits.astype(np.float64)
    for token, bias in p.logit_bias:
        values[token] += bias
    for token in set(prompt) | set(out):
        factor = p.repetition_penalty
        values[token] = values[token] / factor if values[token] > 0 else values[token] * factor
    for token, count in Counter(out).items():
        values[token] -= p.presence_penalty + p.frequency_penalty * count
    if allowed is not None:
        values[~allowed] = -math.inf
    values = values / p.temperature
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))
    if p.top_k > 0:
        order = order[: p.top_k]
    weights = {i: math.exp(values[i] - values[order[0]]) for i in order}
    total = sum(weights.values())
    if p.top_p < 1:
        kept: dict[int, float] = {}
        for i in order:
            kept[i] = weights[i]
            if sum(kept.values()) >= p.top_p * total:
                break
        weights = kept
    if p.min_p > 0:
        best = max(weights.values())
        weights = {i: w for i, w in weights.items() if w >= p.min_p * best}
    total = sum(weights.values())
    return {i: w / total for i, w in weights.items()}


CASES = [
    {},
    {"temperature": 0.3},
    {"temperature": 2.0},
    {"top_p": 0.9},
    {"top_p": 0.05},
    {"top_k": 7},
    {"top_k": 500, "temperature": 2.0},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"top_k": 20, "top_p": 0.7, "min_p": 0.05, "temperature": 1.5},
    {"top_p": 0.9999, "temperature": 2.0},
    {"presence_penalty": 1.5, "frequency_penalty": 0.7},
    {"presence_penalty": -2.0, "frequency_penalty": -1.0, "top_p": 0.9},
    {"repetition_penalty": 1.6, "top_k": 40},
    {"logit_bias": ((3, 9.0), (5, -100.0), (3, 1.0)), "top_p": 0.95},
]
PROMPT, OUT = (1, 2, 3, 4, 4), (4, 9, 9, 11)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("masked", [False, True], ids=["free", "masked"])
def test_draws_follow_the_distribution(case: dict[str, object], masked: bool) -> None:
    """Many draws of one distribution, each with the next random number: the frequencies agree,
    and nothing outside is ever drawn."""
    p = params(**case)
    logits = row(7, 2.0)
    allowed = np.random.default_rng(1).random(VOCABULARY) < 0.3 if masked else None
    expected = distribution(logits, p, PROMPT, OUT, allowed)
    draws = 4000
    found: Counter[int] = Counter()
    for seed in range(draws // 100):
        samplers = [sampler(params(**case, seed=seed * 100 + i), PROMPT, OUT) for i in range(100)]
        masks = [allowed] * 100 if masked else None
        ids, _, failed = sample(np.repeat(logits[None], 100, 0), samplers, masks)
        assert not failed
        found.update(ids)
    assert set(found) <= set(expected)
    distance = sum(abs(found[i] / draws - w) for i, w in expected.items()) / 2
    assert (
        distance < 0.5 * math.sqrt(len([w for w in expected.values() if w > 1e-4]) / draws) + 0.02
    )


def test_greedy_takes_the_best_after_bias_and_mask() -> None:
    logits = row(3)
    best = int(logits.argmax())
    ids, _, _ = sample(logits[None].copy(), [sampler(params(temperature=0.0))])
    assert ids == [best]
    banned = sampler(params(temperature=0.0, logit_bias=((best, -100.0),)))
    assert sample(logits[None].copy(), [banned])[0] == [int(np.argsort(-logits)[1])]
    allowed = np.zeros(VOCABULARY, dtype=bool)
    allowed[[5, 6]] = True
    ids, _, _ = sample(logits[None].copy(), [sampler(params(temperature=0.0))], [allowed])
    assert ids == [5 if logits[5] > logits[6] else 6]


def test_packed_masks_are_as_booleans() -> None:
    allowed = np.random.default_rng(2).random(VOCABULARY) < 0.02
    words = np.zeros((VOCABULARY + 31) // 32, dtype=np.uint32)
    for i in np.flatnonzero(allowed):
        words[i // 32] |= np.uint32(1) << np.uint32(i % 32)
    for seed in range(50):
        p = params(seed=seed)
        packed = sample(row(4)[None], [sampler(p)], [words.view(np.int32)])[0]
        assert packed == sample(row(4)[None], [sampler(p)], [allowed])[0]
        assert allowed[packed[0]]


def test_rows_do_not_touch_each_other() -> None:
    """A batch of all kinds gives each row what it gets alone."""
    kinds = [*CASES, {"temperature": 0.0}, {"num_top_logprobs": 4, "top_p": 0.9}]
    logits = np.stack([row(i) for i in range(len(kinds))])
    made = [sampler(params(**c, seed=5), PROMPT, OUT) for c in kinds]
    together = sample(logits.copy(), made)
    for i, one in enumerate(made):
        ids, logprobs, _ = sample(logits[i : i + 1].copy(), [one])
        assert ids == [together[0][i]] and logprobs == [together[1][i]]


def test_where_nothing_is_possible_only_that_row_fails() -> None:
    logits = np.stack([row(1), row(2), row(3)])
    logits[1] = np.nan
    none = np.zeros(VOCABULARY, dtype=bool)
    ids, _, failed = sample(logits, [sampler(params()) for _ in range(3)], [None, None, none])
    assert failed == [1, 2] and ids[1:] == [-1, -1] and ids[0] >= 0


@given(st.integers(-(2**63), 2**64 - 1), st.integers(0, 10**6))
def test_random_numbers_are_a_function_of_seed_and_place(seed: int, position: int) -> None:
    value = uniform(seed, position)
    assert 0 <= value < 1 and value == uniform(seed, position)


def test_random_numbers_are_evenly_spread_and_choices_differ() -> None:
    for values in (
        [uniform(1, i) for i in range(4000)],
        [uniform(i, 0) for i in range(4000)],
    ):
        assert abs(np.mean(values) - 0.5) < 0.02
        assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.05
        counts, _ = np.histogram(values, bins=16, range=(0, 1))
        assert counts.min() > 180


@settings(max_examples=60)
@given(st.integers(0, 1000), st.integers(0, 20), st.integers(0, VOCABULARY - 1), st.booleans())
def test_logprobs_and_ranks_are_exact(seed: int, top: int, token: int, ties: bool) -> None:
    logits = row(seed)
    if ties:
        logits = np.round(logits)
    entry = describe(logits, token, top)
    exact = logits.astype(np.float64)
    norm = math.log(np.exp(exact - exact.max()).sum()) + exact.max()
    order = sorted(range(VOCABULARY), key=lambda i: (-logits[i], i))
    assert entry.rank == order.index(token) + 1
    assert entry.logprob == pytest.approx(exact[token] - norm, abs=1e-4)
    assert [i for i, _ in entry.top] == order[:top]
    assert all(v == pytest.approx(exact[i] - norm, abs=1e-4) for i, v in entry.top)
    if entry.rank <= top:
        assert entry.top[entry.rank - 1] == (token, entry.logprob)


def test_logprobs_are_of_the_raw_logits() -> None:
    logits = row(6)
    p = params(
        temperature=0.0, num_top_logprobs=3, logit_bias=((7, 100.0),), repetition_penalty=1.5
    )
    allowed = np.zeros(VOCABULARY, dtype=bool)
    allowed[7] = True
    ids, logprobs, _ = sample(logits[None].copy(), [sampler(p, (1, 2))], [allowed])
    assert ids == [7]
    assert logprobs[0] == describe(logits, 7, 3)


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.floats(0.01, 1.0), st.booleans(), st.floats(0.1, 6))
def test_the_nucleus_of_many_is_that_of_all_sorted(
    seed: int, top_p: float, ties: bool, spread: float
) -> None:
    rng = np.random.default_rng(seed)
    values = np.exp(-rng.exponential(spread, size=20_000)).astype(np.float32)
    if ties:
        values = np.round(values, 2) + np.float32(0.01)
    needed = top_p * float(values.sum(dtype=np.float64))
    order = np.argsort(-values, kind="stable")
    reached = np.cumsum(values[order], dtype=np.float64)
    # What sums to the line within rounding may end one token sooner or later.
    low, high = np.searchsorted(reached, [needed * (1 - 1e-12), needed * (1 + 1e-12)])
    count = int(_nucleus(values, needed).sum())
    assert low + 1 <= count <= min(high + 1, len(values))
    assert set(np.flatnonzero(_nucleus(values, needed))) == set(order[:count])


@pytest.mark.parametrize("spread", [2, 4, 8])
def test_a_top_p_just_below_one_is_nearly_all(spread: float) -> None:
    """The line may then lie, by rounding, behind the sum of all."""
    for seed in range(20):
        logits = np.random.default_rng(seed).normal(0, spread, 49_152).astype(np.float32)
        drawn = Sampler(params(top_p=math.nextafter(1, 0), seed=seed), vocab_size=len(logits))
        (token,), _, _ = sample(logits[None].copy(), [drawn])
        assert 0 <= token < len(logits)
