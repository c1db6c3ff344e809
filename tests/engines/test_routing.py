"""The prefix index against a plain model of it, and the choice of a replica."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rejoinder.engines.routing import (
    MIN_BLOCKS,
    Candidate,
    Match,
    PrefixIndex,
    choose,
)

REPLICAS = ("a", "b", "c")


def index_of(*replicas: str, block_tokens: int = 4, max_blocks: int = 100) -> PrefixIndex:
    index = PrefixIndex(block_tokens=block_tokens, max_blocks=max_blocks)
    for name in replicas:
        index.add(name)
    return index


def put(index: PrefixIndex, replica: str, salt: str, tokens: tuple[int, ...]) -> None:
    index.record(replica, salt, tokens, index.match(salt, tokens))


def test_a_prefix_is_found_on_the_replica_that_has_it() -> None:
    index = index_of("a", "b")
    put(index, "a", "s", tuple(range(12)))
    assert index.match("s", tuple(range(12))).tokens == {"a": 12, "b": 0}
    assert index.match("s", (*range(8), 99, 99, 99, 99)).tokens == {"a": 8, "b": 0}
    assert index.match("s", tuple(range(7))).tokens == {"a": 4, "b": 0}
    assert index.match("s", (7, *range(1, 12))).tokens == {"a": 0, "b": 0}


def test_salts_share_nothing() -> None:
    index = index_of("a")
    put(index, "a", "s", tuple(range(12)))
    assert index.match("t", tuple(range(12))).tokens == {"a": 0}


def test_the_hashing_stops_where_nobody_has_the_prefix() -> None:
    index = index_of("a")
    put(index, "a", "s", tuple(range(8)))
    assert len(index.match("s", tuple(range(40))).hashes) == 3


def test_long_prompts_are_hashed_more_coarsely_and_found_again() -> None:
    index = index_of("a", "b", max_blocks=1000)
    long = tuple(Random(1).randrange(1000) for _ in range(5000))
    put(index, "a", "s", long)
    match = index.match("s", long)
    assert match.tokens["a"] > 4900 and match.tokens["b"] == 0
    assert len(match.hashes) < 5000 / 4 / 3
    changed = (*long[:2048], 5000, *long[2049:])
    assert index.match("s", changed).tokens["a"] == 2048


def test_a_cleared_or_removed_replica_has_nothing() -> None:
    index = index_of("a", "b")
    for name in ("a", "b"):
        put(index, name, "s", tuple(range(12)))
    index.clear("a")
    assert index.match("s", tuple(range(12))).tokens == {"a": 0, "b": 12}
    index.remove("b")
    assert index.match("s", tuple(range(12))).tokens == {"a": 0}
    assert len(index) == 0
    index.add("c")
    assert index.match("s", tuple(range(12))).tokens == {"a": 0, "c": 0}
    index.check_integrity()


def test_the_oldest_blocks_go_and_never_a_prefix_before_what_it_leads_to() -> None:
    index = index_of("a", max_blocks=5)
    put(index, "a", "s", tuple(range(12)))
    put(index, "a", "s", tuple(range(100, 112)))
    assert index.match("s", tuple(range(100, 112))).tokens == {"a": 12}
    assert index.match("s", tuple(range(12))).tokens == {"a": 8}


def test_fewer_cached_tokens_than_expected_make_the_memory_shorter() -> None:
    index = index_of("a", max_blocks=1000)
    for start in range(0, 40_000, 400):
        put(index, "a", "s", tuple(range(start, start + 384)))
    before = len(index)
    match = index.match("s", tuple(range(39_600, 39_984)))
    assert match.tokens == {"a": 384}
    index.correct("a", match, cached_tokens=100)
    assert len(index) < before
    for _ in range(200):
        index.correct("a", match, cached_tokens=0)
    assert len(index) == MIN_BLOCKS
    for _ in range(200):
        index.correct("a", match, cached_tokens=384)
    for start in range(0, 40_000, 400):
        put(index, "a", "s", tuple(range(start, start + 384)))
    assert len(index) == before
    index.check_integrity()


def test_a_little_less_than_expected_is_no_surprise() -> None:
    index = index_of("a", max_blocks=1000)
    put(index, "a", "s", tuple(range(1024)))
    before = len(index)
    for _ in range(10):
        match = index.match("s", tuple(range(1024)))
        assert match.tokens == {"a": 1024}
        index.correct("a", match, cached_tokens=1024 - 256)
    assert len(index) == before


def test_what_is_unknown_is_ignored() -> None:
    index = index_of("a")
    index.record("gone", "s", tuple(range(12)), Match((), {}))
    index.correct("gone", Match((), {}), cached_tokens=3)
    assert len(index) == 0


@pytest.mark.parametrize("tokens", [(), (1,), (1, 2, 3)])
def test_prompts_shorter_than_a_block(tokens: tuple[int, ...]) -> None:
    index = index_of("a")
    put(index, "a", "s", tokens)
    assert index.match("s", tokens) == Match((), {"a": 0})


class Index(RuleBasedStateMachine):
    """Against sets of prefixes. Few tokens, so that prefixes are really shared, and all of them
    in the first tier, which is hashed to the token."""

    def __init__(self) -> None:
        super().__init__()
        self.index = index_of(*REPLICAS, block_tokens=2, max_blocks=10_000)
        self.known: dict[str, set[tuple[str, tuple[int, ...]]]] = {r: set() for r in REPLICAS}

    tokens = st.lists(st.integers(0, 1), max_size=8).map(tuple)
    salts = st.sampled_from(["s", "t"])
    names = st.sampled_from(REPLICAS)

    @rule(name=names, salt=salts, tokens=tokens, more=tokens)
    def record(self, name: str, salt: str, tokens: tuple[int, ...], more: tuple[int, ...]) -> None:
        """Recorded with a match of a prefix, as when an answer ends."""
        self.index.record(name, salt, tokens + more, self.index.match(salt, tokens))
        whole = tokens + more
        self.known[name] |= {(salt, whole[:end]) for end in range(2, len(whole) + 1, 2)}

    @rule(name=names)
    def clear(self, name: str) -> None:
        self.index.clear(name)
        self.known[name].clear()

    @precondition(lambda self: len(self.known) > 1)
    @rule(name=names)
    def leave_and_come_back(self, name: str) -> None:
        self.index.remove(name)
        self.index.add(name)
        self.known[name].clear()

    @rule(salt=salts, tokens=tokens)
    def match(self, salt: str, tokens: tuple[int, ...]) -> None:
        found = self.index.match(salt, tokens).tokens
        for name, known in self.known.items():
            expected = 0
            while (salt, tokens[: expected + 2]) in known and expected + 2 <= len(tokens):
                expected += 2
            assert found[name] == expected, name

    @invariant()
    def views_agree(self) -> None:
        self.index.check_integrity()


TestIndex = Index.TestCase
TestIndex.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


@given(
    st.lists(st.tuples(st.sampled_from(REPLICAS), st.integers(0, 30)), max_size=40),
    st.integers(1, 12),
)
def test_it_never_holds_more_than_it_may(puts: list[tuple[str, int]], limit: int) -> None:
    index = index_of(*REPLICAS, max_blocks=limit)
    for name, start in puts:
        put(index, name, "s", tuple(range(start, start + 16)))
        index.check_integrity()


# ---------------------------------------------------------------- the choice


def pick(
    loads: dict[str, int],
    tokens: dict[str, int],
    *,
    key: str = "",
    weights: dict[str, float] | None = None,
    seed: int = 0,
) -> str:
    candidates = [Candidate(n, s, (weights or {}).get(n, 1.0)) for n, s in loads.items()]
    return choose(candidates, Match((), tokens), cache_key=key, random=Random(seed)).name


def test_the_longest_prefix_wins_where_loads_are_alike() -> None:
    assert pick({"a": 3, "b": 3, "c": 3}, {"a": 64, "b": 640, "c": 0}) == "b"


def test_a_long_prefix_is_worth_some_waiting_and_not_more() -> None:
    tokens = {"a": 2000, "b": 0}
    assert pick({"a": 6, "b": 0}, tokens) == "a"
    assert pick({"a": 9, "b": 0}, tokens) == "b"


def test_equal_prefixes_go_to_the_less_loaded() -> None:
    assert pick({"a": 2, "b": 1}, {"a": 640, "b": 640}) == "b"


def test_a_replica_that_warms_up_counts_as_loaded() -> None:
    weights = {"a": 0.1}
    assert pick({"a": 1, "b": 4}, {"a": 64, "b": 64}, weights=weights) == "b"
    assert pick({"a": 0, "b": 0}, {}, weights=weights) == "b"
    assert pick({"a": 0, "b": 12}, {"a": 64, "b": 64}, weights=weights) == "a"


def test_without_a_prefix_the_less_loaded_of_two() -> None:
    loads = {str(i): i for i in range(10)}
    chosen = [pick(loads, {}, seed=seed) for seed in range(300)]
    assert "9" not in chosen, "the most loaded is never the less loaded of two"
    assert chosen.count("0") > chosen.count("5") > 0


def test_a_cache_key_has_a_home_as_long_as_that_is_not_busy() -> None:
    loads = {"a": 0, "b": 0, "c": 0}
    homes = {key: pick(loads, {}, key=key) for key in map(str, range(60))}
    assert set(homes.values()) == {"a", "b", "c"}
    for key, home in homes.items():
        assert pick({**loads, home: 4}, {}, key=key, seed=7) == home
        assert pick({**loads, home: 9}, {}, key=key) != home
        others = {name: 0 for name in loads if name != home}
        stays = next(k for k, h in homes.items() if h in others)
        assert pick(others, {}, key=stays) == homes[stays], "only a lost home is moved"


def test_one_replica_is_the_choice() -> None:
    assert pick({"a": 100}, {}) == "a"
