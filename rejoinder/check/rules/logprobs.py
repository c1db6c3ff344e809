"""R151–R170: logprobs. Must not know: how the engine got them."""

import itertools
import math
import re
from collections.abc import Iterable, Iterator

from rejoinder.check.exchange import (
    ChoiceChunk,
    Exchange,
    as_int,
    as_list,
    as_object,
    as_text,
    is_int,
    is_number,
)
from rejoinder.check.pairs import both
from rejoinder.check.probes import (
    LOGPROBS,
    LOGPROBS_STREAMED,
    TOP_LOGPROBS,
    TOP_LOGPROBS_STREAMED,
    UNARY,
    UNARY_AGAIN,
)
from rejoinder.check.rule import Evidence, Probe, Problem, Skipped, at, rule, whole_rule
from rejoinder.types import JsonObject

SENTINEL = -9999.0

FIELDS = ("content", "refusal")


def wanted(x: Exchange) -> bool:
    return x.asked.get("logprobs") is True


def num_top(x: Exchange) -> int:
    return as_int(x.asked.get("top_logprobs"))


def pieces(x: Exchange) -> Iterator[ChoiceChunk]:
    for thing in x.objects:
        yield from thing.choices


def entries(x: Exchange) -> Iterator[tuple[ChoiceChunk, JsonObject]]:
    """Each entry, of both fields. Raises Skipped if there is none."""
    found = False
    for piece in pieces(x):
        for field in FIELDS:
            for entry in piece.logprobs(field):
                found = True
                yield piece, entry
    if not found:
        raise Skipped


def top(entry: JsonObject) -> list[JsonObject]:
    return [one for one in as_list(entry.get("top_logprobs")) if isinstance(one, dict)]


def number(entry: JsonObject) -> float | None:
    value = entry.get("logprob")
    return float(value) if isinstance(value, int | float) and is_number(value) else None


def same_token(one: JsonObject, other: JsonObject) -> bool:
    """By their bytes; by their text where one has none."""
    key = "bytes" if one.get("bytes") and other.get("bytes") else "token"
    return one.get(key) == other.get(key)


def is_listed(entry: JsonObject) -> bool:
    return any(same_token(entry, one) for one in top(entry))


@rule(
    "R151",
    "logprobs only when asked",
    dialect="O",
    says="The logprobs object is there only if it was asked for; else null or absent.",
    how="The key in each choice.",
)
def only_when_asked(x: Exchange) -> Iterable[Problem]:
    if wanted(x):
        raise Skipped
    for piece in pieces(x):
        if piece.json.get("logprobs") is not None:
            yield at(piece, "logprobs, which were not asked for")
            return


@rule(
    "R152",
    "Both lists",
    dialect="O",
    says="The logprobs object has both keys content and refusal, a list or null each.",
    how="Presence and types.",
)
def both_lists(x: Exchange) -> Iterable[Problem]:
    if not wanted(x):
        raise Skipped
    for piece in pieces(x):
        value = piece.json.get("logprobs")
        if value is None:
            continue
        if not isinstance(value, dict):
            yield at(piece, "logprobs is not an object")
            continue
        for field in FIELDS:
            if field not in value:
                yield at(piece, f"logprobs.{field} is missing")
            elif not isinstance(value[field], list | None):
                yield at(piece, f"logprobs.{field} is not an array")


@rule(
    "R153",
    "Entries are whole",
    dialect="O",
    says="Each entry has token, logprob, bytes and top_logprobs; each alternative the first three.",
    how="Presence and types.",
)
def whole_entries(x: Exchange) -> Iterable[Problem]:
    for piece, entry in entries(x):
        for key in ("token", "logprob", "bytes", "top_logprobs"):
            if key not in entry:
                yield at(piece, f"an entry without {key}")
        if not isinstance(entry.get("top_logprobs", []), list | None):
            yield at(piece, "top_logprobs is not an array")
        for one in (entry, *top(entry)):
            if not isinstance(one.get("token", ""), str | None):
                yield at(piece, "a token is not a string")
            if not is_number(one.get("logprob", 0)) and one["logprob"] is not None:
                yield at(piece, f"a logprob is {one['logprob']!r}")
        for one in top(entry):
            if lacking := {"token", "logprob", "bytes"} - one.keys():
                yield at(piece, f"an alternative without {', '.join(sorted(lacking))}")


