"""Events → exact bytes, streamed and unary, in both dialects; the bytes are in tests/golden.

`REJOINDER_WRITE_GOLDENS=1 pytest tests/dialects/test_goldens.py` writes the files anew: read the
difference before it is committed.
"""

import os
from decimal import Decimal
from pathlib import Path

import pytest
from msgspec import Struct

from rejoinder.dialects import DIALECTS, Dialect, RequestPolicy, sse
from rejoinder.errors import (
    AuthenticationFailed,
    ChatError,
    ContextLengthExceeded,
    EngineFailed,
    InvalidParameter,
    NotFound,
    ProviderTimeout,
    QuotaExceeded,
    RateLimited,
    TokensRateLimited,
)
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
from rejoinder.types import (
    AnswerOptions,
    Moderation,
    ModerationFailure,
    ModerationResult,
    ModerationResults,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from tests.dialects.wire import BODY_SCHEMA, CHUNK_SCHEMAS, POLICY, SHOWN, padding, strict_json

GOLDENS = Path(__file__).parent.parent / "golden" / "dialects"
WRITE = bool(os.environ.get("REJOINDER_WRITE_GOLDENS"))

STARTED = Started(
    model="m-1", id="chatcmpl-A1", created=1_790_000_000, system_fingerprint="fp_0a1b2c3d"
)
USAGE = Usage(prompt_tokens=9, completion_tokens=5, cached_tokens=4, cache_write_tokens=3)
DONE = Done(USAGE, Decimal("0.00000210"))


class Case(Struct, kw_only=True):
    events: list[Event]
    options: AnswerOptions = AnswerOptions(stream=True, include_usage=True)
    policy: RequestPolicy = POLICY
    usages: list[Usage | None] | None = None
    dialects: tuple[str, ...] = tuple(DIALECTS)
    in_chunk_schema: bool = True
    """Custom tools and padding are later than the schema (A15, A6)."""


def text(*pieces: str, index: int = 0, reason: str = "stop") -> list[Event]:
    deltas: list[Event] = [ContentDelta(index, piece) for piece in pieces]
    return [*deltas, Finished(index, reason)]  # type: ignore[arg-type]


def whole(
    *events: Event | list[Event], started: Started = STARTED, done: Done = DONE
) -> list[Event]:
    flat: list[Event] = [started]
    for event in events:
        flat.extend(event if isinstance(event, list) else [event])
    return [*flat, done]


TOP = (TopLogprob("Hi", -0.25, b"Hi"), TopLogprob("He", -1.5, b"He"), TopLogprob("\\xf0", -2, None))
TOKENS = (
    TokenLogprob("Hi", -0.25, b"Hi", rank=1, top=TOP),
    TokenLogprob("bytes:\\xe2\\x80", -7.0, b"\xe2\x80", rank=20),
    TokenLogprob("!", -11.5, b"!", rank=21),
    TokenLogprob("?", -3.5, None, rank=None),
    TokenLogprob("", float("-inf"), b"", rank=None),
)
MODERATION = Moderation(
    input=ModerationResults(
        model="omni-moderation-latest",
        results=(
            ModerationResult(
                flagged=True,
                categories={"violence": True, "self-harm/intent": False},
                category_scores={"violence": 0.75, "self-harm/intent": 0.0002},
                category_applied_input_types={"violence": ["text"], "self-harm/intent": ["text"]},
            ),
        ),
    ),
    output=ModerationFailure(code="moderation_unavailable", message="Moderation could not be run."),
)

CASES: dict[str, Case] = {
    "text": Case(events=whole(text("Hi", " there", ""))),
    "text_without_usage": Case(
        events=whole(text("Hi")), options=AnswerOptions(stream=True, include_usage=False)
    ),
    "nothing": Case(events=whole(Finished(0, "length"))),
    "empty_deltas": Case(events=whole(ReasoningDelta(0, ""), text("", "a", ""))),
    "three_choices": Case(
        events=whole(
            ContentDelta(0, "a"),
            ContentDelta(1, "b"),
            ContentDelta(0, "c"),
            ReasoningDelta(2, "hm"),
            Finished(1, "length"),
            Finished(0, "stop"),
            ContentDelta(2, "d"),
            Finished(2, "content_filter"),
        )
    ),
    "hostile_text": Case(
        events=whole(
            text('"\\\n\r\t\x00\x1f\x7f', "\u2028\u0085", "é東😊", "data: x\n\n", "</script>")
        )
    ),
    "logprobs": Case(
        events=whole(
            ContentDelta(0, "Hi", TOKENS[:1]),
            ContentDelta(0, "", TOKENS[1:2]),
            ContentDelta(0, "\u2014!", TOKENS[2:]),
            Finished(0, "stop"),
        ),
        options=AnswerOptions(stream=True, include_usage=True, logprobs=True, num_top_logprobs=2),
    ),
    "logprobs_without_alternatives": Case(
        events=whole(ContentDelta(0, "Hi", TOKENS[:1]), Finished(0, "stop")),
        options=AnswerOptions(stream=True, logprobs=True),
    ),
    "logprobs_not_asked_for": Case(
        events=whole(ContentDelta(0, "Hi", TOKENS[:1]), Finished(0, "stop"))
    ),
    "refusal": Case(
        events=whole(
            RefusalDelta(0, "I can", TOKENS[:1]), RefusalDelta(0, "not."), Finished(0, "stop")
        ),
        options=AnswerOptions(stream=True, logprobs=True),
    ),
    "tool_call": Case(
        events=whole(
            ToolCallStart(0, 0, "call_x1", "get_weather"),
            ToolCallDelta(0, 0, '{"city":'),
            ToolCallDelta(0, 0, '"Oslo\\u00e9"}'),
            Finished(0, "tool_calls"),
        )
    ),
    "two_tool_calls_after_text": Case(
        events=whole(
            ContentDelta(0, "Let me see."),
            ToolCallStart(0, 0, "call_x1", "now"),
            ToolCallDelta(0, 0, "{}"),
            ToolCallStart(0, 1, "call_x2", "get_weather"),
            ToolCallDelta(0, 1, ""),
            ToolCallDelta(0, 1, '{"city":"Oslo"}'),
            Finished(0, "tool_calls"),
        )
    ),
    "named_tool": Case(
        events=whole(
            ToolCallStart(0, 0, "call_x1", "now"),
            ToolCallDelta(0, 0, "{}"),
            Finished(0, "tool_calls"),
        ),
        options=AnswerOptions(stream=True, include_usage=True, named_tool=True),
    ),
    "custom_tool_call": Case(
        events=whole(
            ToolCallStart(0, 0, "call_x1", "run", "custom"),
            ToolCallDelta(0, 0, "print('hi')\n"),
            Finished(0, "tool_calls"),
        ),
        dialects=("openai",),
        in_chunk_schema=False,
    ),
    "function_call": Case(
        events=whole(
            ToolCallStart(0, 0, "call_x1", "now"),
            ToolCallDelta(0, 0, '{"zone":'),
            ToolCallDelta(0, 0, "1}"),
            Finished(0, "tool_calls"),
        ),
        options=AnswerOptions(stream=True, legacy_functions=True, named_tool=True),
        dialects=("openai",),
    ),
    "malformed_call": Case(
        events=whole(
            ToolCallStart(0, 0, "call_x1", "now"),
            ToolCallDelta(0, 0, "{oops"),
            Finished(0, "malformed_function_call"),
        )
    ),
    "malformed_text": Case(events=whole(text("<tool_call>", reason="malformed_function_call"))),
    "reasoning": Case(
        events=whole(
            ReasoningDelta(0, "Let me"),
            ReasoningDelta(0, " see."),
            text("Hi"),
            done=Done(Usage(prompt_tokens=9, completion_tokens=5, reasoning_tokens=4)),
        )
    ),
    "reasoning_shown": Case(
        events=whole(ReasoningDelta(0, "Let me see."), text("Hi")),
        policy=SHOWN,
        dialects=("openai",),
    ),
    "reasoning_then_call": Case(
        events=whole(
            ReasoningDelta(0, "I need the time."),
            ToolCallStart(0, 0, "call_x1", "now"),
            ToolCallDelta(0, 0, "{}"),
            Finished(0, "tool_calls"),
        )
    ),
    "later_choice_first": Case(
        events=whole(
            ReasoningDelta(0, "hm"),
            ReasoningDelta(1, "hm"),
            ContentDelta(2, ""),
            ContentDelta(2, "first to speak"),
            ToolCallStart(1, 0, "call_x1", "now"),
            Finished(2, "stop"),
            Finished(1, "tool_calls"),
            Finished(0, "length"),
        )
    ),
    "moderation": Case(
        events=whole(text("Hi"), Moderated(MODERATION)),
        options=AnswerOptions(stream=True, include_usage=True, moderation=True),
    ),
    "moderation_without_usage": Case(
        events=whole(text("Hi"), Moderated(MODERATION)),
        options=AnswerOptions(stream=True, moderation=True),
    ),
    "obfuscation": Case(
        events=whole(text("Hi")),
        options=AnswerOptions(stream=True, include_usage=True, include_obfuscation=True),
        dialects=("openai",),
        in_chunk_schema=False,
    ),
    "continuous_usage": Case(
        events=whole(text("Hi", " you")),
        options=AnswerOptions(stream=True, include_usage=True, continuous_usage=True),
        usages=[
            None,
            Usage(prompt_tokens=9, completion_tokens=1),
            Usage(prompt_tokens=9, completion_tokens=2),
            Usage(prompt_tokens=9, completion_tokens=5),
            None,
        ],
    ),
    "predicted": Case(
        events=whole(
            text("Hi"),
            done=Done(
                Usage(
                    prompt_tokens=9,
                    completion_tokens=12,
                    accepted_prediction_tokens=3,
                    rejected_prediction_tokens=7,
                ),
                Decimal("12.340"),
            ),
        )
    ),
    "priority_tier": Case(
        events=whole(
            text("Hi"),
            started=Started(
                model="org/m", id="chatcmpl-B", created=1_790_000_001, service_tier="priority"
            ),
            done=Done(Usage(), Decimal(0)),
        )
    ),
    "flex_tier": Case(
        events=whole(
            text("Hi"),
            started=Started(
                model="org/m", id="chatcmpl-C", created=1_790_000_002, service_tier="flex"
            ),
            done=Done(Usage()),
        )
    ),
}

RUNS = [(name, dialect) for name, case in CASES.items() for dialect in case.dialects]


def check(path: Path, actual: bytes) -> None:
    if WRITE:
        path.write_bytes(actual)
    assert actual.decode() == path.read_bytes().decode()


def streamed(dialect: Dialect, case: Case) -> bytes:
    encoder = dialect.chunk_encoder(case.options, case.policy, padding)
    usages = case.usages or [None] * len(case.events)
    frames = [encoder.feed(e, u) for e, u in zip(case.events, usages, strict=True)]
    return b"".join(frames) + sse.DONE


@pytest.mark.parametrize(("name", "dialect"), RUNS)
def test_stream(name: str, dialect: str) -> None:
    case = CASES[name]
    grammar = EventGrammar()
    for event in case.events:
        grammar.feed(event)
    stream = streamed(DIALECTS[dialect], case)
    check(GOLDENS / f"{name}.{dialect}.sse", stream)
    *frames, done = sse.SseReader().feed(stream)
    assert done == sse.DONE_DATA
    for frame in frames:
        chunk = strict_json(frame)
        if case.in_chunk_schema:
            CHUNK_SCHEMAS[dialect].validate(chunk)


@pytest.mark.parametrize(("name", "dialect"), RUNS)
def test_body(name: str, dialect: str) -> None:
    case = CASES[name]
    completion = collect(case.events)
    body = DIALECTS[dialect].encode_completion(completion, case.options, case.policy)
    check(GOLDENS / f"{name}.{dialect}.json", body + b"\n")
    if dialect == "deepinfra":
        BODY_SCHEMA.validate(strict_json(body))


def test_every_golden_has_a_case() -> None:
    expected = {f"{n}.{d}.{form}" for n, d in RUNS for form in ("sse", "json")} | {"errors.txt"}
    assert {path.name for path in GOLDENS.iterdir()} == expected


ERRORS: list[ChatError] = [
    InvalidParameter("Invalid 'n'.", param="n", code="integer_above_max_value"),
    InvalidParameter("Bad.", param="messages[0].content"),
    ContextLengthExceeded("Too long.", param="messages"),
    AuthenticationFailed("Incorrect API key provided."),
    NotFound("The model 'x' does not exist.", code="model_not_found"),
    QuotaExceeded("You exceeded your quota."),
    RateLimited("Slow down.", retry_after=3),
    TokensRateLimited("Slow down."),
    EngineFailed("The engine failed."),
    ProviderTimeout("The provider was silent."),
    InvalidParameter('A "quote",\x00 a\nline \u2028 and ' + "x" * 2000, param="p\n" + "q" * 500),
]


def test_errors() -> None:
    lines: list[bytes] = []
    for error in ERRORS:
        for dialect in DIALECTS.values():
            status, body = dialect.encode_error(error)
            assert set(strict_json(body)["error"]) == {"message", "type", "param", "code"}
            lines.append(b"%b %d %b\n" % (dialect.name.encode(), status, body))
    check(GOLDENS / "errors.txt", b"".join(lines))
