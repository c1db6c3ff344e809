"""Stop strings over decoded text, across token boundaries, with hold-back (4.3, R79, R115).

The match that is complete first wins; of several that end together, the longest. So the result does
not depend on how the text is cut. This module must not know: tokens, formats, events.
"""

import re


class _Candidate:
    """One stop string and how much of it the text so far ends with (Knuth, Morris, Pratt).

    The failure table grows only as far as the text has matched: a long stop string costs nothing.
    """

    __slots__ = ("_failure", "length", "matched", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.length = len(text)
        self.matched = 0
        self._failure = [0, 0]

    def _fall_back(self, matched: int) -> int:
        failure, text = self._failure, self.text
        while len(failure) <= matched:
            char, border = text[len(failure) - 1], failure[-1]
            while border and text[border] != char:
                border = failure[border]
            failure.append(border + 1 if text[border] == char else 0)
        return failure[matched]

    def step(self, char: str) -> bool:
        """Reads one character; whether the stop string is now complete."""
        matched, text = self.matched, self.text
        while matched and text[matched] != char:
            matched = self._fall_back(matched)
        if text[matched] == char:
            matched += 1
        self.matched = matched
        return matched == self.length


class StopMatcher:
    """Cuts one choice's visible text at the first stop string. Empty strings are ignored."""

    __slots__ = ("_active", "_candidates", "_first", "_held", "stopped")

    def __init__(self, stop: tuple[str, ...]) -> None:
        self._candidates = [_Candidate(text) for text in dict.fromkeys(stop) if text]
        starts = "".join(sorted({re.escape(c.text[0]) for c in self._candidates}))
        self._first = re.compile(f"[{starts}]") if starts else None
        self._held = ""
        self._active = False
        self.stopped = False

    @property
    def num_held(self) -> int:
        """How many characters may still turn out to be a stop string."""
        return len(self._held)

    def feed(self, text: str) -> str:
        """The text that may be shown now. After a match: what came before it, then nothing."""
        if self.stopped:
            return ""
        if self._first is None:
            return text
        whole = self._held + text
        position = len(self._held)
        end = len(whole)
        while position < end:
            if not self._active:
                found = self._first.search(whole, position)
                if found is None:
                    break
                position = found.start()
            longest = self._step(whole[position])
            position += 1
            if longest:
                self.stopped = True
                self._held = ""
                return whole[: position - longest]
        hold = max(c.matched for c in self._candidates) if self._active else 0
        self._held = whole[end - hold :]
        return whole[: end - hold]

    def _step(self, char: str) -> int:
        """Reads one character; the length of the longest stop string that it completes, or 0."""
        longest = 0
        active = False
        for candidate in self._candidates:
            if candidate.step(char):
                longest = max(longest, candidate.length)
            elif candidate.matched:
                active = True
        self._active = active
        return longest

    def flush(self) -> str:
        """The held text, which turned out to be no stop string; matching starts anew after it."""
        held, self._held = self._held, ""
        self._active = False
        for candidate in self._candidates:
            candidate.matched = 0
        return held
