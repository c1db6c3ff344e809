"""Who runs in the next step: admission by tier, chunks of prefill beside decodes, preemption.

Pure: integers in, a plan out; time is an argument. This module must not know: the model, logits,
threads, the event loop, text.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from rejoinder.engines.llama.prefix_cache import PrefixCache, common_prefix
from rejoinder.engines.llama.sequence import RANKS, Phase, Sequence
from rejoinder.types import Prompt

__all__ = ["Plan", "Scheduler", "Work"]

PRIORITY = RANKS["priority"]
DEFAULT = RANKS["default"]
FLEX = RANKS["flex"]

AGEING_SECONDS = 30.0
"""Waiting this long lifts flex to default, and earns one place among a crowd of higher tiers."""

STARVED_SECONDS = 5.0
"""A paused sequence is in a step at least this often."""

LOWER_TIERS_EVERY = 4
"""While a higher tier decodes, every so many steps are for all tiers."""

MIN_SHARED_TOKENS = 8
"""A common prefix shorter than this is not worth waiting for."""

PIN_SECONDS = 1800.0
"""How long a breakpoint or a cache key keeps its prefix after its last use (contract 4.6)."""

KEPT_BREAKPOINTS = 4
MATCHED_BREAKPOINTS = 80
"""How many of a prompt's breakpoints, the latest ones, are kept and looked for (contract 4.6)."""

GROWTH_TOKENS = 16
"""Cells left to each running sequence when another is admitted, so that it can go on a while."""


@dataclass(slots=True)
class Work:
    """One sequence's part of a step: compute `tokens` at positions `start` and on; the logits of
    the last `num_outputs` of them are wanted."""

    sequence: Sequence
    start: int
    tokens: list[int]
    num_outputs: int

    @property
    def num_draft(self) -> int:
        return max(0, self.num_outputs - 1)


@dataclass(slots=True)
class Plan:
    works: list[Work] = field(default_factory=list)
    expired: list[Sequence] = field(default_factory=list)
    """Flex sequences that waited for longer than their bound; they never started."""
    stuck: list[Sequence] = field(default_factory=list)
    """Sequences that cannot go on, alone with all cells."""


