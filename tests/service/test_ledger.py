"""One row a request, closed exactly once, right to the token, whatever happens to the request."""

import asyncio
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from decimal import Decimal
from pathlib import Path

import pytest
import sqlalchemy as sa

from rejoinder.backends.models import ModelInfo, Models, ServedModel
from rejoinder.config import PricingConfig, StoreConfig
from rejoinder.errors import ProviderFailed, Unavailable
from rejoinder.events import ContentDelta, Done, Event, Finished, Started
from rejoinder.service import database as db
from rejoinder.service.accounts import Account
from rejoinder.service.admission import Admission, ModelTerms
from rejoinder.service.budgets import Budgets
from rejoinder.service.chat import ChatService
from rejoinder.service.database import Database, open_database
from rejoinder.service.ledger import Closing, Ledger, LedgerEntry
from rejoinder.service.pricing import Prices
from rejoinder.service.rates import Rates
from rejoinder.types import (
    AnswerOptions,
    ChatRequest,
    Counts,
    DecodedRequest,
    Meter,
    Usage,
    UserMessage,
)

PRICES = Prices.from_config(
    PricingConfig(input_tokens=0.02, output_tokens=0.06, cache_read_tokens=0.005)
)
NO_TOKENS = Usage()


def entry(account: str = "team", **fields: object) -> LedgerEntry:
    return LedgerEntry(
        request_id="req",
        account=account,
        key_id=f"key-{account}",
        model="m",
        tier="default",
        prices=PRICES,
        **fields,  # type: ignore[arg-type]
    )


def closing(usage: Usage, **fields: object) -> Closing:
    cost = PRICES.cost(usage, "default")
    return Closing(**{"status": "ok", "usage": usage, "cost": cost, "finish": "stop", **fields})  # type: ignore[arg-type]


async def rows(database: Database) -> list[sa.Row[tuple[object, ...]]]:
    async with database.reading() as connection:
        query = sa.select(db.ledger).order_by(db.ledger.c.opened_at, db.ledger.c.id)
        return list((await connection.execute(query)).all())


async def kill(ledger: Ledger, database: Database) -> None:
    """What kill −9 leaves: no task runs on, nothing pending is written, the process is gone."""
    for task in ledger._tasks:
        task.cancel()
    await asyncio.gather(*ledger._tasks, return_exceptions=True)
    async with database.writing() as connection:
        gone = sa.update(db.instances).where(db.instances.c.id == ledger._instance)
        await connection.execute(gone.values(process_started="0"))


# ---------------------------------------------------------------- one row


async def test_a_row_is_there_before_the_work_and_full_after_it(database: Database) -> None:
    ledger = Ledger(database)
    await ledger.start()
    meter = Meter()
    row_id = await ledger.open(entry(), meter)
    (row,) = await rows(database)
    assert (row.id, row.status, row.prompt_tokens, row.cost_pico) == (row_id, "open", 0, 0)
    assert row.price_version == PRICES.version
    usage = Usage(
        prompt_tokens=100,
        cached_tokens=40,
        cache_write_tokens=10,
        completion_tokens=30,
        reasoning_tokens=5,
        accepted_prediction_tokens=3,
        rejected_prediction_tokens=2,
        estimated=True,
    )
    ledger.close(
        row_id,
        closing(usage, finish="stop,length", first_token_seconds=0.25, total_seconds=1.5),
    )
    await ledger.flush()
    (row,) = await rows(database)
    assert (row.status, row.finish, row.error_code, row.estimated) == (
        "ok",
        "stop,length",
        "",
        True,
    )
    assert (row.prompt_tokens, row.cached_tokens, row.cache_write_tokens) == (100, 40, 10)
    assert (row.completion_tokens, row.reasoning_tokens) == (30, 5)
    assert (row.accepted_prediction_tokens, row.rejected_prediction_tokens) == (3, 2)
    assert (row.first_token_seconds, row.total_seconds) == (0.25, 1.5)
    assert Decimal(row.cost_pico).scaleb(-12) == PRICES.cost(usage, "default")
    assert row.closed_at >= row.opened_at
    await ledger.stop()


