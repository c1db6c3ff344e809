"""Against a real vLLM, where REJOINDER_VLLM_URL names one; skipped elsewhere.

It serves a small model with `--enable-scale-out --enable-prompt-tokens-details --dtype float32`
(in bfloat16 a sequence depends on what else is in its batch).
"""

import asyncio
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from urllib.parse import urlsplit

import aiohttp
import pytest

from rejoinder.engines.fleet import Fleet
from rejoinder.engines.remote import RemoteEngine
from rejoinder.engines.vllm import VLLM
from rejoinder.engines.vllm_wire import CompletionsWire
from rejoinder.errors import ContextLengthExceeded, InvalidRequest
from rejoinder.types import Counts, Grammar, Prompt, SamplingParams
from tests.engines.contract import Answer, answer

URL = os.environ.get("REJOINDER_VLLM_URL", "")
GREEDY = SamplingParams(max_tokens=24, temperature=0.0)

pytestmark = pytest.mark.skipif(not URL, reason="no REJOINDER_VLLM_URL")


async def chat_prompt(text: str) -> tuple[int, ...]:
    """The ids of one user message, rendered by the server."""
    async with aiohttp.ClientSession() as session:
        models = await (await session.get(f"{URL}/v1/models")).json()
        body = {
            "model": models["data"][0]["id"],
            "messages": [{"role": "user", "content": text}],
            "add_generation_prompt": True,
        }
        async with session.post(f"{URL}/tokenize", json=body) as response:
            return tuple((await response.json())["tokens"])


async def running() -> int:
    async with aiohttp.ClientSession() as session:
        metrics = await (await session.get(f"{URL}/metrics")).text()
    found = re.findall(r"^vllm:num_requests_running\{[^}]*\} ([0-9.]+)", metrics, re.MULTILINE)
    return int(sum(map(float, found)))


@asynccontextmanager
async def engine(url: str = URL, *, completions: bool = False) -> AsyncIterator[RemoteEngine]:
    """`completions`: over `/v1/completions`, whatever else there is."""
    one = RemoteEngine(VLLM, url)
    await one.start()
    if completions:
        one._wire = CompletionsWire()
    yield one
    await one.close()


class Cut:
    """A way to the server that is cut after so many events of a stream."""

    def __init__(self) -> None:
        self.after: int | None = None
        self.url = ""

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Cut"]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield self
        server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = urlsplit(URL)
        answers, requests = await asyncio.open_connection(there.hostname, there.port)
        sending = asyncio.create_task(self._send(reader, requests))
        events = 0
        try:
            while part := await answers.read(65536):
                events += part.count(b"data: ")
                writer.write(part)
                await writer.drain()
                if self.after is not None and events >= self.after:
                    self.after = None
                    break
        except OSError:
            pass
        finally:
            sending.cancel()
            for one in (writer, requests):
                one.close()
            await asyncio.gather(sending, return_exceptions=True)

    async def _send(self, reader: asyncio.StreamReader, requests: asyncio.StreamWriter) -> None:
        while part := await reader.read(65536):
            requests.write(part)
            await requests.drain()


async def cut_answers(
    prompt: tuple[int, ...],
    params: SamplingParams,
    cuts: Callable[[int], range],
    *,
    completions: bool,
) -> AsyncGenerator[tuple[Answer, Answer, int], None]:
    """The whole answer, and that of a fleet whose first replica is lost after so many events of
    it: the same tokens, and how often it went on elsewhere. `cuts` is given their number."""
    async with (
        Cut().open() as cut,
        engine(cut.url, completions=completions) as first,
        engine(completions=completions) as second,
    ):
        whole = await answer(second, prompt, params)
        assert len(whole.token_ids) > 5
        for after in cuts(len(whole.token_ids)):
            fleet = Fleet({"cut": first, "whole": second})
            fleet._replicas["whole"].sequences = 1
            cut.after = after
            got = await answer(fleet, prompt, params)
            assert got.token_ids == whole.token_ids, after
            assert got.finish_reason == whole.finish_reason
            assert got.counts.completion_tokens == whole.counts.completion_tokens
            yield whole, got, fleet.num_moves


