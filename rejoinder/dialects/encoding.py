"""Fields that chunks and bodies of both dialects share, as JSON bytes.

This module must not know: the order of events, which field goes where.
"""

from collections.abc import Iterable
from decimal import Decimal

import msgspec

from rejoinder.dialects.violation import MAX_MESSAGE, MAX_PARAM, clean
from rejoinder.errors import ChatError
from rejoinder.types import (
    Json,
    JsonObject,
    Moderation,
    ModerationFailure,
    ModerationOutcome,
    ModerationResult,
    TokenLogprob,
    ToolCall,
    TopLogprob,
)

_encode = msgspec.json.encode

SENTINEL = -9999.0
"""O: the logprob of a token that is not among the most likely (R156)."""

SENTINEL_RANK = 20


def to_json(value: Json) -> bytes:
    """Compact JSON. A lone surrogate, which no wire can carry, becomes a question mark."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return _encode(_printable(value))


def _printable(value: Json) -> Json:
    match value:
        case str():
            return value.encode("utf-8", "replace").decode()
        case dict():
            return {key: _printable(item) for key, item in value.items()}
        case list():
            return [_printable(item) for item in value]
        case _:
            return value


def number_of(amount: Decimal) -> bytes:
    """A plain JSON number, exact, without an exponent."""
    return format(amount.normalize(), "f").encode()


# ---------------------------------------------------------------- logprobs


def _finite(logprob: float, floor: float) -> float:
    """JSON has no infinities (4.1), a probability is at most 1 (R155)."""
    if logprob >= 0:
        return 0.0
    return logprob if logprob > floor else floor


def openai_logprobs(entries: Iterable[TokenLogprob], num_top: int) -> bytes:
    """Every key always; −9999.0 for a token that is not among the 20 most likely (R153, R156)."""

    def shown(token: TokenLogprob) -> float:
        if token.rank is not None and token.rank > SENTINEL_RANK:
            return SENTINEL
        return _finite(token.logprob, SENTINEL)

    return to_json(
        [
            {
                "token": token.token,
                "logprob": shown(token),
                "bytes": None if token.bytes is None else list(token.bytes),
                "top_logprobs": [
                    {
                        "token": top.token,
                        "logprob": _finite(top.logprob, SENTINEL),
                        "bytes": None if top.bytes is None else list(top.bytes),
                    }
                    for top in token.top[:num_top]
                ],
            }
            for token in entries
        ]
    )


_DEEPINFRA_FLOOR = -9998.0
"""A number that nobody can take for OpenAI's sentinel (R157)."""


def deepinfra_logprobs(entries: Iterable[TokenLogprob], num_top: int) -> bytes:
    """No null; `top_logprobs`, a documented extension, only where the request asks (A13)."""

    def entry(token: TokenLogprob | TopLogprob) -> JsonObject:
        shown: JsonObject = {
            "token": token.token,
            "logprob": _finite(token.logprob, _DEEPINFRA_FLOOR),
        }
        if token.bytes is not None:
            shown["bytes"] = list(token.bytes)
        return shown

    def entry_with_top(token: TokenLogprob) -> JsonObject:
        return {**entry(token), "top_logprobs": [entry(top) for top in token.top[:num_top]]}

    return to_json([entry_with_top(token) if num_top else entry(token) for token in entries])


# ---------------------------------------------------------------- tool calls


def function_call(name: str, arguments: str) -> bytes:
    return b'{"name":%b,"arguments":%b}' % (to_json(name), to_json(arguments))


def tool_call(call: ToolCall, *, index: int | None = None) -> bytes:
    """A call with all its fields; with `index` it is the opening of one in a stream."""
    start = b"{" if index is None else b'{"index":%d,' % index
    if call.kind == "custom":
        return b'%b"id":%b,"type":"custom","custom":{"name":%b,"input":%b}}' % (
            start,
            to_json(call.id),
            to_json(call.name),
            to_json(call.arguments),
        )
    return b'%b"id":%b,"type":"function","function":%b}' % (
        start,
        to_json(call.id),
        function_call(call.name, call.arguments),
    )


def tool_calls(calls: Iterable[ToolCall]) -> bytes:
    return b"[%b]" % b",".join(map(tool_call, calls))


# ---------------------------------------------------------------- moderation, errors


def moderation(value: Moderation) -> bytes:
    return b'{"input":%b,"output":%b}' % (_outcome(value.input), _outcome(value.output))


def _outcome(outcome: ModerationOutcome) -> bytes:
    if isinstance(outcome, ModerationFailure):
        return to_json({"type": "error", "code": outcome.code, "message": outcome.message})
    results: list[Json] = [_result(outcome.model, result) for result in outcome.results]
    return to_json({"type": "moderation_results", "model": outcome.model, "results": results})


def _result(model: str, result: ModerationResult) -> JsonObject:
    return {
        "type": "moderation_result",
        "model": model,
        "flagged": result.flagged,
        "categories": {**result.categories},
        "category_scores": {**result.category_scores},
        "category_applied_input_types": {
            category: [*kinds] for category, kinds in result.category_applied_input_types.items()
        },
    }


def error_body(error: ChatError, *, code: str | None, param: str | None) -> bytes:
    """The envelope of both dialects, all four keys (R201, A20); safe to show anybody (R215)."""
    return b'{"error":{"message":%b,"type":%b,"param":%b,"code":%b}}' % (
        to_json(clean(error.message, MAX_MESSAGE)),
        to_json(error.type),
        b"null" if param is None else to_json(clean(param, MAX_PARAM)),
        b"null" if code is None else to_json(clean(code, MAX_PARAM)),
    )
