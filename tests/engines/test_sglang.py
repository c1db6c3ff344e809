"""The SGLang client against the shapes of its source: what is sent, what is read, failures."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest

from rejoinder.engines.http import Timeouts
from rejoinder.engines.remote import RemoteEngine
from rejoinder.engines.sglang import SGLANG, EventDecoder, GenerateWire
from rejoinder.errors import (
    ChatError,
    InvalidRequest,
    Overloaded,
    ProviderFailed,
    ProviderTimeout,
)
from rejoinder.types import Counts, Grammar, Prompt, SamplingParams
from tests.engines.contract import answer, until
from tests.engines.fake_sglang import FakeSglang, SglangFault

PROMPT = (11, 12, 13, 14, 15, 16, 17, 18)
GREEDY = SamplingParams(max_tokens=10, temperature=0.0)
SHORT = Timeouts(connect=1.0, first_token=0.3, between_tokens=0.3)


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[tuple[RemoteEngine, FakeSglang]]:
    async with FakeSglang(**options).serve() as server:
        engine = RemoteEngine(SGLANG, server.url, timeouts=SHORT)
        try:
            yield engine, server
        finally:
            await engine.close()


def test_the_request_names_every_field_as_sglang_does() -> None:
    params = SamplingParams(
        max_tokens=7,
        temperature=0.7,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.1,
        seed=2**40 + 42,
        logit_bias=((7042, 5.0),),
        num_top_logprobs=2,
        stop_token_ids=(2, 9),
        tier="priority",
    )
    prompt = Prompt(token_ids=(1, 2, 3), cache_salt="team-a")
    assert json.loads(GenerateWire().encode("r1", "m", prompt, params)) == {
        "rid": "r1",
        "input_ids": [1, 2, 3],
        "stream": True,
        "return_logprob": True,
        "top_logprobs_num": 20,
        "logprob_start_len": -1,
        "priority": 10,
        "extra_key": "team-a",
        "sampling_params": {
            "max_new_tokens": 7,
            "temperature": 0.7,
            "top_p": 0.9,
            "top_k": 40,
            "min_p": 0.05,
            "presence_penalty": 0.5,
            "frequency_penalty": -0.5,
            "repetition_penalty": 1.1,
            "sampling_seed": 42,
            "skip_special_tokens": False,
            "logit_bias": {"7042": 5.0},
            "stop_token_ids": [2, 9],
        },
    }


def test_what_is_not_asked_for_is_not_sent() -> None:
    body = json.loads(GenerateWire().encode("r1", "m", Prompt(token_ids=(1,)), GREEDY))
    assert body.keys() == {"rid", "input_ids", "stream", "sampling_params"}
    assert body["sampling_params"]["top_k"] == -1


@pytest.mark.parametrize(
    ("grammar", "expected"),
    [
        (Grammar("lark", 'start: "a"'), {"ebnf": 'start: "a"'}),
        (Grammar("json_schema", '{"type":"object"}'), {"json_schema": '{"type":"object"}'}),
        (Grammar("regex", "[0-9]+"), {"regex": "[0-9]+"}),
    ],
)
def test_grammars_are_passed_on(grammar: Grammar, expected: dict[str, str]) -> None:
    params = SamplingParams(max_tokens=1, grammar=grammar)
    body = json.loads(GenerateWire().encode("r1", "m", Prompt(token_ids=(1,)), params))
    sampling = body["sampling_params"]
    assert {k: sampling[k] for k in expected} == expected
    assert len({"ebnf", "json_schema", "regex"} & sampling.keys()) == 1


async def test_cumulative_and_incremental_streams_read_alike() -> None:
    params = SamplingParams(max_tokens=12, num_top_logprobs=3, temperature=2.0, seed=5)
    answers = []
    for options in ({}, {"incremental": True}, {"tokens_per_event": 4}):
        async with serving(**options) as (engine, _):
            answers.append(await answer(engine, PROMPT, params))
    first, *others = answers
    for other in others:
        assert (other.token_ids, other.logprobs) == (first.token_ids, first.logprobs)


async def test_end_tokens_are_counted_and_not_given() -> None:
    async with serving() as (engine, _):
        whole = await answer(engine, PROMPT, SamplingParams(max_tokens=300, temperature=0.0))
        assert whole.finish_reason == "stop" and 2 not in whole.token_ids
        assert whole.counts.completion_tokens == len(whole.token_ids) + 1


FAILURES: list[tuple[Literal["die", "hang", "abort"], type[ChatError]]] = [
    ("die", ProviderFailed),
    ("hang", ProviderTimeout),
    ("abort", Overloaded),
]


@pytest.mark.parametrize("after", [0, 1, 4])
@pytest.mark.parametrize(("kind", "expected"), FAILURES)
async def test_a_lost_stream_is_an_error_after_its_tokens(
    kind: Literal["die", "hang", "abort"], expected: type[ChatError], after: int
) -> None:
    async with serving() as (engine, server):
        whole = (await answer(engine, PROMPT, GREEDY)).token_ids
        server.faults = [SglangFault(kind, after)]
        got: list[int] = []
        counts = Counts()
        with pytest.raises(expected):
            async for step in engine.generate(Prompt(token_ids=PROMPT), GREEDY, counts):
                got += step.token_ids
        assert tuple(got) == whole[:after]
        assert counts.completion_tokens == after
        await until(lambda: server.running == 0)


async def test_a_refusal_within_the_stream_is_the_clients() -> None:
    async with serving() as (engine, _):
        prompt = Prompt(token_ids=(5, 999999))
        with pytest.raises(InvalidRequest, match="vocab"):
            async for _ in engine.generate(prompt, GREEDY, Counts()):
                pass


async def test_an_invalid_grammar_names_its_field() -> None:
    params = SamplingParams(max_tokens=5, grammar=Grammar("regex", "(", param="response_format"))
    async with serving() as (engine, server):
        server.faults = [SglangFault("invalid")]
        with pytest.raises(InvalidRequest) as caught:
            await answer(engine, PROMPT, params)
        assert caught.value.param is None, "the message does not speak of a grammar"


async def test_closing_tells_the_server_by_name() -> None:
    async with serving(delay=0.01) as (engine, server):
        steps = engine.generate(Prompt(token_ids=PROMPT), GREEDY, Counts())
        await anext(steps)
        await steps.aclose()
        await until(lambda: server.aborts == [server.requests[0]["rid"]])
        await until(lambda: server.running == 0)


async def test_a_finished_sequence_is_not_aborted() -> None:
    async with serving() as (engine, server):
        await answer(engine, PROMPT, GREEDY)
        await asyncio.sleep(0.02)
        assert not server.aborts


async def test_a_server_without_ids_is_refused() -> None:
    async with serving(ids=False) as (engine, _):
        with pytest.raises(ProviderFailed, match="too old"):
            await answer(engine, PROMPT, GREEDY)


async def test_health_and_start() -> None:
    async with serving() as (engine, _):
        assert await engine.healthy()
        assert engine.context_length == 2048
        wrong = RemoteEngine(SGLANG, engine._server.base_url, model="other")
        with pytest.raises(ProviderFailed, match="no model 'other'"):
            await wrong.start()
        assert not await wrong.healthy()
        await wrong.close()


@pytest.mark.parametrize(
    "payload",
    [
        b"not json",
        b'{"output_ids":[1],"meta_info":{"finish_reason":{"type":"weird"},"completion_tokens":1}}',
        b'{"output_ids":[1],"meta_info":{"completion_tokens":1,"output_token_logprobs":[]}}',
        b'{"output_ids":[],"meta_info":{"completion_tokens":1,"finish_reason":"stop"}}',
    ],
)
def test_events_that_cannot_be_an_answer(payload: bytes) -> None:
    read = EventDecoder(SamplingParams(max_tokens=5, num_top_logprobs=1))
    with pytest.raises(ProviderFailed):
        read(payload)


def test_events_that_go_back_are_refused() -> None:
    read = EventDecoder(GREEDY)
    read(b'{"output_ids":[1,2,3],"meta_info":{"completion_tokens":3}}')
    with pytest.raises(ProviderFailed, match="do not follow"):
        read(b'{"output_ids":[1],"meta_info":{"completion_tokens":1}}')
