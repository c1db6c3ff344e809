"""Is the embedded engine faster than llama.cpp's own server on the same work?

Starts both in turn, in one run on the same machine, and sends both the same loads; prints medians
and their ratio. The peer comes from the package `xllamacpp` (pip install xllamacpp).

    python benchmarks/engine_vs_llama_server.py [--rounds 5] [--loads single,shared] [--busy 2]
                                                [--direct] [--threads 2]

--direct: our engine without the HTTP service around it. --busy: so many other busy processes.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
from engine_loads import DEFAULT_PATH, LOADS, Ask, engine_ask, http_ask, measure

from rejoinder.engines.llama.engine import LlamaEngine
from rejoinder.engines.llama.weights import find_weights

PEER = """
import signal, sys, xllamacpp
path, port, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
params = xllamacpp.CommonParams()
params.model.path = path
params.n_parallel = 16
params.n_ctx = 16 * 1024
params.port = port
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
signal.pause()
"""

CONFIG = """
[server]
port = {port}
[[models]]
id = "model"
backend = "llama"
path = "{path}"
context_length = 8192
max_sequences = 32
threads = {threads}
[store]
url = "sqlite:///{folder}/bench.db"
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def process(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    quiet = subprocess.DEVNULL
    child = subprocess.Popen(command, stdout=quiet, stderr=quiet, start_new_session=True)
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)
        try:
            child.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


async def ready(session: aiohttp.ClientSession, url: str, child: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if child.poll() is not None:
            raise SystemExit(f"the server ended with {child.returncode}")
        with contextlib.suppress(aiohttp.ClientError, asyncio.TimeoutError):
            async with session.get(url) as response:
                if response.status == 200:
                    return
        await asyncio.sleep(0.1)
    raise SystemExit(f"nothing answers at {url}")


@contextlib.asynccontextmanager
async def peer(options: argparse.Namespace) -> AsyncIterator[Ask]:
    port = free_port()
    path = str(find_weights(options.path))
    with process(sys.executable, "-c", PEER, path, str(port), str(options.threads)) as child:
        timeout = aiohttp.ClientTimeout(1800)
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            await ready(session, f"http://127.0.0.1:{port}/health", child)
            yield http_ask(session, f"http://127.0.0.1:{port}/v1", "model")


@contextlib.asynccontextmanager
async def ours(options: argparse.Namespace) -> AsyncIterator[Ask]:
    if options.direct:
        engine = await asyncio.to_thread(
            lambda: LlamaEngine(path=options.path, threads=options.our_threads)
        )
        yield engine_ask(engine)
        await engine.close()
        return
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "rejoinder.toml"
        config.write_text(
            CONFIG.format(port=port, path=options.path, threads=options.our_threads, folder=folder)
        )
        command = (sys.executable, "-m", "rejoinder", "serve", "--config", str(config))
        with process(*command) as child:
            timeout = aiohttp.ClientTimeout(1800)
            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
                await ready(session, f"http://127.0.0.1:{port}/ready", child)
                yield http_ask(session, f"http://127.0.0.1:{port}/v1", "model")


async def rounds(ask: Ask, loads: list[str], count: int) -> dict[str, dict[str, float]]:
    """Medians of each load's figures. Each round has texts of its own: no server knows them."""
    await measure("single", ask, 999_983)
    found: dict[str, dict[str, float]] = {}
    for name in loads:
        runs = [await measure(name, ask, 7919 * (i + 1)) for i in range(count)]
        found[name] = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        print("   ", name, {k: round(v, 3) for k, v in found[name].items()}, flush=True)
    return found


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


async def main() -> None:
    signal.signal(signal.SIGTERM, interrupted)  # the servers end with this process
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--loads", default=",".join(LOADS))
    parser.add_argument("--threads", type=int, default=2, help="of the peer")
    parser.add_argument("--our-threads", type=int, default=0)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--path", default=DEFAULT_PATH)
    parser.add_argument("--direct", action="store_true")
    options = parser.parse_args()
    loads = options.loads.split(",")
    spin = (sys.executable, "-c", "while True: pass")
    figures = {}
    with contextlib.ExitStack() as stack:
        for _ in range(options.busy):
            stack.enter_context(process(*spin))
        for name, server in (("ours", ours), ("peer", peer)):
            print(name, flush=True)
            async with server(options) as ask:
                figures[name] = await rounds(ask, loads, options.rounds)
    print(f"{'load':10} {'time ours/peer':>15} {'tokens/s':>9} {'TTFT p50':>9}")
    for load in loads:
        mine, other = figures["ours"][load], figures["peer"][load]
        ratios = [mine[k] / other[k] for k in ("seconds", "tokens_per_second", "ttft_p50")]
        print(f"{load:10} {ratios[0]:15.2f} {ratios[1]:9.2f} {ratios[2]:9.2f}")


if __name__ == "__main__":
    asyncio.run(main())
