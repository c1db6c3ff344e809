"""The official SDK for Node, the version of the issue and the newest: its cases, one by one."""

import pytest

from tests.clients.programs import Case, installed, need_environment, node_cases, run_node

PROGRAM = "openai_sdk.mjs"

need_environment()

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module", params=["openai-6", "openai-7"])
def cases(request: pytest.FixtureRequest, address: dict[str, str]) -> dict[str, Case]:
    return run_node(PROGRAM, installed(request.param), address)


@pytest.mark.parametrize("name", node_cases(PROGRAM))
def test_openai_sdk_for_node(cases: dict[str, Case], name: str) -> None:
    assert cases[name].outcome == "passed", cases[name].text
