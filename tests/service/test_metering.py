"""One number for the client, the ledger and the budget."""

from decimal import Decimal

import pytest

from rejoinder.config import PricingConfig
from rejoinder.events import Done
from rejoinder.service.metering import metered
from rejoinder.service.pricing import Prices
from rejoinder.types import Meter, Tier, Usage

PRICES = Prices.from_config(PricingConfig(input_tokens=2.0, output_tokens=10.0))
USAGE = Usage(prompt_tokens=100, completion_tokens=7)


def end(
    meter: Meter, *, prices: Prices | None = PRICES, tier: Tier = "default", usage: Usage = USAGE
) -> Done:
    return metered(Done(usage), prices=prices, tier=tier, meter=meter)


@pytest.mark.parametrize(
    ("tier", "cost"), [("default", "0.00027"), ("priority", "0.000405"), ("flex", "0.000216")]
)
def test_the_tier_served_is_the_tier_billed(tier: Tier, cost: str) -> None:
    assert end(Meter(), tier=tier) == Done(USAGE, Decimal(cost))


def test_no_prices_no_cost() -> None:
    assert end(Meter(), prices=None) == Done(USAGE)


def test_the_meter_says_what_the_client_was_told() -> None:
    meter = Meter()
    counts = meter.sequence()
    counts.prompt_tokens, counts.completion_tokens = 100, 3
    end(meter)
    assert meter.usage() == USAGE

    meter = Meter()
    counts = meter.sequence()
    counts.prompt_tokens, counts.completion_tokens = 100, 7
    end(meter)
    assert meter.reported is None, "nothing to correct"
    assert meter.usage() == USAGE


def test_zero_is_a_value() -> None:
    """C131: a provider's true zero is not replaced by what was estimated."""
    meter = Meter()
    counts = meter.sequence()
    counts.prompt_tokens, counts.completion_tokens = 90, 5
    usage = Usage(prompt_tokens=1000, completion_tokens=0)
    assert end(meter, usage=usage) == Done(usage, Decimal("0.002"))
    assert meter.usage() == usage
