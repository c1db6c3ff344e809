"""PostgreSQL and Redis of the tests' own, where the Debian packages are installed.

Each runs in a temporary folder on a free port and ends with the test session.
"""

import asyncio
import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_QUICK = [
    word
    for setting in ("fsync", "synchronous_commit", "full_page_writes", "autovacuum")
    for word in ("-c", f"{setting}=off")
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def postgres_folder() -> Path | None:
    """Where PostgreSQL's programs are, None where it is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    initdb = shutil.which("initdb")
    return Path(initdb).parent if initdb else None


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """The URL of a fresh server, without a database name. It never runs as root."""
    programs = postgres_folder()
    assert programs is not None
    user = "postgres" if os.geteuid() == 0 else None
    data = folder / "data"
    data.mkdir(parents=True)
    if user is not None:
        _open_to(user, data)
    subprocess.run(
        [programs / "initdb", "-D", data, "-A", "trust", "-U", "tests", "--no-sync", "-E", "UTF8"],
        check=True,
        capture_output=True,
        user=user,
        cwd=data,
        timeout=120,
    )
    port = free_port()
    arguments = ["-D", data, "-h", "127.0.0.1", "-p", str(port), "-k", data, *_QUICK]
    with _running([programs / "postgres", *arguments], port, user=user, folder=data):
        yield f"postgresql://tests@127.0.0.1:{port}"


@contextmanager
def redis(folder: Path) -> Iterator[str]:
    """The URL of a fresh server."""
    program = shutil.which("redis-server")
    assert program is not None
    port = free_port()
    arguments = ["--port", str(port), "--save", "", "--appendonly", "no", "--dir", str(folder)]
    with _running([program, *arguments], port, user=None, folder=folder):
        yield f"redis://127.0.0.1:{port}/0"


@contextmanager
def _running(command: list[object], port: int, *, user: str | None, folder: Path) -> Iterator[None]:
    with open(folder.parent / f"{port}.log", "wb") as log:
        process = subprocess.Popen(
            [str(word) for word in command], stdout=log, stderr=log, user=user, cwd=folder
        )
        try:
            _await_port(port, process)
            yield
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)


def _await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}")
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError("the server does not listen")


def _open_to(user: str, data: Path) -> None:
    """Gives the data folder to the user, and lets them reach it."""
    entry = pwd.getpwnam(user)
    os.chown(data, entry.pw_uid, entry.pw_gid)
    data.chmod(0o700)
    for parent in data.parents:
        if parent == Path(parent.anchor) or parent.stat().st_uid != os.geteuid():
            break
        parent.chmod(parent.stat().st_mode | 0o011)


async def create_database(server: str, name: str) -> str:
    """The URL of a new, empty database."""
    import asyncpg

    for attempt in range(20):
        try:
            connection = await asyncpg.connect(f"{server}/postgres")
            break
        except (OSError, asyncpg.PostgresError):
            if attempt == 19:
                raise
            await asyncio.sleep(0.25)
    try:
        await connection.execute(f'CREATE DATABASE "{name}" TEMPLATE template0')
    finally:
        await connection.close()
        await asyncio.sleep(0.01)
    return f"{server}/{name}"
