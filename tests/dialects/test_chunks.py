"""The lenient decoder: what our own dialects encode comes back, what providers break is repaired,
and whatever comes in, only legal events or a ChatError come out."""

import copy
import itertools
import json
import math
import time
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rejoinder.dialects.chunks import ChunkDecoder
from rejoinder.dialects.deepinfra import DeepInfra
from rejoinder.dialects.deviations import DEVIATIONS, Deviation
from rejoinder.dialects.dialect import RequestPolicy
from rejoinder.dialects.openai import OpenAI
from rejoinder.dialects.provider_logprobs import TokenText
from rejoinder.dialects.sse import DONE, SseReader
from rejoinder.errors import ChatError, InvalidRequest, Overloaded, ProviderFailed, Unavailable
from rejoinder.events import (
    ContentDelta,
    Event,
    EventGrammar,
    Finished,
    ReasoningDelta,
    Started,
    ToolCallDelta,
    ToolCallStart,
    collect,
)
from rejoinder.types import AnswerOptions, Choice, Completion, TokenLogprob, Usage
from tests.strategies import event_streams

OPTIONS = AnswerOptions(
    stream=True, include_usage=True, logprobs=True, num_top_logprobs=20, moderation=True
)
POLICY = RequestPolicy(openai_reasoning="reasoning_content")


def decoder(n: int = 1, **keys: Any) -> ChunkDecoder:
    ids = itertools.count()
    return ChunkDecoder(model="m", n=n, new_id=lambda: f"made_{next(ids)}", **keys)


def decoded(
    payloads: list[str], n: int = 1, **keys: Any
) -> tuple[list[Event], ChatError | None, ChunkDecoder]:
    """Legal events, and the error that ended them."""
    one = decoder(n, **keys)
    grammar = EventGrammar()
    events: list[Event] = []
    error = None
    try:
        one.feed_into(payloads, events)
        events += one.finish()
    except ChatError as raised:
        error = raised
    for event in events:
        grammar.feed(event)
    return events, error, one


def chunk(delta: Any = None, finish: Any = None, index: Any = 0, **more: Any) -> str:
    choice = {"index": index, "delta": {} if delta is None else delta, "finish_reason": finish}
    return json.dumps({"id": "up", "model": "up", "choices": [choice], **more})


def choice_of(*payloads: str, **keys: Any) -> tuple[Choice, ChunkDecoder]:
    events, error, one = decoded([*payloads], **keys)
    assert error is None, error
    return collect(events).choices[0], one


# ---------------------------------------------------------------- decode(encode(x)) == x


def expected(completion: Completion, *, openai: bool) -> Completion:
    """What the wire can say of a completion."""
    return replace(
        completion,
        id="",
        created=0,
        service_tier="default",
        system_fingerprint=completion.system_fingerprint if openai else None,
        moderation=None,
        estimated_cost=None,
        usage=expected_usage(completion.usage, openai=openai),
        choices=tuple(expected_choice(c, openai=openai) for c in completion.choices),
    )


def expected_usage(usage: Usage, *, openai: bool) -> Usage:
    usage = replace(usage, estimated=False)
    if openai:
        return usage
    return replace(
        usage, reasoning_tokens=0, accepted_prediction_tokens=0, rejected_prediction_tokens=0
    )


def expected_choice(choice: Choice, *, openai: bool) -> Choice:
    reason = choice.finish_reason
    cut = reason in ("length", "content_filter")
    calls = tuple(
        replace(c, arguments=c.arguments or ("" if cut or c.kind == "custom" else "{}"))
        for c in choice.tool_calls
    )
    if openai and reason == "malformed_function_call":
        reason = "tool_calls" if calls else "stop"
    content, refusal = choice.content or "", choice.refusal or ""
    if not openai:
        content, refusal = content + refusal, ""
    return Choice(
        index=choice.index,
        finish_reason=reason,
        content=content or ("" if not calls and not refusal else None),
        refusal=refusal or None,
        reasoning_content=choice.reasoning_content or None,
        tool_calls=calls,
    )


def without_logprobs(completion: Completion) -> Completion:
    return replace(
        completion,
        service_tier="default",
        choices=tuple(
            replace(
                c,
                content=c.content or (None if c.tool_calls or c.refusal else ""),
                refusal=c.refusal or None,
                content_logprobs=None,
                refusal_logprobs=None,
            )
            for c in completion.choices
        ),
    )


def encoded(events: list[Event], dialect: OpenAI | DeepInfra) -> bytes:
    encoder = dialect.chunk_encoder(OPTIONS, POLICY, lambda: "")
    return b"".join(encoder.feed(event) for event in events) + DONE


def tokens(entries: tuple[TokenLogprob, ...] | None) -> list[tuple[str, bytes | None]]:
    return [(entry.token, entry.bytes) for entry in entries or ()]


@pytest.mark.parametrize("dialect", [OpenAI(), DeepInfra()], ids=lambda d: d.name)
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_what_we_encode_comes_back(dialect: OpenAI | DeepInfra, data: st.DataObject) -> None:
    openai = dialect.name == "openai"
    events = data.draw(event_streams(logprobs=True, moderated=True, custom_tools=openai))
    completion = collect(events)
    assume(completion.usage.total_tokens)
    wire = encoded(events, dialect)
    reader = SseReader()
    one = decoder(len(completion.choices))
    grammar = EventGrammar()
    back: list[Event] = []
    while wire:
        size = data.draw(st.integers(1, 400))
        one.feed_into(reader.feed(wire[:size]), back)
        wire = wire[size:]
    back += one.finish(reader.flush())
    for event in back:
        grammar.feed(event)
    got = collect(back)
    assert without_logprobs(got) == expected(completion, openai=openai)
    if openai:
        for ours, theirs in zip(got.choices, completion.choices, strict=True):
            assert tokens(ours.content_logprobs) == tokens(theirs.content_logprobs)


@pytest.mark.parametrize("dialect", [OpenAI(), DeepInfra()], ids=lambda d: d.name)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_body_we_encode_comes_back(dialect: OpenAI | DeepInfra, data: st.DataObject) -> None:
    openai = dialect.name == "openai"
    completion = collect(data.draw(event_streams(custom_tools=openai)))
    assume(completion.usage.total_tokens)
    body = dialect.encode_completion(completion, OPTIONS, POLICY)
    one = decoder(len(completion.choices))
    events = one.feed_body(body)
    grammar = EventGrammar()
    for event in events:
        grammar.feed(event)
    assert without_logprobs(collect(events)) == expected(completion, openai=openai)
    assert one.repairs.keys() <= {"unary_body", "arguments_missing", "empty_answer"}


