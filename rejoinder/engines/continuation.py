"""One sequence over the engines that work on it in turn: what went out, what is left, what it cost.

Sans-IO. It decides how a sequence that has begun may go on elsewhere so that the client cannot
tell, and refuses where it would. It must not know: which engine is chosen, health, time.
"""

import hashlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol, runtime_checkable

import msgspec

from rejoinder.errors import ProviderFailed
from rejoinder.types import Counts, Engine, Prompt, SamplingParams, Step


class Diverged(ProviderFailed):
    """An engine that was asked for a sequence again has written another one. It did no wrong."""


@runtime_checkable
class ResumingEngine(Protocol):
    """An engine that can take tokens generated elsewhere as its own output so far.

    `resumes_grammar`, `resumes_penalties`: what follows from them is restored too. `resume` gets
    the sequence's own params with the remaining `max_tokens`, and its own seed.
    """

    resumes_grammar: bool
    resumes_penalties: bool

    def resume(
        self, prompt: Prompt, generated: tuple[int, ...], params: SamplingParams, counts: Counts
    ) -> AsyncGenerator[Step, None]: ...


class Sequence:
    """What one sequence has generated so far, whoever generated it."""

    def __init__(self, prompt: Prompt, params: SamplingParams, counts: Counts) -> None:
        self.prompt = prompt
        self.params = params
        self.generated: list[int] = []
        self._counts = counts
        self.repeatable = True
        """Whether an engine that begins again may be expected to write the same."""
        self._current: Counts | None = None
        self._repeated = 0
        self._delivered = 0
        self._completion_before = 0
        self._accepted_before = 0
        self._rejected_before = 0

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Prompt and what was generated: what a cache holds when it ends."""
        return (*self.prompt.token_ids, *self.generated)

    @property
    def cached_tokens(self) -> int:
        """What the engine at work had cached of what it was sent."""
        return self._current.cached_tokens if self._current else 0

    @property
    def exhausted(self) -> bool:
        """Every token that was asked for is out; only the finish reason is missing."""
        return bool(self.generated) and len(self.generated) >= self.params.max_tokens

    def obstacle(self, engine: Engine) -> str | None:
        """Why this engine cannot go on where the sequence is; None: it can. One that cannot has
        to begin again and must come to the same tokens."""
        if not self.generated:
            return None
        resuming = engine if isinstance(engine, ResumingEngine) else None
        if self.params.grammar is not None and not (resuming and resuming.resumes_grammar):
            return "an answer held to a grammar cannot go on there"
        if self._has_lasting_penalties() and not (resuming and resuming.resumes_penalties):
            return "the penalties of this answer cannot be carried over"
        return None

    def issue(self, engine: Engine) -> AsyncGenerator[Step, None]:
        """The rest of the sequence from this engine. Raises Diverged where that has an obstacle
        and does not repeat what has gone out."""
        self._current = counts = Counts()
        self._delivered = self._repeated = 0
        if not self.generated:
            return engine.generate(self.prompt, self.params, counts)
        if self.obstacle(engine) is not None:
            self._repeated = len(self.generated)
            return self._again(engine, counts)
        rest = msgspec.structs.replace(
            self.params,
            max_tokens=self.params.max_tokens - len(self.generated),
            prediction=self._rest_of_prediction(),
        )
        if isinstance(engine, ResumingEngine):
            return engine.resume(self.prompt, tuple(self.generated), rest, counts)
        longer = msgspec.structs.replace(self.prompt, token_ids=self.token_ids)
        rest = msgspec.structs.replace(rest, seed=self._seed(engine), logit_bias=self._bias())
        return engine.generate(longer, rest, counts)

    async def _again(self, engine: Engine, counts: Counts) -> AsyncGenerator[Step, None]:
        """The whole sequence anew, less what has gone out, which it must be equal to. With the
        seed it had it mostly is: where the engines compute alike."""
        known = tuple(self.generated)
        params = msgspec.structs.replace(self.params, prediction=())
        done = 0
        async with aclosing(engine.generate(self.prompt, params, counts)) as steps:
            async for step in steps:
                if done < len(known):
                    again = step.token_ids[: len(known) - done]
                    ended = step.finish_reason is not None and done + len(again) < len(known)
                    if again != known[done : done + len(again)] or ended:
                        raise Diverged("The replica wrote another answer when it began again.")
                    done += len(again)
                    step = msgspec.structs.replace(
                        step,
                        token_ids=step.token_ids[len(again) :],
                        logprobs=None if step.logprobs is None else step.logprobs[len(again) :],
                    )
                yield step

    def take(self, step: Step) -> None:
        """A step has come and goes out to the client."""
        self.generated += step.token_ids
        self._delivered += len(step.token_ids)
        self.count()

    def count(self) -> None:
        """Brings the client's counts up to date: one prompt, whoever worked on it."""
        current, total = self._current, self._counts
        if current is None:
            return
        if len(self.generated) == self._delivered:
            total.prompt_tokens = current.prompt_tokens
            total.cached_tokens = current.cached_tokens
            total.cache_write_tokens = current.cache_write_tokens
        new = max(0, current.completion_tokens - self._repeated)
        total.completion_tokens = self._completion_before + new
        total.accepted_prediction_tokens = (
            self._accepted_before + current.accepted_prediction_tokens
        )
        total.rejected_prediction_tokens = (
            self._rejected_before + current.rejected_prediction_tokens
        )

    def lose(self) -> None:
        """The engine is lost: of its work only what went out, and what that took, counts."""
        current, total = self._current, self._counts
        assert current is not None
        self._current = None
        if self._delivered:
            self._accepted_before += min(current.accepted_prediction_tokens, self._delivered)
            self._rejected_before += current.rejected_prediction_tokens
            self._completion_before += self._delivered + current.rejected_prediction_tokens
        if not self.generated:
            total.prompt_tokens = total.cached_tokens = total.cache_write_tokens = 0
        total.completion_tokens = self._completion_before
        total.accepted_prediction_tokens = self._accepted_before
        total.rejected_prediction_tokens = self._rejected_before

    def _has_lasting_penalties(self) -> bool:
        """A frequency penalty is a sum over past tokens, so a bias can carry it; a presence
        penalty counts once, which a bias cannot know, and a repetition penalty multiplies."""
        p = self.params
        return p.presence_penalty != 0 or (p.frequency_penalty != 0 and p.repetition_penalty != 1)

    def _bias(self) -> tuple[tuple[int, float], ...]:
        """The logit bias with the frequency penalty of the tokens so far, which the next engine
        will take for a part of the prompt."""
        penalty = self.params.frequency_penalty
        if not penalty:
            return self.params.logit_bias
        bias = dict(self.params.logit_bias)
        for token_id in self.generated:
            bias[token_id] = bias.get(token_id, 0.0) - penalty
        return tuple(bias.items())

    def _seed(self, engine: Engine) -> int:
        """An engine whose randomness is a function of seed and position goes on as it would
        have; another would repeat its first draws, and gets a seed of its own instead."""
        if getattr(engine, "samples_by_position", False):
            return self.params.seed
        text = f"{self.params.seed} {len(self.generated)}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1

    def _rest_of_prediction(self) -> tuple[int, ...]:
        done = len(self.generated)
        prediction = self.params.prediction
        return prediction[done:] if prediction[:done] == tuple(self.generated) else ()