@rule(
    "R154",
    "Entries have a number",
    dialect="D",
    says="Each entry has a token and a numeric logprob; null is an error.",
    how="Presence and types.",
)
def numeric_entries(x: Exchange) -> Iterable[Problem]:
    for piece, entry in entries(x):
        if not isinstance(entry.get("token"), str) and entry.get("token", "") is not None:
            yield at(piece, "an entry without a token")
        if not is_number(entry.get("logprob")):
            yield at(piece, f"a logprob is {entry.get('logprob', 'missing')!r}")


@rule(
    "R155",
    "logprobs are not positive",
    dialect="B",
    says="A logprob is a finite number, at most 0.",
    how="Range, with a tolerance of 1e-6, also of the alternatives.",
)
def not_positive(x: Exchange) -> Iterable[Problem]:
    for piece, entry in entries(x):
        for one in (entry, *top(entry)):
            value = number(one)
            if value is not None and not (math.isfinite(value) and value <= 1e-6):
                yield at(piece, f"the logprob of {one.get('token')!r} is {value}")


@rule(
    "R156",
    "The sentinel",
    dialect="O",
    kind="E",
    says="logprob is −9999.0 exactly if the token is not among the 20 most likely.",
    how="With top_logprobs 20: a listed token has a real value, another one −9999.0. Elsewhere: a "
    "listed token is never −9999.0.",
)
def sentinel(x: Exchange) -> Iterable[Problem]:
    for piece, entry in entries(x):
        value = number(entry)
        listed = is_listed(entry)
        if listed and value == SENTINEL:
            yield at(piece, f"{entry.get('token')!r} is listed, and its logprob is −9999.0")
        elif (
            len(top(entry)) == 20
            and not listed
            and value is not None
            and value != SENTINEL
            and (value < (number(top(entry)[-1]) or 0.0))
        ):
            message = f"{entry.get('token')!r} is not among the best 20; its logprob is {value}"
            yield at(piece, message)


@rule(
    "R157",
    "No sentinel needed",
    dialect="D",
    severity="warning",
    says="No sentinel is needed here; a logprob of −9999 or less is suspicious.",
    how="Range.",
)
def no_sentinel(x: Exchange) -> Iterable[Problem]:
    for piece, entry in entries(x):
        value = number(entry)
        if value is not None and math.isfinite(value) and value <= SENTINEL:
            yield at(piece, f"the logprob of {entry.get('token')!r} is {value}")


@rule(
    "R158",
    "As many alternatives as asked",
    dialect="O",
    says="There are at most as many top_logprobs as asked, none when none were asked for.",
    how="Count.",
)
def not_more_alternatives(x: Exchange) -> Iterable[Problem]:
    for piece, entry in entries(x):
        if len(top(entry)) > num_top(x):
            yield at(piece, f"{len(top(entry))} alternatives, {num_top(x)} were asked for")


@rule(
    "R159",
    "Alternatives are sorted and distinct",
    dialect="B",
    says="top_logprobs are sorted from the most likely on, and their tokens are distinct.",
    how="Order; tokens by their bytes.",
)
def sorted_alternatives(x: Exchange) -> Iterable[Problem]:
    for piece, entry in entries(x):
        values = [value for one in top(entry) if (value := number(one)) is not None]
        if any(a < b for a, b in itertools.pairwise(values)):
            yield at(piece, f"the alternatives of {entry.get('token')!r} are not sorted")
        pairs = itertools.combinations(top(entry), 2)
        if any(same_token(one, other) for one, other in pairs):
            yield at(piece, f"the alternatives of {entry.get('token')!r} repeat a token")


@rule(
    "R160",
    "A likely token is listed",
    dialect="O",
    says="A chosen token with a real logprob above that of the last alternative is listed.",
    how="Cross-check where the list is as long as asked.",
)
def likely_token_is_listed(x: Exchange) -> Iterable[Problem]:
    for piece, entry in entries(x):
        value, best = number(entry), top(entry)
        if value is None or value == SENTINEL or not best or len(best) < num_top(x):
            continue
        last = number(best[-1])
        if last is not None and value > last + 1e-6 and not is_listed(entry):
            yield at(piece, f"{entry.get('token')!r} is likelier than the last alternative")


@rule(
    "R161",
    "Probabilities add up to one at most",
    dialect="B",
    says="The probabilities of the alternatives add up to no more than 1.",
    how="The sum of exp(logprob), with a tolerance of 1e-3.",
)
def at_most_one(x: Exchange) -> Iterable[Problem]:
    for piece, entry in entries(x):
        values = [value for one in top(entry) if (value := number(one)) is not None]
        total = sum(math.exp(min(value, 0.0)) for value in values if math.isfinite(value))
        if total > 1.001:
            yield at(piece, f"the alternatives of {entry.get('token')!r} add up to {total:.4f}")


