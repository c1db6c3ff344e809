"""Moderation as a stage: events in, events out, with `Moderated` before `Done` when asked for.

The input is scored while the answer is generated, the output once it is complete (4.10). A
moderator that fails never fails the answer (R197). This module must not know: which moderator.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing, suppress
from typing import Literal, TypeAlias, assert_never

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
from rejoinder.service.moderation import ModerationUnavailable, Moderator
from rejoinder.types import (
    ChatRequest,
    Meter,
    Moderation,
    ModerationFailure,
    ModerationOutcome,
    ModerationResults,
    TextPart,
    UserMessage,
)

__all__ = ["Enforce", "moderated", "user_text"]

Enforce = Literal["off", "input", "output", "both"]
Half = Literal["input", "output"]
_Piece: TypeAlias = Delta | Finished

_log = logging.getLogger(__name__)

_NOT_SCORED = ModerationFailure("not_scored", "This half was not scored.")


async def moderated(
    events: AsyncGenerator[Event, None],
    *,
    request: ChatRequest,
    moderator: Moderator,
    enforce: Enforce,
    meter: Meter,
) -> AsyncGenerator[Event, None]:
    """The same events, annotated when the request asked, filtered where `enforce` says (A8).

    An enforced half is held back until it is scored: a flagged choice loses its deltas and
    finishes with `content_filter`; a flagged input ends the generation and does so for every
    choice. `meter` gives the usage of an answer that is cut short like this.
    """
    wanted = request.moderation is not None
    hold_input = _enforced("input", request, enforce)
    hold_output = _enforced("output", request, enforce)
    if not (wanted or hold_input or hold_output):
        async with aclosing(events):
            async for event in events:
                yield event
        return

    transcript = _Transcript()
    held: list[_Piece] = []
    done: Done | None = None
    scoring = asyncio.create_task(_score(moderator, [user_text(request)], wanted or hold_input))
    try:
        async with aclosing(events):
            async for event in events:
                match event:
                    case Started():
                        yield event
                    case Done():
                        done = event
                    case Moderated():
                        continue
                    case _:
                        transcript.feed(event)
                        held.append(event)
                        if hold_input and scoring.done() and _flagged(scoring.result()):
                            break
                        if not hold_output and (scoring.done() or not hold_input):
                            for piece in held:
                                yield piece
                            held.clear()
        input_half = await scoring
        if hold_input and _flagged(input_half):
            held = _without(held, range(request.n))
            done = done or Done(meter.usage())
        output_half = await _score(moderator, transcript.texts(), wanted or hold_output)
        if hold_output:
            held = _without(held, _flagged(output_half))
        for piece in held:
            yield piece
        if done is not None:
            if wanted:
                yield Moderated(Moderation(input=input_half, output=output_half))
            yield done
    finally:
        scoring.cancel()
        with suppress(asyncio.CancelledError):
            await scoring


def user_text(request: ChatRequest) -> str:
    """What is scored as the input: the text of the conversation's user messages (4.10, A7b)."""
    texts: list[str] = []
    for message in request.messages:
        if isinstance(message, UserMessage):
            if isinstance(message.content, str):
                texts.append(message.content)
            else:
                texts += [part.text for part in message.content if isinstance(part, TextPart)]
    return "\n".join(texts)


def _enforced(half: Half, request: ChatRequest, enforce: Enforce) -> bool:
    """The operator's switch decides; where it is on at all, a request's own mode `block` adds
    its half to what is enforced. Off, `block` only annotates, as the live service does (A8)."""
    if enforce in (half, "both"):
        return True
    if enforce == "off" or request.moderation is None:
        return False
    mode = {"input": request.moderation.input_mode, "output": request.moderation.output_mode}
    return mode[half] == "block"


async def _score(moderator: Moderator, texts: Sequence[str], wanted: object) -> ModerationOutcome:
    """A result for each text, or the failure that the answer reports in its place."""
    if not wanted:
        return _NOT_SCORED
    try:
        scored = await moderator.moderate(texts)
    except ModerationUnavailable as error:
        return ModerationFailure(error.code, error.message)
    except Exception:
        _log.exception("the moderator failed")
        return ModerationFailure("moderation_unavailable", "Moderation could not be run.")
    if len(scored.results) != len(texts):
        return ModerationFailure("moderation_unavailable", "The moderator left out a result.")
    return scored


def _flagged(outcome: ModerationOutcome) -> tuple[int, ...]:
    """The indexes of flagged results; a failure flags nothing."""
    if not isinstance(outcome, ModerationResults):
        return ()
    return tuple(i for i, scored in enumerate(outcome.results) if scored.flagged)


def _without(pieces: Sequence[_Piece], flagged: Iterable[int]) -> list[_Piece]:
    """The same pieces, with each flagged choice reduced to one `content_filter` at the place
    where it first appeared, so that choices still appear in order (R100, C266)."""
    open_choices = list(flagged)
    dropped = frozenset(open_choices)
    kept: list[_Piece] = []
    for piece in pieces:
        if piece.index not in dropped:
            kept.append(piece)
        elif piece.index in open_choices:
            open_choices.remove(piece.index)
            kept.append(Finished(piece.index, "content_filter"))
    return kept + [Finished(index, "content_filter") for index in open_choices]


class _Transcript:
    """Everything a choice says, by choice: content, refusal, reasoning and calls alike (C268)."""

    def __init__(self) -> None:
        self._parts: list[dict[str, list[str]]] = []

    def feed(self, piece: _Piece) -> None:
        while piece.index >= len(self._parts):
            self._parts.append({})
        match piece:
            case ContentDelta() | RefusalDelta() | ReasoningDelta():
                self._add(piece.index, type(piece).__name__, piece.text)
            case ToolCallStart():
                self._add(piece.index, f"call {piece.call}", piece.name + " ")
            case ToolCallDelta():
                self._add(piece.index, f"call {piece.call}", piece.arguments)
            case Finished():
                pass
            case _:
                assert_never(piece)

    def texts(self) -> list[str]:
        """One text a choice; its kinds of text are lines of it, each whole."""
        return ["\n".join("".join(part) for part in parts.values()) for parts in self._parts]

    def _add(self, index: int, kind: str, text: str) -> None:
        self._parts[index].setdefault(kind, []).append(text)