@settings(max_examples=60, deadline=None)
@given(events=event_streams(max_choices=2))
def test_our_own_streams_need_next_to_no_repair(events: list[Event]) -> None:
    completion = collect(events)
    assume(completion.usage.total_tokens)
    _, error, one = decoded(SseReader().feed(encoded(events, OpenAI())), len(completion.choices))
    assert error is None
    assert one.repairs.keys() <= {
        "arguments_missing",  # the strategy leaves them empty
        "calls_interleaved",  # its arguments are no JSON, so that they never end
        "empty_answer",
    }


# ---------------------------------------------------------------- broken in every way


VALUES: list[Any] = [
    None, "", "x", "[DONE]", 0, 1, -1, 7, 1.5, 1e300, True, False, [], {}, [None], [{}], {"a": 1},
    "\ud83d", "\ude00", "stop", "tool_calls", "error", "assistant", [{"type": "text", "text": "t"}],
    [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}],
    [{"id": "b", "function": {"name": "g", "arguments": {"a": [1]}}}],
    [{"function": {"arguments": "}"}}],
]  # fmt: skip

KEYS = [
    "content", "reasoning_content", "reasoning", "reasoning_details", "refusal", "tool_calls",
    "function_call", "role", "finish_reason", "index", "delta", "message", "text", "logprobs",
    "usage", "error", "choices", "id", "name", "arguments", "function", "model", "type", "detail",
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(value, dict):
        return found + [p for k, v in value.items() for p in places(v, (*path, k))]
    if isinstance(value, list):
        return found + [p for i, v in enumerate(value) for p in places(v, (*path, i))]
    return found


def mutated(draw: Any, value: Any) -> Any:
    """A JSON value with one member replaced, removed, added or doubled."""
    value = copy.deepcopy(value)
    all_places = places(value)
    if not all_places:
        return value
    *path, last = draw(st.sampled_from(all_places))
    holder = value
    for step in path:
        holder = holder[step]
    match draw(st.sampled_from(["replace", "remove", "add", "double"])):
        case "replace":
            holder[last] = draw(st.sampled_from(VALUES))
        case "remove":
            del holder[last]
        case "double" if isinstance(holder, list):
            holder.insert(last, copy.deepcopy(holder[last]))
        case _:
            if isinstance(holder, dict):
                holder[draw(st.sampled_from(KEYS))] = draw(st.sampled_from(VALUES))
    return value


@st.composite
def broken_payloads(draw: st.DrawFn) -> tuple[list[str], int]:
    """The payloads of a good stream after a few accidents."""
    events = draw(event_streams(max_choices=2, logprobs=True))
    dialect = draw(st.sampled_from([OpenAI(), DeepInfra()]))
    values = [
        json.loads(payload) if payload != "[DONE]" else payload
        for payload in SseReader().feed(encoded(events, dialect))
    ]
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(values) - 1))
        match draw(st.sampled_from(["mutate", "mutate", "mutate", "drop", "double", "swap"])):
            case "mutate" if not isinstance(values[at], str):
                values[at] = mutated(draw, values[at])
            case "drop" if len(values) > 1:
                del values[at]
            case "double":
                values.insert(at, values[at])
            case "swap":
                values[at], values[0] = values[0], values[at]
    n = draw(st.integers(1, 2))
    return [v if isinstance(v, str) else json.dumps(v) for v in values], n


@settings(max_examples=200, deadline=None)
@given(broken=broken_payloads())
def test_only_legal_events_or_a_chat_error_come_out(broken: tuple[list[str], int]) -> None:
    payloads, n = broken
    events, error, one = decoded(payloads, n)
    if error is None:
        completion = collect(events)
        assert len(completion.choices) == n
        DeepInfra().encode_completion(completion, OPTIONS, POLICY)  # and they can be written
    else:
        assert not one.ended
    for event in events:
        json.dumps(str(event)).encode()
    # the short way of decoding decides nothing
    seen: list[Deviation] = []
    slow, slow_error, slow_one = decoded(payloads, n, observe=seen.append)
    assert (slow, repr(slow_error)) == (events, repr(error))
    assert slow_one.repairs.total() == len(seen)
    assert slow_one.repairs.keys() <= DEVIATIONS.keys()


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=40) | st.binary(max_size=40).map(lambda b: b.decode("latin-1")))
def test_any_text_is_survived(text: str) -> None:
    decoded([text])
    one = decoder()
    with pytest.raises(ChatError):
        one.feed_body(text.encode("utf-8", "replace"))
        raise ProviderFailed("an answer after all")


def test_kinds_name_rules_and_repairs() -> None:
    for kind, row in DEVIATIONS.items():
        assert kind.replace("_", "").isalnum()
        assert row.rule.startswith("R") and row.rule[1:].isdecimal()
        assert row.repair


# ---------------------------------------------------------------- content and reasoning


def test_the_usual_stream_says_every_text_at_once() -> None:
    payloads = [
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "a"}),
        chunk({"content": "b"}),
        chunk(finish="stop"),
        "[DONE]",
    ]
    events, error, one = decoded(payloads)
    assert error is None
    assert events[:3] == [Started(model="up"), ContentDelta(0, "a"), ContentDelta(0, "b")]
    assert not one.repairs
    assert collect(events).usage == Usage(completion_tokens=2, estimated=True)


@pytest.mark.parametrize(
    "entry",
    [
        {
            "delta": {
                "content": "c",
                "tool_calls": [{"index": 0, "id": "x", "function": {"name": "f"}}],
            }
        },
        {"delta": {"content": "c", "function_call": {"name": "f", "arguments": "{}"}}},
        {"delta": {"content": "c", "reasoning_content": "r"}},
        {"delta": {"content": "c", "reasoning": "r"}},
        {"delta": {"content": "c", "reasoning_text": "r"}},
        {"delta": {"content": "c", "thinking": "r"}},
        {"delta": {"content": "c", "thinking_blocks": [{"thinking": "r"}]}},
        {"delta": {"content": "c", "reasoning_details": [{"text": "r"}]}},
        {"delta": {"content": "c", "refusal": "n"}},
        {"delta": {"content": "c", "role": "assistant"}},
        {"delta": {"content": "c"}, "finish_reason": "length"},
        {"delta": {"content": "c"}, "logprobs": {"content": [{"token": "c", "logprob": -1}]}},
        {"delta": {"content": "c"}, "usage": {"prompt_tokens": 7, "completion_tokens": 7}},
        {"delta": {"content": ["c"]}},
    ],
    ids=lambda entry: ",".join([*entry, *entry["delta"]]),
)
def test_the_short_way_overlooks_nothing(entry: dict[str, Any]) -> None:
    payloads = [
        *(chunk(delta) for delta in ({"role": "assistant", "content": "a"}, {"content": "b"})),
        json.dumps({"choices": [{"index": 0, **entry}]}),
        chunk({"content": "d"}),
        chunk(finish="stop"),
        "[DONE]",
    ]
    events, error, one = decoded(payloads)
    slow, slow_error, slow_one = decoded(payloads, observe=lambda deviation: None)
    assert error is None and slow_error is None
    assert events == slow
    assert one.repairs == slow_one.repairs
    plain, _, _ = decoded([*payloads[:2], chunk({"content": "c"}), *payloads[3:]])
    assert events != plain or one.repairs


