"""Created keys: shown once, stored by digest, gone when revoked."""

import time
from decimal import Decimal

import pytest
import sqlalchemy as sa

from rejoinder.errors import AuthenticationFailed
from rejoinder.service import database as db
from rejoinder.service.accounts import Account, Accounts
from rejoinder.service.database import Database
from rejoinder.service.keys import Keys, NewKey


async def test_a_key_is_made_used_and_revoked(database: Database) -> None:
    keys = Keys(database)
    accounts = Accounts([], source=keys, fresh_seconds=0)
    assert (await accounts.authenticate(None, None)).id == "local"
    new = NewKey(
        account="team",
        name="laptop",
        tiers=("flex",),
        models=("a", "b"),
        requests_per_minute=5,
        tokens_per_minute=6_000_000_000,
        budget_usd=Decimal("0.10"),
        budget_period="month",
        admin=True,
    )
    key = await keys.create_key(new)
    assert key.startswith("sk-rj-") and len(key) >= 40
    account = await accounts.authenticate(f"Bearer {key}", None)
    assert account == Account(
        id="team",
        key_id=account.key_id,
        tiers=("flex",),
        models=("a", "b"),
        requests_per_minute=5,
        tokens_per_minute=6_000_000_000,
        budget_usd=Decimal("0.10"),
        budget_period="month",
        admin=True,
    )
    (listed,) = await keys.load()
    assert (listed.name, listed.account, listed.revoked_at) == ("laptop", account, None)
    assert await keys.revoke(account.key_id)
    assert not await keys.revoke(account.key_id)
    assert not await keys.revoke("key_none")
    with pytest.raises(AuthenticationFailed, match="revoked"):
        await accounts.authenticate(f"Bearer {key}", None)


async def test_a_key_expires(database: Database) -> None:
    keys = Keys(database)
    old = await keys.create_key(NewKey(account="team", expires_at=time.time() - 1))
    new = await keys.create_key(NewKey(account="team", expires_at=time.time() + 60))
    accounts = Accounts([], source=keys)
    assert (await accounts.authenticate(f"Bearer {new}", None)).id == "team"
    with pytest.raises(AuthenticationFailed, match="expired"):
        await accounts.authenticate(f"Bearer {old}", None)


async def test_a_stolen_database_holds_no_key(database: Database) -> None:
    key = await Keys(database).create_key(NewKey(account="team"))
    async with database.reading() as connection:
        (row,) = (await connection.execute(sa.select(db.keys))).all()
    secret = key.removeprefix("sk-rj-")
    for value in row:
        held = value if isinstance(value, bytes) else str(value).encode()
        assert key.encode() not in held
        assert secret[:8].encode() not in held


async def test_keys_differ(database: Database) -> None:
    keys = Keys(database)
    made = {await keys.create_key(NewKey(account="team")) for _ in range(20)}
    assert len(made) == 20
