"""What every engine must do, as checks over a `Subject`. test_contract.py runs them over all.

To add an engine: an async context manager that yields a Subject, in test_contract.FACTORIES.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

import msgspec
import pytest

from rejoinder.errors import ContextLengthExceeded
from rejoinder.types import (
    Counts,
    Engine,
    EngineFinishReason,
    Grammar,
    Prompt,
    SamplingParams,
    Step,
    TokenIdLogprob,
)


@dataclass(frozen=True)
class Subject:
    """An engine and what the checks must know to ask it something sensible.

    `prompt`: its greedy answer has at least 12 tokens, different ones among them. `running`: how
    many sequences the engine is working on. `samples`: it has a sampler (seed, logit bias).
    `grammar`: one that ends by itself within 64 tokens. `cached_prompt`: one that is long enough
    to be read from the prefix cache the second time.
    """

    engine: Engine
    prompt: tuple[int, ...]
    running: Callable[[], int]
    samples: bool = True
    grammar: Grammar | None = None
    cached_prompt: tuple[int, ...] | None = None


@dataclass
class Answer:
    steps: list[Step]
    counts: Counts

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(i for step in self.steps for i in step.token_ids)

    @property
    def logprobs(self) -> tuple[TokenIdLogprob, ...]:
        return tuple(p for step in self.steps for p in step.logprobs or ())

    @property
    def finish_reason(self) -> EngineFinishReason | None:
        return self.steps[-1].finish_reason


GREEDY = SamplingParams(max_tokens=12, temperature=0.0)


async def answer(
    engine: Engine, prompt: tuple[int, ...], params: SamplingParams, *, salt: str = ""
) -> Answer:
    """The whole answer, with what must hold of any answer."""
    counts = Counts()
    steps = []
    asked = Prompt(token_ids=prompt, cache_salt=salt)
    async with aclosing(engine.generate(asked, params, counts)) as running:
        async for step in running:
            steps.append(step)
    whole = Answer(steps, counts)
    assert steps, "an answer without a step"
    assert all(step.finish_reason is None for step in steps[:-1]), "steps after the finish"
    assert whole.finish_reason in ("stop", "length")
    assert counts.prompt_tokens == len(prompt)
    assert 0 <= counts.cached_tokens <= counts.prompt_tokens
    assert len(whole.token_ids) <= params.max_tokens
    if whole.finish_reason == "length":
        assert len(whole.token_ids) == params.max_tokens
        assert counts.completion_tokens == len(whole.token_ids)
    else:
        assert counts.completion_tokens - len(whole.token_ids) in (0, 1), "the stop token alone"
    assert not set(whole.token_ids) & set(params.stop_token_ids)
    for step in steps:
        if params.num_top_logprobs is None:
            assert step.logprobs is None
        elif step.token_ids:
            assert step.logprobs is not None
            assert tuple(p.token_id for p in step.logprobs) == step.token_ids
    return whole


async def asked_for_length(s: Subject) -> None:
    for limit in (1, 2, 5):
        whole = await answer(s.engine, s.prompt, msgspec.structs.replace(GREEDY, max_tokens=limit))
        assert whole.finish_reason == "length"
        assert len(whole.token_ids) == limit


async def no_tokens_at_all(s: Subject) -> None:
    whole = await answer(s.engine, s.prompt, msgspec.structs.replace(GREEDY, max_tokens=0))
    assert whole.token_ids == () and whole.finish_reason == "length"


async def greedy_is_repeatable(s: Subject) -> None:
    first = await answer(s.engine, s.prompt, GREEDY)
    again = await answer(s.engine, s.prompt, GREEDY)
    assert first.token_ids == again.token_ids and len(first.token_ids) == GREEDY.max_tokens
    assert len(set(first.token_ids)) > 1


async def stop_token_ids_end_it(s: Subject) -> None:
    free = (await answer(s.engine, s.prompt, GREEDY)).token_ids
    where = next(i for i in range(2, len(free)) if free[i] not in free[:i])
    params = msgspec.structs.replace(GREEDY, stop_token_ids=(free[where],))
    held = await answer(s.engine, s.prompt, params)
    assert held.finish_reason == "stop"
    assert held.token_ids == free[:where]
    assert held.counts.completion_tokens == where + 1, "the stop token counts"


async def logprobs_tell_rank(s: Subject) -> None:
    for asked in (0, 1, 3, 20):
        params = msgspec.structs.replace(GREEDY, num_top_logprobs=asked, max_tokens=6)
        for entry in (await answer(s.engine, s.prompt, params)).logprobs:
            check_logprob(entry, asked, greedy=True)


async def sampled_logprobs_tell_rank(s: Subject) -> None:
    if not s.samples:
        pytest.skip("the engine has no sampler")
    beyond = 0
    for seed in range(5):
        params = SamplingParams(max_tokens=8, num_top_logprobs=5, seed=seed, temperature=2.0)
        for entry in (await answer(s.engine, s.prompt, params)).logprobs:
            check_logprob(entry, 5, greedy=False)
            beyond += entry.rank > 5
    assert beyond, "no token that is not among the best: the check checks nothing"


def check_logprob(entry: TokenIdLogprob, asked: int, *, greedy: bool) -> None:
    assert entry.logprob <= 0 and math.isfinite(entry.logprob)
    assert entry.rank >= 1
    assert len(entry.top) <= asked
    values = [value for _, value in entry.top]
    assert values == sorted(values, reverse=True)
    assert len({token_id for token_id, _ in entry.top}) == len(entry.top)
    if entry.rank <= len(entry.top):
        assert entry.top[entry.rank - 1] == (entry.token_id, entry.logprob)
    else:
        assert entry.token_id not in dict(entry.top)
        assert all(value >= entry.logprob for value in values)
    if greedy:
        assert entry.rank == 1


async def closing_aborts(s: Subject) -> None:
    counts = Counts()
    params = msgspec.structs.replace(GREEDY, max_tokens=200)
    steps = s.engine.generate(Prompt(token_ids=s.prompt), params, counts)
    got = 0
    async for step in steps:
        got += len(step.token_ids)
        if got >= 2:
            break
    await steps.aclose()
    assert counts.prompt_tokens == len(s.prompt)
    assert counts.completion_tokens >= got
    await until(lambda: s.running() == 0)


async def cancelling_aborts(s: Subject) -> None:
    begun = asyncio.Event()

    async def read() -> None:
        params = msgspec.structs.replace(GREEDY, max_tokens=500)
        steps = s.engine.generate(Prompt(token_ids=s.prompt), params, Counts())
        async with aclosing(steps):
            async for _ in steps:
                begun.set()

    task = asyncio.create_task(read())
    await asyncio.wait_for(begun.wait(), 20)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await until(lambda: s.running() == 0)


async def never_begun_costs_nothing(s: Subject) -> None:
    counts = Counts()
    await s.engine.generate(Prompt(token_ids=s.prompt), GREEDY, counts).aclose()
    assert counts.prompt_tokens == counts.completion_tokens == 0


async def together_as_alone(s: Subject) -> None:
    prompts = [s.prompt[i:] + s.prompt[:i] for i in range(min(8, len(s.prompt)))]
    alone = [(await answer(s.engine, p, GREEDY)).token_ids for p in prompts]
    together = await asyncio.gather(*(answer(s.engine, p, GREEDY) for p in prompts))
    assert [whole.token_ids for whole in together] == alone
    await until(lambda: s.running() == 0)


async def seeds_decide(s: Subject) -> None:
    if not s.samples:
        pytest.skip("the engine has no sampler")
    params = [
        SamplingParams(max_tokens=12, temperature=1.5, seed=n) for n in (1, 1, 2, -1, 2**64 - 1)
    ]
    first, again, other, *_ = [(await answer(s.engine, s.prompt, p)).token_ids for p in params]
    assert first == again
    assert first != other


async def bias_decides(s: Subject) -> None:
    if not s.samples:
        pytest.skip("the engine has no sampler")
    params = msgspec.structs.replace(GREEDY, num_top_logprobs=3, max_tokens=1)
    second, _ = (await answer(s.engine, s.prompt, params)).logprobs[0].top[1]
    biased = msgspec.structs.replace(params, logit_bias=((second, 50.0),))
    entry = (await answer(s.engine, s.prompt, biased)).logprobs[0]
    assert entry.token_id == second
    assert entry.rank == 2, "logprobs are raw: of what the model thinks without the bias"


async def edges_of_the_ranges(s: Subject) -> None:
    """The contract's extremes of sampling are served, whatever the server behind says of them."""
    if not s.samples:
        pytest.skip("the engine has no sampler")
    for extreme in (
        {"top_p": 0.0},
        {"top_k": 0},
        {"top_k": 1},
        {"min_p": 1.0},
        {"temperature": 2.0},
        {"presence_penalty": -2.0, "frequency_penalty": 2.0},
        {"tier": "priority"},
        {"tier": "flex"},
        {"prediction": (5, 6, 7)},
    ):
        params = SamplingParams(max_tokens=3, **extreme)  # type: ignore[arg-type]
        assert (await answer(s.engine, s.prompt, params)).token_ids