@pytest.mark.parametrize("place", ["usage", "x_groq", "error"])
def test_the_short_way_overlooks_nothing_outside_choices(place: str) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 7}
    value = {"usage": usage, "x_groq": {"usage": usage}, "error": {"message": "m"}}[place]
    payloads = [
        *(chunk({"content": text}) for text in "ab"),
        chunk({"content": "c"}, **{place: value}),
    ]
    events, error, _ = decoded([*payloads, chunk(finish="stop"), "[DONE]"])
    if place == "error":
        assert error is not None and error.message == "m"
    else:
        assert collect(events).usage == Usage(prompt_tokens=7, completion_tokens=7)


@pytest.mark.parametrize(
    ("delta", "reasoning", "content"),
    [
        ({"reasoning_content": "r"}, "r", ""),
        ({"reasoning": "r"}, "r", ""),
        ({"reasoning": {"content": "r"}}, "r", ""),
        ({"reasoning_text": "r"}, "r", ""),
        ({"thinking": "r"}, "r", ""),
        ({"reasoning_details": [{"type": "reasoning.text", "text": "r"}]}, "r", ""),
        ({"reasoning_details": [{"type": "reasoning.summary", "summary": "r"}]}, "r", ""),
        ({"reasoning_details": [{"type": "reasoning.encrypted", "data": "zz"}]}, None, ""),
        ({"reasoning_content": "r", "reasoning": "r"}, "r", ""),
        ({"reasoning_content": None, "reasoning": "r"}, "r", ""),
        ({"reasoning_content": "", "content": "c"}, None, "c"),
        ({"reasoning_content": "r", "content": "c"}, "r", "c"),
        ({"content": ["a", {"type": "text", "text": "b"}]}, None, "ab"),
        ({"content": {"type": "text", "text": "c"}}, None, "c"),
        (
            {
                "content": [
                    {"type": "thinking", "thinking": [{"type": "text", "text": "r"}]},
                    {"type": "text", "text": "c"},
                ]
            },
            "r",
            "c",
        ),
    ],
)
def test_reasoning_and_content_wherever_they_are(
    delta: dict[str, Any], reasoning: str | None, content: str
) -> None:
    choice, _ = choice_of(chunk(delta), chunk(finish="stop"), "[DONE]")
    assert (choice.reasoning_content, choice.content) == (reasoning, content)


def test_a_configured_reasoning_field_is_the_only_one() -> None:
    both = chunk({"reasoning": "yes", "reasoning_content": "no", "content": "c"})
    more = chunk({"reasoning": "!", "reasoning_content": "no"})
    end = [chunk(finish="stop"), "[DONE]"]
    choice, _ = choice_of(both, more, *end, reasoning_field="reasoning")
    assert choice.reasoning_content == "yes!"
    choice, _ = choice_of(both, more, *end, reasoning_field="none")
    assert choice.reasoning_content is None


@pytest.mark.parametrize("key", ["content", "reasoning_content", "refusal"])
def test_a_character_split_between_chunks_is_one(key: str) -> None:
    first, second = chunk({key: "a\ud83d"}), chunk({key: "\ude00b"})
    choice, one = choice_of(first, second, chunk(finish="stop"), "[DONE]")
    assert getattr(choice, key) == "a😀b"
    assert one.repairs["split_surrogate"] == 1
    choice, _ = choice_of(first, chunk(finish="stop"), "[DONE]")
    assert getattr(choice, key) == "a\ufffd"
    choice, _ = choice_of(chunk({key: "x"}), first, chunk({key: "b"}), chunk(finish="stop"))
    assert getattr(choice, key) == "xa\ufffdb"


def test_refusal_and_content_do_not_mix() -> None:
    end = [chunk(finish="stop"), "[DONE]"]
    choice, _ = choice_of(chunk({"refusal": "I "}), chunk({"content": "can't"}), *end)
    assert (choice.content, choice.refusal) == (None, "I can't")
    choice, _ = choice_of(chunk({"content": "I "}), chunk({"refusal": "can't"}), *end)
    assert (choice.content, choice.refusal) == ("I can't", None)


def test_a_repeated_whole_message_is_not_said_twice() -> None:
    whole = json.dumps(
        {"choices": [{"index": 0, "message": {"content": "ab"}, "finish_reason": "stop"}]}
    )
    choice, _ = choice_of(chunk({"content": "a"}), chunk({"content": "b"}), whole, "[DONE]")
    assert choice.content == "ab"
    choice, _ = choice_of(whole, "[DONE]")
    assert choice.content == "ab"


# ---------------------------------------------------------------- choices and finish


@pytest.mark.parametrize(
    ("told", "meant"),
    [
        ("stop", "stop"), ("eos", "stop"), ("end_turn", "stop"), ("STOP", "stop"),
        ("max_tokens", "length"), ("MAX_TOKENS", "length"), ("SAFETY", "content_filter"),
        ("something new", "stop"), (True, "stop"), ("tool_calls", "stop"),
        ("malformed_function_call", "malformed_function_call"),
    ],
)  # fmt: skip
def test_finish_reasons(told: Any, meant: str) -> None:
    choice, _ = choice_of(chunk({"content": "a"}), chunk(finish=told), "[DONE]")
    assert choice.finish_reason == meant


@pytest.mark.parametrize("reason", ["error", "abort", "cancelled"])
def test_a_reason_that_is_a_failure(reason: str) -> None:
    events, error, _ = decoded([chunk({"content": "a"}), chunk(finish=reason), "[DONE]"])
    assert isinstance(error, ProviderFailed)
    assert not any(isinstance(e, Finished) for e in events)


