"""The writes of one answer, as the transport sees them."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rejoinder.testing import scripted_server
from rejoinder.web.responses import FrameStream
from rejoinder.web.server import _HeadWithBody
from tests.web import wire

START = {"type": "http.response.start"}


class Wire:
    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.writes.append(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


class Cycle:
    """What uvicorn's cycle does with its transport."""

    def __init__(self, transport: Any, method: str = "GET", *, keep_alive: bool = True) -> None:
        self.transport = transport
        self._method = method
        self._keep_alive = keep_alive

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.transport.write(b"head ")
            return
        if self._method != "HEAD":
            self.transport.write(message["body"])
        if not message.get("more_body") and not self._keep_alive:
            self.transport.close()


async def writes_of(cycle: Cycle, wire: Wire, *bodies: bytes) -> list[bytes]:
    send = _HeadWithBody(cycle)  # type: ignore[arg-type]
    await send(START)
    for number, body in enumerate(bodies, 1):
        more = number < len(bodies)
        await send({"type": "http.response.body", "body": body, "more_body": more})
    assert cycle.transport is wire, "the cycle has its transport back"
    return wire.writes


async def test_the_first_frame_leaves_alone_and_the_rest_of_its_read_together() -> None:
    async def frames() -> AsyncGenerator[bytes, None]:
        for frame in (b"", b"1", b"2", b"3"):
            yield frame

    class Client:
        async def __call__(self) -> Any:
            await asyncio.Event().wait()

        def when_gone(self, leave: Callable[[], None] | None) -> None:
            """It stays."""

    bodies: list[bytes] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            bodies.append(message["body"])

    stream = FrameStream(
        frames(),
        headers=dict,
        keepalive_seconds=60,
        render_error=lambda error: (500, b"", {}),
        error_frames=lambda error: b"",
    )
    await stream.send(Client(), send)
    assert bodies == [b"1", b"23"]


async def test_the_head_leaves_with_the_body() -> None:
    wire = Wire()
    assert await writes_of(Cycle(wire), wire, b"body") == [b"head body"]


async def test_each_later_piece_is_a_write_of_its_own() -> None:
    wire = Wire()
    assert await writes_of(Cycle(wire), wire, b"a", b"b", b"c") == [b"head a", b"b", b"c"]


async def test_an_answer_without_a_body_has_a_head() -> None:
    wire = Wire()
    assert await writes_of(Cycle(wire, "HEAD"), wire, b"") == [b"head "]


async def test_what_closes_has_said_everything() -> None:
    for method, expected in (("GET", [b"head body"]), ("HEAD", [b"head "])):
        wire = Wire()
        cycle = Cycle(wire, method, keep_alive=False)
        assert await writes_of(cycle, wire, b"body") == expected
        assert wire.closed


FINE = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("before", [b"", FINE])
@pytest.mark.parametrize(
    ("sent", "status", "says"),
    [
        (b"this is no HTTP\r\n\r\n", 400, "valid HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00", 400, "valid HTTP"),
        (b"GET /health HTTP/1.1\r\nHost x\r\n\r\n", 400, "valid HTTP"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n", 400, "valid HTTP"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 3_000_000, 431, "larger than 65536"),
        (b"GET /" + b"a" * 3_000_000, 431, "larger than 65536"),
        (b"GET / HTTP/1.1\r\n" + b"X-Many: a\r\n" * 100_000, 431, "larger than 65536"),
        (CHUNKED + b"zz\r\n", 400, "valid HTTP"),
        (CHUNKED + b"2\r\n{}\r\n0\r\nContent-Length: 5\r\n\r\n", 400, "valid HTTP"),
        (CHUNKED + b"2\r\n{}tail\r\n", 400, "valid HTTP"),
    ],
)
def test_what_is_no_request_gets_an_error_as_json(
    before: bytes, sent: bytes, status: int, says: str
) -> None:
    with scripted_server([{"pieces": ["a"]}]) as server, wire.connect(server.port) as sock:
        if before:
            sock.sendall(before)
            assert wire.read_answer(sock).status == 200
        with suppress(ConnectionError):  # it may have been closed while we send
            sock.sendall(sent)
        with suppress(ConnectionError):
            answer = wire.read_answer(sock)
            assert (answer.status, answer.headers["content-type"]) == (status, "application/json")
            assert says in answer.json["error"]["message"] and "date" in answer.headers
            assert answer.headers["connection"] == "close"
            assert sock.recv(100) == b""
            return
        assert status == 431, "only what is long may be cut off while it is sent"


def test_a_long_head_that_is_not_too_long(tmp_path: Path) -> None:
    with scripted_server([{"pieces": ["a"]}]) as server, wire.connect(server.port) as sock:
        for _ in range(3):
            sock.sendall(wire.head_and_body("GET", "/health", None, {"X-Long": "a" * 60_000}))
            assert wire.read_answer(sock).status == 200
        body = {"model": "m", "messages": [{"role": "user", "content": "x" * 100_000}]}
        sock.sendall(wire.head_and_body("POST", wire.PATHS["openai"], body))
        assert wire.read_answer(sock).status == 200


def test_an_answer_does_not_wait_for_an_acknowledgement() -> None:
    """Nagle's algorithm holds a second write back for the 40 ms of a delayed acknowledgement."""
    times = []
    with scripted_server([{"pieces": ["a", "b"]}]) as server, wire.connect(server.port) as sock:
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
        request = wire.head_and_body("POST", wire.PATHS["openai"], body)
        for _ in range(12):
            began = time.perf_counter()
            sock.sendall(request)
            wire.read_answer(sock)
            times.append(time.perf_counter() - began)
    assert sorted(times)[2] < 0.035, times
