"""Streams that can be resumed: over real sockets, and the buffer by itself."""

import asyncio
import contextlib
import re
import socket
import time
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest

from rejoinder.errors import EngineFailed, NotFound, Unavailable
from rejoinder.testing import TestServer, scripted_server
from rejoinder.web.resume import KeptStream, Streams, events_in
from tests.web import wire
from tests.web.wire import PATHS

KEEP = 1.0
SCRIPT: list[dict[str, Any]] = [
    {"when": {"contains": "count"}, "pieces": [f"{i} " for i in range(40)], "delay_ms": 15},
    {"when": {"contains": "break"}, "pieces": [f"{i} " for i in range(20)], "delay_ms": 15,
     "fault": {"after": 12, "kind": "engine_error"}},
    {"when": {"contains": "refuse"}, "pieces": [], "fault": {"after": 0, "kind": "engine_error"}},
    {"pieces": ["Hello", " there", "."]},
]  # fmt: skip
# The SHA-256 sums of "one" and "two".
ONE = "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed"
TWO = "3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3"
KEYS = "".join(
    f'[[keys]]\nkey_sha256 = "{digest}"\naccount = "{account}"\n'
    for digest, account in ((ONE, "a"), (TWO, "b"))
)


@pytest.fixture(scope="module")
def server() -> Iterator[TestServer]:
    with scripted_server(SCRIPT, toml=f"[server]\nresume_seconds = {KEEP}\n{KEYS}") as server:
        yield server


def post(
    port: int, text: str, key: str = "one", last: str = "", path: str = "openai"
) -> socket.socket:
    body = {"model": "m", "messages": [{"role": "user", "content": text}], "stream": True}
    body["stream_options"] = {"include_usage": True}
    headers = {"Authorization": f"Bearer {key}", **({"Last-Event-ID": last} if last else {})}
    sock = wire.connect(port)
    sock.sendall(wire.head_and_body("POST", PATHS[path], body, headers))
    return sock


def whole(port: int, text: str, **more: Any) -> wire.Answer:
    with post(port, text, **more) as sock:
        return wire.read_answer(sock)


def part(port: int, text: str, num_events: int, **more: Any) -> bytes:
    """The first events of an answer; then the client is gone."""
    with post(port, text, **more) as sock:
        raw = b""
        while raw.count(b"\ndata: ") < num_events + 1:
            data = sock.recv(400)
            assert data
            raw += data
    # chunked framing: lines with only a size in hex, which no event has
    body = re.sub(rb"(?:^|\r\n)[0-9a-f]+\r\n", b"", raw.partition(b"\r\n\r\n")[2])
    return body[: body.rindex(b"\n\n") + 2]


def split(body: bytes) -> list[tuple[str, bytes]]:
    """(id, data) of each event; every one has both."""
    events = []
    for event in body.split(b"\n\n"):
        if event and not event.startswith(b":"):
            match = re.fullmatch(rb"id: (\S+)\ndata: (.*)", event)
            assert match is not None, event
            events.append((match[1].decode(), match[2]))
    return events


def text_of(events: list[tuple[str, bytes]]) -> str:
    body = b"".join(b"data: " + data + b"\n\n" for _, data in events)
    chunks = wire.Answer(200, {}, body).chunks
    choices = [choice for chunk in chunks for choice in chunk.get("choices", ())]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


COUNT = "".join(f"{i} " for i in range(40))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("num_events", [1, 5, 20])
def test_a_client_that_comes_back_gets_exactly_the_rest(
    server: TestServer, path: str, num_events: int
) -> None:
    first = split(part(server.port, "count", num_events, path=path))
    assert len(first) >= num_events
    time.sleep(0.2)
    rest = whole(server.port, "anything", last=first[-1][0], path=path)
    assert rest.status == 200
    assert rest.headers["content-type"].startswith("text/event-stream")
    events = [*first, *split(rest.body)]
    assert text_of(events) == COUNT
    numbers = [int(event_id.rpartition("-")[2]) for event_id, _ in events]
    assert numbers == list(range(1, len(events) + 1)), "none lost, none doubled"
    assert events[-1][1] == b"[DONE]" and [d for _, d in events].count(b"[DONE]") == 1
    assert len({data.partition(b'"id":"')[2][:40] for _, data in events[:-1]}) == 1
    assert b'"completion_tokens":40' in rest.body, "one usage, of the whole answer"


def test_again_and_again(server: TestServer) -> None:
    events = split(part(server.port, "count", 3))
    for _ in range(4):
        events += split(part(server.port, "", 3, last=events[-1][0]))
    events += split(whole(server.port, "", last=events[-1][0]).body)
    assert text_of(events) == COUNT


