"""What is left to do on a provider's events: tags and calls written as text, stop strings it lacks.

Events in, events out; the same parser and stop matcher that read an engine's text. This module must
not know: HTTP, chunks, how formats look.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import accumulate
from typing import assert_never

from msgspec import Struct

from rejoinder.dialects.provider_logprobs import realigned
from rejoinder.events import (
    ContentDelta,
    Delta,
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
from rejoinder.text.parser import parser_for
from rejoinder.text.pieces import Piece
from rejoinder.text.stop import StopMatcher
from rejoinder.text.trail import TokenTrail
from rejoinder.text.visible import Shown, VisibleText
from rejoinder.types import AnyTool, FinishReason, TokenLogprob, ToolChoice

__all__ = ["RewriteSpec", "Rewriter"]


class RewriteSpec(Struct, frozen=True, kw_only=True):
    """What to look for in a provider's text. Formats by their names in the tables."""

    stop: tuple[str, ...] = ()
    tools: tuple[AnyTool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    tool_format: str = "none"
    reasoning_format: str = "none"
    opens_thinking: bool = False
    logprobs: bool = False

    @property
    def is_needed(self) -> bool:
        reads_calls = self.tool_format != "none" and bool(self.tools)
        return bool(self.stop) or reads_calls or self.reasoning_format != "none"


class Rewriter:
    """The events of one answer, choice by choice. `repaired(kind)` is told of what was found."""

    def __init__(
        self,
        spec: RewriteSpec,
        *,
        n: int,
        new_id: Callable[[], str],
        repaired: Callable[[str], None],
    ) -> None:
        self._choices = [_Choice(i, spec, new_id, repaired) for i in range(n)]
        self._num_open = 0
        self._waiting: dict[int, list[Event]] = {}

    @property
    def stopped(self) -> bool:
        """Every choice has met a stop string: nothing that follows matters."""
        return all(choice.finished for choice in self._choices)

    def feed(self, events: list[Event]) -> list[Event]:
        rewritten: list[Event] = []
        for event in events:
            match event:
                case Started() | Moderated() | Done():
                    rewritten.append(event)
                case _:
                    new: list[Event] = []
                    self._choices[event.index].feed(event, new)
                    self._give(event.index, new, rewritten)
        return rewritten

    def _give(self, index: int, new: list[Event], events: list[Event]) -> None:
        """Choices begin in ascending order (R100), though the text of one may be held back."""
        if not new or index > self._num_open:
            if new:
                self._waiting.setdefault(index, []).extend(new)
            return
        events += new
        if index == self._num_open:
            self._num_open += 1
            while self._num_open in self._waiting:
                events += self._waiting.pop(self._num_open)
                self._num_open += 1


class _Choice:
    def __init__(
        self,
        index: int,
        spec: RewriteSpec,
        new_id: Callable[[], str],
        repaired: Callable[[str], None],
    ) -> None:
        self._index = index
        self._new_id = new_id
        self._repaired = repaired
        self._parser = parser_for(spec)
        self._trail = TokenTrail() if spec.logprobs else None
        self._visible = VisibleText(StopMatcher(spec.stop), self._trail)
        self._visible.is_blank_framing = self._parser is not None and self._parser.reads_calls
        self._position = 0
        self._num_calls = 0
        self._native: dict[int, int] = {}
        self._malformed = False
        self._has_text = False
        self.finished = False

    def feed(self, event: Delta | Finished, events: list[Event]) -> None:
        if self.finished:
            return
        match event:
            case ContentDelta(text=text, logprobs=logprobs):
                self._add(text, logprobs)
                pieces = (
                    self._parser.feed(text)
                    if self._parser is not None
                    else [Piece("content", text, self._position)]
                )
                self._read(pieces, events)
            case ReasoningDelta():
                events.append(event)
            case RefusalDelta():
                self._has_text = True
                events.append(event)
            case ToolCallStart():
                self._show(self._visible.flush(before_call=True), events)
                self._native[event.call] = self._num_calls
                events.append(
                    ToolCallStart(self._index, self._num_calls, event.id, event.name, event.kind)
                )
                self._num_calls += 1
            case ToolCallDelta():
                number = self._native[event.call]
                events.append(ToolCallDelta(self._index, number, event.arguments))
            case Finished(reason=reason):
                self._finish(reason, events)
            case _:
                assert_never(event)

    def _add(self, text: str, logprobs: tuple[TokenLogprob, ...] | None) -> None:
        """The tokens of a text by their places; the last one reaches to its end."""
        start, stop = self._position, self._position + len(text)
        self._position = stop
        if self._trail is None:
            return
        entries = logprobs or ()
        # How many bytes there are up to the end of each character; a token may end inside one.
        ends = list(accumulate(len(character.encode("utf-8", "replace")) for character in text))
        num_bytes = 0
        for number, entry in enumerate(entries):
            begin = start + bisect_right(ends, num_bytes)
            num_bytes += len(entry.token.encode() if entry.bytes is None else entry.bytes)
            last = number + 1 == len(entries)
            end = stop if last else min(stop, start + bisect_left(ends, num_bytes) + 1)
            self._trail.add(min(begin, stop), end, entry)

    def _read(self, pieces: list[Piece], events: list[Event]) -> None:
        for piece in pieces:
            self._place(piece, events)
            if self._visible.stopped:
                self.finished = True
                self._end(self._reason("stop"), events)
                return

    def _place(self, piece: Piece, events: list[Event]) -> None:
        match piece.kind:
            case "content":
                self._show(self._visible.feed(piece.text, piece.end), events)
                return
            case "reasoning":
                self._repaired("think_tags")
                events.append(ReasoningDelta(self._index, piece.text))
            case "call":
                self._repaired("calls_in_text")
                self._show(self._visible.flush(before_call=True), events)
                events.append(
                    ToolCallStart(self._index, self._num_calls, self._new_id(), piece.text)
                )
                self._num_calls += 1
            case "arguments":
                events.append(ToolCallDelta(self._index, self._num_calls - 1, piece.text))
            case "bad":
                self._malformed = True
            case "end":
                self._visible.is_blank_framing = True
            case "markup" | "thought":
                pass
            case _:
                assert_never(piece.kind)
        if self._trail is not None:
            self._trail.drop(piece.end)

    def _show(self, shown: Shown | None, events: list[Event]) -> None:
        if shown is None:
            return
        self._has_text = True
        if shown.logprobs is None:
            events.append(ContentDelta(self._index, shown.text))
            return
        pieces = realigned(shown.text, shown.logprobs, lambda kind, _: self._repaired(kind))
        events += [ContentDelta(self._index, *piece) for piece in pieces]

    def _finish(self, reason: FinishReason, events: list[Event]) -> None:
        if self._parser is not None:
            self._read(self._parser.flush("length" if reason == "length" else "stop"), events)
        if self.finished:
            return
        self._show(self._visible.flush(before_call=self._num_calls > 0), events)
        self.finished = True
        self._end(self._reason(reason), events)

    def _reason(self, reason: FinishReason) -> FinishReason:
        if reason in ("stop", "tool_calls") and self._malformed:
            return "malformed_function_call"
        return "tool_calls" if reason == "stop" and self._num_calls else reason

    def _end(self, reason: FinishReason, events: list[Event]) -> None:
        if not self._has_text and not self._num_calls:
            events.append(ContentDelta(self._index, ""))
        events.append(Finished(self._index, reason))
