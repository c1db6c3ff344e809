"""Is prefix routing worth it, and what does a decision cost?

Two questions, one script: the time of a route decision with 100,000 blocks in the index, and the
cache hit rate over a trace of conversations on 8 simulated replicas, against round robin and
power of two choices on the same trace.

    python benchmarks/fleet_routing.py [--conversations 400] [--capacity 60000] [--only decision]
"""

import argparse
import gc
import random
import statistics
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable

from rejoinder.engines.routing import Candidate, PrefixIndex, choose

REPLICAS = tuple(f"replica-{i}" for i in range(8))
ENGINE_BLOCK = 16


def tokens(rng: random.Random, number: int) -> tuple[int, ...]:
    return tuple(array("H", rng.randbytes(2 * number)))


def decision_times(prompt_tokens: int, *, num_blocks: int = 100_000) -> list[float]:
    """CPU seconds of `match` + `choose` for prompts that the index knows to their end."""
    rng = random.Random(1)
    index = PrefixIndex(max_blocks=num_blocks)
    for name in REPLICAS:
        index.add(name)
    prompts = []
    while len(index) < num_blocks:
        prompt = tokens(rng, prompt_tokens)
        prompts.append(array("I", prompt))
        index.record(rng.choice(REPLICAS), "team", prompt, index.match("team", prompt))
    times = []
    gc.collect()
    for _ in range(4000):
        # Its ids are new objects, as when it has just come from a tokenizer.
        prompt = tuple(rng.choice(prompts))
        began = time.thread_time()
        match = index.match("team", prompt)
        candidates = [Candidate(name, 3) for name in REPLICAS]
        choose(candidates, match, cache_key="", random=rng)
        times.append(time.thread_time() - began)
    return times


class SimulatedReplica:
    """A prefix cache of a given size in tokens: blocks of 16, least recently used out."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity // ENGINE_BLOCK
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self.running: list[int] = []

    def serve(self, prompt: tuple[int, ...]) -> int:
        """How many tokens were cached; all of them are afterwards."""
        block, cached, hashes = 0, 0, []
        for start in range(0, len(prompt) - ENGINE_BLOCK + 1, ENGINE_BLOCK):
            block = hash((block, prompt[start : start + ENGINE_BLOCK]))
            hashes.append(block)
        for block in hashes:
            if block not in self._blocks:
                break
            cached += ENGINE_BLOCK
        for block in reversed(hashes):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)
        return cached


def trace(conversations: int, turns: tuple[int, int]) -> list[tuple[int, ...]]:
    """Prompts in the order of arrival: conversations of some turns, many at a time, on a few
    system prompts; each prompt has all that came before in its conversation."""
    rng = random.Random(2)
    systems = [tokens(rng, rng.randrange(200, 900)) for _ in range(12)]
    open_now: list[tuple[tuple[int, ...], int]] = []
    prompts = []
    begun = 0
    while begun < conversations or open_now:
        if begun < conversations and (len(open_now) < 64 or rng.random() < 0.2):
            open_now.append((rng.choice(systems), rng.randint(*turns)))
            begun += 1
        place = rng.randrange(len(open_now))
        history, left = open_now.pop(place)
        prompt = (*history, *tokens(rng, rng.randrange(20, 200)))
        prompts.append(prompt)
        if left > 1:
            answer = tokens(rng, rng.randrange(50, 400))
            open_now.append(((*prompt, *answer), left - 1))
    return prompts


Route = Callable[[int, tuple[int, ...], list[int]], str]


def hit_rate(
    prompts: list[tuple[int, ...]], capacity: int, route: Route, learn: Callable[[str, int], None]
) -> tuple[float, int]:
    """The share of prompt tokens that were cached, and the most sequences at once on a replica.
    Each sequence runs for as long as the next 48 arrivals."""
    replicas = {name: SimulatedReplica(capacity) for name in REPLICAS}
    cached = most = 0
    for now, prompt in enumerate(prompts):
        for replica in replicas.values():
            replica.running = [end for end in replica.running if end > now]
        loads = [len(replicas[name].running) for name in REPLICAS]
        name = route(now, prompt, loads)
        had = replicas[name].serve(prompt)
        learn(name, had)
        replicas[name].running.append(now + 48)
        most = max(most, len(replicas[name].running))
        cached += had
    return cached / sum(map(len, prompts)), most


def compare(conversations: int, capacity: int, turns: tuple[int, int]) -> None:
    prompts = trace(conversations, turns)
    rng = random.Random(3)
    index = PrefixIndex()
    for name in REPLICAS:
        index.add(name)
    last = {}

    def prefix(now: int, prompt: tuple[int, ...], loads: list[int]) -> str:
        match = index.match("team", prompt)
        candidates = [Candidate(n, s) for n, s in zip(REPLICAS, loads, strict=True)]
        name = choose(candidates, match, cache_key="", random=rng).name
        index.record(name, "team", prompt, match)
        last["match"] = match
        return name

    def correct(name: str, had: int) -> None:
        index.correct(name, last["match"], cached_tokens=had)

    def nothing(name: str, had: int) -> None:
        return

    def two_choices(now: int, prompt: tuple[int, ...], loads: list[int]) -> str:
        first, second = rng.sample(range(len(REPLICAS)), 2)
        return REPLICAS[first if loads[first] <= loads[second] else second]

    def round_robin(now: int, prompt: tuple[int, ...], loads: list[int]) -> str:
        return REPLICAS[now % len(REPLICAS)]

    lengths = [len(p) for p in prompts]
    print(
        f"{turns[0]}-{turns[1]} turns, {len(prompts)} prompts, median "
        f"{statistics.median(lengths):.0f} tokens, "
        f"{capacity} cached tokens a replica"
    )
    base = 0.0
    for label, route, learn in (
        ("round robin", round_robin, nothing),
        ("two choices", two_choices, nothing),
        ("prefix + load", prefix, correct),
    ):
        rate, most = hit_rate(prompts, capacity, route, learn)
        base = base or rate
        print(f"  {label:14} hit rate {rate:6.1%}  {rate / base:4.2f} x  most at once {most}")
    one = SimulatedReplica(capacity * len(REPLICAS))
    bound = sum(map(one.serve, prompts)) / sum(lengths)
    print(f"  {'bound':14} hit rate {bound:6.1%}  one cache of all their memory")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--conversations", type=int, default=400)
    parser.add_argument("--capacity", type=int, default=60_000)
    parser.add_argument("--only", choices=("decision", "trace"))
    asked = parser.parse_args()
    if asked.only != "trace":
        decide()
    if asked.only == "decision":
        return
    for turns in ((2, 8), (8, 24)):
        for capacity in (asked.capacity, asked.capacity // 3):
            compare(asked.conversations, capacity, turns)


def decide() -> None:
    for length in (512, 2048, 8192, 32_768):
        times = sorted(decision_times(length))
        p50, p99 = (times[int(len(times) * q)] * 1e6 for q in (0.5, 0.99))
        print(f"decision, 100,000 blocks, {length:6} tokens: p50 {p50:5.1f} µs  p99 {p99:5.1f} µs")


if __name__ == "__main__":
    main()
