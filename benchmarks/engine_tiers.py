"""Does a priority request notice that flex asks for four times what the engine can do?

Priority requests come one by one, first alone, then under that flood. Prints their TTFT and
whether every flex request was done.

    python benchmarks/engine_tiers.py [--requests 30] [--flood 4] [--threads 0]
"""

import argparse
import asyncio
import statistics
import time

from engine_loads import DEFAULT_PATH, engine_ask, story

from rejoinder.engines.llama.engine import LlamaEngine

FLEX_TOKENS = 32


def percentile(values: list[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=30)
    parser.add_argument("--flood", type=float, default=4.0)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--path", default=DEFAULT_PATH)
    options = parser.parse_args()
    engine = await asyncio.to_thread(
        lambda: LlamaEngine(path=options.path, threads=options.threads, max_queue=100_000)
    )
    ask = engine_ask(engine)

    async def priority(first: int) -> list[float]:
        times = []
        for i in range(options.requests):
            result = await ask(story(first + i, 60), 8, tier="priority")
            times.append(result.ttft)
            await asyncio.sleep(0.3)
        return times

    began = time.perf_counter()
    await asyncio.gather(*(ask(story(50_000 + i, 30), FLEX_TOKENS, tier="flex") for i in range(16)))
    capacity = 16 / (time.perf_counter() - began)
    alone = await priority(1)
    tasks: list[asyncio.Task[object]] = []

    async def flood() -> None:
        for i in range(10**9):
            job = ask(story(100_000 + i, 30), FLEX_TOKENS, tier="flex")
            tasks.append(asyncio.ensure_future(job))
            await asyncio.sleep(1 / (capacity * options.flood))

    flooding = asyncio.create_task(flood())
    await asyncio.sleep(2)
    under = await priority(10_000)
    flooding.cancel()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    failed = sum(isinstance(result, BaseException) for result in done)
    for name, times in (("alone", alone), ("under flex", under)):
        p50, p99 = statistics.median(times), percentile(times, 0.99)
        print(f"{name:11} TTFT p50 {p50:.3f} s, p99 {p99:.3f} s")
    print(f"p99 under flex / alone: {percentile(under, 0.99) / percentile(alone, 0.99):.2f}")
    print(f"flex: capacity {capacity:.1f}/s, {len(done)} sent, {failed} not done")
    await engine.close()


if __name__ == "__main__":
    asyncio.run(main())
