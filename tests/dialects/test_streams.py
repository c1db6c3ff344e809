"""Properties of every legal event stream, encoded: the contract's rules R88–R131 on the chunks,
and that the stream adds up to the unary body."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.lib.streaming._deltas import accumulate_delta
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from rejoinder.dialects import DEEPINFRA, OPENAI, Dialect
from rejoinder.events import (
    ContentDelta,
    Done,
    Event,
    Finished,
    RefusalDelta,
    Started,
    ToolCallDelta,
    ToolCallStart,
    collect,
)
from rejoinder.types import AnswerOptions, TokenLogprob, Usage
from tests import strategies
from tests.dialects.wire import (
    BODY_SCHEMA,
    CHUNK_SCHEMAS,
    POLICY,
    SHOWN,
    body_of,
    chunks_of,
    stream_of,
)

FINISH_REASONS = {
    "openai": {"stop", "length", "tool_calls", "content_filter", "function_call"},
    "deepinfra": {"stop", "length", "tool_calls", "content_filter", "malformed_function_call"},
}
PAYLOADS = ("content", "refusal", "reasoning_content", "tool_calls", "function_call")
NULLABLE = {
    ("usage",),
    ("moderation",),
    ("service_tier",),
    ("choices", "finish_reason"),
    ("choices", "logprobs"),
    ("choices", "logprobs", "content"),
    ("choices", "logprobs", "refusal"),
    ("choices", "delta", "content"),
    ("choices", "delta", "refusal"),
}

flags = st.booleans()
options = st.builds(
    AnswerOptions,
    stream=st.just(True),
    include_usage=flags,
    logprobs=flags,
    num_top_logprobs=st.integers(0, 3),
    named_tool=flags,
    moderation=st.just(True),
)
streams = st.tuples(flags, flags).flatmap(
    lambda pair: strategies.event_streams(logprobs=pair[0], moderated=pair[1], custom_tools=False)
)


def nulls(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of every null, list positions left out."""
    if value is None:
        yield path
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from nulls(item, (*path, key))
    elif isinstance(value, list):
        for item in value:
            yield from nulls(item, path)


def choices_in(chunks: list[Any]) -> list[Any]:
    return [choice for chunk in chunks for choice in chunk["choices"]]


def check_common(dialect: Dialect, chunks: list[Any], events: list[Event]) -> None:
    """R88, R90, R94–R110, R121: what holds in both dialects."""
    for chunk in chunks:
        CHUNK_SCHEMAS[dialect.name].validate(chunk)  # R88
        assert {"id", "object", "created", "model", "choices"} <= set(chunk)  # R90, A39
        assert chunk["object"] == "chat.completion.chunk"  # R94
        assert len(chunk["choices"]) <= 1  # R104
        assert "error" not in chunk  # R121
    for key in ("id", "created", "model", "service_tier", "system_fingerprint"):
        assert len({str(chunk.get(key)) for chunk in chunks}) == 1  # R95–R99
    num_choices = len(collect(events).choices)
    first_seen: list[int] = []
    finished: set[int] = set()
    for choice in choices_in(chunks):
        index, delta = choice["index"], choice["delta"]
        assert index not in finished  # R108
        if index not in first_seen:
            assert index == len(first_seen)  # R100
            first_seen.append(index)
            assert delta["role"] == "assistant"  # R102
        else:
            assert "role" not in delta  # R103
        assert sum(bool(delta.get(key)) for key in PAYLOADS) <= 1  # R110
        if choice.get("finish_reason") is not None:
            assert choice["finish_reason"] in FINISH_REASONS[dialect.name]  # R71, R147
            assert delta == {}  # R109
            finished.add(index)
    assert first_seen == list(range(num_choices))  # R101
    assert finished == set(first_seen)  # R107


@given(streams, options)
def test_openai_chunks_keep_the_rules(events: list[Event], options: AnswerOptions) -> None:
    chunks = chunks_of(OPENAI, events, options)
    check_common(OPENAI, chunks, events)
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
        assert "obfuscation" not in chunk  # A6
        for path in nulls(chunk):
            assert path in NULLABLE or path[-1] == "bytes"  # R92, R93
        assert all("finish_reason" in choice for choice in chunk["choices"])  # R91
        assert chunk["choices"] or "moderation" in chunk or chunk.get("usage")  # R105
        assert not any("reasoning_content" in c["delta"] for c in chunk["choices"])  # R114
    with_usage = [chunk for chunk in chunks if chunk.get("usage") is not None]
    if options.include_usage:
        assert with_usage == [chunks[-1]]  # R124, R125
        assert chunks[-1]["choices"] == []
        assert all("usage" in chunk for chunk in chunks)  # R126
    else:
        assert not any("usage" in chunk for chunk in chunks)  # R123
    moderated = [i for i, chunk in enumerate(chunks) if "moderation" in chunk]
    for i in moderated:
        assert chunks[i]["choices"] == []  # R190
        assert i == len(chunks) - 1 - options.include_usage  # R191, R192


