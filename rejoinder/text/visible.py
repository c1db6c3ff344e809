"""The visible text of one choice on its way out: stop strings, blanks around calls, whole tokens.

This module must not know: how formats look, events, indices.
"""

from typing import NamedTuple

from rejoinder.text.stop import StopMatcher
from rejoinder.text.trail import TokenTrail
from rejoinder.types import TokenLogprob


class Shown(NamedTuple):
    """Text that may leave now, and the tokens it is made of (None: nobody asked)."""

    text: str
    logprobs: tuple[TokenLogprob, ...] | None


class VisibleText:
    """`feed` the content, `flush` where something else comes between or the answer ends.

    `trail`: give logprobs from it; text then leaves by whole tokens (R164). `framed`: white space
    alone, before or between calls, is framing and not text.
    """

    __slots__ = ("_end", "_ready", "_stop", "_trail", "is_blank_framing")

    def __init__(self, stop: StopMatcher, trail: TokenTrail | None) -> None:
        self._stop = stop
        self._trail = trail
        self._ready = ""
        self._end = 0
        self.is_blank_framing = False

    @property
    def stopped(self) -> bool:
        """A stop string has matched: everything after it is cut."""
        return self._stop.stopped

    def feed(self, text: str, end: int) -> Shown | None:
        """`end`: the place in the answer's text where `text` ends."""
        if self._stop.stopped:
            return None
        held = self._stop.num_held
        text_and_held = held + len(text)
        released = self._stop.feed(text)
        if self._stop.stopped:
            # where the cut is: everything released so far came before it
            self._end = end - text_and_held + len(released)
            self._ready += released
            return self._leave(len(self._ready))
        self._ready += released
        self._end = end - self._stop.num_held
        if not self._ready or (self.is_blank_framing and self._ready.isspace()):
            return None
        if self._trail is None:
            return self._leave(len(self._ready))
        inside = self._end - self._trail.boundary(self._end)
        return self._leave(len(self._ready) - inside)

    def flush(self, *, before_call: bool) -> Shown | None:
        """All that was held. Blanks that turn out to be framing are dropped."""
        if not self._stop.stopped:
            held = self._stop.flush()
            self._ready += held
            self._end += len(held)
        if before_call and self.is_blank_framing and self._ready.isspace():
            self._ready = ""
        return self._leave(len(self._ready))

    def _leave(self, count: int) -> Shown | None:
        if count <= 0:
            return None
        text, self._ready = self._ready[:count], self._ready[count:]
        self.is_blank_framing = False
        if self._trail is None:
            return Shown(text, None)
        return Shown(text, self._trail.take(self._end - len(self._ready)))
