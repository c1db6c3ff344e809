"""Moderation around a stream: what is added, what is held back, what is never harmed."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rejoinder.errors import ProviderFailed
from rejoinder.events import (
    ContentDelta,
    Done,
    Event,
    EventGrammar,
    Finished,
    Moderated,
    ReasoningDelta,
    RefusalDelta,
    Started,
    ToolCallDelta,
    ToolCallStart,
    collect,
)
from rejoinder.service.moderation import ModerationUnavailable, result
from rejoinder.service.moderation.lexicon import LexiconModerator
from rejoinder.service.moderation.stage import Enforce, moderated, user_text
from rejoinder.types import (
    AssistantMessage,
    ChatRequest,
    ImagePart,
    Message,
    Meter,
    Moderation,
    ModerationFailure,
    ModerationRequest,
    ModerationResults,
    SystemMessage,
    TextPart,
    Usage,
    UserMessage,
)
from tests.strategies import event_streams

LEXICON = LexiconModerator({"violence": ["BADWORD"]})
USAGE = Usage(prompt_tokens=3, completion_tokens=2)
ASKED = ModerationRequest("omni-moderation-latest")


def request(
    text: str = "hi", *, asked: ModerationRequest | None = ASKED, n: int = 1
) -> ChatRequest:
    return ChatRequest(model="m", messages=(UserMessage(text),), moderation=asked, n=n)


def answer(*pieces: Event | str, reason: str = "stop") -> list[Event]:
    body = [ContentDelta(0, piece) if isinstance(piece, str) else piece for piece in pieces]
    return [Started(model="m"), *body, Finished(0, reason), Done(USAGE)]  # type: ignore[arg-type]


async def stream(events: Iterable[Event]) -> AsyncGenerator[Event, None]:
    for event in events:
        await asyncio.sleep(0)
        yield event


async def run(
    events: Iterable[Event],
    asked: ChatRequest,
    enforce: Enforce = "off",
    moderator: object = LEXICON,
) -> list[Event]:
    stage = moderated(
        stream(events),
        request=asked,
        moderator=moderator,  # type: ignore[arg-type]
        enforce=enforce,
        meter=Meter(),
    )
    grammar = EventGrammar()
    out = []
    async with aclosing(stage):
        async for event in stage:
            grammar.feed(event)
            out.append(event)
    return out


def moderation_of(events: Sequence[Event]) -> Moderation:
    (found,) = [event for event in events if isinstance(event, Moderated)]
    return found.moderation


def flags(half: object) -> list[bool]:
    assert isinstance(half, ModerationResults)
    return [scored.flagged for scored in half.results]


# ---------------------------------------------------------------- annotation


async def test_not_asked_not_touched() -> None:
    events = answer("BADWORD")
    assert await run(events, request("BADWORD", asked=None)) == events


async def test_both_halves_come_after_the_last_finish_and_before_the_end() -> None:
    events = answer("a ", "BADWORD")
    out = await run(events, request("hi"))
    assert [event for event in out if not isinstance(event, Moderated)] == events
    assert [type(event) for event in out[-3:]] == [Finished, Moderated, Done]
    assert flags(moderation_of(out).input) == [False]
    assert flags(moderation_of(out).output) == [True]


async def test_a_word_in_the_input_says_nothing_of_the_output() -> None:
    moderation = moderation_of(await run(answer("fine"), request("BADWORD")))
    assert (flags(moderation.input), flags(moderation.output)) == ([True], [False])


async def test_one_result_a_choice() -> None:
    events: list[Event] = [
        Started(model="m"),
        ContentDelta(0, "BAD"),
        ContentDelta(1, "fine"),
        ContentDelta(0, "WORD"),
        Finished(1, "stop"),
        Finished(0, "stop"),
        Done(USAGE),
    ]
    moderation = moderation_of(await run(events, request(n=2)))
    assert (flags(moderation.input), flags(moderation.output)) == ([False], [True, False])


@pytest.mark.parametrize("mode", ["score", "block"])
async def test_no_mode_changes_anything_unless_the_operator_enforces(mode: str) -> None:
    events = answer("BADWORD")
    asked = ModerationRequest("m", input_mode=mode, output_mode=mode)  # type: ignore[arg-type]
    out = await run(events, request("BADWORD", asked=asked))
    assert [event for event in out if not isinstance(event, Moderated)] == events


async def test_the_output_is_not_held_back_for_its_score() -> None:
    """Without enforcement each event passes before the next one is asked for."""
    passed: list[Event] = []

    async def source() -> AsyncGenerator[Event, None]:
        for number, event in enumerate(answer("a", "b")):
            assert isinstance(event, Done) or len(passed) == number
            yield event

    stage = moderated(source(), request=request(), moderator=LEXICON, enforce="off", meter=Meter())
    async with aclosing(stage):
        async for event in stage:
            passed.append(event)
    assert len(passed) == 6


def test_what_counts_as_input() -> None:
    messages: tuple[Message, ...] = (
        SystemMessage("system"),
        UserMessage("one"),
        AssistantMessage("assistant"),
        UserMessage((TextPart("two"), ImagePart("http://x/y.png"), TextPart("three"))),
    )
    assert user_text(ChatRequest(model="m", messages=messages)) == "one\ntwo\nthree"


# ---------------------------------------------------------------- enforcement

DIRTY: list[list[Event | str]] = [
    ["BADWORD"],
    ["say BAD", "WORD now"],
    [ReasoningDelta(0, "BAD"), ReasoningDelta(0, "WORD"), "fine"],
    [RefusalDelta(0, "no BADWORD")],
    [
        ToolCallStart(0, 0, "c1", "get"),
        ToolCallDelta(0, 0, '{"city":"BAD'),
        ToolCallDelta(0, 0, 'WORD"}'),
    ],
    [ToolCallStart(0, 0, "c1", "BADWORD")],
    [
        "fine",
        ToolCallStart(0, 0, "c", "f"),
        ToolCallDelta(0, 0, "{}"),
        ToolCallStart(0, 1, "d", "badword"),
    ],
]


@pytest.mark.parametrize("pieces", DIRTY, ids=range(len(DIRTY)))
@pytest.mark.parametrize("asked", [None, ASKED])
async def test_a_flagged_output_is_dropped(
    pieces: list[Event | str], asked: ModerationRequest | None
) -> None:
    out = await run(answer(*pieces, reason="length"), request(asked=asked), "output")
    kept = [event for event in out if not isinstance(event, Moderated)]
    assert kept == [Started(model="m"), Finished(0, "content_filter"), Done(USAGE)]
    if asked is not None:
        assert flags(moderation_of(out).output) == [True]


async def test_a_clean_output_is_only_late() -> None:
    events = answer("fine", ReasoningDelta(0, "also fine"))
    assert await run(events, request(asked=None), "output") == events


async def test_nothing_of_an_enforced_output_is_seen_before_its_score() -> None:
    seen: list[Event] = []

    async def source() -> AsyncGenerator[Event, None]:
        for event in answer("a", "b"):
            yield event
        assert seen == [Started(model="m")]

    stage = moderated(
        source(), request=request(), moderator=LEXICON, enforce="output", meter=Meter()
    )
    async with aclosing(stage):
        async for event in stage:
            seen.append(event)
    assert seen[1] == ContentDelta(0, "a")


async def test_only_the_flagged_choice_is_dropped() -> None:
    events: list[Event] = [
        Started(model="m"),
        ContentDelta(0, "BADWORD"),
        ContentDelta(1, "fine"),
        ContentDelta(2, "badword"),
        Finished(2, "stop"),
        Finished(1, "stop"),
        Finished(0, "stop"),
        Done(USAGE),
    ]
    completion = collect(await run(events, request(n=3), "output"))
    assert [(c.content, c.finish_reason) for c in completion.choices] == [
        (None, "content_filter"),
        ("fine", "stop"),
        (None, "content_filter"),
    ]


@pytest.mark.parametrize("n", [1, 3])
async def test_a_flagged_input_stops_the_generation(n: int) -> None:
    closed = asyncio.Event()
    meter = Meter()

    async def source() -> AsyncGenerator[Event, None]:
        try:
            yield Started(model="m")
            counts = meter.sequence()
            counts.prompt_tokens = 4
            for _ in range(10_000):
                await asyncio.sleep(0)
                counts.completion_tokens += 1
                yield ContentDelta(0, "x")
            raise AssertionError("it went on")
        finally:
            closed.set()

    stage = moderated(
        source(), request=request("BADWORD", n=n), moderator=LEXICON, enforce="input", meter=meter
    )
    out = [event async for event in stage]
    assert closed.is_set()
    assert out[: 1 + n] == [
        Started(model="m"),
        *(Finished(i, "content_filter") for i in range(n)),
    ]
    assert isinstance(out[-2], Moderated)
    assert out[-1] == Done(meter.usage())
    assert meter.usage().completion_tokens < 100


async def test_a_clean_input_lets_the_answer_through_as_it_comes() -> None:
    assert await run(answer("BADWORD"), request(asked=None), "input") == answer("BADWORD")


async def test_a_flagged_input_that_is_scored_last() -> None:
    class Slow:
        async def moderate(self, texts: Sequence[str]) -> ModerationResults:
            await asyncio.sleep(0.02)
            return await LEXICON.moderate(texts)

    out = await run(answer("a", "b"), request("BADWORD", asked=None), "both", Slow())
    assert out == [Started(model="m"), Finished(0, "content_filter"), Done(USAGE)]


async def test_where_the_operator_enforces_a_request_may_add_its_half() -> None:
    block = ModerationRequest("m", output_mode="block")
    out = await run(answer("BADWORD"), request(asked=block), "input")
    assert Finished(0, "content_filter") in out
    score = ModerationRequest("m", output_mode="score")
    out = await run(answer("BADWORD"), request(asked=score), "output")
    assert Finished(0, "content_filter") in out


# ---------------------------------------------------------------- failures


class Failing:
    """Fails as told, once for each half."""

    def __init__(self, *outcomes: Exception | None) -> None:
        self.outcomes = list(outcomes)

    async def moderate(self, texts: Sequence[str]) -> ModerationResults:
        await asyncio.sleep(0)
        outcome = self.outcomes.pop(0)
        if outcome is not None:
            raise outcome
        return await LEXICON.moderate(texts)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ModerationUnavailable("gone"), "moderation_unavailable"),
        (ModerationUnavailable("slow", code="moderation_timeout"), "moderation_timeout"),
        (RuntimeError("a bug"), "moderation_unavailable"),
    ],
)
@pytest.mark.parametrize("enforce", ["off", "both"])
async def test_a_failing_moderator_harms_nothing(
    error: Exception, code: str, enforce: Enforce
) -> None:
    """R197: the answer is whole, the half says `error`, and the halves fail apart."""
    events = answer("BADWORD")
    out = await run(events, request("BADWORD"), "off", Failing(error, None))
    assert [event for event in out if not isinstance(event, Moderated)] == events
    moderation = moderation_of(out)
    assert isinstance(moderation.input, ModerationFailure)
    assert moderation.input.code == code
    assert flags(moderation.output) == [True]

    out = await run(events, request("fine"), enforce, Failing(None, error))
    assert [event for event in out if not isinstance(event, Moderated)] == events
    moderation = moderation_of(out)
    assert flags(moderation.input) == [False]
    assert isinstance(moderation.output, ModerationFailure)


async def test_a_moderator_that_leaves_out_a_result() -> None:
    class Short:
        async def moderate(self, texts: Sequence[str]) -> ModerationResults:
            return ModerationResults("short", (result({}),) * (len(texts) + 1))

    moderation = moderation_of(await run(answer("x"), request(), "both", Short()))
    assert isinstance(moderation.input, ModerationFailure)
    assert isinstance(moderation.output, ModerationFailure)


async def test_an_answer_that_fails_still_fails() -> None:
    async def source() -> AsyncGenerator[Event, None]:
        yield Started(model="m")
        yield ContentDelta(0, "x")
        raise ProviderFailed("gone")

    for enforce in ("off", "both"):
        stage = moderated(
            source(), request=request(), moderator=LEXICON, enforce=enforce, meter=Meter()
        )
        with pytest.raises(ProviderFailed):
            async with aclosing(stage):
                async for _ in stage:
                    pass


async def test_a_client_that_leaves_leaves_no_task() -> None:
    class Endless:
        async def moderate(self, texts: Sequence[str]) -> ModerationResults:
            await asyncio.Event().wait()
            raise AssertionError

    before = asyncio.all_tasks()
    stage = moderated(
        stream(answer("a", "b")),
        request=request(),
        moderator=Endless(),  # type: ignore[arg-type]
        enforce="off",
        meter=Meter(),
    )
    await anext(stage)
    await anext(stage)
    await stage.aclose()
    assert asyncio.all_tasks() == before


@settings(max_examples=50, deadline=None)
@given(event_streams(), st.sampled_from(["off", "input", "output", "both"]), st.booleans())
async def test_any_answer_stays_legal_and_whole(
    events: list[Event], enforce: Enforce, wanted: bool
) -> None:
    """Clean answers come out as they went in, whatever is asked and enforced."""
    events = [event for event in events if not isinstance(event, Moderated)]
    out = await run(events, request(asked=ASKED if wanted else None), enforce, Nothing())
    assert [event for event in out if not isinstance(event, Moderated)] == events
    assert sum(isinstance(event, Moderated) for event in out) == wanted


@settings(max_examples=50, deadline=None)
@given(event_streams())
async def test_any_flagged_answer_shows_nothing(events: list[Event]) -> None:
    events = [event for event in events if not isinstance(event, Moderated)]
    completion = collect(await run(events, request(asked=None), "output", Everything()))
    assert completion.usage == collect(events).usage
    for choice in completion.choices:
        assert choice.finish_reason == "content_filter"
        assert (choice.content, choice.refusal, choice.reasoning_content) == (None, None, None)
        assert choice.tool_calls == ()
        assert choice.content_logprobs is None


class Nothing:
    async def moderate(self, texts: Sequence[str]) -> ModerationResults:
        return ModerationResults("nothing", tuple(result({}) for _ in texts))


class Everything:
    async def moderate(self, texts: Sequence[str]) -> ModerationResults:
        return ModerationResults("everything", tuple(result({"hate": 1.0}) for _ in texts))
