"""Fallback and its breakers: over real providers for what they do, over a scripted backend for
the orders of events that no provider can be made to show."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import pytest

from rejoinder import errors
from rejoinder.backends.breaker import Breaker, BreakerPolicy
from rejoinder.backends.fallback import MOVES_ON, Fallback
from rejoinder.errors import (
    ChatError,
    InvalidRequest,
    Overloaded,
    ProviderFailed,
    Unavailable,
)
from rejoinder.events import ContentDelta, Done, Event, EventGrammar, Finished, Started, collect
from rejoinder.types import ChatRequest, Meter, Usage, UserMessage
from tests.backends.test_remote import backend_for
from tests.backends.upstream import Reply, answer, chunk, failing, serving

HI = ChatRequest(model="safe", messages=(UserMessage("hi"),))


class Played:
    """A backend that does what it is told, answer after answer; the last repeats."""

    def __init__(self, *plays: Sequence[Event | Exception]) -> None:
        self.plays = list(plays)
        self.calls = 0
        self.closed = 0

    async def chat(self, request: ChatRequest, meter: Meter) -> AsyncGenerator[Event, None]:
        self.calls += 1
        meter.sequence().prompt_tokens = 100
        play = self.plays.pop(0) if len(self.plays) > 1 else self.plays[0]
        try:
            for step in play:
                if isinstance(step, Exception):
                    raise step
                yield step
        finally:
            self.closed += 1

    async def close(self) -> None:
        pass


def good(text: str) -> list[Event]:
    return [
        Started(model=text),
        ContentDelta(0, text),
        Finished(0, "stop"),
        Done(Usage(prompt_tokens=1, completion_tokens=1)),
    ]


async def run(fallback: Fallback, meter: Meter | None = None) -> tuple[list[Event], str]:
    """The events, checked, and the name of the error class that ended them."""
    grammar = EventGrammar()
    events: list[Event] = []
    try:
        async with aclosing(fallback.chat(HI, meter or Meter())) as stream:
            async for event in stream:
                grammar.feed(event)
                events.append(event)
    except ChatError as error:
        return events, type(error).__name__
    return events, ""


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


# ---------------------------------------------------------------- the order of trying


async def test_the_first_that_answers_over_real_providers() -> None:
    async with (
        serving(failing(503)) as down,
        serving(Reply(answer("ok"))) as up,
        backend_for(down, max_retries=0) as first,
        backend_for(up) as second,
    ):
        moved: list[str] = []
        fallback = Fallback(
            [("down", first), ("up", second)], on_move=lambda name, error: moved.append(name)
        )
        meter = Meter()
        events, error = await run(fallback, meter)
        assert error == ""
        assert collect(events).choices[0].content == "ok"
        assert meter.usage().prompt_tokens == 5
        assert moved == ["down"]
        assert len(down.requests) == len(up.requests) == 1


async def test_a_client_error_is_not_taken_elsewhere() -> None:
    async with (
        serving(failing(400, {"error": {"message": "bad", "param": "seed"}})) as strict,
        serving(Reply(answer("ok"))) as up,
        backend_for(strict) as first,
        backend_for(up) as second,
    ):
        events, error = await run(Fallback([("strict", first), ("up", second)]))
        assert (events, error) == ([], "InvalidRequest")
        assert up.requests == []


async def test_no_move_after_the_first_event() -> None:
    async with (
        serving(Reply([chunk({"content": "Hel"}), 0.02])) as cut,
        serving(Reply(answer("ok"))) as up,
        backend_for(cut) as first,
        backend_for(up) as second,
    ):
        events, error = await run(Fallback([("cut", first), ("up", second)]))
        assert error == "ProviderFailed"
        assert len(events) == 2
        assert up.requests == []


def test_the_table_knows_every_error() -> None:
    family = {
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, ChatError)
    }
    # MethodNotAllowed is the web's own.
    assert family - {ChatError, errors.MethodNotAllowed} == MOVES_ON.keys()


@pytest.mark.parametrize("kind", MOVES_ON, ids=lambda kind: kind.__name__)
async def test_what_moves_on(kind: type[ChatError]) -> None:
    first, second = Played([kind("no")]), Played(good("second"))
    _, error = await run(Fallback([("a", first), ("b", second)]))
    assert second.calls == MOVES_ON[kind]
    assert error == ("" if MOVES_ON[kind] else kind.__name__)
    assert first.closed == first.calls == 1


async def test_the_last_error_is_told_when_all_fail() -> None:
    first, second = Played([ProviderFailed("a")]), Played([Overloaded("b", retry_after=7)])
    with pytest.raises(Overloaded) as raised:
        async for _ in Fallback([("a", first), ("b", second)]).chat(HI, Meter()):
            pass
    assert raised.value.retry_after == 7


async def test_what_a_failed_one_counted_is_forgotten() -> None:
    meter = Meter()
    first, second = Played([ProviderFailed("a")]), Played(good("b"))
    await run(Fallback([("a", first), ("b", second)]), meter)
    assert len(meter.sequences) == 1


async def test_leaving_closes_the_one_that_answers() -> None:
    one = Played(good("a"))
    stream = Fallback([("a", one)]).chat(HI, Meter())
    await anext(stream)
    await stream.aclose()
    assert one.closed == 1


def test_a_fallback_of_nothing() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Fallback([])


# ---------------------------------------------------------------- breakers

POLICY = BreakerPolicy(failures=3, first_pause=10.0, longest_pause=35.0)


async def test_who_keeps_failing_is_left_alone_and_then_tried_once() -> None:
    clock = Clock()
    bad, spare = Played([ProviderFailed("no")]), Played(good("spare"))
    fallback = Fallback([("bad", bad), ("spare", spare)], policy=POLICY, clock=clock)
    for _ in range(5):
        await run(fallback)
    assert bad.calls == 3
    assert fallback.states() == {"bad": "open", "spare": "closed"}
    clock.now += 10
    assert fallback.states()["bad"] == "half_open"
    await run(fallback)
    await run(fallback)
    assert bad.calls == 4
    clock.now += 19
    await run(fallback)
    assert bad.calls == 4  # the pause has doubled
    clock.now += 1
    bad.plays = [good("bad")]
    events, _ = await run(fallback)
    assert collect(events).model == "bad"
    assert fallback.states()["bad"] == "closed"


async def test_one_trial_at_a_time() -> None:
    clock = Clock()
    bad, spare = Played([ProviderFailed("no")]), Played(good("spare"))
    fallback = Fallback([("bad", bad), ("spare", spare)], policy=POLICY, clock=clock)
    for _ in range(3):
        await run(fallback)
    clock.now += 10
    breaker = fallback._backends[0][2]
    assert breaker.admit(clock.now) == "trial"
    await run(fallback)
    assert bad.calls == 3
    breaker.settle("trial", "unknown", clock.now)
    await run(fallback)
    assert bad.calls == 4


async def test_nobody_is_left() -> None:
    clock = Clock()
    fallback = Fallback([("bad", Played([ProviderFailed("no")]))], policy=POLICY, clock=clock)
    for _ in range(3):
        await run(fallback)
    clock.now += 2.5
    with pytest.raises(Unavailable) as raised:
        await anext(fallback.chat(HI, Meter()))
    assert raised.value.retry_after == 8


async def test_a_client_error_says_that_the_provider_works() -> None:
    bad = Played(
        *[[ProviderFailed("no")]] * 2, [InvalidRequest("yours")], *[[ProviderFailed("no")]] * 2
    )
    fallback = Fallback([("bad", bad)], policy=POLICY, clock=Clock())
    for _ in range(5):
        await run(fallback)
    assert fallback.states() == {"bad": "closed"}


async def test_breaking_underway_counts_as_a_failure() -> None:
    cut = Played([*good("a")[:2], ProviderFailed("cut")])
    fallback = Fallback([("cut", cut)], policy=POLICY, clock=Clock())
    for _ in range(3):
        await run(fallback)
    assert fallback.states() == {"cut": "open"}


async def test_a_provider_that_says_how_long_is_left_alone_so_long() -> None:
    clock = Clock()
    busy = Played([Overloaded("busy", retry_after=30)])
    fallback = Fallback([("busy", busy)], policy=POLICY, clock=clock)
    for _ in range(3):
        await run(fallback)
    clock.now += 29
    assert fallback.states() == {"busy": "open"}
    clock.now += 1
    assert fallback.states() == {"busy": "half_open"}


def test_stragglers_change_nothing() -> None:
    breaker = Breaker(POLICY)
    permits = [breaker.admit(0.0) for _ in range(6)]
    assert permits == ["usual"] * 6
    for _ in range(3):
        breaker.settle("usual", "failed", 0.0)
    assert breaker.reopens_in(0.0) == 10
    breaker.settle("usual", "failed", 5.0)
    assert breaker.reopens_in(0.0) == 10  # the pause is not lengthened
    breaker.settle("usual", "worked", 5.0)
    assert breaker.state(5.0) == "open"
    assert breaker.admit(10.0) == "trial"
    breaker.settle("usual", "worked", 10.0)
    assert breaker.admit(10.0) is None  # the trial still runs
    breaker.began("trial")
    assert breaker.state(10.0) == "closed"
    breaker.settle("trial", "failed", 11.0)
    assert breaker.reopens_in(11.0) == 20


def test_the_pause_is_bounded() -> None:
    breaker = Breaker(POLICY)
    now = 0.0
    for _ in range(3):
        breaker.admit(now)
        breaker.settle("usual", "failed", now)
    for _ in range(6):
        now += breaker.reopens_in(now)
        assert breaker.admit(now) == "trial"
        breaker.settle("trial", "failed", now)
    assert breaker.reopens_in(now) == 35
