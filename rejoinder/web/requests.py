"""Reading requests: bodies within their bounds, header values, the caller's key.

It must not know: what a body means.
"""

import asyncio
import zlib
from typing import Any

from rejoinder.errors import InvalidRequest, RequestTooLarge
from rejoinder.web.responses import ClientGone, Receive

BODY_SECONDS = 60.0
"""How long a client may take to send its body; a slower one gets a 400 and is closed."""

GZIP = 16 + zlib.MAX_WBITS

MAX_GZIP_MEMBERS = 1000
"""A body is one member, of some tools several; each costs more than its few bytes."""

PIECE_BYTES = 64 * 1024
"""What is decompressed at once: what follows a member is copied at its end."""


def header(scope: Any, name: bytes) -> str | None:
    """The first value of a header, or None."""
    for key, value in scope["headers"]:
        if key == name:
            text: str = value.decode("latin-1")
            return text
    return None


async def read_body(scope: Any, receive: Receive, *, max_bytes: int) -> bytes:
    """The whole decoded body. Raises RequestTooLarge, InvalidRequest, ClientGone."""
    coding = (header(scope, b"content-encoding") or "identity").strip().lower()
    if coding not in ("identity", "gzip"):
        raise InvalidRequest(
            f"Content-Encoding '{coding[:40]}' is not supported. Send gzip, or no coding at all."
        )
    length = header(scope, b"content-length")
    if length is not None and length.isdigit() and int(length) > max_bytes:
        raise _too_large(max_bytes)
    try:
        async with asyncio.timeout(BODY_SECONDS):
            raw = await _read(receive, max_bytes)
    except TimeoutError:
        raise InvalidRequest("The request body did not arrive in time.") from None
    return raw if coding == "identity" else _gunzip(raw, max_bytes)


async def _read(receive: Receive, max_bytes: int) -> bytes:
    message = await receive()
    if not message.get("more_body") and message["type"] == "http.request":
        body: bytes = message["body"]
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
        return body
    parts, size = [], 0
    while True:
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message["body"])
        size += len(message["body"])
        if size > max_bytes:
            raise _too_large(max_bytes)
        if not message.get("more_body"):
            return b"".join(parts)
        message = await receive()


def _gunzip(raw: bytes, max_bytes: int) -> bytes:
    """Decompresses at most max_bytes, so that a small body cannot become a huge one; in time that
    is linear in it, however many members it is made of."""
    parts: list[bytes] = []
    size = at = 0
    try:
        for _ in range(MAX_GZIP_MEMBERS):
            if at >= len(raw):
                return b"".join(parts)
            stream = zlib.decompressobj(GZIP)
            while not stream.eof:
                piece = raw[at : at + PIECE_BYTES]
                if not piece:
                    raise zlib.error("truncated")
                part = stream.decompress(piece, max_bytes - size + 1)
                size += len(part)
                if size > max_bytes:
                    raise _too_large(max_bytes)
                parts.append(part)
                at += len(piece) - len(stream.unused_data)
    except zlib.error:
        raise InvalidRequest("The request body is not valid gzip data.") from None
    if at < len(raw):
        raise InvalidRequest(f"The gzip data has more than {MAX_GZIP_MEMBERS} members.")
    return b"".join(parts)


def _too_large(max_bytes: int) -> RequestTooLarge:
    return RequestTooLarge(f"The request body is larger than {max_bytes} bytes.")