async def long_prompts_are_refused(s: Subject) -> None:
    prompt = s.prompt[:1] * s.engine.context_length
    counts = Counts()
    with pytest.raises(ContextLengthExceeded):
        async for _ in s.engine.generate(Prompt(token_ids=prompt), GREEDY, counts):
            pass
    assert counts.completion_tokens == 0


async def grammars_hold(s: Subject) -> None:
    if s.grammar is None:
        pytest.skip("the engine applies no grammar")
    params = msgspec.structs.replace(GREEDY, grammar=s.grammar, max_tokens=64)
    whole = await answer(s.engine, s.prompt, params)
    assert whole.finish_reason == "stop" and whole.token_ids
    other = await answer(s.engine, tuple(reversed(s.prompt)), params)
    assert other.finish_reason == "stop"


async def the_cache_is_the_salts_own(s: Subject) -> None:
    if s.cached_prompt is None:
        pytest.skip("the engine reports no cached tokens")
    first = await answer(s.engine, s.cached_prompt, GREEDY, salt="team-a")
    again = await answer(s.engine, s.cached_prompt, GREEDY, salt="team-a")
    other = await answer(s.engine, s.cached_prompt, GREEDY, salt="team-b")
    assert first.counts.cached_tokens == 0
    assert again.counts.cached_tokens > 0
    assert other.counts.cached_tokens == 0
    assert first.token_ids == again.token_ids == other.token_ids


async def it_says_what_it_is(s: Subject) -> None:
    await answer(s.engine, s.prompt, GREEDY)
    assert s.engine.context_length > len(s.prompt)
    assert s.engine.fingerprint.startswith("fp_")
    assert s.engine.fingerprint == s.engine.fingerprint


async def until(holds: Callable[[], bool], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.005)


CHECKS: tuple[Callable[[Subject], Awaitable[None]], ...] = (
    asked_for_length,
    no_tokens_at_all,
    greedy_is_repeatable,
    stop_token_ids_end_it,
    logprobs_tell_rank,
    sampled_logprobs_tell_rank,
    closing_aborts,
    cancelling_aborts,
    never_begun_costs_nothing,
    together_as_alone,
    seeds_decide,
    bias_decides,
    edges_of_the_ranges,
    long_prompts_are_refused,
    grammars_hold,
    the_cache_is_the_salts_own,
    it_says_what_it_is,
)
