"""Steps of one sequence → events of one choice: bytes, text, parser, stop strings, in this order.

One decoder a choice, never shared. This module must not know: engines, requests, how formats look.
"""

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from rejoinder.events import (
    ContentDelta,
    Event,
    Finished,
    ReasoningDelta,
    RefusalDelta,
    ToolCallDelta,
    ToolCallStart,
)
from rejoinder.text.detokenizer import Detokenizer
from rejoinder.text.parser import Parser, parser_for
from rejoinder.text.pieces import Piece
from rejoinder.text.stop import StopMatcher
from rejoinder.text.trail import TokenTrail
from rejoinder.text.visible import Shown, VisibleText
from rejoinder.types import (
    AnyTool,
    EngineFinishReason,
    FinishReason,
    Step,
    TokenIdLogprob,
    TokenLogprob,
    ToolChoice,
    TopLogprob,
)

_JSON_STARTS = frozenset(' \t\r\n{["')


class ChoiceSpec(Struct, frozen=True, kw_only=True):
    """What one choice's text may hold. Formats by their names in the tables, never "auto".

    `opens_thinking`: the prompt ends inside a thought. `refusals`: the answer is held to JSON or
    may be a refusal: text that does not begin as JSON is one (R111). Nothing is read as a call
    without tools, or with tool choice none. A forced call (mode required) is held until it is
    complete: one that the limit cuts leaves nothing. `return_malformed_calls`: A16, else 4.12.
    """

    stop: tuple[str, ...] = ()
    tools: tuple[AnyTool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    tool_format: str = "none"
    reasoning_format: str = "none"
    opens_thinking: bool = False
    logprobs: bool = False
    return_malformed_calls: bool = False
    refusals: bool = False
    new_call_id: Callable[[], str]


class ChoiceDecoder:
    """`feed` each step, then `flush` once. `token_bytes` gives a token's bytes; for control tokens
    that a format uses as markers it must give their text (`ChatTemplate.token_bytes`)."""

    def __init__(
        self, *, index: int, token_bytes: Callable[[int], bytes], spec: ChoiceSpec
    ) -> None:
        self._index = index
        self._token_bytes = token_bytes
        self._spec = spec
        self._detokenizer = Detokenizer()
        self._parser: Parser | None = parser_for(spec)
        self._position = 0
        needs_trail = spec.logprobs or (
            self._parser is not None and spec.reasoning_format != "none"
        )
        self._trail = TokenTrail() if needs_trail else None
        self._visible = VisibleText(StopMatcher(spec.stop), self._trail if spec.logprobs else None)
        self._visible.is_blank_framing = self._parser is not None and self._parser.reads_calls
        self._plain = (
            self._parser is None and not spec.stop and not spec.logprobs and not spec.refusals
        )
        self._holds_calls = spec.tool_choice.mode == "required"
        self._held: list[Event] | None = None
        self._num_calls = 0
        self._is_refusal: bool | None = None if spec.refusals else False
        self._malformed = False
        self._stopped = False

    @property
    def may_stop(self) -> bool:
        """The answer may end by its text, not only by its tokens."""
        spec = self._spec
        return bool(spec.stop) or (bool(spec.tools) and not spec.parallel_tool_calls)

    @property
    def stopped(self) -> bool:
        """Enough has been said: a stop string matched, or the one call allowed is complete."""
        return self._stopped

    @property
    def is_thinking(self) -> bool:
        """A thought is open now, and nothing in it may be a call: it can be closed by force."""
        return self._parser is not None and self._parser.is_thinking

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens of thoughts so far, their markers included."""
        return self._trail.num_thought if self._trail is not None else 0

    def feed(self, step: Step) -> list[Event]:
        """The events that a step completes."""
        if self._plain:
            ids = step.token_ids
            if len(ids) == 1:
                data = self._token_bytes(ids[0])
            else:
                data = b"".join(map(self._token_bytes, ids))
            text = self._detokenizer.feed(data)
            return [ContentDelta(self._index, text)] if text else []
        if self._stopped:
            return []
        text = self._text_of(step)
        return self._read(text) if text else []

    def flush(self, reason: EngineFinishReason) -> list[Event]:
        """What was held, and exactly one Finished."""
        events: list[Event] = []
        if not self._stopped:
            rest = self._detokenizer.flush()
            self._position += len(rest)
            if self._plain:
                events += [ContentDelta(self._index, rest)] if rest else []
            else:
                events += self._read(rest) if rest else []
                if self._parser is not None and not self._stopped:
                    events += self._dispose(self._certain(self._parser.flush(reason), reason))
                framed = self._num_calls > 0 or self._holds_calls
                self._show(self._visible.flush(before_call=framed), events)
        self._held = None
        return [*events, Finished(self._index, self._finish_reason(reason))]

    def _finish_reason(self, reason: EngineFinishReason) -> FinishReason:
        if reason == "length":
            return "length"
        if self._malformed:
            return "malformed_function_call"
        return "tool_calls" if self._num_calls else "stop"

    # ------------------------------------------------------------ tokens → text

    def _text_of(self, step: Step) -> str:
        trail = self._trail
        if trail is None:
            return self._detokenizer.feed(b"".join(map(self._token_bytes, step.token_ids)))
        detokenizer = self._detokenizer
        logprobs = step.logprobs if self._spec.logprobs else None
        pieces: list[str] = []
        for number, token_id in enumerate(step.token_ids):
            data = self._token_bytes(token_id)
            if not data:
                continue  # a control token is neither text nor reported
            start = self._position + detokenizer.breaks_off(data)
            text = detokenizer.feed(data)
            self._position += len(text)
            end = self._position + detokenizer.is_mid_character
            entry = self._entry(data, logprobs[number]) if logprobs else None
            trail.add(start, end, entry)
            pieces.append(text)
        return "".join(pieces)

    def _entry(self, data: bytes, logprob: TokenIdLogprob) -> TokenLogprob:
        """Of ids that spell the same only the likeliest is listed, and no control token (R159)."""
        top: dict[bytes, TopLogprob] = {}
        for token_id, value in logprob.top:
            other = self._token_bytes(token_id)
            if other and other not in top:
                top[other] = TopLogprob(token_text(other), value, other)
        alternatives = tuple(top.values())
        return TokenLogprob(token_text(data), logprob.logprob, data, logprob.rank, alternatives)

    # ------------------------------------------------------------ text → events

    def _read(self, text: str) -> list[Event]:
        if self._parser is not None:
            return self._dispose(self._parser.feed(text))
        events: list[Event] = []
        self._show(self._visible.feed(text, self._position), events)
        self._stopped = self._visible.stopped
        return events

    def _dispose(self, pieces: list[Piece]) -> list[Event]:
        events: list[Event] = []
        for piece in pieces:
            self._place(piece, events)
            if self._stopped:
                break
        return events

    def _certain(self, pieces: list[Piece], reason: EngineFinishReason) -> list[Piece]:
        """Without the beginning of a forced call that the limit cut: it is no text either."""
        if self._holds_calls and reason == "length":
            return [piece for piece in pieces if piece.kind not in ("content", "bad")]
        return pieces

    def _place(self, piece: Piece, events: list[Event]) -> None:
        kind, text, end = piece
        trail = self._trail
        match kind:
            case "content":
                self._show(self._visible.feed(text, end), events)
                self._stopped = self._visible.stopped
                return
            case "reasoning":
                events.append(ReasoningDelta(self._index, text))
                if trail is not None:
                    trail.drop_thought(end)
                return
            case "thought":
                if trail is not None:
                    trail.drop_thought(end)
                return
            case "bad" if text and self._spec.return_malformed_calls:
                self._show(self._visible.feed(text, end), events)
                self._stopped = self._visible.stopped
                return
            case "markup":
                pass
            case "call":
                self._show(self._visible.flush(before_call=True), events)
                self._open(text, events)
            case "arguments":
                self._call_event(ToolCallDelta(self._index, self._num_calls - 1, text), events)
            case "end":
                self._close(events)
            case "bad":
                self._malformed |= not self._spec.return_malformed_calls
                if not text:
                    self._close(events)
        if trail is not None:
            trail.drop(end)

    def _show(self, shown: Shown | None, events: list[Event]) -> None:
        if shown is not None:
            if self._is_refusal is None:
                self._is_refusal = shown.text[0] not in _JSON_STARTS
            kind = RefusalDelta if self._is_refusal else ContentDelta
            events.append(kind(self._index, shown.text, shown.logprobs))

    # ------------------------------------------------------------ calls

    def _open(self, name: str, events: list[Event]) -> None:
        if self._holds_calls:
            self._held = []
        number = self._num_calls
        self._num_calls += 1
        is_custom = self._parser is not None and self._parser.is_custom(name)
        kind: Literal["function", "custom"] = "custom" if is_custom else "function"
        start = ToolCallStart(self._index, number, self._spec.new_call_id(), name, kind)
        self._call_event(start, events)

    def _call_event(self, event: Event, events: list[Event]) -> None:
        (events if self._held is None else self._held).append(event)

    def _close(self, events: list[Event]) -> None:
        if self._held is not None:
            events += self._held
            self._held = None
        self._visible.is_blank_framing = True
        self._stopped = not self._spec.parallel_tool_calls


def token_text(data: bytes) -> str:
    """A token's text; of bytes that are no text by themselves their escaped form (contract 4.1)."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