@pytest.mark.parametrize(
    ("reasons", "meant"),
    [(["stop", "stop"], "stop"), (["length", "stop"], "length"), (["stop", "length"], "length")],
)
def test_the_reason_that_says_most_is_told_once(reasons: list[str], meant: str) -> None:
    choice, one = choice_of(
        chunk({"content": "a"}), *(chunk(finish=reason) for reason in reasons), "[DONE]"
    )
    assert choice.finish_reason == meant
    assert one.repairs["finish_repeated"] == 1


def test_text_after_the_finish_is_kept() -> None:
    choice, one = choice_of(
        chunk({"content": "a"}), chunk({"content": "b"}, "stop"), chunk({"content": "c"}), "[DONE]"
    )
    assert choice.content == "abc"
    assert one.repairs["delta_after_finish"] == 1


@pytest.mark.parametrize(
    "payloads",
    [
        [],
        ["[DONE]"],
        [chunk({"role": "assistant"})],
        [chunk({"role": "assistant"}), "[DONE]"],
        [chunk({"content": "a"})],
        [chunk({"content": "a"}), chunk({"content": "b"}, index=1), chunk(finish="stop")],
        [json.dumps({"choices": [], "usage": {"prompt_tokens": 1}}), "[DONE]"],
    ],
)
def test_a_silent_end_is_a_failure(payloads: list[str]) -> None:
    n = 2 if len(payloads) == 3 else 1
    events, error, _ = decoded(payloads, n)
    assert isinstance(error, ProviderFailed)
    assert not any(isinstance(e, Finished) for e in events)


def test_done_ends_an_answer_without_a_reason() -> None:
    choice, one = choice_of(chunk({"content": "a"}), "[DONE]")
    assert choice.finish_reason == "stop"
    assert one.repairs["missing_finish"] == 1


def test_a_finish_needs_no_done() -> None:
    choice, one = choice_of(chunk({"content": "a"}), chunk(finish="stop"))
    assert choice.finish_reason == "stop"
    assert one.repairs["missing_done"] == 1


def test_nothing_counts_after_done() -> None:
    events, error, one = decoded(
        [
            chunk({"content": "a"}),
            chunk(finish="stop"),
            "[DONE]",
            "nonsense",
            chunk({"content": "b"}),
        ]
    )
    assert error is None
    assert collect(events).choices[0].content == "a"
    assert one.repairs["after_done"] == 2


def test_choices_begin_in_order_whatever_comes_first() -> None:
    payloads = [
        chunk({"role": "assistant"}, index=0),
        chunk({"content": "c"}, index=2),
        chunk({"content": "b"}, index=1),
        chunk({"content": "a"}, index=0),
        *(chunk(finish="stop", index=i) for i in (2, 0, 1)),
        "[DONE]",
    ]
    events, error, _ = decoded(payloads, 3)
    assert error is None
    assert [c.content for c in collect(events).choices] == ["a", "b", "c"]
    assert [e.index for e in events if isinstance(e, Finished)] == [0, 1, 2]


def test_a_choice_without_words_holds_nobody_up_at_the_end() -> None:
    payloads = [
        chunk({"content": "b"}, index=1),
        chunk(finish="stop", index=1),
        chunk(finish="length", index=0),
    ]
    events, error, _ = decoded(payloads, 2)
    assert error is None
    assert [c.content for c in collect(events).choices] == ["", "b"]


def test_too_few_and_too_many_choices() -> None:
    one_of_two = [chunk({"content": "a"}), chunk(finish="stop"), "[DONE]"]
    _, error, _ = decoded(one_of_two, 2)
    assert error is not None and "1 of 2" in error.message
    pair = json.dumps({"choices": [{"index": i, "delta": {"content": "ab"[i]}} for i in (0, 1)]})
    choice, one = choice_of(pair, pair, chunk(finish="stop"), "[DONE]")
    assert choice.content == "aa"
    assert one.repairs["extra_choice"] == 2


def test_an_index_that_counts_up_is_one_choice_but_two_answers_are_not() -> None:
    choice, _ = choice_of(
        *(chunk({"content": c}, index=7 + i) for i, c in enumerate("abc")),
        chunk(finish="stop", index=10),
    )
    assert choice.content == "abc"
    _, error, _ = decoded(
        [chunk({"content": c}, index=i) for i, c in ((0, "a"), (1, "b"), (0, "c"))]
    )
    assert isinstance(error, ProviderFailed)
    assert "mixed" in error.message


# ---------------------------------------------------------------- tool calls


def call(
    name: Any = None, arguments: Any = None, id: Any = None, index: Any = None
) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    entry = {
        "index": index,
        "id": id,
        "function": {k: v for k, v in function.items() if v is not None},
    }
    return {k: v for k, v in entry.items() if v is not None}


A, B = '{"a":1}', '{"b":2}'

