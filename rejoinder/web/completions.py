"""`POST …/chat/completions`: one event stream, sent as frames or collected into one body.

It must not know: how a dialect spells a chunk, how events are made.
"""

import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing

from rejoinder.dialects import RequestPolicy, sse
from rejoinder.events import Collector
from rejoinder.service.chat import Answer, ChatService
from rejoinder.types import DecodedRequest
from rejoinder.web.drain import Drain
from rejoinder.web.middleware import Exchange, Front
from rejoinder.web.requests import read_body
from rejoinder.web.responses import FrameStream, cancelled_when_gone
from rejoinder.web.stored import StoredCompletions

STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


class Completions:
    """Answers chat requests over HTTP."""

    def __init__(
        self,
        front: Front,
        service: ChatService,
        drain: Drain,
        stored: StoredCompletions,
        *,
        policy: RequestPolicy,
        max_body_bytes: int,
        keepalive_seconds: float,
    ) -> None:
        self._front = front
        self._service = service
        self._drain = drain
        self._stored = stored
        self._policy = policy
        self._max_body_bytes = max_body_bytes
        self._keepalive_seconds = keepalive_seconds

    async def create(self, exchange: Exchange) -> None:
        account = await self._front.require_account(exchange)
        self._drain.require_open()
        body = await read_body(exchange.scope, exchange.receive, max_bytes=self._max_body_bytes)
        decoded = exchange.dialect.decode_request(body, self._policy)
        if decoded.ignored:
            exchange.headers["x-ignored-parameters"] = ", ".join(decoded.ignored)
        async with self._service.open(
            decoded,
            account,
            request_id=exchange.request_id,
            dialect=exchange.dialect.name,
            impossible=exchange.dialect.impossible,
            traceparent=exchange.header(b"traceparent"),
        ) as answer:
            exchange.headers.update(answer.headers)
            if decoded.chat.store:
                answer.events = self._stored.kept(
                    answer.events, exchange=exchange, account=account, body=body, decoded=decoded
                )
            try:
                if decoded.answer.stream:
                    await self._stream(exchange, decoded, answer)
                else:
                    await self._unary(exchange, decoded, answer)
            finally:
                describe(exchange, answer)

    async def _unary(self, exchange: Exchange, decoded: DecodedRequest, answer: Answer) -> None:
        collector = Collector()
        async with (
            cancelled_when_gone(exchange.receive),
            self._drain.running_task(),
            aclosing(answer.events) as events,
        ):
            async for event in events:
                collector.feed(event)
        body = exchange.dialect.encode_completion(collector.close(), decoded.answer, self._policy)
        await exchange.reply(200, body)

    async def _stream(self, exchange: Exchange, decoded: DecodedRequest, answer: Answer) -> None:
        def error_frames(error: Exception) -> bytes:
            _, body, _ = exchange.render_error(error)
            return sse.frame(body) + sse.DONE

        exchange.status = 200
        stream = FrameStream(
            self._frames(exchange, decoded, answer),
            headers=lambda: exchange.head(STREAM_HEADERS),
            keepalive_seconds=self._keepalive_seconds,
            render_error=exchange.render_error,
            error_frames=error_frames,
        )
        with self._drain.running(stream.fail):
            await stream.send(exchange.receive, exchange.send)

    async def _frames(
        self, exchange: Exchange, decoded: DecodedRequest, answer: Answer
    ) -> AsyncGenerator[bytes, None]:
        options = decoded.answer
        encoder = exchange.dialect.chunk_encoder(options, self._policy, padding)
        async with aclosing(answer.events) as events:
            async for event in events:
                usage = answer.meter.usage() if options.continuous_usage else None
                yield encoder.feed(event, usage)
        yield sse.DONE


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
