"""Running the server from a command: configuration, start-up lines, logs, signals.

It must not know: requests.
"""

import asyncio
import contextlib
import errno
import gc
import ipaddress
import logging
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from rejoinder import __version__
from rejoinder.config import Config, ConfigError, load

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
) -> None:
    """Serves until a signal stops it. Raises CannotServe."""
    server = config.server
    server = replace(server, host=host if host is not None else server.host)
    server = replace(server, port=port if port is not None else server.port)
    config = replace(config, server=server)
    prepare_logs(logging.DEBUG if verbose else logging.INFO)
    listener = bind(server.host, server.port)
    try:
        import uvloop

        status = uvloop.run(_serve(config, listener, open_to_all=open_to_all))
    finally:
        listener.close()
    if status:
        sys.exit(status)


async def _serve(config: Config, listener: socket.socket, *, open_to_all: bool) -> int:
    from rejoinder.app import build
    from rejoinder.building import CannotBuild
    from rejoinder.web.server import make_server

    console = Console(stderr=True, highlight=False)
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
        announce(console, config, listener, time.perf_counter() - began)
        # What start-up made stays: the collector need not walk it, nor run at every few requests.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        watch = asyncio.ensure_future(_stop_when_broken(application, server))
        await server.serve(sockets=[listener])
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


def announce(console: Console, config: Config, listener: socket.socket, seconds: float) -> None:
    """What a person who just started a server wants to know."""
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    if host in ("0.0.0.0", "::"):
        shown = "127.0.0.1"
    url = f"http://{shown}:{port}"
    names = [model.id for model in config.models] + [one.id for one in config.fallbacks]
    key = ' -H "Authorization: Bearer $KEY"' if config.keys else ""
    console.print(f"[bold]Rejoinder {__version__}[/] is ready after {seconds:.1f} s.")
    console.print(f"  API    {url}/v1 (OpenAI), {url}/v1/openai (DeepInfra)", soft_wrap=True)
    console.print(f"  models {', '.join(names)}", soft_wrap=True)
    body = f'{{"model": "{names[0]}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'
    curl = f"curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d '{body}'"
    console.print(f"  try    {curl}", soft_wrap=True, markup=False)


def bind(host: str, port: int) -> socket.socket:
    """A bound socket. It does not listen before the models are loaded: until then a connection
    is refused, not left waiting. Raises CannotServe that says what is in the way."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
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


def prepare_logs(level: int) -> None:
    """One JSON line a request on standard error, and what the parts have to say."""
    handler = BatchedLog()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("rejoinder").setLevel(level)


@contextlib.contextmanager
def reachable(url: str | None, path: Path | None) -> Iterator[str]:
    """The URL of a server: the one given, or one of our own for as long as the context lasts."""
    if url is not None:
        yield url
        return
    prepare_logs(logging.ERROR)
    with background(load_config(path)) as address:
        yield address


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
    table = Table("model", "aliases", "backend", "serves", box=None, pad_edge=False)
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
        table.add_row(model.id, ", ".join(model.aliases), kind, source)
    for fallback in config.fallbacks:
        table.add_row(fallback.id, "", "fallback", ", ".join(fallback.models))
    Console().print(table)
