"""Stored completions: kept by account, found by id, model and metadata (R221–R223).

Documents are JSON bytes that a dialect made; nothing here reads them. This module must not know:
dialects, HTTP.
"""

import time
from collections.abc import Callable
from typing import Generic, Literal, TypeVar

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy.ext.asyncio import AsyncConnection

from rejoinder.errors import NotFound
from rejoinder.service import database as db
from rejoinder.service.database import Database

__all__ = ["CompletionStore", "Page", "StoredCompletion", "StoredMessage"]

Order = Literal["asc", "desc"]
Metadata = tuple[tuple[str, str], ...]

T = TypeVar("T")

_EXPIRE_SECONDS = 3600.0


class StoredCompletion(Struct, frozen=True, kw_only=True):
    """One completion as it is kept.

    `completion`: its JSON object, without its metadata. `messages`: the JSON of each input
    message. `metadata` None: null; it is the only part that ever changes (R222).
    """

    id: str
    account: str
    model: str
    created: int
    completion: bytes
    messages: tuple[bytes, ...] = ()
    metadata: Metadata | None = ()


class StoredMessage(Struct, frozen=True):
    """An input message; `ordinal` counts from 0."""

    ordinal: int
    message: bytes


class Page(Struct, Generic[T], frozen=True):
    """A part of a list. `has_more`: something comes after it in the order asked for."""

    items: tuple[T, ...]
    has_more: bool


