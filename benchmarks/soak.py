"""Does the server stay the same under many short requests and clients that leave?

    python benchmarks/soak.py [--requests 2000] [--at-once 8] [--leave 0.3] [--snapshot-bytes 0]

Starts `rejoinder serve` with the embedded model and sends short requests, streamed and unary, with
every so many cut off at a random place. Prints the resident memory after a tenth of the requests
and at the end (which should be within 5 %), the KV cells in use, sequences and requests that are
still running, and open files. Host snapshots of prefixes are off unless asked for: they are
memory that grows on purpose, up to their budget.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aiohttp

WORDS = [
    "river",
    "stone",
    "lantern",
    "copper",
    "winter",
    "harbour",
    "signal",
    "orchard",
    "needle",
    "canvas",
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def gauges(session: aiohttp.ClientSession, url: str, names: list[str]) -> dict[str, float]:
    """Sums of the named metrics over their labels."""
    async with session.get(url + "/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return {
        name: sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + "{"))
        for name in names
    }


async def one(
    session: aiohttp.ClientSession, url: str, chance: random.Random, leave: float
) -> bool:
    """One request; whether it was cut off."""
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": " ".join(chance.choices(WORDS, k=12))}],
        "max_tokens": chance.randint(1, 12),
        "stream": chance.random() < 0.7,
        "n": 2 if chance.random() < 0.1 else 1,
    }
    cut = chance.random() < leave
    path = url + "/v1/chat/completions"
    try:
        async with asyncio.timeout(chance.uniform(0.0, 0.4) if cut else 120):
            async with session.post(path, data=json.dumps(body)) as answer:
                await answer.read()
    except TimeoutError:
        if not cut:
            raise
    return cut


async def soak(url: str, pid: int, arguments: argparse.Namespace) -> None:
    names = [
        "rejoinder_cells_used",
        "rejoinder_sequences_running",
        "rejoinder_sequences_waiting",
        "rejoinder_requests_running",
    ]
    chance = random.Random(7)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:
        while True:
            try:
                async with session.get(url + "/ready") as answer:
                    if answer.status == 200:
                        break
            except aiohttp.ClientError:
                await asyncio.sleep(0.1)
        gate = asyncio.Semaphore(arguments.at_once)
        done = cut = 0
        warm = 0.0

        async def run() -> None:
            nonlocal done, cut, warm
            async with gate:
                left = await one(session, url, chance, arguments.leave)
            cut += left
            done += 1
            if done == arguments.requests // 10:
                warm = resident_mb(pid)
                print(f"after {done:5d} requests: {warm:.1f} MB resident", flush=True)

        began = time.perf_counter()
        await asyncio.gather(*(run() for _ in range(arguments.requests)))
        seconds = time.perf_counter() - began
        await asyncio.sleep(1)
        end = resident_mb(pid)
        print(f"after {done:5d} requests: {end:.1f} MB resident ({end / warm - 1:+.1%})")
        print(f"{cut} of them cut off; {seconds:.0f} s")
        print(await gauges(session, url, names))
        print("open files:", len(os.listdir(f"/proc/{pid}/fd")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--leave", type=float, default=0.3)
    parser.add_argument("--snapshot-bytes", type=int, default=0)
    arguments = parser.parse_args()
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "rejoinder.toml").write_text(
            '[[models]]\nid = "default"\nbackend = "llama"\n'
            f"snapshot_bytes = {arguments.snapshot_bytes}\n"
        )
        command = [sys.executable, "-m", "rejoinder", "serve", "--port", str(port)]
        with (Path(folder) / "log").open("wb") as log:
            server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        try:
            asyncio.run(soak(f"http://127.0.0.1:{port}", server.pid, arguments))
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(30)


if __name__ == "__main__":
    main()
