"""The engine contract, over the embedded engine."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from rejoinder.types import Grammar
from tests.engines.contract import CHECKS, Subject
from tests.engines.llama_engine import chat, engine

pytestmark = [pytest.mark.llama, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def subject() -> AsyncIterator[Subject]:
    async with engine(threads=1, context_length=1024) as made:
        yield Subject(
            made,
            chat(made, "Write a short poem about the sea."),
            lambda: made.stats().running,
            grammar=Grammar("regex", "[A-Z][a-z]{2,5} [0-9]{3}"),
            cached_prompt=tuple(range(300, 360)),
        )


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_contract(subject: Subject, check: Callable[[Subject], Awaitable[None]]) -> None:
    await check(subject)
