"""One provider of the chat completions API as a backend: requests out, its stream back as events.

Always asks for a stream with usage; retries before the first event only; closing the generator
closes the provider's connection. This module must not know: chunks (dialects do), our own
clients, fallbacks.
"""

import asyncio
import io
import math
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress

import aiohttp
from msgspec import Struct
from msgspec.structs import replace

from rejoinder.backends.retry import RetryPolicy, retry_after_seconds
from rejoinder.backends.rewrite import Rewriter, RewriteSpec
from rejoinder.config import RemoteConfig
from rejoinder.dialects.chunks import ChunkDecoder
from rejoinder.dialects.provider import (
    JsonWord,
    LimitName,
    ProviderRequest,
    encode_request,
    estimate_prompt_tokens,
    lacks_json_word,
)
from rejoinder.dialects.provider_errors import read_error_body, to_chat_error
from rejoinder.dialects.sse import SseReader
from rejoinder.engines.connections import open_session, reach_end, shorten_queues, was_stale
from rejoinder.errors import ChatError, InvalidRequest, ProviderFailed, ProviderTimeout
from rejoinder.events import Done, Event
from rejoinder.text.formats import tool_format
from rejoinder.text.grammar import check_strict_tools
from rejoinder.text.reasoning import reasoning_format
from rejoinder.types import ChatRequest, Meter

__all__ = ["RemoteBackend"]

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""Of one event; a longer one is an error."""

MAX_BODY_BYTES = 32 * 1024 * 1024
"""Of an answer that is one JSON body."""

MAX_ERROR_BYTES = 64 * 1024
"""Of an error's body; the rest is not read."""

LONG_BODY_BYTES = 1024 * 1024
"""Of a request; from here on it is written piece by piece."""

ERROR_BODY_SECONDS = 5.0

USAGE_SECONDS = 15.0
"""How long the counts are waited for after every choice has finished."""

DONE_SECONDS = 2.0
"""How long the end of a stream is waited for when all has been said."""

_THINKING_MODELS: tuple[tuple[str, str], ...] = (
    ("deepseek-r1", "deepseek_r1"),
    ("deepseek-reasoner", "deepseek_r1"),
    ("qwq", "deepseek_r1"),
    ("qwen3", "qwen3"),
    ("glm-4.5", "qwen3"),
    ("minimax-m", "qwen3"),
    ("kimi-k2-thinking", "qwen3"),
    ("magistral", "mistral"),
)
"""Parts of model names and the reasoning format that such a model writes, for `auto`."""


def reasoning_format_of(model: str, configured: str) -> str:
    """The format in which a model's content may hold thoughts; "auto" knows it by its name.

    Raises ValueError for a format that does not exist.
    """
    if configured != "auto":
        return reasoning_format(configured).name
    name = model.lower()
    return next((format for part, format in _THINKING_MODELS if part in name), "none")


class _Failure(Exception):
    """One try has failed. `retry_after`: what the provider asked for, in seconds."""

    def __init__(self, error: ChatError, retry_after: float | None = None) -> None:
        super().__init__(error.message)
        self.error = error
        self.retry_after = retry_after


class _Silence(Exception):
    """The provider said nothing for longer than it may."""


class _Stale(Exception):
    """A connection was closed before a byte of the answer came over it."""


class _Habits(Struct, frozen=True):
    """What only some providers insist on; learnt from what they refuse."""

    limit_name: LimitName | None = None
    json_word: JsonWord = "optional"


