"""`POST …/chat/completions`: one event stream, sent as frames or collected into one body.

It must not know: how a dialect spells a chunk, how events are made.
"""

import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Generic, Literal, Protocol, TypeVar

from msgspec import Struct

from rejoinder.dialects import RequestPolicy, sse
from rejoinder.errors import INTERNAL_MESSAGE, EngineFailed
from rejoinder.events import Collector
from rejoinder.service.accounts import Account
from rejoinder.service.chat import Answer, ChatService
from rejoinder.types import AnswerOptions, DecodedRequest
from rejoinder.web.drain import Drain
from rejoinder.web.middleware import Exchange, Front
from rejoinder.web.requests import read_body
from rejoinder.web.responses import FrameStream, cancelled_when_gone
from rejoinder.web.resume import KeptStream, Streams
from rejoinder.web.stored import StoredCompletions

STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}

JSON_HEADERS = {"content-type": "application/json"}


class FrameWatch(Protocol):
    """Looks at the frames of one stream as they leave; gives the rules that they break."""

    def feed(self, frames: bytes) -> tuple[str, ...]: ...


class AnswerSample(Protocol):
    """Keeps one answer for a closer look."""

    def add(self, sent: bytes, seconds: float) -> None: ...


S = TypeVar("S", bound=AnswerSample)


class Checks(Protocol[S]):
    """The contract's rules on what leaves (docs/conformance.md)."""

    def watch(self, dialect: str) -> FrameWatch: ...

    def sample(self) -> S | None: ...

    def broken(self, model: str, rules: tuple[str, ...]) -> None: ...

    def judge(
        self,
        sample: S,
        *,
        model: str,
        dialect: str,
        request: bytes,
        status: int,
        headers: Mapping[str, str],
        path: str,
    ) -> None: ...


class _Asked(Struct, frozen=True):
    """One chat request: who asks, how, and what."""

    exchange: Exchange
    account: Account
    body: bytes
    decoded: DecodedRequest


class Completions(Generic[S]):
    """Answers chat requests over HTTP."""

    def __init__(
        self,
        front: Front,
        service: ChatService,
        drain: Drain,
        stored: StoredCompletions,
        checks: Checks[S],
        *,
        policy: RequestPolicy,
        max_body_bytes: int,
        keepalive_seconds: float,
        prompts_in_log: Literal["never", "always"] = "never",
        streams: Streams | None = None,
    ) -> None:
        """`streams` None: a stream ends with its connection."""
        self._front = front
        self._service = service
        self._drain = drain
        self._stored = stored
        self._checks = checks
        self._policy = policy
        self._max_body_bytes = max_body_bytes
        self._keepalive_seconds = keepalive_seconds
        self._prompts_in_log = prompts_in_log
        self._streams = streams

    async def create(self, exchange: Exchange) -> None:
        account = await self._front.require_account(exchange)
        self._drain.require_open()
        body = await read_body(exchange.scope, exchange.receive, max_bytes=self._max_body_bytes)
        last_event = exchange.header(b"last-event-id")
        if self._streams is not None and last_event is not None:
            await self._resume(exchange, self._streams, account, last_event)
            return
        decoded = exchange.dialect.decode_request(body, self._policy)
        if self._prompts_in_log == "always":
            exchange.fields["request"] = body.decode("utf-8", "replace")
        if decoded.ignored:
            exchange.headers["x-ignored-parameters"] = ", ".join(decoded.ignored)
        asked = _Asked(exchange, account, body, decoded)
        if self._streams is not None and decoded.answer.stream:
            await self._stream_kept(asked, self._streams)
            return
        options, answering = decoded.answer, self._answering(asked)
        del body, decoded, asked  # they may be long, and so may the answer take
        async with answering as (answer, sample):
            if options.stream:
                await self._stream(exchange, options, answer, sample)
            else:
                await self._unary(exchange, options, answer, sample)

    def _answering(self, asked: _Asked) -> "_Answering[S]":
        """One admitted request, and what is to be noted of it at its end."""
        return _Answering(asked, open=self._open, checks=self._checks)

    async def _open(self, asked: _Asked) -> Answer:
        exchange, decoded = asked.exchange, asked.decoded
        answer = await self._service.open(
            decoded,
            asked.account,
            request_id=exchange.request_id,
            dialect=exchange.dialect.name,
            impossible=exchange.dialect.impossible,
            traceparent=exchange.header(b"traceparent"),
        )
        exchange.headers.update(answer.headers)
        if decoded.chat.store:
            answer.events = self._stored.kept(
                answer.events,
                exchange=exchange,
                account=asked.account,
                body=asked.body,
                decoded=decoded,
            )
        return answer

    async def _unary(
        self, exchange: Exchange, options: AnswerOptions, answer: Answer, sample: S | None
    ) -> None:
        collector = Collector()
        async with (
            cancelled_when_gone(exchange.receive),
            self._drain.running_task(),
            aclosing(answer.events) as events,
        ):
            async for event in events:
                collector.feed(event)
        body = exchange.dialect.encode_completion(collector.close(), options, self._policy)
        if sample is not None:
            sample.add(body, exchange.elapsed)
        await exchange.reply(200, body)

    async def _stream(
        self, exchange: Exchange, options: AnswerOptions, answer: Answer, sample: S | None
    ) -> None:
        stream = self._frame_stream(exchange, self._frames(exchange, options, answer, sample))
        with self._drain.running(stream.fail):
            await stream.send(exchange.receive, exchange.send)

    def _frame_stream(self, exchange: Exchange, frames: AsyncGenerator[bytes, None]) -> FrameStream:
        exchange.status = 200
        return FrameStream(
            frames,
            headers=lambda: exchange.head(STREAM_HEADERS),
            keepalive_seconds=self._keepalive_seconds,
            render_error=exchange.render_error,
            error_frames=lambda error: error_frames(exchange, error),
        )

    # ------------------------------------------------------------ streams that can be resumed

    async def _stream_kept(self, asked: _Asked, streams: Streams) -> None:
        """A stream that is made in a task of its own: it goes on when the client leaves."""
        exchange = asked.exchange
        stream = streams.start(
            asked.account.id,
            self._owned_frames(asked),
            error_frames=lambda error: error_frames(exchange, error),
            running=self._drain.running,
        )
        await stream.begun()
        await self._send_kept(exchange, stream, 0)

    async def _resume(
        self, exchange: Exchange, streams: Streams, account: Account, last_event: str
    ) -> None:
        """What follows the event that the client has; 204 where it has everything."""
        stream, number = streams.find(account.id, last_event)
        exchange.fields["resumed_after"] = number
        if stream.has_all(number):
            await exchange.reply(204, b"")
            return
        await self._send_kept(exchange, stream, number)

    async def _send_kept(self, exchange: Exchange, stream: KeptStream, number: int) -> None:
        sending = self._frame_stream(exchange, stream.read_after(number))
        with self._drain.running(sending.fail):
            await sending.send(exchange.receive, exchange.send)

    async def _owned_frames(self, asked: _Asked) -> AsyncGenerator[bytes, None]:
        """The frames of a request that is open as long as they are made. The first is empty."""
        async with self._answering(asked) as (answer, sample):
            yield b""
            made = self._frames(asked.exchange, asked.decoded.answer, answer, sample)
            async with aclosing(made) as frames:
                async for frame in frames:
                    yield frame

    # ------------------------------------------------------------ frames

    async def _frames(
        self, exchange: Exchange, options: AnswerOptions, answer: Answer, sample: S | None
    ) -> AsyncGenerator[bytes, None]:
        encoder = exchange.dialect.chunk_encoder(options, self._policy, padding)
        watch = self._checks.watch(exchange.dialect.name)
        async with aclosing(answer.events) as events:
            async for event in events:
                usage = answer.meter.usage() if options.continuous_usage else None
                frames = encoder.feed(event, usage)
                if broken := watch.feed(frames):
                    self._checks.broken(answer.record.model, broken)
                    raise EngineFailed(INTERNAL_MESSAGE)
                if sample is not None:
                    sample.add(frames, exchange.elapsed)
                yield frames
                del frames, event  # or they are kept until the next one comes
        if sample is not None:
            sample.add(sse.DONE, exchange.elapsed)
        yield sse.DONE


