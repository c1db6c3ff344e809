"""HTTP to one engine server: JSON out, a stream of data lines back, every failure a ChatError.

It must not know: what the data lines mean, which kind of server it is.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Self

import aiohttp
from msgspec import Struct

from rejoinder.engines.connections import open_session, reach_end, was_stale
from rejoinder.engines.wire import DataLines, DecodeEvent, Refused, refusal
from rejoinder.errors import ChatError, ProviderFailed, ProviderTimeout
from rejoinder.types import Counts, EngineFinishReason, Step, TokenIdLogprob

log = logging.getLogger("rejoinder.engines")

LAST_EVENTS_SECONDS = 5.0
"""How long the counts after a finish reason are waited for."""


class Timeouts(Struct, frozen=True, kw_only=True):
    """Seconds. `between_tokens`: comments and keep-alives do not count as life."""

    connect: float = 5.0
    first_token: float = 120.0
    between_tokens: float = 60.0


DEFAULT_TIMEOUTS = Timeouts()


class Server:
    """The connections to one engine server. Made outside a loop, opened by the first request."""

    def __init__(
        self, base_url: str, *, api_key: str = "", timeouts: Timeouts = DEFAULT_TIMEOUTS
    ) -> None:
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self.timeouts = timeouts
        self._headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._session: aiohttp.ClientSession | None = None

    async def get(self, path: str) -> bytes:
        return await self._whole("GET", path, None)

    async def post(self, path: str, body: bytes) -> bytes:
        return await self._whole("POST", path, body)

    async def healthy(self) -> bool:
        """`GET /health` says 200 soon enough."""
        try:
            async with asyncio.timeout(self.timeouts.connect):
                await self.get("/health")
        except (Refused, ChatError, TimeoutError):
            return False
        return True

    async def stream(self, path: str, body: bytes) -> AsyncGenerator[list[bytes], None]:
        """The payloads of each read, until `[DONE]` or the end of the body.

        Closing it closes the connection, which aborts the request. Raises Refused, ProviderFailed,
        ProviderTimeout.
        """
        loop = asyncio.get_running_loop()
        lines = DataLines()
        deadline = loop.time() + self.timeouts.first_token
        response = await self._open(path, body, deadline)
        try:
            if response.status != 200:
                async with _failures(deadline, "the rest of an error"):
                    raise refusal(response.status, await response.read())
            while True:
                async with _failures(deadline, "its next token"):
                    chunk = await response.content.readany()
                if not chunk:
                    return
                payloads = lines.feed(chunk)
                if payloads and payloads[-1] == b"[DONE]":
                    yield payloads[:-1]
                    await reach_end(response)
                    return
                if payloads:
                    yield payloads
                    deadline = loop.time() + self.timeouts.between_tokens
        finally:
            response.close()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _open(self, path: str, body: bytes, deadline: float) -> aiohttp.ClientResponse:
        """The response's head. A kept connection that the server has just closed is no failure
        of the server: one more try with another."""
        try:
            return await self._post(path, body, deadline)
        except _Stale:
            return await self._post(path, body, deadline)

    async def _post(self, path: str, body: bytes, deadline: float) -> aiohttp.ClientResponse:
        async with _failures(deadline, "its answer"):
            return await self._client().post(self.base_url + path, data=body, allow_redirects=False)

    async def _whole(self, method: str, path: str, body: bytes | None) -> bytes:
        deadline = asyncio.get_running_loop().time() + self.timeouts.first_token
        url = self.base_url + path
        async with (
            _failures(deadline, "its answer"),
            self._client().request(method, url, data=body, allow_redirects=False) as response,
        ):
            content = await response.read()
            if response.status != 200:
                raise refusal(response.status, content)
            return content

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = open_session(self._headers, connect_seconds=self.timeouts.connect)
        return self._session


class _Stale(ProviderFailed):
    """The connection was closed before a byte of the answer."""


class _failures:
    """Turns a time-out and the client library's errors into ours."""

    def __init__(self, deadline: float, awaited: str) -> None:
        self._timeout = asyncio.timeout_at(deadline)
        self._awaited = awaited

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self._timeout.__aexit__(kind, error, traceback)
        except TimeoutError:
            raise ProviderTimeout(
                f"The replica was silent for too long: {self._awaited}."
            ) from None
        match error:
            case TimeoutError():
                raise ProviderTimeout("The replica cannot be reached in time.") from None
            case aiohttp.ServerDisconnectedError():
                raise _Stale("The replica closed the connection.") from error
            case aiohttp.ClientError() | OSError():
                # What it says has addresses in it, and clients are told our message.
                log.warning("a replica's connection failed: %s", error)
                failure = _Stale if was_stale(error) else ProviderFailed
                raise failure("The connection to the replica failed.") from error


async def steps(
    server: Server,
    path: str,
    body: bytes,
    *,
    read: DecodeEvent,
    prompt_tokens: int,
    counts: Counts,
) -> AsyncGenerator[Step, None]:
    """One sequence as its server streams it: one step for each read, however many events it had.

    The finish reason is held back until the counts that follow it have come. Raises ChatError.
    """
    finish_reason: EngineFinishReason | None = None
    try:
        async with aclosing(server.stream(path, body)) as reads:
            while True:
                async with asyncio.timeout(LAST_EVENTS_SECONDS if finish_reason else None):
                    payloads = await anext(reads, None)
                if payloads is None:
                    break
                token_ids: list[int] = []
                logprobs: list[TokenIdLogprob] = []
                failure: Refused | ChatError | None = None
                for payload in payloads:
                    try:
                        delta = read(payload)
                    except (Refused, ChatError) as error:
                        failure = error
                        break
                    counts.prompt_tokens = prompt_tokens
                    counts.completion_tokens += delta.num_tokens
                    if delta.cached_tokens is not None:
                        counts.cached_tokens = min(delta.cached_tokens, prompt_tokens)
                    token_ids += delta.token_ids
                    logprobs += delta.logprobs or ()
                    finish_reason = delta.finish_reason or finish_reason
                if token_ids:
                    yield Step(tuple(token_ids), tuple(logprobs) or None)
                if failure is not None:
                    raise failure
    except Refused as error:
        if finish_reason is None:
            raise error.chat_error() from error
    except (ProviderFailed, TimeoutError):
        # A finished answer is whole, whatever happens to what would have come after it.
        if finish_reason is None:
            raise
    if finish_reason is None:
        raise ProviderFailed("The replica's stream ended before its finish reason.")
    yield Step((), finish_reason=finish_reason)
