"""One scripted server for all clients."""

from collections.abc import Iterator

import pytest

from rejoinder.testing import TestServer
from tests.clients.servers import KEY, SCRIPT, serving


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestServer]:
    with serving(SCRIPT, tmp_path_factory.mktemp("clients")) as server:
        yield server


@pytest.fixture(scope="session")
def address(server: TestServer) -> dict[str, str]:
    """What the programs are told."""
    return {"REJOINDER_URL": server.url, "REJOINDER_KEY": KEY}
