"""What a provider says went wrong → our ChatError, whatever shape it says it in.

A client of ours is not told about our own account with the provider, its address or our key (R215).
This module must not know: HTTP clients, retries, sockets.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

import msgspec
from msgspec import Struct

from rejoinder.errors import (
    ChatError,
    ContextLengthExceeded,
    InvalidRequest,
    Overloaded,
    ProviderFailed,
    ProviderTimeout,
    RequestTooLarge,
    Unavailable,
)
from rejoinder.types import Json, JsonObject

__all__ = [
    "RETRIED",
    "ProviderError",
    "error_in",
    "may_go_better",
    "may_go_better_later",
    "read_error_body",
    "sanitised",
    "to_chat_error",
]

MAX_MESSAGE_CHARS = 400


class ProviderError(Struct, frozen=True):
    """An error as a provider told it; empty strings where it did not say."""

    status: int
    message: str = ""
    type: str = ""
    code: str = ""
    param: str | None = None


_STATUS_OF_WORD: Mapping[str, int] = MappingProxyType(
    {
        "invalid_request_error": 400,
        "invalid_request": 400,
        "invalid_argument": 400,
        "bad_request": 400,
        "badrequesterror": 400,
        "validation_error": 400,
        "context_length_exceeded": 400,
        "string_above_max_length": 400,
        "authentication_error": 401,
        "invalid_api_key": 401,
        "unauthenticated": 401,
        "unauthorized": 401,
        "insufficient_balance": 402,
        "permission_error": 403,
        "permission_denied": 403,
        "not_found_error": 404,
        "not_found": 404,
        "model_not_found": 404,
        "request_too_large": 413,
        "rate_limit_error": 429,
        "rate_limit_exceeded": 429,
        "rate_limited": 429,
        "too_many_requests": 429,
        "resource_exhausted": 429,
        "insufficient_quota": 429,
        "tokens": 429,
        "requests": 429,
        "overloaded_error": 503,
        "server_is_overloaded": 503,
        "service_unavailable_error": 503,
        "unavailable": 503,
        "timeout_error": 504,
        "deadline_exceeded": 504,
        "server_error": 500,
        "internal_error": 500,
        "internal_server_error": 500,
        "api_error": 500,
    }
)
"""Types and codes of errors, in lower case, and the HTTP status that they stand for."""

_CONTEXT_LENGTH = re.compile(
    r"context[ _-]?(length|window|size)|maximum (prompt|input|context) length"
    r"|prompt is too long|input is too long|too many (input )?tokens"
    r"|longer than the (model'?s )?(maximum )?context|exceeds? .{0,40}context",
    re.IGNORECASE,
)

_OUT_OF_QUOTA = frozenset({"insufficient_quota", "credit_balance_exhausted", "billing_hard_limit"})

_SECRETS = re.compile(
    r"https?://\S+"  # addresses
    r"|\b(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?\b|\blocalhost:\d+\b"
    r"|\b(?:sk|pk|gsk|key|xai|hf|jwt)[-_:][A-Za-z0-9*._-]{4,}"  # keys by their usual beginnings
    r"|\bBearer\s+\S+"
    r"|\borg-[A-Za-z0-9]{6,}\b|\bproj_[A-Za-z0-9]{6,}\b"
    r"|(?<![\w.])/(?:[\w.@-]+/)+[\w.@-]+"  # paths
    r"|\b[A-Za-z0-9_-]{40,}\b",  # tokens
)


def sanitised(text: str, secrets: tuple[str, ...] = ()) -> str:
    """One line of bounded length without addresses, paths or anything that looks like a key."""
    text = text[: 8 * MAX_MESSAGE_CHARS]
    for secret in secrets:
        if secret:
            text = text.replace(secret, "[…]")
    text = _SECRETS.sub("[…]", text)
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= MAX_MESSAGE_CHARS else text[: MAX_MESSAGE_CHARS - 1] + "…"


def read_error_body(status: int, body: bytes) -> ProviderError:
    """The error in the body of an answer with this HTTP status, JSON or not."""
    try:
        parsed: Json = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        parsed = None
    if isinstance(parsed, list) and parsed:
        parsed = parsed[0]
    if isinstance(parsed, dict):
        found = error_in(parsed) or _flat(parsed)
        if found is not None:
            return msgspec.structs.replace(found, status=status)
    if parsed is None and body[:200].lstrip()[:1] not in (b"<", b""):
        return ProviderError(status, body[:2000].decode("utf-8", "replace"))
    return ProviderError(status)


def error_in(payload: JsonObject) -> ProviderError | None:
    """The error that a frame or body with status 200 reports, None when it reports none."""
    get = payload.get
    error = get("error")
    if get("choices") and not (error or get("error_message") or get("base_resp")):
        return None
    if isinstance(error, str) and error:
        outer = _flat(payload)
        return outer if outer is not None and outer.message else _with_status(payload, error)
    if isinstance(error, dict) and error:
        return _from_object(error, payload)
    if error is True:
        return _flat(payload) or ProviderError(500)
    errors = payload.get("errors")
    if isinstance(errors, list) and errors and not payload.get("choices"):
        first = errors[0]
        return _from_object(first, payload) if isinstance(first, dict) else _flat(payload)
    if payload.get("object") == "error" or payload.get("type") == "error":
        return _flat(payload) or ProviderError(500)
    if payload.get("error_message") or (payload.get("detail") and "choices" not in payload):
        return _flat(payload)
    base = payload.get("base_resp")
    if isinstance(base, dict) and base.get("status_code") not in (0, None):
        return ProviderError(500, _text(base.get("status_msg")))
    if not payload.get("choices") and _http_status(payload.get("status_code")) >= 400:
        return _flat(payload)
    return None


def to_chat_error(
    error: ProviderError, *, retry_after: int | None = None, secrets: tuple[str, ...] = ()
) -> ChatError:
    """Whose fault it is in our terms: the client's, the provider's load, or the provider."""
    message = sanitised(error.message, secrets)
    words = {error.code.lower(), error.type.lower()}
    match error.status:
        case 400 | 422 if "context_length_exceeded" in words or _CONTEXT_LENGTH.search(message):
            return ContextLengthExceeded(
                message or "The prompt is longer than the model's context.", param="messages"
            )
        case 400 | 422:
            return InvalidRequest(
                message or "The provider of this model rejected the request.",
                param=_param(error.param, secrets),
                code=_code(error.code, secrets),
            )
        case 413:
            return RequestTooLarge(message or "The request is too large for the provider.")
        case 401 | 402 | 403 | 407:
            return ProviderFailed(
                "The provider of this model did not accept this server's account.",
                code="provider_account",
            )
        case 300 | 301 | 302 | 303 | 304 | 307 | 308:
            return ProviderFailed(
                "The provider of this model has moved.", code="provider_not_found"
            )
        case 404 | 405:
            return ProviderFailed(
                "The provider of this model does not serve it.", code="provider_not_found"
            )
        case 408 | 504:
            return ProviderTimeout(message or "The provider of this model timed out.")
        case 429 if words & _OUT_OF_QUOTA:
            return Overloaded(
                "The provider of this model has no quota left for this server.",
                code="provider_quota",
            )
        case 429:
            return Overloaded(
                message or "The provider of this model is busy.", retry_after=retry_after
            )
        case 503 | 529:
            return Unavailable(
                message or "The provider of this model is not available.", retry_after=retry_after
            )
        case _:
            return ProviderFailed(message or "The provider of this model failed.")


_NOT_RETRIED_CODES = frozenset({"provider_account", "provider_not_found", "provider_quota"})

RETRIED: Mapping[type[ChatError], bool] = MappingProxyType(
    {
        ProviderFailed: True,
        ProviderTimeout: True,
        Overloaded: True,
        Unavailable: True,
        InvalidRequest: False,
        ContextLengthExceeded: False,
        RequestTooLarge: False,
    }
)
"""Whether a request may go better elsewhere or later, for everything `to_chat_error` makes."""


def may_go_better(error: ChatError) -> bool:
    """Whether another provider may do what this one could not."""
    return RETRIED.get(type(error), False)


def may_go_better_later(error: ChatError) -> bool:
    """Whether the same provider may do it in a moment: not if our account is at fault."""
    return may_go_better(error) and error.code not in _NOT_RETRIED_CODES


def _from_object(error: JsonObject, payload: JsonObject) -> ProviderError:
    nested = error.get("error")
    if isinstance(nested, dict) and not error.get("message"):
        return _from_object(nested, payload)
    metadata = error.get("metadata")
    message = _text(error.get("message") or error.get("msg") or error.get("detail"))
    if isinstance(metadata, dict) and isinstance(metadata.get("raw"), str):
        message = f"{message}: {metadata['raw']}" if message else str(metadata["raw"])
    param = error.get("param")
    found = ProviderError(
        status=0,
        message=message,
        type=_text(error.get("type")),
        code=_text(error.get("code")),
        param=param if isinstance(param, str) else None,
    )
    status = (
        _http_status(error.get("code"))
        or _http_status(error.get("status_code"))
        or _http_status(error.get("status"))
        or _http_status(payload.get("status_code"))
        or _http_status(payload.get("code"))
        or _status_of_words(found.code, found.type, _text(error.get("status")))
    )
    return msgspec.structs.replace(found, status=status)


def _flat(payload: JsonObject) -> ProviderError | None:
    """An error whose members lie in the payload itself."""
    for key in ("error_message", "message", "detail", "msg", "error_description", "title"):
        if payload.get(key):
            return _with_status(payload, _detail(payload[key]))
    if _http_status(payload.get("status_code")) or payload.get("object") == "error":
        return _with_status(payload, "")
    return None


def _with_status(payload: JsonObject, message: str) -> ProviderError:
    kind = _text(payload.get("error_type") or payload.get("type"))
    code = _text(payload.get("error_code") or payload.get("code"))
    param = payload.get("param")
    status = (
        _http_status(payload.get("status_code"))
        or _http_status(payload.get("code"))
        or _http_status(payload.get("status"))
        or _status_of_words(code, kind)
    )
    return ProviderError(status, message, kind, code, param if isinstance(param, str) else None)


def _detail(value: Json) -> str:
    """FastAPI's list of violations, or a text."""
    if isinstance(value, list):
        return "; ".join(
            _text(item.get("msg")) if isinstance(item, dict) else _text(item) for item in value[:4]
        )
    if isinstance(value, dict):
        return _text(value.get("message") or value.get("msg"))
    return _text(value)


def _http_status(value: Json) -> int:
    """An HTTP error status, as a number or its digits; 0 for anything else."""
    if isinstance(value, str) and value.isdecimal() and len(value) == 3:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 400 <= value <= 599:
        return value
    return 0


def _status_of_words(*words: str) -> int:
    for word in words:
        status = _STATUS_OF_WORD.get(word.lower())
        if status is not None:
            return status
    return 500


def _text(value: Json) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return ""


def _param(param: str | None, secrets: tuple[str, ...]) -> str | None:
    if param is None or len(param) > 120:
        return None
    return sanitised(param, secrets) or None


def _code(code: str, secrets: tuple[str, ...]) -> str | None:
    """A code is a word; a status number or a sentence is not one."""
    plain = re.fullmatch(r"[a-z][a-z0-9_.-]{0,63}", code)
    return sanitised(code, secrets) if plain else None
