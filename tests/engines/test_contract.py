"""The engine contract over every engine that can run here. One line in FACTORIES adds one."""

import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import pytest

from rejoinder.engines.fleet import Fleet
from rejoinder.engines.remote import RemoteEngine
from rejoinder.engines.sglang import SGLANG
from rejoinder.engines.vllm import VLLM
from rejoinder.types import Grammar
from tests.engines.contract import CHECKS, Subject
from tests.engines.fake_sglang import FakeSglang
from tests.engines.fake_vllm import FakeVllm
from tests.engines.test_real_vllm import chat_prompt
from tests.engines.toy_model import ToyEngine

PROMPT = (11, 12, 13, 14, 15, 16, 17, 18)
LONG = tuple(range(20, 120))
REGEX = Grammar("regex", "[0-9]{9}")

Factory = Callable[[], AbstractAsyncContextManager[Subject]]


@asynccontextmanager
async def toy() -> AsyncIterator[Subject]:
    engine = ToyEngine()
    yield Subject(engine, PROMPT, lambda: engine.running, grammar=REGEX)


def vllm(**options: object) -> Factory:
    @asynccontextmanager
    async def make() -> AsyncIterator[Subject]:
        async with FakeVllm(**options).serve() as server:  # type: ignore[arg-type]
            engine = RemoteEngine(VLLM, server.url)
            await engine.start()
            yield Subject(engine, PROMPT, lambda: server.running, grammar=REGEX, cached_prompt=LONG)
            await engine.close()

    return make


def sglang(**options: object) -> Factory:
    @asynccontextmanager
    async def make() -> AsyncIterator[Subject]:
        async with FakeSglang(**options).serve() as server:  # type: ignore[arg-type]
            engine = RemoteEngine(SGLANG, server.url)
            await engine.start()
            yield Subject(engine, PROMPT, lambda: server.running, grammar=REGEX, cached_prompt=LONG)
            await engine.close()

    return make


@asynccontextmanager
async def toy_fleet() -> AsyncIterator[Subject]:
    engines = [ToyEngine(), ToyEngine(tokens_per_step=3)]
    fleet = Fleet({"a": engines[0], "b": engines[1]})
    yield Subject(fleet, PROMPT, lambda: sum(e.running for e in engines), grammar=REGEX)
    await fleet.close()


@asynccontextmanager
async def vllm_fleet() -> AsyncIterator[Subject]:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(FakeVllm().serve()) for _ in range(2)]
        fleet = Fleet({server.url: RemoteEngine(VLLM, server.url) for server in servers})
        await fleet.start()
        yield Subject(
            fleet,
            PROMPT,
            lambda: sum(server.running for server in servers),
            grammar=REGEX,
            cached_prompt=LONG,
        )
        await fleet.close()


@asynccontextmanager
async def real_vllm() -> AsyncIterator[Subject]:
    """SmolLM2 on a real server, as test_real_vllm.py says how to start it."""
    engine = RemoteEngine(VLLM, os.environ["REJOINDER_VLLM_URL"])
    await engine.start()
    grammar = Grammar("regex", "[A-Z][a-z]{2,5} [0-9]{3}")
    prompt = await chat_prompt("Write a long story about a lighthouse.")
    # Longer than two of its blocks, and never sent before.
    first = uuid.uuid4().int % 40_000 + 300
    long = (first, *range(300, 600))
    yield Subject(engine, prompt, lambda: 0, grammar=grammar, cached_prompt=long)
    await engine.close()


FACTORIES: dict[str, Factory] = {
    "toy": toy,
    "vllm": vllm(),
    "vllm-several-tokens-an-event": vllm(tokens_per_event=3, events_per_write=2),
    "vllm-without-ranks": vllm(ranks=False),
    "vllm-completions": vllm(scale_out=False),
    "vllm-keep-alive-comments": vllm(comments=True),
    "sglang": sglang(),
    "sglang-incremental": sglang(incremental=True, tokens_per_event=2),
    "fleet-of-toys": toy_fleet,
    "fleet-of-vllm": vllm_fleet,
}
if "REJOINDER_VLLM_URL" in os.environ:
    FACTORIES["real-vllm"] = real_vllm


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES.keys())
async def test_contract(factory: Factory, check: Callable[[Subject], Awaitable[None]]) -> None:
    async with factory() as subject:
        await check(subject)
