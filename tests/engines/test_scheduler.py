"""The scheduler without a model: a made-up model whose next token is a function of all before."""

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rejoinder.engines.llama.exact_cache import ExactCache
from rejoinder.engines.llama.prefix_cache import PrefixCache
from rejoinder.engines.llama.scheduler import (
    AGEING_SECONDS,
    LOWER_TIERS_EVERY,
    STARVED_SECONDS,
    Plan,
    Scheduler,
    Work,
)
from rejoinder.engines.llama.sequence import Phase, Sequence
from rejoinder.types import Counts, Prompt, Tier
from tests.engines.fake_memory import FakeMemory, UncutMemory


def next_token(tokens: list[int]) -> int:
    """What the made-up model says: depends on everything before."""
    state = len(tokens)
    for token in tokens:
        state = (state * 31 + token + 7) % 1009
    return state % 3


def answer(prompt: tuple[int, ...], length: int) -> list[int]:
    tokens = list(prompt)
    while len(tokens) < length:
        tokens.append(next_token(tokens))
    return tokens


class Bench:
    """A scheduler, its cache and memory, and a clock; `step` does what the engine does."""

    def __init__(
        self,
        *,
        cells: int = 200,
        sequences: int = 4,
        queue: int = 100,
        batch: int = 16,
        ids: int = 20,
        host: int = 0,
        flex_wait: float = 600.0,
        cuttable: bool = True,
    ) -> None:
        self.memory = FakeMemory(cells) if cuttable else UncutMemory(cells)
        self.cache = (
            PrefixCache(
                self.memory,
                num_cells=cells,
                memory_ids=range(sequences, sequences + ids),
                snapshot_bytes=host,
            )
            if cuttable
            else ExactCache(self.memory, num_cells=cells, snapshot_bytes=host)
        )
        self.scheduler = Scheduler(
            self.cache,
            max_sequences=sequences,
            max_queue=queue,
            batch_size=batch,
            flex_wait_seconds=flex_wait,
        )
        self.now = 0.0
        self.numbers = itertools.count()
        self.live: list[Sequence] = []
        self.done: list[Sequence] = []
        self.prefilled = 0

    def add(
        self,
        prompt: tuple[int, ...] | Prompt,
        length: int | None = None,
        *,
        tier: Tier = "default",
        salt: str = "a",
    ) -> Sequence:
        if not isinstance(prompt, Prompt):
            prompt = Prompt(token_ids=prompt, cache_salt=salt)
        size = len(prompt.token_ids)
        sequence = Sequence(
            next(self.numbers),
            prompt,
            Counts(),
            tier=tier,
            max_length=min(length or size + 4, self.cache.num_cells),
            arrived=self.now,
        )
        self.scheduler.add(sequence)
        self.live.append(sequence)
        return sequence

    def abort(self, sequence: Sequence) -> None:
        self.scheduler.remove(sequence, self.now)
        self.live.remove(sequence)

    def step(self, seconds: float = 0.1) -> Plan:
        self.now += seconds
        plan = self.scheduler.schedule(self.now)
        for sequence in plan.expired:
            self.live.remove(sequence)
        self.check_plan(plan)
        for work in plan.works:
            hold = work.sequence.hold
            assert hold is not None and hold.length == work.start + len(work.tokens)
            self.memory.compute(hold.sequence_id, work.start, work.tokens)
            assert (
                self.memory.content(hold.sequence_id)[: work.start]
                == (work.sequence.tokens[: work.start])
            )
            self.prefilled += len(work.tokens) - work.num_outputs
        self.scheduler.commit(plan.works, self.now)
        for work in plan.works:
            if work.num_outputs:
                self.sample(work)
        self.check()
        return plan

    def sample(self, work: Work) -> None:
        sequence = work.sequence
        draft = work.tokens[len(work.tokens) - work.num_draft :] if work.num_draft else []
        for depth in range(work.num_outputs):
            token = next_token(sequence.tokens)
            sequence.tokens.append(token)
            full = len(sequence.tokens) >= sequence.max_length
            if full or depth >= len(draft) or draft[depth] != token:
                kept = work.start + len(work.tokens) - len(draft) + depth
                self.scheduler.keep(sequence, kept)
                break
        sequence.draft = []
        if len(sequence.tokens) >= sequence.max_length:
            self.scheduler.remove(sequence, self.now)
            self.live.remove(sequence)
            self.done.append(sequence)
            expected = answer(sequence.prompt.token_ids, sequence.max_length)
            assert sequence.tokens == expected, "batching, sharing or preemption changed a text"

    def check_plan(self, plan: Plan) -> None:
        scheduler = self.scheduler
        assert sum(len(w.tokens) for w in plan.works) <= scheduler.batch_size
        decodes = [w for w in plan.works if len(w.tokens) == w.num_outputs]
        prefill = sum(len(w.tokens) for w in plan.works if len(w.tokens) > w.num_outputs)
        if decodes and any(w.start >= w.sequence.prompt_length for w in decodes):
            assert prefill <= scheduler.prefill_budget, "running decodes stall for too long"
        assert len({w.sequence.number for w in plan.works}) == len(plan.works)
        assert plan.works or not scheduler.running, "somebody runs, and nobody goes on"

    def check(self) -> None:
        self.cache.check_integrity()
        assert self.memory.num_used == self.cache.num_used
        assert len(self.scheduler.running) <= self.scheduler.max_sequences
        for sequence in self.live:
            counts = sequence.counts
            assert counts.cached_tokens <= counts.prompt_tokens - 1
            assert counts.cached_tokens + counts.cache_write_tokens <= counts.prompt_tokens

    def drain(self, steps: int = 5000) -> None:
        for _ in range(steps):
            if not self.scheduler.has_work:
                break
            self.step()
        assert not self.live, "some never finish"