CALLS: list[tuple[str, list[list[dict[str, Any]]], list[tuple[str, str, str]]]] = [
    (
        "good",
        [
            [call("f", "", "x", 0)],
            [call(None, '{"a"', None, 0)],
            [call(None, ":1}", None, 0)],
            [call("g", B, "y", 1)],
        ],
        [("x", "f", A), ("y", "g", B)],
    ),
    ("no index", [[call("f", A, "x")], [call("g", B, "y")]], [("x", "f", A), ("y", "g", B)]),
    (
        "no index, fragments",
        [
            [call("f", "", "x")],
            [call(None, '{"a":')],
            [call(None, "1}")],
            [call("f", "", "y")],
            [call(None, B)],
        ],
        [("x", "f", A), ("y", "f", B)],
    ),
    (
        "no id",
        [[call("f", A, None, 0)], [call("g", B, None, 1)]],
        [("made_0", "f", A), ("made_1", "g", B)],
    ),
    ("empty id", [[call("f", A, "", 0)]], [("made_0", "f", A)]),
    ("neither", [[call("f", A)], [call("f", B)]], [("made_0", "f", A), ("made_1", "f", B)]),
    ("neither, fragments", [[call("f", '{"a"')], [call("f", ":1}")]], [("made_0", "f", A)]),
    (
        "index 0 always",
        [[call("f", A, "x", 0)], [call("g", B, "y", 0)]],
        [("x", "f", A), ("y", "g", B)],
    ),
    (
        "index 0 always, no ids",
        [[call("f", A, None, 0)], [call("f", B, None, 0)]],
        [("made_0", "f", A), ("made_1", "f", B)],
    ),
    (
        "index from 1",
        [[call("f", A, "x", 1)], [call("g", B, "y", 2)]],
        [("x", "f", A), ("y", "g", B)],
    ),
    (
        "index as text",
        [[call("f", '{"a"', "x", "0")], [call(None, ":1}", None, "0")]],
        [("x", "f", A)],
    ),
    ("id repeated", [[call("f", '{"a"', "x", 0)], [call("f", ":1}", "x", 0)]], [("x", "f", A)]),
    ("id changes", [[call("f", '{"a"', "x", 0)], [call(None, ":1}", "z", 0)]], [("x", "f", A)]),
    (
        "id comes late",
        [[call("f", '{"a"', None, 0)], [call(None, ":1}", "x", 0)]],
        [("made_0", "f", A)],
    ),
    (
        "one id for two",
        [[call("f", A, "x", 0)], [call("g", B, "x", 1)]],
        [("x", "f", A), ("made_0", "g", B)],
    ),
    ("name as id", [[call("f", A, "f")], [call("f", B, "f")]], [("f", "f", A), ("made_0", "f", B)]),
    (
        "two in a chunk",
        [[call("f", A, "x", 0), call("g", B, "y", 1)]],
        [("x", "f", A), ("y", "g", B)],
    ),
    (
        "name after arguments",
        [[call(None, '{"a"', "x", 0)], [call("f", ":1}", None, 0)]],
        [("x", "f", A)],
    ),
    (
        "split name",
        [[call("get_", None, "x", 0)], [call("weather", A, None, 0)]],
        [("x", "get_weather", A)],
    ),
    (
        "growing name",
        [[call("get_", None, "x", 0)], [call("get_weather", A, None, 0)]],
        [("x", "get_weather", A)],
    ),
    (
        "interleaved",
        [
            [call("f", "", "x", 0)],
            [call("g", "", "y", 1)],
            [call(None, '{"a"', None, 0)],
            [call(None, '{"b":', None, 1)],
            [call(None, ":1}", None, 0)],
            [call(None, "2}", None, 1)],
        ],
        [("x", "f", A), ("y", "g", B)],
    ),
    ("object", [[call("f", {"a": 1}, "x", 0)]], [("x", "f", A)]),
    (
        "empty object, then text",
        [[call("f", {}, "x", 0)], [call(None, A, None, 0)]],
        [("x", "f", A)],
    ),
    (
        "empty braces, then text",
        [[call("f", "{}", "x", 0)], [call(None, A, None, 0)]],
        [("x", "f", A)],
    ),
    ("no arguments", [[call("f", None, "x", 0)]], [("x", "f", "{}")]),
    (
        "empty arguments",
        [[call("f", "", "x", 0)], [call("g", "{}", "y", 1)]],
        [("x", "f", "{}"), ("y", "g", "{}")],
    ),
    (
        "whole again at the end",
        [[call("f", '{"a"', "x", 0)], [call(None, ":1}", None, 0)], [call("f", A, "x", 0)]],
        [("x", "f", A)],
    ),
    ("a single call, not a list", [call("f", A, "x", 0)], [("x", "f", A)]),  # type: ignore[list-item]
    ("flat", [[{"id": "x", "name": "f", "arguments": A}]], [("x", "f", A)]),
]


@pytest.mark.parametrize(("deltas", "wanted"), [c[1:] for c in CALLS], ids=[c[0] for c in CALLS])
@pytest.mark.parametrize("finish", ["tool_calls", "stop"])
def test_calls(
    deltas: list[list[dict[str, Any]]], wanted: list[tuple[str, str, str]], finish: str
) -> None:
    payloads = [chunk({"tool_calls": entries}) for entries in deltas]
    choice, _ = choice_of(
        *payloads, chunk(finish=finish), "[DONE]", tool_names=("f", "g", "get_weather")
    )
    assert [(c.id, c.name, c.arguments) for c in choice.tool_calls] == wanted
    assert choice.finish_reason == "tool_calls"
    assert choice.content is None


def test_arguments_stream_as_they_come() -> None:
    one = decoder(tool_names=("f",))
    opening = one.feed(chunk({"tool_calls": [call("f", "", "x", 0)]}))
    assert opening[1:] == [ToolCallStart(0, 0, "x", "f")]
    assert one.feed(chunk({"tool_calls": [call(None, '{"a"', None, 0)]})) == [
        ToolCallDelta(0, 0, '{"a"')
    ]
    assert one.feed(chunk({"tool_calls": [call(None, ":1}", None, 0)]})) == [
        ToolCallDelta(0, 0, ":1}")
    ]
    second = one.feed(chunk({"tool_calls": [call("f", '{"b', "y", 1)]}))
    assert second == [ToolCallStart(0, 1, "y", "f"), ToolCallDelta(0, 1, '{"b')]


def test_a_call_that_is_cut_stays_cut() -> None:
    choice, _ = choice_of(
        chunk({"tool_calls": [call("f", '{"a', "x", 0)]}), chunk(finish="length"), "[DONE]"
    )
    assert choice.tool_calls[0].arguments == '{"a'
    assert choice.finish_reason == "length"


def test_a_call_without_a_name_is_malformed() -> None:
    choice, one = choice_of(
        chunk({"tool_calls": [call("f", A, "x", 0), call(None, B, "y", 1)]}),
        chunk(finish="tool_calls"),
        "[DONE]",
    )
    assert [c.name for c in choice.tool_calls] == ["f"]
    assert choice.finish_reason == "malformed_function_call"
    assert one.repairs["call_name_missing"] == 1


def test_braces_in_strings_end_nothing() -> None:
    tricky = json.dumps({"a": 'x}" \\', "b": ["}", {}]})
    pieces = [
        call("f", "", "x", 0),
        *(call(None, c, None, 0) for c in tricky),
        call("g", B, "y", 1),
    ]
    choice, one = choice_of(
        *(chunk({"tool_calls": [piece]}) for piece in pieces), chunk(finish="tool_calls"), "[DONE]"
    )
    assert [c.arguments for c in choice.tool_calls] == [tricky, B]
    assert not one.repairs["calls_interleaved"]


def test_a_legacy_function_call_is_a_call() -> None:
    choice, _ = choice_of(
        chunk({"function_call": {"name": "f", "arguments": ""}}),
        chunk({"function_call": {"arguments": '{"a"'}}),
        chunk({"function_call": {"arguments": ":1}"}}),
        chunk(finish="function_call"),
        "[DONE]",
    )
    assert [(c.name, c.arguments) for c in choice.tool_calls] == [("f", A)]
    assert choice.finish_reason == "tool_calls"


def test_only_the_first_call_where_one_is_wanted() -> None:
    choice, one = choice_of(
        chunk({"tool_calls": [call("f", '{"a"', "x", 0), call("g", '{"b"', "y", 1)]}),
        chunk({"tool_calls": [call(None, ":2}", None, 1), call(None, ":1}", None, 0)]}),
        chunk(finish="tool_calls"),
        "[DONE]",
        max_calls=1,
    )
    assert [(c.id, c.arguments) for c in choice.tool_calls] == [("x", A)]
    assert one.repairs["extra_call"] == 1


