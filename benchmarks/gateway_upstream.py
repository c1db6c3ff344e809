"""A provider that costs next to nothing: canned bytes from a process of its own.

    python benchmarks/gateway_upstream.py --port 9101 --chunks 64 [--shape content] [--delay 0]

Every answer is encoded once, at start. `--per-write` events go in one write. A request that does
not ask for a stream gets one JSON body; a GET is answered like a health check.
"""

import argparse
import asyncio
import contextlib
import json
import signal
import sys
from types import TracebackType

HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    b"Transfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n"
)


def stream_of(shape: str, chunks: int) -> list[bytes]:
    """The SSE frames of one answer with so many chunks of one shape; [DONE] is the last."""
    logprobs = {
        "content": [
            {
                "token": " token",
                "logprob": -0.25,
                "bytes": list(b" token"),
                "top_logprobs": [
                    {"token": " token", "logprob": -0.25, "bytes": list(b" token")},
                    {"token": " other", "logprob": -1.5, "bytes": list(b" other")},
                ],
            }
        ],
        "refusal": None,
    }
    counts = {"prompt_tokens": 11, "completion_tokens": chunks, "total_tokens": 11 + chunks}

    def frame(
        delta: object, finish: str | None = None, scores: object = None, usage: object = None
    ) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": scores, "finish_reason": finish}
        chunk = {
            "id": "chatcmpl-fake",
            "object": "chat.completion.chunk",
            "created": 1_700_000_000,
            "model": "fake",
            "system_fingerprint": "fp_fake",
            "choices": [choice],
            "usage": usage,
        }
        return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"

    function = {"name": "f", "arguments": ""}
    opening = {"index": 0, "id": "call_1", "type": "function", "function": function}
    one = {
        "content": frame({"content": " token"}),
        "reasoning": frame({"content": None, "reasoning_content": " token"}),
        "logprobs": frame({"content": " token"}, scores=logprobs),
        "usage": frame({"content": " token"}, usage=counts),
        "arguments": frame({"tool_calls": [{"index": 0, "function": {"arguments": " 12,"}}]}),
    }[shape]
    frames = [frame({"role": "assistant", "content": ""})]
    if shape == "arguments":
        frames.append(frame({"tool_calls": [opening]}))
    frames += [one] * chunks
    frames.append(frame({}, "tool_calls" if shape == "arguments" else "stop"))
    last = {"id": "chatcmpl-fake", "model": "fake", "choices": [], "usage": counts}
    frames.append(b"data: " + json.dumps(last).encode() + b"\n\n")
    return [*frames, b"data: [DONE]\n\n"]


def writes_of(frames: list[bytes], per_write: int) -> list[bytes]:
    """HTTP chunks, each with so many events."""
    groups = [b"".join(frames[i : i + per_write]) for i in range(0, len(frames), per_write)]
    return [b"%x\r\n%b\r\n" % (len(group), group) for group in groups]


def plain(value: object) -> bytes:
    body = json.dumps(value).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


def unary_of(chunks: int) -> bytes:
    """The same answer as one JSON body."""
    message = {"role": "assistant", "content": " token" * chunks}
    counts = {"prompt_tokens": 11, "completion_tokens": chunks, "total_tokens": 11 + chunks}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    head = {"id": "chatcmpl-fake", "object": "chat.completion", "created": 1_700_000_000}
    return plain({**head, "model": "fake", "choices": [choice], "usage": counts})


HEALTHY = plain({"object": "list", "data": [{"id": "fake", "object": "model"}]})


class _Connection(asyncio.Protocol):
    def __init__(self, writes: list[bytes], unary: bytes, delay: float) -> None:
        self._writes = writes
        self._unary = unary
        self._delay = delay
        self._data = b""
        self._task: asyncio.Task[None] | None = None
        self._can_write = asyncio.Event()
        self._can_write.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, rest = self._data.partition(b"\r\n\r\n")
        if not found:
            return
        if head.startswith(b"GET"):
            self._data = rest
            self._transport.write(HEALTHY)
            return
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        if len(rest) < length:
            return
        self._data = rest[length:]
        if b'"stream":true' not in rest.replace(b" ", b""):
            self._transport.write(self._unary)
            return
        self._task = asyncio.ensure_future(self._answer())

    async def _answer(self) -> None:
        self._transport.write(HEAD)
        for number, write in enumerate(self._writes):
            self._transport.write(write)
            if self._delay and number:  # the role comes with the first token
                await asyncio.sleep(self._delay)
            else:
                await self._can_write.wait()
        self._transport.write(b"0\r\n\r\n")


async def serve(port: int, shape: str, chunks: int, per_write: int, delay: float) -> None:
    loop = asyncio.get_running_loop()
    writes = writes_of(stream_of(shape, chunks), per_write)
    unary = unary_of(chunks)
    server = await loop.create_server(lambda: _Connection(writes, unary, delay), "127.0.0.1", port)
    print(server.sockets[0].getsockname()[1], flush=True)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()
    server.close()


class CannedUpstream:
    """This file as a process of its own, for as long as the context lasts; gives its port."""

    def __init__(self, shape: str, chunks: int, *, per_write: int = 1, delay: float = 0.0) -> None:
        self._args = [
            *("--shape", shape, "--chunks", str(chunks)),
            *("--per-write", str(per_write), "--delay", str(delay)),
        ]

    async def __aenter__(self) -> int:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, __file__, *self._args, stdout=asyncio.subprocess.PIPE
        )
        assert self._process.stdout is not None
        return int(await self._process.stdout.readline())

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        await self._process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--shape", default="content")
    parser.add_argument("--chunks", type=int, default=64)
    parser.add_argument("--per-write", type=int, default=1)
    parser.add_argument("--delay", type=float, default=0.0, help="seconds between two writes")
    args = parser.parse_args()
    asyncio.run(serve(args.port, args.shape, args.chunks, args.per_write, args.delay))


if __name__ == "__main__":
    main()
