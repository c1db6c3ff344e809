"""Opening, migrating, and refusing a database with words that help."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DataError

from rejoinder.config import StoreConfig
from rejoinder.service import database as db
from rejoinder.service.database import (
    Database,
    DatabaseError,
    current_revision,
    open_database,
)
from rejoinder.service.keys import Keys
from rejoinder.service.ledger import usage_report
from rejoinder.service.migrating import alembic_config, upgrade
from rejoinder.service.store import CompletionStore, StoredCompletion

OLD_ROW = {
    "id": "0" * 32,
    "instance": "1" * 32,
    "request_id": "old",
    "account": "team",
    "key_id": "key_1",
    "model": "m",
    "tier": "default",
    "price_version": "abc",
    "opened_at": 1_780_000_000.0,
    "day": "2026-05-28",
    "status": "ok",
    "prompt_tokens": 10,
    "completion_tokens": 20,
    "cost_pico": 123,
}


async def _raw(url: str) -> Database:
    """The database as it is, not brought to any revision."""
    return Database(db._create_engine(db._driver_url(url)))


async def test_an_older_database_is_brought_forward_with_its_rows(database_url: str) -> None:
    old = await _raw(database_url)
    async with old.writing() as connection:
        await connection.run_sync(upgrade, "r0001")
        table = sa.table("ledger", *(sa.column(name) for name in OLD_ROW))
        await connection.execute(sa.insert(table).values(**OLD_ROW))
    await old.close()

    new = await open_database(StoreConfig(url=database_url))
    async with new.reading() as connection:
        assert await connection.run_sync(current_revision) == db.HEAD
    (row,) = await usage_report(new, ["account"])
    assert (row.group, row.prompt_tokens, row.completion_tokens) == (("team",), 10, 20)
    await CompletionStore(new).save(
        StoredCompletion(id="c", account="team", model="m", created=1, completion=b"{}")
    )
    await new.close()


async def test_the_migrations_make_the_tables_that_the_code_uses(database: Database) -> None:
    def differences(connection: Connection) -> list[object]:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return list(compare_metadata(context, db.metadata))

    async with database.reading() as connection:
        assert await connection.run_sync(differences) == []


async def test_the_newest_revision_is_the_newest_script(database: Database) -> None:
    def newest(connection: Connection) -> str | None:
        return ScriptDirectory.from_config(alembic_config(connection)).get_current_head()

    async with database.reading() as connection:
        assert await connection.run_sync(newest) == db.HEAD


async def test_every_migration_can_be_undone(database_url: str) -> None:
    database = await open_database(StoreConfig(url=database_url))

    def down_and_up(connection: Connection) -> None:
        config = alembic_config(connection)
        command.downgrade(config, "base")
        assert set(sa.inspect(connection).get_table_names()) == {"alembic_version"}
        command.upgrade(config, "head")

    async with database.writing() as connection:
        await connection.run_sync(down_and_up)
    await database.close()


async def test_a_database_of_a_newer_version_is_left_alone(database_url: str) -> None:
    database = await open_database(StoreConfig(url=database_url))
    async with database.writing() as connection:
        await connection.execute(sa.text("UPDATE alembic_version SET version_num = 'r9999'"))
    await database.close()
    with pytest.raises(DatabaseError, match="newer"):
        await open_database(StoreConfig(url=database_url))


@pytest.mark.slow
async def test_two_processes_may_open_a_new_database_at_once(database_url: str) -> None:
    code = (
        "import asyncio, sys\n"
        "from rejoinder.config import StoreConfig\n"
        "from rejoinder.service.database import open_database\n"
        "async def main():\n"
        "    await (await open_database(StoreConfig(url=sys.argv[1]))).close()\n"
        "asyncio.run(main())\n"
    )
    command_line = [sys.executable, "-c", code, database_url]
    processes = [subprocess.Popen(command_line, stderr=subprocess.PIPE) for _ in range(2)]
    errors = await asyncio.gather(*(asyncio.to_thread(p.communicate, None, 60) for p in processes))
    assert [p.returncode for p in processes] == [0, 0], errors


async def test_databases_opened_at_once_in_one_process(database_url: str) -> None:
    opened = await asyncio.gather(*(open_database(StoreConfig(url=database_url)) for _ in range(6)))
    for database in opened:
        await database.close()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nonsense", "store.url is not a URL"),
        ("mysql://x/y", "no database 'mysql'"),
        ("sqlite:////no/such/folder/x.db", "cannot be used"),
        ("postgresql://someone:geheim@127.0.0.1:1/x", "cannot be used"),
    ],
)
async def test_a_url_that_cannot_be_used(url: str, words: str) -> None:
    with pytest.raises(DatabaseError) as caught:
        await open_database(StoreConfig(url=url))
    assert words in str(caught.value)
    assert "geheim" not in str(caught.value)
    assert "aiosqlite" not in str(caught.value) and "asyncpg:" not in str(caught.value)


async def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(b"this is not a database at all" * 100)
    with pytest.raises(DatabaseError, match="cannot be used"):
        await open_database(StoreConfig(url=f"sqlite:///{tmp_path}/x.db"))


def test_the_default_works_where_nothing_can_be_written(tmp_path: Path) -> None:
    """With no rights to write, the default file gives way to memory; said by `volatile`."""
    code = (
        "import asyncio\n"
        "from rejoinder.config import StoreConfig\n"
        "from rejoinder.service.database import open_database\n"
        "from rejoinder.service.keys import Keys, NewKey\n"
        "async def main():\n"
        "    database = await open_database(StoreConfig())\n"
        "    await Keys(database).create_key(NewKey(account='a'))\n"
        "    print(database.volatile, len(await Keys(database).load()))\n"
        "    await database.close()\n"
        "asyncio.run(main())\n"
    )
    (tmp_path / "rejoinder.db").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.stdout.split() == ["True", "1"], done.stderr


async def test_a_database_in_memory_keeps_one_content(tmp_path: Path) -> None:
    database = await open_database(StoreConfig(url="sqlite://"))
    assert database.volatile
    assert await Keys(database).load() == []
    await database.close()


@pytest.mark.parametrize("value", [{"status": "\ud800"}, {"cost_pico": 1 << 63}])
async def test_what_no_column_takes_is_an_error_of_that_row_only(
    tmp_path: Path, value: dict[str, object]
) -> None:
    """A provider may have reported it; the ledger goes on with the other rows (R172)."""
    database = await open_database(StoreConfig(url=f"sqlite:///{tmp_path}/x.db"))
    with pytest.raises(DataError):
        await database.write([(sa.insert(db.ledger), [{**OLD_ROW, **value}])])
    await database.write([(sa.insert(db.ledger), [OLD_ROW])])
    async with database.reading() as connection:
        found = await connection.execute(sa.select(db.ledger.c.request_id))
        assert found.scalars().all() == ["old"]
    await database.close()
