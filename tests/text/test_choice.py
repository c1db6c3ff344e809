"""One choice: logprobs beside their text, cuts, holds, ends, and what a plain token costs."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rejoinder.events import ContentDelta, Event, Finished, RefusalDelta
from rejoinder.text.choice import ChoiceDecoder, token_text
from rejoinder.types import Step, TokenIdLogprob, ToolChoice
from tests.text.decoding import TOOLS, Answer, Call, decode, entries, spec, summed

tokens_strategy = st.lists(
    st.sampled_from(["a", "b", "EN", "D", "é", " <", "<think>", "</think>"]).map(str.encode)
    | st.sampled_from([b"\xf0", b"\x9f", b"\x98\x8a", b"\x98\x8ax", b"\xff", b"y\xf0"]),
    max_size=12,
)


@given(
    tokens=tokens_strategy, step=st.integers(1, 4), stop=st.sampled_from([(), ("END",), ("aE",)])
)
@settings(max_examples=200, deadline=None)
def test_entries_travel_with_their_text(
    tokens: list[bytes], step: int, stop: tuple[str, ...]
) -> None:
    events = decode(tokens, step=step, stop=stop, logprobs=True)
    content = summed(events).content
    reported = [e.bytes or b"" for e in entries(events)]
    assert reported == [t for t in tokens if t][: len(reported)]  # in order, none left out
    joined = b"".join(reported)
    assert joined.decode(errors="replace").startswith(content)
    if not stop:
        assert reported == [t for t in tokens if t]
    for number, event in enumerate(e for e in events if isinstance(e, ContentDelta)):
        assert event.logprobs, f"delta {number} has text without tokens"
    # all but what a cut or a bad end leaves: a delta is exactly its tokens
    whole = [e for e in events if isinstance(e, ContentDelta)][:-1]
    for event in whole:
        text = b"".join(e.bytes or b"" for e in event.logprobs or ())
        assert text.decode(errors="replace") == event.text


def test_a_token_that_straddles_the_cut_is_whole() -> None:
    events = decode(["ab", "cST", "OPd"], stop=("STOP",), logprobs=True)
    assert summed(events).content == "abc"
    assert [e.token for e in entries(events)] == ["ab", "cST"]


def test_tokens_of_thoughts_and_calls_are_not_reported() -> None:
    tokens = [
        "<think>",
        "r",
        "</think>",
        "\n",
        "A",
        '<tool_call>{"name": "now"}',
        "</tool_call>",
        "B",
    ]
    events = decode(
        tokens, tools=TOOLS, tool_format="hermes", reasoning_format="qwen3", logprobs=True
    )
    assert [e.token for e in entries(events)] == ["A", "B"]
    assert summed(events) == Answer(
        reasoning="r", content="AB", calls=(Call("now", "{}"),), finish="tool_calls"
    )


def test_held_text_keeps_its_tokens_when_a_call_comes() -> None:
    tokens = ["A", " EN", '<tool_call>{"name": "now"}</tool_call>']
    events = decode(tokens, tools=TOOLS, tool_format="hermes", stop=("END",), logprobs=True)
    assert [e.token for e in entries(events)] == ["A", " EN"]


def test_a_token_that_is_no_text_is_named_by_its_bytes() -> None:
    assert token_text(b"\xe2\x80") == "bytes:\\xe2\\x80"
    assert token_text("é".encode()) == "é"
    events = decode([b"\xf0\x9f", b"\x98\x8a"], logprobs=True)
    assert [e.token for e in entries(events)] == ["bytes:\\xf0\\x9f", "bytes:\\x98\\x8a"]
    assert [e.top[0].bytes for e in entries(events)] == [b"\xf0\x9f", b"\x98\x8a"]


def test_a_control_token_is_neither_text_nor_reported() -> None:
    events = decode(["a", b"", "b"], logprobs=True)
    assert [e.token for e in entries(events)] == ["a", "b"]


def test_alternatives_are_distinct_and_without_control_tokens() -> None:
    """Two ids may spell the same: a byte token and the letter, two control tokens (R159)."""
    spelled = [b"a", b"", b"b", b"a", b""]
    decoder = ChoiceDecoder(index=0, token_bytes=spelled.__getitem__, spec=spec(logprobs=True))
    top = ((1, -0.1), (3, -0.2), (4, -0.3), (0, -0.4), (2, -0.5))
    events = decoder.feed(Step((0,), (TokenIdLogprob(0, -0.4, 4, top),)))
    (entry,) = entries(events)
    assert [(one.token, one.logprob) for one in entry.top] == [("a", -0.2), ("b", -0.5)]


@pytest.mark.parametrize("end", ["stop", "length"])
def test_an_answer_ends_once(end: str) -> None:
    events = decode([], end)  # type: ignore[arg-type]
    assert events == [Finished(0, end)]  # type: ignore[arg-type]


def test_a_refusal_is_told_from_json_by_its_start() -> None:
    assert summed(decode(["I", " can't."], refusals=True)) == Answer(refusal="I can't.")
    assert summed(decode(["{", "}"], refusals=True)) == Answer(content="{}")
    events = decode(["No", "."], refusals=True, logprobs=True)
    assert [len(e.logprobs or ()) for e in events if isinstance(e, RefusalDelta)] == [1, 1]


def test_a_forced_call_is_held_until_it_is_complete() -> None:
    forced = ToolChoice("required")
    tokens = ['<tool_call>{"name": "add", "arguments": ', '{"a"', ": 1}", "}</tool_call>"]
    cut = decode(tokens[:3], "length", tools=TOOLS, tool_format="hermes", tool_choice=forced)
    assert cut == [Finished(0, "length")]
    whole = summed(decode(tokens, tools=TOOLS, tool_format="hermes", tool_choice=forced))
    assert whole == Answer(calls=(Call("add", '{"a": 1}'),), finish="tool_calls")


@pytest.mark.parametrize(
    ("format", "text"), [("json", " \n"), ("json", '{"na'), ("hermes", "<tool_ca")]
)
def test_the_beginning_of_a_forced_call_is_no_text(format: str, text: str) -> None:
    forced = ToolChoice("required")
    events = decode([text], "length", tools=TOOLS, tool_format=format, tool_choice=forced)
    assert events == [Finished(0, "length")]


def test_whether_a_thought_is_open() -> None:
    data = [b"<think>", b"a", b"</think>", b"b"]
    fields = {"reasoning_format": "qwen3"}
    decoder = ChoiceDecoder(index=0, token_bytes=data.__getitem__, spec=spec(**fields))
    states = []
    for token_id in range(4):
        decoder.feed(Step((token_id,)))
        states.append(decoder.is_thinking)
    assert states == [True, True, False, False]
    assert not ChoiceDecoder(index=0, token_bytes=data.__getitem__, spec=spec()).is_thinking


def test_decoders_share_nothing() -> None:
    data = [b"\xf0\x9f", b"\x98\x8a", b"a"]
    one, other = (
        ChoiceDecoder(index=i, token_bytes=data.__getitem__, spec=spec(stop=("ab",)))
        for i in (0, 1)
    )
    assert one.feed(Step((0,))) == []
    assert other.feed(Step((2,))) == []
    events: list[Event] = one.feed(Step((1,)))
    assert events == [ContentDelta(0, "😊")]
    assert other.flush("stop") == [ContentDelta(1, "a"), Finished(1, "stop")]


def test_a_plain_token_costs_next_to_nothing() -> None:
    decoder = ChoiceDecoder(index=0, token_bytes=[b" word"].__getitem__, spec=spec())
    steps = [Step((0,)) for _ in range(20_000)]
    best = min(_seconds(decoder, steps) for _ in range(3))
    assert best / len(steps) < 10e-6  # 0.5 µs on an idle core; a busy machine gets room


def _seconds(decoder: ChoiceDecoder, steps: list[Step]) -> float:
    start = time.process_time()
    for step in steps:
        decoder.feed(step)
    return time.process_time() - start
