"""What every HTTP exchange has in common: an id, a dialect for its errors, one log line.

It must not know: what any route does.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

from rejoinder.dialects import Dialect
from rejoinder.errors import (
    INTERNAL_MESSAGE,
    AuthenticationFailed,
    ChatError,
    EngineFailed,
    MethodNotAllowed,
    NotFound,
    PermissionDenied,
)
from rejoinder.service.accounts import Account
from rejoinder.web.requests import header
from rejoinder.web.responses import (
    Client,
    ClientGone,
    Headers,
    Scope,
    Send,
    header_text,
    send_body,
)

log = logging.getLogger("rejoinder.web")
request_log = logging.getLogger("rejoinder.request")


class Authenticate(Protocol):
    async def __call__(self, authorization: str | None, xi_api_key: str | None) -> Account: ...


class Exchange:
    """One HTTP request and the answer that is being made to it."""

    __slots__ = (
        "account",
        "dialect",
        "fields",
        "headers",
        "receive",
        "request_id",
        "scope",
        "send",
        "started",
        "status",
    )

    def __init__(
        self, scope: Scope, receive: Client, send: Send, *, request_id: str, dialect: Dialect
    ) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.request_id = request_id
        self.dialect = dialect
        self.started = time.perf_counter()
        self.account: Account | None = None
        self.status = 0
        self.headers: dict[str, str] = {"x-request-id": request_id}
        """Headers of the answer, also when it is an error."""
        self.fields: dict[str, Any] = {}
        """What the log line says beside the route, e.g. the model and the tokens."""

    def header(self, name: bytes) -> str | None:
        return header(self.scope, name)

    @property
    def elapsed(self) -> float:
        """Seconds since the request came."""
        return time.perf_counter() - self.started

    @property
    def path_parameters(self) -> dict[str, str]:
        parameters: dict[str, str] = self.scope.get("path_params", {})
        return parameters

    def head(self, more: Headers | None = None) -> dict[str, str]:
        """The headers of the answer: the ones of every answer and these (R209, R210)."""
        head = {
            "openai-processing-ms": str(round(self.elapsed * 1000)),
            "openai-version": "2020-10-01",
        }
        if self.account is not None:
            head["openai-organization"] = header_text(self.account.id)
        return {**head, **self.headers, **(more or {})}

    async def reply(
        self,
        status: int,
        body: bytes,
        headers: Headers | None = None,
        *,
        content_type: str = "application/json",
    ) -> None:
        self.status = status
        await send_body(self.send, status, body, self.head(headers), content_type=content_type)

    async def reply_json(self, value: object, *, status: int = 200) -> None:
        await self.reply(status, msgspec.json.encode(value))

    def render_error(self, error: Exception) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers of an error; an unexpected one is logged and not told (R215)."""
        if not isinstance(error, ChatError):
            log.error("request %s failed", self.request_id, exc_info=error)
            error = EngineFailed(INTERNAL_MESSAGE)
        status, body = self.dialect.encode_error(error)
        self.status = status
        self.fields["error"] = error.code or type(error).__name__
        return status, body, self.head(error_headers(error))


def error_headers(error: ChatError) -> dict[str, str]:
    """`Retry-After` (R207, A42), and what a 401 should name."""
    headers = {}
    if error.retry_after is not None:
        headers["retry-after"] = str(max(1, error.retry_after))
    if isinstance(error, AuthenticationFailed):
        headers["www-authenticate"] = "Bearer"
    return headers


Answerer = Callable[[Exchange], Awaitable[None]]


class Front:
    """Makes ASGI endpoints of functions over an Exchange."""

    def __init__(
        self,
        *,
        authenticate: Authenticate,
        new_request_id: Callable[[], str],
        on_answer: Callable[[Exchange], None],
    ) -> None:
        self._authenticate = authenticate
        self._new_request_id = new_request_id
        self._on_answer = on_answer

    async def require_account(self, exchange: Exchange) -> Account:
        """Who asks. Raises AuthenticationFailed (A34: before anything is read)."""
        account = await self._authenticate(
            exchange.header(b"authorization"), exchange.header(b"xi-api-key")
        )
        exchange.account = account
        return account

    async def require_admin(self, exchange: Exchange, refusal: str) -> None:
        """An admin asks, as everybody is where no key exists. Raises PermissionDenied."""
        account = await self.require_account(exchange)
        if not account.admin:
            raise PermissionDenied(refusal, code="admin_key_required")

    async def run(
        self, answer: Answerer, dialect: Dialect, scope: Scope, receive: Client, send: Send
    ) -> None:
        exchange = Exchange(
            scope, receive, send, request_id=self._new_request_id(), dialect=dialect
        )
        try:
            await answer(exchange)
        except ClientGone:
            exchange.status = exchange.status or 499
            exchange.fields["client"] = "gone"
        except Exception as error:
            status, body, headers = exchange.render_error(error)
            await send_body(send, status, body, headers)
        finally:
            self._log(exchange)
            self._on_answer(exchange)

    def _log(self, exchange: Exchange) -> None:
        """One JSON line a request (style, rule 17); JSON so that no value can start a line."""
        if not request_log.isEnabledFor(logging.INFO):
            return
        line = {
            "id": exchange.request_id,
            "client_id": (exchange.header(b"x-client-request-id") or "")[:512],
            "method": exchange.scope["method"],
            "path": exchange.scope["path"][:200],
            "status": exchange.status,
            "ms": round(exchange.elapsed * 1000, 1),
            "account": exchange.account.id if exchange.account else None,
            **exchange.fields,
        }
        request_log.info(msgspec.json.encode(line).decode())


async def answer_not_found(exchange: Exchange) -> None:
    method, path = exchange.scope["method"], exchange.scope["path"][:200]
    raise NotFound(f"Invalid URL ({method} {path})", code="unknown_url")


async def answer_wrong_method(exchange: Exchange) -> None:
    exchange.headers["allow"] = ", ".join(exchange.scope["allowed_methods"])
    method, path = exchange.scope["method"], exchange.scope["path"][:200]
    raise MethodNotAllowed(f"Not allowed: {method} on {path}", code="method_not_allowed")
