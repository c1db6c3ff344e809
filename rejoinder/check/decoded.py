"""The event view of a stream: the decoder that reads providers, under the strict event grammar.

The rules look at raw frames; this is the net under them. Must not know: rules, reports.
"""

from typing import Final

from rejoinder.check.exchange import Exchange
from rejoinder.dialects.chunks import ChunkDecoder
from rejoinder.dialects.deviations import DEVIATIONS, Deviation
from rejoinder.errors import ChatError
from rejoinder.events import EventGrammar, GrammarViolation

ORDINARY: Final = frozenset({"empty_answer"})
"""What the decoder notes and the contract allows: an answer that its limit cut before any text."""

NAMED: Final = frozenset({"stop_beside_calls"})
"""What an answer to a named tool_choice may have (A14)."""

LEGACY: Final = frozenset({"function_call", "call_id_missing"})
"""What every answer to `functions` has (R150)."""


def repairs(x: Exchange) -> list[tuple[str, str]]:
    """(rule, what was wrong) of all that the decoder had to repair in a stream, in order."""
    found: list[Deviation] = []
    grammar = EventGrammar()
    decoder = ChunkDecoder(
        model="", new_id=lambda: f"call_{len(found)}", n=x.n, observe=found.append
    )
    usual = (
        ORDINARY
        | (NAMED if x.names_tool else frozenset())
        | (LEGACY if "functions" in x.asked else frozenset())
    )
    wrong: list[tuple[str, str]] = []
    try:
        for frame in x.frames:
            if frame.data is not None:
                for event in decoder.feed(frame.data):
                    grammar.feed(event)
        for event in decoder.finish():
            grammar.feed(event)
    except GrammarViolation as violation:
        wrong.append((violation.rule, str(violation)))
    except ChatError as error:
        if not x.error_frames:
            wrong.append(("R6", error.message))
    repaired = [(d.rule, DEVIATIONS[d.kind].repair) for d in found if d.kind not in usual]
    return [*wrong, *repaired]
