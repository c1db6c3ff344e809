"""The logprobs of a provider's chunk → `TokenLogprob`s that JSON can carry (R151–R155).

This module must not know: chunks, choices, which tokens were asked for.
"""

import math
from collections.abc import Callable

from rejoinder.types import Json, JsonObject, TokenLogprob, TopLogprob

__all__ = ["SENTINEL", "read_logprobs"]

SENTINEL = -9999.0
"""What stands for a probability of zero, or one that is not told (4.1)."""

Deviate = Callable[[str, str], None]
Logprobs = tuple[TokenLogprob, ...] | None


def read_logprobs(value: Json, deviate: Deviate) -> tuple[Logprobs, Logprobs]:
    """The entries of the content and of the refusal; None where there are none."""
    if isinstance(value, list):
        deviate("logprobs_shape", "list")
        return _entries(value, deviate), None
    if not isinstance(value, dict):
        return None, None
    if isinstance(value.get("token_logprobs"), list):
        deviate("logprobs_shape", "token_logprobs")
        return _parallel(value, deviate), None
    return _entries(value.get("content"), deviate), _entries(value.get("refusal"), deviate)


def _entries(value: Json, deviate: Deviate) -> Logprobs:
    if not isinstance(value, list):
        return None
    entries = [_entry(one, deviate) for one in value if isinstance(one, dict)]
    return tuple(entries) or None


def _entry(entry: JsonObject, deviate: Deviate) -> TokenLogprob:
    token = entry.get("token")
    if not isinstance(token, str):
        deviate("logprobs_shape", "token")
        token = ""
    listed = entry.get("top_logprobs")
    top = _in_order(
        [
            TopLogprob(
                token=str(one.get("token", "")),
                logprob=_logprob(one.get("logprob"), deviate),
                bytes=_bytes(one.get("bytes")),
            )
            for one in (listed if isinstance(listed, list) else ())
            if isinstance(one, dict)
        ],
        deviate,
    )
    logprob = _logprob(entry.get("logprob"), deviate)
    return TokenLogprob(token, logprob, _bytes(entry.get("bytes")), _rank(logprob, top), top)


def _in_order(listed: list[TopLogprob], deviate: Deviate) -> tuple[TopLogprob, ...]:
    """From the most likely on, each token once (R159)."""
    ordered = sorted(listed, key=lambda one: -one.logprob)
    distinct: dict[bytes | str, TopLogprob] = {}
    for one in ordered:
        distinct.setdefault(one.bytes or one.token, one)
    if ordered != listed:
        deviate("logprobs_order", "unsorted")
    elif len(distinct) < len(listed):
        deviate("logprobs_order", "repeated")
    return tuple(distinct.values())


def _rank(logprob: float, top: tuple[TopLogprob, ...]) -> int | None:
    """All that alternatives tell: behind 20 of them it is not among the 20 likeliest (R156)."""
    ahead = sum(one.logprob > logprob for one in top)
    return ahead + 1 if ahead >= 20 else None


def _parallel(value: JsonObject, deviate: Deviate) -> Logprobs:
    """The text completions' form: lists of equal length, maps of alternatives."""
    tokens, logprobs = value.get("tokens"), value.get("token_logprobs")
    tops = value.get("top_logprobs")
    if not isinstance(tokens, list) or not isinstance(logprobs, list):
        return None
    entries: list[TokenLogprob] = []
    for number, (token, logprob) in enumerate(zip(tokens, logprobs, strict=False)):
        text = token if isinstance(token, str) else ""
        top = tops[number] if isinstance(tops, list) and number < len(tops) else None
        alternatives = sorted(
            (
                TopLogprob(key, _logprob(one, deviate), key.encode())
                for key, one in (top.items() if isinstance(top, dict) else ())
            ),
            key=lambda one: -one.logprob,
        )
        entries.append(
            TokenLogprob(
                token=text,
                logprob=_logprob(logprob, deviate),
                bytes=text.encode(),
                top=tuple(alternatives),
            )
        )
    return tuple(entries) or None


def _logprob(value: Json, deviate: Deviate) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        if SENTINEL <= value <= 0:
            return float(value)
        if 0 < value < 1e-6:
            return 0.0
    deviate("logprob_value", str(value)[:20])
    if isinstance(value, int | float) and value > 0 and not math.isinf(value):
        return 0.0
    return SENTINEL


def _bytes(value: Json) -> bytes | None:
    if not isinstance(value, list):
        return None
    octets: list[int] = []
    for one in value:
        if not isinstance(one, int) or not 0 <= one <= 255:
            return None
        octets.append(one)
    return bytes(octets)
