"""What every backend must do, as checks over a `Subject`. test_contract.py runs them over all.

To add a backend: an async context manager that yields a Subject, in test_contract.FACTORIES. What
a backend answers is not assumed; a check compares what it does with what it did when left alone.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

import msgspec
import pytest
from msgspec.structs import replace

from rejoinder.backends import Backend
from rejoinder.errors import ChatError
from rejoinder.events import ContentDelta, Event, EventGrammar, Finished, Started, collect
from rejoinder.types import ChatRequest, Completion, Meter, Tool, ToolChoice, UserMessage

Running = Callable[[], Awaitable[int]]


@dataclass(frozen=True)
class Subject:
    """A backend and what the checks must know to ask it something sensible.

    Each text makes it do something: `long` (at least 12 tokens, several words), `endless` (does
    not end within a second), `call` (calls the tool `add`, maybe twice), `thought`, `refusal`,
    `broken` (fails after some text), `refused` (fails before any). Empty: it cannot. `running`:
    how many sequences the other side is working on. `counts`: it counts tokens itself, so that
    the meter is exact when left; otherwise it is what the provider has told so far.
    """

    backend: Backend
    running: Running
    long: str = "long"
    endless: str = "endless"
    call: str = ""
    thought: str = ""
    refusal: str = ""
    broken: str = ""
    refused: str = ""
    ranks: bool = True
    counts: bool = True
    reasoning_counts: bool = True


ADD = Tool(
    "add",
    parameters={"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
)


def ask(text: str, **fields: object) -> ChatRequest:
    fields = {"temperature": 0.0, "max_tokens": 20, **fields}
    return ChatRequest(model="m", messages=(UserMessage(text),), **fields)  # type: ignore[arg-type]


async def events_of(subject: Subject, request: ChatRequest, meter: Meter) -> list[Event]:
    """The whole answer, which must be legal event by event."""
    grammar = EventGrammar()
    found: list[Event] = []
    async with asyncio.timeout(60), aclosing(subject.backend.chat(request, meter)) as events:
        async for event in events:
            grammar.feed(event)
            found.append(event)
    return found


async def answer(subject: Subject, text: str, **fields: object) -> Completion:
    """The whole answer, with what must hold of any answer."""
    meter = Meter()
    found = await events_of(subject, ask(text, **fields), meter)
    assert isinstance(found[0], Started)
    done = collect(found)
    assert done.usage == meter.usage()
    assert not done.usage.estimated
    assert done.usage.prompt_tokens > 0
    assert 0 <= done.usage.cached_tokens <= done.usage.prompt_tokens
    assert 0 <= done.usage.reasoning_tokens <= done.usage.completion_tokens
    await until_idle(subject)
    return done


async def until_idle(subject: Subject) -> None:
    async with asyncio.timeout(10):
        while await subject.running():
            await asyncio.sleep(0.01)


# ---------------------------------------------------------------- whole answers


async def streams_in_pieces(s: Subject) -> None:
    found = await events_of(s, ask(s.long), Meter())
    pieces = [event for event in found if isinstance(event, ContentDelta)]
    assert len(pieces) >= 3
    assert all(piece.text for piece in pieces), "a delta without text"


async def limits_hold(s: Subject) -> None:
    free = await answer(s, s.long)
    for limit in (1, 5):
        cut = await answer(s, s.long, max_tokens=limit)
        assert cut.choices[0].finish_reason == "length"
        assert cut.usage.completion_tokens == limit
        assert (free.choices[0].content or "").startswith(cut.choices[0].content or "")


async def stops_cut(s: Subject) -> None:
    free = (await answer(s, s.long)).choices[0].content or ""
    words = free.split()
    stop = next(word for word in words[2:] if len(word) > 1 and free.index(word) > 4)
    cut = (await answer(s, s.long, stop=(stop,))).choices[0]
    assert cut.content == free[: free.index(stop)]
    assert cut.finish_reason == "stop"
    never = (await answer(s, s.long, stop=("\x00never\x00",))).choices[0]
    assert never.content == free


async def several_choices(s: Subject) -> None:
    one = await answer(s, s.long, max_tokens=6)
    three = await answer(s, s.long, max_tokens=6, n=3)
    assert [choice.content for choice in three.choices] == [one.choices[0].content] * 3
    assert [choice.index for choice in three.choices] == [0, 1, 2]
    assert three.usage.prompt_tokens == one.usage.prompt_tokens, "the prompt counts once"
    assert three.usage.completion_tokens == 3 * one.usage.completion_tokens


async def logprobs_add_up(s: Subject) -> None:
    plain = (await answer(s, s.long, max_tokens=8)).choices[0]
    assert plain.content_logprobs is None
    for asked in (0, 2):
        done = await answer(s, s.long, max_tokens=8, logprobs=True, num_top_logprobs=asked)
        entries = done.choices[0].content_logprobs
        assert entries is not None and len(entries) == 8
        assert b"".join(e.bytes or b"" for e in entries).decode() == plain.content
        assert done.choices[0].content == plain.content
        for entry in entries:
            assert entry.logprob <= 0
            shown = entry.top[:asked]  # more may be given; dialects show only those asked for
            assert len({one.bytes or one.token for one in shown}) == len(shown)
            assert sorted(shown, key=lambda one: -one.logprob) == list(shown)
            assert entry.rank == 1 or not s.ranks


async def calls_arrive_whole(s: Subject) -> None:
    require(s.call)
    choice = (await answer(s, s.call, tools=(ADD,), max_tokens=200)).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert {call.name for call in choice.tool_calls} == {"add"}
    assert len({call.id for call in choice.tool_calls}) == len(choice.tool_calls) >= 2
    for call in choice.tool_calls:
        assert set(msgspec.json.decode(call.arguments)) == {"a"}


async def one_call_where_one_is_allowed(s: Subject) -> None:
    require(s.call)
    many = (await answer(s, s.call, tools=(ADD,), max_tokens=200)).choices[0]
    one = await answer(s, s.call, tools=(ADD,), max_tokens=200, parallel_tool_calls=False)
    assert one.choices[0].finish_reason == "tool_calls"
    assert [c.arguments for c in one.choices[0].tool_calls] == [many.tool_calls[0].arguments]


async def no_calls_where_none_are_allowed(s: Subject) -> None:
    require(s.call)
    none = ToolChoice("none")
    choice = (await answer(s, s.call, tools=(ADD,), tool_choice=none, max_tokens=200)).choices[0]
    assert choice.tool_calls == () and choice.finish_reason in ("stop", "length")


async def thoughts_are_apart(s: Subject) -> None:
    require(s.thought)
    done = await answer(s, s.thought, max_tokens=200)
    choice = done.choices[0]
    assert choice.reasoning_content and choice.content
    assert "think>" not in choice.reasoning_content + choice.content
    if s.reasoning_counts:
        assert 0 < done.usage.reasoning_tokens < done.usage.completion_tokens


async def refusals_are_no_content(s: Subject) -> None:
    require(s.refusal)
    choice = (await answer(s, s.refusal)).choices[0]
    assert choice.refusal and choice.content is None and choice.finish_reason == "stop"


# ---------------------------------------------------------------- errors


async def errors_come_before_the_first_event(s: Subject) -> None:
    require(s.refused)
    meter = Meter()
    with pytest.raises(ChatError):
        async for event in s.backend.chat(ask(s.refused), meter):
            raise AssertionError(f"an event of an answer that never began: {event}")
    assert meter.usage().completion_tokens == 0
    await until_idle(s)


async def errors_underway_are_raised(s: Subject) -> None:
    require(s.broken)
    found: list[Event] = []
    with pytest.raises(ChatError) as caught:
        async with aclosing(s.backend.chat(ask(s.broken), Meter())) as events:
            async for event in events:
                found.append(event)
    assert caught.value.status >= 500
    assert any(isinstance(event, ContentDelta) for event in found)
    assert not any(isinstance(event, Finished) for event in found)
    await until_idle(s)


async def one_error_leaves_others_alone(s: Subject) -> None:
    require(s.broken)
    fine = await answer(s, s.long)
    outcomes = await asyncio.gather(
        *(events_of(s, ask(text), Meter()) for text in (s.broken, s.long, s.broken, s.long)),
        return_exceptions=True,
    )
    assert [isinstance(one, ChatError) for one in outcomes] == [True, False, True, False]
    for one in outcomes[1::2]:
        assert isinstance(one, list) and collect(one).choices == fine.choices


# ---------------------------------------------------------------- leaving


async def leaving_stops_the_other_side(s: Subject) -> None:
    meter = Meter()
    pieces = 0
    async with aclosing(s.backend.chat(ask(s.endless, max_tokens=2000), meter)) as events:
        async for event in events:
            pieces += isinstance(event, ContentDelta)
            if pieces == 3:
                assert await s.running() == 1
                break
    await until_idle(s)
    if s.counts:
        assert 3 <= meter.usage().completion_tokens <= 12
        assert meter.usage().prompt_tokens > 0
    after = meter.usage()
    await asyncio.sleep(0.05)
    assert meter.usage() == after, "the meter moves after the end"


async def leaving_stops_every_choice(s: Subject) -> None:
    request = ask(s.endless, max_tokens=2000, n=2)
    async with aclosing(s.backend.chat(request, Meter())) as events:
        async for event in events:
            if isinstance(event, ContentDelta) and event.index == 1:
                break
    await until_idle(s)


async def cancelling_stops_the_other_side(s: Subject) -> None:
    begun = asyncio.Event()

    async def read() -> None:
        request = ask(s.endless, max_tokens=2000)
        async with aclosing(s.backend.chat(request, Meter())) as events:
            async for event in events:
                if isinstance(event, ContentDelta):
                    begun.set()

    task = asyncio.create_task(read())
    await asyncio.wait_for(begun.wait(), 20)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await until_idle(s)


async def never_begun_costs_nothing(s: Subject) -> None:
    meter = Meter()
    await s.backend.chat(ask(s.long), meter).aclose()
    assert meter.usage().prompt_tokens == meter.usage().completion_tokens == 0
    assert await s.running() == 0


# ---------------------------------------------------------------- together


async def together_as_alone(s: Subject) -> None:
    requests = [
        ask(s.long, max_tokens=5),
        ask(s.long, max_tokens=9),
        replace(ask(s.long), n=2, max_tokens=4),
        *([ask(s.call, tools=(ADD,), max_tokens=200)] if s.call else []),
        *([ask(s.thought, max_tokens=200)] if s.thought else []),
    ]
    alone = [collect(await events_of(s, request, Meter())) for request in requests]
    together = await asyncio.gather(*(events_of(s, r, Meter()) for r in requests * 2))
    for before, after in zip(alone * 2, map(collect, together), strict=True):
        assert [plain(c) for c in before.choices] == [plain(c) for c in after.choices]
        assert before.usage.completion_tokens == after.usage.completion_tokens
    await until_idle(s)


def plain(choice: object) -> object:
    """A choice without the ids that are new each time."""
    value = msgspec.to_builtins(choice)
    for call in value["tool_calls"]:
        call.pop("id")
    return value


def require(text: str) -> None:
    if not text:
        pytest.skip("this backend has no way to do it")


CHECKS: tuple[Callable[[Subject], Awaitable[None]], ...] = (
    streams_in_pieces,
    limits_hold,
    stops_cut,
    several_choices,
    logprobs_add_up,
    calls_arrive_whole,
    one_call_where_one_is_allowed,
    no_calls_where_none_are_allowed,
    thoughts_are_apart,
    refusals_are_no_content,
    errors_come_before_the_first_event,
    errors_underway_are_raised,
    one_error_leaves_others_alone,
    leaving_stops_the_other_side,
    leaving_stops_every_choice,
    cancelling_stops_the_other_side,
    never_begun_costs_nothing,
    together_as_alone,
)
