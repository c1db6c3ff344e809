"""Fields that chunks and bodies of both dialects share, as JSON bytes.

This module must not know: the order of events, which field goes where.
"""

from collections.abc import Iterable
from decimal import Decimal

import msgspec

from rejoinder.dialects.violation import MAX_MESSAGE, MAX_PARAM, clean
from rejoinder.errors import ChatError
from rejoinder.types import (
    Moderation,
    ModerationFailure,
    ModerationOutcome,
    TokenLogprob,
    ToolCall,
    TopLogprob,
)

encode = msgspec.json.encode

SENTINEL = -9999.0
"""O: the logprob of a token that is not among the most likely (R156)."""

SENTINEL_RANK = 20


def json_text(text: str) -> bytes:
    """A JSON string. A lone surrogate, which no wire can carry, becomes a question mark."""
    try:
        return encode(text)
    except UnicodeEncodeError:
        return encode(text.encode("utf-8", "replace").decode())


def number_of(amount: Decimal) -> bytes:
    """A plain JSON number, exact, without an exponent."""
    return format(amount.normalize(), "f").encode()


# ---------------------------------------------------------------- logprobs


def _finite(logprob: float, floor: float) -> float:
    """JSON has no infinities (4.1), a probability is at most 1 (R155)."""
    if logprob >= 0:
        return 0.0
    return logprob if logprob > floor else floor


def _token(token: str, logprob: float, raw: bytes | None) -> bytes:
    entry = b'{"token":%b,"logprob":%b' % (json_text(token), encode(logprob))
    return entry if raw is None else b'%b,"bytes":%b' % (entry, encode(list(raw)))


def _token_or_null(token: str, logprob: float, raw: bytes | None) -> bytes:
    entry = _token(token, logprob, raw)
    return entry + b',"bytes":null' if raw is None else entry


def openai_logprobs(entries: Iterable[TokenLogprob], num_top: int) -> bytes:
    """Every key always; −9999.0 for a token that is not among the 20 most likely (R153, R156)."""

    def top(alternative: TopLogprob) -> bytes:
        logprob = _finite(alternative.logprob, SENTINEL)
        return _token_or_null(alternative.token, logprob, alternative.bytes) + b"}"

    def entry(token: TokenLogprob) -> bytes:
        hidden = token.rank is not None and token.rank > SENTINEL_RANK
        logprob = SENTINEL if hidden else _finite(token.logprob, SENTINEL)
        return b'%b,"top_logprobs":[%b]}' % (
            _token_or_null(token.token, logprob, token.bytes),
            b",".join(map(top, token.top[:num_top])),
        )

    return b"[%b]" % b",".join(map(entry, entries))


_DEEPINFRA_FLOOR = -9998.0
"""A number that nobody can take for OpenAI's sentinel (R157)."""


def deepinfra_logprobs(entries: Iterable[TokenLogprob], num_top: int) -> bytes:
    """No null; `top_logprobs`, a documented extension, only where the request asks (A13)."""

    def top(alternative: TopLogprob) -> bytes:
        logprob = _finite(alternative.logprob, _DEEPINFRA_FLOOR)
        return _token(alternative.token, logprob, alternative.bytes) + b"}"

    def entry(token: TokenLogprob) -> bytes:
        logprob = _finite(token.logprob, _DEEPINFRA_FLOOR)
        shown = _token(token.token, logprob, token.bytes)
        if num_top:
            shown += b',"top_logprobs":[%b]' % b",".join(map(top, token.top[:num_top]))
        return shown + b"}"

    return b"[%b]" % b",".join(map(entry, entries))


# ---------------------------------------------------------------- tool calls


def function_call(name: str, arguments: str) -> bytes:
    return b'{"name":%b,"arguments":%b}' % (json_text(name), json_text(arguments))


def tool_call(call: ToolCall, *, index: int | None = None) -> bytes:
    """A call with all its fields; with `index` it is the opening of one in a stream."""
    start = b"{" if index is None else b'{"index":%d,' % index
    if call.kind == "custom":
        return b'%b"id":%b,"type":"custom","custom":{"name":%b,"input":%b}}' % (
            start,
            json_text(call.id),
            json_text(call.name),
            json_text(call.arguments),
        )
    return b'%b"id":%b,"type":"function","function":%b}' % (
        start,
        json_text(call.id),
        function_call(call.name, call.arguments),
    )


def tool_calls(calls: Iterable[ToolCall]) -> bytes:
    return b"[%b]" % b",".join(map(tool_call, calls))


# ---------------------------------------------------------------- moderation, errors


def moderation(value: Moderation) -> bytes:
    return b'{"input":%b,"output":%b}' % (_outcome(value.input), _outcome(value.output))


def _outcome(outcome: ModerationOutcome) -> bytes:
    if isinstance(outcome, ModerationFailure):
        return encode({"type": "error", "code": outcome.code, "message": outcome.message})
    results = [
        {
            "type": "moderation_result",
            "model": outcome.model,
            "flagged": result.flagged,
            "categories": result.categories,
            "category_scores": result.category_scores,
            "category_applied_input_types": result.category_applied_input_types,
        }
        for result in outcome.results
    ]
    return encode({"type": "moderation_results", "model": outcome.model, "results": results})


def error_body(error: ChatError, code: str | None) -> bytes:
    """The envelope of both dialects, all four keys (R201, A20); safe to show anybody (R215)."""
    param = error.param
    return b'{"error":{"message":%b,"type":%b,"param":%b,"code":%b}}' % (
        json_text(clean(error.message, MAX_MESSAGE)),
        json_text(error.type),
        b"null" if param is None else json_text(clean(param, MAX_PARAM)),
        b"null" if code is None else json_text(clean(code, MAX_PARAM)),
    )
