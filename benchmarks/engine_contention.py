"""How fast does one stream decode while other processes use the cores, and how soon is it back?

Prints tokens/s free, beside so many busy processes, and free again; with the threads in use.

    python benchmarks/engine_contention.py [--busy 2] [--threads 0] [--tokens 128] [--rounds 5]
"""

import argparse
import asyncio
import statistics
import subprocess
import sys
import time

from engine_loads import DEFAULT_PATH, render, story

from rejoinder.engines.llama.engine import LlamaEngine
from rejoinder.types import Counts, SamplingParams


async def speed(engine: LlamaEngine, tokens: int) -> float:
    """Tokens per second behind the first."""
    params = SamplingParams(max_tokens=tokens, temperature=0.0)
    counts, first = Counts(), 0.0
    async for _ in engine.generate(render(engine, story(5, 20)), params, counts):
        first = first or time.perf_counter()
    return (counts.completion_tokens - 1) / (time.perf_counter() - first)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--busy", type=int, default=2)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--path", default=DEFAULT_PATH)
    options = parser.parse_args()
    engine = await asyncio.to_thread(
        lambda: LlamaEngine(path=options.path, threads=options.threads, speculation="off")
    )
    await speed(engine, 16)

    async def several(name: str) -> None:
        runs = []
        for _ in range(options.rounds):
            runs.append(await speed(engine, options.tokens))
            print(f"  {name} {runs[-1]:.1f} tokens/s, threads {engine.stats().threads}", flush=True)
        print(f"{name}: median {statistics.median(runs):.1f} tokens/s", flush=True)

    await several("free")
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.busy)
    ]
    try:
        await several(f"beside {options.busy} busy")
    finally:
        for child in busy:
            child.kill()
            child.wait()
    await several("free again")
    await engine.close()


if __name__ == "__main__":
    asyncio.run(main())