def prompt(first: int, size: int) -> tuple[int, ...]:
    return tuple((first * 7 + i * i) % 50 + 3 for i in range(size))


# ---------------------------------------------------------------- sharing


def test_sixteen_equal_prompts_are_computed_once() -> None:
    bench = Bench(cells=500, sequences=16, ids=40)
    sequences = [bench.add(prompt(1, 100)) for _ in range(16)]
    bench.drain()
    assert sequences[0].counts.cached_tokens == 0
    assert [s.counts.cached_tokens for s in sequences[1:]] == [99] * 15
    assert bench.prefilled == 99 + 16 * 0, "one prefill, and the last token of each"
    assert sequences[0].counts.cache_write_tokens == 100


def test_a_shared_prefix_is_waited_for_while_it_is_computed() -> None:
    bench = Bench(cells=500, sequences=16, ids=40)
    system = prompt(1, 100)
    sequences = [bench.add((*system, 60 + i, 61, 62)) for i in range(10)]
    bench.drain()
    assert [s.counts.cached_tokens for s in sequences[1:]] == [100] * 9
    assert all(s.counts.cache_write_tokens == 3 for s in sequences[1:])


def test_other_accounts_do_not_wait_and_do_not_share() -> None:
    bench = Bench(cells=500, sequences=4, batch=64)
    one = bench.add(prompt(1, 100), salt="a")
    two = bench.add(prompt(1, 100), salt="b")
    assert len(bench.step().works) == 1  # the budget of one step
    bench.step()
    assert two.phase is Phase.RUNNING, "it does not wait for the other account's prefill"
    bench.drain()
    assert one.counts.cached_tokens == two.counts.cached_tokens == 0


def test_a_better_tier_does_not_wait_for_a_worse_one() -> None:
    bench = Bench(cells=500, batch=8)
    bench.add(prompt(1, 100), tier="flex")
    bench.step()
    urgent = bench.add(prompt(1, 100), tier="priority")
    bench.step()
    assert urgent.phase is Phase.RUNNING and urgent.num_computed > 8


def test_who_waits_goes_on_when_the_leader_is_aborted() -> None:
    bench = Bench(cells=500, batch=16)
    leader = bench.add(prompt(1, 100))
    follower = bench.add(prompt(1, 100))
    bench.step()
    assert follower.phase is Phase.WAITING
    bench.step()
    bench.abort(leader)
    bench.drain()
    assert follower.counts.cached_tokens == 32


def test_choices_of_one_explicit_request_share_and_leave_nothing() -> None:
    bench = Bench(cells=500)
    asked = Prompt(token_ids=prompt(1, 60), cache_salt="a", cache_explicit=True)
    sequences = [bench.add(asked) for _ in range(3)]
    bench.drain()
    assert [s.counts.cached_tokens for s in sequences] == [0, 59, 59]
    assert all(s.counts.cache_write_tokens == 0 for s in sequences)
    assert bench.cache.num_used == 0
    again = bench.add(asked)
    bench.drain()
    assert again.counts.cached_tokens == 0


