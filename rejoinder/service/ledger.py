"""The ledger: one row a request, opened before the first work and closed exactly once.

Writes are gathered into one transaction at a time by one task, so the event loop never waits for
a disk. This module must not know: dialects, HTTP, what made a request end.
"""

import asyncio
import functools
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any, Literal, TypeAlias

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy.exc import DataError, SQLAlchemyError

from rejoinder.errors import Unavailable
from rejoinder.service import database as db
from rejoinder.service.database import Database, process_started, this_process
from rejoinder.service.pricing import FREE, Prices
from rejoinder.types import Meter, Tier, Usage

__all__ = ["Closing", "GroupBy", "Ledger", "LedgerEntry", "UsageRow"]

Status = Literal["ok", "error", "cancelled", "interrupted"]
GroupBy = Literal["account", "key_id", "model", "day", "tier", "status"]

_log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.5

_CLOSING_SECONDS = 0.05
"""How long a closing may wait for a transaction that somebody else needs anyway."""

_COUNTS = (
    "prompt_tokens",
    "cached_tokens",
    "cache_write_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "accepted_prediction_tokens",
    "rejected_prediction_tokens",
)

_Row = dict[str, Any]
_Opening: TypeAlias = tuple[_Row, "asyncio.Future[None]"]


class LedgerEntry(Struct, frozen=True, kw_only=True):
    """What is known when a request starts."""

    request_id: str
    account: str
    key_id: str
    model: str
    tier: Tier
    prices: Prices = FREE


class Closing(Struct, frozen=True, kw_only=True):
    """How a request ended and what it came to. `finish`: the finish reasons of its choices.

    `first_token_seconds`, `total_seconds`: since the request was accepted.
    """

    status: Literal["ok", "error", "cancelled"]
    usage: Usage
    cost: Decimal
    finish: str = ""
    error_code: str = ""
    first_token_seconds: float | None = None
    total_seconds: float | None = None


class UsageRow(Struct, frozen=True, kw_only=True):
    """One line of a usage report. `group`: the values of what it was grouped by, in order."""

    group: tuple[str, ...]
    requests: int
    prompt_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int
    cost_usd: Decimal


class _Open:
    """An open row: its meter is read while it runs, so that a crash loses little."""

    __slots__ = ("meter", "prices", "tier", "written")

    def __init__(self, entry: LedgerEntry, meter: Meter) -> None:
        self.meter = meter
        self.prices = entry.prices
        self.tier: Tier = entry.tier
        self.written = Usage()