@pytest.mark.parametrize("completions", [False, True])
async def test_a_replica_killed_at_every_token(completions: bool) -> None:
    params = SamplingParams(max_tokens=24, temperature=0.0, num_top_logprobs=2)
    prompt = await chat_prompt("Name three colours.")
    made = cut_answers(prompt, params, lambda n: range(1, n + 2), completions=completions)
    async with aclosing(made) as answers:
        async for whole, got, _ in answers:
            for mine, theirs in zip(got.logprobs, whole.logprobs, strict=True):
                assert mine.logprob == pytest.approx(theirs.logprob, abs=2e-3)


SCHEMA = (
    '{"type":"object","properties":{"name":{"type":"string","maxLength":8},"age":'
    '{"type":"integer"}},"required":["name","age"],"additionalProperties":false}'
)


@pytest.mark.parametrize("completions", [False, True])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(
            max_tokens=40,
            temperature=0.0,
            grammar=Grammar("json_schema", SCHEMA),
            num_top_logprobs=1,
        ),
        SamplingParams(
            max_tokens=40, temperature=1.0, seed=5, grammar=Grammar("json_schema", SCHEMA)
        ),
        SamplingParams(max_tokens=16, temperature=1.0, seed=6, presence_penalty=1.0),
    ],
)
async def test_what_cannot_go_on_is_begun_again(params: SamplingParams, completions: bool) -> None:
    """vLLM's draws follow from the seed, so another server writes the same once more."""
    prompt = await chat_prompt("Describe Tom, aged 3, as JSON.")
    made = cut_answers(prompt, params, lambda n: range(1, n, 3), completions=completions)
    async with aclosing(made) as answers:
        async for _, _, num_moves in answers:
            assert num_moves == 1


async def test_closing_frees_the_server() -> None:
    async with engine() as one:
        steps = one.generate(
            Prompt(token_ids=await chat_prompt("Write a story.")),
            SamplingParams(max_tokens=500),
            Counts(),
        )
        await anext(steps)
        assert await running() == 1
        await steps.aclose()
        async with asyncio.timeout(3):
            while await running():
                await asyncio.sleep(0.05)


async def test_refusals_are_ours_or_the_clients() -> None:
    async with engine() as one:
        with pytest.raises(ContextLengthExceeded):
            await answer(one, (300,) * 2048, GREEDY)
        with pytest.raises(InvalidRequest):
            await answer(one, (300, 99_999_999), GREEDY)
        grammar = Grammar("json_schema", '{"type":"objekt"}', param="response_format")
        with pytest.raises(InvalidRequest) as caught:
            await answer(one, (300, 301), SamplingParams(max_tokens=5, grammar=grammar))
        assert caught.value.param == "response_format"


@pytest.mark.skipif(
    os.environ.get("REJOINDER_VLLM_BACKEND") != "guidance",
    reason="the server chooses its own grammar backend, and that fails on special tokens",
)
async def test_a_special_token_in_a_lark_grammar() -> None:
    """llguidance's Lark, in which special tokens have their own spelling. It needs a server with
    `--structured-outputs-config '{"backend":"guidance"}'`: left to itself vLLM 0.32 keeps the
    backend of its first request for all others, and ended this one with an internal error."""
    grammar = Grammar("lark", 'start: "yes" <|im_start|> "no"')
    params = SamplingParams(max_tokens=10, temperature=0.0, grammar=grammar)
    async with engine() as one:
        whole = await answer(one, await chat_prompt("Say yes."), params)
        assert whole.finish_reason == "stop" and whole.token_ids


async def test_both_endpoints_agree() -> None:
    params = SamplingParams(max_tokens=12, temperature=1.5, seed=11, num_top_logprobs=3)
    prompt = await chat_prompt("Say something surprising.")
    async with engine() as one, engine(completions=True) as other:
        tokens = await answer(one, prompt, params)
        completions = await answer(other, prompt, params)
    assert tokens.token_ids == completions.token_ids
    for mine, theirs in zip(tokens.logprobs, completions.logprobs, strict=True):
        assert min(mine.rank, 21) == theirs.rank
        assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-3)
