"""Counts and cost of one answer, stamped on its last event.

The price is the one of the tier that was served (C129); the number is the ledger's (4.9).
This module must not know: dialects, accounts, the database.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec import structs

from rejoinder.events import Done, Event
from rejoinder.service.pricing import Prices
from rejoinder.types import Meter, Tier

__all__ = ["metered"]


async def metered(
    events: AsyncGenerator[Event, None], *, prices: Prices | None, tier: Tier, meter: Meter
) -> AsyncGenerator[Event, None]:
    """The same events; `Done` gets the cost of its usage when the model has prices.

    What a backend reports in `Done` is what the meter says from then on, so that the ledger, the
    budget and the client are given one number.
    """
    async with aclosing(events):
        async for event in events:
            if isinstance(event, Done):
                if event.usage != meter.usage():
                    meter.reported = event.usage
                if prices is not None:
                    cost = prices.cost(event.usage, tier)
                    event = structs.replace(event, estimated_cost=cost)
            yield event