def test_an_older_event_is_sent_again(server: TestServer) -> None:
    """What the server had written may not have arrived."""
    answer = whole(server.port, "count")
    events = split(answer.body)
    rest = split(whole(server.port, "", last=events[9][0]).body)
    assert rest == events[10:]


def test_who_has_everything_gets_nothing(server: TestServer) -> None:
    events = split(whole(server.port, "hi").body)
    rest = whole(server.port, "", last=events[-1][0])
    assert rest.status == 204 and rest.body == b""


def test_it_is_made_while_nobody_reads(server: TestServer) -> None:
    events = split(part(server.port, "count", 2))
    time.sleep(0.8)
    began = time.perf_counter()
    rest = split(whole(server.port, "", last=events[-1][0]).body)
    assert time.perf_counter() - began < 0.4, "all of it was there"
    assert text_of(events + rest) == COUNT


@pytest.mark.parametrize("num_events", [2, 12])
def test_a_broken_stream_breaks_once_and_for_all(server: TestServer, num_events: int) -> None:
    events = split(part(server.port, "break", num_events))
    rest = split(whole(server.port, "", last=events[-1][0]).body)
    assert text_of(events + rest) == "".join(f"{i} " for i in range(12))
    assert b'"error"' in rest[-2][1] and rest[-1][1] == b"[DONE]"
    assert split(whole(server.port, "", last=events[-1][0]).body) == rest


def test_errors_before_the_first_event_are_statuses(server: TestServer) -> None:
    assert whole(server.port, "refuse").status == 500
    with wire.connect(server.port) as sock:
        body = {"model": "none", "messages": [{"role": "user", "content": "x"}], "stream": True}
        headers = {"Authorization": "Bearer one"}
        sock.sendall(wire.head_and_body("POST", PATHS["openai"], body, headers))
        assert wire.read_answer(sock).status == 404


BAD_IDS = ("{id}", "x-1", "-1", "1", "{token}-0x1", "{token}-999", "{token}-", "{token}-1-1", "%00")


@pytest.mark.parametrize("last", BAD_IDS)
def test_what_is_nobodys_or_somebody_elses_is_not_found(server: TestServer, last: str) -> None:
    event_id = split(part(server.port, "count", 2))[-1][0]
    asked = last.replace("{id}", event_id).replace("{token}", event_id.rpartition("-")[0])
    key = "two" if last == "{id}" else "one"
    answer = whole(server.port, "", key=key, last=asked)
    assert answer.status == 404 and answer.json["error"]["code"] == "stream_not_found"


def test_ids_cannot_be_guessed(server: TestServer) -> None:
    tokens = {split(part(server.port, "hi", 1))[0][0].rpartition("-")[0] for _ in range(5)}
    assert len(tokens) == 5 and all(len(token) >= 22 for token in tokens)


def test_it_expires(server: TestServer) -> None:
    event_id = split(part(server.port, "count", 2))[-1][0]
    time.sleep(KEEP + 0.6)
    assert whole(server.port, "", last=event_id).status == 404


def test_a_key_is_needed(server: TestServer) -> None:
    event_id = split(part(server.port, "count", 2))[-1][0]
    assert whole(server.port, "", key="nobody", last=event_id).status == 401


def test_a_new_connection_takes_over(server: TestServer) -> None:
    with post(server.port, "count") as old:
        raw = b""
        while raw.count(b"\ndata: ") < 4:
            raw += old.recv(400)
        event_id = re.findall(rb"\nid: (\S+)", raw)[0].decode()
        rest = split(whole(server.port, "", last=event_id).body)
        assert text_of(rest) == COUNT and rest[-1][1] == b"[DONE]"
        while data := old.recv(65536):
            raw += data
            if raw.endswith(b"0\r\n\r\n"):
                break
        assert b"another connection" in raw and b'"finish_reason":"stop"' not in raw


def test_unary_answers_are_as_ever(server: TestServer) -> None:
    answer = wire.chat(server.port, headers={"Authorization": "Bearer one"})
    assert answer.json["choices"][0]["message"]["content"] == "Hello there."


def test_off_nothing_differs() -> None:
    with scripted_server(SCRIPT) as server:
        plain = whole(server.port, "hi")
        asked = whole(server.port, "hi", last="x-1")
        assert b"id: " not in plain.body and plain.status == asked.status == 200
        assert len(plain.payloads) == len(asked.payloads)


# ---------------------------------------------------------------- the buffer by itself


