"""The rewriter: stop strings, thoughts and calls in a provider's text, for any cut of the text."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rejoinder.backends.rewrite import Rewriter, RewriteSpec
from rejoinder.events import (
    ContentDelta,
    Done,
    Event,
    EventGrammar,
    Finished,
    ReasoningDelta,
    RefusalDelta,
    Started,
    ToolCallDelta,
    ToolCallStart,
    collect,
)
from rejoinder.types import Choice, Completion, FinishReason, TokenLogprob, Tool, Usage

TOOLS = (Tool("f", parameters={"type": "object", "properties": {"a": {"type": "integer"}}}),)
THINKS = RewriteSpec(reasoning_format="deepseek_r1")
CALLS = RewriteSpec(tool_format="hermes", tools=TOOLS)


def rewritten(
    spec: RewriteSpec, body: Sequence[Event], n: int = 1, repairs: list[str] | None = None
) -> Completion:
    ids = itertools.count()
    rewriter = Rewriter(
        spec,
        n=n,
        new_id=lambda: f"made_{next(ids)}",
        repaired=(repairs if repairs is not None else []).append,
    )
    grammar = EventGrammar()
    events: list[Event] = []
    for event in [Started(model="m"), *body, Done(Usage())]:
        for new in rewriter.feed([event]):
            grammar.feed(new)
            events.append(new)
    return collect(events)


def text(*pieces: str, reason: FinishReason = "stop", index: int = 0) -> list[Event]:
    return [*(ContentDelta(index, piece) for piece in pieces), Finished(index, reason)]


def only(completion: Completion) -> Choice:
    (choice,) = completion.choices
    return choice


def test_choices_begin_in_order_though_the_text_of_one_is_held_back() -> None:
    """R100."""
    held = [ContentDelta(0, "<tool_"), ContentDelta(1, "b"), ContentDelta(2, "c")]
    ends = [Finished(index, "stop") for index in range(3)]
    first, second, third = rewritten(CALLS, [*held, *ends], n=3).choices
    assert (first.content, second.content, third.content) == ("<tool_", "b", "c")


def test_tokens_that_end_inside_a_character_stay_with_it() -> None:
    """R164: by their bytes, for such a token's text is no measure."""
    parts = (b"\xf0\x9f", b"\x98\x8a", b"a")
    entries = tuple(TokenLogprob(repr(part), -0.5, part) for part in parts)
    spec = RewriteSpec(stop=("a",), logprobs=True)
    choice = only(rewritten(spec, [ContentDelta(0, "😊a", entries)]))
    assert [entry.bytes for entry in choice.content_logprobs or ()] == [*parts[:2]]


@st.composite
def cut(draw: st.DrawFn, whole: str) -> list[str]:
    places = sorted(draw(st.sets(st.integers(0, len(whole)), max_size=8)))
    return [whole[a:b] for a, b in itertools.pairwise([0, *places, len(whole)])]


def test_nothing_to_do_is_said_so() -> None:
    assert not RewriteSpec().is_needed
    assert not RewriteSpec(tool_format="hermes").is_needed
    assert THINKS.is_needed
    assert CALLS.is_needed
    assert RewriteSpec(stop=("x",)).is_needed


@settings(max_examples=50, deadline=None)
@given(pieces=cut("<think>hid\nden</think>\n\nshown <b>"))
def test_thoughts_for_any_cut(pieces: list[str]) -> None:
    repairs: list[str] = []
    choice = only(rewritten(THINKS, text(*pieces), repairs=repairs))
    assert (choice.reasoning_content, choice.content) == ("hid\nden", "shown <b>")
    assert "think_tags" in repairs


@settings(max_examples=50, deadline=None)
@given(pieces=cut('So: <tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'))
def test_calls_in_text_for_any_cut(pieces: list[str]) -> None:
    choice = only(rewritten(CALLS, text(*pieces)))
    assert [(c.id, c.name, c.arguments) for c in choice.tool_calls] == [("made_0", "f", '{"a": 1}')]
    assert choice.finish_reason == "tool_calls"
    assert (choice.content or "").strip() == "So:"


