"""Whether a request may start, and as what: model, tier, limits, concurrency, budget.

Everything is decided before any work; a `Permit` lives as long as the answer. This module must
not know: dialects, HTTP, engines.
"""

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Literal

from msgspec import Struct

from rejoinder.errors import (
    InvalidRequest,
    Overloaded,
    PermissionDenied,
    QuotaExceeded,
    RateLimited,
    TokensRateLimited,
)
from rejoinder.service.accounts import Account
from rejoinder.service.budgets import Budgets, Reservation
from rejoinder.service.pricing import FREE, Prices
from rejoinder.service.rates import Allowance, Rates
from rejoinder.types import ChatRequest, ServiceTierChoice, Tier, Usage

__all__ = ["Admission", "ModelTerms", "Permit", "UnsupportedTier"]

UnsupportedTier = Literal["refuse", "default"]

_TIER_OF: dict[ServiceTierChoice, Tier | None] = {
    "auto": None,
    "default": "default",
    "priority": "priority",
    "fast": "priority",
    "flex": "flex",
}
"""What a request may ask for, as a tier; None: whichever the key has. "scale" is not offered."""


_RATE_HEADERS = {
    kind: tuple(f"x-ratelimit-{what}-{kind}" for what in ("limit", "remaining", "reset"))
    for kind in ("requests", "tokens")
}


class ModelTerms(Struct, frozen=True, kw_only=True):
    """What admission knows of a model."""

    tiers: tuple[Tier, ...] = ("default", "priority", "flex")
    prices: Prices = FREE


class Permit:
    """Leave to answer one request. `settle` once, with what it really came to."""

    __slots__ = ("cost", "headers", "tier", "usage")

    def __init__(self, tier: Tier, headers: dict[str, str]) -> None:
        self.tier = tier
        self.headers = headers
        """The `x-ratelimit-*` headers of the answer (R211)."""
        self.usage = Usage()
        self.cost = Decimal(0)

    def settle(self, usage: Usage, cost: Decimal) -> None:
        """Takes effect when the permit ends: the reservation becomes the true cost."""
        self.usage = usage
        self.cost = cost


class Admission:
    """Admits requests. `models`: the terms of every model id."""

    def __init__(
        self,
        models: Mapping[str, ModelTerms],
        *,
        rates: Rates,
        budgets: Budgets,
        max_concurrent_requests: int = 200,
    ) -> None:
        self._models = models
        self._rates = rates
        self._budgets = budgets
        self._max_concurrent = max_concurrent_requests
        self._running: dict[str, int] = {}

    def admit(
        self,
        account: Account,
        model_id: str,
        request: ChatRequest,
        *,
        estimated_tokens: int,
        unsupported_tier: UnsupportedTier,
    ) -> "_Admitted":
        """A context: a permit for as long as the answer takes.

        `estimated_tokens`: prompt and answer together, at most. Raises PermissionDenied,
        InvalidRequest (tier); on entry Overloaded, QuotaExceeded, RateLimited.
        """
        if account.models and model_id not in account.models:
            raise PermissionDenied(
                f"This API key may not use the model '{model_id}'.", code="model_not_allowed"
            )
        terms = self._models.get(model_id, ModelTerms())
        tier = choose_tier(request.service_tier, account, terms, unsupported_tier)
        reserved = terms.prices.at_most(estimated_tokens, tier)
        return _Admitted(self, account, model_id, tier, estimated_tokens, reserved)

    async def enter(
        self, account: Account, model_id: str, num_tokens: int, amount: Decimal
    ) -> tuple[Reservation, Allowance]:
        """What a request takes, all of it or nothing; `leave` gives it back."""
        self._enter(model_id)
        try:
            reservation = await self._budgets.reserve(account, amount)
            if reservation is None:
                raise QuotaExceeded(
                    "You exceeded your current quota: the budget of this API key is spent."
                )
            try:
                return reservation, await self._allow(account, num_tokens)
            except BaseException:
                await self._budgets.settle(reservation, Decimal(0))
                raise
        except BaseException:
            self._leave(model_id)
            raise

    async def leave(
        self, model_id: str, reservation: Reservation, allowance: Allowance, permit: Permit
    ) -> None:
        try:
            try:
                await self._rates.correct(allowance, permit.usage.total_tokens)
            finally:
                await self._budgets.settle(reservation, permit.cost)
        finally:
            self._leave(model_id)

    async def headers(self, account: Account) -> dict[str, str]:
        """The `x-ratelimit-*` headers of an answer that was refused."""
        return rate_headers(await self._rates.peek(account))

    async def _allow(self, account: Account, num_tokens: int) -> Allowance:
        allowance = await self._rates.take(account, num_tokens)
        if allowance.refused is None:
            return allowance
        window = allowance.refused
        wait = max(1, math.ceil(window.reset_seconds))
        if window.kind == "requests":
            raise RateLimited(
                f"Rate limit reached for requests per minute (RPM): limit {window.limit}. "
                f"Please try again in {wait}s.",
                retry_after=wait,
            )
        raise TokensRateLimited(
            f"Rate limit reached for tokens per minute (TPM): limit {window.limit}, "
            f"remaining {window.remaining}, requested {num_tokens}. Please try again in {wait}s.",
            retry_after=wait,
        )

    def _enter(self, model_id: str) -> None:
        running = self._running.get(model_id, 0)
        if running >= self._max_concurrent:
            raise Overloaded(
                f"Rate limited: too many concurrent requests for the model '{model_id}'. "
                "Please try again later.",
                retry_after=1,
            )
        self._running[model_id] = running + 1

    def _leave(self, model_id: str) -> None:
        self._running[model_id] -= 1
        if not self._running[model_id]:
            del self._running[model_id]


