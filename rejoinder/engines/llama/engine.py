"""The embedded engine: one thread that owns the model, and generators that read from it.

The thread: commands → schedule → one decode → sample → deliver, with one wake-up of the event
loop a step. This module must not know: text, JSON, templates, accounts.
"""

import asyncio
import logging
import math
import queue
import threading
import time
from asyncio import AbstractEventLoop
from collections.abc import AsyncGenerator, Callable
from typing import TypeAlias

from msgspec import Struct

from rejoinder.engines.llama.constraint import ConstraintCompiler
from rejoinder.engines.llama.drafts import LookupDraft, StepCost
from rejoinder.engines.llama.exact_cache import ExactCache
from rejoinder.engines.llama.generation import Generation, Item, Stream
from rejoinder.engines.llama.model import (
    MAX_SEQUENCE_IDS,
    BatchFailed,
    Interrupted,
    LlamaModel,
    LlamaTokenizer,
)
from rejoinder.engines.llama.prefix_cache import PrefixCache
from rejoinder.engines.llama.rounds import Sampled, sample_step
from rejoinder.engines.llama.scheduler import Scheduler, Work
from rejoinder.engines.llama.sequence import RANKS, Phase, Sequence
from rejoinder.engines.llama.threads import ThreadGovernor, available_cores
from rejoinder.errors import (
    ContextLengthExceeded,
    EngineFailed,
    InvalidParameter,
    Overloaded,
)
from rejoinder.types import Counts, Prompt, SamplingParams, Step

__all__ = ["EngineStats", "LlamaEngine"]

log = logging.getLogger(__name__)

BATCH_SIZE = 512
STEP_SECONDS = 0.15
"""How long a step with prefill may take while others decode: what a running stream can stall."""

MIN_NODE_IDS = 16
"""Sequence ids that are left to the prefix cache however many sequences run."""

MAX_SPECULATING = 4
"""With more sequences running a guess saves too little to be looked for."""

LOOKUP_AFTER = 8
"""Generated tokens before the text so far is indexed: short answers never need it."""

CLOSED_MESSAGE = "The engine was closed."


class EngineStats(Struct, frozen=True, kw_only=True):
    """A snapshot for metrics. Totals count from the start; units: tokens, cells, seconds."""

    running: int
    waiting: dict[str, int]
    cells_used: int
    cells_total: int
    snapshot_bytes: int
    prompt_tokens: int
    cached_tokens: int
    prefill_tokens: int
    generated_tokens: int
    drafted_tokens: int
    accepted_draft_tokens: int
    preempted: int
    interrupted: int
    """Steps of lower tiers that were broken off for a request of a better one."""
    steps: int
    decode_seconds: float
    own_seconds: float
    """CPU time of the engine's thread outside of llama_decode."""
    threads: int


class _Totals(Struct):
    """What the engine's thread counts."""

    steps: int = 0
    interrupted: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefill_tokens: int = 0
    generated_tokens: int = 0
    drafted_tokens: int = 0
    accepted_draft_tokens: int = 0
    decode_seconds: float = 0.0
    own_seconds: float = 0.0


_Command: TypeAlias = "tuple[str, Generation | None]"