def test_ids_are_unique_over_all_choices() -> None:
    payloads = [
        *(chunk({"tool_calls": [call("f", A, "call_0", 0)]}, index=i) for i in (0, 1)),
        *(chunk(finish="tool_calls", index=i) for i in (0, 1)),
    ]
    events, error, _ = decoded(payloads, 2)
    assert error is None
    ids = [c.tool_calls[0].id for c in collect(events).choices]
    assert ids == ["call_0", "made_0"]


def test_reasoning_content_and_calls_in_one_delta_are_all_kept() -> None:
    delta = {"reasoning": "r", "content": "c", "tool_calls": [call("f", A, "x", 0)]}
    events, _, _ = decoded([chunk(delta), chunk(finish="tool_calls"), "[DONE]"])
    assert [type(e) for e in events[1:5]] == [
        ReasoningDelta,
        ContentDelta,
        ToolCallStart,
        ToolCallDelta,
    ]


# ---------------------------------------------------------------- usage


def usage_of(*usages: Any, **more: Any) -> tuple[Usage, ChunkDecoder]:
    payloads = [chunk({"content": "a"}), chunk(finish="stop")]
    payloads += [json.dumps({"choices": [], "usage": usage}) for usage in usages]
    if more:
        payloads.append(json.dumps({"choices": [], **more}))
    events, error, one = decoded([*payloads, "[DONE]"])
    assert error is None
    return collect(events).usage, one


U = Usage(prompt_tokens=9, completion_tokens=4)
PLAIN = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}


