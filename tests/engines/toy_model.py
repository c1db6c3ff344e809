"""A deterministic model of 1,000 tokens without weights, and an in-process engine on it.

The servers that are imitated in these tests and the engines they are compared with share it, so
that equal prompts, params and positions give equal tokens wherever they run.
"""

import asyncio
import math
import random
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from rejoinder.errors import ContextLengthExceeded, EngineFailed
from rejoinder.types import Counts, Prompt, SamplingParams, Step, TokenIdLogprob

VOCABULARY = 1000
END = 2
NUM_LIKELY = 30
GRAMMAR_LENGTH = 9


@dataclass(frozen=True)
class Pick:
    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]
    """The best 30, most likely first."""


def likely(token_ids: Sequence[int]) -> list[tuple[int, float]]:
    """The 30 likely next tokens after these, most likely first, with raw logprobs."""
    rng = random.Random(hash(tuple(token_ids[-8:])) ^ len(token_ids))
    ids = rng.sample(range(3, VOCABULARY), NUM_LIKELY)
    if rng.random() < 0.05 and len(token_ids) > 24:
        ids[0] = END
    weights = sorted((rng.random() for _ in ids), reverse=True)
    total = math.log(sum(math.exp(4 * w) for w in weights) * 1.05)
    return [(i, 4 * w - total) for i, w in zip(ids, weights, strict=True)]


def pick(
    prompt: Sequence[int],
    output: Sequence[int],
    *,
    temperature: float = 0.0,
    draw: float = 0.0,
    bias: dict[int, float] | None = None,
    frequency_penalty: float = 0.0,
    presence_penalty: float = 0.0,
) -> Pick:
    """The next token. `draw`: this position's randomness, in [0, 1)."""
    raw = likely([*prompt, *output])
    seen = Counter(output)

    def score(entry: tuple[int, float]) -> float:
        times = seen[entry[0]]
        penalty = frequency_penalty * times + presence_penalty * bool(times)
        return entry[1] + (bias or {}).get(entry[0], 0.0) - penalty

    order = sorted(raw, key=score, reverse=True)
    token_id, logprob = order[0 if temperature == 0 else int(draw * NUM_LIKELY)]
    return Pick(token_id, logprob, raw.index((token_id, logprob)) + 1, tuple(raw))


def draw_of(seed: int, position: int) -> float:
    return random.Random(f"{seed} {position}").random()


def constrained(text: str, position: int) -> int:
    """The token at a position of the only answer that a grammar allows."""
    if position == GRAMMAR_LENGTH:
        return END
    return random.Random(f"{text} {position}").randrange(3, VOCABULARY)


@dataclass
class Fault:
    """After this many tokens of a sequence."""

    after: int
    kind: Literal["fail", "stall", "end", "timeout"] = "fail"