class CompletionStore:
    """The stored completions of all accounts; each method sees one account only."""

    def __init__(
        self,
        database: Database,
        *,
        retention_days: int = 30,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._retention_seconds = retention_days * 86_400
        self._clock = clock
        self._expire_at = 0.0

    async def save(self, stored: StoredCompletion) -> None:
        """Also deletes what has outlived the retention, at most once an hour."""
        if self._clock() >= self._expire_at:
            self._expire_at = self._clock() + _EXPIRE_SECONDS
            await self.expire()
        row = {
            "id": stored.id,
            "account": stored.account,
            "model": stored.model,
            "created": stored.created,
            "saved_at": self._clock(),
            "completion": stored.completion,
            "messages": msgspec.json.encode([msgspec.Raw(m) for m in stored.messages]),
            "has_metadata": stored.metadata is not None,
        }
        async with self._database.writing() as connection:
            saved = await connection.execute(sa.insert(db.completions).values(row))
            assert saved.inserted_primary_key is not None
            await _write_metadata(connection, saved.inserted_primary_key[0], stored.metadata)

    async def get(self, account: str, completion_id: str) -> StoredCompletion:
        """Raises NotFound."""
        async with self._database.reading() as connection:
            row = await self._row(connection, account, completion_id)
            return await _stored(connection, row)

    async def list(
        self,
        account: str,
        *,
        after: str | None = None,
        limit: int = 20,
        order: Order = "asc",
        model: str | None = None,
        metadata: Metadata = (),
    ) -> Page[StoredCompletion]:
        """By time of creation. Raises NotFound when there is no completion `after`."""
        table = db.completions
        query = sa.select(table).where(
            table.c.account == account, table.c.saved_at >= self._oldest()
        )
        if model is not None:
            query = query.where(table.c.model == model)
        for name, value in metadata:
            query = query.where(_has_metadata(name, value))
        position = sa.tuple_(table.c.created, table.c.seq)
        async with self._database.reading() as connection:
            if after is not None:
                last = await self._row(connection, account, after, param="after")
                mark = sa.tuple_(sa.literal(last.created), sa.literal(last.seq))
                query = query.where(position > mark if order == "asc" else position < mark)
            columns = (table.c.created, table.c.seq)
            query = query.order_by(*(c.asc() if order == "asc" else c.desc() for c in columns))
            rows = (await connection.execute(query.limit(limit + 1))).all()
            items = [await _stored(connection, row) for row in rows[:limit]]
        return Page(tuple(items), has_more=len(rows) > limit)

    async def update_metadata(
        self, account: str, completion_id: str, metadata: Metadata | None
    ) -> StoredCompletion:
        """The completion with its new metadata; nothing else changes. Raises NotFound."""
        table = db.completions
        async with self._database.writing() as connection:
            row = await self._row(connection, account, completion_id)
            await connection.execute(
                sa.update(table)
                .where(table.c.seq == row.seq)
                .values(has_metadata=metadata is not None)
            )
            pairs = db.completion_metadata
            await connection.execute(sa.delete(pairs).where(pairs.c.seq == row.seq))
            await _write_metadata(connection, row.seq, metadata)
            row = await self._row(connection, account, completion_id)
            return await _stored(connection, row)

    async def delete(self, account: str, completion_id: str) -> None:
        """Raises NotFound."""
        async with self._database.writing() as connection:
            row = await self._row(connection, account, completion_id)
            await _delete(connection, db.completions.c.seq == row.seq)

    async def messages(
        self,
        account: str,
        completion_id: str,
        *,
        after: int | None = None,
        limit: int = 20,
        order: Order = "asc",
    ) -> Page[StoredMessage]:
        """The input messages; `after`: the ordinal of the last one seen. Raises NotFound."""
        stored = await self.get(account, completion_id)
        found = [StoredMessage(i, message) for i, message in enumerate(stored.messages)]
        if order == "desc":
            found.reverse()
        if after is not None:
            places = {message.ordinal: place for place, message in enumerate(found)}
            if after not in places:
                raise NotFound(f"No message with the ordinal {after}.", param="after")
            found = found[places[after] + 1 :]
        return Page(tuple(found[:limit]), has_more=len(found) > limit)

    async def expire(self) -> int:
        """Deletes what is older than the retention; how many."""
        async with self._database.writing() as connection:
            return await _delete(connection, db.completions.c.saved_at < self._oldest())

    def _oldest(self) -> float:
        return self._clock() - self._retention_seconds

    async def _row(
        self,
        connection: AsyncConnection,
        account: str,
        completion_id: str,
        *,
        param: str | None = None,
    ) -> "sa.Row[tuple[object, ...]]":
        table = db.completions
        query = sa.select(table).where(
            table.c.account == account,
            table.c.id == completion_id,
            table.c.saved_at >= self._oldest(),
        )
        row = (await connection.execute(query)).one_or_none()
        if row is None:
            raise NotFound(
                f"No stored completion with the id '{completion_id}' was found.",
                code="completion_not_found",
                param=param,
            )
        return row


def _has_metadata(name: str, value: str) -> sa.ColumnElement[bool]:
    pairs = db.completion_metadata
    return (
        sa.select(pairs.c.seq)
        .where(
            pairs.c.seq == db.completions.c.seq,
            pairs.c.name == _escape(name),
            pairs.c.value == _escape(value),
        )
        .exists()
    )


async def _stored(
    connection: AsyncConnection, row: "sa.Row[tuple[object, ...]]"
) -> StoredCompletion:
    metadata: Metadata | None = None
    if row.has_metadata:
        pairs = db.completion_metadata
        query = sa.select(pairs).where(pairs.c.seq == row.seq).order_by(pairs.c.position)
        found = (await connection.execute(query)).all()
        metadata = tuple((_unescape(pair.name), _unescape(pair.value)) for pair in found)
    messages = msgspec.json.decode(row.messages, type=tuple[msgspec.Raw, ...])
    return StoredCompletion(
        id=row.id,
        account=row.account,
        model=row.model,
        created=row.created,
        completion=bytes(row.completion),
        messages=tuple(bytes(message) for message in messages),
        metadata=metadata,
    )


async def _write_metadata(connection: AsyncConnection, seq: int, metadata: Metadata | None) -> None:
    rows = [
        {"seq": seq, "name": _escape(name), "value": _escape(value), "position": position}
        for position, (name, value) in enumerate(metadata or ())
    ]
    if rows:
        await connection.execute(sa.insert(db.completion_metadata), rows)


async def _delete(connection: AsyncConnection, which: sa.ColumnElement[bool]) -> int:
    """Metadata first, so that it goes wherever foreign keys are not enforced, too."""
    pairs, table = db.completion_metadata, db.completions
    doomed = sa.select(table.c.seq).where(which)
    await connection.execute(sa.delete(pairs).where(pairs.c.seq.in_(doomed)))
    return (await connection.execute(sa.delete(table).where(which))).rowcount


def _escape(text: str) -> str:
    """Any string as text that every database holds: NUL and lone surrogates are escaped."""
    return text.encode("unicode_escape", "surrogatepass").decode("ascii")


def _unescape(text: str) -> str:
    return text.encode("ascii").decode("unicode_escape")