class Scheduler:
    """`max_sequences` run at once; `max_queue` of the same or a better tier may wait.

    `prefill_budget`: the most prompt tokens in a step; the engine sets it.
    """

    def __init__(
        self,
        cache: PrefixCache,
        *,
        max_sequences: int,
        max_queue: int,
        batch_size: int,
        flex_wait_seconds: float,
    ) -> None:
        self.cache = cache
        self.max_sequences = max_sequences
        self.max_queue = max_queue
        self.batch_size = batch_size
        self.flex_wait_seconds = flex_wait_seconds
        self.prefill_budget = batch_size
        self.running: list[Sequence] = []
        self._waiting: dict[int, list[Sequence]] = {rank: [] for rank in RANKS.values()}
        self._free_ids = list(reversed(range(max_sequences)))
        self._steps_of_top = 0
        self.num_preempted = 0

    # -------------------------------------------------------- in and out

    @property
    def num_waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def waiting_of(self, rank: int) -> int:
        return len(self._waiting[rank])

    @property
    def has_work(self) -> bool:
        return bool(self.running) or self.num_waiting > 0

    def has_room(self, rank: int) -> bool:
        """Whether one more sequence of this tier may wait: those of lower tiers do not count."""
        ahead = sum(len(queue) for r, queue in self._waiting.items() if r <= rank)
        free = max(0, self.max_sequences - len(self.running))
        return ahead < self.max_queue + free

    def add(self, sequence: Sequence) -> None:
        sequence.counts.prompt_tokens = sequence.prompt_length
        self._waiting[sequence.rank].append(sequence)

    def remove(self, sequence: Sequence, now: float) -> None:
        """Ends a sequence, finished or aborted; its tokens stay in the cache as its prompt says."""
        if sequence.phase is Phase.WAITING:
            self._waiting[sequence.rank].remove(sequence)
        elif sequence.phase is Phase.RUNNING:
            self._stop(sequence, now)
        sequence.phase = Phase.FINISHED

    # -------------------------------------------------------- one step

    def schedule(self, now: float) -> Plan:
        plan = Plan(expired=self._expire(now))
        self._admit(now)
        turn = self._in_turn(now)
        decoding = [s for s in turn if s.num_pending == 1]
        prefilling = [s for s in turn if s.num_pending > 1]
        room = self.batch_size
        for sequence in decoding:
            if room > 0 and sequence.phase is Phase.RUNNING:
                room -= self._plan_decode(sequence, plan, room, now)
        budget = min(room, self.prefill_budget)
        if len(prefilling) > 1:
            # A short prompt does not wait behind all of a long one.
            shortest = min(prefilling[1:], key=lambda s: s.num_pending)
            if shortest.num_pending <= budget // 4 and shortest.phase is Phase.RUNNING:
                prefilling.remove(shortest)
                prefilling.insert(0, shortest)
        for sequence in prefilling:
            if budget <= 0:
                break
            if sequence.phase is Phase.RUNNING:
                budget -= self._plan_prefill(sequence, plan, budget, now)
        if not plan.works and self.running:
            self._unblock(plan, now)
        plan.works = [w for w in plan.works if w.sequence.phase is Phase.RUNNING]
        for work in plan.works:
            work.sequence.last_scheduled = now
        return plan

    def commit(self, works: list[Work], now: float) -> None:
        """These were computed: what they added to prompts can be shared from now on."""
        for work in works:
            if work.start < work.sequence.prompt_length:
                self._publish_prompt(work.sequence, now)

    def cancel(self, work: Work) -> None:
        """The step was not computed: its cells are free again."""
        hold = work.sequence.hold
        if hold is not None:
            self.cache.truncate(hold, work.start)

    def keep(self, sequence: Sequence, length: int) -> None:
        """Of a verified draft only so many tokens are right: the cells of the others are free."""
        if sequence.hold is not None:
            self.cache.truncate(sequence.hold, length)

    # -------------------------------------------------------- admission

    def _expire(self, now: float) -> list[Sequence]:
        queue = self._waiting[FLEX]
        late = [s for s in queue if not s.started and now - s.arrived > self.flex_wait_seconds]
        for sequence in late:
            queue.remove(sequence)
            sequence.phase = Phase.FINISHED
        return late

    def _admit(self, now: float) -> None:
        if not self.num_waiting or not self._may_admit(now):
            return
        for sequence in list(self._candidates(now)):
            if not self._free_ids and not self._make_place(sequence, now):
                if sequence.rank != PRIORITY:
                    break
                continue
            limit = self._reuse_limit(sequence)
            found = self.cache.peek(sequence.prompt.cache_salt, sequence.tokens, limit)
            if self._follows(sequence, found):
                continue
            if not self._fits(sequence, found, now):
                break
            self._start(sequence, limit, now)

    def _may_admit(self, now: float) -> bool:
        """A quick look, since this is asked at each step: is there a place, or one to be made?"""
        if self._free_ids or self._aged_without_place(now) is not None:
            return True
        best = min(rank for rank, queue in self._waiting.items() if queue)
        return any(s.rank > best for s in self.running)

    def _candidates(self, now: float) -> Iterator[Sequence]:
        """Waiting sequences, best first. An aged one of a lower tier goes before everybody while
        none of the lower tiers runs."""
        aged = self._aged_without_place(now)
        if aged is not None:
            yield aged

        def key(sequence: Sequence) -> tuple[int, float, int]:
            rank = sequence.rank
            if rank > DEFAULT and now - sequence.arrived > AGEING_SECONDS:
                rank = DEFAULT
            return rank, sequence.arrived, sequence.number

        queues = [sorted(queue, key=key) for queue in self._waiting.values() if queue]
        for sequence in heapq.merge(*queues, key=key):
            if sequence is not aged:
                yield sequence

    def _aged_without_place(self, now: float) -> Sequence | None:
        if any(s.rank > PRIORITY for s in self.running):
            return None
        waiting = [s for rank in (DEFAULT, FLEX) for s in self._waiting[rank]]
        oldest = min(waiting, key=lambda s: (s.arrived, s.number), default=None)
        if oldest is not None and now - oldest.arrived > AGEING_SECONDS:
            return oldest
        return None

    def _make_place(self, sequence: Sequence, now: float) -> bool:
        """Preempts one of a lower tier for a sequence id; not the last that has aged."""
        lower = [s for s in self.running if s.rank > sequence.rank]
        if self._aged_without_place(now) is sequence and not lower:
            lower = [s for s in self.running if s is not sequence]
        elif len(lower) == 1 and now - lower[0].arrived > AGEING_SECONDS:
            return False
        if not lower:
            return False
        self.preempt(self._worst(lower), now)
        return True

    def _reuse_limit(self, sequence: Sequence) -> int:
        """How much of the cache the sequence may use: its last token is always computed, and in
        explicit mode only whole prefixes up to a breakpoint are reused (contract 4.6)."""
        limit = len(sequence.tokens) - 1
        prompt = sequence.prompt
        if not prompt.cache_explicit or sequence.started or self._has_sibling(sequence):
            return limit
        found = self.cache.peek(prompt.cache_salt, sequence.tokens, limit)
        looked_at = sorted(set(prompt.cache_breakpoints))[-MATCHED_BREAKPOINTS:]
        return max((b for b in looked_at if 0 < b <= found), default=0)

    def _has_sibling(self, sequence: Sequence) -> bool:
        """Choices of one request have the same prompt object; they share in every mode."""
        return any(s.prompt is sequence.prompt for s in self.running)

    def _follows(self, sequence: Sequence, found: int) -> bool:
        """Whether a running sequence is about to compute more of this prompt than is known."""
        prompt = sequence.prompt
        for leader in self.running:
            if (
                leader.prefilling
                and leader.rank <= sequence.rank
                and leader.prompt.cache_salt == prompt.cache_salt
                and (not prompt.cache_explicit or leader.prompt is prompt)
            ):
                end = min(leader.prompt_length, len(sequence.tokens) - 1)
                shared = common_prefix(leader.prompt.token_ids, prompt.token_ids, 0, end)
                if not self.cache.cuttable and shared < leader.prompt_length - 1:
                    continue
                if shared >= MIN_SHARED_TOKENS and shared > max(found, leader.num_computed):
                    return True
        return False

    def _fits(self, sequence: Sequence, found: int, now: float) -> bool:
        """Whether its whole prompt fits beside what the running ones still need soon. With
        nothing running it always fits: everything idle can be evicted for it."""
        if not self.running:
            return True
        promised = sum(max(s.num_pending, GROWTH_TOKENS) for s in self.running)
        need = len(sequence.tokens) - found + GROWTH_TOKENS
        cache = self.cache
        available = cache.num_free + cache.num_reclaimable(now) - found
        if need + promised <= available:
            return True
        lower = [s for s in self.running if s.rank > sequence.rank]
        if not lower:
            return False
        self.preempt(self._worst(lower), now)
        return self._fits(sequence, found, now)

    def _start(self, sequence: Sequence, limit: int, now: float) -> None:
        self._waiting[sequence.rank].remove(sequence)
        sequence_id = self._free_ids.pop()
        sequence.hold = self.cache.acquire(
            sequence_id, sequence.prompt.cache_salt, sequence.tokens, limit, now
        )
        if not sequence.started:
            sequence.counts.cached_tokens = sequence.hold.length
        sequence.started = True
        sequence.phase = Phase.RUNNING
        self.running.append(sequence)

    # -------------------------------------------------------- choosing work

    def _in_turn(self, now: float) -> list[Sequence]:
        """The running sequences of this step, best tier and first come first."""
        ordered = sorted(self.running, key=lambda s: (s.rank, s.arrived, s.number))
        if not ordered or ordered[0].rank == ordered[-1].rank:
            self._steps_of_top = 0
            return ordered
        top = [s for s in ordered if s.rank == ordered[0].rank]
        self._steps_of_top += 1
        if self._steps_of_top >= LOWER_TIERS_EVERY and not any(s.prefilling for s in top):
            self._steps_of_top = 0
            return ordered
        starved = [
            s
            for s in ordered
            if s.rank > ordered[0].rank and now - s.last_scheduled > STARVED_SECONDS
        ]
        return top + starved

    def _plan_decode(self, sequence: Sequence, plan: Plan, room: int, now: float) -> int:
        draft = sequence.draft[: room - 1]
        while not self.cache.reserve(1 + len(draft), now):
            if draft:
                draft = []
                continue
            victim = self._worst(self.running)
            if victim is sequence and len(self.running) == 1:
                self.cache.reserve(1, now, pinned=True)
                break
            self._withdraw(victim, plan)
            self.preempt(victim, now)
            if victim is sequence:
                return 0
        tokens = [sequence.tokens[-1], *draft]
        self._take(sequence, tokens, len(tokens), plan)
        return len(tokens)

    def _plan_prefill(self, sequence: Sequence, plan: Plan, budget: int, now: float) -> int:
        count = min(sequence.num_pending, budget)
        if not self.cache.reserve(count, now):
            count = min(count, self.cache.num_free)
        if count <= 0:
            return 0
        start = sequence.num_computed
        known = sequence.prompt_length - 1  # as much as an equal prompt can reuse
        if not self.cache.cuttable and start < known < start + count:
            count = known - start
        tokens = sequence.tokens[start : start + count]
        last = start + count == len(sequence.tokens)
        self._take(sequence, tokens, int(last), plan)
        return count

    def _take(self, sequence: Sequence, tokens: list[int], num_outputs: int, plan: Plan) -> None:
        hold = sequence.hold
        assert hold is not None
        plan.works.append(Work(sequence, hold.length, tokens, num_outputs))
        self.cache.advance(hold, len(tokens))

    def _unblock(self, plan: Plan, now: float) -> None:
        """Nobody can go on for want of cells: the worst gives up its own, again and again."""
        while not plan.works and self.running:
            best = min(self.running, key=lambda s: (s.rank, s.arrived, s.number))
            if len(self.running) == 1:
                self.cache.reserve(best.num_pending, now, pinned=True)
            else:
                self.preempt(self._worst(self.running), now)
            self._plan_prefill(best, plan, self.batch_size, now)
            if len(self.running) == 1 and not plan.works:
                self.remove(best, now)
                plan.stuck.append(best)

    # -------------------------------------------------------- preemption

    @staticmethod
    def _worst(sequences: list[Sequence]) -> Sequence:
        return max(sequences, key=lambda s: (s.rank, s.arrived, s.number))

    def _withdraw(self, sequence: Sequence, plan: Plan) -> None:
        """Takes a sequence out of a step that is being planned."""
        for work in plan.works:
            if work.sequence is sequence:
                self.cancel(work)
                plan.works.remove(work)
                return

    def preempt(self, sequence: Sequence, now: float) -> None:
        """Back to waiting. Its cells become idle prefixes: it resumes with them, from host
        memory, or by computing them again."""
        self._stop(sequence, now)
        sequence.phase = Phase.WAITING
        self._waiting[sequence.rank].append(sequence)
        self.num_preempted += 1

    def _stop(self, sequence: Sequence, now: float) -> None:
        hold = sequence.hold
        assert hold is not None
        if hold.length:
            self._publish_prompt(sequence, now)
            if not sequence.prompt.cache_explicit:
                self.cache.publish(hold, sequence.tokens, hold.length, now, keep=True)
        self.cache.release(hold, now)
        self._free_ids.append(hold.sequence_id)
        sequence.hold = None
        self.running.remove(sequence)

    def _publish_prompt(self, sequence: Sequence, now: float) -> None:
        """Shares what is computed of the prompt; breakpoints are kept and pinned, the rest is
        kept unless the prompt is explicit about it (contract 4.6)."""
        hold, prompt = sequence.hold, sequence.prompt
        assert hold is not None
        done = min(hold.length, sequence.prompt_length)
        if not self.cache.cuttable and done != sequence.prompt_length - 1:
            return
        points = _points_to_keep(prompt)
        written = 0
        for point in points:
            if hold.shared < point <= done:
                written += self.cache.publish(hold, sequence.tokens, point, now, keep=True)
        if hold.shared < done:
            keep = not prompt.cache_explicit
            written += self.cache.publish(hold, sequence.tokens, done, now, keep=keep)
        if done == sequence.prompt_length:
            for point in points:
                self.cache.pin(hold, point, now + PIN_SECONDS, now)
        counts = sequence.counts
        most = sequence.prompt_length - counts.cached_tokens
        counts.cache_write_tokens = min(most, counts.cache_write_tokens + written)


def _points_to_keep(prompt: Prompt) -> list[int]:
    """Lengths of the prefixes to pin. Implicit mode has one of its own, the prompt's end, which
    is pinned for a cache key only: other prompts take their chance with the least recently used."""
    points = sorted({b for b in prompt.cache_breakpoints if 0 < b <= len(prompt.token_ids)})
    if prompt.cache_explicit:
        return points[-KEPT_BREAKPOINTS:]
    own = [len(prompt.token_ids)] if prompt.cache_key else []
    return sorted({*points[-(KEPT_BREAKPOINTS - 1) :], *own})
