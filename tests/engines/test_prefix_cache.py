"""The prefix cache without a model: what it hands out is what was computed, and nothing leaks."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from rejoinder.engines.llama.prefix_cache import Hold, PrefixCache, common_prefix
from tests.engines.fake_memory import FakeMemory

NOW = 0.0


def make(
    num_cells: int = 64, ids: int = 8, snapshot_bytes: int = 0, idle_cells: int | None = None
) -> tuple[PrefixCache, FakeMemory]:
    memory = FakeMemory(num_cells)
    cache = PrefixCache(
        memory,
        num_cells=num_cells,
        memory_ids=range(4, 4 + ids),
        snapshot_bytes=snapshot_bytes,
        idle_cells=idle_cells,
    )
    return cache, memory


def compute(cache: PrefixCache, memory: FakeMemory, hold: Hold, tokens: list[int]) -> None:
    """The rest of `tokens`, into private cells."""
    rest = tokens[hold.length :]
    assert cache.reserve(len(rest), NOW)
    start = hold.length
    cache.advance(hold, len(rest))
    memory.compute(hold.sequence_id, start, rest)


def run(cache: PrefixCache, memory: FakeMemory, tokens: list[int], salt: str = "a") -> int:
    """One whole sequence; how much of it was reused."""
    hold = cache.acquire(0, salt, tokens, len(tokens) - 1, NOW)
    found = hold.shared
    compute(cache, memory, hold, tokens)
    cache.publish(hold, tokens, len(tokens), NOW, keep=True)
    assert memory.content(0) == tokens
    cache.release(hold, NOW)
    cache.check_integrity()
    assert memory.num_used == cache.num_used
    return found


@pytest.mark.parametrize(
    ("a", "b", "start", "expected"),
    [
        ([], [], 0, 0),
        ([1, 2, 3], [1, 2, 3], 0, 3),
        ([1, 2, 3], [1, 2, 4], 0, 2),
        ([1, 2, 3], [2, 2, 3], 0, 0),
        ([9, 1, 2], [8, 1, 2], 1, 3),
        ([1] * 100, [1] * 99 + [2], 0, 99),
        ([1] * 100, [1] * 40, 0, 40),
    ],
)
def test_common_prefix(a: list[int], b: list[int], start: int, expected: int) -> None:
    assert common_prefix(a, b, start, 1000) == expected
    assert common_prefix(tuple(a), tuple(b), start, 1000) == expected


def test_a_prefix_is_reused_and_the_last_token_is_not() -> None:
    cache, memory = make()
    assert run(cache, memory, [1, 2, 3, 4]) == 0
    assert run(cache, memory, [1, 2, 3, 4]) == 3
    assert run(cache, memory, [1, 2, 9, 9]) == 2
    assert run(cache, memory, [1, 2, 3, 4, 5]) == 4
    assert run(cache, memory, [1, 2, 9, 9, 7]) == 4
    assert cache.num_used == 8


def test_salts_share_nothing() -> None:
    cache, memory = make()
    run(cache, memory, [1, 2, 3, 4], salt="a")
    assert cache.peek("b", [1, 2, 3, 4], 4) == 0
    assert run(cache, memory, [1, 2, 3, 4], salt="b") == 0
    assert cache.num_used == 8


def test_what_two_compute_at_once_is_kept_once() -> None:
    cache, memory = make()
    tokens = list(range(10))
    one = cache.acquire(0, "a", tokens, 9, NOW)
    two = cache.acquire(1, "a", tokens, 9, NOW)
    compute(cache, memory, one, tokens)
    compute(cache, memory, two, [*tokens[:7], 99])
    assert cache.num_used == memory.num_used == 18
    assert cache.publish(one, tokens, 10, NOW, keep=True) == 10
    assert cache.publish(two, [*tokens[:7], 99], 8, NOW, keep=True) == 1
    assert cache.num_used == memory.num_used == 11
    assert memory.content(1) == [*tokens[:7], 99]
    cache.check_integrity()


def test_the_least_recently_used_goes_first_and_children_before_parents() -> None:
    cache, memory = make(num_cells=12)
    run(cache, memory, [1, 2, 3, 4])
    run(cache, memory, [5, 6, 7, 8])
    run(cache, memory, [1, 2, 3, 9])
    assert cache.reserve(4, NOW)
    assert cache.peek("a", [1, 2, 3, 9], 4) == 4
    assert cache.peek("a", [5, 6, 7, 8], 4) == 4
    assert cache.peek("a", [1, 2, 3, 4], 4) == 3, "the oldest leaf is gone, its parent is not"
    assert cache.reserve(8, NOW)
    assert cache.peek("a", [5, 6, 7, 8], 4) == 0
    assert cache.reserve(12, NOW)
    assert cache.num_used == 0
    cache.check_integrity()


def test_what_a_sequence_holds_is_never_evicted() -> None:
    cache, memory = make(num_cells=8)
    run(cache, memory, [1, 2, 3, 4])
    hold = cache.acquire(0, "a", [1, 2, 3, 4, 5], 4, NOW)
    assert cache.reserve(4, NOW)
    assert not cache.reserve(5, NOW)
    cache.release(hold, NOW)
    assert cache.reserve(5, NOW)


def test_a_long_prefix_used_in_part_is_not_kept_whole() -> None:
    cache, memory = make(num_cells=16)
    run(cache, memory, list(range(16)))
    hold = cache.acquire(0, "a", [0, 1, 2, 3, 99], 4, NOW)
    assert hold.shared == 4
    assert cache.reserve(12, NOW), "the twelve cells it does not use can be taken"
    cache.check_integrity()


def test_pins_outlive_what_is_used_later() -> None:
    cache, memory = make(num_cells=16)
    hold = cache.acquire(0, "a", [1, 2, 3, 4, 5, 6], 5, NOW)
    compute(cache, memory, hold, [1, 2, 3, 4, 5, 6])
    cache.publish(hold, [1, 2, 3, 4, 5, 6], 6, NOW, keep=True)
    cache.pin(hold, 4, 100.0, NOW)
    cache.release(hold, NOW)
    run(cache, memory, [7, 8, 9, 10])
    assert not cache.reserve(16, NOW)
    assert cache.peek("a", [1, 2, 3, 4, 5, 6], 6) == 4
    assert cache.num_used == 4
    assert cache.reserve(16, 101.0), "the pin has run out"
    assert cache.peek("a", [1, 2, 3, 4], 4) == 0


def test_pins_give_way_only_when_asked_to() -> None:
    cache, memory = make(num_cells=8)
    hold = cache.acquire(0, "a", [1, 2, 3, 4], 3, NOW)
    compute(cache, memory, hold, [1, 2, 3, 4])
    cache.publish(hold, [1, 2, 3, 4], 4, NOW, keep=True)
    cache.pin(hold, 4, 100.0, NOW)
    cache.release(hold, NOW)
    assert cache.num_reclaimable(NOW) == 0
    assert cache.num_reclaimable(NOW, pinned=True) == 4
    assert not cache.reserve(8, NOW)
    assert cache.reserve(8, NOW, pinned=True)


def test_no_more_than_half_of_the_cells_can_be_pinned() -> None:
    cache, memory = make(num_cells=16)
    for first in (10, 20, 30):
        tokens = [first, 1, 2, 3]
        hold = cache.acquire(0, "a", tokens, 3, NOW)
        compute(cache, memory, hold, tokens)
        cache.publish(hold, tokens, 4, NOW, keep=True)
        cache.pin(hold, 4, 100.0, NOW)
        cache.release(hold, NOW)
    assert cache.reserve(8, NOW)
    assert cache.peek("a", [10, 1, 2, 3], 4) == 0, "the oldest pin gave way"
    assert cache.peek("a", [30, 1, 2, 3], 4) == 4


def test_what_is_not_kept_lives_as_long_as_its_holds() -> None:
    cache, memory = make()
    tokens = [1, 2, 3, 4, 5, 6]
    one = cache.acquire(0, "a", tokens, 5, NOW)
    compute(cache, memory, one, tokens)
    assert cache.publish(one, tokens, 2, NOW, keep=True) == 2
    assert cache.publish(one, tokens, 6, NOW, keep=False) == 0
    two = cache.acquire(1, "a", tokens, 5, NOW)
    assert two.shared == 5
    cache.release(one, NOW)
    assert memory.content(1) == tokens[:5]
    cache.release(two, NOW)
    assert cache.num_used == memory.num_used == 2
    cache.check_integrity()


def test_host_memory_brings_prefixes_back() -> None:
    cache, memory = make(num_cells=32, snapshot_bytes=10_000)
    first, second = list(range(100, 130)), list(range(200, 230))
    run(cache, memory, first)
    run(cache, memory, second)
    assert cache.num_snapshot_bytes > 0 and cache.peek("a", first, 30) == 30
    assert run(cache, memory, first) == 29
    assert cache.num_restored == 1


def test_idle_prefixes_beyond_the_bound_move_to_host_memory() -> None:
    cache, memory = make(num_cells=100, snapshot_bytes=10_000, idle_cells=40)
    prompts = [[start + i for i in range(18)] for start in (100, 200, 300)]
    for tokens in prompts:
        run(cache, memory, tokens)
    assert cache.num_used == memory.num_used == 36, "the oldest left its cells"
    assert [cache.peek("a", tokens, 18) for tokens in prompts] == [18, 18, 18]
    assert run(cache, memory, prompts[0]) == 17


def test_without_host_memory_idle_prefixes_stay() -> None:
    cache, memory = make(num_cells=100, idle_cells=40)
    for start in (100, 200, 300):
        run(cache, memory, [start + i for i in range(18)])
    assert cache.num_used == 54


def test_host_memory_has_a_bound_and_forgets_the_oldest() -> None:
    size = len(repr([(p, 100 + p) for p in range(30)]))
    cache, memory = make(num_cells=32, snapshot_bytes=2 * size + 10)
    prompts = [[start + i for i in range(30)] for start in (100, 200, 300, 400)]
    for tokens in prompts:
        run(cache, memory, tokens)
    known = [cache.peek("a", tokens, 30) == 30 for tokens in prompts]
    assert known == [False, True, True, True]


def test_a_snapshot_that_does_not_load_is_computed_again() -> None:
    cache, memory = make(num_cells=32, snapshot_bytes=10_000)
    save = memory.save
    memory.save = lambda sequence_id: save(sequence_id) + b"#spoilt"  # type: ignore[method-assign]
    run(cache, memory, list(range(100, 130)))
    run(cache, memory, list(range(200, 230)))
    assert run(cache, memory, list(range(100, 130))) == 0


def test_without_ids_for_nodes_sequences_still_run() -> None:
    cache, memory = make(num_cells=64, ids=1)
    one = cache.acquire(0, "a", [1, 2, 3], 2, NOW)
    two = cache.acquire(1, "a", [1, 9, 3], 2, NOW)
    compute(cache, memory, one, [1, 2, 3])
    compute(cache, memory, two, [1, 9, 3])
    cache.publish(one, [1, 2, 3], 3, NOW, keep=True)
    cache.publish(two, [1, 9, 3], 3, NOW, keep=True)
    assert memory.content(1) == [1, 9, 3]
    cache.check_integrity()
    cache.release(two, NOW)
    cache.release(one, NOW)
    assert memory.num_used == cache.num_used


def test_accounts_leave_nothing_behind() -> None:
    cache, memory = make(num_cells=8)
    for account in range(50):
        run(cache, memory, [1, 2, 3, 4], salt=f"account-{account}")
    assert cache.reserve(8, NOW)
    assert not cache._roots, "an account without a prefix costs nothing"


TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=24)


class Cache(RuleBasedStateMachine):
    """Random lives of sequences; after each step the books balance and the memory agrees."""

    @initialize(
        cells=st.integers(24, 60),
        ids=st.integers(1, 8),
        host=st.sampled_from([0, 200, 4000]),
        idle=st.none() | st.integers(0, 30),
    )
    def start(self, cells: int, ids: int, host: int, idle: int | None) -> None:
        self.cache, self.memory = make(cells, ids, host, idle)
        self.live: dict[int, tuple[Hold, list[int]]] = {}
        self.time = 0.0
        self.pins: list[tuple[str, list[int], float]] = []

    @precondition(lambda self: len(self.live) < 4)
    @rule(tokens=TOKENS, salt=st.sampled_from("ab"))
    def acquire(self, tokens: list[int], salt: str) -> None:
        sequence_id = min({0, 1, 2, 3} - set(self.live))
        limit = len(tokens) - 1
        promised = self.cache.peek(salt, tokens, limit)
        hold = self.cache.acquire(sequence_id, salt, tokens, limit, self.time)
        assert hold.shared <= promised
        self.live[sequence_id] = (hold, tokens)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), count=st.integers(1, 8))
    def compute(self, data: st.DataObject, count: int) -> None:
        hold, tokens = self.live[data.draw(st.sampled_from(sorted(self.live)))]
        rest = tokens[hold.length : hold.length + count]
        could = self.cache.num_free + self.cache.num_reclaimable(self.time)
        if self.cache.reserve(len(rest), self.time):
            start = hold.length
            self.cache.advance(hold, len(rest))
            self.memory.compute(hold.sequence_id, start, rest)
        else:
            assert could < len(rest), "refused although there was room"

    @precondition(lambda self: self.live)
    @rule(data=st.data(), keep=st.booleans())
    def publish(self, data: st.DataObject, keep: bool) -> None:
        hold, tokens = self.live[data.draw(st.sampled_from(sorted(self.live)))]
        upto = data.draw(st.integers(0, hold.length))
        self.cache.publish(hold, tokens, upto, self.time, keep=keep)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        hold, _ = self.live[data.draw(st.sampled_from(sorted(self.live)))]
        self.cache.truncate(hold, data.draw(st.integers(hold.shared, hold.length)))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), seconds=st.integers(1, 5))
    def pin(self, data: st.DataObject, seconds: int) -> None:
        hold, _ = self.live[data.draw(st.sampled_from(sorted(self.live)))]
        if hold.shared:
            length = data.draw(st.integers(1, hold.shared))
            self.cache.pin(hold, length, self.time + seconds, self.time)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        sequence_id = data.draw(st.sampled_from(sorted(self.live)))
        hold, _ = self.live.pop(sequence_id)
        self.cache.release(hold, self.time)
        assert not self.memory.sequences.get(sequence_id)

    @rule(cells=st.integers(1, 60))
    def reserve(self, cells: int) -> None:
        pinned = [n for n in self.cache._nodes if self.cache._is_pinned(n, self.time)]
        self.cache.reserve(min(cells, self.cache.num_cells), self.time)
        assert all(n.resident for n in pinned if n in self.cache._nodes)
        assert set(pinned) <= self.cache._nodes, "a pinned prefix was evicted"

    @rule()
    def wait(self) -> None:
        self.time += 1

    @invariant()
    def balanced(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check_integrity()
        assert self.memory.num_used == self.cache.num_used, "freed is not what was allocated"
        for hold, tokens in self.live.values():
            assert self.memory.content(hold.sequence_id) == tokens[: hold.length]
        for node in self.cache._nodes:
            if node.memory_id is not None:
                assert self.memory.content(node.memory_id) == list(node.tokens)
                assert min(self.memory.sequences[node.memory_id]) == node.start

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        for hold, _ in self.live.values():
            self.cache.release(hold, self.time)
        assert self.cache.reserve(self.cache.num_cells, self.time, pinned=True)
        assert self.memory.num_used == 0
        self.cache.check_integrity()


TestCache = Cache.TestCase
TestCache.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