@given(streams, options)
def test_deepinfra_chunks_keep_the_rules(events: list[Event], options: AnswerOptions) -> None:
    chunks = chunks_of(DEEPINFRA, events, options)
    check_common(DEEPINFRA, chunks, events)
    for chunk in chunks:
        assert list(nulls(chunk)) == []  # R89
        assert len(chunk["choices"]) == 1  # R106
        assert not {"moderation", "system_fingerprint", "obfuscation"} & set(chunk)
        assert chunk["service_tier"] in ("default", "priority")  # R82
    with_usage = [chunk for chunk in chunks if "usage" in chunk]
    assert with_usage == (chunks[-1:] if options.include_usage else [])  # R127, R128, R130
    assert "finish_reason" in choices_in(chunks)[-1]


@given(streams, st.lists(st.integers(0, 3), min_size=60, max_size=60))
def test_continuous_usage_is_on_every_chunk(events: list[Event], steps: list[int]) -> None:
    options = AnswerOptions(stream=True, include_usage=True, continuous_usage=True)
    totals = [sum(steps[: i + 1]) for i in range(len(events))]
    usages = [Usage(prompt_tokens=1, completion_tokens=total) for total in totals]
    final = Usage(prompt_tokens=1, completion_tokens=sum(steps))
    events = [*events[:-1], Done(final)]
    chunks = chunks_of(DEEPINFRA, events, options, usages=usages)
    shown = [chunk["usage"]["completion_tokens"] for chunk in chunks]  # R129
    assert shown == sorted(shown)
    assert shown[-1] == sum(steps)


# ---------------------------------------------------------------- stream = body


def accumulated(chunks: list[Any]) -> dict[int, Any]:
    """What the official client makes of the choices: its own merge rule (R225)."""
    whole: dict[int, Any] = {}
    for choice in choices_in(chunks):
        into = whole.setdefault(choice["index"], {"logprobs": {"content": [], "refusal": []}})
        into["message"] = accumulate_delta(into.get("message", {}), dict(choice["delta"]))
        for half in ("content", "refusal"):
            entries = (choice.get("logprobs") or {}).get(half) or []
            into["logprobs"][half] = into["logprobs"][half] + entries
        if choice.get("finish_reason"):
            into["finish_reason"] = choice["finish_reason"]
    return whole


def normal_message(message: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in message.items() if value and key != "annotations"}
    if "tool_calls" in kept:
        calls = [{k: v for k, v in call.items() if k != "index"} for call in kept["tool_calls"]]
        kept["tool_calls"] = calls
    return kept


@pytest.mark.parametrize("dialect", [OPENAI, DEEPINFRA], ids=lambda d: d.name)
@pytest.mark.parametrize("policy", [POLICY, SHOWN], ids=["hidden", "shown"])
@given(events=streams, options=options)
def test_the_stream_adds_up_to_the_body(
    dialect: Dialect, policy: Any, events: list[Event], options: AnswerOptions
) -> None:
    body = body_of(dialect, events, options, policy=policy)
    chunks = chunks_of(dialect, events, options, policy=policy)
    whole = accumulated(chunks)
    assert [choice["index"] for choice in body["choices"]] == list(range(len(whole)))  # R70
    for choice in body["choices"]:
        streamed = whole[choice["index"]]
        assert normal_message(streamed["message"]) == normal_message(choice["message"])  # R86
        if not streamed["message"].get("tool_calls") and dialect is OPENAI:
            for key in ("content", "refusal"):
                assert streamed["message"].get(key) == choice["message"][key]
        assert streamed["finish_reason"] == choice["finish_reason"]
        logprobs = choice.get("logprobs") or {}
        for half in ("content", "refusal"):
            assert streamed["logprobs"][half] == (logprobs.get(half) or [])  # R166
    if options.include_usage:
        assert chunks[-1]["usage"] == body["usage"]


@given(events=streams, options=options)
def test_bodies_keep_the_rules(events: list[Event], options: AnswerOptions) -> None:
    body = body_of(DEEPINFRA, events, options)
    BODY_SCHEMA.validate(body)  # R67
    assert list(nulls(body)) == []  # R68
    body = body_of(OPENAI, events, options)
    ChatCompletion.model_validate(body)
    assert {"id", "object", "created", "model", "choices", "usage"} <= set(body)  # R69
    for choice in body["choices"]:
        assert {"index", "message", "finish_reason", "logprobs"} == set(choice)
        message = choice["message"]
        assert {"role", "content", "refusal"} <= set(message)
        if message["refusal"] is not None:
            assert message["content"] is None and "tool_calls" not in message  # R73
        if message["content"] is None:
            assert message["refusal"] is not None or message["tool_calls"]  # R73
        if not options.logprobs:
            assert choice["logprobs"] is None  # R151


