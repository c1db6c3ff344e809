"""A process for tests to kill: writes a ledger, and says on stdout what is written for sure."""

import asyncio
import sys

from rejoinder.config import StoreConfig
from rejoinder.service.database import open_database
from rejoinder.service.ledger import Closing, Ledger, LedgerEntry
from rejoinder.service.pricing import FREE
from rejoinder.types import Meter


def say(*words: object) -> None:
    print(*words, flush=True)


async def request(ledger: Ledger, number: int) -> None:
    meter = Meter()
    entry = LedgerEntry(request_id=str(number), account="a", key_id="k", model="m", tier="default")
    row_id = await ledger.open(entry, meter)
    say("open", row_id)
    counts = meter.sequence()
    counts.prompt_tokens = 3
    for _ in range(number % 4):
        counts.completion_tokens += 1 + number % 7
        counted = counts.completion_tokens
        ledger.snapshot()
        await ledger.flush()
        say("count", row_id, counted)
    usage = meter.usage()
    ledger.close(row_id, Closing(status="ok", usage=usage, cost=FREE.cost(usage, "default")))
    await ledger.flush()
    say("close", row_id, usage.completion_tokens)


async def main(url: str) -> None:
    ledger = Ledger(await open_database(StoreConfig(url=url)))
    await ledger.start()
    for round_number in range(1_000):
        await asyncio.gather(*(request(ledger, round_number * 8 + i) for i in range(8)))


asyncio.run(asyncio.wait_for(main(sys.argv[1]), 60))