async def test_a_closing_goes_with_the_next_opening_or_soon_by_itself(database: Database) -> None:
    ledger = Ledger(database)
    await ledger.start()
    first = await ledger.open(entry(), Meter())
    ledger.close(first, closing(NO_TOKENS))
    second = await ledger.open(entry(), Meter())
    assert {row.id: row.status for row in await rows(database)} == {first: "ok", second: "open"}
    ledger.close(second, closing(NO_TOKENS))
    async with asyncio.timeout(5):
        while {row.status for row in await rows(database)} != {"ok"}:
            await asyncio.sleep(0.01)
    await ledger.stop()


async def test_an_absurd_usage_fills_its_columns_and_the_next_row_is_written(
    database: Database,
) -> None:
    ledger = Ledger(database)
    await ledger.start()
    first = await ledger.open(entry(), Meter())
    ledger.close(first, closing(Usage(prompt_tokens=10**30, completion_tokens=2**63)))
    second = await ledger.open(entry(), Meter())
    ledger.close(second, closing(NO_TOKENS))
    async with asyncio.timeout(10):
        await ledger.flush()
    absurd, plain = sorted(await rows(database), key=lambda row: row.id != first)
    most = 2**63 - 1
    assert (absurd.status, absurd.prompt_tokens, absurd.cost_pico) == ("ok", most, most)
    assert (plain.status, plain.cost_pico) == ("ok", 0)
    await ledger.stop()


