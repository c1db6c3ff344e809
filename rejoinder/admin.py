"""`rejoinder keys` and `rejoinder usage`: what an operator does with the database.

It must not know: a running server; it finds the same database through the configuration.
"""

import asyncio
import csv
import io
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Literal, TypeVar

import msgspec
from rich.console import Console

from rejoinder.config import Config
from rejoinder.service.accounts import CreatedKey
from rejoinder.service.database import Database, DatabaseError, open_database
from rejoinder.service.keys import Keys, NewKey
from rejoinder.service.ledger import GroupBy, UsageRow, usage_report
from rejoinder.serving import CannotServe, print_table

Format = Literal["table", "csv", "json"]

GROUPS: tuple[GroupBy, ...] = ("account", "key_id", "model", "day", "tier", "status")

T = TypeVar("T")


def with_database(config: Config, work: Callable[[Database], Awaitable[T]]) -> T:
    """Raises CannotServe when the database cannot be used."""

    async def run() -> T:
        try:
            database = await open_database(config.store)
        except DatabaseError as error:
            raise CannotServe(str(error)) from None
        try:
            return await work(database)
        finally:
            await database.close()

    return asyncio.run(run())


# ---------------------------------------------------------------- keys


def create_key(config: Config, new: NewKey) -> None:
    key = with_database(config, lambda database: Keys(database).create_key(new))
    console = Console(stderr=True)
    console.print(f"A key for the account [bold]{new.account}[/]. It is shown only this once:")
    sys.stdout.write(key + "\n")
    console.print(
        "From now on every request to a server with this database needs a key: "
        "'Authorization: Bearer KEY', or --api-key and REJOINDER_API_KEY for our commands.",
        highlight=False,
    )


def revoke_key(config: Config, key_id: str) -> None:
    """Raises CannotServe when there is no such key."""
    if not with_database(config, lambda database: Keys(database).revoke(key_id)):
        raise CannotServe(
            f"there is no key '{key_id}' that could be revoked; `rejoinder keys list` lists them. "
            "Keys of the configuration file are removed there."
        )
    sys.stdout.write(f"revoked {key_id}\n")


def list_keys(config: Config, *, as_json: bool) -> None:
    keys = with_database(config, lambda database: Keys(database).load())
    if as_json:
        rows = [_key_row(key) for key in keys]
        sys.stdout.write(msgspec.json.encode(rows).decode() + "\n")
        return
    if not keys:
        Console(stderr=True).print("No key has been created. `rejoinder keys create` makes one.")
        return
    columns = ("key_id", "account", "name", "tiers", "budget_usd", "created", "expires", "revoked")
    rows = [_key_row(key) for key in keys]
    print_table(columns, [[row[column] for column in columns] for row in rows])


def _key_row(key: CreatedKey) -> dict[str, object]:
    account = key.account
    budget = account.budget_usd
    return {
        "key_id": account.key_id,
        "account": account.id,
        "name": key.name,
        "tiers": ",".join(account.tiers),
        "models": ",".join(account.models),
        "requests_per_minute": account.requests_per_minute,
        "tokens_per_minute": account.tokens_per_minute,
        "budget_usd": None if budget is None else f"{budget}/{account.budget_period}",
        "admin": account.admin,
        "created": _date(key.created_at),
        "expires": _date(key.expires_at),
        "revoked": _date(key.revoked_at),
    }


def _date(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


# ---------------------------------------------------------------- usage


def print_usage(
    config: Config,
    *,
    group_by: Sequence[GroupBy],
    since: datetime | None,
    until: datetime | None,
    account: str | None,
    format: Format,
) -> None:
    rows = with_database(
        config,
        lambda database: usage_report(
            database,
            group_by,
            since=None if since is None else since.replace(tzinfo=UTC).timestamp(),
            until=None if until is None else until.replace(tzinfo=UTC).timestamp(),
            account=account,
        ),
    )
    flat = [_usage_row(row, group_by) for row in rows]
    columns = [*group_by, *_NUMBERS]
    match format:
        case "json":
            sys.stdout.write(msgspec.json.encode(flat).decode() + "\n")
        case "csv":
            text = io.StringIO()
            writer = csv.DictWriter(text, columns)
            writer.writeheader()
            writer.writerows(flat)
            sys.stdout.write(text.getvalue())
        case "table" if not flat:
            Console(stderr=True).print("The ledger has no requests, or none of those asked for.")
        case "table":
            print_table(columns, [[one[column] for column in columns] for one in flat])


_NUMBERS = (
    "requests",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "cost_usd",
)


def _usage_row(row: UsageRow, group_by: Sequence[GroupBy]) -> dict[str, object]:
    values: dict[str, object] = dict(zip(group_by, row.group, strict=True))
    return (
        values | {name: getattr(row, name) for name in _NUMBERS} | {"cost_usd": f"{row.cost_usd:f}"}
    )