class Ledger:
    """Writes and reads the ledger of one process. `start` it before use, `stop` it at the end."""

    def __init__(
        self,
        database: Database,
        *,
        progress_seconds: float = 1.0,
        beat_seconds: float = 15.0,
        dead_after_seconds: float = 90.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._progress_seconds = progress_seconds
        self._beat_seconds = beat_seconds
        self._dead_after = dead_after_seconds
        self._clock = clock
        self._instance = secrets.token_hex(16)
        self._open: dict[str, _Open] = {}
        self._opening: list[_Opening] = []
        self._progress: list[_Row] = []
        self._closing: list[_Row] = []
        self._wake = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None
        """Wakes the writer for closings that nothing else has taken along."""
        self._flushing: list[asyncio.Future[None]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    # ------------------------------------------------------------ life

    async def start(self) -> None:
        """Registers this process, closes what dead ones left open, and starts to write."""
        await self._beat()
        await self.recover()
        self._tasks = [
            asyncio.create_task(self._write(), name="ledger-write"),
            asyncio.create_task(self._follow(), name="ledger-progress"),
        ]

    async def stop(self) -> None:
        """Writes everything that is pending; rows still open are closed as interrupted."""
        self._stopping = True
        if not self._tasks:
            return
        for row_id in list(self._open):
            self._close_row(row_id, "interrupted", self._open[row_id].meter.usage(), None)
        with suppress(TimeoutError):
            await asyncio.wait_for(self.flush(), 10)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        with suppress(SQLAlchemyError, OSError):
            async with self._database.writing() as connection:
                await connection.execute(
                    sa.delete(db.instances).where(db.instances.c.id == self._instance)
                )

    async def flush(self) -> None:
        """Returns when everything asked for so far is in the database."""
        if not self._tasks:
            return
        flushed = asyncio.get_running_loop().create_future()
        self._flushing.append(flushed)
        self._wake.set()
        await flushed

    # ------------------------------------------------------------ rows

    async def open(self, entry: LedgerEntry, meter: Meter) -> str:
        """The id of a new row, which is in the database when this returns.

        `meter` is read until the row is closed. Raises Unavailable: no request runs unrecorded.
        """
        if self._stopping:
            raise Unavailable("The server is shutting down.", retry_after=1)
        row_id = secrets.token_hex(16)
        now = self._clock()
        row: _Row = {
            "id": row_id,
            "instance": self._instance,
            "request_id": _clean(entry.request_id),
            "account": _clean(entry.account),
            "key_id": _clean(entry.key_id),
            "model": _clean(entry.model),
            "tier": entry.tier,
            "price_version": entry.prices.version,
            "opened_at": now,
            "day": _day(now),
            "status": "open",
        }
        written = asyncio.get_running_loop().create_future()
        self._opening.append((row, written))
        self._open[row_id] = _Open(entry, meter)
        self._wake.set()
        try:
            await written
        except Exception as error:
            self._open.pop(row_id, None)
            raise Unavailable("The ledger cannot be written.", retry_after=5) from error
        except asyncio.CancelledError:
            self._close_row(row_id, "cancelled", Usage(), None)
            raise
        return row_id

    def close(self, row_id: str, closing: Closing) -> None:
        """Closes a row. The first closing counts; a second one is an error of the caller and is
        logged, never written. Does not wait for the database."""
        if row_id not in self._open:
            _log.error("ledger row %s was closed twice", row_id)
            return
        self._close_row(row_id, closing.status, closing.usage, closing)

    def _close_row(
        self, row_id: str, status: Status, usage: Usage, closing: Closing | None
    ) -> None:
        opened = self._open.pop(row_id)
        cost = opened.prices.cost(usage, opened.tier) if closing is None else closing.cost
        self._closing.append(
            {
                "row_id": row_id,
                "status": status,
                "closed_at": self._clock(),
                "finish": "" if closing is None else _clean(closing.finish),
                "error_code": "" if closing is None else _clean(closing.error_code),
                "first_token_seconds": None if closing is None else closing.first_token_seconds,
                "total_seconds": None if closing is None else closing.total_seconds,
                **_counted(usage, cost),
            }
        )
        if self._alarm is None:
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_later(_CLOSING_SECONDS, self._wake.set)

    # ------------------------------------------------------------ reports

    async def report(
        self,
        group_by: Sequence[GroupBy],
        *,
        since: float | None = None,
        until: float | None = None,
        account: str | None = None,
    ) -> list[UsageRow]:
        """Sums over rows opened in [since, until), seconds since the epoch, by group in order.

        Rows still open count with what is known of them.
        """
        return await usage_report(
            self._database, group_by, since=since, until=until, account=account
        )

    async def spent_since(self, key_id: str, since: float) -> Decimal:
        """US dollars of a key's rows opened since then, all that are closed by now included."""
        await self.flush()
        query = sa.select(sa.func.coalesce(sa.func.sum(db.ledger.c.cost_pico), 0)).where(
            db.ledger.c.key_id == key_id, db.ledger.c.opened_at >= since
        )
        async with self._database.reading() as connection:
            return _dollars((await connection.execute(query)).scalar_one())

    async def recover(self) -> int:
        """Closes as interrupted the open rows of processes that are no more; how many.

        A process is gone when its machine says so, or when it has not been heard of for
        `dead_after_seconds`. If it does come back, its own closing still counts.
        """
        table = db.instances
        now = self._clock()
        async with self._database.writing() as connection:
            for row in (await connection.execute(sa.select(table))).all():
                if row.id != self._instance and self._is_gone(row, now):
                    await connection.execute(sa.delete(table).where(table.c.id == row.id))
            known = sa.select(table.c.id)
            closed = await connection.execute(
                sa.update(db.ledger)
                .where(db.ledger.c.status == "open", db.ledger.c.instance.not_in(known))
                .values(status="interrupted", closed_at=now)
            )
        if closed.rowcount:
            _log.warning("%d requests of an earlier process were interrupted", closed.rowcount)
        return closed.rowcount

    # ------------------------------------------------------------ tasks

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._alarm is not None:
                self._alarm.cancel()
                self._alarm = None
            opening, self._opening = self._opening, []
            progress, self._progress = self._progress, []
            closing, self._closing = self._closing, []
            flushing, self._flushing = self._flushing, []
            failed: list[_Row] = []
            if opening or progress or closing:
                failed = await self._commit_all(opening, progress, closing)
            if failed:
                self._closing = failed + self._closing
                self._flushing = flushing + self._flushing
                asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._wake.set)
                continue
            for flushed in flushing:
                _resolve(flushed)

    async def _commit_all(
        self, opening: list[_Opening], progress: list[_Row], closing: list[_Row]
    ) -> list[_Row]:
        """One transaction; where it fails, one a row, so that no row suffers for another. The
        closings to try again; a row that could not be opened has told its request so."""
        try:
            await self._commit([row for row, _ in opening], progress, closing)
        except Exception as error:
            _log.warning("a batch of %d ledger rows failed: %s", len(opening + closing), error)
        else:
            for _, written in opening:
                _resolve(written)
            return []
        for row, written in opening:
            try:
                await self._commit([row], [], [])
            except Exception as error:
                _resolve(written, error)
            else:
                _resolve(written)
        failed = []
        for row in closing:
            try:
                await self._commit([], [], [row])
            except DataError:
                _log.exception("ledger row %s cannot be closed", row["row_id"])
            except (SQLAlchemyError, OSError):
                failed.append(row)
            except Exception:
                _log.exception("ledger row %s cannot be closed", row["row_id"])
        return failed

    async def _commit(self, opening: list[_Row], progress: list[_Row], closing: list[_Row]) -> None:
        batch = ((_INSERT, opening), (_PROGRESS, progress), (_CLOSE, closing))
        await self._database.write([(statement, rows) for statement, rows in batch if rows])

    async def _follow(self) -> None:
        """Writes what open requests have used so far, and says that this process lives."""
        beat_at = self._clock() + self._beat_seconds
        while True:
            await asyncio.sleep(self._progress_seconds)
            self.snapshot()
            if self._clock() >= beat_at:
                beat_at = self._clock() + self._beat_seconds
                try:
                    await self._beat()
                    await self.recover()
                except (SQLAlchemyError, OSError) as error:
                    _log.warning("the ledger's heartbeat failed: %s", error)

    def snapshot(self) -> None:
        """Queues the counts of open rows that have changed since they were last written."""
        for row_id, opened in self._open.items():
            usage = opened.meter.usage()
            if usage != opened.written:
                opened.written = usage
                cost = opened.prices.cost(usage, opened.tier)
                self._progress.append({"row_id": row_id, **_counted(usage, cost)})
        if self._progress:
            self._wake.set()

    async def _beat(self) -> None:
        host, pid, started = this_process()
        now = self._clock()
        table = db.instances
        async with self._database.writing() as connection:
            beaten = await connection.execute(
                sa.update(table).where(table.c.id == self._instance).values(beat_at=now)
            )
            if not beaten.rowcount:
                row = {"id": self._instance, "host": host, "pid": pid, "beat_at": now}
                await connection.execute(sa.insert(table).values(**row, process_started=started))

    def _is_gone(self, row: sa.Row[Any], now: float) -> bool:
        host, _, started = this_process()
        if row.host == host and started:
            return process_started(int(row.pid)) != str(row.process_started)
        return bool(now - row.beat_at > self._dead_after)


async def usage_report(
    database: Database,
    group_by: Sequence[GroupBy],
    *,
    since: float | None = None,
    until: float | None = None,
    account: str | None = None,
) -> list[UsageRow]:
    """`Ledger.report` without a running ledger: what `rejoinder usage` shows."""
    table = db.ledger
    groups = [table.c[name] for name in group_by]
    sums = [sa.func.coalesce(sa.func.sum(table.c[name]), 0) for name in (*_COUNTS, "cost_pico")]
    query = sa.select(*groups, sa.func.count(), *sums).group_by(*groups).order_by(*groups)
    if since is not None:
        query = query.where(table.c.opened_at >= since)
    if until is not None:
        query = query.where(table.c.opened_at < until)
    if account is not None:
        query = query.where(table.c.account == account)
    async with database.reading() as connection:
        rows = (await connection.execute(query)).all()
    return [_usage_row(tuple(row), len(groups)) for row in rows if row[len(groups)]]


def _usage_row(row: tuple[Any, ...], num_groups: int) -> UsageRow:
    group, (requests, *counts, cost) = row[:num_groups], row[num_groups:]
    return UsageRow(
        group=tuple(str(value) for value in group),
        requests=requests,
        cost_usd=_dollars(cost),
        **{name: int(count) for name, count in zip(_COUNTS, counts, strict=True)},
    )


_INSERT = sa.insert(db.ledger)
_OF_ROW = db.ledger.c.id == sa.bindparam("row_id")
_COUNTED: dict[str, Any] = {
    name: sa.bindparam(name) for name in (*_COUNTS, "estimated", "cost_pico")
}
_IS_OPEN = sa.text("status = 'open'")
_IS_UNFINISHED = sa.text("status IN ('open', 'interrupted')")
_PROGRESS = sa.update(db.ledger).where(_OF_ROW, _IS_OPEN).values(**_COUNTED)
_CLOSE = (
    sa.update(db.ledger)
    .where(_OF_ROW, _IS_UNFINISHED)
    .values(
        **_COUNTED,
        **{
            name: sa.bindparam(name)
            for name in (
                "status",
                "closed_at",
                "finish",
                "error_code",
                "first_token_seconds",
                "total_seconds",
            )
        },
    )
)


def _resolve(future: "asyncio.Future[None]", error: Exception | None = None) -> None:
    """Its waiter may have left already."""
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


_MOST = 2**63 - 1
"""What a column holds: a provider may count whatever it likes."""


def _counted(usage: Usage, cost: Decimal) -> _Row:
    counts = {name: min(getattr(usage, name), _MOST) for name in _COUNTS}
    return {**counts, "estimated": usage.estimated, "cost_pico": _pico(cost)}


def _pico(dollars: Decimal) -> int:
    """Whole picodollars: exact where a price per million tokens, times its tier's factor, has at
    most six decimals; rounded half to even beyond."""
    return min(int(dollars.scaleb(12).to_integral_value(ROUND_HALF_EVEN)), _MOST)


def _dollars(pico: int | Decimal) -> Decimal:
    return Decimal(int(pico)).scaleb(-12).normalize() + 0


def _day(now: float) -> str:
    return _name_of_day(int(now // 86_400))


@functools.lru_cache(maxsize=4)
def _name_of_day(number: int) -> str:
    return datetime.fromtimestamp(number * 86_400, UTC).strftime("%Y-%m-%d")


def _clean(text: str) -> str:
    """What every database can hold: no NUL, no lone surrogate, no more than 256 characters."""
    return text[:256].replace("\0", "").encode("utf-8", "replace").decode("utf-8")
