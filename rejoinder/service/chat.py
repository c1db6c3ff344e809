"""THE path: one admitted request and the stages that its events pass.

Unary and streamed answers are the same events; the stages are generator functions composed in
`ChatService._events`. This module must not know: HTTP, how a dialect spells anything.
"""

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from decimal import Decimal
from functools import partial
from typing import Literal, Protocol, Self

from msgspec import Struct
from msgspec.structs import replace

from rejoinder.backends import Backend
from rejoinder.backends.models import ModelInfo, Models
from rejoinder.errors import INTERNAL_MESSAGE, ChatError, EngineFailed, InvalidParameter
from rejoinder.events import ContentDelta, Done, Event, EventGrammar, Finished, Started
from rejoinder.service.accounts import Account
from rejoinder.service.admission import Admission, Permit
from rejoinder.service.ledger import Closing, Ledger, LedgerEntry
from rejoinder.service.metering import metered
from rejoinder.service.pricing import FREE, Prices
from rejoinder.types import (
    AssistantMessage,
    ChatRequest,
    DecodedRequest,
    FunctionMessage,
    Message,
    Meter,
    TextPart,
    Tier,
    Usage,
)

log = logging.getLogger("rejoinder.service")

Impossible = Literal["refuse", "adapt"]
"""What a dialect does with a wish that the model cannot grant: an error, or the next best."""

DEFAULT_ANSWER_TOKENS = 1024
"""What an answer without a limit is expected to need, for rates and budgets until it is known."""


class Record(Struct, kw_only=True):
    """What is known of one request, filled as it goes: for the ledger, the log and the metrics.

    Times are seconds since the request was accepted, None where it did not come so far. No text
    of prompts or answers, no keys.
    """

    request_id: str
    completion_id: str
    created: int
    account: str
    key_id: str
    model: str
    dialect: str
    stream: bool
    prices: Prices = FREE
    tier: Tier = "default"
    status: Literal["ok", "error", "cancelled"] = "cancelled"
    error: str | None = None
    finish_reasons: tuple[str, ...] = ()
    usage: Usage = Usage()
    cost: Decimal | None = None
    first_event_seconds: float | None = None
    total_seconds: float = 0.0
    traceparent: str | None = None
    """The W3C trace context that the request came with."""
    meter: Meter | None = None
    """Its counts while it runs; `usage` has the final ones."""

    @property
    def seconds_per_token(self) -> float | None:
        """The mean time between completion tokens after the first; None with fewer than two."""
        num_tokens = self.usage.completion_tokens
        if self.first_event_seconds is None or num_tokens < 2:
            return None
        return (self.total_seconds - self.first_event_seconds) / (num_tokens - 1)


class Observer(Protocol):
    """Who is told of every admitted request, once at its start and once at its end."""

    def started(self, record: Record) -> None: ...

    def ended(self, record: Record) -> None: ...


class Answer:
    """One admitted request, until its context is left. `headers` say what is left of the account's
    rates (R211)."""

    __slots__ = ("_close", "created", "events", "headers", "id", "meter", "record")

    def __init__(
        self,
        *,
        events: AsyncGenerator[Event, None],
        headers: Mapping[str, str],
        meter: Meter,
        record: Record,
        close: Callable[[], Awaitable[None]],
    ) -> None:
        self.id = record.completion_id
        self.created = record.created
        self.events = events
        self.headers = headers
        self.meter = meter
        self.record = record
        self._close = close

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()


Stage = Callable[[AsyncGenerator[Event, None]], AsyncGenerator[Event, None]]


