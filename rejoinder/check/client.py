"""Sends probes and keeps what came, byte by byte with its time.

Must not know: rules, dialects beyond the name of the limit.
"""

import asyncio
import gzip
import io
import json
import time
from collections.abc import Mapping

import aiohttp
from msgspec import Struct

from rejoinder.check.exchange import DialectName, Exchange, Headers, Read, Request, Response
from rejoinder.check.probes import BASE, LIMIT
from rejoinder.check.rule import DROP, Probe
from rejoinder.types import JsonObject

LIMIT_NAMES: dict[DialectName, str] = {"O": "max_completion_tokens", "D": "max_tokens"}

WRONG_KEY = "rejoinder-check-wrong-key-0000000000"

COMPLETIONS = "/chat/completions"


class Target(Struct, frozen=True, kw_only=True):
    """The server under test. `base_url` is what `/chat/completions` is appended to."""

    base_url: str
    model: str
    dialect: DialectName
    api_key: str = ""
    timeout_seconds: float = 120.0

    def url(self, path: str) -> str:
        """A path below the base; with two slashes, below the host."""
        if not path.startswith("//"):
            return self.base_url + path
        scheme, _, rest = self.base_url.partition("://")
        return f"{scheme}://{rest.partition('/')[0]}{path[1:]}"


def request_of(probe: Probe, target: Target, ids: Mapping[str, str]) -> Request:
    """The request that a probe stands for. `ids`: what earlier probes were given, by name."""
    path = probe.path
    for name, value in ids.items():
        path = path.replace("{" + name + "}", value)
    headers: dict[str, str] = {"Accept": "*/*", "Accept-Encoding": "identity"}
    body = _body(probe, target)
    if body or probe.method in ("POST", "PUT"):
        headers["Content-Type"] = "application/json"
    key = {"given": target.api_key, "none": "", "wrong": WRONG_KEY}[probe.key]
    if key:
        headers["Authorization"] = f"Bearer {key}"
    headers.update(probe.headers)
    return Request(
        method=probe.method, url=target.url(path), headers=tuple(headers.items()), body=body
    )


def _body(probe: Probe, target: Target) -> bytes:
    if probe.raw is not None:
        return probe.raw
    if probe.method in ("GET", "DELETE"):
        return b""
    if probe.path != COMPLETIONS:
        return _json(probe.body or {})
    body: JsonObject = {"model": target.model, **BASE, **(probe.body or {})}
    limit = body.pop(LIMIT)
    if limit != DROP:
        body.setdefault(LIMIT_NAMES[target.dialect], limit)
    return _json({key: value for key, value in body.items() if value != DROP})


def _json(value: JsonObject) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def new_session() -> aiohttp.ClientSession:
    """Sends nothing of its own, and as much at once as it is asked to."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
        skip_auto_headers=("User-Agent", "Content-Type", "Accept", "Accept-Encoding"),
    )


async def ask(
    session: aiohttp.ClientSession, probe: Probe, target: Target, ids: Mapping[str, str]
) -> Exchange:
    """One request and its answer; with status 0 where there is none."""
    request = request_of(probe, target, ids)
    at, started = time.time(), time.perf_counter()
    collected = _Collected()
    try:
        async with asyncio.timeout(target.timeout_seconds):
            try:
                await _exchange(session, request, probe.stop_after, started, collected)
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                if collected.status:
                    raise
                # A kept connection that the server had closed says nothing about this request.
                async with new_session() as fresh:
                    await _exchange(fresh, request, probe.stop_after, started, collected)
    except TimeoutError:
        collected.ending = "cut" if collected.status else "closed by client"
    except (aiohttp.ClientError, OSError):
        collected.ending = "cut"
    return Exchange(
        probe=probe.name,
        dialect=target.dialect,
        request=request,
        response=collected.response(),
        at=at,
    )


class _Collected:
    """What has come so far, also when the rest never does."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Headers = ()
        self.body = bytearray()
        self.reads: list[Read] = []
        self.ending = "whole"

    def response(self) -> Response:
        return Response(
            status=self.status,
            headers=self.headers,
            body=bytes(self.body),
            reads=tuple(self.reads),
            ending=self.ending,  # type: ignore[arg-type]
        )


async def _exchange(
    session: aiohttp.ClientSession,
    request: Request,
    stop_after: int,
    started: float,
    collected: _Collected,
) -> None:
    data = request.body
    coded = any(n.lower() == "content-encoding" and v == "gzip" for n, v in request.headers)
    async with session.request(
        request.method,
        request.url,
        data=io.BytesIO(gzip.compress(data) if coded else data) if data else None,
        headers=list(request.headers),
        allow_redirects=False,
    ) as response:
        collected.status = response.status
        collected.headers = tuple(
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in response.raw_headers
        )
        async for part in response.content.iter_any():
            now = time.perf_counter() - started
            collected.reads.append(Read(len(collected.body), now))
            collected.body += part
            if stop_after and collected.body.count(b"\n\n") >= stop_after:
                collected.ending = "closed by client"
                response.close()
                return
