"""What the text tests share: a decoder over made-up tokens, and an answer summed up."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

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
)
from rejoinder.text.choice import ChoiceDecoder, ChoiceSpec
from rejoinder.types import (
    CustomTool,
    EngineFinishReason,
    Step,
    TokenIdLogprob,
    TokenLogprob,
    Tool,
    Usage,
)


class Call(Struct, frozen=True):
    name: str
    arguments: str
    kind: str = "function"


class Answer(Struct, frozen=True, kw_only=True):
    content: str = ""
    reasoning: str = ""
    refusal: str = ""
    calls: tuple[Call, ...] = ()
    finish: str = "stop"


def spec(**fields: Any) -> ChoiceSpec:
    numbers = itertools.count()
    return ChoiceSpec(new_call_id=lambda: f"call_{next(numbers)}", **fields)


def decode(
    tokens: Sequence[bytes | str],
    end: EngineFinishReason = "stop",
    *,
    step: int = 1,
    **fields: Any,
) -> list[Event]:
    """The events of an answer of these tokens, `step` of them at a time; the caller's part too."""
    events, _ = decode_counting(tokens, end, step=step, **fields)
    return events


def decode_counting(
    tokens: Sequence[bytes | str],
    end: EngineFinishReason = "stop",
    *,
    step: int = 1,
    **fields: Any,
) -> tuple[list[Event], int]:
    """The events, and the number of reasoning tokens."""
    data = [t.encode() if isinstance(t, str) else t for t in tokens]
    decoder = ChoiceDecoder(index=0, token_bytes=data.__getitem__, spec=spec(**fields))
    events: list[Event] = []
    for start in range(0, len(data), step):
        ids = tuple(range(start, min(start + step, len(data))))
        logprobs = tuple(TokenIdLogprob(i, -0.5, 1, ((i, -0.5),)) for i in ids)
        events += decoder.feed(Step(ids, logprobs))
        if decoder.stopped:
            break
    events += decoder.flush("stop" if decoder.stopped else end)
    check_grammar(events)
    return events, decoder.num_reasoning_tokens


def check_grammar(events: Iterable[Event]) -> None:
    grammar = EventGrammar()
    grammar.feed(Started(model="m"))
    for event in events:
        grammar.feed(event)
        match event:
            case ContentDelta(text=text) | ReasoningDelta(text=text) | RefusalDelta(text=text):
                assert text, "an empty delta"
            case ToolCallDelta(arguments=arguments):
                assert arguments, "an empty fragment"
            case _:
                pass
    grammar.feed(Done(Usage()))


def summed(events: Iterable[Event]) -> Answer:
    texts: dict[type, list[str]] = {ContentDelta: [], ReasoningDelta: [], RefusalDelta: []}
    calls: list[list[str]] = []
    finish = ""
    for event in events:
        match event:
            case ContentDelta(text=text) | ReasoningDelta(text=text) | RefusalDelta(text=text):
                texts[type(event)].append(text)
            case ToolCallStart(name=name, kind=kind):
                calls.append([name, kind])
            case ToolCallDelta(call=call, arguments=arguments):
                calls[call].append(arguments)
            case Finished(reason=reason):
                finish = reason
            case _:
                raise AssertionError(event)
    return Answer(
        content="".join(texts[ContentDelta]),
        reasoning="".join(texts[ReasoningDelta]),
        refusal="".join(texts[RefusalDelta]),
        calls=tuple(Call(name, "".join(rest), kind) for name, kind, *rest in calls),
        finish=finish,
    )


def answer(text: str, end: EngineFinishReason = "stop", *, cut: int = 4, **fields: Any) -> Answer:
    """A text in pieces of `cut` characters, decoded and summed up."""
    pieces = [text[i : i + cut] for i in range(0, len(text), cut)]
    return summed(decode(pieces, end, **fields))


def entries(events: Iterable[Event]) -> list[TokenLogprob]:
    found: list[TokenLogprob] = []
    for event in events:
        if isinstance(event, ContentDelta) and event.logprobs is not None:
            found += event.logprobs
    return found


def tool(name: str, **properties: Any) -> Tool:
    return Tool(name, None, {"type": "object", "properties": properties})


TOOLS = (
    tool("get_weather", city={"type": "string"}),
    tool("add", a={"type": "integer"}, b={"type": "integer"}),
    tool("now"),
    tool("write_file", path={"type": "string"}, text={"type": "string"}),
)
CUSTOM = CustomTool("run_code")
