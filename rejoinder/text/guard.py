"""Keeps text that people wrote from becoming control tokens, whatever a chat template does.

A control token in such text is broken by a sentinel that occurs in no input; after rendering only
the template's own markup still matches, and the sentinels are taken out of the rest. Nothing that
the user wrote is lost. This module must not know: messages, templates, tokenizers.
"""

import re
from collections.abc import Iterable, Iterator

from rejoinder.types import Json

_SPARE = tuple(chr(c) for c in (*range(0xE000, 0xF8FF), *range(0xF0000, 0xF1000)))
"""Private-use characters: no template treats them specially, and JSON does not escape them."""

_JSON_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})


def spare_characters(texts: Iterable[str], count: int) -> list[str]:
    """`count` private-use characters that occur in none of the texts."""
    used: set[str] = set()
    for text in texts:
        if not text.isascii():
            used.update(text)
    found = [char for char in _SPARE if char not in used][:count]
    if len(found) < count:
        raise ValueError("the text uses every private-use character")
    return found


def strings_in(value: Json) -> Iterator[str]:
    """Every string in a JSON value, keys included."""
    stack: list[Json] = [value]
    while stack:
        item = stack.pop()
        match item:
            case str():
                yield item
            case dict():
                yield from item
                stack.extend(item.values())
            case list() | tuple():  # msgspec.to_builtins leaves tuples as they are
                stack.extend(item)
            case _:
                pass


class ControlTokens:
    """The control tokens of one model, compiled once: how to find them, and parts of them."""

    __slots__ = ("_inner", "_longest", "_pattern", "_prefixes", "_suffixes", "ids")

    def __init__(self, ids: dict[str, int]) -> None:
        self.ids = {text: token for text, token in ids.items() if len(text) > 1}
        longest_first = sorted(self.ids, key=len, reverse=True)
        alternatives = "|".join(map(re.escape, longest_first))
        self._pattern = re.compile(f"({alternatives or '(?!)'})")
        self._longest = len(longest_first[0]) if longest_first else 0
        self._suffixes = {text[i:] for text in longest_first for i in range(1, len(text))}
        self._prefixes = {text[:i] for text in longest_first for i in range(1, len(text))}
        self._inner = "\n".join(longest_first)

    def split(self, text: str) -> list[str]:
        """Ordinary text and control tokens by turns, ordinary text first and last."""
        return self._pattern.split(text)

    def guard(self, text: str, sentinel: str, *, edges_only: bool = False) -> str:
        """The text with a sentinel in every control token and where a neighbour could complete one.

        `edges_only` leaves out the test for inner parts: for keys that a template looks up.
        """
        guarded, broken = text, 1
        while broken:  # tokens may overlap: breaking one can leave another
            guarded, broken = self._pattern.subn(lambda m: m[0][0] + sentinel + m[0][1:], guarded)
        start = len(guarded) - len(guarded.lstrip())
        end = max(start, len(guarded.rstrip()))
        lengths = range(1, min(self._longest, end - start + 1))
        before = any(guarded[start : start + n] in self._suffixes for n in lengths)
        after = any(guarded[end - n : end] in self._prefixes for n in lengths)
        inner = not edges_only and start < end and guarded[start:end] in self._inner
        if not (before or after or inner):
            return guarded
        head = sentinel if before or inner else ""
        tail = sentinel if after else ""
        return f"{guarded[:start]}{head}{guarded[start:end]}{tail}{guarded[end:]}"

    def guard_json(self, value: Json, sentinel: str) -> Json:
        """The same for every string of a JSON value, keys too; JSON Schema's type names stay."""
        match value:
            case str():
                return self.guard(value, sentinel)
            case dict():
                return {
                    self.guard(key, sentinel, edges_only=True): (
                        item
                        if key == "type" and isinstance(item, str) and item in _JSON_TYPES
                        else self.guard_json(item, sentinel)
                    )
                    for key, item in value.items()
                }
            case list():
                return [self.guard_json(item, sentinel) for item in value]
            case _:
                return value