class RemoteBackend:
    """One provider. Made outside a loop; its connections are opened by the first request.

    `on_repair(kind)` is called once for each kind of `DEVIATIONS` that an answer needed repaired.
    `clock` is Unix time, `sleep`, `random` and `new_id` are for tests to replace.
    """

    def __init__(
        self,
        config: RemoteConfig,
        *,
        new_id: Callable[[], str],
        api_key: str = "",
        on_repair: Callable[[str], None] = lambda kind: None,
        retry: RetryPolicy | None = None,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Callable[[], float] = random.random,
    ) -> None:
        """Raises ValueError for a reasoning or tool format that does not exist."""
        self._config = config
        self._model = config.upstream_model or config.id
        self._url = config.base_url.rstrip("/") + "/chat/completions"
        self._secrets = tuple(s for s in (api_key, config.base_url.rstrip("/")) if s)
        self._reasoning_format = reasoning_format_of(self._model, config.reasoning_format)
        auto = config.tool_format == "auto"
        self._tool_format = "none" if auto else tool_format(config.tool_format).name
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._retry = retry or RetryPolicy(max_retries=config.max_retries)
        self._new_id = new_id
        self._on_repair = on_repair
        self._clock = clock
        self._sleep = sleep
        self._random = random
        self._habits = _Habits()
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        if self._session is not None:
            await self._session.close()

    async def chat(self, request: ChatRequest, meter: Meter) -> AsyncGenerator[Event, None]:
        """Events of one answer. Raises ChatError; before the first event the request has been
        tried as often and as long as the configuration allows."""
        if self._config.dialect == "deepinfra":  # it knows no strict functions, so we check
            check_strict_tools(request)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.first_token_timeout_seconds
        attempt = 0
        stale = False
        while True:
            habits = self._habits
            answer = self._answer(request, deadline, habits)
            started = False
            try:
                await answer.open(self._open)
                while (events := await answer.read(meter)) is not None:
                    for event in events:
                        started = True
                        yield event
                return
            except _Stale:
                if stale:
                    failure = _Failure(_unreachable())
                else:
                    stale = True
                    continue
            except ChatError as error:
                failure = _Failure(error.with_traceback(None))
            except _Failure as error:
                failure = error.with_traceback(None)
            finally:
                answer.close()
                self._account(answer.decoder, meter)
            if not (started or self._closed):
                self._learn(failure.error, request, habits)
                if self._habits != habits:
                    continue
                wait = self._retry.wait(
                    failure.error,
                    attempt=attempt,
                    retry_after=failure.retry_after,
                    remaining=deadline - loop.time(),
                    random=self._random,
                )
                if wait is not None:
                    attempt += 1
                    await self._sleep(wait)
                    continue
            try:
                raise failure.error
            finally:
                del failure  # or the error leads here, and from here to the error again

    # ------------------------------------------------------------ one try

    def _answer(self, request: ChatRequest, deadline: float, habits: _Habits) -> "_Answer":
        sent = encode_request(
            request,
            dialect=self._config.dialect,
            model=self._model,
            limit_name=habits.limit_name,
            json_word=habits.json_word,
            reasoning_field=self._config.reasoning_field,
        )
        decoder = ChunkDecoder(
            model=self._model,
            n=request.n,
            new_id=self._new_id,
            reasoning_field=self._config.reasoning_field,
            tool_names=[tool.name for tool in request.tools],
            max_calls=sent.max_calls,
            num_prompt_tokens=estimate_prompt_tokens(request),
            logprobs="required" if request.logprobs else "dropped",
            predicted=request.prediction is not None,
            secrets=self._secrets,
        )
        spec = RewriteSpec(
            stop=sent.stop,
            tools=request.tools,
            tool_choice=request.tool_choice,
            tool_format=self._tool_format,
            reasoning_format=self._reasoning_format,
            logprobs=request.logprobs,
        )
        rewriter = (
            Rewriter(spec, n=request.n, new_id=self._new_id, repaired=self._on_repair)
            if spec.is_needed
            else None
        )
        between = self._config.between_tokens_timeout_seconds
        return _Answer(sent, decoder, rewriter, deadline, between)

    async def _open(self, sent: ProviderRequest, deadline: float) -> aiohttp.ClientResponse:
        """The head of an answer with status 200. Raises _Failure, _Stale."""
        # A long body in one piece would hold up everything else.
        body = sent.body if len(sent.body) < LONG_BODY_BYTES else io.BytesIO(sent.body)
        try:
            async with asyncio.timeout_at(deadline):
                response = await self._client().post(self._url, data=body, allow_redirects=False)
        except aiohttp.ServerTimeoutError:
            raise _Failure(
                ProviderTimeout("The provider of this model did not accept a connection in time.")
            ) from None
        except TimeoutError:
            raise _Failure(_silent(has_begun=False)) from None
        except aiohttp.ClientResponseError:
            raise _Failure(
                ProviderFailed("The provider of this model did not answer with proper HTTP.")
            ) from None
        except (aiohttp.ClientError, OSError, ValueError, RuntimeError) as error:
            if not was_stale(error):
                raise _Failure(_unreachable()) from None
            _forget_way(error)
            raise _Stale from None
        if response.status != 200:
            raise await self._refused(response)
        return response

    async def _refused(self, response: aiohttp.ClientResponse) -> _Failure:
        body = b""
        try:
            with suppress(aiohttp.ClientError, OSError, TimeoutError):
                async with asyncio.timeout(ERROR_BODY_SECONDS):
                    while len(body) < MAX_ERROR_BYTES:
                        data = await response.content.readany()
                        if not data:
                            break
                        body += data
            await reach_end(response)
        finally:
            response.close()
        retry_after = retry_after_seconds(response.headers, self._clock())
        error = to_chat_error(
            read_error_body(response.status, body[:MAX_ERROR_BYTES]),
            retry_after=None if retry_after is None else max(1, math.ceil(retry_after)),
            secrets=self._secrets,
        )
        return _Failure(error, retry_after)

    def _client(self) -> aiohttp.ClientSession:
        if self._closed:
            raise RuntimeError("closed")
        if self._session is None:
            self._session = open_session(
                self._headers, connect_seconds=self._config.connect_timeout_seconds
            )
        return self._session

    # ------------------------------------------------------------ what is kept of a try

    def _account(self, decoder: ChunkDecoder, meter: Meter) -> None:
        """The counts of a try, however it ended, and what had to be repaired."""
        if decoder.num_deltas or decoder.has_usage:
            meter.reported = decoder.usage()
        for kind in decoder.repairs:
            self._on_repair(kind)

    def _learn(self, error: ChatError, request: ChatRequest, sent: _Habits) -> None:
        """What a refusal of a request that was sent with these habits tells about the provider."""
        if self._config.dialect != "openai" or not isinstance(error, InvalidRequest):
            return
        if (
            sent.limit_name is None
            and request.max_tokens is not None
            and error.code in ("unsupported_parameter", "unknown_parameter")
            and error.param == request.max_tokens_param
        ):
            was_new = request.max_tokens_param == "max_completion_tokens"
            name: LimitName = "max_tokens" if was_new else "max_completion_tokens"
            self._habits = replace(self._habits, limit_name=name)
        elif lacks_json_word(request) and "json" in error.message.lower():
            self._habits = replace(self._habits, json_word="required")


