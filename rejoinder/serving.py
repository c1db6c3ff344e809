"""Running the server from a command: configuration, start-up lines, logs, signals.

It must not know: requests.
"""

import asyncio
import contextlib
import errno
import functools
import gc
import hashlib
import ipaddress
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rejoinder import __version__
from rejoinder.config import Config, ConfigError, KeyConfig, LlamaConfig, StoreConfig, load
from rejoinder.workers import Lifeline, Supervisor, shared

if TYPE_CHECKING:
    from rejoinder.app import Application
    from rejoinder.web.server import ChatServer

DEFAULT_FILE = Path("rejoinder.toml")
FATAL_CHECK_SECONDS = 0.5
LOG_SECONDS = 0.1


class CannotServe(Exception):
    """The server cannot start; the text says what to do about it."""


def load_config(path: Path | None) -> Config:
    """The configuration of a command. Raises CannotServe."""
    if path is None:
        if not DEFAULT_FILE.exists():
            return Config()
        path = DEFAULT_FILE
    try:
        return load(path)
    except ConfigError as error:
        raise CannotServe(str(error)) from None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def serve(
    config: Config,
    *,
    host: str | None = None,
    port: int | None = None,
    open_to_all: bool = False,
    verbose: bool = False,
    num_workers: int = 1,
) -> None:
    """Serves until a signal stops it. Raises CannotServe."""
    server = config.server
    server = replace(server, host=host if host is not None else server.host)
    server = replace(server, port=port if port is not None else server.port)
    config = replace(config, server=server)
    prepare_logs(logging.DEBUG if verbose else logging.INFO)
    listener = bind(server.host, server.port)
    if num_workers > 1:
        status = _serve_together(config, listener, num_workers, open_to_all=open_to_all)
    else:
        console = Console(stderr=True, highlight=False)
        ready = functools.partial(announce, console, config, listener)
        with listener:
            status = _run(config, listener, on_ready=ready, open_to_all=open_to_all)
    if status:
        sys.exit(status)


def _run(
    config: Config,
    listener: socket.socket,
    *,
    on_ready: Callable[[float], None],
    open_to_all: bool,
    parent: int | None = None,
) -> int:
    import uvloop

    return uvloop.run(
        _serve(config, listener, on_ready=on_ready, open_to_all=open_to_all, parent=parent)
    )


def _serve_together(
    config: Config, listener: socket.socket, num_workers: int, *, open_to_all: bool
) -> int:
    """Several processes on the port of `listener`, which only shows that it is free."""
    refuse_workers(config)
    for warning in worker_warnings(config):
        logging.getLogger("rejoinder").warning("%s", warning)
    began = time.perf_counter()
    address = listener.getsockname()[:2]
    listener.close()
    console = Console(stderr=True, highlight=False)

    def work(own: socket.socket, lifeline: Lifeline) -> int:
        def ready(_: float) -> None:
            os.write(lifeline.ready, b"1")

        try:
            return _run(
                config, own, on_ready=ready, open_to_all=open_to_all, parent=lifeline.parent
            )
        except CannotServe as error:
            console.print(f"[red]rejoinder: {escape(str(error))}[/]", soft_wrap=True)
            return 1

    with shared(*address) as holder_of_port:
        return Supervisor(
            work,
            address=address,
            num_workers=num_workers,
            grace_seconds=config.server.grace_seconds,
            on_ready=lambda: announce(
                console, config, holder_of_port, time.perf_counter() - began, num_workers
            ),
        ).run()


def refuse_workers(config: Config) -> None:
    """Raises CannotServe where several processes cannot serve a configuration."""
    if not hasattr(signal, "sigtimedwait"):
        raise CannotServe("--workers needs Linux; run several servers behind a load balancer")
    embedded = [model.id for model in config.models if isinstance(model, LlamaConfig)]
    if embedded:
        raise CannotServe(
            f"--workers would load the model '{embedded[0]}' once in every process: an embedded "
            "engine serves many requests at once in one. Leave --workers out, or serve the model "
            'in a process of its own and add it here with backend = "remote".'
        )


def worker_warnings(config: Config) -> list[str]:
    """What several processes on one machine do not share, but should (docs/scale.md)."""
    warnings = []
    if not config.limits.redis_url:
        warnings.append(
            "each worker counts requests and tokens a minute for itself: set limits.redis_url to "
            "share the limits"
        )
    if config.store.url.startswith("sqlite"):
        warnings.append(
            "all workers write to one SQLite file, one at a time: set store.url to a PostgreSQL "
            "database"
        )
    return warnings


