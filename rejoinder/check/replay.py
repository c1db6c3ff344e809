"""`rejoinder replay`: a tape as a server, exact to the byte and to about a millisecond.

Raw sockets: each part is written when it came, counted from the request. Must not know: rules.
"""

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from rejoinder.check.exchange import Request, as_object, parse_json
from rejoinder.check.http1 import (
    HOP_BY_HOP,
    MAX_HEAD_BYTES,
    BadHttp,
    Head,
    chunk_of,
    head_bytes,
    read_body,
    read_head,
)
from rejoinder.check.tape import Recorded, read_tape, redacted

__all__ = ["Replayer"]

_SPIN_SECONDS = 0.0015
"""Shortly before a part is due the loop is polled instead of slept, for timers are coarse."""


class Replayer:
    """Answers as recorded. Of several exchanges that fit a request, one after the other.

    A request fits an exchange by method, path and JSON body; failing that by method and path;
    failing that, by method alone. `speed` 2 is twice as fast, 0 without any delay.
    """

    def __init__(self, exchanges: Sequence[Recorded], *, speed: float = 1.0) -> None:
        if not exchanges:
            raise ValueError("the tape is empty")
        self._exchanges = exchanges
        self._speed = speed
        self._served: defaultdict[tuple[object, ...], int] = defaultdict(int)

    async def start(self, host: str, port: int) -> asyncio.Server:
        return await asyncio.start_server(self._connected, host, port, limit=MAX_HEAD_BYTES)

    def choose(self, method: str, path: str, body: bytes) -> Recorded | None:
        """The exchange that answers a request; None if there is none of its method."""
        of_method = [r for r in self._exchanges if r.request.method == method]
        of_path = [r for r in of_method if path_of(r) == path.partition("?")[0]]
        wanted = _comparable(redacted_body(body))
        exact = [r for r in of_path if _comparable(r.request.body) == wanted]
        for fits, key in (
            (exact, (method, path, body)),
            (of_path, (method, path)),
            (of_method, (method,)),
        ):
            if fits:
                number = self._served[key]
                self._served[key] += 1
                return fits[number % len(fits)]
        return None

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (head := await read_head(reader)) is not None:
                started = time.perf_counter()
                body = await read_body(reader, head, to_end=False)
                if not await self._answer(head, body, writer, started):
                    break
        except (BadHttp, OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            # The last: the server is closing, and this connection with it.
            pass
        finally:
            writer.close()

    async def _answer(
        self, head: Head, body: bytes, writer: asyncio.StreamWriter, started: float
    ) -> bool:
        """Whether the connection goes on."""
        recorded = self.choose(head.start[0], head.start[1], body)
        if recorded is None:
            writer.write(head_bytes("HTTP/1.1 404 Not Found", (("Content-Length", "0"),)))
            await writer.drain()
            return True
        response = recorded.response
        streamed = len(response.reads) > 1 or response.ending != "whole"
        framing = (
            ("Transfer-Encoding", "chunked")
            if streamed
            else ("Content-Length", str(len(response.body)))
        )
        kept = tuple(h for h in response.headers if h[0].lower() not in HOP_BY_HOP)
        first = response.reads[0].seconds if response.reads else 0.0
        await self._wait(started, first)
        writer.write(head_bytes(f"HTTP/1.1 {response.status} Replayed", (*kept, framing)))
        bounds = [read.offset for read in response.reads] + [len(response.body)]
        for read, (start, end) in zip(response.reads, itertools.pairwise(bounds), strict=True):
            await self._wait(started, read.seconds)
            part = response.body[start:end]
            writer.write(chunk_of(part) if streamed else part)
            await writer.drain()
        if response.ending != "whole":
            return False
        if streamed:
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    async def _wait(self, started: float, seconds: float) -> None:
        if not self._speed:
            return
        due = started + seconds / self._speed
        left = due - time.perf_counter()
        if left > _SPIN_SECONDS:
            await asyncio.sleep(left - _SPIN_SECONDS)
        while time.perf_counter() < due:
            await asyncio.sleep(0)


def path_of(recorded: Recorded) -> str:
    return urlsplit(recorded.request.url).path


def redacted_body(body: bytes) -> bytes:
    """A body as a tape would have it."""
    return redacted(Request(body=body)).body


def _comparable(body: bytes) -> object:
    value, fault = parse_json(body.decode("utf-8", "replace"))
    return body if fault else as_object(value) or value


async def replay(
    path: Path, *, host: str, port: int, speed: float, started: Callable[[str], None]
) -> None:
    """Serves a tape until cancelled. Raises BadTape, ValueError, OSError."""
    server = await Replayer(list(read_tape(path)), speed=speed).start(host, port)
    async with server:
        bound = server.sockets[0].getsockname()
        started(f"http://{bound[0]}:{bound[1]}")
        await server.serve_forever()
