"""What the way in costs of a gateway: CPU of reading a provider's stream, without any server.

    python benchmarks/gateway_cost.py [--chunks 4000] [--repeat 7] [--per-read 1]

Prints µs a chunk (medians) for each shape of chunk: SSE reading alone, JSON parsing alone (the
floor: msgspec into plain dicts), reading and decoding together, and that over a real socket
through RemoteBackend.
"""

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.gateway_upstream import CannedUpstream, stream_of
from rejoinder.backends.remote import RemoteBackend
from rejoinder.config import RemoteConfig
from rejoinder.dialects.chunks import ChunkDecoder
from rejoinder.dialects.sse import SseReader
from rejoinder.types import ChatRequest, Meter, Tool, UserMessage

SHAPES = ("content", "reasoning", "logprobs", "usage", "arguments")


def decoder() -> ChunkDecoder:
    return ChunkDecoder(model="m", new_id=lambda: "call_1", tool_names=("f",))


def microseconds(work: Callable[[], None], *, chunks: int, repeat: int) -> float:
    times = []
    for _ in range(repeat):
        start = time.process_time()
        work()
        times.append((time.process_time() - start) / chunks * 1e6)
    return statistics.median(times)


def measure(shape: str, chunks: int, repeat: int, per_read: int) -> dict[str, float]:
    frames = stream_of(shape, chunks)
    reads = [b"".join(frames[i : i + per_read]) for i in range(0, len(frames), per_read)]
    payloads = [frame[6:-2].decode() for frame in frames[:-1]]
    parse = msgspec.json.Decoder().decode

    def sse() -> None:
        reader = SseReader()
        for data in reads:
            reader.feed(data)

    def floor() -> None:
        for payload in payloads:
            parse(payload)

    def whole() -> None:
        reader, one = SseReader(), decoder()
        events: list[object] = []
        for data in reads:
            one.feed_into(reader.feed(data), events)  # type: ignore[arg-type]

    return {
        "sse": microseconds(sse, chunks=chunks, repeat=repeat),
        "json": microseconds(floor, chunks=chunks, repeat=repeat),
        "decoded": microseconds(whole, chunks=chunks, repeat=repeat),
    }


async def over_a_socket(shape: str, chunks: int, repeat: int, per_read: int) -> float:
    """CPU of this process a chunk, the fake provider's share taken off by running it apart."""
    async with CannedUpstream(shape, chunks, per_write=per_read) as port:
        ids = itertools.count()
        backend = RemoteBackend(
            RemoteConfig(id="m", base_url=f"http://127.0.0.1:{port}/v1"),
            new_id=lambda: f"call_{next(ids)}",
        )
        request = ChatRequest(model="m", messages=(UserMessage("hi"),), tools=(Tool("f"),))
        times = []
        for _ in range(repeat + 1):
            start = time.process_time()
            async for _event in backend.chat(request, Meter()):
                pass
            times.append((time.process_time() - start) / chunks * 1e6)
        await backend.close()
        return statistics.median(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--chunks", type=int, default=4000)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--per-read", type=int, default=1, help="chunks that arrive together")
    parser.add_argument("--shapes", nargs="*", default=SHAPES)
    args = parser.parse_args()
    run = asyncio.run
    try:
        import uvloop

        run = uvloop.run
    except ImportError:
        pass
    results = {}
    for shape in args.shapes:
        found = measure(shape, args.chunks, args.repeat, args.per_read)
        found["socket"] = run(over_a_socket(shape, args.chunks, args.repeat, args.per_read))
        results[shape] = found
        row = "  ".join(f"{name} {value:6.2f}" for name, value in found.items())
        print(f"{shape:10} {row}   µs a chunk")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