async def _serve(
    config: Config,
    listener: socket.socket,
    *,
    on_ready: Callable[[float], None],
    open_to_all: bool,
    parent: int | None,
) -> int:
    """`on_ready` is told how many seconds it took; `parent`: a pipe whose end ends the server."""
    from rejoinder.app import build
    from rejoinder.building import CannotBuild
    from rejoinder.web.server import make_server

    console = Console(stderr=True, highlight=False, quiet=parent is not None)
    began = time.perf_counter()
    loading = "Loading the models …"
    try:
        with console.status(loading) as spinner:
            context = build(
                config, on_progress=lambda name: spinner.update(f"Loading the model {name} …")
            )
            application = await context.__aenter__()
    except CannotBuild as error:
        raise CannotServe(str(error)) from None
    try:
        if not (is_loopback(config.server.host) or open_to_all or await application.has_keys()):
            raise CannotServe(
                f"{config.server.host} can be reached from other machines and no API key is "
                "configured: anybody could use this server. Create a key with `rejoinder keys "
                "create --account NAME`, or say --allow-open if you mean it."
            )
        grace = config.server.grace_seconds
        server = make_server(
            application.router,
            grace_seconds=grace,
            on_stop=lambda: application.drain.close(grace),
        )
        if parent is not None:
            asyncio.get_running_loop().add_reader(parent, _orphaned, server, parent)
        # What start-up made stays: the collector need not walk it, nor run at every few requests.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        watch = asyncio.ensure_future(_stop_when_broken(application, server))
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.005)
        on_ready(time.perf_counter() - began)
        await serving
        watch.cancel()
        return 1 if application.failures() else 0
    finally:
        await context.__aexit__(None, None, None)


async def _stop_when_broken(application: "Application", server: "ChatServer") -> None:
    """Ends the process when an engine has died: what restarts it can only see an exit."""
    while not application.failures():
        await asyncio.sleep(FATAL_CHECK_SECONDS)
    logging.getLogger("rejoinder").error("stopping: %s", "; ".join(application.failures()))
    server.should_exit = True


def _orphaned(server: "ChatServer", parent: int) -> None:
    """Nobody would stop or restart this worker any more."""
    asyncio.get_running_loop().remove_reader(parent)
    server.should_exit = True


def announce(
    console: Console,
    config: Config,
    listener: socket.socket,
    seconds: float,
    num_workers: int = 1,
) -> None:
    """What a person who just started a server wants to know."""
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    if host in ("0.0.0.0", "::"):
        shown = "127.0.0.1"
    url = f"http://{shown}:{port}"
    names = [model.id for model in config.models] + [one.id for one in config.fallbacks]
    key = ' -H "Authorization: Bearer $KEY"' if config.keys else ""
    workers = f" with {num_workers} workers" if num_workers > 1 else ""
    console.print(f"[bold]Rejoinder {__version__}[/] is ready{workers} after {seconds:.1f} s.")
    console.print(f"  API    {url}/v1 (OpenAI), {url}/v1/openai (DeepInfra)", soft_wrap=True)
    console.print(f"  models {', '.join(names)}", soft_wrap=True)
    message = '{"role": "user", "content": "Hello!"}'
    body = f'{{"model": "{names[0]}", "messages": [{message}], "temperature": 0.2}}'
    curl = f"curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d '{body}'"
    console.print(f"  try    {curl}", soft_wrap=True, markup=False)


def bind(host: str, port: int) -> socket.socket:
    """A bound socket. It does not listen before the models are loaded: until then a connection
    is refused, not left waiting. Raises CannotServe that says what is in the way."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol named: asyncio turns Nagle off for no other, and each answer that is more
    # than one write would wait 40 ms for the client's acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise CannotServe(
                f"port {port} on {host} is in use{holder(port)}. Stop that program, or give "
                "another port with --port (0 picks a free one)."
            ) from None
        raise CannotServe(f"cannot listen on {host}:{port}: {error.strerror}") from None
    listener.setblocking(False)
    return listener


def holder(port: int) -> str:
    """ " by PROGRAM (process N)" for who listens on a port, where this system tells."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                if inodes and str(descriptor.readlink()) in inodes:
                    name = (process / "comm").read_text().strip()
                    return f" by {name} (process {process.name})"
    return ""


