"""Connections to other servers, kept from one request to the next: aiohttp as we use it.

What the clients of engine servers and of providers share. It must not know: what is asked over
a connection, and which error of ours a failure becomes.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import aiohttp

REUSE_SECONDS = 0.1
"""How long the end of a body is waited for, for the sake of the connection."""


def open_session(headers: Mapping[str, str], *, connect_seconds: float) -> aiohttp.ClientSession:
    """As many connections as are asked for; each read's time is the caller's to limit."""
    return aiohttp.ClientSession(
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_seconds),
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=256 * 1024,
    )


def was_stale(error: BaseException) -> bool:
    """Whether what failed before the head of an answer is a kept connection that the server had
    closed, seen while its answer was waited for or while it was written to."""
    broke = isinstance(
        error,
        aiohttp.ServerDisconnectedError
        | aiohttp.ClientOSError
        | aiohttp.ClientConnectionResetError,
    )
    return broke and not isinstance(error, aiohttp.ClientConnectorError)


async def reach_end(response: aiohttp.ClientResponse) -> None:
    """Reads the end of the body, so that the connection can be used again."""
    if response.content.at_eof():
        return
    with suppress(aiohttp.ClientError, OSError, TimeoutError):
        async with asyncio.timeout(REUSE_SECONDS):
            while await response.content.readany():
                pass


class ShortQueue(list[Any]):
    """A deque for few items: an empty one takes 700 bytes, and every stream has three."""

    __slots__ = ()

    def popleft(self) -> Any:
        return self.pop(0)

    def appendleft(self, item: Any) -> None:
        self.insert(0, item)


def shorten_queues(response: aiohttp.ClientResponse) -> None:
    """Those of aiohttp, which bounds what is in them, so that a list does for them. Where a version
    of it has none under these names, it keeps what it has."""
    connection = response.connection
    protocol = None if connection is None else connection.protocol
    for owner in (response.content, protocol):
        for name in ("_buffer", "_http_chunk_splits"):
            queue = getattr(owner, name, None)
            if type(queue) is deque:
                setattr(owner, name, ShortQueue(queue))