@rule(
    "R162",
    "bytes are the token's",
    dialect="B",
    says="bytes are integers 0 … 255, and the UTF-8 of the token if the token is text.",
    how="Range; comparison where the bytes are valid UTF-8.",
)
def bytes_of_token(x: Exchange) -> Iterable[Problem]:
    for piece, entry in entries(x):
        for one in (entry, *top(entry)):
            data = one.get("bytes")
            if data is None:
                continue
            if not isinstance(data, list) or not all(
                is_int(b) and 0 <= as_int(b) <= 255 for b in data
            ):
                yield at(piece, f"the bytes of {one.get('token')!r} are {data!r:.60}")
                continue
            try:
                text = bytes(as_int(b) for b in data).decode()
            except UnicodeDecodeError:
                continue
            if text != one.get("token") and isinstance(one.get("token"), str):
                yield at(piece, f"the bytes of {one.get('token')!r} spell {text!r}")


def joined(found: list[JsonObject]) -> bytes | None:
    """The bytes of entries; None if some has none, or none that are bytes."""
    whole = bytearray()
    for entry in found:
        data = entry.get("bytes")
        if not isinstance(data, list) or not all(is_int(b) and 0 <= as_int(b) < 256 for b in data):
            return None
        whole += bytes(as_int(b) for b in data)
    return bytes(whole)


def utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def begins(data: bytes, text: str) -> bool:
    """Whether bytes begin with a text. Bytes that are no text are U+FFFD there, however many."""
    return data.startswith(utf8(text)) or _legible(data).startswith(_FFFD.sub("\ufffd", text))


def spells(data: bytes, text: str) -> bool:
    """Whether bytes are a text, in the same sense."""
    return data == utf8(text) or _legible(data) == _FFFD.sub("\ufffd", text)


_FFFD = re.compile("\ufffd+")


def _legible(data: bytes) -> str:
    return _FFFD.sub("\ufffd", data.decode("utf-8", "replace"))


@rule(
    "R163",
    "Entries spell the text",
    dialect="O",
    says="The bytes of the content entries joined are the content; what a stop sequence cut may "
    "be in them at the end.",
    how="Comparison for each choice.",
)
def entries_spell_text(x: Exchange) -> Iterable[Problem]:
    if not wanted(x) or (x.is_stream and not x.complete):
        raise Skipped
    for choice in x.choices:
        data = joined(choice.content_logprobs)
        if data is None or not choice.content_logprobs:
            continue
        if not begins(data, choice.content):
            yield Problem(
                f"the entries spell {data.decode('utf-8', 'replace')!r:.120}, "
                f"the content is {choice.content!r:.120}",
                choice.frame,
            )


@rule(
    "R164",
    "A chunk's entries are its delta's",
    dialect="O",
    on="stream",
    says="The entries of a chunk are the tokens of its delta; a chunk without text has none.",
    how="The bytes joined against the text of each delta; the last may hold more.",
)
def entries_of_delta(x: Exchange) -> Iterable[Problem]:
    if not wanted(x):
        raise Skipped
    texts = [p for p in x.choice_chunks if p.delta.get("content")]
    last = {p.index: p for p in texts}
    for piece in x.choice_chunks:
        text = as_text(piece.delta.get("content"))
        found = piece.logprobs("content")
        data = joined(found)
        if not text:
            if found and not piece.delta.get("refusal"):
                yield at(piece, "logprobs on a chunk without text")
        elif not found:
            yield at(piece, "a chunk with text and without logprobs")
        elif (
            data is not None
            and not spells(data, text)
            and (last.get(piece.index) is not piece or not begins(data, text))
        ):
            yield at(piece, f"the entries spell {data!r:.80}, the delta is {text!r:.80}")


@rule(
    "R165",
    "A refusal has its own list",
    dialect="O",
    says="The text of a refusal is covered by logprobs.refusal, with content null.",
    how="Where there is a refusal and logprobs were asked for.",
)
def refusal_list(x: Exchange) -> Iterable[Problem]:
    if not wanted(x) or not any(c.refusal for c in x.choices):
        raise Skipped
    for choice in x.choices:
        if choice.refusal and not choice.refusal_logprobs:
            yield Problem("a refusal without logprobs.refusal", choice.frame)
        if choice.refusal and choice.content_logprobs:
            yield Problem("a refusal with logprobs.content", choice.frame)