def test_explicit_mode_reuses_at_breakpoints_only() -> None:
    bench = Bench(cells=500)
    ids = prompt(1, 60)
    first = bench.add(
        Prompt(token_ids=ids, cache_salt="a", cache_explicit=True, cache_breakpoints=(20, 40))
    )
    bench.drain()
    assert first.counts.cache_write_tokens == 40
    assert bench.cache.num_used == 40
    again = bench.add(
        Prompt(token_ids=ids, cache_salt="a", cache_explicit=True, cache_breakpoints=(20, 50))
    )
    bench.drain()
    assert again.counts.cached_tokens == 20
    assert again.counts.cache_write_tokens == 10, "40 to 50; what was there is not written again"
    implicit = bench.add(Prompt(token_ids=ids, cache_salt="a"))
    bench.drain()
    assert implicit.counts.cached_tokens == 50


def test_a_cache_key_keeps_its_prompt_against_others() -> None:
    bench = Bench(cells=100)
    keyed = Prompt(token_ids=prompt(1, 40), cache_salt="a", cache_key="k")
    bench.add(keyed)
    bench.drain()
    for i in range(2, 8):
        bench.add(prompt(i, 45))
        bench.drain()
    again = bench.add(keyed)
    bench.drain()
    assert again.counts.cached_tokens == 39


# ---------------------------------------------------------------- cells, preemption


def test_one_sequence_may_have_all_cells() -> None:
    bench = Bench(cells=100)
    for i in range(3):
        bench.add(Prompt(token_ids=prompt(i, 60), cache_salt="a", cache_key="pinned"))
        bench.drain()
    whole = bench.add(prompt(9, 90), 100)
    bench.drain()
    assert len(whole.tokens) == 100


def test_when_cells_run_out_the_last_of_the_worst_tier_gives_way() -> None:
    bench = Bench(cells=64, sequences=3, host=100_000)
    first = bench.add(prompt(1, 10), 40)
    flex = bench.add(prompt(2, 10), 40, tier="flex")
    last = bench.add(prompt(3, 10), 40)
    while not bench.scheduler.num_preempted:
        bench.step()
    assert flex.phase is Phase.WAITING
    assert first.phase is last.phase is Phase.RUNNING
    bench.drain()


def test_long_prefill_goes_in_chunks_beside_decodes() -> None:
    bench = Bench(cells=500, batch=64)
    bench.scheduler.prefill_budget = 8
    talking = bench.add(prompt(1, 5), 60)
    bench.step()
    long = bench.add(prompt(2, 100))
    before = len(talking.tokens)
    for _ in range(12):
        plan = bench.step()
        assert sum(len(w.tokens) for w in plan.works if w.sequence is long) <= 8
    assert len(talking.tokens) == before + 12, "a token in each step"
    bench.drain()


def test_a_step_is_short_for_whoever_comes_next_though_nobody_decodes() -> None:
    bench = Bench(cells=500, batch=64)
    bench.scheduler.prefill_budget = 8
    bench.add(prompt(1, 100))
    assert sum(len(w.tokens) for w in bench.step().works) == 8
    bench.drain()


def test_a_short_prompt_does_not_wait_behind_a_long_one() -> None:
    bench = Bench(cells=500, batch=64)
    bench.scheduler.prefill_budget = 32
    long = bench.add(prompt(1, 300))
    bench.step()
    short = bench.add(prompt(2, 7))
    middling = bench.add(prompt(3, 20))
    plan = bench.step()
    assert short in {w.sequence for w in plan.works} and long in {w.sequence for w in plan.works}
    assert middling not in {w.sequence for w in plan.works}, "only what is a quarter of a step"
    bench.drain()


# ---------------------------------------------------------------- tiers


def test_priority_pauses_the_others_and_they_keep_their_cells() -> None:
    bench = Bench(cells=500, sequences=4)
    flex = [bench.add(prompt(i, 10), 100, tier="flex") for i in range(3)]
    for _ in range(5):
        bench.step()
    urgent = bench.add(prompt(9, 30), 40, tier="priority")
    plan = bench.step()
    assert {w.sequence for w in plan.works} == {urgent}
    assert all(s.phase is Phase.RUNNING for s in flex)
    shares = []
    while urgent.phase is Phase.RUNNING:
        plan = bench.step()
        shares.append(len(plan.works) > 1)
    assert sum(shares) >= len(shares) // LOWER_TIERS_EVERY - 1, "the others go on meanwhile"
    assert sum(shares) <= len(shares) / LOWER_TIERS_EVERY + 1
    bench.drain()