class LlamaEngine:
    """Implements `rejoinder.types.Engine` on one GGUF model. Loading blocks: make it in a thread.

    `context_length`: KV cells, shared by all sequences; `threads` 0: what the machine has to
    spare; `snapshot_bytes`: host memory for prefixes that no longer fit the cells.
    Raises InvalidRequest when the model cannot be loaded.
    """

    def __init__(
        self,
        *,
        path: str,
        context_length: int = 8192,
        max_sequences: int = 32,
        threads: int = 0,
        max_queue: int = 256,
        flex_wait_seconds: float = 600.0,
        snapshot_bytes: int = 268_435_456,
        speculation: str = "auto",
        unpack_weights: str = "auto",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        max_sequences = min(max_sequences, MAX_SEQUENCE_IDS - MIN_NODE_IDS)
        self._model = LlamaModel(
            path,
            num_cells=context_length,
            num_sequences=max_sequences,
            num_threads=threads or available_cores(),
            batch_size=BATCH_SIZE,
            unpack=unpack_weights != "off",
        )
        model = self._model
        self._governor = None if threads else ThreadGovernor(model.num_threads)
        self._cache = self._make_cache(max_sequences, snapshot_bytes)
        self._scheduler = Scheduler(
            self._cache,
            max_sequences=max_sequences,
            max_queue=max_queue,
            batch_size=model.batch_size,
            flex_wait_seconds=flex_wait_seconds,
        )
        self._context_length = min(context_length, model.trained_context_length)
        self._vocab_size = model.vocab_size
        self._generations: dict[int, Generation] = {}
        self._inbox: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._outbox: dict[AbstractEventLoop, list[tuple[Stream, Item]]] = {}
        self._totals = _Totals()
        self._numbers = 0
        self._compiler: ConstraintCompiler | None = None
        self._compiler_lock = threading.Lock()
        self._closing = False
        self._failure: BaseException | None = None
        self._prefill_speed = 0.0
        self._cost = StepCost()
        self._speculates = speculation != "off"
        self._finished_at: list[float] = []
        self._yields_to = 0
        """A new sequence of a lower rank than this breaks off the step that runs."""
        self._owed: set[int] = set()
        """Tiers that lost a step to a better one and have had none since."""
        self._thread = threading.Thread(target=self._run, name="llama-engine", daemon=True)
        self._thread.start()

    def _make_cache(self, max_sequences: int, snapshot_bytes: int) -> PrefixCache:
        model = self._model
        if not model.trimmable:
            return ExactCache(model, num_cells=model.num_cells, snapshot_bytes=snapshot_bytes)
        return PrefixCache(
            model,
            num_cells=model.num_cells,
            memory_ids=range(max_sequences, model.num_sequence_ids),
            snapshot_bytes=snapshot_bytes,
            idle_cells=model.idle_cells,
        )

    # -------------------------------------------------------- what the engine is

    @property
    def context_length(self) -> int:
        return self._context_length

    @property
    def fingerprint(self) -> str:
        return self._model.fingerprint

    @property
    def tokenizer(self) -> LlamaTokenizer:
        return self._model.tokenizer

    @property
    def chat_template(self) -> str | None:
        """The template in the model's own metadata."""
        return self._model.chat_template

    @property
    def alive(self) -> bool:
        return self._failure is None and self._thread.is_alive()

    @property
    def failure(self) -> str | None:
        """Why the engine cannot serve any more, or None."""
        if self._failure is not None:
            return str(self._failure) or type(self._failure).__name__
        return None if self._thread.is_alive() else CLOSED_MESSAGE

    def stats(self) -> EngineStats:
        scheduler, cache, totals = self._scheduler, self._cache, self._totals
        return EngineStats(
            running=len(scheduler.running),
            waiting={tier: scheduler.waiting_of(rank) for tier, rank in RANKS.items()},
            cells_used=cache.num_used,
            cells_total=cache.num_cells,
            snapshot_bytes=cache.num_snapshot_bytes,
            prompt_tokens=totals.prompt_tokens,
            cached_tokens=totals.cached_tokens,
            prefill_tokens=totals.prefill_tokens,
            generated_tokens=totals.generated_tokens,
            drafted_tokens=totals.drafted_tokens,
            accepted_draft_tokens=totals.accepted_draft_tokens,
            preempted=scheduler.num_preempted,
            interrupted=totals.interrupted,
            steps=totals.steps,
            decode_seconds=totals.decode_seconds,
            own_seconds=totals.own_seconds,
            threads=self._governor.threads if self._governor else self._model.num_threads,
        )

    # -------------------------------------------------------- in the event loop

    async def generate(
        self, prompt: Prompt, params: SamplingParams, counts: Counts
    ) -> AsyncGenerator[Step, None]:
        """One sequence. Raises ContextLengthExceeded or InvalidParameter before any work,
        Overloaded when the queue is full or flex waited too long, EngineFailed."""
        self._check(prompt)
        if params.max_tokens <= 0:
            counts.prompt_tokens = len(prompt.token_ids)
            yield Step((), () if params.num_top_logprobs is not None else None, "length")
            return
        constraint = None
        if params.grammar is not None:
            compiler = await asyncio.to_thread(self._get_compiler)
            constraint = await compiler.prepare(params.grammar)
        stream = Stream(asyncio.get_running_loop())
        self._numbers += 1
        sequence = Sequence(
            self._numbers,
            prompt,
            counts,
            tier=params.tier,
            max_length=self._context_length,
            arrived=self._clock(),
        )
        generation = Generation(
            sequence,
            params,
            stream,
            constraint,
            self.tokenizer.end_token_ids,
            self._vocab_size,
        )
        if not self.alive:
            raise EngineFailed(self.failure or CLOSED_MESSAGE)
        self._inbox.put(("add", generation))
        if sequence.rank < self._yields_to:
            self._model.interrupt()
        finished = False
        try:
            while not finished:
                step = await stream.next()
                finished = step.finish_reason is not None
                yield step
        finally:
            stream.closed = True
            if not finished:
                self._inbox.put(("abort", generation))

    def _check(self, prompt: Prompt) -> None:
        ids = prompt.token_ids
        if not ids:
            raise InvalidParameter("The prompt has no tokens.", param="messages")
        if len(ids) >= self._context_length:
            raise ContextLengthExceeded(
                f"This model's maximum context length is {self._context_length} tokens, but the "
                f"messages have {len(ids)}; at least one more is needed for the answer.",
                param="messages",
            )
        if min(ids) < 0 or max(ids) >= self._vocab_size:
            raise InvalidParameter(
                f"A token id is outside of the vocabulary of {self._vocab_size}.", param="messages"
            )

    def _get_compiler(self) -> ConstraintCompiler:
        with self._compiler_lock:
            if self._compiler is None:
                self._compiler = ConstraintCompiler.of(self.tokenizer, self._vocab_size)
            return self._compiler

    async def close(self) -> None:
        """Ends the thread and frees the model; running generators end with an error."""
        if not self._closing:
            self._closing = True
            self._inbox.put(("close", None))
        await asyncio.to_thread(self._thread.join)
        if self._compiler is not None:
            self._compiler.close()
        self._model.close()

    # -------------------------------------------------------- in the engine's thread

    def _run(self) -> None:
        try:
            while self._take_commands():
                self._step()
                self._deliver()
            self._fail_all(CLOSED_MESSAGE)
        except BaseException as error:  # a panic of the grammar library is no Exception
            log.exception("the engine's thread died")
            self._failure = error
            self._fail_all("The engine has failed.")
        self._deliver()

    def _take_commands(self) -> bool:
        """Takes what came since the last step; waits while there is nothing to do. False: end."""
        wait = not self._scheduler.has_work
        while True:
            try:
                command, generation = self._inbox.get(block=wait)
            except queue.Empty:
                return True
            wait = False
            if generation is None:
                return False
            if command == "add":
                self._add(generation)
            else:
                self._end(generation)
            if self._inbox.empty():
                wait = not self._scheduler.has_work
                self._deliver()

    def _add(self, generation: Generation) -> None:
        sequence = generation.sequence
        if generation.stream.closed:
            return
        if not self._scheduler.has_room(sequence.rank):
            self._send(
                generation,
                Overloaded(
                    "Too many requests are waiting for this model.",
                    retry_after=self._retry_after(),
                ),
            )
            return
        self._generations[sequence.number] = generation
        self._totals.prompt_tokens += sequence.prompt_length
        self._scheduler.add(sequence)

    def _retry_after(self) -> int:
        """Whole seconds until about half of those that wait have had their turn."""
        recent = self._finished_at
        if len(recent) < 2 or recent[-1] <= recent[0]:
            return 5
        per_second = (len(recent) - 1) / (recent[-1] - recent[0])
        return max(1, min(60, math.ceil(self._scheduler.num_waiting / 2 / per_second)))

    def _end(self, generation: Generation) -> None:
        """Takes a generation out, finished or aborted; a second time does nothing."""
        sequence = generation.sequence
        if self._generations.pop(sequence.number, None) is not None:
            if sequence.phase is not Phase.FINISHED:
                self._scheduler.remove(sequence, self._clock())
            self._totals.cached_tokens += sequence.counts.cached_tokens
            self._finished_at = [*self._finished_at[-31:], self._clock()]

    def _fail(self, generation: Generation, error: Exception) -> None:
        self._send(generation, error)
        self._end(generation)

    def _fail_all(self, message: str) -> None:
        while True:
            try:
                _, generation = self._inbox.get(block=False)
            except queue.Empty:
                break
            if generation is not None:
                self._send(generation, EngineFailed(message))
        for generation in list(self._generations.values()):
            self._send(generation, EngineFailed(message))

    def _send(self, generation: Generation, item: Item) -> None:
        stream = generation.stream
        if not stream.closed:
            self._outbox.setdefault(stream.loop, []).append((stream, item))

    def _deliver(self) -> None:
        """One wake-up of each event loop for all that this step brought."""
        if not self._outbox:
            return
        outbox, self._outbox = self._outbox, {}
        for loop, items in outbox.items():
            try:
                loop.call_soon_threadsafe(_put_all, items)
            except RuntimeError:  # the loop is closed: nobody reads any more
                for stream, _ in items:
                    stream.closed = True

    # -------------------------------------------------------- one step

    def _step(self) -> None:
        began = time.thread_time()
        self._scheduler.prefill_budget = self._prefill_budget()
        self._draft()
        plan = self._scheduler.schedule(self._clock())
        for sequence in plan.expired:
            self._fail(
                self._generations[sequence.number],
                Overloaded(
                    "There was no capacity for the flex tier in time.",
                    code="resource_unavailable",
                    retry_after=self._retry_after(),
                ),
            )
        for sequence in plan.stuck:
            self._fail(
                self._generations[sequence.number],
                EngineFailed("The engine has too few cells for this sequence."),
            )
        if not plan.works:
            return
        self._totals.own_seconds += time.thread_time() - began
        self._compute(plan.works)
        self._totals.steps += 1

    def _draft(self) -> None:
        """Drafts for the sequences that decode, where they pay."""
        if not self._model.trimmable:
            return
        running = self._scheduler.running
        for sequence in running:
            generation = self._generations[sequence.number]
            if self._speculates and generation.lookup is None:
                few = len(running) <= MAX_SPECULATING
                if few and len(sequence.tokens) >= sequence.prompt_length + LOOKUP_AFTER:
                    generation.lookup = LookupDraft(sequence.tokens)
            if generation.prediction is not None or generation.lookup is not None:
                generation.write_draft(self._cost, len(running))

    def _prefill_budget(self) -> int:
        """Tokens that the machine computes in STEP_SECONDS."""
        if not self._prefill_speed:
            return 64
        return max(16, min(BATCH_SIZE, int(self._prefill_speed * STEP_SECONDS)))

    def _compute(self, works: list[Work]) -> None:
        """Decodes and samples one batch; halves it when it fails, so that one bad sequence fails
        alone."""
        tokens: list[int] = []
        positions: list[int] = []
        ids: list[int] = []
        outputs: list[bool] = []
        for work in works:
            count = len(work.tokens)
            hold = work.sequence.hold
            assert hold is not None
            tokens += work.tokens
            positions += range(work.start, work.start + count)
            ids += [hold.sequence_id] * count
            outputs += [False] * (count - work.num_outputs) + [True] * work.num_outputs
        cpu, began = time.process_time(), time.perf_counter()
        ranks = {work.sequence.rank for work in works}
        self._yields_to = self._who_need_not_wait(ranks)
        try:
            logits = self._model.decode(tokens, positions, ids, outputs)
        except Interrupted:
            self._give_up(works, ranks)
            return
        except BatchFailed as error:
            self._halve(works, error)
            return
        finally:
            self._yields_to = 0
        self._owed -= ranks
        seconds = time.perf_counter() - began
        self._govern(time.process_time() - cpu, seconds)
        self._measure(len(tokens), len(works), seconds)
        if all(outputs):
            self._cost.record(len(tokens), seconds)
        began = time.thread_time()
        self._scheduler.commit(works, self._clock())
        for sampled in sample_step(works, self._generations, logits):
            self._settle(sampled)
        self._totals.own_seconds += time.thread_time() - began

    def _settle(self, sampled: Sampled) -> None:
        """What a step came to for one sequence: rejected cells are free, the reader gets it."""
        work, generation = sampled.work, sampled.generation
        sequence = work.sequence
        self._totals.generated_tokens += sampled.num_generated
        if work.num_draft:
            self._totals.drafted_tokens += work.num_draft
            self._totals.accepted_draft_tokens += sampled.num_accepted
            length = work.start + len(work.tokens) - work.num_draft + sampled.num_accepted
            self._scheduler.keep(sequence, length)
        generation.count()
        if sampled.token_ids or sampled.finish_reason is not None:
            self._send(generation, sampled.step())
        if sampled.error is not None:
            self._fail(generation, sampled.error)
        elif sampled.finish_reason is not None:
            self._end(generation)

    def _who_need_not_wait(self, ranks: set[int]) -> int:
        """Tiers better than the best in the step. But what was given up once is then computed to
        its end, so that lower tiers get on; and memory that cannot be cut cannot forget a part of
        a step."""
        if self._owed & ranks or not self._model.trimmable:
            return 0
        return min(ranks)

    def _give_up(self, works: list[Work], ranks: set[int]) -> None:
        """The step did not happen: its tokens are computed again when their turn comes."""
        self._owed |= ranks
        self._totals.interrupted += 1
        for work in works:
            self._scheduler.cancel(work)

    def _halve(self, works: list[Work], error: BatchFailed) -> None:
        log.warning("a batch of %d sequences failed: %s", len(works), error)
        if len(works) > 1:
            middle = len(works) // 2
            self._compute(works[:middle])
            self._compute(works[middle:])
            return
        work = works[0]
        self._scheduler.cancel(work)
        self._fail(
            self._generations[work.sequence.number],
            EngineFailed("The engine could not compute this sequence."),
        )

    def _govern(self, cpu_seconds: float, seconds: float) -> None:
        governor = self._governor
        if governor is not None:
            before = governor.threads
            governor.record(cpu_seconds, seconds, self._clock())
            if governor.threads != before:
                self._model.use_threads(governor.threads)

    def _measure(self, num_tokens: int, num_sequences: int, seconds: float) -> None:
        self._totals.decode_seconds += seconds
        if num_tokens > num_sequences:
            self._totals.prefill_tokens += num_tokens - num_sequences
        if num_tokens >= 16 and seconds > 0:
            speed = num_tokens / seconds
            known = self._prefill_speed
            self._prefill_speed = speed if not known else known + (speed - known) * 0.2


def _put_all(items: list[tuple[Stream, Item]]) -> None:
    for stream, item in items:
        stream.put(item)
