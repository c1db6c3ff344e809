"""Picks tokens from logits (contract 4.3), for all sequences of a step at once.

Raw logits → logprobs kept → bias → repetition → presence and frequency → mask → temperature →
top_k → top_p → min_p → one draw. This module must not know: the model, text, scheduling.
"""

import math
from collections.abc import Sequence as Rows

import numpy as np
import numpy.typing as npt

from rejoinder.types import SamplingParams, TokenIdLogprob

__all__ = ["NothingToSample", "Sampler", "sample", "uniform"]

Logits = npt.NDArray[np.float32]
Mask = npt.NDArray[np.int32] | npt.NDArray[np.bool_]

_LINE = np.float32(1e-4)
"""The part of the best token's probability above which a nucleus is looked for first."""

_BLOCK = 256

_GROUPS = 512

_SORTED_AT_MOST = 4096
"""Of more weights than these only those near the line are sorted."""

_BIN_SHIFT = 17
"""Bits of a float32 weight that its bin leaves out: six of the mantissa are left."""

_MASK64 = (1 << 64) - 1


class NothingToSample(Exception):
    """No token is possible: every one is masked, or the logits are not numbers."""


def uniform(seed: int, position: int) -> float:
    """The random number in [0, 1) of one position of one choice (splitmix64).

    A function of both, without a state: drafts, preemption and batches cannot shift it.
    """
    x = (seed * 0x9E3779B97F4A7C15 + (position + 1) * 0xD1B54A32D192ED03) & _MASK64
    for multiplier in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        x ^= x >> 30
        x = (x * multiplier) & _MASK64
    x ^= x >> 31
    return (x >> 11) / (1 << 53)


class Sampler:
    """The sampling state of one sequence: its parameters and the tokens that penalties count."""

    __slots__ = (
        "_bias_ids",
        "_bias_values",
        "_counts",
        "_seen",
        "changes_logits",
        "greedy",
        "num_sampled",
        "params",
        "plain",
    )

    def __init__(self, params: SamplingParams, prompt: Rows[int] = (), *, vocab_size: int) -> None:
        self.params = params
        self.num_sampled = 0
        bias = [(i, value) for i, value in params.logit_bias if 0 <= i < vocab_size]
        self._bias_ids = np.array([i for i, _ in bias], dtype=np.int64)
        self._bias_values = np.array([value for _, value in bias], dtype=np.float32)
        self._counts: dict[int, int] = {}
        penalised = params.presence_penalty != 0 or params.frequency_penalty != 0
        repeats = params.repetition_penalty != 1
        self._seen: set[int] | None = set(prompt) if repeats else None
        self.changes_logits = bool(bias) or penalised or repeats
        self.greedy = params.temperature <= 0 or params.top_k == 1 or params.top_p <= 0
        self.plain = params.top_k <= 0 and params.top_p >= 1 and params.min_p <= 0
        """No truncation: a draw from the whole distribution."""

    def accept(self, token_id: int) -> None:
        """A token was appended to the sequence, sampled or forced."""
        self.num_sampled += 1
        if self.changes_logits:
            self._counts[token_id] = self._counts.get(token_id, 0) + 1
            if self._seen is not None:
                self._seen.add(token_id)

    def change(self, row: Logits) -> None:
        """Bias and penalties, in place."""
        params = self.params
        if len(self._bias_ids):
            # An id that appears twice has both of its biases.
            np.add.at(row, self._bias_ids, self._bias_values)
        if self._seen:
            seen = np.fromiter(self._seen, dtype=np.int64, count=len(self._seen))
            values = row[seen]
            factor = np.float32(params.repetition_penalty)
            row[seen] = np.where(values > 0, values / factor, values * factor)
        if self._counts and (params.presence_penalty or params.frequency_penalty):
            ids = np.fromiter(self._counts, dtype=np.int64, count=len(self._counts))
            counts = np.fromiter(self._counts.values(), dtype=np.float32, count=len(ids))
            row[ids] -= params.presence_penalty + params.frequency_penalty * counts

    def random(self) -> float:
        return uniform(self.params.seed, self.num_sampled)