def test_priority_takes_the_place_of_flex_when_all_are_taken() -> None:
    bench = Bench(cells=500, sequences=2)
    bench.add(prompt(1, 10), 100, tier="flex")
    bench.add(prompt(2, 10), 100, tier="default")
    bench.step()
    urgent = bench.add(prompt(3, 10), 20, tier="priority")
    bench.step()
    assert urgent.phase is Phase.RUNNING
    assert [s.rank for s in bench.scheduler.running] == [1, 0], "the flex one gave its place"
    bench.drain()


def test_tiers_wait_in_their_order_and_each_in_order_of_arrival() -> None:
    bench = Bench(cells=500, sequences=1)
    bench.add(prompt(0, 10), 12, tier="priority")
    bench.step()
    tiers: list[Tier] = ["flex", "default", "priority", "flex", "default", "priority"]
    sequences = [bench.add(prompt(i + 1, 10), 12, tier=tier) for i, tier in enumerate(tiers)]
    bench.drain()
    assert [sequences.index(s) for s in bench.done[1:]] == [2, 5, 1, 4, 0, 3]


def test_nobody_starves_under_a_stream_of_priority() -> None:
    bench = Bench(cells=500, sequences=2)
    flex = bench.add(prompt(1, 10), 20, tier="flex")
    default = bench.add(prompt(2, 10), 20)
    for i in itertools.count():
        while sum(s.rank == 0 for s in bench.live) < 4:
            bench.add(prompt(i, 6), 12, tier="priority")
        bench.step(0.2)
        if flex.phase is default.phase is Phase.FINISHED:
            break
        assert bench.now < 4 * AGEING_SECONDS + 60 * STARVED_SECONDS
    assert bench.now > STARVED_SECONDS, "priority was not served first"


def test_aged_flex_goes_before_fresh_default() -> None:
    bench = Bench(cells=500, sequences=1)
    flex = bench.add(prompt(1, 10), 12, tier="flex")
    bench.scheduler.running.clear()
    blocker = bench.add(prompt(2, 10), 14, tier="priority")
    bench.step()
    assert flex.phase is Phase.WAITING and blocker.phase is Phase.RUNNING
    bench.now += AGEING_SECONDS + 1
    default = bench.add(prompt(3, 10), 12)
    bench.drain()
    assert bench.done.index(flex) < bench.done.index(default)


def test_flex_has_a_bound_on_waiting_and_none_once_it_runs() -> None:
    bench = Bench(cells=500, sequences=1, flex_wait=10.0)
    running = bench.add(prompt(1, 10), 30, tier="flex")
    bench.step()
    late = bench.add(prompt(2, 10), tier="flex")
    bench.now += 11
    plan = bench.step()
    assert plan.expired == [late]
    assert late.phase is Phase.FINISHED and running.phase is Phase.RUNNING
    bench.drain()


def test_the_queue_has_a_bound_that_lower_tiers_do_not_fill() -> None:
    bench = Bench(cells=500, sequences=1, queue=2)
    scheduler = bench.scheduler
    bench.add(prompt(0, 10), 30)
    bench.step()
    for i in range(2):
        assert scheduler.has_room(2)
        bench.add(prompt(i, 10), tier="flex")
    assert not scheduler.has_room(2)
    assert scheduler.has_room(1) and scheduler.has_room(0)


# ---------------------------------------------------------------- drafts


@pytest.mark.parametrize("right", [0, 1, 3, 5])
def test_of_a_draft_the_right_part_is_kept(right: int) -> None:
    bench = Bench(cells=500)
    sequence = bench.add(prompt(1, 10), 40)
    bench.step()
    while sequence.phase is Phase.RUNNING:
        truth = answer(sequence.prompt.token_ids, len(sequence.tokens) + 5)[len(sequence.tokens) :]
        sequence.draft = [t if i < right else t + 1 for i, t in enumerate(truth)]
        before = len(sequence.tokens)
        bench.step()
        assert len(sequence.tokens) == min(before + right + 1, 40)


def test_drafts_give_way_when_cells_are_short() -> None:
    bench = Bench(cells=24, sequences=1)
    sequence = bench.add(prompt(1, 10), 24)
    bench.step()
    while sequence.phase is Phase.RUNNING:
        sequence.draft = [1] * 8
        bench.step()
    assert len(sequence.tokens) == 24


# ---------------------------------------------------------------- memories that cannot be cut


