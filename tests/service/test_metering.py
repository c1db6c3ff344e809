"""One number for the client, the ledger and the budget."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from decimal import Decimal

import pytest

from rejoinder.config import PricingConfig
from rejoinder.events import ContentDelta, Done, Event, Finished, Started
from rejoinder.service.metering import metered
from rejoinder.service.pricing import Prices
from rejoinder.types import Meter, Tier, Usage

PRICES = Prices.from_config(PricingConfig(input_tokens=2.0, output_tokens=10.0))
USAGE = Usage(prompt_tokens=100, completion_tokens=7)


async def run(
    meter: Meter, *, prices: Prices | None = PRICES, tier: Tier = "default", usage: Usage = USAGE
) -> list[Event]:
    async def source() -> AsyncGenerator[Event, None]:
        yield Started(model="m")
        yield ContentDelta(0, "hi")
        yield Finished(0, "stop")
        yield Done(usage)

    async with aclosing(metered(source(), prices=prices, tier=tier, meter=meter)) as events:
        return [event async for event in events]


@pytest.mark.parametrize(
    ("tier", "cost"), [("default", "0.00027"), ("priority", "0.000405"), ("flex", "0.000216")]
)
async def test_the_tier_served_is_the_tier_billed(tier: Tier, cost: str) -> None:
    events = await run(Meter(), tier=tier)
    assert events[-1] == Done(USAGE, Decimal(cost))
    assert events[:-1] == [Started(model="m"), ContentDelta(0, "hi"), Finished(0, "stop")]


async def test_no_prices_no_cost() -> None:
    assert (await run(Meter(), prices=None))[-1] == Done(USAGE)


async def test_the_meter_says_what_the_client_was_told() -> None:
    meter = Meter()
    counts = meter.sequence()
    counts.prompt_tokens, counts.completion_tokens = 100, 3
    await run(meter)
    assert meter.usage() == USAGE

    meter = Meter()
    counts = meter.sequence()
    counts.prompt_tokens, counts.completion_tokens = 100, 7
    await run(meter)
    assert meter.reported is None, "nothing to correct"
    assert meter.usage() == USAGE


async def test_zero_is_a_value() -> None:
    """C131: a provider's true zero is not replaced by what was estimated."""
    meter = Meter()
    counts = meter.sequence()
    counts.prompt_tokens, counts.completion_tokens = 90, 5
    usage = Usage(prompt_tokens=1000, completion_tokens=0)
    events = await run(meter, usage=usage)
    assert events[-1] == Done(usage, Decimal("0.002"))
    assert meter.usage() == usage


async def test_closing_closes_what_is_inside() -> None:
    closed = []

    async def source() -> AsyncGenerator[Event, None]:
        try:
            yield Started(model="m")
            yield ContentDelta(0, "hi")
        finally:
            closed.append(True)

    events = metered(source(), prices=PRICES, tier="default", meter=Meter())
    await anext(events)
    await events.aclose()
    assert closed == [True]