class _Answering(Generic[S]):
    """The context of one answer: opened, sampled, and described and judged at its end. An object,
    for an asynchronous generator is several times its size."""

    __slots__ = ("_answer", "_asked", "_checks", "_exchange", "_open", "_sample")

    def __init__(
        self,
        asked: _Asked,
        *,
        open: Callable[[_Asked], Awaitable[Answer]],
        checks: Checks[S],
    ) -> None:
        self._exchange = asked.exchange
        self._asked: _Asked | None = asked
        """Let go of where the answer is not sampled: it is as long as the conversation."""
        self._open = open
        self._checks = checks
        self._answer: Answer | None = None
        self._sample: S | None = None

    async def __aenter__(self) -> tuple[Answer, S | None]:
        assert self._asked is not None
        self._answer = answer = await self._open(self._asked)
        self._sample = sample = self._checks.sample()
        if sample is None:
            self._asked = None
        return answer, sample

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        answer = self._answer
        assert answer is not None
        async with answer:
            describe(self._exchange, answer)
            if kind is None and self._sample is not None and self._asked is not None:
                self._judge(self._asked, answer, self._sample)

    def _judge(self, asked: _Asked, answer: Answer, sample: S) -> None:
        exchange = asked.exchange
        stream_head = STREAM_HEADERS if asked.decoded.answer.stream else JSON_HEADERS
        self._checks.judge(
            sample,
            model=answer.record.model,
            dialect=exchange.dialect.name,
            request=asked.body,
            status=exchange.status,
            headers=exchange.head(stream_head),
            path=exchange.scope["path"],
        )


def error_frames(exchange: Exchange, error: Exception) -> bytes:
    """The end of a stream that broke."""
    _, body, _ = exchange.render_error(error)
    return sse.frame(body) + sse.DONE


def padding() -> str:
    """Random printable text that hides how long a chunk's own text is (A6)."""
    return secrets.token_urlsafe(6)[: 2 + secrets.randbelow(6)]


def describe(exchange: Exchange, answer: Answer) -> None:
    """What the log line says of an answer (style, rule 17)."""
    record = answer.record
    usage = answer.meter.usage()
    exchange.fields |= {
        "completion": record.completion_id,
        "model": record.model,
        "tier": record.tier,
        "stream": record.stream,
        "finish": list(record.finish_reasons),
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
        "first_ms": None
        if record.first_event_seconds is None
        else round(record.first_event_seconds * 1000, 1),
    }