def test_a_state_is_reused_by_what_goes_on_where_it_ended() -> None:
    bench = Bench(cells=500, host=100_000, cuttable=False)
    first = bench.add(prompt(1, 40), 44)
    bench.drain()
    turn = (*first.tokens[:43], 7, 8, 9)
    again = bench.add(turn, 50)
    bench.drain()
    assert again.counts.cached_tokens == 43
    shorter = bench.add(turn[:30], 34)
    bench.drain()
    assert shorter.counts.cached_tokens == 0, "a state cannot be cut"
    other = bench.add(turn, 50, salt="b")
    bench.drain()
    assert other.counts.cached_tokens == 0


def test_equal_prompts_share_a_state() -> None:
    bench = Bench(cells=500, host=100_000, cuttable=False)
    sequences = [bench.add(prompt(1, 40)) for _ in range(3)]
    longer = bench.add((*prompt(1, 40), 5, 6))
    bench.drain()
    assert [s.counts.cached_tokens for s in sequences] == [0, 39, 39]
    assert longer.counts.cached_tokens in (39, 40)


def test_states_have_a_bound() -> None:
    bench = Bench(cells=500, host=1500, cuttable=False)
    for i in range(20):
        bench.add(prompt(i, 40))
        bench.drain()
        assert bench.cache.num_snapshot_bytes <= 1500
    assert bench.cache.num_used == 0


# ---------------------------------------------------------------- everything at once


class Life(RuleBasedStateMachine):
    """Random adds, aborts, drafts and steps; texts are always those of a sequence alone."""

    @initialize(
        cells=st.integers(40, 120),
        sequences=st.integers(1, 5),
        ids=st.integers(1, 12),
        host=st.sampled_from([0, 400, 5000]),
        budget=st.integers(1, 16),
        cuttable=st.sampled_from([True, True, True, False]),
    )
    def start(
        self, cells: int, sequences: int, ids: int, host: int, budget: int, cuttable: bool
    ) -> None:
        self.bench = Bench(
            cells=cells,
            sequences=sequences,
            ids=ids,
            host=host,
            flex_wait=50.0,
            cuttable=cuttable,
        )
        self.bench.scheduler.prefill_budget = budget

    @rule(
        ids=st.lists(st.integers(0, 1), min_size=1, max_size=30),
        common=st.integers(0, 12),
        more=st.integers(1, 12),
        tier=st.sampled_from(["priority", "default", "flex"]),
        salt=st.sampled_from("ab"),
        key=st.sampled_from(["", "k"]),
        explicit=st.booleans(),
        points=st.lists(st.integers(1, 40), max_size=3),
        choices=st.integers(1, 3),
    )
    def add(
        self,
        ids: list[int],
        common: int,
        more: int,
        tier: Tier,
        salt: str,
        key: str,
        explicit: bool,
        points: list[int],
        choices: int,
    ) -> None:
        token_ids = tuple([2] * common + ids)[: self.bench.cache.num_cells - 1]
        asked = Prompt(
            token_ids=token_ids,
            cache_salt=salt,
            cache_key=key,
            cache_explicit=explicit,
            cache_breakpoints=tuple(points),
        )
        for _ in range(choices):
            self.bench.add(asked, len(token_ids) + more, tier=tier)

    @precondition(lambda self: self.bench.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.bench.live) - 1))
        self.bench.abort(self.bench.live[number])

    @precondition(lambda self: self.bench.scheduler.running)
    @rule(data=st.data(), size=st.integers(1, 6), right=st.booleans())
    def draft(self, data: st.DataObject, size: int, right: bool) -> None:
        running = self.bench.scheduler.running
        sequence = running[data.draw(st.integers(0, len(running) - 1))]
        if sequence.num_pending == 1 and self.bench.cache.cuttable:
            tokens = answer(tuple(sequence.tokens), len(sequence.tokens) + size)
            truth = tokens[len(sequence.tokens) :]
            sequence.draft = truth if right else [t ^ 1 for t in truth]

    @rule(count=st.integers(1, 5), seconds=st.sampled_from([0.1, 3.0]))
    def step(self, count: int, seconds: float) -> None:
        for _ in range(count):
            self.bench.step(seconds)

    @rule(seconds=st.sampled_from([6.0, 40.0]))
    def wait(self, seconds: float) -> None:
        self.bench.now += seconds

    @invariant()
    def balanced(self) -> None:
        if hasattr(self, "bench"):
            self.bench.check()

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.bench.drain()
            cache = self.bench.cache
            assert cache.reserve(cache.num_cells, self.bench.now, pinned=True)
            assert self.bench.memory.num_used == 0


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
