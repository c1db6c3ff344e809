"""Hypothesis strategies for the core types, above all legal event streams.

`event_streams()` draws what `EventGrammar` accepts and nothing else: interleaved choices, empty
deltas, reasoning before text, calls one after the other, refusals, logprobs, moderation.
"""

import math
from decimal import Decimal

from hypothesis import strategies as st

from rejoinder.events import (
    ContentDelta,
    Done,
    Event,
    Finished,
    Moderated,
    ReasoningDelta,
    RefusalDelta,
    Started,
    ToolCallDelta,
    ToolCallStart,
)
from rejoinder.types import (
    FinishReason,
    Moderation,
    ModerationFailure,
    ModerationOutcome,
    ModerationResult,
    ModerationResults,
    TokenLogprob,
    TopLogprob,
    Usage,
)

texts = st.text(max_size=8) | st.sampled_from(
    [
        "",
        " ",
        "\n",
        '"',
        "\\",
        "\u2028",
        "\x00",
        "\x7f",
        "é",
        "東",
        "😊",
        "</script>",
        "data: x\n\n",
    ]
)
"""Pieces of text with everything that JSON or SSE could trip over."""

names = st.text("abcXYZ019_-", min_size=1, max_size=12)

logprob_values = st.floats(max_value=0, allow_nan=False) | st.just(-math.inf)


@st.composite
def token_logprobs(draw: st.DrawFn) -> TokenLogprob:
    token = draw(texts)
    raw = draw(st.just(token.encode()) | st.sampled_from([b"\xf0\x9f", b"\x80"]) | st.none())
    tops = st.builds(
        TopLogprob,
        token=texts,
        logprob=logprob_values,
        bytes=st.binary(max_size=4) | st.none(),
    )
    return TokenLogprob(
        token=token,
        logprob=draw(logprob_values),
        bytes=raw,
        rank=draw(st.none() | st.integers(1, 40)),
        top=tuple(draw(st.lists(tops, max_size=3))),
    )


@st.composite
def usages(draw: st.DrawFn) -> Usage:
    """Counts whose sums hold (R171, R175–R178)."""
    counts = st.integers(0, 10_000)
    prompt, completion = draw(counts), draw(counts)
    cached = draw(st.integers(0, prompt))
    reasoning = draw(st.integers(0, completion))
    accepted = draw(st.integers(0, completion - reasoning))
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=cached,
        cache_write_tokens=draw(st.integers(0, prompt - cached)),
        reasoning_tokens=reasoning,
        accepted_prediction_tokens=accepted,
        rejected_prediction_tokens=draw(st.integers(0, completion - reasoning - accepted)),
        estimated=draw(st.booleans()),
    )


@st.composite
def moderation_results(draw: st.DrawFn) -> ModerationResult:
    keys = draw(st.lists(st.sampled_from(["hate", "violence", "self-harm/intent"]), unique=True))
    categories = {key: draw(st.booleans()) for key in keys}
    return ModerationResult(
        flagged=any(categories.values()),
        categories=categories,
        category_scores={key: draw(st.floats(0, 1)) for key in keys},
        category_applied_input_types={key: ["text"] for key in keys},
    )


moderation_outcomes: st.SearchStrategy[ModerationOutcome] = st.builds(
    ModerationResults,
    model=names,
    results=st.lists(moderation_results(), max_size=2).map(tuple),
) | st.builds(ModerationFailure, code=names, message=texts)

moderations = st.builds(Moderation, input=moderation_outcomes, output=moderation_outcomes)


@st.composite
def choice_events(
    draw: st.DrawFn, index: int, *, logprobs: bool = False, custom_tools: bool = True
) -> list[Event]:
    """The events of one choice, in order, its Finished last."""
    tokens = st.lists(token_logprobs(), max_size=3).map(tuple) if logprobs else st.none()
    events: list[Event] = [
        ReasoningDelta(index, text) for text in draw(st.lists(texts, max_size=3))
    ]
    kind = draw(st.sampled_from(["text", "calls", "both", "refusal", "nothing"]))
    if kind == "refusal":
        for text in draw(st.lists(texts, min_size=1, max_size=3)):
            events.append(RefusalDelta(index, text, draw(tokens) if text else None))
    if kind in ("text", "both"):
        for text in draw(st.lists(texts, min_size=1, max_size=4)):
            events.append(ContentDelta(index, text, draw(tokens) if text else None))
    num_calls = draw(st.integers(1, 3)) if kind in ("calls", "both") else 0
    for call in range(num_calls):
        custom = custom_tools and draw(st.booleans())
        events.append(
            ToolCallStart(
                index,
                call,
                id=f"call_{index}_{call}_{draw(names)}",
                name=draw(names),
                kind="custom" if custom else "function",
            )
        )
        for text in draw(st.lists(texts, max_size=3)):
            events.append(ToolCallDelta(index, call, text))
    reasons: list[FinishReason] = (
        ["tool_calls", "length", "content_filter", "malformed_function_call"]
        if num_calls
        else ["stop", "length", "content_filter", "malformed_function_call"]
    )
    if kind == "refusal":
        reasons = ["stop", "length"]  # R112
    return [*events, Finished(index, draw(st.sampled_from(reasons)))]


@st.composite
def event_streams(
    draw: st.DrawFn,
    *,
    max_choices: int = 3,
    logprobs: bool = False,
    moderated: bool = False,
    custom_tools: bool = True,
) -> list[Event]:
    """A complete, legal stream. `moderated`: it has a Moderated event."""
    waiting = [
        draw(choice_events(index, logprobs=logprobs, custom_tools=custom_tools))
        for index in range(draw(st.integers(1, max_choices)))
    ]
    events: list[Event] = [
        Started(
            model=draw(names),
            id="chatcmpl-" + draw(names),
            created=draw(st.integers(1_600_000_000, 1_900_000_000)),
            service_tier=draw(st.sampled_from(["default", "priority", "flex"])),
            system_fingerprint=draw(st.none() | names.map("fp_".__add__)),
        )
    ]
    begun = 0
    while any(waiting):
        # A choice may appear only after all before it have (R100).
        index = draw(st.sampled_from([i for i, rest in enumerate(waiting) if rest and i <= begun]))
        begun = max(begun, index + 1)
        events.append(waiting[index].pop(0))
    if moderated:
        events.append(Moderated(draw(moderations)))
    cost = draw(st.none() | st.decimals(0, 10, places=9))
    events.append(Done(draw(usages()), None if cost is None else Decimal(cost)))
    return events