class ChatService:
    """Everything between a decoded request and its events."""

    def __init__(
        self,
        *,
        models: Models,
        prices: Mapping[str, Prices],
        admission: Admission,
        ledger: Ledger,
        new_id: Callable[[], str],
        extra_stages: Callable[[ChatRequest, Meter], list[Stage]],
        observers: Sequence[Observer],
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`extra_stages`: those that only some requests need, in order."""
        self.models = models
        self._prices = prices
        self._admission = admission
        self._ledger = ledger
        self._new_id = new_id
        self._extra_stages = extra_stages
        self._observers = observers
        self._clock = clock
        self._timer = timer

    async def open(
        self,
        decoded: DecodedRequest,
        account: Account,
        *,
        request_id: str,
        dialect: str,
        impossible: Impossible,
        traceparent: str | None = None,
    ) -> Answer:
        """One answer, a context that must be left. Raises ChatError before any work."""
        started = self._timer()
        served = self.models.resolve(decoded.chat.model)
        request = _within_model(decoded.chat, served.info, impossible)
        admitted = self._admission.admit(
            account,
            served.info.id,
            request,
            estimated_tokens=estimate_tokens(request),
            unsupported_tier="refuse" if impossible == "refuse" else "default",
        )
        permit = await admitted.__aenter__()
        try:
            request = replace(request, account=account.id, tier=permit.tier)
            meter = Meter()
            record = Record(
                request_id=request_id,
                completion_id=self._new_id(),
                created=int(self._clock()),
                account=account.id,
                key_id=account.key_id,
                model=served.info.id,
                dialect=dialect,
                stream=decoded.answer.stream,
                prices=self._prices.get(served.info.id, FREE),
                tier=permit.tier,
                traceparent=traceparent,
                meter=meter,
            )
            row = await self._ledger.open(
                LedgerEntry(
                    request_id=request_id,
                    account=account.id,
                    key_id=account.key_id,
                    model=record.model,
                    tier=record.tier,
                    prices=record.prices,
                ),
                meter,
            )
            for observer in self._observers:
                observer.started(record)
            decoded = DecodedRequest(request, decoded.answer, decoded.ignored)
            events = self._events(served.backend, decoded, meter, record, started)
            return Answer(
                events=events,
                headers=permit.headers,
                meter=meter,
                record=record,
                close=partial(self._close, events, record, meter, row, started, permit, admitted),
            )
        except BaseException:
            await admitted.__aexit__(None, None, None)
            raise

    async def _close(
        self,
        events: AsyncGenerator[Event, None],
        record: Record,
        meter: Meter,
        row: str,
        started: float,
        permit: Permit,
        admitted: AbstractAsyncContextManager[Permit],
    ) -> None:
        try:
            await events.aclose()
            record.usage = meter.usage()
            record.cost = record.prices.cost(record.usage, record.tier)
            record.total_seconds = self._timer() - started
            permit.settle(record.usage, record.cost)
            self._ledger.close(row, closing_of(record, record.cost))
            for observer in self._observers:
                observer.ended(record)
        finally:
            await admitted.__aexit__(None, None, None)

    def _events(
        self,
        backend: Backend,
        decoded: DecodedRequest,
        meter: Meter,
        record: Record,
        started: float,
    ) -> AsyncGenerator[Event, None]:
        """The stages of one answer, in the order that events pass them."""
        events = backend.chat(decoded.chat, meter)
        for stage in self._extra_stages(decoded.chat, meter):
            events = stage(events)
        return self._recorded(events, record, meter, started)

    async def _recorded(
        self, events: AsyncGenerator[Event, None], record: Record, meter: Meter, started: float
    ) -> AsyncGenerator[Event, None]:
        """The events as they may come (design, section 2), their start and end stamped; notes how
        the answer goes, and lets out only ChatErrors."""
        grammar = EventGrammar()
        try:
            async with aclosing(events):
                async for event in events:
                    grammar.feed(event)
                    match event:
                        case ContentDelta():
                            pass  # nearly every event
                        case Started():
                            record.first_event_seconds = self._timer() - started
                            event = replace(
                                event,
                                id=record.completion_id,
                                created=record.created,
                                service_tier=record.tier,
                            )
                        case Finished(reason=reason):
                            record.finish_reasons = (*record.finish_reasons, reason)
                        case Done():
                            prices = None if record.prices is FREE else record.prices
                            event = metered(event, prices=prices, tier=record.tier, meter=meter)
                    yield event
            record.status = "ok"
        except ChatError as error:
            record.status = "error"
            record.error = error.code or type(error).__name__
            raise
        except Exception as error:
            record.status = "error"
            record.error = type(error).__name__
            log.exception("request %s failed", record.request_id)
            raise EngineFailed(INTERNAL_MESSAGE) from error


def closing_of(record: Record, cost: Decimal) -> Closing:
    return Closing(
        status=record.status,
        usage=record.usage,
        cost=cost,
        finish=",".join(record.finish_reasons),
        error_code=record.error or "",
        first_token_seconds=record.first_event_seconds,
        total_seconds=record.total_seconds,
    )


def _within_model(request: ChatRequest, info: ModelInfo, impossible: Impossible) -> ChatRequest:
    """The request with a limit that the model can reach. Raises InvalidParameter."""
    longest = info.context_length
    if not longest or request.max_tokens is None or request.max_tokens <= longest:
        return request
    if impossible == "adapt":
        return replace(request, max_tokens=longest)
    raise InvalidParameter(
        f"{request.max_tokens_param} is too large: {request.max_tokens}. This model supports at "
        f"most {longest} tokens, prompt and completion together.",
        param=request.max_tokens_param,
        code="invalid_value",
    )


def estimate_tokens(request: ChatRequest) -> int:
    """About what the request will come to, prompt and answer together; corrected at its end."""
    characters = sum(_num_characters(message) for message in request.messages)
    answer = DEFAULT_ANSWER_TOKENS if request.max_tokens is None else request.max_tokens
    return characters // 3 + 8 * len(request.messages) + answer * request.n


def _num_characters(message: Message) -> int:
    content = message.content
    if isinstance(content, str):
        size = len(content)
    else:
        size = sum(len(part.text) for part in content or () if isinstance(part, TextPart))
    if isinstance(message, FunctionMessage | AssistantMessage):
        calls = () if isinstance(message, FunctionMessage) else message.tool_calls
        size += sum(len(call.arguments) + len(call.name) for call in calls)
    return size
