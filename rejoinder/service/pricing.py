"""What tokens cost: a price table and the one formula that turns counts into dollars (4.9).

Exact decimal arithmetic; the same number goes to the client, the ledger and the budget.
This module must not know: accounts, requests, who asks.
"""

import functools
import hashlib
from decimal import Context, Decimal
from typing import assert_never

import msgspec
from msgspec import Struct

from rejoinder.config import PricingConfig
from rejoinder.types import Tier, Usage

__all__ = ["FREE", "Prices"]

_EXACT = Context(prec=120)
"""Wide enough that no product of a price as written and a count of tokens is ever rounded. Its
methods are called: to enter it for each request would cost more than the sums."""


_ONE = Decimal(1)


class Prices(Struct, frozen=True, kw_only=True):
    """US dollars per million tokens, and what a tier multiplies the sum by."""

    input_tokens: Decimal = Decimal(0)
    output_tokens: Decimal = Decimal(0)
    cache_read_tokens: Decimal = Decimal(0)
    cache_write_tokens: Decimal = Decimal(0)
    priority_factor: Decimal = Decimal("1.5")
    flex_factor: Decimal = Decimal("0.8")

    @classmethod
    def from_config(cls, config: PricingConfig) -> "Prices":
        """A price that is not configured for cached or written tokens is the input price."""
        read, write = config.cache_read_tokens, config.cache_write_tokens
        return cls(
            input_tokens=_exact(config.input_tokens),
            output_tokens=_exact(config.output_tokens),
            cache_read_tokens=_exact(config.input_tokens if read is None else read),
            cache_write_tokens=_exact(config.input_tokens if write is None else write),
            priority_factor=_exact(config.priority_factor),
            flex_factor=_exact(config.flex_factor),
        )

    @property
    def version(self) -> str:
        """Changes iff a price changes; the ledger keeps it with every row."""
        return _version(self)

    def factor(self, tier: Tier) -> Decimal:
        match tier:
            case "default":
                return _ONE
            case "priority":
                return self.priority_factor
            case "flex":
                return self.flex_factor
            case _:
                assert_never(tier)

    def cost(self, usage: Usage, tier: Tier) -> Decimal:
        """US dollars, exact. Cached and written tokens are part of the prompt tokens (R176): each
        prompt token is paid once, at one of the three prices."""
        cached = min(usage.cached_tokens, usage.prompt_tokens)
        written = min(usage.cache_write_tokens, usage.prompt_tokens - cached)
        per_million = Decimal(0)
        for count, price in (
            (usage.prompt_tokens - cached - written, self.input_tokens),
            (cached, self.cache_read_tokens),
            (written, self.cache_write_tokens),
            (usage.completion_tokens, self.output_tokens),
        ):
            if count:
                per_million = _EXACT.fma(count, price, per_million)
        return _EXACT.scaleb(_EXACT.multiply(per_million, self.factor(tier)), -6)

    def at_most(self, num_tokens: int, tier: Tier) -> Decimal:
        """The most that so many tokens can cost, whatever kind they turn out to be."""
        dearest = max(
            self.input_tokens, self.output_tokens, self.cache_read_tokens, self.cache_write_tokens
        )
        per_million = _EXACT.multiply(num_tokens, dearest)
        return _EXACT.scaleb(_EXACT.multiply(per_million, self.factor(tier)), -6)


FREE = Prices()
"""The price table of a model without prices."""


@functools.lru_cache(maxsize=256)
def _version(prices: Prices) -> str:
    table = [str(value.normalize()) for value in msgspec.structs.astuple(prices)]
    return hashlib.sha256(msgspec.json.encode(table)).hexdigest()[:12]


def _exact(price: float) -> Decimal:
    """The number as it is written in the configuration, not its binary neighbour."""
    return Decimal(repr(price))
