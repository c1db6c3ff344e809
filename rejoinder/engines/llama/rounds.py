"""Sampling one step: rows of logits → the tokens of each sequence, with its draft verified.

In rounds: every sequence's first row, then the next ones of those whose draft was right so far.
This module must not know: the scheduler, the cache, who reads.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from rejoinder.engines.llama.generation import Generation
from rejoinder.engines.llama.sampler import sample
from rejoinder.engines.llama.scheduler import Work
from rejoinder.errors import ChatError, EngineFailed
from rejoinder.types import EngineFinishReason, Step, TokenIdLogprob

__all__ = ["Sampled", "sample_step"]


class Sampled:
    """One sequence's part of a step. `num_generated` counts a stop token too, which is not among
    `token_ids`; `num_accepted`: tokens of the draft that were right."""

    __slots__ = (
        "error",
        "finish_reason",
        "generation",
        "logprobs",
        "num_accepted",
        "num_generated",
        "row",
        "token_ids",
        "work",
    )

    def __init__(self, work: Work, generation: Generation, row: int) -> None:
        self.work = work
        self.generation = generation
        self.row = row
        """Of the logits: what follows the last token that is right so far."""
        self.token_ids: list[int] = []
        self.logprobs: list[TokenIdLogprob] = []
        self.finish_reason: EngineFinishReason | None = None
        self.error: ChatError | None = None
        self.num_generated = 0
        self.num_accepted = 0

    def step(self) -> Step:
        asked = self.generation.params.num_top_logprobs is not None
        logprobs = tuple(self.logprobs) if asked else None
        return Step(tuple(self.token_ids), logprobs, self.finish_reason)

    def take(self, token_id: int, logprob: TokenIdLogprob | None) -> bool:
        """A token was sampled: says whether the draft had it, so that its next row counts too.
        Raises ChatError."""
        self._append(token_id, logprob)
        if self.finish_reason is not None:
            return False
        work, number = self.work, self.num_accepted
        if number < work.num_draft and work.tokens[number - work.num_draft] == token_id:
            self.num_accepted += 1
            self.row += 1
            return True
        if self.generation.params.num_top_logprobs is None:
            self._force()
        return False

    def _append(self, token_id: int, logprob: TokenIdLogprob | None) -> None:
        generation = self.generation
        self.finish_reason = generation.append(token_id)
        self.num_generated += 1
        if self.finish_reason != "stop" or token_id not in generation.stop_ids:
            self.token_ids.append(token_id)
            if logprob is not None:
                self.logprobs.append(logprob)

    def _force(self) -> None:
        """Appends the tokens that the grammar leaves no choice about; they are computed with the
        next step, like a prompt."""
        if self.generation.constraint is not None:
            for token_id in self.generation.constraint.forced():
                self._append(token_id, None)
                if self.finish_reason is not None:
                    return


def sample_step(
    works: list[Work], generations: Mapping[int, Generation], logits: npt.NDArray[np.float32]
) -> list[Sampled]:
    """What the step came to for each sequence that wanted logits, an error included."""
    every: list[Sampled] = []
    row = 0
    for work in works:
        if work.num_outputs:
            generation = generations[work.sequence.number]
            if work.num_draft:
                generation.tried(work.num_draft)
            every.append(Sampled(work, generation, row))
            row += work.num_outputs
    active = every
    while active:
        whole = len(active) == len(logits)
        active = _sample_round(active, logits if whole else logits[[one.row for one in active]])
    return every


def _sample_round(active: list[Sampled], logits: npt.NDArray[np.float32]) -> list[Sampled]:
    """One token for each; gives those that have another in the next round."""
    generations = [one.generation for one in active]
    constrained = any(g.constraint is not None for g in generations)
    masks = [_mask(g) for g in generations] if constrained else None
    ids, logprobs, failed = sample(logits, [g.sampler for g in generations], masks)
    more: list[Sampled] = []
    for i, one in enumerate(active):
        if i in failed:
            one.error = _why_nothing_follows(one.generation)
            continue
        try:
            if one.take(ids[i], logprobs[i]):
                more.append(one)
        except ChatError as error:
            one.error = error
    return more


def _mask(generation: Generation) -> npt.NDArray[np.int32] | None:
    return generation.constraint.mask() if generation.constraint is not None else None


def _why_nothing_follows(generation: Generation) -> ChatError:
    """A grammar that has hit its limits allows no token, and says so when asked."""
    if generation.constraint is not None:
        try:
            generation.constraint.forced()
        except ChatError as error:
            return error
    return EngineFailed("No token can follow here.")