class _Answer:
    """One try: the request, the bytes that come back, and the events they are.

    `deadline`: when the first event must have come; `between`: seconds from one to the next.
    """

    def __init__(
        self,
        sent: ProviderRequest,
        decoder: ChunkDecoder,
        rewriter: Rewriter | None,
        deadline: float,
        between: float,
    ) -> None:
        self.decoder = decoder
        self._sent: ProviderRequest | None = sent
        """Let go of once it is sent: it is as long as the conversation."""
        self._rewriter = rewriter
        self._body = _Body(decoder)
        self._deadline = deadline
        self._between = between
        self._response: aiohttp.ClientResponse | None = None
        self._watch: _Watch | None = None
        self._failure: ChatError | None = None
        self._over = False
        self._is_spent = False
        self._has_begun = False
        self._num_deltas = 0

    async def open(self, opener: Callable[..., Awaitable[aiohttp.ClientResponse]]) -> None:
        """Sends the request. Raises _Failure, _Stale."""
        sent, self._sent = self._sent, None
        assert sent is not None
        self._response = await opener(sent, self._deadline)
        shorten_queues(self._response)
        self._watch = _Watch(self._response.content)

    def close(self) -> None:
        """Lets go of the connection, at once and whatever is under way."""
        self._failure = None
        if self._watch is not None:
            self._watch.stop()
        if self._response is not None:
            self._response.close()

    async def read(self, meter: Meter) -> list[Event] | None:
        """The events of the next read that has any; None at the end. Raises ChatError, when
        everything that came before it has been given."""
        while True:
            if self._failure is not None:
                raise self._failure
            if self._over:
                await self._reach_end()
                return None
            events = await self._read_once()
            if self._rewriter is not None:
                events = self._rewriter.feed(events)
                if self._rewriter.stopped and not self.decoder.ended:
                    self._over = self._is_spent = True
                    self._failure = None
                    events.append(Done(self.decoder.usage()))
            if self.decoder.has_usage:
                meter.reported = self.decoder.usage()
            if events:
                return events

    async def _read_once(self) -> list[Event]:
        watch, decoder = self._watch, self.decoder
        assert watch is not None
        try:
            watch.begin(self._deadline)
            data = await watch.content.readany()
        except _Silence:
            return self._end(_silent(has_begun=self._has_begun))
        except (aiohttp.ClientError, OSError) as error:
            _forget_way(error)
            return self._end(_lost())
        finally:
            watch.end()
        if not data:
            return self._end(None)
        events, self._failure = self._body.feed(data)
        if events or (self._has_begun and decoder.num_deltas != self._num_deltas):
            self._has_begun = True
            self._num_deltas = decoder.num_deltas
            self._deadline = watch.now() + self._between
        if decoder.ended:
            self._over = True
        elif decoder.complete:
            patience = DONE_SECONDS if decoder.has_usage else USAGE_SECONDS
            self._deadline = min(self._deadline, watch.now() + patience)
        return events

    def _end(self, failure: ChatError | None) -> list[Event]:
        """The body has ended, cleanly or by a failure, which does not matter to a complete
        answer."""
        self._over = self._is_spent = True
        if failure is not None and not self._body.is_complete:
            self._failure = failure
            return []
        events, self._failure = self._body.end()
        return events

    async def _reach_end(self) -> None:
        if self._response is not None and not self._is_spent:
            await reach_end(self._response)


