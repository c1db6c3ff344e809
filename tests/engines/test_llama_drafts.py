"""Drafts: what is guessed, when it pays, and what is counted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rejoinder.engines.llama.drafts import (
    MAX_DRAFT_TOKENS,
    LookupDraft,
    PredictionDraft,
    StepCost,
    draft_length,
)


def cost_of(base: float, each: float, one: float | None = None) -> StepCost:
    """Steps of n tokens that took base + each·n, and `one` for a single token."""
    cost = StepCost()
    for n in (2, 4, 8, 3, 16, 32) * 4:
        cost.record(n, base + each * n)
    cost.record(1, one if one is not None else base + each)
    return cost


EVEN = cost_of(0.010, 0.010)


def test_guesses_pay_as_far_as_they_are_likely() -> None:
    assert draft_length(0.3, EVEN, 1) == 0
    assert draft_length(1.0, EVEN, 1) == MAX_DRAFT_TOKENS
    lengths = [draft_length(rate, EVEN, 1) for rate in (0.5, 0.7, 0.9, 0.97)]
    assert lengths == sorted(lengths) and lengths[1] < lengths[3]
    assert draft_length(0.9, EVEN, 16) < draft_length(0.9, EVEN, 1), "batches leave less to win"
    dear = cost_of(0.100, 0.010)
    assert draft_length(0.9, dear, 1) > draft_length(0.9, EVEN, 1), "dear steps leave more"


def test_a_step_of_one_token_may_be_cheaper_than_the_line_says() -> None:
    assert draft_length(0.4, cost_of(0.010, 0.002), 1) > 0
    assert draft_length(0.4, cost_of(0.010, 0.002, one=0.009), 1) == 0
    assert draft_length(0.95, cost_of(0.010, 0.002, one=0.009), 1) > 8


@given(st.floats(0.05, 0.99), st.floats(0.1, 20), st.integers(1, 32))
def test_the_length_is_the_best_one(rate: float, ratio: float, decoding: int) -> None:
    cost = cost_of(0.001 * ratio, 0.001)

    def speed(k: int) -> float:
        return (decoding + sum(rate**i for i in range(1, k + 1))) / cost.of(decoding + k)

    best = draft_length(rate, cost, decoding)
    assert speed(best) >= max(speed(k) for k in range(MAX_DRAFT_TOKENS + 1)) * (1 - 1e-6)


def test_cost_of_steps_is_fitted() -> None:
    cost = StepCost()
    assert cost.of(3) / cost.of(1) == 2.0
    for _ in range(20):
        cost.record(2, 0.010)
    assert cost.of(3) / cost.of(1) == 2.0, "steps of one size tell nothing"
    for n in (1, 4, 8, 2, 16) * 4:
        cost.record(n, 0.008 + 0.002 * n)
    assert cost.of(1) == pytest.approx(0.010)
    assert cost.of(20) == pytest.approx(0.048, rel=0.05)


def test_a_right_prediction_is_proposed_and_accepted() -> None:
    draft = PredictionDraft(range(10, 30))
    assert draft.propose(4) == [10, 11, 12, 13]
    for token in range(10, 30):
        draft.feed(token)
    assert draft.num_accepted == 20 and draft.num_rejected == 0
    assert draft.propose(5) == []
    draft.feed(99)
    assert draft.propose(5) == []


def test_behind_its_end_it_proposes_nothing() -> None:
    tokens = [1, 2, 3, 1, 2, 4]
    draft = PredictionDraft(tokens)
    for token in (*tokens, 7, 8, 1, 2):
        draft.feed(token)
    assert draft.propose(3) == [], "two tokens of an early part say nothing here"


def test_after_a_mismatch_it_finds_its_place_again() -> None:
    draft = PredictionDraft(range(10, 40))
    for token in (10, 11, 12):
        draft.feed(token)
    assert draft.propose(8) == [13, 14, 15, 16, 17, 18, 19, 20]
    assert draft.num_rejected == 0, "only what is computed counts"
    draft.tried(3)
    draft.feed(99)
    assert draft.num_rejected == 3 and draft.propose(3) == []
    draft.feed(14)
    assert draft.propose(3) == [15, 16, 17], "one token was replaced by another"
    draft.tried(3)
    for token in (15, 16, 17):
        draft.feed(token)
    assert draft.num_accepted == 6
    assert draft.num_rejected == 2
    for token in (90, 91, 92, 25, 26):
        draft.feed(token)
    assert draft.propose(3) == [27, 28, 29], "a part was left out"


def test_it_keeps_its_place_in_a_text_that_repeats_itself() -> None:
    text = [1, 2, 3, 4, 5] * 12
    draft = PredictionDraft([t if i % 10 < 9 else 9 for i, t in enumerate(text)])
    for token in text:
        draft.tried(len(draft.propose(2)))
        draft.feed(token)
    assert draft.num_accepted >= 45


def test_what_comes_after_all_is_not_rejected() -> None:
    draft = PredictionDraft([1, 2, 3, 4, 5, 6])
    draft.feed(1)
    draft.tried(3)
    for token in (9, 1, 2):  # an insertion
        draft.feed(token)
    assert draft.position == 2
    for token in (3, 4):
        draft.feed(token)
    assert draft.num_rejected == 1 and draft.num_accepted == 3


def test_a_useless_prediction_stops_being_proposed() -> None:
    draft = PredictionDraft([1] * 100)
    for token in (5, 1, 6, 1, 7, 1, 8):
        draft.feed(token)
    assert draft_length(draft.hit_rate, EVEN, 1) == 0


@given(st.lists(st.integers(0, 3), max_size=30), st.lists(st.integers(0, 3), max_size=40))
def test_counts_hold_for_any_text(prediction: list[int], text: list[int]) -> None:
    draft = PredictionDraft(prediction)
    total = 0
    for seen, token in enumerate(text, 1):
        draft.tried(len(draft.propose(3)))
        draft.feed(token)
        assert 0 <= draft.num_accepted <= seen
        assert draft.num_accepted + draft.num_rejected <= len(prediction)
        assert total <= (total := seen + draft.num_rejected), "a total that is billed never falls"


@given(st.lists(st.integers(0, 2), max_size=20), st.lists(st.integers(0, 2), max_size=40))
def test_lookup_guesses_what_followed_before(prompt: list[int], text: list[int]) -> None:
    draft = LookupDraft(list(prompt))
    tokens = list(prompt)
    for token in text:
        guess = draft.propose(4)
        if guess:
            key = tokens[-3:]
            assert any(
                tokens[i : i + 3] == key and tokens[i + 3 : i + 3 + len(guess)] == guess
                for i in range(len(tokens) - 3)
            )
        draft.feed(token)
        tokens.append(token)


def test_lookup_learns_a_repetition() -> None:
    draft = LookupDraft([1, 2, 3, 4, 5, 6])
    for token in (1, 2, 3, 4, 5, 6) * 3:
        draft.feed(token)
    assert draft.hit_rate > 0.9
    assert draft.propose(3) == [1, 2, 3]


def test_where_one_token_stands_for_one_the_place_behind_is_tried_at_once() -> None:
    draft = PredictionDraft(range(10, 60))
    for token in (10, 11, 99):
        draft.feed(token)
    assert draft.position is None, "the first time nothing is known of how they part"
    draft.feed(13)
    for token in (14, 15, 98):
        draft.feed(token)
    assert draft.propose(2) == [17, 18]
    for token in (90, 91):
        draft.feed(token)
    assert draft.position is None, "it was not one for one: wait for the text"
