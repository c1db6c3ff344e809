"""The logprobs of a provider's chunk → `TokenLogprob`s that keep the rules (R151–R165).

`read_logprobs` reads the entries of one chunk, `TokenText` brings a choice's text and its entries
together. This module must not know: chunks, choices, what was asked for.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import cast

from msgspec.structs import replace

from rejoinder.types import Json, JsonObject, TokenLogprob, TopLogprob

__all__ = ["SENTINEL", "TokenText", "read_logprobs", "realigned"]

SENTINEL = -9999.0
"""What stands for a probability of zero, or one that is not told (4.1)."""

_SUM = 1.001
_NEAR = 1e-6

MAX_WAITING_ENTRIES = 64
"""How many entries wait for their text: no character is made of so many tokens."""

MAX_UNTOLD_BYTES = 4096
"""How far ahead in the text an entry is looked for."""

MAX_WAITING_TEXTS = 4
"""How many texts wait for entries that come late."""

Deviate = Callable[[str, str], None]
Logprobs = tuple[TokenLogprob, ...] | None
Piece = tuple[str, tuple[TokenLogprob, ...]]


def read_logprobs(value: Json, deviate: Deviate) -> tuple[Logprobs, Logprobs]:
    """The entries of the content and of the refusal; None where there are none."""
    if isinstance(value, list):
        deviate("logprobs_shape", "list")
        return _entries(value, deviate), None
    if not isinstance(value, dict):
        return None, None
    if isinstance(value.get("token_logprobs"), list):
        deviate("logprobs_shape", "token_logprobs")
        return _entries(_parallel(value), deviate), None
    return _entries(value.get("content"), deviate), _entries(value.get("refusal"), deviate)


def _parallel(value: JsonObject) -> Json:
    """The text completions' form: lists of equal length, maps of alternatives."""
    tokens, logprobs = value.get("tokens"), value.get("token_logprobs")
    tops = value.get("top_logprobs")
    if not isinstance(tokens, list) or not isinstance(logprobs, list):
        return None
    entries: list[Json] = []
    for number, (token, logprob) in enumerate(zip(tokens, logprobs, strict=False)):
        top = tops[number] if isinstance(tops, list) and number < len(tops) else None
        listed: list[Json] = [
            {"token": key, "logprob": one, "bytes": [*key.encode()]}
            for key, one in (top.items() if isinstance(top, dict) else ())
        ]
        listed.sort(key=lambda one: -_number(one["logprob"]))  # type: ignore[index,call-overload]
        text = token if isinstance(token, str) else ""
        entries.append(
            {"token": text, "logprob": logprob, "bytes": [*text.encode()], "top_logprobs": listed}
        )
    return entries


def _entries(value: Json, deviate: Deviate) -> Logprobs:
    if not isinstance(value, list):
        return None
    entries = [_entry(one, deviate) for one in value if isinstance(one, dict)]
    return tuple(entries) or None


def _entry(entry: JsonObject, deviate: Deviate) -> TokenLogprob:
    token, data = _token(entry, deviate)
    logprob = _logprob(entry.get("logprob"), deviate)
    listed = entry.get("top_logprobs")
    if not listed or not isinstance(listed, list):
        return TokenLogprob(token, logprob, data)
    top: list[TopLogprob] = []
    for one in listed:
        if isinstance(one, dict):
            text, its_bytes = _token(one, deviate)
            value = _logprob(one.get("logprob"), deviate)
            if text or its_bytes:
                top.append(TopLogprob(text, value, its_bytes))
    top = _in_order(top, deviate)
    if top:
        logprob = _agreed(TopLogprob(token, logprob, data), top, deviate)
        logprob = _scaled(logprob, top, deviate)
    return TokenLogprob(token, logprob, data, _rank(logprob, top), tuple(top))


def _in_order(listed: list[TopLogprob], deviate: Deviate) -> list[TopLogprob]:
    """From the most likely on, each token once (R159)."""
    values = [one.logprob for one in listed]
    if sorted(values, reverse=True) != values:
        deviate("logprobs_order", "unsorted")
        listed = sorted(listed, key=lambda one: -one.logprob)
    distinct: list[TopLogprob] = []
    seen: set[bytes] = set()
    tokens: set[str] = set()
    bare: set[str] = set()
    for one in listed:
        data = one.bytes
        if data:
            if data in seen or one.token in bare:
                continue
            seen.add(data)
        else:
            if one.token in tokens:
                continue
            bare.add(one.token)
        tokens.add(one.token)
        distinct.append(one)
    if len(distinct) < len(listed):
        deviate("logprobs_order", "repeated")
    return distinct


def _same(one: TopLogprob, other: TopLogprob) -> bool:
    if one.bytes and other.bytes:
        return one.bytes == other.bytes
    return one.token == other.token