async def test_the_first_closing_counts(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger(database)
    await ledger.start()
    row_id = await ledger.open(entry(), Meter())
    ledger.close(row_id, closing(Usage(completion_tokens=7)))
    ledger.close(row_id, closing(Usage(completion_tokens=99), status="error"))
    ledger.close("no such row", closing(NO_TOKENS))
    await ledger.flush()
    (row,) = await rows(database)
    assert (row.status, row.completion_tokens) == ("ok", 7)
    assert "closed twice" in caplog.text
    await ledger.stop()


async def test_names_that_no_database_would_take(database: Database) -> None:
    ledger = Ledger(database)
    await ledger.start()
    hostile = "a\x00b\ud800'; DROP TABLE ledger; --" + "x" * 5000
    row_id = await ledger.open(
        LedgerEntry(request_id=hostile, account=hostile, key_id="k", model=hostile, tier="default"),
        Meter(),
    )
    ledger.close(row_id, closing(NO_TOKENS, finish=hostile, error_code=hostile))
    await ledger.flush()
    (row,) = await rows(database)
    assert row.status == "ok"
    assert row.model.startswith("ab?'; DROP")
    assert len(row.request_id) <= 256
    await ledger.stop()


async def test_a_request_that_leaves_while_its_row_is_opened(database: Database) -> None:
    ledger = Ledger(database)
    await ledger.start()
    for delay in range(6):
        opening = asyncio.create_task(ledger.open(entry(), Meter()))
        for _ in range(delay):
            await asyncio.sleep(0)
        opening.cancel()
        with suppress(asyncio.CancelledError):
            row_id = await opening
            ledger.close(row_id, closing(NO_TOKENS, status="cancelled"))
    await ledger.flush()
    assert {row.status for row in await rows(database)} <= {"cancelled"}
    await ledger.stop()


async def test_stopping_writes_all_and_leaves_nothing_open(database: Database) -> None:
    ledger = Ledger(database)
    await ledger.start()
    done = await ledger.open(entry(), Meter())
    meter = Meter()
    await ledger.open(entry(), meter)
    meter.sequence().completion_tokens = 0
    meter.sequences[0].prompt_tokens = 9
    ledger.close(done, closing(Usage(completion_tokens=1)))
    await ledger.stop()
    assert sorted(row.status for row in await rows(database)) == ["interrupted", "ok"]
    assert sorted(row.prompt_tokens for row in await rows(database)) == [0, 9]
    with pytest.raises(Unavailable):
        await ledger.open(entry(), Meter())


async def test_without_its_database_no_request_runs(tmp_path: Path) -> None:
    database = await open_database(StoreConfig(url=f"sqlite:///{tmp_path}/x.db"))
    ledger = Ledger(database)
    await ledger.start()
    row_id = await ledger.open(entry(), Meter())
    async with database.writing() as connection:
        await connection.execute(sa.text("ALTER TABLE ledger RENAME TO elsewhere"))
    with pytest.raises(Unavailable):
        await ledger.open(entry(), Meter())
    ledger.close(row_id, closing(Usage(completion_tokens=5)))
    await asyncio.sleep(0.1)
    async with database.writing() as connection:
        await connection.execute(sa.text("ALTER TABLE elsewhere RENAME TO ledger"))
    await asyncio.wait_for(ledger.flush(), 10)
    (row,) = await rows(database)
    assert (row.status, row.completion_tokens) == ("ok", 5)
    await ledger.stop()
    await database.close()


# ---------------------------------------------------------------- crash


async def test_an_interrupted_row_has_what_was_counted(database: Database) -> None:
    ledger = Ledger(database, progress_seconds=0.02)
    await ledger.start()
    meter = Meter()
    await ledger.open(entry(), meter)
    counts = meter.sequence()
    counts.prompt_tokens, counts.completion_tokens = 11, 22
    await asyncio.sleep(0.1)
    await ledger.flush()
    await kill(ledger, database)
    (row,) = await rows(database)
    assert (row.status, row.completion_tokens) == ("open", 22)

    again = Ledger(database)
    await again.start()
    (row,) = await rows(database)
    assert (row.status, row.prompt_tokens, row.completion_tokens) == ("interrupted", 11, 22)
    assert Decimal(row.cost_pico).scaleb(-12) == PRICES.cost(
        Usage(prompt_tokens=11, completion_tokens=22), "default"
    )
    assert await again.spent_since("key-team", 0) == Decimal("0.00000154")
    await again.stop()


async def test_the_rows_of_a_living_replica_are_left_alone(database: Database) -> None:
    first, second = Ledger(database), Ledger(database)
    await first.start()
    row_id = await first.open(entry(), Meter())
    await second.start()
    assert await second.recover() == 0
    first.close(row_id, closing(Usage(completion_tokens=3)))
    await first.flush()
    assert [row.status for row in await rows(database)] == ["ok"]
    await first.stop()
    await second.stop()


async def test_a_replica_on_another_machine_is_gone_when_it_is_silent(database: Database) -> None:
    now = 1_790_000_000.0
    far = Ledger(database, clock=lambda: now)
    await far.start()
    row_id = await far.open(entry(), Meter())
    async with database.writing() as connection:
        await connection.execute(sa.update(db.instances).values(host="elsewhere"))
    near = Ledger(database, clock=lambda: now, dead_after_seconds=90)
    await near.start()
    assert [row.status for row in await rows(database)] == ["open"]
    now += 91
    assert await near.recover() == 1
    assert [row.status for row in await rows(database)] == ["interrupted"]
    far.close(row_id, closing(Usage(completion_tokens=44)))
    await far.flush()
    (row,) = await rows(database)
    assert (row.status, row.completion_tokens) == ("ok", 44), "it was only slow"
    await far._beat()
    assert await near.recover() == 0
    await far.stop()
    await near.stop()


# ---------------------------------------------------------------- reports


async def test_reports_add_up(database: Database) -> None:
    now = 1_790_000_000.0
    ledger = Ledger(database, clock=lambda: now)
    await ledger.start()
    for day in range(3):
        now = 1_790_000_000.0 + day * 86_400
        for account, tokens in (("a", 10), ("b", 200)):
            row_id = await ledger.open(entry(account), Meter())
            ledger.close(row_id, closing(Usage(prompt_tokens=tokens, completion_tokens=1)))
        await ledger.flush()
    everything = await ledger.report([])
    assert [(r.group, r.requests, r.prompt_tokens, r.completion_tokens) for r in everything] == [
        ((), 6, 630, 6)
    ]
    assert everything[0].cost_usd == Decimal("0.00001296")
    by_account = await ledger.report(["account"])
    assert [(r.group, r.requests, r.prompt_tokens) for r in by_account] == [
        (("a",), 3, 30),
        (("b",), 3, 600),
    ]
    by_day = await ledger.report(["day", "model", "tier"], account="a")
    assert [r.group for r in by_day] == [
        ("2026-09-21", "m", "default"),
        ("2026-09-22", "m", "default"),
        ("2026-09-23", "m", "default"),
    ]
    middle = await ledger.report([], since=1_790_000_000.0 + 1, until=1_790_000_000.0 + 172_800)
    assert [r.requests for r in middle] == [2]
    assert await ledger.report([], account="nobody") == []
    assert await ledger.spent_since("key-a", 1_790_000_000.0 + 1) == Decimal("5.2E-7")
    await ledger.stop()


# ---------------------------------------------------------------- the property


class Plant:
    """A backend whose every token is counted by itself, apart from any meter.

    `plan` of a request is in its message: how many tokens each attempt makes, and how it ends.
    """

    def __init__(self) -> None:
        self.generated: Counter[str] = Counter()
        self.running = asyncio.Event()
        self.running.set()

    async def chat(self, request: ChatRequest, meter: Meter) -> AsyncGenerator[Event, None]:
        message = request.messages[0]
        assert isinstance(message, UserMessage) and isinstance(message.content, str)
        kind, *numbers = message.content.split()
        first, second = (int(number) for number in numbers)
        if kind == "fallback":
            await self._make(request, self._prefill(meter), 1)
            kind = "success"
        counts = self._prefill(meter)
        yield Started(model="m")
        for step in range(first):
            await self._make(request, counts, 1 + step % 2)
            yield ContentDelta(0, "x")
        if kind == "error":
            raise ProviderFailed("it broke")
        if kind == "bug":
            raise RuntimeError("a bug")
        if kind == "failover":
            for _ in range(second):
                await self._make(request, counts, 1)
                yield ContentDelta(0, "y")
        yield Finished(0, "stop")
        yield Done(meter.usage())

    def _prefill(self, meter: Meter) -> Counts:
        counts = meter.sequence()
        counts.prompt_tokens = 5
        return counts

    async def _make(self, request: ChatRequest, counts: Counts, num_tokens: int) -> None:
        await asyncio.sleep(0)
        await self.running.wait()
        counts.completion_tokens += num_tokens
        self.generated[request.account] += num_tokens

    async def close(self) -> None:
        return


def service(plant: Plant, ledger: Ledger) -> ChatService:
    terms = {"m": ModelTerms(prices=PRICES)}
    return ChatService(
        models=Models([ServedModel(ModelInfo(id="m", tiers=("default",)), plant)]),
        prices={"m": PRICES},
        admission=Admission(terms, rates=Rates(), budgets=Budgets()),
        ledger=ledger,
        new_id=lambda: "chatcmpl-1",
        extra_stages=lambda decoded, record: [],
        observers=[],
    )


async def _one(chat: ChatService, account: str, name: str, plan: str, read: int) -> None:
    """One request whose client reads `read` events and leaves."""
    request = ChatRequest(model="m", messages=(UserMessage(plan),))
    decoded = DecodedRequest(request, AnswerOptions(stream=True))
    who = Account(id=account, key_id=account)
    with suppress(Exception):
        async with (
            await chat.open(
                decoded, who, request_id=name, dialect="openai", impossible="refuse"
            ) as answer,
            aclosing(answer.events) as events,
        ):
            async for _ in events:
                read -= 1
                if read == 0:
                    break


def random_schedule(dice: random.Random) -> list[tuple[str, int]]:
    """(plan, events that the client reads) of requests that run at the same time."""
    kinds = ("success", "success", "error", "bug", "failover", "fallback")
    return [
        (
            f"{dice.choice(kinds)} {dice.randrange(8)} {dice.randrange(5)}",
            dice.choice((10_000, 10_000, dice.randrange(1, 9))),
        )
        for _ in range(dice.randrange(1, 5))
    ]


async def run_schedule(
    database: Database, plant: Plant, account: str, dice: random.Random
) -> tuple[int, int]:
    """Runs one schedule of requests to its end or to its kill; at least and at most how many
    rows it must have left."""
    ledger = Ledger(database, progress_seconds=60)
    await ledger.start()
    chat = service(plant, ledger)
    schedule = random_schedule(dice)
    tasks = [
        asyncio.create_task(_one(chat, account, f"{account}-{i}", plan, read))
        for i, (plan, read) in enumerate(schedule)
    ]
    fate = dice.choice(("run", "run", "cancel", "kill"))
    if fate != "run":
        for _ in range(dice.randrange(60)):
            await asyncio.sleep(0.0001 if dice.random() < 0.1 else 0)
    if fate == "kill":
        plant.running.clear()
        ledger.snapshot()
        await ledger.flush()
        await kill(ledger, database)
    if fate != "run":
        for task in tasks:
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    plant.running.set()
    if fate != "kill":
        await ledger.stop()
    return len(schedule) if fate == "run" else 0, len(schedule)


async def check_schedules(database: Database, num_schedules: int, seed: int) -> None:
    dice = random.Random(seed)
    plant = Plant()
    bounds = {}
    for number in range(num_schedules):
        account = f"schedule-{number}"
        bounds[account] = await run_schedule(database, plant, account, dice)
    last = Ledger(database)
    await last.start()
    await last.stop()

    written = await rows(database)
    assert {row.status for row in written} == {"ok", "error", "cancelled", "interrupted"}
    assert len({row.request_id for row in written}) == len(written), "a request has two rows"
    tokens: Counter[str] = Counter()
    num_rows: Counter[str] = Counter()
    for row in written:
        tokens[row.account] += row.completion_tokens
        num_rows[row.account] += 1
        usage = Usage(prompt_tokens=row.prompt_tokens, completion_tokens=row.completion_tokens)
        assert Decimal(row.cost_pico).scaleb(-12) == PRICES.cost(usage, "default")
    wrong = {
        account: (tokens[account], plant.generated[account])
        for account in bounds
        if tokens[account] != plant.generated[account]
    }
    assert not wrong, "tokens on the ledger, tokens generated"
    assert all(low <= num_rows[a] <= high for a, (low, high) in bounds.items())
    assert sum(plant.generated.values()) > num_schedules


async def test_the_ledger_is_what_was_generated(database: Database) -> None:
    await check_schedules(database, 100 if database.shared else 300, seed=5)


@pytest.mark.slow
async def test_the_ledger_is_what_was_generated_2000_times(tmp_path: Path) -> None:
    database = await open_database(StoreConfig(url=f"sqlite:///{tmp_path}/x.db"))
    await check_schedules(database, 2000, seed=6)
    await database.close()


# ---------------------------------------------------------------- kill −9


async def test_kill_9_loses_no_row_and_no_count(database_url: str) -> None:
    """A process that serves requests is killed at any moment, again and again. Whatever it has
    said to be written is there, and the next start leaves nothing open."""
    dice = random.Random(9)
    opened: set[str] = set()
    counted: dict[str, int] = {}
    closed: dict[str, int] = {}
    for _ in range(2 if database_url.startswith("postgresql") else 3):
        for line in await _serve_until_killed(database_url, dice.uniform(0.02, 0.3)):
            word, row_id, *number = line.split()
            match word:
                case "open":
                    opened.add(row_id)
                case "count":
                    counted[row_id] = int(number[0])
                case "close":
                    closed[row_id] = int(number[0])
    database = await open_database(StoreConfig(url=database_url))
    ledger = Ledger(database)
    await ledger.start()
    found = {row.id: row for row in await rows(database)}
    assert opened <= found.keys()
    assert {row.status for row in found.values()} == {"ok", "interrupted"}
    for row_id, tokens in closed.items():
        assert (found[row_id].status, found[row_id].completion_tokens) == ("ok", tokens)
    for row_id, tokens in counted.items():
        assert found[row_id].completion_tokens >= tokens > 0
    assert len(closed) > 20
    await ledger.stop()
    await database.close()


async def _serve_until_killed(url: str, seconds: float) -> list[str]:
    """The lines that the process said before it was killed, `seconds` after its first."""
    command_line = [sys.executable, "-m", "tests.service.crashing", url]
    process = subprocess.Popen(command_line, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        first = await asyncio.to_thread(process.stdout.readline)
        reading = asyncio.create_task(asyncio.to_thread(process.stdout.read))
        await asyncio.sleep(seconds)
    finally:
        process.kill()
    rest = await asyncio.wait_for(reading, 30)
    process.stdout.close()
    assert process.wait(30) == -signal.SIGKILL
    complete = (first + rest).rpartition(b"\n")[0]
    return complete.decode().splitlines()