class _Body:
    """The bytes of one answer: an event stream, or one JSON body whatever was asked for."""

    def __init__(self, decoder: ChunkDecoder) -> None:
        self._decoder = decoder
        self._sse = SseReader(max_event_bytes=MAX_EVENT_BYTES)
        self._json: bytearray | None = None
        self._sniffed = False
        self._head = b""

    def feed(self, data: bytes) -> tuple[list[Event], ChatError | None]:
        """The events that `data` completes, and the failure that ends them."""
        events: list[Event] = []
        try:
            if not self._sniffed:
                data = self._sniff(data)
            if self._json is not None:
                self._json += data
                if len(self._json) > MAX_BODY_BYTES:
                    raise ProviderFailed("The provider of this model sent too long an answer.")
            else:
                self._decoder.feed_into(self._sse.feed(data), events)
        except ChatError as error:
            return events, error
        return events, None

    def end(self) -> tuple[list[Event], ChatError | None]:
        """The body has ended."""
        try:
            if self._json is not None:
                return self._decoder.feed_body(bytes(self._json)), None
            return self._decoder.finish(self._sse.flush()), None
        except ChatError as error:
            return [], error

    @property
    def is_complete(self) -> bool:
        return self._json is None and self._decoder.complete

    def _sniff(self, data: bytes) -> bytes:
        """JSON begins with a brace, an event stream never does; labels are not to be trusted."""
        self._head += data
        first = self._head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
        if not first and len(self._head) < 1024:
            return b""
        self._sniffed = True
        if first in (b"{", b"[", b"<"):
            self._json = bytearray()
        data, self._head = self._head, b""
        return data


class _Watch:
    """Ends a read at its deadline by _Silence, by one timer for the whole stream instead of one for
    each read. `begin` before it, `end` after it."""

    __slots__ = ("_deadline", "_timer", "_when", "content", "now")

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self.content = content
        self.now = asyncio.get_running_loop().time
        self._deadline = math.inf
        self._when = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, deadline: float) -> None:
        self._deadline = deadline
        if self._when > deadline:
            self._arm(deadline)

    def end(self) -> None:
        self._deadline = math.inf

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, when: float) -> None:
        self.stop()
        self._when = when
        self._timer = asyncio.get_running_loop().call_at(when, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._when = math.inf
        if self._deadline <= self.now():
            self.content.set_exception(_Silence())
        elif self._deadline != math.inf:
            self._arm(self._deadline)


def _forget_way(error: BaseException) -> None:
    """aiohttp's connection keeps what it has raised, and the traceback leads to the frames that
    keep the connection: only the collector of cycles would free them."""
    error.with_traceback(None)


def _unreachable() -> ChatError:
    return ProviderFailed("The provider of this model could not be reached.")


def _lost() -> ChatError:
    return ProviderFailed("The connection to the provider of this model was lost.")


def _silent(*, has_begun: bool) -> ChatError:
    return ProviderTimeout(
        "The provider of this model stopped answering."
        if has_begun
        else "The provider of this model did not begin its answer in time."
    )
