"""A small HTTP/1.1 client over raw sockets: what was sent, byte for byte, with its time."""

import json
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from rejoinder.dialects.sse import SseReader
from tests.schemas import validator

PATHS = {"openai": "/v1/chat/completions", "deepinfra": "/v1/openai/chat/completions"}


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    reads: list[tuple[float, bytes]] = field(default_factory=list)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def payloads(self) -> list[str]:
        reader = SseReader()
        return [*reader.feed(self.body), *reader.flush()]

    @property
    def chunks(self) -> list[Any]:
        return [json.loads(p) for p in self.payloads if p != "[DONE]"]


def request(
    port: int,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
    *,
    version: str = "1.1",
) -> Answer:
    """One exchange on a connection of its own."""
    with connect(port) as sock:
        sock.sendall(head_and_body(method, path, body, headers, version=version))
        return read_answer(sock)


def connect(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=120)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def head_and_body(
    method: str,
    path: str,
    body: Any,
    headers: dict[str, str] | None = None,
    *,
    version: str = "1.1",
) -> bytes:
    raw = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/{version}", "Host: localhost"]
    sent = {"Content-Type": "application/json", **(headers or {})}
    if body is not None:
        sent.setdefault("Content-Length", str(len(raw)))
    lines += [f"{name}: {value}" for name, value in sent.items()]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + raw


def read_answer(sock: socket.socket) -> Answer:
    """Reads exactly one answer: chunked, with a length, or up to the end of the connection."""
    raw = b""
    while b"\r\n\r\n" not in raw:
        data = sock.recv(65536)
        if not data:
            raise ConnectionError(f"the connection ended after {raw!r}")
        raw += data
    head, _, rest = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
    answer = Answer(int(first.split()[1]), headers, b"")
    if headers.get("transfer-encoding") == "chunked":
        _read_chunked(sock, rest, answer)
    elif "content-length" in headers:
        while len(rest) < int(headers["content-length"]):
            data = sock.recv(65536)
            assert data, "the connection ended early"
            rest += data
        answer.body = rest
    else:
        while data := sock.recv(65536):
            rest += data
        answer.body = rest
    return answer


def _read_chunked(sock: socket.socket, rest: bytes, answer: Answer) -> None:
    while True:
        while b"\r\n" not in rest:
            data = sock.recv(65536)
            assert data, "the connection ended inside a chunked body"
            rest += data
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        while len(rest) < length + 2:
            data = sock.recv(65536)
            assert data, "the connection ended inside a chunk"
            rest += data
        if not length:
            return
        answer.reads.append((time.perf_counter(), rest[:length]))
        answer.body += rest[:length]
        rest = rest[length + 2 :]


def chat(port: int, dialect: str = "openai", headers: Any = None, **fields: Any) -> Answer:
    """A chat request; every chunk or body of a 200 is held to the vendor's schema."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    answer = request(port, "POST", PATHS[dialect], body, headers)
    if answer.status == 200:
        check_schemas(answer, dialect, streamed=bool(fields.get("stream")))
    return answer


def check_schemas(answer: Answer, dialect: str, *, streamed: bool) -> None:
    if streamed:
        for chunk in answer.chunks:
            if "error" not in chunk:
                validate(f"{dialect}_chunk", chunk)
    elif dialect == "deepinfra":
        validate("deepinfra_response", answer.json)


def validate(schema: str, value: Any) -> None:
    errors = [str(error) for error in validator(schema).iter_errors(value)]
    assert not errors, (errors, value)


__all__ = ["Answer", "chat", "connect", "head_and_body", "read_answer", "request"]
