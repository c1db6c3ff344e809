"""`rejoinder record`: a proxy in front of one server that keeps every exchange on a tape.

Bytes are passed on as they come, each part with its time. Must not know: what JSON they hold.
"""

import asyncio
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from rejoinder.check.exchange import Headers, Read, Request, Response
from rejoinder.check.http1 import (
    MAX_HEAD_BYTES,
    BadHttp,
    Head,
    body_parts,
    chunk_of,
    head_bytes,
    read_body,
    read_head,
)
from rejoinder.check.tape import Recorded, to_line

__all__ = ["Recorder"]


class Recorder:
    """Listens on one address and passes everything on to `upstream`, a URL without a path.

    `keep` gets each exchange when it has ended, redacted only when it becomes a line.
    """

    def __init__(self, upstream: str, keep: Callable[[Recorded], None]) -> None:
        parts = urlsplit(upstream if "://" in upstream else f"http://{upstream}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{upstream!r} is no http or https URL")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host = parts.hostname
        self._port = parts.port or (443 if self._tls else 80)
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._netloc = parts.netloc
        self._path = parts.path.rstrip("/")
        self._keep = keep

    async def start(self, host: str, port: int) -> asyncio.Server:
        return await asyncio.start_server(self._connected, host, port, limit=MAX_HEAD_BYTES)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (head := await read_head(reader)) is not None:
                body = await read_body(reader, head, to_end=False)
                await self._pass_on(head, body, writer)
                if head.get("connection").lower() == "close":
                    break
        except (BadHttp, OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            # The last: the server is closing, and this connection with it.
            pass
        finally:
            writer.close()

    async def _pass_on(self, head: Head, body: bytes, writer: asyncio.StreamWriter) -> None:
        method, path, _ = head.start
        started = time.perf_counter()
        tape = _Tape(started)
        try:
            up_reader, up_writer = await asyncio.open_connection(
                self._host, self._port, ssl=self._tls, limit=MAX_HEAD_BYTES
            )
        except OSError as error:
            writer.write(_bad_gateway(str(error)))
            await writer.drain()
            return
        try:
            headers = [(k, v) for k, v in head.end_to_end if k.lower() != "host"]
            sent = (("Host", self._netloc), *headers, ("Connection", "close"))
            if body or method in ("POST", "PUT", "PATCH"):
                sent += (("Content-Length", str(len(body))),)
            up_writer.write(head_bytes(f"{method} {self._path}{path} HTTP/1.1", sent) + body)
            await up_writer.drain()
            await self._answer(up_reader, writer, tape)
        finally:
            up_writer.close()
            request = Request(
                method=method,
                url=f"{self._origin}{self._path}{path}",
                headers=head.end_to_end,
                body=body,
            )
            self._keep(Recorded(request, tape.response()))

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tape: "_Tape"
    ) -> None:
        head = await read_head(reader)
        if head is None:
            tape.ending = "cut"
            raise OSError("the server closed without an answer")
        tape.status = int(head.start[1]) if head.start[1].isdigit() else 0
        tape.headers = head.end_to_end
        known = head.get("content-length")
        framing = ("Content-Length", known) if known else ("Transfer-Encoding", "chunked")
        start = f"HTTP/1.1 {head.start[1]} {head.start[2]}".rstrip()
        writer.write(head_bytes(start, (*head.end_to_end, framing)))
        tape.ending = "cut"
        try:
            async for part in body_parts(reader, head, to_end=True):
                tape.add(part)
                writer.write(part if known else chunk_of(part))
                await writer.drain()
        except ConnectionError:
            tape.ending = "closed by client"
            raise
        tape.ending = "whole"
        if not known:
            writer.write(b"0\r\n\r\n")
        await writer.drain()


class _Tape:
    """What has come of one answer."""

    def __init__(self, started: float) -> None:
        self._started = started
        self._body = bytearray()
        self._reads: list[Read] = []
        self.status = 0
        self.headers: Headers = ()
        self.ending = "whole"

    def add(self, part: bytes) -> None:
        self._reads.append(Read(len(self._body), time.perf_counter() - self._started))
        self._body += part

    def response(self) -> Response:
        return Response(
            status=self.status,
            headers=self.headers,
            body=bytes(self._body),
            reads=tuple(self._reads),
            ending=self.ending,  # type: ignore[arg-type]
        )


def _bad_gateway(why: str) -> bytes:
    text = f"rejoinder record: the server cannot be reached: {why}\n".encode()
    headers = (("Content-Type", "text/plain"), ("Content-Length", str(len(text))))
    return head_bytes("HTTP/1.1 502 Bad Gateway", headers) + text


async def record(
    upstream: str, path: Path, *, host: str, port: int, started: Callable[[str], None]
) -> None:
    """Records until cancelled; each exchange is on the tape as soon as it has ended.

    `started` is told the address. Raises ValueError for a bad URL, OSError for a busy port.
    """
    with path.open("a", encoding="utf-8") as file:

        def keep(recorded: Recorded) -> None:
            file.write(to_line(recorded) + "\n")
            file.flush()

        server = await Recorder(upstream, keep).start(host, port)
        async with server:
            bound = server.sockets[0].getsockname()
            started(f"http://{bound[0]}:{bound[1]}")
            await server.serve_forever()