def sample(
    logits: Logits, samplers: Rows[Sampler], masks: Rows[Mask | None] | None = None
) -> tuple[list[int], list[TokenIdLogprob | None], list[int]]:
    """One token a row: ids, logprobs where asked, and the rows where nothing can be sampled.

    `logits` [rows, vocabulary] is overwritten. `masks`: packed bits or booleans of the allowed
    tokens. A row without a possible token gets id −1.
    """
    raw: dict[int, Logits] = {}
    untouched = True
    for i, sampler in enumerate(samplers):
        mask = masks[i] if masks is not None else None
        if sampler.params.num_top_logprobs is not None:
            raw[i] = logits[i].copy()
        if sampler.changes_logits:
            sampler.change(logits[i])
        if mask is not None:
            _apply_mask(logits[i], mask)
        untouched &= sampler.greedy
    best = logits.argmax(axis=1)
    peaks = logits[np.arange(len(samplers)), best]
    usable = np.isfinite(peaks)
    ids: list[int] = [int(i) for i in best]
    if not untouched:
        _draw(logits, samplers, peaks, usable, ids)
    failed = [i for i in range(len(ids)) if not usable[i]]
    for i in failed:
        ids[i] = -1
    logprobs: list[TokenIdLogprob | None] = [None] * len(ids)
    for i, row in raw.items():
        if ids[i] >= 0:
            logprobs[i] = describe(row, ids[i], samplers[i].params.num_top_logprobs or 0)
    return ids, logprobs, failed


def _apply_mask(row: Logits, mask: Mask) -> None:
    if mask.dtype != np.bool_:
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
        mask = bits[: len(row)].view(np.bool_)
    if len(mask) < len(row):
        row[len(mask) :] = -np.inf
    np.copyto(row[: len(mask)], np.float32(-np.inf), where=~mask[: len(row)])


def _draw(
    logits: Logits,
    samplers: Rows[Sampler],
    peaks: npt.NDArray[np.float32],
    usable: npt.NDArray[np.bool_],
    ids: list[int],
) -> None:
    """Replaces the best token by a drawn one, in the rows that have a temperature."""
    for i, sampler in enumerate(samplers):
        if sampler.greedy or not usable[i]:
            continue
        row = logits[i]
        scale = np.float32(1 / max(sampler.params.temperature, 1e-5))
        row -= peaks[i]
        if scale != 1:
            row *= scale
        if sampler.plain:
            ids[i] = _draw_from_all(row, sampler.random())
        else:
            ids[i] = _draw_from_nucleus(row, sampler.params, sampler.random())


def _draw_from_all(row: Logits, u: float) -> int:
    return _pick(np.exp(row, out=row), u)


def _pick(weights: Logits, u: float) -> int:
    """Inverse of the cumulated weights in the order of the ids, block by block: one pass and no
    sum that runs over all of them."""
    starts = np.arange(0, len(weights), _BLOCK)
    ends = np.cumsum(np.add.reduceat(weights, starts, dtype=np.float64))
    target = u * float(ends[-1])
    block = min(int(np.searchsorted(ends, target, side="right")), len(ends) - 1)
    before = float(ends[block - 1]) if block else 0.0
    inside = np.cumsum(weights[block * _BLOCK : (block + 1) * _BLOCK], dtype=np.float64)
    found = int(np.searchsorted(inside, target - before, side="right"))
    found = block * _BLOCK + min(found, len(inside) - 1)
    while weights[found] <= 0:  # rounding at a block's end can only point past its last token
        found -= 1
    return found


def _draw_from_nucleus(row: Logits, params: SamplingParams, u: float) -> int:
    """top_k, then top_p, then min_p, then a draw in the order of the ids. `row` is scaled and its
    best is 0; it becomes the weights."""
    weights = np.exp(row, out=row)
    if 0 < params.top_k < len(weights):
        ids = np.flatnonzero(weights >= _reached_by(weights, params.top_k))
        ids = ids[_best(weights[ids], params.top_k)]
        values = weights[ids]
        needed = params.top_p * float(values.sum(dtype=np.float64))
    elif params.top_p < 1:
        needed = params.top_p * float(weights.sum(dtype=np.float64))
        ids, values = _likely(weights, needed)
    else:
        ids = np.flatnonzero(weights >= min(np.float32(params.min_p), weights.max()))
        values = weights[ids]
    if params.top_p < 1:
        values = values * _nucleus(values, needed)
    if params.min_p > 0:
        values = values * (values >= min(np.float32(params.min_p), values.max()))
    return int(ids[_pick(values, u)])


