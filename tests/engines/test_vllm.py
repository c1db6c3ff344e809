"""The vLLM client against the fake server: what is sent, what is read, every trap and failure."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rejoinder.engines.http import Timeouts
from rejoinder.engines.remote import RemoteEngine
from rejoinder.engines.vllm import VLLM
from rejoinder.engines.vllm_wire import CompletionsWire, TokensWire
from rejoinder.engines.wire import DataLines, Refused, ranked, refusal
from rejoinder.errors import (
    ChatError,
    ContextLengthExceeded,
    InvalidRequest,
    Overloaded,
    ProviderFailed,
    ProviderTimeout,
    Unavailable,
)
from rejoinder.types import Counts, Grammar, Prompt, SamplingParams, Step
from tests.engines.contract import answer, until
from tests.engines.fake_vllm import FakeVllm, Kind, ServerFault

GOLDEN = Path(__file__).parent.parent / "golden" / "vllm"
PROMPT = (11, 12, 13, 14, 15, 16, 17, 18)
GREEDY = SamplingParams(max_tokens=10, temperature=0.0)
SHORT = Timeouts(connect=1.0, first_token=0.3, between_tokens=0.3)


@asynccontextmanager
async def serving(
    timeouts: Timeouts = SHORT, model: str = "", **options: Any
) -> AsyncIterator[tuple[RemoteEngine, FakeVllm]]:
    async with FakeVllm(**options).serve() as server:
        engine = RemoteEngine(
            VLLM, server.url, model=model, api_key=server.api_key, timeouts=timeouts
        )
        try:
            yield engine, server
        finally:
            await engine.close()


async def collect(
    engine: RemoteEngine, params: SamplingParams = GREEDY, counts: Counts | None = None
) -> list[Step]:
    steps = engine.generate(Prompt(token_ids=PROMPT), params, counts or Counts())
    return [step async for step in steps]


def ids(steps: list[Step]) -> tuple[int, ...]:
    return tuple(i for step in steps for i in step.token_ids)


# ---------------------------------------------------------------- what is sent


FULL = SamplingParams(
    max_tokens=7,
    temperature=0.7,
    top_p=0.9,
    top_k=40,
    min_p=0.05,
    presence_penalty=0.5,
    frequency_penalty=-0.5,
    repetition_penalty=1.1,
    seed=42,
    logit_bias=((7042, 5.0),),
    num_top_logprobs=2,
    stop_token_ids=(2, 9),
    tier="priority",
)
SAMPLING = {
    "max_tokens": 7,
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.05,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "repetition_penalty": 1.1,
    "seed": 42,
    "logit_bias": {"7042": 5.0},
    "stop_token_ids": [2, 9],
}
ENVELOPE = {
    "request_id": "r1",
    "model": "smol",
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": False},
    "priority": -10,
    "cache_salt": "team-a",
}


def test_tokens_request_names_every_field_as_vllm_does() -> None:
    prompt = Prompt(token_ids=(1, 2, 3), cache_salt="team-a")
    body = json.loads(TokensWire().encode("r1", "smol", prompt, FULL))
    sampling = {**SAMPLING, "logprobs": 2, "detokenize": False}
    assert body == {**ENVELOPE, "token_ids": [1, 2, 3], "sampling_params": sampling}


def test_completions_request_names_every_field_as_vllm_does() -> None:
    prompt = Prompt(token_ids=(1, 2, 3), cache_salt="team-a")
    body = json.loads(CompletionsWire().encode("r1", "smol", prompt, FULL))
    assert body == {
        **ENVELOPE,
        **SAMPLING,
        "prompt": [1, 2, 3],
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "logprobs": 20,
    }


def test_what_is_not_asked_for_is_not_sent() -> None:
    body = json.loads(TokensWire().encode("r", "m", Prompt(token_ids=(1,)), GREEDY))
    absent = {"priority", "cache_salt"}
    assert not absent & body.keys()
    sampling = body["sampling_params"]
    assert not {"logprobs", "logit_bias", "stop_token_ids", "structured_outputs"} & sampling.keys()


@pytest.mark.parametrize(
    ("grammar", "expected"),
    [
        (Grammar("lark", 'start: "a"'), {"grammar": 'start: "a"'}),
        (Grammar("json_schema", '{"type":"object"}'), {"json": '{"type":"object"}'}),
        (Grammar("regex", "[0-9]+"), {"regex": "[0-9]+"}),
    ],
)
@pytest.mark.parametrize("wire", [TokensWire(), CompletionsWire()])
def test_grammars_are_passed_on(
    wire: TokensWire | CompletionsWire, grammar: Grammar, expected: dict[str, str]
) -> None:
    params = SamplingParams(max_tokens=1, grammar=grammar)
    body = json.loads(wire.encode("r", "m", Prompt(token_ids=(1,)), params))
    assert body.get("sampling_params", body)["structured_outputs"] == expected


@pytest.mark.parametrize("seed", [0, 1, -1, -(2**63), 2**63 - 1, 2**64 - 1])
def test_every_seed_fits_and_is_one(seed: int) -> None:
    params = SamplingParams(max_tokens=1, seed=seed)
    body = json.loads(TokensWire().encode("r", "m", Prompt(token_ids=(1,)), params))
    assert 0 <= body["sampling_params"]["seed"] < 2**63


def test_long_salts_stay_apart() -> None:
    def salt(text: str) -> str:
        prompt = Prompt(token_ids=(1,), cache_salt=text)
        return str(json.loads(TokensWire().encode("r", "m", prompt, GREEDY))["cache_salt"])

    assert salt("a" * 2000) != salt("a" * 1999 + "b")
    assert len(salt("a" * 2000)) <= 1024
    assert salt("short") == "short"


async def test_request_ids_are_unique() -> None:
    async with serving() as (engine, server):
        await asyncio.gather(*(collect(engine) for _ in range(10)))
        assert len({r["request_id"] for r in server.generations}) == 10


# ---------------------------------------------------------------- the start


async def test_the_tokens_endpoint_is_taken_where_it_is() -> None:
    async with serving() as (engine, server):
        await engine.start()
        assert engine.endpoint == "/inference/v1/generate"
        assert engine.context_length == 2048
        assert [r["sampling_params"]["max_tokens"] for r in server.requests] == [1]


async def test_without_it_completions_is() -> None:
    async with serving(scale_out=False) as (engine, _):
        steps = await collect(engine)
        assert engine.endpoint == "/v1/completions"
        assert len(ids(steps)) == 10


async def test_both_endpoints_give_the_same_answer() -> None:
    params = SamplingParams(max_tokens=12, num_top_logprobs=4, temperature=2.0, seed=3)
    answers = []
    for options in ({}, {"scale_out": False}, {"ranks": False}):
        async with serving(**options) as (engine, _):
            answers.append(await answer(engine, PROMPT, params))
    first, second, third = answers
    assert first.token_ids == second.token_ids == third.token_ids
    assert any(p.rank > 20 for p in first.logprobs), "no rank that only the tokens endpoint knows"
    for known, other in (
        (k, o) for a in (second, third) for k, o in zip(first.logprobs, a.logprobs, strict=True)
    ):
        assert (other.token_id, other.logprob, other.top) == (
            known.token_id,
            known.logprob,
            known.top,
        )
        assert other.rank == min(known.rank, 21)


async def test_nothing_is_sent_before_it_is_needed() -> None:
    engine = RemoteEngine(VLLM, "http://127.0.0.1:9")
    with pytest.raises(Unavailable):
        _ = engine.context_length
    assert engine.endpoint == ""
    await engine.close()


async def test_the_models_own_name_is_checked() -> None:
    async with serving(model="other") as (engine, _):
        with pytest.raises(ProviderFailed, match="no model 'other'; it has: smol"):
            await engine.start()
        assert not await engine.healthy()
        with pytest.raises(ProviderFailed):
            await collect(engine)


async def test_configured_context_length_can_only_be_less() -> None:
    async with FakeVllm().serve() as server:
        for configured, expected in ((100, 100), (9999, 2048)):
            engine = RemoteEngine(VLLM, server.url, context_length=configured)
            await engine.start()
            assert engine.context_length == expected
            await engine.close()


async def test_keys_are_sent_and_a_wrong_one_is_not_the_clients_fault() -> None:
    async with serving(api_key="k1") as (engine, server):
        assert await collect(engine)
        wrong = RemoteEngine(VLLM, server.url, api_key="k2")
        with pytest.raises(ProviderFailed, match="refused the key"):
            await collect(wrong)
        await wrong.close()


async def test_a_base_url_with_v1_works_too() -> None:
    async with FakeVllm().serve() as server:
        engine = RemoteEngine(VLLM, server.url + "/v1/")
        assert ids(await collect(engine))
        await engine.close()


async def test_fingerprint_follows_the_model() -> None:
    prints = set()
    for name in ("smol", "smol", "other"):
        async with serving(model="") as (engine, server):
            server.model = name
            await engine.start()
            prints.add(engine.fingerprint)
    assert len(prints) == 2


async def test_health() -> None:
    async with serving() as (engine, server):
        assert await engine.healthy()
        server.healthy = False
        assert not await engine.healthy()
    nobody = RemoteEngine(VLLM, "http://127.0.0.1:9", timeouts=SHORT)
    assert not await nobody.healthy()
    await nobody.close()


# ---------------------------------------------------------------- what is read


async def test_end_tokens_are_counted_and_not_given() -> None:
    async with serving() as (engine, _):
        params = SamplingParams(max_tokens=300, temperature=0.0)
        whole = await answer(engine, PROMPT, params)
        assert whole.finish_reason == "stop"
        assert 2 not in whole.token_ids
        assert whole.counts.completion_tokens == len(whole.token_ids) + 1


async def test_events_of_one_read_become_one_step() -> None:
    async with serving(events_per_write=6) as (engine, _):
        steps = await collect(engine)
        assert len(ids(steps)) == 10
        assert len(steps) < 6


async def test_cached_tokens_are_reported() -> None:
    async with serving() as (engine, _):
        long = tuple(range(20, 120))
        await answer(engine, long, GREEDY, salt="a")
        assert (await answer(engine, long, GREEDY, salt="a")).counts.cached_tokens == 96
        assert (await answer(engine, long, GREEDY, salt="b")).counts.cached_tokens == 0


async def test_a_server_that_hides_them_is_served_too() -> None:
    async with serving(prompt_details=False) as (engine, _):
        assert (await answer(engine, PROMPT, GREEDY)).counts.cached_tokens == 0


async def test_too_many_tokens_are_what_fits() -> None:
    async with serving(max_model_len=20) as (engine, server):
        steps = await collect(engine, SamplingParams(max_tokens=500, temperature=0.0))
        assert len(ids(steps)) == 12 and steps[-1].finish_reason == "length"
        assert server.generations[0]["sampling_params"]["max_tokens"] == 12


async def test_a_prompt_that_leaves_no_room_is_not_sent() -> None:
    async with serving(max_model_len=8) as (engine, server):
        with pytest.raises(ContextLengthExceeded, match="8 tokens") as caught:
            await collect(engine)
        assert caught.value.param == "messages"
        assert not server.generations


async def test_connections_are_kept() -> None:
    async with serving() as (engine, _server):
        for _ in range(5):
            await collect(engine)
        connector = engine._server._client().connector
        assert connector is not None
        assert sum(len(kept) for kept in connector._conns.values()) == 1  # type: ignore[attr-defined]


# ---------------------------------------------------------------- failures


FAILURES: list[tuple[Kind, type[ChatError]]] = [
    ("die", ProviderFailed),
    ("hang", ProviderTimeout),
    ("engine_dead", ProviderFailed),
    ("abort", ProviderFailed),
    ("cut", ProviderFailed),
    ("bare_end", ProviderFailed),
]


@pytest.mark.parametrize("scale_out", [True, False])
@pytest.mark.parametrize("after", [0, 1, 4])
@pytest.mark.parametrize(("kind", "expected"), FAILURES)
async def test_a_lost_stream_is_an_error_after_its_tokens(
    kind: Kind, expected: type[ChatError], after: int, scale_out: bool
) -> None:
    async with serving(scale_out=scale_out) as (engine, server):
        whole = ids(await collect(engine))
        server.faults = [ServerFault(kind, after)]
        got: list[int] = []
        counts = Counts()
        with pytest.raises(expected) as caught:
            async for step in engine.generate(Prompt(token_ids=PROMPT), GREEDY, counts):
                assert step.finish_reason is None
                got += step.token_ids
        assert isinstance(caught.value, ProviderTimeout) == (kind == "hang")
        assert "EngineCore" not in caught.value.message
        assert tuple(got) == whole[:after]
        assert counts.completion_tokens == after
        assert counts.prompt_tokens == (len(PROMPT) if after else 0)
        await until(lambda: server.running == 0)


async def test_a_finished_answer_needs_nothing_after_it() -> None:
    async with serving() as (engine, server):
        server.faults = [ServerFault("no_done", -1)]
        assert len(ids(await collect(engine))) == 10
        server.faults = [ServerFault("cut", -1)]
        steps = await collect(engine)
        assert len(ids(steps)) == 10 and steps[-1].finish_reason == "length"


@pytest.mark.parametrize(
    ("status", "expected"),
    [(429, Overloaded), (503, Overloaded), (500, ProviderFailed), (502, ProviderFailed)],
)
async def test_statuses(status: int, expected: type[ChatError]) -> None:
    async with serving() as (engine, server):
        await engine.start()
        server.faults = [ServerFault("error_status", status=status)]
        with pytest.raises(expected) as caught:
            await collect(engine)
        assert type(caught.value) is expected
        assert "internal words" not in caught.value.message


async def test_a_full_queue_within_a_200_is_overload() -> None:
    async with serving() as (engine, server):
        await engine.start()
        server.overloaded = 1
        with pytest.raises(Overloaded):
            await collect(engine)
        assert ids(await collect(engine))


async def test_refusals_within_a_200_are_the_clients() -> None:
    async with serving() as (engine, _):
        prompt = Prompt(token_ids=(5, 999999))
        with pytest.raises(InvalidRequest, match="999999 is out of vocabulary"):
            async for _ in engine.generate(prompt, GREEDY, Counts()):
                pass


async def test_a_refused_grammar_names_its_field() -> None:
    async with serving() as (engine, _):
        grammar = Grammar("lark", "bad", param="response_format.json_schema")
        with pytest.raises(InvalidRequest, match="no rule named start") as caught:
            await collect(engine, SamplingParams(max_tokens=5, grammar=grammar))
        assert caught.value.param == "response_format.json_schema"


async def test_nobody_there() -> None:
    engine = RemoteEngine(VLLM, "http://127.0.0.1:9", timeouts=SHORT)
    with pytest.raises(ProviderFailed):
        await collect(engine)
    await engine.close()


@asynccontextmanager
async def speaking(answered: bytes | None) -> AsyncIterator[RemoteEngine]:
    """A server of its own kind: the same bytes to whatever is asked, or never a byte."""
    writers = []

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        if answered is not None:
            writer.write(answered)
            await writer.drain()
            writer.close()

    async with asyncio.timeout(5):
        server = await asyncio.start_server(reply, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        engine = RemoteEngine(VLLM, f"http://127.0.0.1:{port}", timeouts=SHORT)
        try:
            yield engine
        finally:
            await engine.close()
            server.close()
            for writer in writers:
                writer.close()
            await asyncio.gather(*(w.wait_closed() for w in writers), return_exceptions=True)


async def test_silence_before_the_answer_is_a_time_out() -> None:
    async with speaking(None) as engine:
        with pytest.raises(ProviderTimeout):
            await collect(engine)


@pytest.mark.parametrize(
    "answered",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n<html></>",
        b"nonsense\r\n\r\n",
        b"",
        b"HTTP/1.1 307 X\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n",
        b'HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{"data":[{}]}',
    ],
)
async def test_something_else_there(answered: bytes) -> None:
    async with speaking(answered) as engine:
        with pytest.raises(ProviderFailed):
            await collect(engine)


async def test_a_slow_reader_loses_nothing() -> None:
    """The limit is on the server's silence, not on the time that our reader takes."""
    async with serving() as (engine, _):
        got: list[int] = []
        async for step in engine.generate(Prompt(token_ids=PROMPT), GREEDY, Counts()):
            got += step.token_ids
            if len(got) < 3:
                await asyncio.sleep(0.4)
        assert len(got) == 10


