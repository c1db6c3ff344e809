"""What does a gateway cost? Ours and its peers in turn, in one run, before one fake provider.

    python benchmarks/gateway_peers.py [--seconds 10] [--streams 1,32] [--chunks 64] [--install]
                                       [--peers direct,nginx,ours,litellm,vllm-router] [--json FILE]
                                       [--delay 0.02]

Prints for each: CPU µs of the gateway's processes a chunk, CPU ms a unary request, the time to the
first byte of a stream (p50, p99). `direct` is no gateway: what client and provider need alone.
`--install` fetches the peers from PyPI into a temporary folder (about a minute, 900 MB); nginx
is used where it is installed. Run it on an idle machine: client, gateway and provider share its
cores. Without `--delay` every client asks again at once, so that at 32 streams something is always
saturated and a first byte waits in its queue; with it the provider waits so many seconds between
two chunks, the clients begin one after the other, and what is added to `direct` is the gateway's.
"""

import argparse
import asyncio
import hashlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

FOLDER = Path(tempfile.gettempdir()) / "rejoinder-peers"
PACKAGES = {"litellm": "litellm[proxy]==1.108.7", "vllm-router": "vllm-router==0.1.17"}
PEERS = ("direct", "nginx", "ours", "litellm", "vllm-router")
KEY = "sk-benchmark-0123456789abcdef"
PATH = "/v1/chat/completions"
WARM_UP = 20
TICKS = os.sysconf("SC_CLK_TCK")


# ---------------------------------------------------------------- processes


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def tree(process: int) -> set[int]:
    """A process and all that it has started."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(path.name)] = int(fields[1])
    found = {process}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def cpu_seconds(processes: set[int]) -> float:
    ticks = 0
    for process in processes:
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS


@contextmanager
def running(
    command: list[str], url: str, log: Path, environment: dict[str, str] | None = None
) -> Iterator[int]:
    """A server that answers at `url`; it and what it started end with the context."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=out,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 120
        while True:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{command[0]} did not start; see {log}")
            try:
                with urllib.request.urlopen(url, timeout=1):
                    break
            except OSError:
                time.sleep(0.1)
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


# ---------------------------------------------------------------- gateways


@dataclass(frozen=True)
class Gateway:
    """`command` of one that listens on `port` before the provider; `ready`: a path that answers."""

    command: list[str]
    ready: str
    environment: dict[str, str] = field(default_factory=dict)


def nginx(port: int, provider: int, folder: Path) -> Gateway:
    (folder / "nginx.conf").write_text(
        f"""
        daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/nginx.log;
        events {{ worker_connections 4096; }}
        http {{
          access_log off;
          client_body_temp_path {folder}/b; proxy_temp_path {folder}/p;
          fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
          upstream provider {{ server 127.0.0.1:{provider}; keepalive 256; }}
          server {{
            listen 127.0.0.1:{port};
            location / {{
              proxy_pass http://provider; proxy_http_version 1.1;
              proxy_set_header Connection ""; proxy_buffering off;
            }}
          }}
        }}
        """
    )
    return Gateway([shutil.which("nginx") or "nginx", "-c", f"{folder}/nginx.conf"], "/health")


def ours(port: int, provider: int, folder: Path) -> Gateway:
    """Everything on: keys, limits, a budget, prices, the ledger, metrics, the log."""
    (folder / "rejoinder.toml").write_text(
        f"""
        [server]
        port = {port}
        [store]
        url = "sqlite:///{folder}/rejoinder.db"
        [limits]
        max_concurrent_requests = 4000
        [[models]]
        id = "fake"
        backend = "remote"
        base_url = "http://127.0.0.1:{provider}/v1"
        between_tokens_timeout_seconds = 3600
        [models.pricing]
        input_tokens = 1
        output_tokens = 2
        [[keys]]
        key_sha256 = "{hashlib.sha256(KEY.encode()).hexdigest()}"
        account = "a"
        requests_per_minute = 100000000
        tokens_per_minute = 10000000000
        budget_usd = 10000000
        """
    )
    command = [sys.executable, "-m", "rejoinder", "serve", "-c", f"{folder}/rejoinder.toml"]
    return Gateway(command, "/ready")


