"""The HTTP server: uvicorn, with what chat streams need of it.

HTTP/1.0 clients get bodies that end with the connection, idle sockets are closed, and a stop
lets streams finish within their grace period. It must not know: requests, dialects.
"""

import asyncio
import contextlib
import functools
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE as STATUS_LINES
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from rejoinder.web.flag import Flag

FIRST_REQUEST_SECONDS = 30.0
"""How long a new connection may take to send the head of its first request."""

MAX_HEAD_BYTES = 64 * 1024
"""Of a request line and its headers together; what has not ended by then gets a 431."""


class ChatProtocol(HttpToolsProtocol):
    """uvicorn's protocol with faults mended: a chunked body is never sent to an HTTP/1.0 client, a
    connection that never sends a request does not stay, a head has a longest size, and what is no
    HTTP gets an error in the shape of OpenAI's dialect. It keeps no deque that is empty almost
    always: thousands of idle streams have one each."""

    # Not in the dictionary: it would have more than 30 names, and be stored in 1.5 kB instead of
    # in the object.
    __slots__ = ("_first_request", "_head_size", "_in_head")

    _first_request: asyncio.TimerHandle | None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._in_head = True
        self._head_size = 0
        self.pipeline = _Pipeline()  # type: ignore[assignment]
        self.flow._is_writable_event = flag = Flag()  # type: ignore[assignment]
        flag.set()
        self._first_request = self.loop.call_later(FIRST_REQUEST_SECONDS, self._close_if_silent)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head:
            self._head_size += len(data)
            if self._head_size > MAX_HEAD_BYTES:
                text = f"The headers of this request are larger than {MAX_HEAD_BYTES} bytes."
                self._refuse(431, text)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._head_size = 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "This is no valid HTTP request.")

    def _refuse(self, status: int, text: str) -> None:
        """Ends the connection with an error, unless an answer is under way, or another request
        is to be answered first. What broke may be the body that the newest request waits for."""
        if self.transport.is_closing():
            return
        cycle = self.cycle
        is_free = cycle is None or cycle.response_complete
        if is_free or (cycle.more_body and not cycle.response_started and not self.pipeline):
            error = {"message": text, "type": "invalid_request_error", "param": None, "code": None}
            body = msgspec.json.encode({"error": error})
            headers = (
                *self.server_state.default_headers,
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(body)),
                (b"connection", b"close"),
            )
            lines = [b"%b: %b\r\n" % header for header in headers]
            self.transport.write(b"".join([STATUS_LINES[status], *lines, b"\r\n", body]))
        self.transport.close()

    def _close_if_silent(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _stop_waiting(self) -> None:
        """The first request has come, or never will."""
        if self._first_request is not None:
            self._first_request.cancel()
            self._first_request = None

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._stop_waiting()
        came, flag = cycle.message_event, Flag()
        cycle.message_event = flag  # type: ignore[assignment]
        if came.is_set():
            flag.set()
        send = _CloseDelimited if cycle.scope["http_version"] == "1.0" else _HeadWithBody
        super()._start_asgi_task(cycle, functools.partial(_answer, app, cycle, send))


def _answer(
    app: Any, cycle: RequestResponseCycle, sender: Callable[[Any], Any], *asgi: Any
) -> Awaitable[None]:
    """The application over a sender of ours. The cycle does not know it: two that know each other
    are freed late, and a connection with them."""
    scope, receive, _ = asgi
    answer: Awaitable[None] = app(scope, _Client(cycle, receive), sender(cycle))
    return answer


class _Client:
    """ASGI receive that also tells when the client leaves, without a task that waits for it."""

    __slots__ = ("_cycle", "_leave", "_receive")

    def __init__(self, cycle: RequestResponseCycle, receive: Callable[[], Awaitable[Any]]) -> None:
        self._cycle = cycle
        self._receive = receive
        self._leave: Callable[[], None] | None = None

    def __call__(self) -> Awaitable[Any]:
        return self._receive()

    def when_gone(self, leave: Callable[[], None] | None) -> None:
        cycle = self._cycle
        self._leave = leave
        came: Flag = cycle.message_event  # type: ignore[assignment]
        came.when_set(None if leave is None else self._look)
        if leave is not None:
            cycle.flow.resume_reading()  # or a closed connection is not seen
            self._look()

    def _look(self) -> None:
        if self._leave is not None and self._cycle.disconnected:
            self._leave()


class _Pipeline(list[Any]):
    """Requests that wait for the one before them: hardly ever any."""

    __slots__ = ()

    def appendleft(self, waiting: Any) -> None:
        self.insert(0, waiting)


class _HeadWithBody:
    """ASGI send that lets the head leave with the first bytes of the body: one write, not two.

    It stands in for the transport while the cycle writes either, and then steps aside.
    """

    __slots__ = ("_cycle", "_head", "_is_head", "_is_over", "_plain", "_transport")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._plain = type(cycle).send
        self._transport = cycle.transport
        self._head = b""
        self._is_head = False
        self._is_over = False

    async def __call__(self, message: Any) -> None:
        cycle = self._cycle
        if self._is_over:
            await self._plain(cycle, message)
            return
        self._is_head = message["type"] == "http.response.start"
        cycle.transport = self  # type: ignore[assignment]
        try:
            await self._plain(cycle, message)
        finally:
            cycle.transport = self._transport
        if not self._is_head:
            self._is_over = True
            self._flush()

    def write(self, data: bytes) -> None:
        if self._is_head:
            self._head = data
            return
        head, self._head = self._head, b""
        self._transport.write(head + data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def _flush(self) -> None:
        if self._head:
            self.write(b"")


class _CloseDelimited:
    """ASGI send for HTTP/1.0: what has no length ends with the connection (RFC 9112, 6.3)."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._plain = type(cycle).send
        self._unbounded = False

    async def __call__(self, message: Any) -> None:
        cycle = self._cycle
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message.get("headers", [])}
            self._unbounded = b"content-length" not in names
        if not self._unbounded:
            await self._plain(cycle, message)
            return
        if cycle.flow.write_paused and not cycle.disconnected:
            await cycle.flow.drain()
        if cycle.disconnected:
            return
        if message["type"] == "http.response.start":
            cycle.response_started = True
            cycle.keep_alive = False
            headers = [*cycle.default_headers, *message.get("headers", [])]
            lines = [b"%b: %b\r\n" % header for header in headers]
            status = STATUS_LINES[message["status"]]
            cycle.transport.write(b"".join([status, *lines, b"connection: close\r\n\r\n"]))
            return
        cycle.transport.write(message.get("body", b""))
        if not message.get("more_body", False):
            cycle.response_complete = True
            cycle.message_event.set()
            cycle.transport.close()
            cycle.on_response()


class ChatServer(uvicorn.Server):
    """Stops in order: no new connections, `on_stop`, streams end within the grace period."""

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], Awaitable[None]]) -> None:
        super().__init__(config)
        self._on_stop = on_stop

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn's handler, without its habit of killing the process by the signal afterwards:
        what runs the server has things to close."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        stopping = asyncio.ensure_future(self._on_stop())
        try:
            await super().shutdown(sockets)
        finally:
            stopping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await stopping


def make_server(
    app: Any,
    *,
    grace_seconds: float,
    on_stop: Callable[[], Awaitable[None]],
) -> ChatServer:
    """A server ready to `serve(sockets=…)`. Its own log lines and access log are off."""
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=ChatProtocol,
        interface="asgi3",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        date_header=True,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(grace_seconds) + 5,
        backlog=2048,
    )
    return ChatServer(config, on_stop)
