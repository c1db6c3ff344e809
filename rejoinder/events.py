"""The events of one answer: a closed union, the legal order as a table, and `collect`.

    Started (delta | Finished)* Done

For each choice deltas, then one Finished, then nothing; calls are numbered 0, 1, 2 …; Moderated
at most once, after every Finished; Done once, last. This module must not know: JSON, SSE, I/O.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Literal, TypeAlias, assert_never

from msgspec import Struct

from rejoinder.types import (
    Choice,
    Completion,
    FinishReason,
    Moderation,
    TokenLogprob,
    ToolCall,
    Usage,
)


class Started(Struct, frozen=True, kw_only=True):
    """The answer has begun: what every chunk repeats.

    `model` is what served (A29), `created` whole seconds, `service_tier` what was served.
    A backend leaves `id`, `created` and `service_tier` to the service.
    """

    model: str
    id: str = ""
    created: int = 0
    service_tier: str = "default"
    system_fingerprint: str | None = None


class ContentDelta(Struct, frozen=True):
    """A piece of visible text. `logprobs`: the tokens it is made of (R164)."""

    index: int
    text: str
    logprobs: tuple[TokenLogprob, ...] | None = None


class ReasoningDelta(Struct, frozen=True):
    index: int
    text: str


class RefusalDelta(Struct, frozen=True):
    index: int
    text: str
    logprobs: tuple[TokenLogprob, ...] | None = None


class ToolCallStart(Struct, frozen=True):
    """Call number `call` of the choice opens; its name is complete (R134)."""

    index: int
    call: int
    id: str
    name: str
    kind: Literal["function", "custom"] = "function"


class ToolCallDelta(Struct, frozen=True):
    """A fragment of the arguments of an open call, in the model's own spelling."""

    index: int
    call: int
    arguments: str


class Finished(Struct, frozen=True):
    """A choice has ended; nothing of it follows (R107, R108)."""

    index: int
    reason: FinishReason


class Moderated(Struct, frozen=True):
    moderation: Moderation


class Done(Struct, frozen=True):
    """The answer is complete. `estimated_cost` in US dollars, when the model has prices."""

    usage: Usage
    estimated_cost: Decimal | None = None


Delta: TypeAlias = ContentDelta | ReasoningDelta | RefusalDelta | ToolCallStart | ToolCallDelta

Event: TypeAlias = Started | Delta | Finished | Moderated | Done

_OF_CHOICE = (ContentDelta, ReasoningDelta, RefusalDelta, ToolCallStart, ToolCallDelta, Finished)
"""The events that have a choice; nearly every event is of the first kind."""


# ---------------------------------------------------------------- grammar


class GrammarViolation(Exception):
    """An event that the grammar does not allow here; always a bug of whoever made the event.

    `rule` is the contract's rule that the stream would break.
    """

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(f"{rule}: {message}")
        self.rule = rule


Phase = Literal["before", "open", "moderated", "done"]

_NEXT: dict[Phase, dict[type, Phase]] = {
    "before": {Started: "open"},
    "open": {
        ContentDelta: "open",
        ReasoningDelta: "open",
        RefusalDelta: "open",
        ToolCallStart: "open",
        ToolCallDelta: "open",
        Finished: "open",
        Moderated: "moderated",
        Done: "done",
    },
    "moderated": {Done: "done"},
    "done": {},
}
"""The legal orders: for each phase the event kinds it allows and the phase they lead to."""

_RULE_OF_KIND: dict[type, str] = {Started: "R90", Moderated: "R191", Done: "R107"}


class _ChoiceState:
    __slots__ = ("finished", "has_refusal", "has_text", "num_calls")

    def __init__(self) -> None:
        self.finished = False
        self.num_calls = 0
        self.has_text = False
        self.has_refusal = False


class EventGrammar:
    """Checks one stream event by event; the same table is the strict core of the checker."""

    __slots__ = ("_choices", "_phase", "_unfinished")

    def __init__(self) -> None:
        self._phase: Phase = "before"
        self._choices: list[_ChoiceState] = []
        self._unfinished = 0

    def feed(self, event: Event) -> None:
        """Raises GrammarViolation if the event may not come now."""
        kind = type(event)
        phase = _NEXT[self._phase].get(kind)
        if phase is None:
            rule = _RULE_OF_KIND.get(kind, "R108")
            raise GrammarViolation(rule, f"{kind.__name__} in phase '{self._phase}'")
        if isinstance(event, _OF_CHOICE):
            self._feed_choice(event)
        elif isinstance(event, Moderated):
            self._require_all_finished("R191", kind)
        elif isinstance(event, Done):
            self._require_all_finished("R107", kind)
        self._phase = phase

    def _require_all_finished(self, rule: str, kind: type) -> None:
        if self._unfinished or not self._choices:
            raise GrammarViolation(rule, f"{kind.__name__} before every choice has finished")

    def _feed_choice(self, event: Delta | Finished) -> None:
        choices = self._choices
        index = event.index
        if index == len(choices):
            choices.append(_ChoiceState())
            self._unfinished += 1
        elif not 0 <= index < len(choices):
            raise GrammarViolation("R100", f"choice {index} appears after {len(choices)} choices")
        choice = choices[index]
        if choice.finished:
            raise GrammarViolation("R108", f"choice {index} has already finished")
        match event:
            case ContentDelta():
                if event.text and not choice.has_text:
                    choice.has_text = True
                    self._require_one_kind(choice, index)
            case RefusalDelta():
                if event.text and not choice.has_refusal:
                    choice.has_refusal = True
                    self._require_one_kind(choice, index)
            case ReasoningDelta():
                pass
            case ToolCallStart(call=call, id=call_id, name=name):
                if call != choice.num_calls:
                    raise GrammarViolation("R133", f"call {call} opens after {choice.num_calls}")
                if not call_id or not name:
                    raise GrammarViolation("R134", f"call {call} opens without an id or a name")
                choice.num_calls += 1
            case ToolCallDelta(call=call):
                if not 0 <= call < choice.num_calls:
                    raise GrammarViolation("R134", f"call {call} has a fragment but no opening")
                if call != choice.num_calls - 1:
                    raise GrammarViolation("R137", f"call {call} goes on after {call + 1} opened")
            case Finished():
                choice.finished = True
                self._unfinished -= 1
            case _:
                assert_never(event)

    @staticmethod
    def _require_one_kind(choice: _ChoiceState, index: int) -> None:
        if choice.has_text and choice.has_refusal:
            raise GrammarViolation("R111", f"choice {index} has content and a refusal")


