"""Every test of what is stored runs over SQLite and PostgreSQL alike."""

import shutil
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from rejoinder.config import StoreConfig
from rejoinder.service.database import Database, open_database
from tests.service import servers


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if servers.postgres_folder() is None:
        pytest.skip("PostgreSQL is not installed")
    with servers.postgres(tmp_path_factory.mktemp("postgres")) as url:
        yield url


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if shutil.which("redis-server") is None:
        pytest.skip("Redis is not installed")
    with servers.redis(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest_asyncio.fixture(params=["sqlite", "postgresql"])
async def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/rejoinder.db"
    server: str = request.getfixturevalue("postgres_server")
    return await servers.create_database(server, f"t{uuid.uuid4().hex}")


@pytest_asyncio.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = await open_database(StoreConfig(url=database_url))
    yield database
    await database.close()
