"""As much HTTP/1.1 as recording and replaying need, on raw asyncio streams.

A recorder must pass on bytes as they come, so it reads heads and framing by itself. Must not
know: tapes, rules.
"""

import asyncio
from collections.abc import AsyncIterator

from msgspec import Struct

from rejoinder.check.exchange import Headers

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 256 * 1024 * 1024

HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding"}
    | {"upgrade", "content-length"}
)


class BadHttp(Exception):
    """What came is no HTTP/1.1."""


class Head(Struct, frozen=True):
    """A start line in three words, and the headers in order."""

    start: tuple[str, str, str]
    headers: Headers

    def get(self, name: str) -> str:
        return next((v for k, v in self.headers if k.lower() == name), "")

    @property
    def end_to_end(self) -> Headers:
        return tuple((k, v) for k, v in self.headers if k.lower() not in HOP_BY_HOP)


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    """The next head; None if the peer has closed. Raises BadHttp."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise BadHttp("the connection ended inside a head") from None
        return None
    except asyncio.LimitOverrunError:
        raise BadHttp("the head is too long") from None
    first, *rest = raw[:-4].decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2:
        raise BadHttp(f"no HTTP: {first[:60]!r}")
    pairs = [line.partition(":") for line in rest]
    headers = tuple((name.strip(), value.strip()) for name, _, value in pairs)
    return Head((words[0], words[1], words[2] if len(words) > 2 else ""), headers)


async def read_body(reader: asyncio.StreamReader, head: Head, *, to_end: bool) -> bytes:
    """A whole body. `to_end`: without a length it goes on to the end of the connection."""
    parts = [part async for part in body_parts(reader, head, to_end=to_end)]
    return b"".join(parts)


async def body_parts(
    reader: asyncio.StreamReader, head: Head, *, to_end: bool
) -> AsyncIterator[bytes]:
    """A body as it comes, without its chunked framing. Raises IncompleteReadError if it is cut."""
    if "chunked" in head.get("transfer-encoding").lower():
        async for part in _chunked(reader):
            yield part
        return
    length = head.get("content-length")
    if not length:
        while to_end and (part := await reader.read(65536)):
            yield part
        return
    if not length.isdigit() or int(length) > MAX_BODY_BYTES:
        raise BadHttp(f"Content-Length is {length!r:.40}")
    left = int(length)
    while left:
        part = await reader.read(min(left, 65536))
        if not part:
            raise asyncio.IncompleteReadError(b"", left)
        left -= len(part)
        yield part


async def _chunked(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while True:
        line = (await reader.readuntil(b"\r\n")).split(b";")[0].strip()
        try:
            size = int(line, 16)
        except ValueError:
            raise BadHttp(f"no chunk size: {line[:20]!r}") from None
        if size > MAX_BODY_BYTES or size < 0:
            raise BadHttp("a chunk is too large")
        if size == 0:
            while await reader.readuntil(b"\r\n") != b"\r\n":
                pass
            return
        data = await reader.readexactly(size + 2)
        yield data[:-2]


def chunk_of(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def head_bytes(start: str, headers: Headers) -> bytes:
    return "\r\n".join([start, *(f"{k}: {v}" for k, v in headers), "", ""]).encode("latin-1")
