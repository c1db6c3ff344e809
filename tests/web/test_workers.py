"""`serve --workers N`: several processes on one port, watched by one that serves nothing."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from rejoinder.config import parse
from rejoinder.serving import CannotServe, refuse_workers, worker_warnings
from tests.service.servers import free_port
from tests.web import wire
from tests.web.test_lifecycle import COUNT, write_config

NUM_WORKERS = 3
HELLO: list[dict[str, object]] = [
    {"when": {"contains": "count"}, **COUNT[0]},
    {"pieces": ["Hello"]},
]


def children(process: int) -> set[int]:
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if int((path / "stat").read_text().rpartition(")")[2].split()[1]) == process:
                found.add(int(path.name))
        except OSError:
            continue
    return found


def until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Server:
    def __init__(self, process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def workers(self) -> set[int]:
        return children(self.process.pid)

    def answers(self) -> bool:
        try:
            return wire.chat(self.port).status == 200
        except OSError:
            return False


@contextmanager
def serving(folder: Path, server: str = "grace_seconds = 10") -> Iterator[Server]:
    config = write_config(folder, HELLO, server)
    port = free_port()
    command = [sys.executable, "-m", "rejoinder", "serve", "-c", str(config), "--port", str(port)]
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--workers", str(NUM_WORKERS)], stdout=out, stderr=out
        )
    running = Server(process, port, log)
    workers: set[int] = set()
    try:
        until(lambda: process.poll() is not None or "is ready" in running.log, 60)
        assert process.poll() is None, running.log
        workers = running.workers
        yield running
    finally:
        workers |= running.workers
        process.kill()
        process.wait()
        for worker in workers:
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("workers")) as running:
        yield running


def test_all_share_one_port_and_one_line_says_so(server: Server) -> None:
    assert len(re.findall(r"is ready", server.log)) == 1
    assert f"with {NUM_WORKERS} workers" in server.log and f":{server.port}/v1" in server.log
    assert len(server.workers) == NUM_WORKERS
    for _ in range(20):
        assert wire.chat(server.port).json["choices"][0]["message"]["content"] == "Hello"


def test_what_they_do_not_share_is_told_once(server: Server) -> None:
    assert server.log.count("limits.redis_url") == 1
    assert server.log.count("store.url") == 1


def test_connections_are_shared_out(server: Server) -> None:
    before = {worker: num_files(worker) for worker in server.workers}
    sockets = [wire.connect(server.port) for _ in range(40)]
    until(lambda: sum(map(num_files, before)) >= sum(before.values()) + 40)
    held = [num_files(worker) - number for worker, number in before.items()]
    for sock in sockets:
        sock.close()
    assert sum(count > 0 for count in held) >= 2, held


def num_files(worker: int) -> int:
    return len(list(Path(f"/proc/{worker}/fd").iterdir()))


def test_a_dead_worker_is_replaced(server: Server) -> None:
    before = server.workers
    victim = min(before)
    os.kill(victim, signal.SIGKILL)
    until(lambda: len(server.workers) == NUM_WORKERS and victim not in server.workers)
    until(lambda: "serves again" in server.log)
    assert before - {victim} <= server.workers, "the others stay"
    assert "ended with status -9" in server.log
    for _ in range(20):
        assert server.answers()
    assert len(re.findall(r"is ready", server.log)) == 1


def test_who_dies_again_and_again_waits_longer(server: Server) -> None:
    for _ in range(3):
        before = server.workers
        until(lambda: len(server.workers) == NUM_WORKERS)
        newest = max(server.workers)
        os.kill(newest, signal.SIGKILL)
        until(lambda newest=newest: newest not in server.workers)  # type: ignore[misc]
        assert server.answers(), "somebody always answers"
        until(lambda: len(server.workers) == NUM_WORKERS)
        assert server.workers != before
    waits = [float(x) for x in re.findall(r"another starts in ([\d.]+) s", server.log)]
    assert max(waits) > min(waits)


def start_count(port: int) -> socket.socket:
    sock = wire.connect(port)
    body = {"model": "m", "messages": [{"role": "user", "content": "count"}], "stream": True}
    sock.sendall(wire.head_and_body("POST", wire.PATHS["openai"], body))
    return sock


def test_sigterm_lets_streams_of_all_workers_finish(tmp_path: Path) -> None:
    with serving(tmp_path, "grace_seconds = 20") as server:
        workers = server.workers
        streams = [start_count(server.port) for _ in range(6)]
        firsts = [sock.recv(1000) for sock in streams]
        server.process.send_signal(signal.SIGTERM)
        for first, sock in zip(firsts, streams, strict=True):
            with sock:
                rest = first
                while data := sock.recv(65536):
                    rest += data
                assert b"[DONE]" in rest and b'"finish_reason":"stop"' in rest
        assert server.process.wait(20) == 0, server.log
        assert not [worker for worker in workers if Path(f"/proc/{worker}").exists()]
        assert "Traceback" not in server.log
        assert not server.answers()


def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    with serving(tmp_path, "grace_seconds = 1") as server:
        workers = server.workers
        server.process.kill()
        server.process.wait()
        until(lambda: not [worker for worker in workers if Path(f"/proc/{worker}").exists()])


def run_to_the_end(config: Path, port: int = 0) -> "subprocess.CompletedProcess[bytes]":
    command = [sys.executable, "-m", "rejoinder", "serve", "-c", str(config)]
    return subprocess.run(
        [*command, "--port", str(port), "--workers", "2"], capture_output=True, timeout=60
    )


def test_a_configuration_that_cannot_serve_ends_with_one_error(tmp_path: Path) -> None:
    config = write_config(tmp_path, HELLO)
    config.write_text(config.read_text().replace("script.jsonl", "none.jsonl"))
    done = run_to_the_end(config)
    assert done.returncode == 1
    assert done.stderr.count(b"none.jsonl: cannot be read") == 1
    assert b"Traceback" not in done.stderr


def test_a_busy_port_is_named(tmp_path: Path, server: Server) -> None:
    """Also when those who hold it share it among themselves."""
    done = run_to_the_end(write_config(tmp_path, HELLO), server.port)
    assert done.returncode == 1
    assert f"port {server.port}" in done.stderr.decode()


def test_embedded_engines_have_one_process() -> None:
    with pytest.raises(CannotServe, match="smollm2-135m-instruct"):
        refuse_workers(parse(""))
    refuse_workers(parse('[[models]]\nid="m"\nbackend="remote"\nbase_url="http://127.0.0.1/v1"'))


def test_nothing_to_warn_of_where_all_is_shared() -> None:
    shared = '[store]\nurl="postgresql://x/y"\n[limits]\nredis_url="redis://x"'
    assert worker_warnings(parse(shared)) == []
    assert len(worker_warnings(parse(""))) == 2
