"""Every expected failure: one family of exceptions, one class for each party at fault.

A `ChatError` is rendered at two edges only: before the first event as an HTTP status, after it as
an error frame. Which status a dialect gives a class is the dialect's table (contract 1.2, 3.11).
"""

from typing import ClassVar


class ChatError(Exception):
    """A failure that a client may be told about. `param`: the request field at fault.

    `retry_after`: whole seconds after which the same request may work (A42).
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    default_code: ClassVar[str | None] = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code if code is not None else self.default_code
        self.retry_after = retry_after


class InvalidRequest(ChatError):
    """The request is well formed but cannot be served; 400 in both dialects."""

    status = 400
    type = "invalid_request_error"


class InvalidParameter(InvalidRequest):
    """The body violates the dialect's schema; 400 in O, 422 in D (A20, A21)."""


class ContextLengthExceeded(InvalidRequest):
    """The prompt is longer than the model's context (R60)."""

    default_code = "context_length_exceeded"


class AuthenticationFailed(ChatError):
    """No key, or one that is not known (R203, R204)."""

    status = 401
    type = "invalid_request_error"
    default_code = "invalid_api_key"


class PermissionDenied(ChatError):
    """A known key that may not do this."""

    status = 403
    type = "invalid_request_error"


class NotFound(ChatError):
    """No such model, stored completion or route."""

    status = 404
    type = "invalid_request_error"


class MethodNotAllowed(ChatError):
    status = 405
    type = "invalid_request_error"


class RequestTooLarge(ChatError):
    """The decoded body is larger than `max_body_bytes`."""

    status = 413
    type = "invalid_request_error"
    default_code = "request_too_large"


class QuotaExceeded(ChatError):
    """The account's budget is spent: 429 `insufficient_quota` in O (R206), 402 in D (R204)."""

    status = 429
    type = "insufficient_quota"
    default_code = "insufficient_quota"


class RateLimited(ChatError):
    """Too many requests or tokens a minute (R205). `kind` is the error's type in O."""

    status = 429
    type = "requests"
    default_code = "rate_limit_exceeded"


class TokensRateLimited(RateLimited):
    type = "tokens"


class Overloaded(ChatError):
    """No capacity now; the same request may work later (R216–R218)."""

    status = 429
    type = "rate_limit_error"
    default_code = "server_is_overloaded"


class Unavailable(ChatError):
    """The service is starting, draining or has lost its engine."""

    status = 503
    type = "service_unavailable_error"


class EngineFailed(ChatError):
    """The engine broke while it worked on this request."""


class ProviderFailed(ChatError):
    """A provider or replica answered with an error, with nonsense, or ended without finishing."""

    status = 502


class ProviderTimeout(ProviderFailed):
    """A provider or replica stayed silent for longer than its time-out."""

    status = 504


INTERNAL_MESSAGE = "The server had an error while processing your request."
"""What a client is told of an unexpected exception; the log has the rest (R215)."""