@dataclass
class ToyEngine:
    """In process, like the embedded engine: randomness is a function of seed and position in the
    whole text, and it can resume. The `Plain` kind below cannot."""

    tokens_per_step: int = 1
    context: int = 4096
    delay: float = 0.0
    faults: list[Fault] = field(default_factory=list)
    resumes_grammar = True
    resumes_penalties = True
    samples_by_position = True
    prompts: list[tuple[int, ...]] = field(default_factory=list)
    params: list[SamplingParams] = field(default_factory=list)
    running: int = 0
    closed: bool = False
    well: bool = True

    @property
    def context_length(self) -> int:
        return self.context

    @property
    def fingerprint(self) -> str:
        return "fp_toy"

    async def healthy(self) -> bool:
        return self.well

    async def close(self) -> None:
        self.closed = True

    def generate(
        self, prompt: Prompt, params: SamplingParams, counts: Counts
    ) -> AsyncGenerator[Step, None]:
        return self._steps(prompt, (), params, counts)

    def resume(
        self, prompt: Prompt, generated: tuple[int, ...], params: SamplingParams, counts: Counts
    ) -> AsyncGenerator[Step, None]:
        return self._steps(prompt, generated, params, counts)

    async def _steps(
        self, prompt: Prompt, before: tuple[int, ...], params: SamplingParams, counts: Counts
    ) -> AsyncGenerator[Step, None]:
        if len(prompt.token_ids) >= self.context:
            raise ContextLengthExceeded("too long", param="messages")
        self.prompts.append(prompt.token_ids + before)
        self.params.append(params)
        fault = self.faults.pop(0) if self.faults else None
        self.running += 1
        try:
            async for step in self._tokens(prompt, before, params, counts, fault):
                yield step
        finally:
            self.running -= 1

    async def _tokens(
        self,
        prompt: Prompt,
        before: tuple[int, ...],
        params: SamplingParams,
        counts: Counts,
        fault: Fault | None,
    ) -> AsyncGenerator[Step, None]:
        output = list(before)
        pending: list[Pick] = []
        counts.prompt_tokens = len(prompt.token_ids)
        room = min(params.max_tokens, self.context - len(prompt.token_ids) - len(before))
        for number in range(room + 1):
            await asyncio.sleep(self.delay)
            if fault is not None and fault.after == number:
                if pending:
                    yield self._step(pending, params)
                match fault.kind:
                    case "fail":
                        raise EngineFailed("as told")
                    case "stall":
                        await asyncio.Event().wait()
                    case "end":
                        return
            if number == room:
                yield self._step(pending, params, "length")
                return
            one = next_pick(prompt.token_ids, output, params, by_position=True)
            counts.completion_tokens += 1
            if one.token_id == END or one.token_id in params.stop_token_ids:
                yield self._step(pending, params, "stop")
                return
            output.append(one.token_id)
            pending.append(one)
            if len(pending) == self.tokens_per_step:
                yield self._step(pending, params)
                pending = []

    def _step(
        self,
        picks: list[Pick],
        params: SamplingParams,
        finish: Literal["stop", "length"] | None = None,
    ) -> Step:
        logprobs = None
        if params.num_top_logprobs is not None:
            logprobs = tuple(as_logprob(p, params.num_top_logprobs) for p in picks)
        return Step(tuple(p.token_id for p in picks), logprobs, finish)


class PlainEngine(ToyEngine):
    """One that only has `generate`, and starts its randomness anew with each sequence."""

    samples_by_position = False
    resume = None  # type: ignore[assignment]
    resumes_grammar = False
    resumes_penalties = False


class OtherWeights(PlainEngine):
    """One that computes something else, as another GPU or version may."""

    def generate(
        self, prompt: Prompt, params: SamplingParams, counts: Counts
    ) -> AsyncGenerator[Step, None]:
        grammar = params.grammar
        if grammar is not None:
            other = msgspec.structs.replace(grammar, text=grammar.text + " ")
            params = msgspec.structs.replace(params, grammar=other)
        ids = (prompt.token_ids[0] + 1, *prompt.token_ids[1:])
        return super().generate(msgspec.structs.replace(prompt, token_ids=ids), params, counts)


def next_pick(
    prompt: Sequence[int], output: Sequence[int], params: SamplingParams, *, by_position: bool
) -> Pick:
    if params.grammar is not None:
        token_id = constrained(params.grammar.text, len(output))
        return Pick(token_id, -0.5, 1, ((token_id, -0.5),))
    position = len(output) + (len(prompt) if by_position else 0)
    return pick(
        prompt,
        output,
        temperature=params.temperature,
        draw=draw_of(params.seed, position),
        bias=dict(params.logit_bias),
        frequency_penalty=params.frequency_penalty,
        presence_penalty=params.presence_penalty,
    )


def as_logprob(picked: Pick, num_top: int) -> TokenIdLogprob:
    return TokenIdLogprob(picked.token_id, picked.logprob, picked.rank, picked.top[:num_top])
