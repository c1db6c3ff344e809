"""What does a prediction win, and what does a useless one cost?

The answer without a prediction is the base. Predictions: all of it; nine tenths right, wrong in
whole lines (an edit); wrong in single tokens (the worst case); and one that never fits. Then the
speculation that needs no prediction, on a text that repeats itself and on one that does not.

    python benchmarks/engine_prediction.py [--tokens 400] [--rounds 5] [--threads 0]
"""

import argparse
import asyncio
import statistics
import time

from engine_loads import DEFAULT_PATH, render, story, user, words

from rejoinder.engines.llama.engine import LlamaEngine
from rejoinder.types import Counts, Prompt, SamplingParams

LINE = 20


def edited(ids: list[int], every: int, size: int) -> list[int]:
    """Of each `every` tokens the last `size` are others."""
    return [token if i % every < every - size else 700 + i % 50 for i, token in enumerate(ids)]


async def run(
    engine: LlamaEngine, prompt: Prompt, tokens: int, prediction: tuple[int, ...] = ()
) -> tuple[float, list[int], Counts]:
    """Seconds behind the first token, with end tokens banned so that all are equally long."""
    ban = tuple((i, -100.0) for i in engine.tokenizer.end_token_ids)
    params = SamplingParams(
        max_tokens=4 * tokens, temperature=0.0, prediction=prediction, logit_bias=ban
    )
    counts, first, ids = Counts(), 0.0, []
    steps = engine.generate(prompt, params, counts)
    async for step in steps:
        first = first or time.perf_counter()
        ids += step.token_ids
        if len(ids) >= tokens:
            break
    seconds = time.perf_counter() - first
    await steps.aclose()
    return seconds * (tokens - 1) / (len(ids) - 1), ids[:tokens], counts


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--path", default=DEFAULT_PATH)
    options = parser.parse_args()

    async def load(speculation: str) -> LlamaEngine:
        return await asyncio.to_thread(
            lambda: LlamaEngine(path=options.path, threads=options.threads, speculation=speculation)
        )

    engine = await load("off")
    prompt = render(engine, story(3, 40))
    _, ids, _ = await run(engine, prompt, options.tokens)
    predictions = {
        "none": (),
        "all right": tuple(ids),
        "90 % right, lines": tuple(edited(ids, 10 * LINE, LINE)),
        "90 % right, scattered": tuple(edited(ids, 10, 1)),
        "useless": tuple(engine.tokenizer.encode(words(99, 300), special=False)),
    }
    times: dict[str, list[float]] = {name: [] for name in predictions}
    for _ in range(options.rounds):
        for name, prediction in predictions.items():
            seconds, got, counts = await run(engine, prompt, options.tokens, prediction)
            assert got == ids, f"a prediction ({name}) changed the answer"
            times[name].append(seconds)
            print(
                f"  {name:22} {seconds:6.2f} s, accepted {counts.accepted_prediction_tokens}, "
                f"rejected {counts.rejected_prediction_tokens}",
                flush=True,
            )
    base = statistics.median(times["none"])
    for name, runs in times.items():
        print(f"{name:22} {base / statistics.median(runs):5.2f} x", flush=True)
    cost = engine._cost
    print(
        "ms a step of n tokens: " + ", ".join(f"{n}: {1e3 * cost.of(n):.1f}" for n in (1, 2, 8, 32))
    )
    await engine.close()

    texts = {
        "repetitive": user("Write this list ten times: " + words(1, 12)),
        "ordinary": story(8, 12),
    }
    plain, guessing = await load("off"), await load("auto")
    for name, messages in texts.items():
        both = {}
        for label, one in (("off", plain), ("auto", guessing)):
            runs = [await run(one, render(one, messages), 150) for _ in range(options.rounds)]
            both[label] = statistics.median(seconds for seconds, _, _ in runs)
        print(f"speculation, {name:12} {both['off'] / both['auto']:5.2f} x", flush=True)
    await plain.close()
    await guessing.close()


if __name__ == "__main__":
    asyncio.run(main())