def _likely(weights: Logits, needed: float) -> tuple[npt.NDArray[np.int64], Logits]:
    """Tokens that include the nucleus, by id, and their weights: few if possible, since sorting
    the whole vocabulary is what costs."""
    ids = np.flatnonzero(weights > _LINE)
    if len(ids) <= len(weights) // 4:
        values = weights[ids]
        if float(values.sum(dtype=np.float64)) >= needed:
            return ids, values
    return np.arange(len(weights)), weights


def _reached_by(values: Logits, count: int) -> np.float32:
    """A line that at least `count` of the values reach, and not many more: of values that are
    dealt to groups, the greatest of each."""
    rows = len(values) // _GROUPS
    if rows and count <= _GROUPS:
        values = values[: rows * _GROUPS].reshape(rows, _GROUPS).max(axis=0)
    place = max(0, len(values) - count)
    line: np.float32 = np.partition(values, place)[place]
    return line


def _nucleus(values: Logits, needed: float) -> npt.NDArray[np.bool_]:
    """Marks the smallest set whose sum reaches `needed`, the greatest first; the one that crosses
    the line is in it. Of equals the first ones."""
    if len(values) <= _SORTED_AT_MOST:
        ordered = np.sort(values)[::-1]
        count = _count_to(ordered, needed)
        return _down_to(values, ordered[count - 1], count)
    # Positive floats are ordered as their bits are: sums by the leading bits find the part of the
    # values in which the line lies, and only that is sorted.
    bins = values.view(np.uint32) >> _BIN_SHIFT
    reached = np.cumsum(np.bincount(bins, weights=values)[::-1])
    if needed > reached[-1]:  # by rounding: the same values were summed in another order
        return np.ones(len(values), dtype=np.bool_)
    from_top = int(np.searchsorted(reached, needed, side="left"))
    before = float(reached[from_top - 1]) if from_top else 0.0
    inside = np.sort(values[bins == len(reached) - 1 - from_top])[::-1]
    count = _count_to(inside, needed - before)
    above = int(np.count_nonzero(bins > len(reached) - 1 - from_top))
    return _down_to(values, inside[count - 1], above + count)


def _count_to(ordered: Logits, needed: float) -> int:
    """How many of the ordered values reach `needed`; at most all."""
    reached = np.cumsum(ordered, dtype=np.float64)
    return min(int(np.searchsorted(reached, needed, side="left")) + 1, len(ordered))


def _best(values: Logits, count: int) -> npt.NDArray[np.bool_]:
    """Marks the `count` greatest; of equals the first ones."""
    return _down_to(values, np.partition(values, len(values) - count)[len(values) - count], count)


def _down_to(values: Logits, line: np.float32, count: int) -> npt.NDArray[np.bool_]:
    """Marks `count` values, of which `line` is the least; of those that equal it the first ones."""
    kept: npt.NDArray[np.bool_] = values > line
    ties = np.flatnonzero(values == line)
    kept[ties[: count - int(np.count_nonzero(kept))]] = True
    return kept


def _by_likelihood(row: Logits, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Ids from the most likely on; of equals the lower id first."""
    return ids[np.argsort(-row[ids], kind="stable")]


def _most_likely(row: Logits, count: int) -> npt.NDArray[np.int64]:
    """The `count` most likely ids, in order."""
    return _by_likelihood(row, np.flatnonzero(row >= _reached_by(row, count)))[:count]


def describe(row: Logits, token_id: int, num_top: int) -> TokenIdLogprob:
    """Logprob and exact rank of a token in raw logits, and the `num_top` best (R156, R159).

    Of equal logits the lower id ranks first, in the rank and in the list alike.
    """
    peak = row.max()
    weights = row - peak
    np.exp(weights, out=weights)
    norm = float(peak) + math.log(float(weights.sum()))
    value = row[token_id]
    rank = 1 + int(np.count_nonzero(row > value)) + int(np.count_nonzero(row[:token_id] == value))
    top: tuple[tuple[int, float], ...] = ()
    if num_top > 0:
        best = _most_likely(row, num_top)
        logprobs = np.minimum(row[best].astype(np.float64) - norm, 0.0)
        top = tuple(zip(best.tolist(), logprobs.tolist(), strict=True))
    return TokenIdLogprob(token_id, min(0.0, float(value) - norm), rank, top)