def _agreed(chosen: TopLogprob, top: list[TopLogprob], deviate: Deviate) -> float:
    """The chosen token's logprob is the listed one (R156); a likely one is listed (R160)."""
    listed = None
    for one in top:
        if _same(one, chosen):
            listed = one
            break
    if listed is not None and listed.logprob <= SENTINEL:
        deviate("logprobs_chosen", "listed as impossible")
        top.remove(listed)
        listed = None
    if listed is not None:
        if abs(listed.logprob - chosen.logprob) > _NEAR:
            deviate("logprobs_chosen", "another value in the list")
        return listed.logprob
    if top and chosen.logprob > top[-1].logprob and (chosen.token or chosen.bytes):
        deviate("logprobs_chosen", "not listed")
        place = sum(one.logprob >= chosen.logprob for one in top)
        top.insert(place, chosen)
    return chosen.logprob


def _scaled(logprob: float, top: list[TopLogprob], deviate: Deviate) -> float:
    """Probabilities add up to one at most (R161)."""
    total = sum([math.exp(one.logprob) for one in top])
    if total <= _SUM:
        return logprob
    deviate("logprobs_sum", f"{total:.3f}")
    shift = math.log(total)
    top[:] = [replace(one, logprob=max(one.logprob - shift, SENTINEL)) for one in top]
    return max(logprob - shift, SENTINEL)


def _rank(logprob: float, top: Sequence[TopLogprob]) -> int | None:
    """All that alternatives tell: behind 20 of them it is not among the 20 likeliest (R156)."""
    if len(top) < 20:
        return None
    ahead = sum(one.logprob > logprob for one in top)
    return ahead + 1 if ahead >= 20 else None


def _token(entry: JsonObject, deviate: Deviate) -> tuple[str, bytes | None]:
    """A token as text and as bytes: where both are told, bytes that are text are right (R162),
    for raw spellings of the vocabulary are often in the place of the text."""
    token, data = entry.get("token"), _bytes(entry.get("bytes"))
    if not isinstance(token, str):
        deviate("logprobs_shape", "token")
        token = "" if data is None else data.decode("utf-8", "replace")
    if data is None or (token and not data):
        return token, None
    if token.isascii() and data == token.encode():  # nearly always
        return token, data
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return token, data
    if text != token:
        deviate("logprobs_bytes", "token")
    return text, data


def _number(value: Json) -> float:
    known = isinstance(value, int | float) and not isinstance(value, bool) and value == value
    return float(value) if known else SENTINEL  # type: ignore[arg-type]


def _logprob(value: Json, deviate: Deviate) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        if SENTINEL <= value <= 0:
            return float(value)
        if 0 < value < _NEAR:
            return 0.0
    deviate("logprob_value", str(value)[:20])
    if isinstance(value, int | float) and value > 0 and not math.isinf(value):
        return 0.0
    return SENTINEL


def _bytes(value: Json) -> bytes | None:
    if not isinstance(value, list):
        return None
    if not {*map(type, value)} <= {int}:
        return None
    try:
        return bytes(cast(list[int], value))
    except (ValueError, OverflowError):
        return None


# ---------------------------------------------------------------- text and entries


class TokenText:
    """One choice's visible text and the entries it is made of, brought together (R163, R164).

    Entries wait for the text that they spell, and for a while text waits for its entries. Entries
    that spell nothing of the text are dropped: special tokens, tokens of thoughts and calls, what
    was sent before (4.1). Text that no entry spells gets one that tells no probability.
    """

    __slots__ = ("_deviate", "_entries", "_num_texts", "_text", "has_entries")

    def __init__(self, deviate: Deviate) -> None:
        self._deviate = deviate
        self._text = ""
        self._entries: list[TokenLogprob] = []
        self._num_texts = 0
        self.has_entries = False
        """Whether the provider has given any."""

    def feed(self, text: str, entries: Logprobs) -> list[Piece]:
        """What can leave now."""
        if entries:
            self.has_entries = True
            self._entries += entries
        self._text += text
        self._num_texts += bool(text)
        pieces = self._matched()
        if not self._text:
            self._num_texts = 0
            del self._entries[:-MAX_WAITING_ENTRIES]
        return pieces

    @property
    def is_overdue(self) -> bool:
        """Whether text has waited for its entries long enough: `flush` it."""
        return self._num_texts >= MAX_WAITING_TEXTS

    def flush(self) -> list[Piece]:
        """All text that waits, told or not; entries without a text are dropped."""
        pieces: list[Piece] = []
        if self._entries:
            self._deviate("logprobs_text", "entries without a text")
            self._entries.clear()
        if self._text:
            pieces.append(_untold(self._text, self._deviate))
            self._text = ""
        self._num_texts = 0
        return pieces

    def _matched(self) -> list[Piece]:
        """What of the text has its entries, in one pass over both."""
        if _spells(self._entries, self._text):
            pieces = [(self._text, tuple(self._entries))] if self._text else []
            self._text, self._entries = "", []
            return pieces
        pass_ = _Pass(self._text, self._entries, self._deviate)
        pieces = pass_.run()
        self._text, self._entries = pass_.rest()
        return pieces


