"""Tapes: what is recorded comes back to the byte, in time, and without secrets."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rejoinder.check.exchange import Read, Request, Response
from rejoinder.check.main import ReplayOptions, main_replay
from rejoinder.check.record import Recorder
from rejoinder.check.replay import Replayer
from rejoinder.check.run import grade
from rejoinder.check.tape import (
    BadTape,
    Recorded,
    from_line,
    read_tape,
    redacted,
    to_line,
    write_tape,
)
from tests.check.ideal import KEY, MODEL, Ideal, serve

SECRET = "sk-abcdefghijklmnop0123456789"


def recorded(
    parts: list[tuple[float, bytes]], *, body: bytes = b"{}", path: str = "/v1/x"
) -> Recorded:
    whole, reads = b"", []
    for at, part in parts:
        reads.append(Read(len(whole), at))
        whole += part
    request = Request(method="POST", url=f"http://up{path}", body=body)
    headers = (("Content-Type", "text/event-stream"),)
    return Recorded(request, Response(status=200, headers=headers, body=whole, reads=tuple(reads)))


@given(
    st.lists(st.tuples(st.integers(0, 100), st.binary(min_size=1, max_size=20)), max_size=5),
    st.binary(max_size=20),
)
def test_lines_keep_every_byte(parts: list[tuple[int, bytes]], body: bytes) -> None:
    timed = [(at / 1000, part) for at, part in sorted(parts, key=lambda p: p[0])]
    before = recorded(timed, body=body)
    line = to_line(before)
    assert "\n" not in line
    assert from_line(line) == before


def test_secrets_are_left_out() -> None:
    request = Request(
        url=f"http://h/v1?api_key=123&x={SECRET}",
        headers=(("Authorization", f"Bearer {SECRET}"), ("xi-api-key", "abc"), ("X-A", "kept")),
        body=json.dumps({"note": f"my key is {SECRET}."}).encode(),
    )
    response = Response(headers=(("Set-Cookie", "session=1"), ("X-B", "kept")), body=b"")
    line = to_line(Recorded(request, response))
    for secret in (SECRET, "abc", "session=1", "123&"):
        assert secret not in line
    assert line.count("kept") == 2
    assert json.loads(redacted(request).body) == {"note": "my key is REDACTED."}


@pytest.mark.parametrize("line", ["", "[]", "{}", '{"v":1}', '{"v":1,"parts":[{}]}', "{"])
def test_other_lines_are_refused(line: str, tmp_path: Path) -> None:
    with pytest.raises(BadTape):
        from_line(line)
    if line:
        file = tmp_path / "t.jsonl"
        file.write_text(f"\n{line}\n")
        with pytest.raises(BadTape, match="line 2"):
            list(read_tape(file))


@asynccontextmanager
async def running(start: Callable[[str, int], object]) -> AsyncIterator[str]:
    server = await start("127.0.0.1", 0)  # type: ignore[misc]
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def read_timed(url: str, body: bytes) -> tuple[list[tuple[float, bytes]], int]:
    parts = []
    async with aiohttp.ClientSession() as session:
        started = time.perf_counter()
        async with session.post(url, data=body) as response:
            async for part in response.content.iter_any():
                parts.append((time.perf_counter() - started, part))
        return parts, response.status


async def test_replay_is_exact_to_the_byte_and_in_time() -> None:
    parts = [(0.02 + 0.01 * n, b"data: %d\n\n" % n) for n in range(20)]
    async with running(Replayer([recorded(parts)]).start) as url:
        came, status = await read_timed(f"{url}/v1/x", b"{}")
    assert status == 200
    assert b"".join(part for _, part in came) == b"".join(part for _, part in parts)
    assert len(came) >= 15
    # Never early; how late is what benchmarks/check_replay.py measures on a quiet machine.
    assert came[0][0] >= 0.019
    assert came[-1][0] >= 0.209


async def test_replay_without_delays_is_quick() -> None:
    parts = [(n * 10.0, b"data: %d\n\n" % n) for n in range(5)]
    async with running(Replayer([recorded(parts)], speed=0).start) as url:
        came, _ = await read_timed(f"{url}/v1/x", b"{}")
    assert b"".join(part for _, part in came) == b"".join(part for _, part in parts)
    assert came[-1][0] < 5


async def test_replay_chooses_by_body_then_path_then_turn() -> None:
    tape = [
        recorded([(0.0, b"one")], body=b'{"a": 1}'),
        recorded([(0.0, b"two")], body=b'{"a":2}'),
        recorded([(0.0, b"three")], body=b'{"a":2}'),
        recorded([(0.0, b"other")], path="/other"),
    ]
    replayer = Replayer(tape)

    def said(path: str, body: bytes) -> bytes:
        chosen = replayer.choose("POST", path, body)
        assert chosen is not None
        return chosen.response.body

    assert said("/v1/x", b'{"a":1}') == b"one"
    assert [said("/v1/x", b'{"a": 2}') for _ in range(3)] == [b"two", b"three", b"two"]
    assert said("/v1/x", b"unknown") == b"one"
    assert said("/other?q=1", b"unknown") == b"other"
    assert replayer.choose("GET", "/v1/x", b"") is None


async def test_cut_streams_are_cut_again() -> None:
    base = recorded([(0.0, b"data: 1\n\n"), (0.01, b"data: 2")])
    response = base.response
    cut = Response(
        status=200, headers=response.headers, body=response.body, reads=response.reads, ending="cut"
    )
    async with running(Replayer([Recorded(base.request, cut)]).start) as url:
        with pytest.raises(aiohttp.ClientPayloadError):
            await read_timed(f"{url}/v1/x", b"{}")


async def test_recorded_server_grades_as_the_server(tmp_path: Path) -> None:
    kept: list[Recorded] = []
    only = ("R95", "R107", "R1", "R2", "R69", "R12")
    async with serve(Ideal("O")) as upstream, running(Recorder(upstream, kept.append).start) as url:
        report = await grade(url, model=MODEL, api_key=KEY, dialect="openai", only=only)
    assert report.score == 100.0
    assert len(kept) == report.num_requests + 1
    tape = tmp_path / "tape.jsonl"
    write_tape(tape, kept)
    assert KEY not in tape.read_text()
    again = list(read_tape(tape))
    assert [r.response.body for r in again] == [r.response.body for r in kept]
    async with running(Replayer(again).start) as url:
        replayed = await grade(url, model=MODEL, dialect="openai", only=only)
    assert replayed.score == 100.0
    assert replayed.num_requests == report.num_requests


async def test_recorder_says_that_the_server_is_away() -> None:
    kept: list[Recorded] = []
    async with running(Recorder("http://127.0.0.1:9", kept.append).start) as url:
        came, status = await read_timed(f"{url}/v1/x", b"{}")
    assert status == 502
    assert b"cannot be reached" in came[0][1]


async def test_recorder_passes_parts_on_at_once() -> None:
    parts = [(0.15 * n, b"data: %d\n\n" % n) for n in range(3)]
    kept: list[Recorded] = []
    async with (
        running(Replayer([recorded(parts)]).start) as upstream,
        running(Recorder(upstream, kept.append).start) as url,
    ):
        came, _ = await read_timed(f"{url}/v1/x", b"{}")
        await asyncio.sleep(0.05)
    assert came[0][0] < 0.14 and came[-1][0] >= 0.29
    seconds = [read.seconds for read in kept[0].response.reads]
    assert seconds == sorted(seconds) and seconds[-1] >= 0.29


def test_bad_tapes_end_with_a_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text("nonsense\n")
    assert main_replay(ReplayOptions(file=str(file))) == 1
    assert "line 1" in capsys.readouterr().err.replace("\n", " ")
    file.write_text("")
    assert main_replay(ReplayOptions(file=str(file))) == 1
    assert main_replay(ReplayOptions(file=str(tmp_path / "none"))) == 1


@pytest.mark.parametrize("url", ["ftp://x", "http://", "://"])
def test_bad_upstreams_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="URL"):
        Recorder(url, lambda r: None)