def litellm(port: int, provider: int, folder: Path) -> Gateway:
    (folder / "litellm.yaml").write_text(
        f"""
model_list:
  - model_name: fake
    litellm_params:
      {{model: openai/fake, api_base: "http://127.0.0.1:{provider}/v1", api_key: sk-fake}}
router_settings: {{num_retries: 0}}
litellm_settings: {{telemetry: false, request_timeout: 120}}
"""
    )
    listen = ["--host", "127.0.0.1", "--port", str(port)]
    return Gateway(
        [
            str(FOLDER / "litellm/bin/litellm"),
            *("--config", f"{folder}/litellm.yaml", *listen),
            *("--num_workers", "1", "--telemetry", "False"),
        ],
        "/health/liveliness",
        {
            "LITELLM_MASTER_KEY": KEY,
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_MODE": "PRODUCTION",
            "LITELLM_LOG": "ERROR",
            "NO_DOCS": "True",
        },
    )


def vllm_router(port: int, provider: int, folder: Path) -> Gateway:
    return Gateway(
        [
            str(FOLDER / "vllm-router/bin/vllm-router"),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--worker-urls", f"http://127.0.0.1:{provider}", "--policy", "round_robin"),
            *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())),
            *("--log-level", "warning", "--worker-startup-timeout-secs", "20"),
            *("--worker-startup-check-interval", "1"),
        ],
        "/health",
    )


GATEWAYS: dict[str, Callable[[int, int, Path], Gateway]] = {
    "nginx": nginx,
    "ours": ours,
    "litellm": litellm,
    "vllm-router": vllm_router,
}


def install(name: str) -> None:
    folder = FOLDER / name
    if name not in PACKAGES or (folder / "complete").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([folder / "bin/pip", "install", "-q", PACKAGES[name]], check=True)
    (folder / "complete").touch()


def is_there(name: str) -> bool:
    if name == "nginx":
        return shutil.which("nginx") is not None
    return name not in PACKAGES or (FOLDER / name / "complete").exists()


# ---------------------------------------------------------------- the client


@dataclass
class Seen:
    requests: int = 0
    chunks: int = 0
    failures: int = 0
    first_byte: list[float] = field(default_factory=list)


def request_bytes(port: int, *, stream: bool) -> bytes:
    body = {
        "model": "fake",
        "messages": [{"role": "user", "content": "What does a gateway cost?"}],
        **({"stream": True, "stream_options": {"include_usage": True}} if stream else {}),
    }
    raw = json.dumps(body).encode()
    lines = [
        f"POST {PATH} HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        f"Authorization: Bearer {KEY}",
        "Content-Type: application/json",
        f"Content-Length: {len(raw)}",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + raw


async def one_client(port: int, request: bytes, until: Callable[[], bool], seen: Seen) -> None:
    """A closed loop over one connection, opened again where the gateway closes it."""
    reader = writer = None
    while not until():
        if writer is None or writer.is_closing() or (reader is not None and reader.at_eof()):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        assert reader is not None
        began = time.perf_counter()
        writer.write(request)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            status, lower = int(head.split(b" ", 2)[1]), head.lower()
            if b"content-length:" in lower:
                length = int(lower.split(b"content-length:")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
                complete = True
            else:
                complete = await read_chunked(reader, began, seen)
            if status != 200 or not complete:
                seen.failures += 1
            if b"connection: close" in lower:
                writer.close()
        except (OSError, asyncio.IncompleteReadError):
            seen.failures += 1
            writer.close()
        seen.requests += 1
    if writer is not None:
        writer.close()


async def read_chunked(reader: asyncio.StreamReader, began: float, seen: Seen) -> bool:
    """Whether the stream came to its [DONE]."""
    first = True
    tail = b""
    while (size := int(await reader.readline(), 16)) > 0:
        data = (await reader.readexactly(size + 2))[:-2]
        if first:
            seen.first_byte.append(time.perf_counter() - began)
            first = False
        seen.chunks += data.count(b"data: ")
        tail = (tail + data)[-32:]
    await reader.readline()
    return tail.rstrip().endswith(b"[DONE]")


async def load(port: int, *, streams: int, stream: bool, seconds: float, spread: float) -> Seen:
    """`spread`: seconds over which the clients begin."""
    request = request_bytes(port, stream=stream)
    warm = Seen()
    await one_client(port, request, lambda: warm.requests >= (2 if spread else WARM_UP), warm)
    seen = Seen()
    end = time.perf_counter() + seconds

    async def client(number: int) -> None:
        await asyncio.sleep(spread * number / streams)
        await one_client(port, request, lambda: time.perf_counter() > end, seen)

    await asyncio.gather(*(client(number) for number in range(streams)))
    return seen


# ---------------------------------------------------------------- one figure after the other


@dataclass(frozen=True)
class Row:
    gateway: str
    streams: int
    stream: bool
    requests: int
    failures: int
    per_second: float
    cpu_us_per_chunk: float | None
    cpu_ms_per_request: float
    first_byte_ms_p50: float | None
    first_byte_ms_p99: float | None
    client_cpu_share: float
    """Near 1: the client was measured, not the gateway."""


def measure(
    name: str,
    port: int,
    process: int,
    *,
    streams: int,
    stream: bool,
    seconds: float,
    spread: float = 0.0,
) -> Row:
    processes = tree(process)
    before, own, clock = cpu_seconds(processes), time.process_time(), time.perf_counter()
    seen = asyncio.run(load(port, streams=streams, stream=stream, seconds=seconds, spread=spread))
    cpu = cpu_seconds(processes) - before
    own, clock = time.process_time() - own, time.perf_counter() - clock
    times = sorted(1000 * one for one in seen.first_byte)
    chunks = seen.chunks
    return Row(
        gateway=name,
        streams=streams,
        stream=stream,
        requests=seen.requests,
        failures=seen.failures,
        per_second=(chunks if stream else seen.requests) / clock,
        cpu_us_per_chunk=1e6 * cpu / chunks if chunks else None,
        cpu_ms_per_request=1e3 * cpu / max(1, seen.requests),
        first_byte_ms_p50=statistics.median(times) if times else None,
        first_byte_ms_p99=times[int(0.99 * (len(times) - 1))] if times else None,
        client_cpu_share=own / clock,
    )


def shown(row: Row) -> str:
    def number(value: float | None, digits: int) -> str:
        return "–" if value is None else f"{value:.{digits}f}"

    cells = [
        row.gateway,
        "stream" if row.stream else "unary",
        str(row.streams),
        number(row.cpu_us_per_chunk, 1),
        number(row.cpu_ms_per_request, 3),
        number(row.first_byte_ms_p50, 2),
        number(row.first_byte_ms_p99, 2),
        f"{row.per_second:.0f}",
        str(row.failures),
        f"{row.client_cpu_share:.2f}",
    ]
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, WIDTHS, strict=True))