HOSTILE = [
    b"not json",
    b'{"choices": [{"index":0,"token_ids":"x"}]}',
    b'{"choices": [{"index":0,"token_ids":[1],"finish_reason":"repetition"}]}',
    b'{"choices": [{"index":0,"token_ids":[1, 2],"logprobs":{"content":[]}}]}',
    b'{"choices": [{"token_ids":[1],"logprobs":{"content":[{"token":"x","logprob":-1}]}}]}',
    b'{"choices": [{"token_ids":[1],"logprobs":{"content":[{"token_id":1}]}}]}',
    b"[]",
    b"null",
    b"\xff\xfe",
]


@pytest.mark.parametrize("payload", HOSTILE)
def test_events_that_cannot_be_an_answer(payload: bytes) -> None:
    read = TokensWire().decoder(SamplingParams(max_tokens=5, num_top_logprobs=1))
    with pytest.raises(ProviderFailed):
        read(payload)


def test_completions_without_ids_are_refused() -> None:
    read = CompletionsWire().decoder(SamplingParams(max_tokens=5))
    with pytest.raises(ProviderFailed, match="too old"):
        read(b'{"choices":[{"index":0,"text":"a","finish_reason":null}]}')


@pytest.mark.parametrize(
    ("body", "message", "status"),
    [
        (b'{"error":"Unauthorized"}', "Unauthorized", 401),
        (b'{"detail":"Not Found"}', "Not Found", 401),
        (b'{"error":{"message":"m","type":"t","param":"p","code":418}}', "m", 418),
        (b'{"error":{"message":"m","code":"invalid"}}', "m", 401),
        (b'{"object":"error","message":"m","code":400}', "m", 401),
        (b"<html>bad gateway</html>", "<html>bad gateway</html>", 401),
        (b"", "no message", 401),
        (b"\xff\xff", "\ufffd\ufffd", 401),
        (b'{"error":{}}', "no message", 401),
    ],
)
def test_error_bodies(body: bytes, message: str, status: int) -> None:
    found = refusal(401, body)
    assert (found.status, found.message) == (status, message)