class _Pass:
    """One walk along a text and entries that are not simply its spelling."""

    __slots__ = ("_at", "_data", "_deviate", "_entries", "_next", "_whole")

    def __init__(self, text: str, entries: list[TokenLogprob], deviate: Deviate) -> None:
        self._whole = text.encode("utf-8", "replace")
        self._entries = entries
        self._data = [*map(_data, entries)]
        self._deviate = deviate
        self._at = 0
        """The first byte that has not left."""
        self._next = 0
        """The first entry that has not left."""

    def run(self) -> list[Piece]:
        pieces: list[Piece] = []
        while self._at < len(self._whole) and self._next < len(self._entries):
            count, end, may_continue = self._common()
            if count:
                entries = tuple(self._entries[self._next : self._next + count])
                pieces.append((self._whole[self._at : end].decode(), entries))
                self._at = end
                self._next += count
            elif may_continue:
                break
            else:
                pieces += self._find_place()
        return pieces

    def rest(self) -> tuple[str, list[TokenLogprob]]:
        return self._whole[self._at :].decode(), self._entries[self._next :]

    def _common(self) -> tuple[int, int, bool]:
        """How many entries are the text up to which byte, at a character's end; and where it is
        none, whether what comes may still make it some."""
        whole, at = self._whole, self._at
        best, end = 0, at
        for number in range(self._next, len(self._data)):
            data = self._data[number]
            if not data or not whole.startswith(data, at):
                return best, end, self._fits(data, at)
            at += len(data)
            if self._is_boundary(at):
                best, end = number - self._next + 1, at
        return best, end, True

    def _find_place(self) -> list[Piece]:
        """The next entry is not what the text goes on with. Either one of the following is: those
        before it are dropped. Or the text comes to it soon: what is before it has none."""
        entries = self._data[self._next : self._next + MAX_WAITING_ENTRIES]
        for number, data in enumerate(entries[1:], 1):
            if self._fits(data, self._at):
                self._deviate("logprobs_text", "entries of another text")
                self._next += number
                return []
        place = self._place_of(entries[0])
        if place is None:
            self._deviate("logprobs_text", "entries of another text")
            self._next += 1
            return []
        text = self._whole[self._at : place].decode()
        self._at = place
        return [_untold(text, self._deviate)]

    def _place_of(self, data: bytes) -> int | None:
        end = min(len(self._whole), self._at + MAX_UNTOLD_BYTES)
        place = self._at
        while data and (place := self._whole.find(data, place + 1, end)) >= 0:
            if self._is_boundary(place):
                return place
        for place in range(max(self._at + 1, len(self._whole) - len(data) + 1), end):
            if self._is_boundary(place) and self._fits(data, place):
                return place
        return None

    def _fits(self, data: bytes, place: int) -> bool:
        """Whether the text goes on with it, as far as there is text."""
        return bool(data) and data.startswith(self._whole[place : place + len(data)])

    def _is_boundary(self, place: int) -> bool:
        return place == len(self._whole) or self._whole[place] & 0xC0 != 0x80


def _untold(text: str, deviate: Deviate) -> Piece:
    deviate("logprobs_missing", "")
    return text, (TokenLogprob(text, SENTINEL, text.encode("utf-8", "replace")),)


def realigned(text: str, entries: tuple[TokenLogprob, ...], deviate: Deviate) -> list[Piece]:
    """A text that is shown in part with its entries: all of them, if they begin with it, for a
    token across the end is told whole (A11)."""
    data = _joined(entries)
    if data.startswith(text.encode("utf-8", "replace")) or _spells(entries, text):
        return [(text, entries)]
    one = TokenText(deviate)
    return [*one.feed(text, entries), *one.flush()]


def _data(entry: TokenLogprob) -> bytes:
    return entry.token.encode("utf-8", "replace") if entry.bytes is None else entry.bytes


def _joined(entries: Iterable[TokenLogprob]) -> bytes:
    return b"".join(map(_data, entries))


def _spells(entries: Sequence[TokenLogprob], text: str) -> bool:
    """Whether the entries are the text; bytes that are none are U+FFFD there, however many."""
    if not all(entry.token or entry.bytes for entry in entries):
        return False
    data = _joined(entries)
    if data == text.encode("utf-8", "replace"):
        return True
    return "\ufffd" in text and _legible(data.decode("utf-8", "replace")) == _legible(text)


def _legible(text: str) -> str:
    while "\ufffd\ufffd" in text:
        text = text.replace("\ufffd\ufffd", "\ufffd")
    return text
