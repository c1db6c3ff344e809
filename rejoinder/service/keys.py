"""Keys made with `rejoinder keys create`: stored by their digest, shown once.

This module must not know: requests, who is asking for what.
"""

import time
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, cast

import msgspec
import sqlalchemy as sa
from msgspec import Struct

from rejoinder.service import database as db
from rejoinder.service.accounts import (
    ALL_TIERS,
    Account,
    BudgetPeriod,
    CreatedKey,
    key_digest,
    key_id_of,
    new_key,
)
from rejoinder.service.database import Database
from rejoinder.types import Tier

__all__ = ["Keys", "NewKey"]


class NewKey(Struct, frozen=True, kw_only=True):
    """What a key to be made may do. `expires_at`: seconds since the epoch."""

    account: str
    name: str = ""
    tiers: tuple[Tier, ...] = ALL_TIERS
    models: tuple[str, ...] = ()
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    budget_usd: Decimal | None = None
    budget_period: BudgetPeriod = "total"
    admin: bool = False
    expires_at: float | None = None


class Keys:
    """The created keys of a database; a `KeySource` for `Accounts`."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    async def create_key(self, new: NewKey) -> str:
        """A new key. It is returned here and nowhere else: only its digest is stored."""
        key = new_key()
        digest = key_digest(key)
        row = {
            "key_id": key_id_of(digest),
            "digest": digest,
            "name": new.name,
            "account": new.account,
            "tiers": _list(new.tiers),
            "models": _list(new.models),
            "requests_per_minute": new.requests_per_minute,
            "tokens_per_minute": new.tokens_per_minute,
            "budget_usd": None if new.budget_usd is None else str(new.budget_usd),
            "budget_period": new.budget_period,
            "admin": new.admin,
            "created_at": self._clock(),
            "expires_at": new.expires_at,
        }
        async with self._database.writing() as connection:
            await connection.execute(sa.insert(db.keys).values(row))
        return key

    async def revoke(self, key_id: str) -> bool:
        """Whether there was such a key, not yet revoked."""
        table = db.keys
        async with self._database.writing() as connection:
            revoked = await connection.execute(
                sa.update(table)
                .where(table.c.key_id == key_id, table.c.revoked_at.is_(None))
                .values(revoked_at=self._clock())
            )
        return bool(revoked.rowcount)

    async def load(self) -> Sequence[CreatedKey]:
        """Every key that was ever created, oldest first."""
        query = sa.select(db.keys).order_by(db.keys.c.created_at, db.keys.c.key_id)
        async with self._database.reading() as connection:
            rows = (await connection.execute(query)).mappings().all()
        return [_created(row) for row in rows]

    async def revision(self) -> str:
        table = db.keys
        query = sa.select(sa.func.count(), sa.func.count(table.c.revoked_at)).select_from(table)
        async with self._database.reading() as connection:
            created, revoked = (await connection.execute(query)).one()
        return f"{created}.{revoked}"


def _created(row: sa.RowMapping) -> CreatedKey:
    budget = row["budget_usd"]
    account = Account(
        id=row["account"],
        key_id=row["key_id"],
        tiers=cast(tuple[Tier, ...], _tuple(row["tiers"])),
        models=_tuple(row["models"]),
        requests_per_minute=row["requests_per_minute"],
        tokens_per_minute=row["tokens_per_minute"],
        budget_usd=None if budget is None else Decimal(budget),
        budget_period=row["budget_period"],
        admin=row["admin"],
    )
    return CreatedKey(
        digest=bytes(row["digest"]),
        account=account,
        name=row["name"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        revoked_at=row["revoked_at"],
    )


def _list(words: Sequence[str]) -> str:
    return msgspec.json.encode(words).decode()


def _tuple(text: Any) -> tuple[str, ...]:
    return msgspec.json.decode(text, type=tuple[str, ...])