@given(st.binary(max_size=200), st.integers(0, 599))
def test_any_error_body_is_an_error(body: bytes, status: int) -> None:
    assert isinstance(refusal(status, body).chat_error(), ChatError)


@given(st.data())
def test_data_lines_survive_any_split(data: st.DataObject) -> None:
    payload = st.binary(min_size=1, max_size=8).filter(lambda b: b.strip() == b and b"\n" not in b)
    payloads = data.draw(st.lists(payload, max_size=6))
    end = data.draw(st.sampled_from([b"\n", b"\r\n"]))
    noise = data.draw(st.sampled_from([b"", b": ping", b"event: x", b"id: 3"]))
    text = b"".join(noise + end + b"data: " + p + end + end for p in payloads)
    lines = DataLines()
    seen: list[bytes] = []
    while text:
        size = data.draw(st.integers(1, len(text)))
        seen += lines.feed(text[:size])
        text = text[size:]
    assert seen == payloads


def test_an_endless_line_is_refused() -> None:
    lines = DataLines()
    with pytest.raises(ProviderFailed):
        for _ in range(20):
            lines.feed(b"x" * 1024 * 1024)


def test_ranks_among_the_best_twenty() -> None:
    top = [(i, -float(i)) for i in range(1, 21)]
    assert ranked(5, -5.0, top, 3).rank == 5
    assert ranked(5, -5.0, top, 3).top == ((1, -1.0), (2, -2.0), (3, -3.0))
    outside = ranked(99, -30.0, [(99, -30.0), *top], 20)
    assert outside.rank == 21 and outside.top == tuple(top)
    assert ranked(99, -30.0, top, 20).rank == 21