@whole_rule(
    "R166",
    "Streamed entries add up",
    dialect="B",
    says="The unary list of logprobs is the streamed lists joined.",
    how="Tokens of both, and their values within 0.05.",
    probes=(LOGPROBS, LOGPROBS_STREAMED, TOP_LOGPROBS, TOP_LOGPROBS_STREAMED, UNARY, UNARY_AGAIN),
)
def entries_add_up(e: Evidence) -> Iterable[Problem]:
    for first, second in ((LOGPROBS, LOGPROBS_STREAMED), (TOP_LOGPROBS, TOP_LOGPROBS_STREAMED)):
        if e.find(first.name) is None or e.find(second.name) is None:
            continue
        body, stream = both(e, first, second)
        if not stream.complete:
            continue
        for one, other in zip(body.choices, stream.choices, strict=False):
            pairs = list(zip(one.content_logprobs, other.content_logprobs, strict=False))
            near = all(
                same_token(a, b) and abs((number(a) or 0) - (number(b) or 0)) <= 0.05
                for a, b in pairs
            )
            if len(one.content_logprobs) != len(other.content_logprobs) or not near:
                yield Problem("the lists differ", other.frame, stream)


@rule(
    "R167",
    "One entry a token",
    dialect="O",
    severity="warning",
    says="For plain text the number of entries is completion_tokens; one token more may be hidden.",
    how="Arithmetic, for one choice without reasoning, calls, refusal, prediction or stop.",
)
def one_entry_a_token(x: Exchange) -> Iterable[Problem]:
    if not wanted(x) or x.n != 1 or x.usage is None or len(x.choices) != 1:
        raise Skipped
    details = as_object(x.usage.get("completion_tokens_details"))
    choice = x.choices[0]
    hidden = details.get("reasoning_tokens") or choice.calls or choice.refusal or x.stops
    if hidden or "prediction" in x.asked or not choice.content_logprobs:
        raise Skipped
    count, completion = len(choice.content_logprobs), as_int(x.usage.get("completion_tokens"))
    if not count <= completion <= count + 1:
        yield Problem(f"{count} entries, completion_tokens is {completion}", choice.frame)


@rule(
    "R168",
    "No alternatives unless asked",
    dialect="D",
    severity="warning",
    says="There is no top_logprobs unless it was asked for.",
    how="The keys of each entry.",
)
def no_alternatives(x: Exchange) -> Iterable[Problem]:
    for piece, entry in entries(x):
        if "top_logprobs" in entry and not num_top(x):
            yield at(piece, "top_logprobs, which was not asked for")
            return


_ZERO = Probe(
    name="R169: top_logprobs 0",
    body={"logprobs": True, "top_logprobs": 0},
    dialects=("O",),
)


@whole_rule(
    "R169",
    "logprobs without alternatives",
    dialect="B",
    says="logprobs:true with top_logprobs:0 is legal and gives entries with empty lists; in "
    "DeepInfra's dialect logprobs:true alone gives entries.",
    how="That request: 200, and entries.",
    probes=(_ZERO, LOGPROBS),
)
def no_alternatives_is_legal(e: Evidence) -> Iterable[Problem]:
    for x in [e.get(LOGPROBS.name), *([e.get(_ZERO.name)] if e.dialect == "O" else [])]:
        if not x.ok:
            yield Problem(x.how_answered, None, x)
        for choice in x.choices:
            if choice.content and not choice.content_logprobs:
                yield Problem("there are no entries", choice.frame, x)


@rule(
    "R170",
    "Temperature 0 takes the best",
    dialect="B",
    severity="warning",
    kind="E",
    says="At temperature 0 the chosen token is the first of top_logprobs.",
    how="Each entry with alternatives, of answers at temperature 0 without a bias or a grammar.",
)
def temperature_zero(x: Exchange) -> Iterable[Problem]:
    constrained = {"logit_bias", "response_format", "tools", "repetition_penalty"} & x.asked.keys()
    if x.asked.get("temperature") != 0 or constrained:
        raise Skipped
    for piece, entry in entries(x):
        best = top(entry)
        if (
            best
            and not same_token(entry, best[0])
            and ((number(entry) or 0) < (number(best[0]) or 0) - 1e-6)
        ):
            yield at(piece, f"{entry.get('token')!r} was taken, {best[0].get('token')!r} is best")
