"""A set of markers: where the next one is, and what may be the start of one.

This module must not know: what any marker means.
"""

import re
from collections.abc import Iterable


class Markers:
    """A set of markers, compiled: where the next one is, and what may be the start of one."""

    __slots__ = ("_first", "_longest", "_pattern", "_prefixes")

    def __init__(self, markers: Iterable[str]) -> None:
        texts = sorted({marker for marker in markers if marker}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, texts)) or "(?!)")
        self._first = (
            re.compile("[" + "".join(re.escape(t[0]) for t in texts) + "]") if texts else None
        )
        self._longest = len(texts[0]) if texts else 0
        self._prefixes = {text[:i] for text in texts for i in range(1, len(text))}

    def search(self, text: str, position: int) -> re.Match[str] | None:
        return self._pattern.search(text, position)

    def match(self, text: str, position: int) -> re.Match[str] | None:
        return self._pattern.match(text, position)

    def held_from(self, text: str, position: int) -> int:
        """Where the start of a marker that is not complete yet may be; the end if nowhere."""
        end = len(text)
        if self._first is None:
            return end
        start = max(position, end - self._longest + 1)
        while (found := self._first.search(text, start)) is not None:
            start = found.start()
            if text[start:] in self._prefixes:
                return start
            start += 1
        return end

    def may_begin(self, text: str, position: int) -> bool:
        """Whether all of the text from here is the start of a marker (or nothing)."""
        rest = text[position : position + max(1, self._longest)]
        return not rest or rest in self._prefixes