@pytest.mark.parametrize(
    ("told", "meant"),
    [
        (PLAIN, U),
        ({"prompt_tokens": 9.0, "completion_tokens": "4"}, U),
        ({"prompt_tokens": 9, "total_tokens": 13}, U),
        ({"completion_tokens": 4, "total_tokens": 13}, U),
        ({**PLAIN, "total_tokens": 99}, U),
        ({**PLAIN, "total_tokens": None}, U),
        ({"input_tokens": 9, "output_tokens": 4}, U),
        ({**PLAIN, "prompt_tokens_details": None, "completion_tokens_details": {}}, U),
        (
            {**PLAIN, "prompt_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 3}},
            replace(U, cached_tokens=5, cache_write_tokens=3),
        ),
        (
            {**PLAIN, "prompt_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 6}},
            replace(U, cached_tokens=5, cache_write_tokens=4),
        ),
        ({**PLAIN, "prompt_cache_hit_tokens": 5}, replace(U, cached_tokens=5)),
        ({**PLAIN, "cached_tokens": 5}, replace(U, cached_tokens=5)),
        (
            {**PLAIN, "cache_read_input_tokens": 20},
            replace(U, prompt_tokens=29, cached_tokens=20),
        ),
        (
            {**PLAIN, "completion_tokens_details": {"reasoning_tokens": 3}},
            replace(U, reasoning_tokens=3),
        ),
        (
            {**PLAIN, "total_tokens": 33, "completion_tokens_details": {"reasoning_tokens": 20}},
            replace(U, completion_tokens=24, reasoning_tokens=20),
        ),
        (
            {**PLAIN, "completion_tokens_details": {"reasoning_tokens": 20}},
            replace(U, reasoning_tokens=4),
        ),
        ({**PLAIN, "completion_tokens": 0, "total_tokens": 9}, replace(U, completion_tokens=0)),
    ],
)
def test_usage_as_it_is_told(told: dict[str, Any], meant: Usage) -> None:
    assert usage_of(told)[0] == meant


@pytest.mark.parametrize(
    "told", [None, {}, "nine", [], {"prompt_tokens": -1}, {"prompt_tokens": True},
             {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}, {"total_tokens": 5}],
)  # fmt: skip
def test_no_usage_is_estimated_and_marked(told: Any) -> None:
    usage, _ = usage_of(told)
    assert usage.estimated
    assert usage.completion_tokens == 1


@pytest.mark.parametrize(
    "more",
    [
        {"x_groq": {"usage": PLAIN}},
        {"choices": [{"index": 0, "delta": {}, "usage": PLAIN}]},
        {"message": {"usage": PLAIN}},
    ],
)
def test_usage_in_odd_places(more: dict[str, Any]) -> None:
    usage, one = usage_of(**more)
    assert usage == U
    assert one.repairs["usage_place"] == 1


def test_later_counters_supersede_and_missing_ones_stay() -> None:
    first = {"prompt_tokens": 25, "completion_tokens": 1, "total_tokens": 26}
    usage, _ = usage_of(first, {"completion_tokens": 15}, {"completion_tokens": None})
    assert usage == Usage(prompt_tokens=25, completion_tokens=15)


def test_what_was_seen_counts_when_the_answer_is_cut() -> None:
    one = decoder(num_prompt_tokens=7)
    one.feed(chunk({"content": "a"}, usage={"prompt_tokens": 25, "completion_tokens": 1}))
    for _ in range(4):
        one.feed(chunk({"content": "b"}))
    assert one.usage() == Usage(prompt_tokens=25, completion_tokens=5, estimated=True)
    other = decoder(num_prompt_tokens=7)
    other.feed(chunk({"content": "a long text in one delta"}))
    assert other.usage() == Usage(prompt_tokens=7, completion_tokens=6, estimated=True)


# ---------------------------------------------------------------- errors in the stream


@pytest.mark.parametrize(
    ("payload", "kind", "message"),
    [
        ({"error": {"message": "m", "type": "server_error"}}, ProviderFailed, "m"),
        ({"error": "m"}, ProviderFailed, "m"),
        ({"error": {"message": "m", "code": 429}}, Overloaded, "m"),
        ({"error": {"message": "m", "code": "429"}}, Overloaded, "m"),
        ({"error": {"message": "m", "type": "overloaded_error"}}, Unavailable, "m"),
        ({"type": "error", "error": {"type": "rate_limit_error", "message": "m"}}, Overloaded, "m"),
        ({"object": "error", "message": "m", "code": 400}, InvalidRequest, "m"),
        ({"detail": "m"}, ProviderFailed, "m"),
        ({"detail": [{"loc": ["body"], "msg": "m"}]}, ProviderFailed, "m"),
        ({"errors": [{"message": "m", "code": 7}]}, ProviderFailed, "m"),
        ({"choices": None, "error_message": "m", "status_code": 400}, InvalidRequest, "m"),
        ({"base_resp": {"status_code": 1004, "status_msg": "m"}}, ProviderFailed, "m"),
        (
            {"error": {"code": 502, "message": "m", "metadata": {"raw": "inner"}}, "choices": []},
            ProviderFailed,
            "m: inner",
        ),
        ({"error": {"message": "m", "type": "invalid_request_error"}}, InvalidRequest, "m"),
    ],
)
def test_errors_in_every_shape(payload: Any, kind: type[ChatError], message: str) -> None:
    for payloads in ([json.dumps(payload)], [chunk({"content": "a"}), json.dumps(payload)]):
        _, error, _ = decoded(payloads)
        assert type(error) is kind
        assert error is not None and error.message == message


@pytest.mark.parametrize("key", ["error", "errors", "detail", "error_message"])
def test_an_empty_error_is_none(key: str) -> None:
    for empty in (None, "", {}, []):
        choice, _ = choice_of(chunk({"content": "a"}, **{key: empty}), chunk(finish="stop"))
        assert choice.content == "a"


# ---------------------------------------------------------------- characters and refusals


@pytest.mark.parametrize(
    ("texts", "shown"),
    [
        (["a\ufffd", "\ufffdb"], ["a\ufffd", "b"]),
        (["\ufffd", "\ufffd", "\ufffd", "b", "\ufffd"], ["\ufffd", "b", "\ufffd"]),
        (["x", "a\ufffd\ufffd", "c", "\ufffd"], ["x", "a\ufffd\ufffd", "c", "\ufffd"]),
    ],
)
def test_a_lost_character_is_told_once(texts: list[str], shown: list[str]) -> None:
    """R116: its pieces in several chunks are one U+FFFD."""
    for field, kind in (("content", ContentDelta), ("reasoning_content", ReasoningDelta)):
        start = [chunk({"content": "x"})] if field == "reasoning_content" else []
        payloads = [*start, *(chunk({field: text}) for text in texts), chunk(finish="stop")]
        events, error, _ = decoded(payloads)
        assert error is None
        got = [e.text for e in events if isinstance(e, kind)]  # type: ignore[attr-defined]
        assert [text for text in got if text] == shown


def test_a_refusal_is_all_there_is_of_a_choice() -> None:
    """R73, R112."""
    call = {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]}
    got, one = choice_of(chunk({"refusal": "no"}), chunk(call), chunk(finish="tool_calls"))
    assert (got.refusal, got.tool_calls, got.finish_reason) == ("no", (), "stop")
    assert one.repairs["refusal_beside_calls"] == one.repairs["refusal_finish"] == 1
    got, one = choice_of(chunk(call), chunk({"refusal": "no"}), chunk(finish="tool_calls"))
    assert (got.refusal, got.content, len(got.tool_calls)) == (None, "no", 1)
    assert one.repairs["refusal_beside_calls"] == 1


@pytest.mark.parametrize(("predicted", "shown"), [(True, (3, 1)), (False, (0, 0))])
def test_prediction_tokens_are_part_of_the_completion(
    predicted: bool, shown: tuple[int, int]
) -> None:
    """R178, R179."""
    parts = dict(zip(("accepted", "rejected"), (3, 9), strict=True))
    details = {f"{name}_prediction_tokens": count for name, count in parts.items()}
    counts = {"prompt_tokens": 1, "completion_tokens": 4, "total_tokens": 5}
    usage = {**counts, "completion_tokens_details": details}
    one = decoder(predicted=predicted)
    one.feed(chunk({"content": "a"}, usage=usage))
    got = one.usage()
    assert (got.accepted_prediction_tokens, got.rejected_prediction_tokens) == shown
    assert one.repairs["usage_prediction"] == 1


# ---------------------------------------------------------------- logprobs


def test_logprobs_that_json_cannot_carry_are_clamped() -> None:
    payload = (
        '{"choices":[{"index":0,"delta":{"content":"ab"},"logprobs":{"content":['
        '{"token":"a","logprob":-Infinity,"bytes":[97],"top_logprobs":'
        '[{"token":"a","logprob":NaN},{"token":"b","logprob":0.0000001,"bytes":[98]}]},'
        '{"token":"b","logprob":null,"bytes":null}]}}]}'
    )
    choice, _ = choice_of(payload, chunk(finish="stop"))
    assert choice.content_logprobs is not None
    first, second = choice.content_logprobs
    assert (first.logprob, first.bytes) == (-9999.0, b"a")
    assert [(t.token, t.logprob) for t in first.top] == [("b", 0.0)]  # R156: a was not listed
    assert (second.logprob, second.bytes, second.top) == (-9999.0, None, ())


@pytest.mark.parametrize(
    ("given", "order", "repairs"),
    [
        ([("a", -3.0), ("b", -1.0), ("c", -2.0)], "bca", 1),  # the sampled token first, as some do
        ([("b", -1.0), ("a", -2.0), ("b", -3.0), ("c", -4.0)], "bac", 1),
        ([("b", -1.0), ("c", -1.0), ("a", -2.0)], "bca", 0),
    ],
)
def test_alternatives_are_sorted_and_distinct(
    given: list[tuple[str, float]], order: str, repairs: int
) -> None:
    top = [{"token": t, "logprob": v, "bytes": list(t.encode())} for t, v in given]
    entry = {"token": "a", "logprob": -3.0, "bytes": [97], "top_logprobs": top}
    choice = {"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [entry]}}
    got, one = choice_of(json.dumps({"choices": [choice]}), chunk(finish="stop"))
    assert got.content_logprobs is not None
    assert "".join(t.token for t in got.content_logprobs[0].top) == order
    assert one.repairs["logprobs_order"] == repairs


def entry(token: str, logprob: float = -0.5, **more: Any) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode()), **more}


def told(*deltas: tuple[str, list[dict[str, Any]] | None]) -> tuple[list[Event], ChunkDecoder]:
    """The content deltas of texts with their entries, logprobs required."""
    payloads = [
        json.dumps(
            {"choices": [{"index": 0, "delta": {"content": t}, "logprobs": e and {"content": e}}]}
        )
        for t, e in deltas
    ]
    events, error, one = decoded([*payloads, chunk(finish="stop")], logprobs="required")
    assert error is None, error
    return [event for event in events if isinstance(event, ContentDelta)], one


ENTRY_A, ENTRY_B = entry("a"), entry("b")
UNTOLD = -9999.0


