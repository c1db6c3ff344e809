"""The database: its tables, how it is opened, and its migrations (SQLite or PostgreSQL).

Only this package imports SQLAlchemy. This module must not know: what the rows mean.
"""

import asyncio
import os
import socket
import sqlite3
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import URL, Connection, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPICursor
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool, ConnectionPoolEntry, StaticPool
from sqlalchemy.util import await_only

from rejoinder.config import StoreConfig

__all__ = ["Database", "DatabaseError", "host_name", "open_database"]

HEAD = "r0002"
"""The newest revision of the tables below."""

_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "sqlite+aiosqlite": "sqlite+aiosqlite",
    "postgresql": "postgresql+asyncpg",
    "postgres": "postgresql+asyncpg",
    "postgresql+asyncpg": "postgresql+asyncpg",
}

metadata = sa.MetaData()

_LONG = sa.BigInteger().with_variant(sa.Integer, "sqlite")

keys = sa.Table(
    "keys",
    metadata,
    sa.Column("key_id", sa.String(64), primary_key=True),
    sa.Column("digest", sa.LargeBinary, nullable=False, unique=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("account", sa.Text, nullable=False),
    sa.Column("tiers", sa.Text, nullable=False),
    sa.Column("models", sa.Text, nullable=False),
    sa.Column("requests_per_minute", _LONG),
    sa.Column("tokens_per_minute", _LONG),
    sa.Column("budget_usd", sa.Text),
    sa.Column("budget_period", sa.String(8), nullable=False),
    sa.Column("admin", sa.Boolean, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("expires_at", sa.Double),
    sa.Column("revoked_at", sa.Double),
)

instances = sa.Table(
    "instances",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("pid", _LONG, nullable=False),
    sa.Column("process_started", sa.Text, nullable=False),
    sa.Column("beat_at", sa.Double, nullable=False),
)

ledger = sa.Table(
    "ledger",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("instance", sa.String(32), nullable=False),
    sa.Column("request_id", sa.Text, nullable=False),
    sa.Column("account", sa.Text, nullable=False),
    sa.Column("key_id", sa.String(64), nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("tier", sa.String(16), nullable=False),
    sa.Column("price_version", sa.String(16), nullable=False),
    sa.Column("opened_at", sa.Double, nullable=False),
    sa.Column("day", sa.String(10), nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("closed_at", sa.Double),
    sa.Column("finish", sa.Text, nullable=False, server_default=""),
    sa.Column("error_code", sa.Text, nullable=False, server_default=""),
    sa.Column("prompt_tokens", _LONG, nullable=False, server_default="0"),
    sa.Column("cached_tokens", _LONG, nullable=False, server_default="0"),
    sa.Column("cache_write_tokens", _LONG, nullable=False, server_default="0"),
    sa.Column("completion_tokens", _LONG, nullable=False, server_default="0"),
    sa.Column("reasoning_tokens", _LONG, nullable=False, server_default="0"),
    sa.Column("accepted_prediction_tokens", _LONG, nullable=False, server_default="0"),
    sa.Column("rejected_prediction_tokens", _LONG, nullable=False, server_default="0"),
    sa.Column("estimated", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("cost_pico", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("first_token_seconds", sa.Double),
    sa.Column("total_seconds", sa.Double),
    sa.Index("ledger_day", "day"),
    sa.Index("ledger_key", "key_id", "opened_at"),
    sa.Index(
        "ledger_open",
        "instance",
        sqlite_where=sa.text("status = 'open'"),
        postgresql_where=sa.text("status = 'open'"),
    ),
)

completions = sa.Table(
    "completions",
    metadata,
    sa.Column("seq", _LONG, primary_key=True, autoincrement=True),
    sa.Column("id", sa.String(128), nullable=False),
    sa.Column("account", sa.Text, nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("created", _LONG, nullable=False),
    sa.Column("saved_at", sa.Double, nullable=False),
    sa.Column("completion", sa.LargeBinary, nullable=False),
    sa.Column("messages", sa.LargeBinary, nullable=False),
    sa.Column("has_metadata", sa.Boolean, nullable=False),
    sa.UniqueConstraint("account", "id", name="completions_id"),
    sa.Index("completions_order", "account", "created", "seq"),
    sa.Index("completions_saved", "saved_at"),
)

completion_metadata = sa.Table(
    "completion_metadata",
    metadata,
    sa.Column("seq", _LONG, sa.ForeignKey("completions.seq", ondelete="CASCADE"), primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
    sa.Column("position", sa.Integer, nullable=False),
    sa.Index("completion_metadata_value", "name", "value"),
)


Write: TypeAlias = tuple[sa.Insert | sa.Update, Sequence[dict[str, Any]]]
"""A statement and the rows that it is done for: all with the same columns, and nothing in the
statement is a parameter but they."""


class DatabaseError(Exception):
    """The database cannot be used; the text names the URL without its password."""


class Database:
    """An open database at the newest revision. Close it."""

    def __init__(self, engine: AsyncEngine, *, volatile: bool = False) -> None:
        self._engine = engine
        self._writer: _SqliteWriter | None = None
        if not self.shared and not _in_memory(engine.url):
            self._writer = _SqliteWriter(engine.url)
        self.volatile = volatile
        """In memory only: everything is lost with the process."""

    @property
    def url(self) -> str:
        """Without its password."""
        return self._engine.url.render_as_string()

    @property
    def shared(self) -> bool:
        """Other replicas may write it too."""
        return self._engine.url.get_backend_name() != "sqlite"

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[AsyncConnection, None]:
        async with self._engine.connect() as connection:
            yield connection

    @asynccontextmanager
    async def writing(self) -> AsyncGenerator[AsyncConnection, None]:
        """One transaction that takes SQLite's write lock at once: it cannot fail half-way for
        want of it."""
        async with self._engine.connect() as connection:
            await connection.execution_options(begin="BEGIN IMMEDIATE")
            async with connection.begin():
                yield connection

    async def write(self, batch: Sequence[Write]) -> None:
        """All of it in one transaction. SQLite does it in one visit to a thread of its own: a
        visit for each statement would cost more than the statements."""
        if self._writer is not None:
            await self._writer.write(batch)
            return
        async with self.writing() as connection:
            for statement, rows in batch:
                await connection.execute(statement, rows)

    async def close(self) -> None:
        if self._writer is not None:
            await self._writer.close()
        await self._engine.dispose()
        await asyncio.sleep(0)  # a closed connection lets go of its socket a moment later


class _SqliteWriter:
    """One connection that stays open, in one thread, for batches of writes.

    The statements are compiled once and go to the driver: what SQLAlchemy does for each costs
    more than SQLite's own work on a row.
    """

    def __init__(self, url: URL) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sqlite-writer")
        self._engine = sa.create_engine(
            url.set(drivername="sqlite"), hide_parameters=True, poolclass=StaticPool
        )
        event.listen(self._engine, "connect", _prepare_sqlite)
        self._dialect = sqlite.dialect(paramstyle="named")
        self._compiled: dict[sa.Insert | sa.Update, str] = {}
        self._connection: sqlite3.Connection | None = None

    async def write(self, batch: Sequence[Write]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._write, batch)

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._engine.dispose)
        self._thread.shutdown()

    def _write(self, batch: Sequence[Write]) -> None:
        """Raises SQLAlchemyError, as its own connections do."""
        if self._connection is None:
            connection = self._engine.raw_connection().driver_connection
            assert isinstance(connection, sqlite3.Connection)
            self._connection = connection
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            with self._connection:  # a commit, or a rollback where something is raised
                for statement, rows in batch:
                    self._connection.executemany(self._sql(statement, rows[0]), rows)
        except sqlite3.Error as error:
            raise DBAPIError.instance(
                None, None, error, sqlite3.Error, hide_parameters=True
            ) from error
        except (OverflowError, UnicodeEncodeError) as error:  # what no column takes
            raise DataError(None, None, error, hide_parameters=True) from error

    def _sql(self, statement: sa.Insert | sa.Update, row: dict[str, Any]) -> str:
        sql = self._compiled.get(statement)
        if sql is None:
            compiled = statement.compile(dialect=self._dialect, column_keys=list(row))
            sql = self._compiled[statement] = str(compiled)
        return sql


async def open_database(config: StoreConfig) -> Database:
    """Opens the database of the configuration and brings it to the newest revision.

    Where nothing is configured and the default file cannot be written, an empty database in
    memory takes its place. Raises DatabaseError.
    """
    url = _driver_url(config.url)
    try:
        return await _open(url)
    except DatabaseError:
        if config.url != StoreConfig().url:
            raise
        return await _open(make_url("sqlite+aiosqlite://"), volatile=True)


async def _open(url: URL, *, volatile: bool = False) -> Database:
    engine = _create_engine(url)
    database = Database(engine, volatile=volatile or _in_memory(url))
    try:
        async with database.writing() as connection:
            if url.get_backend_name() == "postgresql":
                await connection.execute(sa.text("SELECT pg_advisory_xact_lock(7236710283)"))
            await connection.run_sync(_upgrade)
    except (DBAPIError, SQLAlchemyError, OSError, DatabaseError) as error:
        await database.close()
        shown = url.set(drivername=url.get_backend_name()).render_as_string()
        reason = error.orig if isinstance(error, DBAPIError) else error
        raise DatabaseError(f"store.url '{shown}' cannot be used: {reason}") from error
    return database


def _driver_url(text: str) -> URL:
    try:
        url = make_url(text)
    except ArgumentError:
        raise DatabaseError(
            "store.url is not a URL such as 'sqlite:///rejoinder.db' or "
            "'postgresql://user@host/name'"
        ) from None
    driver = _DRIVERS.get(url.drivername)
    if driver is None:
        raise DatabaseError(
            f"store.url: no database '{url.drivername}'; known: sqlite:///FILE, postgresql://…"
        )
    return url.set(drivername=driver)


def _in_memory(url: URL) -> bool:
    return url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:")


def _create_engine(url: URL) -> AsyncEngine:
    if url.get_backend_name() != "sqlite":
        return create_async_engine(
            url, pool_pre_ping=True, pool_size=5, max_overflow=10, hide_parameters=True
        )
    pool: dict[str, Any] = {}
    if _in_memory(url):  # one connection is the database; who wants it waits for it
        pool = {"poolclass": AsyncAdaptedQueuePool, "pool_size": 1, "max_overflow": 0}
    engine = create_async_engine(url, hide_parameters=True, **pool)
    event.listen(engine.sync_engine, "connect", _prepare_sqlite)
    event.listen(engine.sync_engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: DBAPIConnection, _record: ConnectionPoolEntry) -> None:
    """WAL: readers do not wait for the writer, and a killed process loses nothing committed."""
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA busy_timeout = 10000")
    _use_wal(cursor)
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _use_wal(cursor: DBAPICursor) -> None:
    """SQLite does not wait for a file that another process is just turning into WAL, whatever
    the timeout: asks again for a while."""
    for pause in (*[0.02] * 100, None):
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if pause is None or "locked" not in str(error):
                raise
            await_only(asyncio.sleep(pause))


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get("begin", "BEGIN"))


def _upgrade(connection: Connection) -> None:
    """Migrations are only loaded where there is something to migrate: they cost half a second."""
    if current_revision(connection) != HEAD:
        from rejoinder.service.migrating import upgrade

        upgrade(connection)


def current_revision(connection: Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()


def host_name() -> str:
    """This machine since its last boot: where a process id means something."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()}/{boot}"


def process_started(pid: int) -> str:
    """When a process of this machine started, in its kernel's words; "" when it does not run."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else fields[19]


def this_process() -> tuple[str, int, str]:
    """(host, process id, start) of this process."""
    pid = os.getpid()
    return host_name(), pid, process_started(pid)