def test_calls_of_both_kinds_are_numbered_together() -> None:
    body = [
        ContentDelta(0, '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'),
        ToolCallStart(0, 0, "up", "f"),
        ToolCallDelta(0, 0, '{"a":2}'),
        Finished(0, "tool_calls"),
    ]
    choice = only(rewritten(CALLS, body))
    assert [(c.id, c.arguments) for c in choice.tool_calls] == [
        ("made_0", '{"a": 1}'),
        ("up", '{"a":2}'),
    ]


@settings(max_examples=50, deadline=None)
@given(pieces=cut("one TWO three TW"))
def test_stop_strings_for_any_cut(pieces: list[str]) -> None:
    spec = RewriteSpec(stop=("TWO", "xyz"))
    choice = only(rewritten(spec, text(*pieces, reason="length")))
    assert (choice.content, choice.finish_reason) == ("one ", "stop")
    spec = RewriteSpec(stop=("nothing of it", "TWX"))
    choice = only(rewritten(spec, text(*pieces, reason="length")))
    assert (choice.content, choice.finish_reason) == ("one TWO three TW", "length")


def test_stopped_once_every_choice_is() -> None:
    rewriter = Rewriter(
        RewriteSpec(stop=("X",)), n=2, new_id=lambda: "x", repaired=lambda kind: None
    )
    assert rewriter.feed([ContentDelta(0, "aXb")]) == [ContentDelta(0, "a"), Finished(0, "stop")]
    assert not rewriter.stopped
    assert rewriter.feed([ContentDelta(0, "more"), ToolCallStart(0, 0, "i", "f")]) == []
    assert rewriter.feed([Finished(0, "length")]) == []
    assert rewriter.feed([ContentDelta(1, "b"), Finished(1, "length")]) == [
        ContentDelta(1, "b"),
        Finished(1, "length"),
    ]
    assert rewriter.stopped


def test_a_stop_at_the_very_start_leaves_an_empty_answer() -> None:
    choice = only(rewritten(RewriteSpec(stop=("X",)), text("X")))
    assert (choice.content, choice.finish_reason) == ("", "stop")


def test_logprobs_cover_what_is_shown() -> None:
    """A11: a token that straddles the cut is included whole, those after it are not."""

    def entries(*tokens: str) -> tuple[TokenLogprob, ...]:
        return tuple(TokenLogprob(token, -1.0, token.encode()) for token in tokens)

    body = [
        ContentDelta(0, "one T", entries("one", " T")),
        ContentDelta(0, "WO three", entries("WO", " three")),
        Finished(0, "stop"),
    ]
    choice = only(rewritten(RewriteSpec(stop=("TWO",), logprobs=True), body))
    assert choice.content == "one "
    assert [e.token for e in choice.content_logprobs or ()] == ["one", " T"]
    whole = only(rewritten(RewriteSpec(stop=("zzz",), logprobs=True), body))
    assert [e.token for e in whole.content_logprobs or ()] == ["one", " T", "WO", " three"]


@pytest.mark.parametrize(
    "body",
    [
        [RefusalDelta(0, "no"), Finished(0, "stop")],
        [ReasoningDelta(0, "r"), ContentDelta(0, "c"), Finished(0, "content_filter")],
        [ToolCallStart(0, 0, "a", "f"), ToolCallDelta(0, 0, "{"), Finished(0, "length")],
        [ContentDelta(0, ""), Finished(0, "stop")],
    ],
)
@pytest.mark.parametrize("spec", [THINKS, CALLS, RewriteSpec(stop=("zzz",))])
def test_what_is_not_text_passes(spec: RewriteSpec, body: list[Event]) -> None:
    before = only(collect([Started(model="m"), *body, Done(Usage())]))
    assert only(rewritten(spec, body)) == before
