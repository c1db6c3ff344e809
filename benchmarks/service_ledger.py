"""Is the ledger ever in the way? Rows a minute, lag of the event loop, CPU a request.

    python benchmarks/service_ledger.py [--url sqlite:///FILE] [--rows-per-minute 50000]

Three questions: how many rows a minute it can write at most; whether a steady load leaves the
event loop free (the lag of a timer, p50 / p99 / worst, against the same load without a ledger);
what keys, limits, budget and ledger cost together, in CPU time a request.
"""

import argparse
import asyncio
import hashlib
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from rejoinder.config import KeyConfig, PricingConfig, StoreConfig
from rejoinder.service.accounts import Accounts
from rejoinder.service.admission import Admission, ModelTerms
from rejoinder.service.budgets import Budgets
from rejoinder.service.database import open_database
from rejoinder.service.ledger import Closing, Ledger, LedgerEntry
from rejoinder.service.pricing import Prices
from rejoinder.service.rates import Rates
from rejoinder.types import ChatRequest, Meter, Usage, UserMessage

PRICES = Prices.from_config(PricingConfig(input_tokens=0.02, output_tokens=0.06))
USAGE = Usage(prompt_tokens=100, completion_tokens=50)
REQUEST = ChatRequest(model="m", messages=(UserMessage("hi"),))
KEY = "sk-bench"


async def write_row(ledger: Ledger) -> None:
    entry = LedgerEntry(
        request_id="r", account="team", key_id="k", model="m", tier="default", prices=PRICES
    )
    row_id = await ledger.open(entry, Meter())
    cost = PRICES.cost(USAGE, "default")
    ledger.close(row_id, Closing(status="ok", usage=USAGE, cost=cost, finish="stop"))


async def at_most(ledger: Ledger, num_rows: int, at_once: int) -> float:
    """Rows a minute with so many requests at a time."""
    left = num_rows

    async def client() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await write_row(ledger)

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(at_once)))
    await ledger.flush()
    return num_rows / (time.perf_counter() - started) * 60


async def lag(
    seconds: float, work: Callable[[], Awaitable[None]] | None, rate: float
) -> list[float]:
    """How late a timer of 1 ms is, in seconds, while `work` is started `rate` times a second."""
    lags: list[float] = []
    tasks: set[asyncio.Task[None]] = set()
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds

    async def load() -> None:
        begun = loop.time()
        number = 0
        while (now := loop.time()) < end:
            while work is not None and number < (now - begun) * rate:
                number += 1
                task = asyncio.ensure_future(work())
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            await asyncio.sleep(0.005)

    loading = asyncio.create_task(load())
    while loop.time() < end:
        due = loop.time() + 0.001
        await asyncio.sleep(0.001)
        lags.append(max(0.0, loop.time() - due))
    await loading
    await asyncio.gather(*tasks)
    return lags


def shown(lags: list[float]) -> str:
    cuts = statistics.quantiles(lags, n=1000)
    p50, p99, worst = cuts[499] * 1e3, cuts[989] * 1e3, max(lags) * 1e3
    return f"p50 {p50:.2f} ms, p99 {p99:.2f} ms, worst {worst:.1f} ms"


async def cpu_a_request(ledger: Ledger, num_requests: int, at_once: int) -> float:
    """Microseconds of CPU, all threads, for one request through everything around its stream."""
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    key = KeyConfig(
        key_sha256=digest,
        account="team",
        requests_per_minute=10**9,
        tokens_per_minute=10**12,
        budget_usd=1e9,
    )
    accounts = Accounts([key])
    admission = Admission(
        {"m": ModelTerms(prices=PRICES)}, rates=Rates(), budgets=Budgets(ledger.spent_since)
    )

    async def request() -> None:
        account = await accounts.authenticate(f"Bearer {KEY}", None)
        async with admission.admit(
            account, "m", REQUEST, estimated_tokens=1000, unsupported_tier="refuse"
        ) as permit:
            entry = LedgerEntry(
                request_id="r",
                account=account.id,
                key_id=account.key_id,
                model="m",
                tier=permit.tier,
                prices=PRICES,
            )
            row_id = await ledger.open(entry, Meter())
            cost = PRICES.cost(USAGE, permit.tier)
            permit.settle(USAGE, cost)
            ledger.close(row_id, Closing(status="ok", usage=USAGE, cost=cost, finish="stop"))

    await request()
    started = time.process_time()
    for _ in range(num_requests // at_once):
        await asyncio.gather(*(request() for _ in range(at_once)))
    await ledger.flush()
    return (time.process_time() - started) / num_requests * 1e6


async def main(url: str, rows_per_minute: int, seconds: float) -> None:
    database = await open_database(StoreConfig(url=url))
    ledger = Ledger(database)
    await ledger.start()
    print(f"ledger in {database.url}")
    for at_once in (1, 16, 128):
        rate = await at_most(ledger, 200 * at_once if at_once < 128 else 20_000, at_once)
        print(f"  {at_once:4} at once: at most {rate:9,.0f} rows a minute")
    print(f"  timer lag, idle:                 {shown(await lag(seconds, None, 0))}")
    lags = await lag(seconds, lambda: write_row(ledger), rows_per_minute / 60)
    print(f"  timer lag, {rows_per_minute:,} rows a minute: {shown(lags)}")
    for at_once in (1, 16, 64):
        cost = await cpu_a_request(ledger, 4096, at_once)
        print(
            f"  {at_once:4} at once: {cost:6.0f} µs of CPU a request: key, limits, budget, ledger"
        )
    await ledger.stop()
    await database.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--url", default="")
    parser.add_argument("--rows-per-minute", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=10)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        database_url = given.url or f"sqlite:///{Path(folder)}/bench.db"
        asyncio.run(main(database_url, given.rows_per_minute, given.seconds))