async def test_the_error_event_of_a_refusal_keeps_its_status() -> None:
    read = TokensWire().decoder(GREEDY)
    with pytest.raises(Refused) as caught:
        read(b'{"error":{"message":"full","type":"x","param":null,"code":503}}')
    assert isinstance(caught.value.chat_error(), Overloaded)


# ---------------------------------------------------------------- recorded from a real server


@pytest.mark.skipif(not any(GOLDEN.glob("*.json")), reason="nothing recorded")
@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.json")), ids=lambda p: p.stem)
def test_recorded_exchanges(path: Path) -> None:
    """The events of a real vLLM give the steps that were read when they were recorded."""
    record = json.loads(path.read_text())
    wire = TokensWire() if record["path"].startswith("/inference") else CompletionsWire()
    params = SamplingParams(max_tokens=99, num_top_logprobs=record["num_top_logprobs"])
    read = wire.decoder(params)
    deltas = [read(event.encode()) for event in record["events"]]
    assert [i for d in deltas for i in d.token_ids] == record["token_ids"]
    assert sum(d.num_tokens for d in deltas) == record["completion_tokens"]
    assert next(d.finish_reason for d in deltas if d.finish_reason) == record["finish_reason"]
    logprobs = [p for d in deltas for p in d.logprobs or ()]
    assert [[p.token_id, p.logprob, p.rank, [list(t) for t in p.top]] for p in logprobs] == (
        record["logprobs"]
    )
    cached = [d.cached_tokens for d in deltas if d.cached_tokens is not None]
    assert cached == record["cached_tokens"]