# ---------------------------------------------------------------- collect


class _OpenChoice:
    """One choice being collected: pieces of text by field, None until the first piece."""

    __slots__ = ("arguments", "logprobs", "reason", "starts", "texts")

    def __init__(self) -> None:
        self.texts: defaultdict[type, list[str]] = defaultdict(list)
        self.logprobs: defaultdict[type, list[TokenLogprob]] = defaultdict(list)
        self.starts: list[ToolCallStart] = []
        self.arguments: list[list[str]] = []
        self.reason: FinishReason | None = None

    def feed(self, event: Delta | Finished) -> None:
        match event:
            case ContentDelta() | RefusalDelta():
                self.texts[type(event)].append(event.text)
                if event.logprobs is not None:
                    self.logprobs[type(event)].extend(event.logprobs)
            case ReasoningDelta():
                self.texts[ReasoningDelta].append(event.text)
            case ToolCallStart():
                self.starts.append(event)
                self.arguments.append([])
            case ToolCallDelta():
                self.arguments[event.call].append(event.arguments)
            case Finished():
                self.reason = event.reason
            case _:
                assert_never(event)

    def close(self, index: int) -> Choice:
        if self.reason is None:
            raise GrammarViolation("R107", f"choice {index} has no finish reason")

        def text(kind: type) -> str | None:
            return "".join(self.texts[kind]) if kind in self.texts else None

        def logprobs(kind: type) -> tuple[TokenLogprob, ...] | None:
            return tuple(self.logprobs[kind]) if kind in self.logprobs else None

        return Choice(
            index=index,
            finish_reason=self.reason,
            content=text(ContentDelta),
            refusal=text(RefusalDelta),
            reasoning_content=text(ReasoningDelta),
            tool_calls=tuple(
                ToolCall(id=s.id, name=s.name, arguments="".join(a), kind=s.kind)
                for s, a in zip(self.starts, self.arguments, strict=True)
            ),
            content_logprobs=logprobs(ContentDelta),
            refusal_logprobs=logprobs(RefusalDelta),
        )


class Collector:
    """Folds a legal event stream into a Completion: `feed` each event, then `close`."""

    __slots__ = ("_choices", "_done", "_moderation", "_started")

    def __init__(self) -> None:
        self._started: Started | None = None
        self._choices: list[_OpenChoice] = []
        self._moderation: Moderation | None = None
        self._done: Done | None = None

    def feed(self, event: Event) -> None:
        if isinstance(event, _OF_CHOICE):
            if event.index == len(self._choices):
                self._choices.append(_OpenChoice())
            self._choices[event.index].feed(event)
            return
        match event:
            case Started():
                self._started = event
            case Moderated(moderation=moderation):
                self._moderation = moderation
            case Done():
                self._done = event
            case _:
                assert_never(event)

    def close(self) -> Completion:
        """Raises GrammarViolation if the stream has not come to its end."""
        if self._started is None or self._done is None:
            raise GrammarViolation("R107", "the stream has no end")
        return Completion(
            id=self._started.id,
            created=self._started.created,
            model=self._started.model,
            service_tier=self._started.service_tier,
            system_fingerprint=self._started.system_fingerprint,
            choices=tuple(c.close(i) for i, c in enumerate(self._choices)),
            usage=self._done.usage,
            estimated_cost=self._done.estimated_cost,
            moderation=self._moderation,
        )


def collect(events: Iterable[Event]) -> Completion:
    """The completion that an event stream adds up to; what a unary answer is made of."""
    collector = Collector()
    for event in events:
        collector.feed(event)
    return collector.close()


def replay(completion: Completion) -> Iterator[Event]:
    """The shortest event stream that collects to this completion."""
    yield Started(
        model=completion.model,
        id=completion.id,
        created=completion.created,
        service_tier=completion.service_tier,
        system_fingerprint=completion.system_fingerprint,
    )
    for choice in completion.choices:
        i = choice.index
        if choice.reasoning_content is not None:
            yield ReasoningDelta(i, choice.reasoning_content)
        if choice.refusal is not None:
            yield RefusalDelta(i, choice.refusal, choice.refusal_logprobs)
        if choice.content is not None:
            yield ContentDelta(i, choice.content, choice.content_logprobs)
        for number, call in enumerate(choice.tool_calls):
            yield ToolCallStart(i, number, call.id, call.name, call.kind)
            if call.arguments:
                yield ToolCallDelta(i, number, call.arguments)
        yield Finished(i, choice.finish_reason)
    if completion.moderation is not None:
        yield Moderated(completion.moderation)
    yield Done(completion.usage, completion.estimated_cost)
