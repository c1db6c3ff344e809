"""A provider made of raw sockets: every byte, cut, delay and way of ending is the test's own."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


@dataclass
class Reply:
    """What one connection's next request is answered with. A float among `parts` is a pause.

    `head` None: the parts are everything, status line included. `end`: close, keep the connection
    open without a word, or reset it. `chunked`: each part is an HTTP chunk, and the connection
    is used again.
    """

    parts: list[bytes | float]
    head: bytes | None = SSE_HEAD
    end: Literal["close", "hang", "reset"] = "close"
    chunked: bool = False


@dataclass
class Upstream:
    """`requests` are the parsed bodies, `heads` the raw heads, in order. The last reply repeats."""

    replies: list[Reply]
    port: int = 0
    requests: list[dict[str, Any]] = field(default_factory=list)
    heads: list[bytes] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    num_connections: int = 0
    peer_closed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            self.peer_closed.set()
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        self.heads.append(head)
        self.times.append(asyncio.get_running_loop().time())
        self.requests.append(json.loads(await reader.readexactly(length)))
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        watch = asyncio.ensure_future(self._watch(reader))
        try:
            if reply.head is not None:
                end = (
                    b"Transfer-Encoding: chunked\r\n" if reply.chunked else b"Connection: close\r\n"
                )
                writer.write(reply.head + end + b"\r\n")
            for part in reply.parts:
                if isinstance(part, float):
                    await asyncio.sleep(part)
                    continue
                if part:
                    writer.write(b"%x\r\n%b\r\n" % (len(part), part) if reply.chunked else part)
                await writer.drain()
            if reply.end == "hang":
                await asyncio.wait_for(self.peer_closed.wait(), 10)
            elif reply.end == "reset":
                writer.transport.abort()
            elif reply.chunked:
                writer.write(b"0\r\n\r\n")
                await writer.drain()
                return True
            return False
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    async def _watch(self, reader: asyncio.StreamReader) -> None:
        """Notes when the other side goes away. It never sends before it has its answer."""
        while not reader.at_eof():
            await asyncio.sleep(0.005)
        self.peer_closed.set()


@asynccontextmanager
async def serving(*replies: Reply) -> AsyncIterator[Upstream]:
    upstream = Upstream(list(replies))
    server = await asyncio.start_server(upstream.handle, "127.0.0.1", 0, limit=1 << 22)
    upstream.port = server.sockets[0].getsockname()[1]
    try:
        yield upstream
    finally:
        server.close()


def frame(payload: object) -> bytes:
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return b"data: " + data + b"\n\n"


def chunk(
    delta: dict[str, Any] | None = None, finish: str | None = None, index: int = 0, **more: Any
) -> bytes:
    """One SSE frame with one choice."""
    choice = {"index": index, "delta": delta or {}, "finish_reason": finish}
    head = {"id": "up1", "object": "chat.completion.chunk", "created": 1, "model": "up"}
    return frame({**head, "choices": [choice], **more})


def usage(prompt: int = 5, completion: int = 2) -> bytes:
    counts = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    return frame({"id": "up1", "model": "up", "choices": [], "usage": counts})


DONE = b"data: [DONE]\n\n"


def answer(*texts: str) -> list[bytes | float]:
    """A whole good answer of these texts."""
    first = chunk({"role": "assistant", "content": ""})
    return [first, *(chunk({"content": t}) for t in texts), chunk(finish="stop"), usage(), DONE]


def failing(status: int, body: object = None, headers: str = "", **more: Any) -> Reply:
    """An HTTP error with a JSON body."""
    raw = (
        body
        if isinstance(body, bytes)
        else json.dumps(body or {"error": {"message": "no"}}).encode()
    )
    head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(raw)}\r\n{headers}".encode()
    return Reply([raw], head, **more)