@given(events=streams)
def test_what_one_dialect_hides_is_not_in_its_bytes(events: list[Event]) -> None:
    stream = stream_of(OPENAI, events, AnswerOptions(stream=True))
    assert b"reasoning_content" not in stream
    assert b"estimated_cost" not in stream


# ---------------------------------------------------------------- single rules

ONE_CALL: list[Event] = [
    Started(model="m", id="chatcmpl-1", created=1),
    ToolCallStart(0, 0, "call_1", "f"),
    ToolCallDelta(0, 0, "{}"),
    Finished(0, "tool_calls"),
    Done(Usage()),
]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (AnswerOptions(), "tool_calls"),
        (AnswerOptions(named_tool=True), "stop"),
        (AnswerOptions(legacy_functions=True), "function_call"),
        (AnswerOptions(legacy_functions=True, named_tool=True), "function_call"),
    ],
)
def test_the_finish_reason_of_a_call(options: AnswerOptions, reason: str) -> None:
    """A14, R78."""
    assert choices_in(chunks_of(OPENAI, ONE_CALL, options))[-1]["finish_reason"] == reason
    assert body_of(OPENAI, ONE_CALL, options)["choices"][0]["finish_reason"] == reason
    assert choices_in(chunks_of(DEEPINFRA, ONE_CALL, options))[-1]["finish_reason"] == "tool_calls"


def test_a_legacy_answer_has_one_call() -> None:
    """R150."""
    second: list[Event] = [ToolCallStart(0, 1, "call_2", "g"), ToolCallDelta(0, 1, "[]")]
    events = [*ONE_CALL[:3], *second, *ONE_CALL[3:]]
    options = AnswerOptions(legacy_functions=True)
    message = accumulated(chunks_of(OPENAI, events, options))[0]["message"]
    assert message["function_call"] == {"name": "f", "arguments": "{}"}
    body = body_of(OPENAI, events, options)["choices"][0]["message"]
    assert body["function_call"] == {"name": "f", "arguments": "{}"}
    assert "tool_calls" not in body


@given(st.builds(Usage, prompt_tokens=st.integers(0, 9), completion_tokens=st.integers(0, 9)))
def test_totals_add_up(usage: Usage) -> None:
    """R171, R174."""
    events = [*ONE_CALL[:-1], Done(usage)]
    for dialect in (OPENAI, DEEPINFRA):
        shown = body_of(dialect, events, AnswerOptions())["usage"]
        assert shown["total_tokens"] == shown["prompt_tokens"] + shown["completion_tokens"]


@pytest.mark.parametrize(
    ("rank", "logprob", "openai", "deepinfra"),
    [
        (1, -0.5, -0.5, -0.5),
        (20, -30.0, -30.0, -30.0),
        (21, -3.0, -9999.0, -3.0),
        (None, -3.0, -3.0, -3.0),
        (None, -math.inf, -9999.0, -9998.0),
        (None, math.nan, -9999.0, -9998.0),
        (1, 1e-9, 0.0, 0.0),
        (1, -0.0, 0.0, 0.0),
        (1, -1e300, -9999.0, -9998.0),
    ],
)
@pytest.mark.parametrize("kind", [ContentDelta, RefusalDelta])
def test_logprob_numbers(
    rank: int | None, logprob: float, openai: float, deepinfra: float, kind: Any
) -> None:
    """R155–R157: real among the 20 most likely, the sentinel beyond, never an infinity."""
    token = TokenLogprob("a", logprob, b"a", rank=rank)
    events = [ONE_CALL[0], kind(0, "a", (token,)), Finished(0, "stop"), Done(Usage())]
    options = AnswerOptions(logprobs=True)
    for dialect, expected in ((OPENAI, openai), (DEEPINFRA, deepinfra)):
        logprobs = body_of(dialect, events, options)["choices"][0]["logprobs"]
        entries = logprobs.get("content") or logprobs["refusal"]
        assert entries[0]["logprob"] == expected
        assert math.copysign(1, entries[0]["logprob"]) == math.copysign(1, expected)


def test_a_lone_surrogate_cannot_break_a_stream() -> None:
    events = [ONE_CALL[0], ContentDelta(0, "a\ud800b"), Finished(0, "stop"), Done(Usage())]
    for dialect in (OPENAI, DEEPINFRA):
        assert choices_in(chunks_of(dialect, events, AnswerOptions()))[1]["delta"] == {
            "content": "a?b"
        }


def test_a_finish_chunk_waits_only_for_usage() -> None:
    """R10: nothing is held back that could be sent."""
    finished: list[Event] = [*ONE_CALL[:-1]]
    for include_usage, held in ((False, 0), (True, 1)):
        options = AnswerOptions(include_usage=include_usage)
        chunks = chunks_of(DEEPINFRA, finished, options)
        assert len(chunks) == 3 - held