@pytest.mark.parametrize(
    ("given", "pieces", "kind"),
    [
        ([("a", [ENTRY_A]), ("b", [ENTRY_B])], [("a", "a"), ("b", "b")], None),
        ([("", [ENTRY_A]), ("ab", [ENTRY_B])], [("ab", "ab")], None),  # before their text
        ([("ab", None), ("", [ENTRY_A, ENTRY_B])], [("ab", "ab")], None),  # after it
        (
            [("a", [ENTRY_A]), ("b", [ENTRY_A, ENTRY_B])],
            [("a", "a"), ("b", "b")],
            "logprobs_text",
        ),  # so far
        ([("a", [ENTRY_A]), ("", [entry("<|end|>")])], [("a", "a")], "logprobs_text"),
        ([("a", [ENTRY_A]), ("b", None)], [("a", "a"), ("b", "-")], "logprobs_missing"),
        ([("a", None), ("b", [ENTRY_B])], [("a", "-"), ("b", "b")], "logprobs_missing"),
        ([("b", [ENTRY_A])], [("b", "-")], "logprobs_missing"),
        ([("a", [entry("a", bytes=None)])], [("a", "a")], None),
        ([(" a", [{**entry(" a"), "token": "Ġa"}])], [(" a", " a")], "logprobs_bytes"),
    ],
)
def test_text_and_entries_come_together(
    given: list[Any], pieces: list[tuple[str, str]], kind: str | None
) -> None:
    """R164; a dash stands for an entry that tells no probability."""
    events, one = told(*given)
    shown = [
        (e.text, "".join("-" if t.logprob == UNTOLD else t.token for t in e.logprobs or ()))
        for e in events
        if isinstance(e, ContentDelta)
    ]
    assert shown == pieces
    repairs = {name for name in one.repairs if name.startswith("logprobs")}
    assert repairs >= {kind} if kind else not repairs


def test_an_answer_without_any_logprobs_is_refused_by_name() -> None:
    for texts in (["a"], ["a"] * 9):
        payloads = [*(chunk({"content": text}) for text in texts), chunk(finish="stop")]
        events, error, _ = decoded(payloads, logprobs="required")
        assert isinstance(error, InvalidRequest) and error.param == "logprobs"
        assert events == []
        assert decoded(payloads, logprobs="dropped")[1] is None


@pytest.mark.parametrize(
    ("chosen", "top", "shown", "kind"),
    [
        (-0.1, [("b", -0.2), ("c", -3.0)], -0.1 - math.log(math.exp(-0.1) + 0.8685), None),
        (-0.5, [("b", -2.0), ("c", -3.0)], -0.5, "logprobs_chosen"),  # R160: it is listed
        (-0.5, [("b", -0.6), ("a", -2.0)], -2.0, "logprobs_chosen"),  # one value
        (-9999.0, [("a", -0.5)], -0.5, "logprobs_chosen"),  # R156
        (0.0, [("a", 0.0), ("b", 0.0)], -math.log(2), "logprobs_sum"),  # R161
    ],
)
def test_the_chosen_token_and_its_alternatives_agree(
    chosen: float, top: list[tuple[str, float]], shown: float, kind: str | None
) -> None:
    listed = [entry(token, logprob) for token, logprob in top]
    events, one = told(("a", [entry("a", chosen, top_logprobs=listed)]))
    (got,) = events[0].logprobs  # type: ignore[union-attr,misc]
    assert got.logprob == pytest.approx(shown, abs=1e-3)
    assert sum(math.exp(t.logprob) for t in got.top) <= 1.001
    assert [t.logprob for t in got.top if t.token == "a"] == [got.logprob]
    assert kind is None or one.repairs[kind] == 1


@pytest.mark.parametrize(("num_top", "rank"), [(5, None), (19, None), (20, 21)])
def test_a_token_behind_twenty_alternatives_is_known_to_be(num_top: int, rank: int | None) -> None:
    """R156: what a provider's list proves, and nothing that it does not."""
    top = [{"token": f"t{k}", "logprob": -1 - k / 10} for k in range(num_top)]
    entry = {"token": "a", "logprob": -9.0, "top_logprobs": top}
    choice = {"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [entry]}}
    got, _ = choice_of(json.dumps({"choices": [choice]}), chunk(finish="stop"))
    assert got.content_logprobs is not None
    assert got.content_logprobs[0].rank == rank


def test_a_long_body_with_entries_of_another_text_is_read_at_once() -> None:
    """One walk along both: each entry was once looked for everywhere in the text."""
    one = TokenText(lambda _kind, _detail: None)
    entries = tuple(TokenLogprob(f"q{k} ", -0.5, f"q{k} ".encode()) for k in range(20_000))
    text = "".join(f"w{k} " for k in range(20_000))
    began = time.process_time()
    pieces = [*one.feed(text, entries), *one.flush()]
    assert time.process_time() - began < 10
    assert "".join(piece for piece, _ in pieces) == text


def test_logprobs_of_text_completions_are_read() -> None:
    logprobs = {
        "tokens": ["a", "b"],
        "token_logprobs": [-0.5, None],
        "top_logprobs": [{"x": -2.0, "a": -0.5}, None],
    }
    choice = {"index": 0, "delta": {"content": "ab"}, "logprobs": logprobs}
    got, _ = choice_of(json.dumps({"choices": [choice]}), chunk(finish="stop"))
    assert got.content_logprobs is not None
    first, second = got.content_logprobs
    assert [(t.token, t.logprob) for t in first.top] == [("a", -0.5), ("x", -2.0)]
    assert second.logprob == -9999.0


# ---------------------------------------------------------------- bodies


def test_json_lines_are_a_stream() -> None:
    inside = json.dumps({"choices": [{"delta": {"content": "\u2028\x85b"}}]}, ensure_ascii=False)
    lines = [chunk({"content": "a"}), inside, chunk(finish="stop")]
    one = decoder()
    events = one.feed_body("\n".join(lines).encode())
    assert collect(events).choices[0].content == "a\u2028\x85b"
    assert one.repairs["json_lines"] == 1
    with pytest.raises(ProviderFailed):
        decoder().feed_body("\n".join(lines[:2]).encode())


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"null", b"[]", b"<html>", b"\xff", b'{"choices":[]}', b"[" * 100_000, b"12"],
)
def test_a_body_without_an_answer_is_a_failure(body: bytes) -> None:
    with pytest.raises(ProviderFailed):
        decoder().feed_body(body)


def test_a_body_needs_no_finish_reason() -> None:
    body = json.dumps({"model": "m", "choices": [{"index": 0, "message": {"content": "a"}}]})
    assert collect(decoder().feed_body(body.encode())).choices[0].finish_reason == "stop"