class BatchedLog(logging.Handler):
    """Writes what came within a short while in one go: a write a request costs as much as the
    rest of its log line. Errors are written at once, and everything at the end."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(self.format(record))
        if record.levelno >= logging.WARNING:
            self.flush()
            return
        if len(self._lines) == 1:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                self.flush()
                return
            loop.call_later(LOG_SECONDS, self.flush)

    def flush(self) -> None:
        with self.lock or contextlib.nullcontext():
            lines, self._lines = self._lines, []
        if lines:
            sys.stderr.write("\n".join(lines) + "\n")
            sys.stderr.flush()


class _LogFormatter(logging.Formatter):
    """The usual time of a line, its second put in words once."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return f"{_second(int(record.created))},{int(record.msecs):03d}"


@functools.lru_cache(maxsize=2)
def _second(number: int) -> str:
    return time.strftime(logging.Formatter.default_time_format, time.localtime(number))


def prepare_logs(level: int) -> None:
    """One JSON line a request on standard error, and what the parts have to say."""
    # No line names a thread, a process or a place in the source (`logging`, "Optimization").
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None
    handler = BatchedLog()
    handler.setFormatter(_LogFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("rejoinder").setLevel(level)


@contextlib.contextmanager
def reachable(
    url: str | None, path: Path | None, api_key: str | None
) -> Iterator[tuple[str, str | None]]:
    """The URL of a server and a key for it: the ones given, or, for as long as the context lasts,
    a server of our own that nobody else has a key for and that keeps no ledger."""
    if url is not None:
        yield url, api_key
        return
    prepare_logs(logging.ERROR)
    key = secrets.token_urlsafe(24)
    digest = hashlib.sha256(key.encode()).hexdigest()
    config = replace(
        load_config(path),
        keys=(KeyConfig(key_sha256=digest, account="local"),),
        store=StoreConfig(url="sqlite://"),
    )
    with background(config) as address:
        yield address, key


@contextlib.contextmanager
def background(config: Config) -> Iterator[str]:
    """The URL of a server on a free loopback port, in a thread, while the context lasts.

    Raises CannotServe.
    """
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    running = _Background(config, listener)
    running.start()
    try:
        running.wait_ready()
        yield f"http://127.0.0.1:{port}"
    finally:
        running.stop()
        listener.close()


class _Background(threading.Thread):
    """A server in a thread of its own."""

    def __init__(self, config: Config, listener: socket.socket) -> None:
        super().__init__(name="rejoinder-server", daemon=True)
        self._config = config
        self._listener = listener
        self._ready = threading.Event()
        self._error: Exception | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leave: asyncio.Event | None = None

    def run(self) -> None:
        try:
            asyncio.run(self._main())
        except Exception as error:
            self._error = error
            self._ready.set()

    async def _main(self) -> None:
        from rejoinder.app import build
        from rejoinder.web.server import make_server

        self._loop = asyncio.get_running_loop()
        self._leave = asyncio.Event()
        async with build(self._config) as application:
            server = make_server(
                application.router, grace_seconds=1, on_stop=lambda: application.drain.close(1)
            )
            serving = asyncio.ensure_future(server.serve(sockets=[self._listener]))
            while not server.started and not serving.done():
                await asyncio.sleep(0.01)
            self._ready.set()
            await self._leave.wait()
            server.should_exit = True
            await serving

    def wait_ready(self) -> None:
        """Raises CannotServe."""
        self._ready.wait()
        if self._error is not None:
            raise CannotServe(str(self._error)) from self._error

    def stop(self) -> None:
        if self._loop is not None and self._leave is not None and self.is_alive():
            self._loop.call_soon_threadsafe(self._leave.set)
            self.join(10)


def print_models(config: Config, *, as_json: bool) -> None:
    """The models of a configuration, for a person or as JSON."""
    if as_json:
        sys.stdout.write(msgspec.json.encode(config.models).decode() + "\n")
        return
    rows = []
    for model in config.models:
        kind = str(type(model).__struct_config__.tag)
        source = next(
            (
                str(getattr(model, key))
                for key in ("path", "base_url", "replicas", "script")
                if hasattr(model, key)
            ),
            "",
        )
        rows.append([model.id, ", ".join(model.aliases), kind, source])
    for fallback in config.fallbacks:
        rows.append([fallback.id, "", "fallback", ", ".join(fallback.models)])
    print_table(("model", "aliases", "backend", "serves"), rows)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table whose cells are never cut: what is too wide for the terminal wraps."""
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(columns):
        numeric = bool(rows) and isinstance(rows[0][number], int)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row))
    console = Console()
    console.print(table) if console.is_terminal else Console(width=200).print(table)
