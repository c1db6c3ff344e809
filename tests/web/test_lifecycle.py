"""The server as a process: start-up errors, SIGTERM, a dead engine, an open port."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.web import wire
from tests.web.wire import PATHS

COUNT = [{"pieces": [f"{i} " for i in range(30)], "delay_ms": 50}]


def write_config(folder: Path, script: list[dict[str, object]], server: str = "") -> Path:
    lines = "".join(json.dumps(line) + "\n" for line in script)
    (folder / "script.jsonl").write_text(lines, encoding="utf-8")
    path = folder / "rejoinder.toml"
    path.write_text(
        f'[server]\n{server}\n[store]\nurl = "sqlite:///{folder}/r.db"\n[[models]]\nid = "m"\n'
        f'backend = "scripted"\nscript = "{folder}/script.jsonl"\n',
        encoding="utf-8",
    )
    return path


@contextmanager
def process(config: Path) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """A running server process and its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "rejoinder", "serve", "-c", str(config), "--port", str(port)]
    with (config.parent / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 30
        while True:
            assert server.poll() is None, (config.parent / "log").read_text()
            assert time.monotonic() < deadline
            try:
                if wire.request(port, "GET", "/ready").status == 200:
                    break
            except OSError:
                time.sleep(0.05)
        yield server, port
    finally:
        server.kill()
        server.wait()


def start_stream(port: int) -> socket.socket:
    sock = wire.connect(port)
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    sock.sendall(wire.head_and_body("POST", PATHS["openai"], body))
    return sock


def test_sigterm_lets_streams_finish(tmp_path: Path) -> None:
    config = write_config(tmp_path, COUNT, "grace_seconds = 20")
    with process(config) as (server, port), start_stream(port) as sock:
        first = sock.recv(1000)
        server.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        with pytest.raises(OSError):
            wire.request(port, "GET", "/health")
        rest = b""
        while data := sock.recv(65536):
            rest += data
        assert b"[DONE]" in first + rest and b'"finish_reason":"stop"' in rest
        assert server.wait(10) == 0


def test_after_the_grace_period_streams_end_with_an_error(tmp_path: Path) -> None:
    config = write_config(tmp_path, [{**COUNT[0], "delay_ms": 400}], "grace_seconds = 0.5")
    with process(config) as (server, port), start_stream(port) as sock:
        sock.recv(1000)
        server.send_signal(signal.SIGTERM)
        rest = b""
        while data := sock.recv(65536):
            rest += data
        assert b'"error"' in rest and b"[DONE]" in rest and b'"finish_reason":"' not in rest
        assert server.wait(10) == 0


def test_a_dead_engine_ends_the_process(tmp_path: Path) -> None:
    script = [{"pieces": ["a", "b"], "fault": {"after": 1, "kind": "die"}}]
    config = write_config(tmp_path, script, "grace_seconds = 1")
    with process(config) as (server, port):
        answer = wire.chat(port, stream=True)
        assert b'"error"' in answer.body and answer.body.endswith(b"[DONE]\n\n")
        assert server.wait(10) != 0


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ("[server]\nprot = 1", "bad.toml:2: unknown key 'server.prot'; did you mean 'port'?"),
        ('[server]\nport = "x"', "bad.toml:2: server.port: Expected `int`"),
        ('[server]\n# port = 1\nport = "x"', "bad.toml:3: server.port: Expected `int`"),
        ("[sever]\nport = 1", "bad.toml:1: unknown key 'sever'"),
        ("[server]\nport = \n", "bad.toml:2:8: not valid TOML: Invalid value"),
        ('[[models]]\nid = "a"\nbackend = "scripted"\nscript = "none.jsonl"', "none.jsonl"),
        ('[[models]]\nid = "a"\nbackend = "llama"\npath = "none.gguf"', "none.gguf"),
        ('[store]\nurl = "mysql://x"', "store.url"),
        ('[moderation]\nmodel = "x"', "moderation.model"),
        ('[server]\nhost = "0.0.0.0"', "--allow-open"),
        ("not toml", "not valid TOML"),
    ],
)
def test_a_server_that_cannot_start_says_why(tmp_path: Path, toml: str, says: str) -> None:
    config = tmp_path / "bad.toml"
    scripted = f'[[models]]\nid = "m"\nbackend = "scripted"\nscript = "{tmp_path}/s.jsonl"\n'
    (tmp_path / "s.jsonl").write_text('{"pieces": ["a"]}\n')
    store = f'[store]\nurl = "sqlite:///{tmp_path}/r.db"\n'
    text = toml + "\n" + ("" if "[[models]]" in toml else scripted)
    config.write_text(text + ("" if "[store]" in toml else store))
    command = [sys.executable, "-m", "rejoinder", "serve", "-c", str(config), "--port", "0"]
    done = subprocess.run(command, capture_output=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 1
    error = done.stderr.decode()
    assert says in error and "Traceback" not in error, error


def test_a_busy_port_is_named(tmp_path: Path) -> None:
    config = write_config(tmp_path, COUNT)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "rejoinder", "serve", "-c", str(config), "--port", port]
        done = subprocess.run(command, capture_output=True, timeout=60)
    assert done.returncode == 1
    assert f"port {port}" in done.stderr.decode() and str(os.getpid()) in done.stderr.decode()
