"""One running generation: what the scheduler need not know of it, and its way to who reads.

The sampler, the grammar, the drafts and the limits of a sequence, and the stream of its steps.
This module must not know: the model, the cache, other sequences.
"""

import asyncio
from asyncio import AbstractEventLoop
from typing import TypeAlias

from rejoinder.engines.llama.constraint import Constraint
from rejoinder.engines.llama.drafts import LookupDraft, PredictionDraft, StepCost, draft_length
from rejoinder.engines.llama.sampler import Sampler
from rejoinder.engines.llama.sequence import Sequence
from rejoinder.types import EngineFinishReason, SamplingParams, Step, TokenIdLogprob

__all__ = ["Generation", "Item", "Stream"]


Item: TypeAlias = "Step | Exception"


class Stream:
    """The way of one sequence's steps from the engine's thread to the event loop.

    `put` runs in the event loop. A slow reader finds its steps merged into one.
    """

    __slots__ = ("_error", "_finish", "_ids", "_logprobs", "_wake", "closed", "loop")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self.loop = loop
        self.closed = False
        self._ids: list[int] = []
        self._logprobs: list[TokenIdLogprob] | None = None
        self._finish: EngineFinishReason | None = None
        self._error: Exception | None = None
        self._wake = asyncio.Event()

    def put(self, item: Item) -> None:
        if isinstance(item, Step):
            self._ids.extend(item.token_ids)
            if item.logprobs is not None:
                self._logprobs = [*(self._logprobs or ()), *item.logprobs]
            self._finish = item.finish_reason
        else:
            self._error = item
        self._wake.set()

    async def next(self) -> Step:
        """The tokens since the last call. Raises what ended the sequence."""
        await self._wake.wait()
        self._wake.clear()
        if self._ids or self._finish is not None:
            logprobs = tuple(self._logprobs) if self._logprobs is not None else None
            step = Step(tuple(self._ids), logprobs, self._finish)
            self._ids, self._logprobs = [], None
            if self._error is not None:
                self._wake.set()
            return step
        assert self._error is not None
        raise self._error


class Generation:
    """One sequence with all that the scheduler does not need to know of it."""

    __slots__ = (
        "constraint",
        "drafts_prediction",
        "lookup",
        "num_generated",
        "params",
        "prediction",
        "sampler",
        "sequence",
        "stop_ids",
        "stream",
    )

    def __init__(
        self,
        sequence: Sequence,
        params: SamplingParams,
        stream: Stream,
        constraint: Constraint | None,
        end_token_ids: frozenset[int],
        vocab_size: int,
    ) -> None:
        self.sequence = sequence
        self.params = params
        self.stream = stream
        self.constraint = constraint
        self.sampler = Sampler(params, sequence.prompt.token_ids, vocab_size=vocab_size)
        self.stop_ids = end_token_ids.union(params.stop_token_ids)
        self.num_generated = 0
        self.prediction = PredictionDraft(params.prediction) if params.prediction else None
        self.lookup: LookupDraft | None = None
        self.drafts_prediction = False
        """The draft of the next step is of the prediction."""

    @property
    def num_completion_tokens(self) -> int:
        """Rejected prediction tokens are completion tokens, for the limit too (contract 4.3)."""
        rejected = self.prediction.num_rejected if self.prediction is not None else 0
        return self.num_generated + rejected

    def write_draft(self, cost: StepCost, num_decoding: int) -> None:
        """Guesses for the next step, as many as pay; a prediction before the text so far. Even
        if all were wrong there is room for the right token behind them."""
        sequence = self.sequence
        room = min(
            self.params.max_tokens - self.num_completion_tokens,
            sequence.max_length - len(sequence.tokens),
        )
        sequence.draft = []
        for source in (self.prediction, self.lookup):
            if source is not None and source.position is not None and not sequence.draft:
                most = draft_length(source.hit_rate, cost, num_decoding)
                sequence.draft = source.propose(min(most, room - 1))
                self.drafts_prediction = source is self.prediction

    def tried(self, num_draft: int) -> None:
        """So many tokens of the draft were computed: those of a prediction count."""
        if self.prediction is not None and self.drafts_prediction:
            self.prediction.tried(num_draft)

    def count(self) -> None:
        """Brings the counts up to date; after the stream was closed they are final."""
        if self.stream.closed:
            return
        counts = self.sequence.counts
        counts.completion_tokens = self.num_completion_tokens
        if self.prediction is not None:
            counts.accepted_prediction_tokens = self.prediction.num_accepted
            counts.rejected_prediction_tokens = self.prediction.num_rejected

    def append(self, token_id: int) -> EngineFinishReason | None:
        """A token was generated: says whether it is the last. A stop token is counted but does
        not become part of the sequence."""
        self.num_generated += 1
        if token_id in self.stop_ids:
            return "stop"
        self.sampler.accept(token_id)
        self.sequence.tokens.append(token_id)
        for source in (self.prediction, self.lookup):
            if source is not None:
                source.feed(token_id)
        if self.constraint is not None:
            self.constraint.advance(token_id)
            if self.constraint.ended:
                return "stop"
        if self.num_completion_tokens >= self.params.max_tokens:
            return "length"
        if len(self.sequence.tokens) >= self.sequence.max_length:
            return "length"
        return None
