"""What does a stream cost that nobody says anything on? Resident memory of the gateway, each.

    python benchmarks/idle_streams.py [--streams 2000] [--waves 3] [--settle 3]

A fake provider answers with one chunk and then only with comments; the clients read what comes and
stay. The gateway has everything on: keys, limits, a budget, the ledger, metrics, grammar, live
checks, the log. The streams are opened, measured and left in waves: what the first wave adds and
leaves behind is the process growing to its working size (allocator, caches), what a later wave adds
beyond that is nothing. The price of a stream is what a wave holds over the process with none open
before it; the first wave's is the honest one, for it has nothing to reuse.
"""

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent))
from gateway_peers import KEY, free_port, ours, running

CHUNK = {
    "id": "chatcmpl-fake",
    "object": "chat.completion.chunk",
    "created": 1_700_000_000,
    "model": "fake",
    "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hello"}}],
}
FIRST = b"data: " + json.dumps(CHUNK).encode() + b"\n\n"
COMMENT = b": still here\n\n"
HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"%x\r\n%b\r\n" % (len(FIRST), FIRST)
)


class SilentProvider(asyncio.Protocol):
    """One chunk for every request, then a comment every few seconds until it is hung up."""

    num_open = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._timer: asyncio.TimerHandle | None = None
        SilentProvider.num_open += 1

    def data_received(self, data: bytes) -> None:
        if b'"messages"' in data:
            self._transport.write(HEAD)
            self._timer = asyncio.get_running_loop().call_later(5, self._comment)

    def connection_lost(self, exc: Exception | None) -> None:
        SilentProvider.num_open -= 1
        if self._timer is not None:
            self._timer.cancel()

    def _comment(self) -> None:
        self._transport.write(b"%x\r\n%b\r\n" % (len(COMMENT), COMMENT))
        self._timer = asyncio.get_running_loop().call_later(5, self._comment)


class Client(asyncio.Protocol):
    """One stream that is read and not ended. `begun` is set by its first frame."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._seen = b""
        self.begun = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self.begun.done():
            return
        self._seen += data
        if b"Hello" in self._seen:
            self.begun.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.begun.done():
            self.begun.set_exception(ConnectionError(self._seen.decode("utf-8", "replace")))


def resident_kb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


async def wave(port: int, request: bytes, number: int) -> list[Client]:
    loop = asyncio.get_running_loop()
    clients: list[Client] = []
    for begin in range(0, number, 50):
        some = range(begin, min(begin + 50, number))
        made = [loop.create_connection(lambda: Client(request), "127.0.0.1", port) for _ in some]
        opened = [client for _, client in await asyncio.gather(*made)]
        await asyncio.gather(*(client.begun for client in opened))
        clients += opened
    return clients


async def measure(port: int, pid: int, arguments: argparse.Namespace) -> None:
    body = {
        "model": "fake",
        "messages": [{"role": "user", "content": "What does an idle stream cost?"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    raw = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"Authorization: Bearer {KEY}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(raw)}\r\n\r\n"
    )
    request = head.encode() + raw
    # A few first: what the first requests load and make once belongs to no stream.
    for client in await wave(port, request, 50):
        client.transport.abort()
    await asyncio.sleep(arguments.settle)
    first = before = resident_kb(pid)
    print(f"no stream open: {first / 1024:.1f} MB resident, {open_files(pid)} open files")
    for number in range(1, arguments.waves + 1):
        clients = await wave(port, request, arguments.streams)
        await asyncio.sleep(arguments.settle)
        during = resident_kb(pid)
        assert SilentProvider.num_open == arguments.streams, SilentProvider.num_open
        print(
            f"wave {number}: {len(clients)} open: {during / 1024:.1f} MB, "
            f"{(during - before) / len(clients):.1f} kB each over the process before, "
            f"{(during - first) / len(clients):.1f} over the process with none",
            flush=True,
        )
        for client in clients:
            client.transport.abort()
        async with asyncio.timeout(60):
            while SilentProvider.num_open:
                await asyncio.sleep(0.1)
        await asyncio.sleep(arguments.settle)
        before = resident_kb(pid)
        print(f"  all left: {before / 1024:.1f} MB, {open_files(pid)} open files", flush=True)


@contextlib.asynccontextmanager
async def gateway_before(provider: type[asyncio.Protocol]) -> AsyncIterator[tuple[int, int, Path]]:
    """Our gateway with everything on before a provider in this process: its port, its process and
    the file of what it logs."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(provider, "127.0.0.1", 0, backlog=4096)
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="gateway-") as name:
        folder = Path(name)
        gateway = ours(port, server.sockets[0].getsockname()[1], folder)
        log = folder / "log"
        context = running(gateway.command, f"http://127.0.0.1:{port}{gateway.ready}", log)
        pid = await asyncio.to_thread(context.__enter__)
        try:
            yield port, pid, log
        finally:
            await asyncio.to_thread(context.__exit__, None, None, None)


async def main_async(arguments: argparse.Namespace) -> None:
    async with gateway_before(SilentProvider) as (port, pid, _):
        await measure(port, pid, arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--waves", type=int, default=3)
    parser.add_argument("--settle", type=float, default=3.0, help="seconds before each look")
    asyncio.run(main_async(parser.parse_args()))


if __name__ == "__main__":
    main()
