"""Does the gateway stay the same under many streams that are cut on both sides?

    python benchmarks/gateway_soak.py [--streams 20000] [--at-once 32] [--cut 0.3] [--seed 7]

A fake provider answers with a random number of chunks, sometimes slowly; every so many answers are
cut at a random place (before the head, within a chunk, between two, after the finish reason), by a
close or a reset. Every so many clients leave at a random moment, before the head or after some
frames. One answer in six is unary. Everything is on in the gateway. Prints the resident memory
after a tenth of the requests and at the end, open files at both, and what is still running.
"""

import argparse
import asyncio
import contextlib
import json
import random
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent))
from gateway_peers import KEY, PATH
from gateway_upstream import HEAD, plain, stream_of
from idle_streams import gateway_before, open_files, resident_kb

HEALTHY = plain({"object": "list", "data": [{"id": "fake", "object": "model"}]})


class CuttingProvider(asyncio.Protocol):
    """Answers one request after the other, or hangs up somewhere within."""

    chance = random.Random(1)
    cut = 0.3
    num_open = 0
    num_cut = 0
    answers = tuple(stream_of("content", number) for number in range(1, 40))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._data = b""
        self._task: asyncio.Task[None] | None = None
        CuttingProvider.num_open += 1

    def connection_lost(self, exc: Exception | None) -> None:
        CuttingProvider.num_open -= 1
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, rest = self._data.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        if len(rest) >= length:
            self._data = rest[length:]
            self._task = asyncio.ensure_future(self._answer())

    async def _answer(self) -> None:
        chance = self.chance
        frames = chance.choice(self.answers)
        raw = [HEAD, *(b"%x\r\n%b\r\n" % (len(frame), frame) for frame in frames), b"0\r\n\r\n"]
        cut = chance.random() < self.cut
        end = chance.randrange(len(raw)) if cut else len(raw)
        slow = chance.random() < 0.2
        for piece in raw[:end]:
            if self._transport.is_closing():
                return
            self._transport.write(piece)
            if slow:
                await asyncio.sleep(0.002)
        if not cut:
            return
        CuttingProvider.num_cut += 1
        if chance.random() < 0.5:
            self._transport.write(raw[end][: chance.randrange(len(raw[end]))])
        if chance.random() < 0.5:
            self._transport.close()
        else:
            self._transport.abort()


def request_bytes(port: int, *, stream: bool, words: int) -> bytes:
    content = "word " * words
    body = {"model": "fake", "stream": stream, "messages": [{"role": "user", "content": content}]}
    raw = json.dumps(body).encode()
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {KEY}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
    )
    return head.encode() + raw


async def one(port: int, chance: random.Random, cut: float) -> str:
    """How one request ended for its client."""
    request = request_bytes(
        port, stream=chance.random() < 5 / 6, words=chance.choice((5, 50, 2000))
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    leaves = chance.random() < cut
    try:
        writer.write(request)
        if leaves and chance.random() < 0.3:
            await asyncio.sleep(chance.uniform(0, 0.01))
            return "left early"
        seen = b""
        enough = chance.randrange(200, 4000) if leaves else None
        while part := await reader.read(65536):
            seen += part
            if enough is not None and len(seen) >= enough:
                return "left"
            if seen.endswith(b"0\r\n\r\n") or is_whole_body(seen):
                break
        status = seen[9:12].decode()
        return f"{status} with an error" if status == "200" and b'"error"' in seen else status
    except OSError as error:
        return type(error).__name__
    finally:
        writer.transport.abort()


def is_whole_body(seen: bytes) -> bool:
    head, found, body = seen.partition(b"\r\n\r\n")
    lower = head.lower()
    if not found or b"content-length:" not in lower:
        return False
    return len(body) >= int(lower.split(b"content-length:")[1].split(b"\r\n")[0])


def running_requests(port: int) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    found = [line for line in lines if line.startswith("rejoinder_requests_running{")]
    return sum(float(line.rpartition(" ")[2]) for line in found)


async def quiet(port: int) -> None:
    """Returns when nothing runs, and idle connections to the provider have been given up."""
    async with asyncio.timeout(90):
        while await asyncio.to_thread(running_requests, port) or CuttingProvider.num_open:
            await asyncio.sleep(0.2)


async def soak(port: int, pid: int, arguments: argparse.Namespace) -> None:
    chance = random.Random(arguments.seed)
    ends: Counter[str] = Counter()
    marks: list[tuple[int, float]] = []
    left = arguments.streams

    async def client() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            ends[await one(port, chance, arguments.cut)] += 1
            done = ends.total()
            if done % (arguments.streams // 10) == 0:
                marks.append((done, resident_kb(pid) / 1024))
                print(f"after {done:6d}: {marks[-1][1]:.1f} MB", flush=True)

    await asyncio.gather(*(one(port, chance, 0.0) for _ in range(4)))
    await quiet(port)
    files, began = open_files(pid), time.perf_counter()
    await asyncio.gather(*(client() for _ in range(arguments.at_once)))
    seconds = time.perf_counter() - began
    await quiet(port)
    end = resident_kb(pid) / 1024
    warm = marks[0][1]
    print(f"{ends.total()} requests in {seconds:.0f} s: {dict(ends.most_common())}")
    print(f"cut by the provider: {CuttingProvider.num_cut}")
    print(f"resident: {warm:.1f} MB after a tenth, {end:.1f} MB at the end ({end / warm - 1:+.1%})")
    print(f"open files: {files} before, {open_files(pid)} after")
    print("connections to the provider and running requests: 0")


async def main_async(arguments: argparse.Namespace) -> None:
    CuttingProvider.cut = arguments.cut
    async with gateway_before(CuttingProvider) as (port, pid, log):
        try:
            await soak(port, pid, arguments)
        finally:
            text = log.read_text(errors="replace")
            with contextlib.suppress(ValueError):
                print(text[text.index("Traceback") :][:3000])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=20_000)
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--cut", type=float, default=0.3, help="of each side")
    parser.add_argument("--seed", type=int, default=7)
    asyncio.run(main_async(parser.parse_args()))


if __name__ == "__main__":
    main()
