"""What does our own Python cost beside llama_decode: scheduler, cache, sampling, delivery?

CPU time of the engine's thread outside of the library, as a part of the time in it, for 16
sequences of each kind of sampling.

    python benchmarks/engine_overhead.py [--tokens 64] [--threads 0]
"""

import argparse
import asyncio

from engine_loads import DEFAULT_PATH, render, story

from rejoinder.engines.llama.engine import LlamaEngine
from rejoinder.types import Counts, Grammar, SamplingParams

SCHEMA = """{
    "type": "object",
    "properties": {
        "title": {"type": "string", "minLength": 20},
        "chapters": {"type": "array", "minItems": 9, "items": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "page": {"type": "integer"}},
            "required": ["name", "page"],
            "additionalProperties": false
        }}
    },
    "required": ["title", "chapters"],
    "additionalProperties": false
}"""

KINDS: dict[str, dict[str, object]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 1.0},
    "top_p": {"temperature": 1.0, "top_p": 0.9},
    "top_k, top_p, min_p": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    "hot": {"temperature": 2.0, "top_p": 0.95},
    "penalties": {"temperature": 1.0, "presence_penalty": 0.5, "repetition_penalty": 1.1},
    "logprobs": {"temperature": 1.0, "num_top_logprobs": 20},
    "JSON schema": {"temperature": 1.0, "grammar": Grammar("json_schema", SCHEMA)},
    "counted regex": {"temperature": 1.0, "grammar": Grammar("regex", "[a-z ]{600}")},
}


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--path", default=DEFAULT_PATH)
    options = parser.parse_args()
    engine = await asyncio.to_thread(
        lambda: LlamaEngine(path=options.path, threads=options.threads)
    )

    async def one(i: int, kind: dict[str, object]) -> None:
        params = SamplingParams(max_tokens=options.tokens, seed=i, **kind)  # type: ignore[arg-type]
        async for _ in engine.generate(render(engine, story(i, 20)), params, Counts()):
            pass

    print(f"{'16 sequences':22} {'own ms/token':>12} {'decode ms/token':>16} {'own/decode':>11}")
    for name, kind in KINDS.items():
        await asyncio.gather(*(one(i, {**kind, "temperature": 1.0}) for i in range(1)))
        before = engine.stats()
        await asyncio.gather(*(one(i, kind) for i in range(16)))
        after = engine.stats()
        tokens = after.generated_tokens - before.generated_tokens
        own = (after.own_seconds - before.own_seconds) / tokens * 1000
        decode = (after.decode_seconds - before.decode_seconds) / tokens * 1000
        print(f"{name:22} {own:12.3f} {decode:16.3f} {own / decode:10.1%}", flush=True)
    await engine.close()


if __name__ == "__main__":
    asyncio.run(main())
