"""ASGI answers: one JSON body, or one event stream.

The stream holds its status line until there is something to say (A35), sends what is ready in
one write, keeps the connection alive with comments, and notices when the client leaves. It must
not know: what the bytes mean, who asked.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Protocol
from urllib.parse import quote

from rejoinder.web.flag import Flag

Scope = Any
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Headers = Mapping[str, str]

_PLAIN = "".join(map(chr, range(0x20, 0x7F)))

KEEPALIVE = b": keep-alive\n\n"
MAX_BUFFERED_BYTES = 256 * 1024
"""What a slow reader may have waiting before its stream is held up."""


def header_text(text: str) -> str:
    """A name that people gave, as a header can carry it: what is not printable ASCII in UTF-8 and
    percent signs."""
    return text if text.isascii() and text.isprintable() else quote(text, safe=_PLAIN)


def raw_headers(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]


async def send_body(
    send: Send,
    status: int,
    body: bytes,
    headers: Headers,
    *,
    content_type: str = "application/json",
) -> None:
    """One complete answer."""
    head = {"content-type": content_type, "content-length": str(len(body)), **headers}
    start = {"type": "http.response.start", "status": status, "headers": raw_headers(head)}
    await send(start)
    await send({"type": "http.response.body", "body": body})


class ClientGone(Exception):
    """The client closed its connection before the answer was complete."""


class Client(Protocol):
    """ASGI receive of our server."""

    def __call__(self) -> Awaitable[Any]: ...

    def when_gone(self, leave: Callable[[], None] | None) -> None:
        """`leave` is called once or more when the client has closed its connection, at once if it
        has already; None ends that. The request's body must have been read."""


@contextlib.asynccontextmanager
async def cancelled_when_gone(client: Client) -> AsyncIterator[None]:
    """Runs the body; when the client leaves meanwhile, cancels it and raises ClientGone."""
    task = asyncio.current_task()
    assert task is not None
    gone = False

    def leave() -> None:
        nonlocal gone
        if not gone:
            gone = True
            task.cancel()

    try:
        client.when_gone(leave)
        yield
    except asyncio.CancelledError:
        if gone and task.uncancel() == 0:
            raise ClientGone from None
        raise
    finally:
        client.when_gone(None)


class FrameStream:
    """Sends frames as they are made.

    `frames` yields bytes; b"" means that something happened but there is nothing to show.
    `render_error(error)` turns an exception of `frames` into status, body and headers of an
    answer before the first byte; `error_frames(error)` into the last bytes after it.
    """

    __slots__ = (
        *("_buffer", "_buffered", "_error_frames", "_failure", "_frames", "_gone", "_headers"),
        *("_idle", "_keepalive_seconds", "_last_write", "_producer"),
        *("_render_error", "_room", "_timer", "_wake"),
    )

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        *,
        headers: Callable[[], Headers],
        keepalive_seconds: float,
        render_error: Callable[[Exception], tuple[int, bytes, Headers]],
        error_frames: Callable[[Exception], bytes],
    ) -> None:
        self._frames = frames
        self._headers: Callable[[], Headers] | None = headers
        self._keepalive_seconds = keepalive_seconds
        self._render_error = render_error
        self._error_frames = error_frames
        self._buffer: list[bytes] = []
        self._buffered = 0
        self._wake = Flag()
        self._room = Flag()
        self._idle = False
        self._gone = False
        self._last_write = 0.0
        self._failure: Exception | None = None
        self._producer: asyncio.Future[None] | None = None

    async def send(self, client: Client, send: Send) -> None:
        """Raises ClientGone when the client left first; what `frames` raises is rendered, not
        raised, unless it is a cancellation."""
        loop = asyncio.get_running_loop()
        producer = self._producer = asyncio.ensure_future(self._produce())
        producer.add_done_callback(self._made)
        self._last_write = loop.time()
        self._timer = loop.call_later(self._keepalive_seconds, self._tick, loop)
        try:
            client.when_gone(self._leave)
            await self._write(producer, send, loop)
        finally:
            self._timer.cancel()
            client.when_gone(None)
            # Waited for, but not awaited: its error would then lead here, and from here to it.
            self._producer = None
            if not producer.done():
                producer.cancel()
                await asyncio.wait((producer,))
            if not producer.cancelled():
                producer.exception()

    async def _produce(self) -> None:
        has_begun = False
        async with contextlib.aclosing(self._frames) as frames:
            async for frame in frames:
                if frame:
                    self._buffer.append(frame)
                    self._buffered += len(frame)
                    del frame  # or it is kept until the next one comes
                    self._wake.set()
                    if not has_begun:
                        # The first need not wait for what came with it.
                        has_begun = True
                        await asyncio.sleep(0)
                    if self._buffered > MAX_BUFFERED_BYTES:
                        self._room.clear()
                        await self._room.wait()

    async def _write(
        self,
        producer: "asyncio.Future[None]",
        send: Send,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._gone:
                raise ClientGone
            ended = producer.done()
            error = self._error_of(producer) if ended else None
            if isinstance(error, Exception) and self._headers is not None and not self._buffer:
                status, body, headers = self._render_error(error)
                await send_body(send, status, body, headers)
                return
            if isinstance(error, Exception):
                self._buffer.append(self._error_frames(error))
            elif error is not None:
                raise error
            if self._idle and not self._buffer and not ended:
                self._buffer.append(KEEPALIVE)
            self._idle = False
            if self._headers is not None:
                headers, self._headers = self._headers(), None
                start = {"status": 200, "headers": raw_headers(headers)}
                await send({"type": "http.response.start", **start})
                del headers, start  # for as long as the stream lasts
            message = {
                "type": "http.response.body",
                "body": b"".join(self._buffer),
                "more_body": not ended,
            }
            self._buffer.clear()
            self._buffered = 0
            self._room.set()
            self._last_write = loop.time()
            await send(message)
            del message  # or it is kept while nothing comes
            if ended:
                return

    def fail(self, error: Exception) -> None:
        """Ends the stream from outside, as if `frames` had raised the error."""
        self._failure = error
        if self._producer is not None:
            self._producer.cancel()

    def _error_of(self, producer: "asyncio.Future[None]") -> BaseException | None:
        if producer.cancelled():
            return self._failure or asyncio.CancelledError()
        return producer.exception()

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        silent = loop.time() - self._last_write
        if silent >= self._keepalive_seconds - 0.001:
            self._idle = True
            self._wake.set()
            silent = 0.0
        self._timer = loop.call_later(self._keepalive_seconds - silent, self._tick, loop)

    def _made(self, _: "asyncio.Future[None]") -> None:
        self._wake.set()

    def _leave(self) -> None:
        self._gone = True
        self._wake.set()
        self._room.set()