async def test_a_replica_sends_us_nowhere_else() -> None:
    """What another address answers says nothing about this one, and need not be asked."""

    async def send_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        place = server.url.encode() + head.split()[1]
        writer.write(b"HTTP/1.1 302 Found\r\nLocation: %b\r\nContent-Length: 0\r\n\r\n" % place)
        writer.close()

    async with FakeVllm().serve() as server:
        listener = await asyncio.start_server(send_on, "127.0.0.1", 0)
        async with listener:
            engine = RemoteEngine(VLLM, f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}")
            assert not await engine.healthy()
            await engine.close()


@pytest.mark.parametrize(
    "error",
    [
        aiohttp.ClientOSError(None, "Can not write request body"),
        aiohttp.ClientConnectionResetError("Cannot write to closing transport"),
    ],
)
async def test_a_kept_connection_that_closes_while_we_write_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    real = aiohttp.ClientSession.post
    failures = [error]

    def post(session: aiohttp.ClientSession, *args: Any, **kwargs: Any) -> Any:
        if failures:
            raise failures.pop()
        return real(session, *args, **kwargs)

    async with serving() as (engine, _):
        whole = ids(await collect(engine))
        monkeypatch.setattr(aiohttp.ClientSession, "post", post)
        assert ids(await collect(engine)) == whole
        failures += [error, error]
        with pytest.raises(ProviderFailed):
            await collect(engine)
