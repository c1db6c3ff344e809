"""Counts and cost of one answer, stamped on its last event.

The price is the one of the tier that was served (C129); the number is the ledger's (4.9).
This module must not know: dialects, accounts, the database.
"""

from msgspec import structs

from rejoinder.events import Done
from rejoinder.service.pricing import Prices
from rejoinder.types import Meter, Tier

__all__ = ["metered"]


def metered(done: Done, *, prices: Prices | None, tier: Tier, meter: Meter) -> Done:
    """The end of an answer with the cost of its usage, when the model has prices.

    What a backend reports in `Done` is what the meter says from then on, so that the ledger, the
    budget and the client are given one number.
    """
    if done.usage != meter.usage():
        meter.reported = done.usage
    if prices is None:
        return done
    return structs.replace(done, estimated_cost=prices.cost(done.usage, tier))