class _Admitted:
    """One request from its admission to its end: an object, a quarter of the size of a
    generator."""

    __slots__ = ("_account", "_amount", "_gate", "_model_id", "_num_tokens", "_taken", "_tier")

    def __init__(
        self,
        gate: Admission,
        account: Account,
        model_id: str,
        tier: Tier,
        num_tokens: int,
        amount: Decimal,
    ) -> None:
        self._gate = gate
        self._account = account
        self._model_id = model_id
        self._tier = tier
        self._num_tokens = num_tokens
        self._amount = amount
        self._taken: tuple[Reservation, Allowance, Permit] | None = None

    async def __aenter__(self) -> Permit:
        reservation, allowance = await self._gate.enter(
            self._account, self._model_id, self._num_tokens, self._amount
        )
        permit = Permit(self._tier, rate_headers(allowance))
        self._taken = (reservation, allowance, permit)
        return permit

    async def __aexit__(self, *_: object) -> None:
        assert self._taken is not None
        await self._gate.leave(self._model_id, *self._taken)


def choose_tier(
    asked: ServiceTierChoice | None,
    account: Account,
    terms: ModelTerms,
    unsupported: UnsupportedTier,
) -> Tier:
    """The tier that will be served; it never changes afterwards (4.7, A5).

    A tier that the model lacks or the key may not use is a 400 in O, and served as the key's
    standard tier in D (R55). Raises InvalidRequest.
    """
    usable = [tier for tier in terms.tiers if tier in account.tiers]
    standard = _standard(usable, account)
    if asked is None or asked == "auto":
        return standard
    tier = _TIER_OF.get(asked)
    if tier is not None and tier in usable:
        return tier
    if unsupported == "default":
        return standard
    known = ", ".join(f"'{one}'" for one in sorted(usable)) or "none"
    raise InvalidRequest(
        f"Invalid service_tier argument: '{asked}' is not available for this API key and model. "
        f"Available: {known}.",
        param="service_tier",
        code="invalid_value",
    )


def _standard(usable: list[Tier], account: Account) -> Tier:
    for tier in ("default", "flex", "priority"):
        if tier in usable:
            return tier
    allowed = ", ".join(account.tiers)
    raise PermissionDenied(f"This API key may only use the tiers {allowed}, which the model lacks.")


def rate_headers(allowance: Allowance) -> dict[str, str]:
    """`x-ratelimit-{limit,remaining,reset}-{requests,tokens}`, for the limits that exist."""
    headers: dict[str, str] = {}
    for window in allowance.windows:
        limit, remaining, reset = _RATE_HEADERS[window.kind]
        headers[limit] = str(window.limit)
        headers[remaining] = str(window.remaining)
        headers[reset] = duration(window.reset_seconds)
    return headers


def duration(seconds: float) -> str:
    """A span as these headers write it: `120ms`, `1s`, `6m0s`."""
    milliseconds = max(0, math.ceil(seconds * 1000))
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    whole = math.ceil(milliseconds / 1000)
    minutes, rest = divmod(whole, 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