def never_mind(error: Exception) -> bytes:
    return f"data: {error}\n\n".encode()


def start(streams: Streams, frames: AsyncGenerator[bytes, None], account: str = "a") -> KeptStream:
    running = lambda abort: contextlib.nullcontext()  # noqa: E731
    return streams.start(account, frames, error_frames=never_mind, running=running)


async def numbers(count: int, made: list[int], size: int = 10) -> AsyncGenerator[bytes, None]:
    for number in range(1, count + 1):
        made.append(number)
        yield b"data: %0*d\n\n" % (size, number)
        await asyncio.sleep(0)


async def test_it_is_made_only_so_far_ahead() -> None:
    streams = Streams(keep_seconds=60, stream_bytes=1000)
    made: list[int] = []
    stream = start(streams, numbers(1000, made))
    await asyncio.sleep(0.05)
    ahead = len(made)
    assert ahead < 30 and stream.size <= 1000 + 100
    got = b""
    async for data in stream.read_after(0):
        got += data
        assert stream.size <= 1100
        await asyncio.sleep(0)
    assert got.count(b"data: ") == 1000 and len(made) == 1000
    with pytest.raises(NotFound):
        stream.read_after(5)
    assert stream.read_after(stream.last - 3) is not None, "the last ones are kept"
    await streams.close()


async def endless(ended: asyncio.Event) -> AsyncGenerator[bytes, None]:
    try:
        while True:
            yield b"data: x\n\n"
            await asyncio.sleep(0.001)
    finally:
        ended.set()


async def test_leaving_for_too_long_ends_the_work() -> None:
    streams = Streams(keep_seconds=0.05, stream_bytes=1000)
    ended = asyncio.Event()
    stream = start(streams, endless(ended))
    reader = stream.read_after(0)
    await anext(reader)
    await asyncio.sleep(0.1)
    assert not ended.is_set(), "somebody reads"
    await reader.aclose()
    await asyncio.wait_for(ended.wait(), 1)
    with pytest.raises(NotFound):
        streams.find("a", f"{stream.token}-1")


async def test_a_reader_that_never_reads_does_not_keep_the_work() -> None:
    """A client that has left by the time its first event is made: nothing is ever read."""
    streams = Streams(keep_seconds=0.05, stream_bytes=1000)
    ended = asyncio.Event()
    stream = start(streams, endless(ended))
    await stream.begun()
    reader = stream.read_after(0)
    await reader.aclose()
    await asyncio.wait_for(ended.wait(), 1)
    with pytest.raises(NotFound):
        streams.find("a", f"{stream.token}-1")


async def test_memory_is_bounded_over_all_streams() -> None:
    streams = Streams(keep_seconds=60, stream_bytes=10_000, all_bytes=50_000)
    kept = []
    for _ in range(20):
        stream = start(streams, numbers(100, [], size=60))
        async for _data in stream.read_after(0):
            pass
        kept.append(stream)
    await asyncio.sleep(0)
    found = 0
    for stream in kept:
        with contextlib.suppress(NotFound):
            streams.find("a", f"{stream.token}-1")
            found += 1
    assert 3 <= found <= 7
    assert streams.find("a", f"{kept[-1].token}-1"), "the newest is kept"
    await streams.close()


async def test_the_end_of_the_server_ends_the_work() -> None:
    async def endless() -> AsyncGenerator[bytes, None]:
        while True:
            yield b""
            await asyncio.sleep(0.001)

    streams = Streams(keep_seconds=60)
    stream = start(streams, endless())
    stream.fail(Unavailable("stopping"))
    with pytest.raises(Unavailable):
        async for _ in stream.read_after(0):
            pass
    other = start(streams, endless())
    await other.begun()
    await asyncio.wait_for(streams.close(), 1)


async def test_an_error_is_an_event_after_the_first() -> None:
    async def breaks() -> AsyncGenerator[bytes, None]:
        yield b"data: 1\n\n"
        raise EngineFailed("gone")

    streams = Streams(keep_seconds=60)
    stream = start(streams, breaks())
    got = b"".join([data async for data in stream.read_after(0)])
    assert [line for line in got.split(b"\n") if line.startswith(b"data")] == [
        b"data: 1", b"data: gone"
    ]  # fmt: skip
    await streams.close()


def test_events_of_a_frame() -> None:
    frame = b"data: a\n\n: comment\n\nevent: x\ndata: b\n\n"
    assert list(events_in(frame)) == [b"data: a\n\n", b"event: x\ndata: b\n\n"]
    assert list(events_in(b"")) == []
