"""What the dialects cost: µs a request decoded, a chunk encoded, a frame read.

    .venv/bin/python benchmarks/dialects.py

Best of seven rounds on one thread; no model, no network.
"""

import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from rejoinder.dialects import DIALECTS, RequestPolicy
from rejoinder.dialects.sse import SseReader
from rejoinder.events import (
    ContentDelta,
    Event,
    ReasoningDelta,
    Started,
    ToolCallDelta,
    ToolCallStart,
)
from rejoinder.types import AnswerOptions, TokenLogprob, TopLogprob

T = TypeVar("T")

POLICY = RequestPolicy()
USER = {"role": "user", "content": "Name three rivers of Europe, please."}
PROPERTIES = {name: {"type": "string", "description": "A text."} for name in "abcdef"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": f"tool_{i}",
            "parameters": {"type": "object", "properties": PROPERTIES},
        },
    }
    for i in range(20)
]
REQUESTS: dict[str, dict[str, Any]] = {
    "plain request": {"model": "m", "messages": [USER], "temperature": 0.7, "stream": True},
    "20 messages, 20 tools": {"model": "m", "messages": [USER] * 20, "tools": TOOLS},
    "message of 1 MB": {
        "model": "m",
        "messages": [{"role": "user", "content": "word\n" * 200_000}],
    },
}
TOKEN = TokenLogprob(
    " word", -0.25, b" word", 1, tuple(TopLogprob("a", -1.5, b"a") for _ in range(5))
)
CHUNKS: dict[str, tuple[AnswerOptions, Event]] = {
    "text": (AnswerOptions(stream=True, include_usage=True), ContentDelta(0, " word")),
    "reasoning": (AnswerOptions(stream=True), ReasoningDelta(0, " word")),
    "arguments": (AnswerOptions(stream=True), ToolCallDelta(0, 0, '{"a":1')),
    "text with obfuscation": (
        AnswerOptions(stream=True, include_obfuscation=True),
        ContentDelta(0, " word"),
    ),
    "text with 5 top logprobs": (
        AnswerOptions(stream=True, logprobs=True, num_top_logprobs=5),
        ContentDelta(0, " word", (TOKEN,)),
    ),
}


def microseconds(work: Callable[[T], object], given: T, *, times: int) -> float:
    def once() -> float:
        started = time.perf_counter()
        for _ in range(times):
            work(given)
        return (time.perf_counter() - started) / times * 1e6

    return min(once() for _ in range(7))


def main() -> None:
    for dialect in DIALECTS.values():
        for name, request in REQUESTS.items():
            body = json.dumps(request).encode()
            times = max(3, min(2000, 20_000_000 // len(body) // 50))
            cost = microseconds(partial(dialect.decode_request, policy=POLICY), body, times=times)
            print(f"decode  {dialect.name:10} {name:26} {cost:10.1f} µs  ({len(body):,} bytes)")
        for name, (options, event) in CHUNKS.items():
            encoder = dialect.chunk_encoder(options, POLICY, lambda: "x7Kq2")
            for opening in (
                Started(model="m", id="chatcmpl-1", created=1_790_000_000),
                ContentDelta(0, "Hi"),
                ToolCallStart(0, 0, "call_1", "f"),
            ):
                encoder.feed(opening)
            cost = microseconds(encoder.feed, event, times=5000)
            print(f"encode  {dialect.name:10} {name:26} {cost:10.2f} µs")
    chunk = b'data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":" word"}}]}\n\n'
    for num_frames in (1, 10, 500):
        reader = SseReader()
        read = chunk * num_frames
        cost = microseconds(reader.feed, read, times=20_000 // num_frames) / num_frames
        print(f"read    {num_frames:4} frames a read {'':22} {cost:10.2f} µs a frame")


if __name__ == "__main__":
    main()