HEADS = ("gateway", "kind", "at once", "µs/chunk", "ms/request", "TTFB p50", "p99", "per s",
         "failed", "client CPU")  # fmt: skip
WIDTHS = tuple(max(8, len(head)) for head in HEADS[:1]) + tuple(max(7, len(h)) for h in HEADS[1:])
WIDTHS = (11, *WIDTHS[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--streams", default="1,32")
    parser.add_argument("--chunks", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--delay", type=float, default=0.0, help="seconds between two chunks")
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--json", type=Path, help="a file that gets one line a row")
    args = parser.parse_args()
    print("  ".join(head.rjust(width) for head, width in zip(HEADS, WIDTHS, strict=True)))
    for name in args.peers.split(","):
        if args.install:
            install(name)
        if name != "direct" and not is_there(name):
            print(f"{name:>11}  is not installed")
            continue
        for row in rows_of(name, args):
            print(shown(row), flush=True)
            if args.json is not None:
                with args.json.open("a") as out:
                    out.write(json.dumps(asdict(row)) + "\n")


def rows_of(name: str, args: argparse.Namespace) -> Iterator[Row]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gateway-")))
        provider = free_port()
        upstream = Path(__file__).with_name("gateway_upstream.py")
        command = [sys.executable, str(upstream), "--port", str(provider)]
        command += ["--chunks", str(args.chunks), "--delay", str(args.delay)]
        health = f"http://127.0.0.1:{provider}/health"
        process = stack.enter_context(running(command, health, folder / "provider.log"))
        port = provider
        if name != "direct":
            port = free_port()
            gateway = GATEWAYS[name](port, provider, folder)
            url = f"http://127.0.0.1:{port}{gateway.ready}"
            process = stack.enter_context(
                running(gateway.command, url, folder / f"{name}.log", gateway.environment)
            )
        for stream in (True, False):
            for streams in (int(one) for one in args.streams.split(",")):
                yield measure(
                    name,
                    port,
                    process,
                    streams=streams,
                    stream=stream,
                    seconds=args.seconds,
                    spread=args.chunks * args.delay,
                )


if __name__ == "__main__":
    main()
