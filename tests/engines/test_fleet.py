"""A fleet of replicas that are killed, silenced, drained and added while sequences run on them."""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rejoinder.engines.fleet import MAX_MOVES, Fleet
from rejoinder.engines.http import Timeouts
from rejoinder.engines.remote import RemoteEngine
from rejoinder.engines.routing import PrefixIndex
from rejoinder.engines.sglang import SGLANG
from rejoinder.engines.vllm import VLLM
from rejoinder.errors import (
    ChatError,
    EngineFailed,
    InvalidRequest,
    Overloaded,
    ProviderFailed,
    ProviderTimeout,
    Unavailable,
)
from rejoinder.types import Counts, Engine, Grammar, Prompt, SamplingParams, Step, TokenIdLogprob
from tests.engines.contract import until
from tests.engines.fake_sglang import FakeSglang, SglangFault
from tests.engines.fake_vllm import FakeVllm, Kind, ServerFault
from tests.engines.toy_model import Fault, OtherWeights, PlainEngine, ToyEngine

PROMPT = Prompt(token_ids=(11, 12, 13, 14, 15, 16, 17, 18))
GREEDY = SamplingParams(max_tokens=12, temperature=0.0)
SAMPLED = SamplingParams(max_tokens=12, temperature=1.0, seed=7)
SHORT = Timeouts(connect=1.0, first_token=0.15, between_tokens=0.15)


@dataclass
class Outcome:
    """What a client saw of one sequence, and what it was charged."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenIdLogprob, ...] = ()
    finish_reason: str | None = None
    counts: tuple[int, int, int] = (0, 0, 0)
    error: ChatError | None = None


async def run(engine: Engine, params: SamplingParams = GREEDY, prompt: Prompt = PROMPT) -> Outcome:
    counts = Counts()
    seen = Outcome()
    try:
        async for step in engine.generate(prompt, params, counts):
            assert seen.finish_reason is None, "a step after the finish"
            seen.token_ids += step.token_ids
            seen.logprobs += step.logprobs or ()
            seen.finish_reason = step.finish_reason
    except ChatError as error:
        seen.error = error
    assert counts.completion_tokens >= len(seen.token_ids)
    seen.counts = (counts.prompt_tokens, counts.cached_tokens, counts.completion_tokens)
    return seen


def fleet_of(*engines: Engine, **options: float) -> Fleet:
    names = "abcdefgh"
    return Fleet(
        dict(zip(names, engines, strict=False)),
        chance=random.Random(0),
        **options,  # type: ignore[arg-type]
    )


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


# ---------------------------------------------------------------- exact continuation


KINDS = {
    "text": {},
    "logprobs": {"num_top_logprobs": 3},
    "json": {"grammar": Grammar("json_schema", '{"type":"object"}')},
    "calls": {"grammar": Grammar("lark", 'start: "<tool_call>"')},
    "penalties": {"presence_penalty": 1.5, "frequency_penalty": 0.5},
    "biased": {"logit_bias": ((20, 3.0), (30, -5.0))},
}


@pytest.mark.parametrize("kind", KINDS)
async def test_killed_at_every_token_of_many_streams(kind: str) -> None:
    """Engines that resume: the client's tokens equal the unbroken run, whatever it asked for."""
    for seed in range(20):
        params = msgspec.structs.replace(SAMPLED, seed=seed, max_tokens=20, **KINDS[kind])
        whole = await run(ToyEngine(tokens_per_step=1 + seed % 3), params)
        assert whole.error is None and len(whole.token_ids) > 3
        for after in range(len(whole.token_ids) + 1):
            broken = ToyEngine(tokens_per_step=1 + seed % 3, faults=[Fault(after)])
            other = ToyEngine(tokens_per_step=1 + seed % 2)
            fleet = Fleet({"broken": broken})
            fleet.add("other", other)
            got = await run(_starting_with("broken", fleet), params)
            assert not broken.faults, "the replica was not killed"
            assert got == whole


def broken_then(other: ToyEngine, after: int, kind: type[ToyEngine] = PlainEngine) -> Fleet:
    """A fleet whose first replica is killed after some tokens, and one that goes on."""
    return _starting_with("broken", Fleet({"broken": kind(faults=[Fault(after)]), "other": other}))


def _starting_with(name: str, fleet: Fleet) -> Fleet:
    """The fleet, its other replicas looking busier."""
    for replica in fleet._replicas.values():
        replica.sequences += 0 if replica.name == name else 1
    return fleet


@pytest.mark.parametrize("engine", [PlainEngine, ToyEngine])
@pytest.mark.parametrize("params", [GREEDY, msgspec.structs.replace(GREEDY, num_top_logprobs=5)])
async def test_greedy_goes_on_exactly_on_engines_that_cannot_resume(
    engine: type[ToyEngine], params: SamplingParams
) -> None:
    whole = await run(engine(), params)
    for after in range(13):
        assert await run(broken_then(engine(), after, engine), params) == whole


async def test_a_frequency_penalty_is_carried_over_as_a_bias() -> None:
    params = msgspec.structs.replace(GREEDY, max_tokens=20, frequency_penalty=2.0)
    # Biased towards a few tokens, so that the penalty really changes what comes.
    bias = tuple((token_id, 6.0) for token_id in range(3, 1000, 7))
    params = msgspec.structs.replace(params, logit_bias=bias)
    whole = await run(PlainEngine(), params)
    free = await run(PlainEngine(), msgspec.structs.replace(params, frequency_penalty=0.0))
    for after in range(1, 20):
        sent = PlainEngine()
        assert await run(broken_then(sent, after), params) == whole
        assert sent.params[0].frequency_penalty == 2.0
        assert sum(v for _, v in sent.params[0].logit_bias) == 6.0 * len(bias) - 2.0 * after
    assert free.token_ids != whole.token_ids, "the penalty changes nothing: nothing is tested"


OBSTACLES = [
    ({"grammar": Grammar("regex", "x")}, "held to a grammar"),
    ({"presence_penalty": 0.5}, "penalties"),
    ({"frequency_penalty": 0.5, "repetition_penalty": 1.1}, "penalties"),
]


@pytest.mark.parametrize(("asked", "reason"), OBSTACLES)
@pytest.mark.parametrize("base", [GREEDY, SAMPLED])
async def test_what_cannot_go_on_is_begun_again_unseen(
    asked: dict[str, object], reason: str, base: SamplingParams
) -> None:
    """An engine that cannot take over writes the answer anew; the client gets what it lacks."""
    params = msgspec.structs.replace(base, num_top_logprobs=2, **asked)
    whole = await run(PlainEngine(), params)
    for after in range(len(whole.token_ids) + 1):
        other = PlainEngine(tokens_per_step=1 + after % 3)
        assert await run(broken_then(other, after), params) == whole, after
        if whole.finish_reason != "length" or after < len(whole.token_ids):
            assert other.prompts == [PROMPT.token_ids]
            assert other.params[0].seed == params.seed
    # Lost again while it repeats, and after it: still the same.
    for second in (2, 4):
        third = PlainEngine()
        fleet = fleet_of(PlainEngine(faults=[Fault(3)]), PlainEngine(faults=[Fault(second)]), third)
        assert await run(_starting_with("a", fleet), params) == whole


@pytest.mark.parametrize(("asked", "reason"), OBSTACLES)
async def test_what_comes_out_otherwise_is_an_honest_error(
    asked: dict[str, object], reason: str
) -> None:
    params = msgspec.structs.replace(GREEDY, **asked)
    whole = await run(PlainEngine(), params)
    other = OtherWeights()
    fleet = broken_then(other, 3)
    got = await run(fleet, params)
    assert isinstance(got.error, ProviderFailed) and reason in got.error.message
    assert got.token_ids == whole.token_ids[:3] and got.finish_reason is None
    assert got.counts == (8, 0, 3)
    assert len(other.prompts) == 1 and other.running == 0
    assert {s.name: s.state for s in fleet.replicas}["other"] == "serving", "it did no wrong"
    # Before its first token it can start anywhere.
    fleet = fleet_of(PlainEngine(faults=[Fault(0)]), PlainEngine(faults=[Fault(0)]), PlainEngine())
    assert await run(fleet, params) == whole


async def test_a_replica_that_can_resume_is_found_among_others_that_cannot() -> None:
    params = msgspec.structs.replace(GREEDY, grammar=Grammar("regex", "x"))
    whole = await run(ToyEngine(), params)
    plain = [PlainEngine() for _ in range(5)]
    first = ToyEngine(faults=[Fault(4)], delay=0.005)
    fleet = Fleet({"first": first})
    task = asyncio.create_task(run(fleet, params))
    await until(lambda: first.running == 1)
    for number, engine in enumerate(plain):
        fleet.add(str(number), engine)
    fleet.add("able", ToyEngine())
    assert await task == whole
    assert not any(engine.prompts for engine in plain)


async def test_seeds_are_kept_where_they_go_by_position_and_derived_where_not() -> None:
    plain, positional = PlainEngine(), PlainEngine()
    positional.samples_by_position = True
    for other in (plain, positional):
        assert (await run(broken_then(other, 3), SAMPLED)).error is None
    assert positional.params[0].seed == SAMPLED.seed
    assert plain.params[0].seed != SAMPLED.seed
    # Derived, not drawn: the same loss gives the same answer.
    again = PlainEngine()
    await run(broken_then(again, 3), SAMPLED)
    assert again.params == plain.params


async def test_the_rest_is_asked_for_with_what_is_left() -> None:
    whole = await run(PlainEngine())
    other = PlainEngine()
    prediction = (*whole.token_ids[:6], 77, 78)
    params = msgspec.structs.replace(GREEDY, prediction=prediction)
    await run(broken_then(other, 5), params)
    assert other.prompts == [PROMPT.token_ids + whole.token_ids[:5]]
    assert other.params[0].max_tokens == 7
    assert other.params[0].prediction == prediction[5:]
    other = PlainEngine()
    params = msgspec.structs.replace(GREEDY, prediction=(1, 2, 3))
    await run(
        fleet_of(PlainEngine(faults=[Fault(5)]), PlainEngine(faults=[Fault(5)]), other), params
    )
    assert other.params[0].prediction == ()


async def test_lost_after_its_last_token_only_the_finish_is_missing() -> None:
    whole = await run(PlainEngine())
    assert whole.finish_reason == "length"
    other = PlainEngine()
    assert await run(broken_then(other, 12)) == whole
    assert not other.prompts, "no replica is asked for nothing"


async def test_lost_before_its_end_token_it_still_ends_there() -> None:
    params = msgspec.structs.replace(GREEDY, max_tokens=300)
    whole = await run(PlainEngine(), params)
    assert whole.finish_reason == "stop"
    after = len(whole.token_ids)
    assert await run(broken_then(PlainEngine(), after), params) == whole


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_any_schedule_of_losses(data: st.DataObject) -> None:
    """Equal to the unbroken run, or its beginning and an error; and counted to the token."""
    fault = st.builds(Fault, st.integers(0, 9), st.sampled_from(["fail", "end"]))
    engines = [
        ToyEngine(
            tokens_per_step=data.draw(st.integers(1, 4)),
            faults=data.draw(st.lists(fault, max_size=3)),
        )
        for _ in range(data.draw(st.integers(1, 4)))
    ]
    params = msgspec.structs.replace(SAMPLED, seed=data.draw(st.integers(0, 50)), max_tokens=16)

    async def both() -> tuple[Outcome, Outcome]:
        return await run(ToyEngine(), params), await run(fleet_of(*engines), params)

    whole, got = asyncio.run(both())
    assert got.token_ids == whole.token_ids[: len(got.token_ids)]
    if got.error is None:
        assert got == whole
    else:
        assert isinstance(got.error, ProviderFailed | EngineFailed)
        assert got.counts == ((8, 0, len(got.token_ids)) if got.token_ids else (0, 0, 0))
    assert all(engine.running == 0 for engine in engines)


async def test_moves_are_bounded() -> None:
    engines = [PlainEngine(faults=[Fault(1) for _ in range(50)]) for _ in range(2)]
    got = await run(fleet_of(*engines), msgspec.structs.replace(GREEDY, max_tokens=60))
    assert isinstance(got.error, EngineFailed)
    assert len(got.token_ids) == MAX_MOVES + 1


# ---------------------------------------------------------------- over HTTP


@asynccontextmanager
async def vllm_fleet(
    number: int = 2, **options: object
) -> AsyncIterator[tuple[Fleet, list[FakeVllm]]]:
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(FakeVllm(**options).serve())  # type: ignore[arg-type]
            for _ in range(2)
        ]
        fleet = Fleet({s.url: RemoteEngine(VLLM, s.url, timeouts=SHORT) for s in servers})
        await fleet.start()
        try:
            yield fleet, servers
        finally:
            await fleet.close()


@pytest.mark.parametrize("scale_out", [True, False])
@pytest.mark.parametrize("kind", ["die", "engine_dead", "abort", "cut", "bare_end"])
async def test_a_vllm_server_killed_at_every_token(kind: Kind, scale_out: bool) -> None:
    params = msgspec.structs.replace(GREEDY, num_top_logprobs=2)
    async with vllm_fleet(scale_out=scale_out) as (fleet, servers):
        whole = await run(fleet, params)
        for after in range(12):
            for server in servers:
                server.faults, server.healthy = [], True
            for replica in fleet._replicas.values():
                replica.succeeded(0.0)
            first = random.Random(after).choice(servers)
            first.faults = [ServerFault(kind, after)]
            before = len(first.generations)
            got = await run(_only_first(fleet, first.url), params)
            assert len(first.generations) == before + 1 and not first.faults
            assert (got.token_ids, got.logprobs, got.finish_reason, got.error) == (
                whole.token_ids,
                whole.logprobs,
                whole.finish_reason,
                None,
            )
            assert (got.counts[0], got.counts[2]) == (8, 12)
        await until(lambda: not any(server.running for server in servers))


def _only_first(fleet: Fleet, name: str) -> Fleet:
    """The fleet, with a prompt's prefix known to one replica alone and the others busier."""
    for replica in fleet._replicas.values():
        replica.sequences = 0 if replica.name == name else 3
    return fleet


async def test_a_silent_vllm_server_is_left() -> None:
    async with vllm_fleet() as (fleet, servers):
        whole = await run(fleet)
        for server in servers:
            server.faults = [ServerFault("hang", 4)]
        assert (await run(fleet)).token_ids == whole.token_ids
        assert not any(server.faults for server in servers), "both were silent in turn"
        for server in servers:
            server.faults = [ServerFault("hang", 0)]
        got = await run(fleet)
        assert isinstance(got.error, ProviderTimeout) and got.token_ids == ()


async def test_a_queue_that_is_full_is_no_failure() -> None:
    async with vllm_fleet() as (fleet, servers):
        whole = await run(fleet)
        for server in servers:
            server.overloaded = 1
            assert (await run(_only_first(fleet, server.url))).token_ids == whole.token_ids
        for server in servers:
            server.overloaded = 1
        got = await run(fleet)
        assert isinstance(got.error, Overloaded) and got.counts == (0, 0, 0)
        assert all(status.error_rate == 0 for status in fleet.replicas)


async def test_a_request_that_is_wrong_is_wrong_everywhere() -> None:
    async with vllm_fleet() as (fleet, servers):
        got = await run(fleet, prompt=Prompt(token_ids=(5, 999999)))
        assert isinstance(got.error, InvalidRequest)
        assert sum(len(server.generations) for server in servers) == 1
        assert all(status.error_rate == 0 for status in fleet.replicas)


async def test_sampling_goes_on_by_position_over_sglang() -> None:
    """Servers with deterministic inference: the seed and the position are enough."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(FakeSglang().serve()) for _ in range(2)]
        fleet = Fleet({s.url: RemoteEngine(SGLANG, s.url, timeouts=SHORT) for s in servers})
        whole = await run(fleet, SAMPLED)
        for after in range(12):
            for replica in fleet._replicas.values():
                replica.succeeded(0.0)
            servers[0].faults = [SglangFault("die", after)]
            got = await run(_only_first(fleet, servers[0].url), SAMPLED)
            assert (got.token_ids, got.error) == (whole.token_ids, None)
            assert not servers[0].faults
        await fleet.close()


async def test_one_server_of_two_is_down_from_the_start() -> None:
    async with FakeVllm().serve() as server:
        fleet = Fleet(
            {
                "down": RemoteEngine(VLLM, "http://127.0.0.1:9", timeouts=SHORT),
                "up": RemoteEngine(VLLM, server.url, timeouts=SHORT),
            }
        )
        await fleet.start()
        assert fleet.context_length == 2048
        outcomes = await asyncio.gather(*(run(fleet) for _ in range(10)))
        assert all(o.error is None for o in outcomes)
        await fleet.close()


async def test_all_servers_are_down() -> None:
    fleet = Fleet({"down": RemoteEngine(VLLM, "http://127.0.0.1:9", timeouts=SHORT)})
    await fleet.start()
    with pytest.raises(Unavailable):
        _ = fleet.context_length
    assert isinstance((await run(fleet)).error, ProviderFailed)
    await fleet.close()


# ---------------------------------------------------------------- health, drain, slow start


async def test_a_replica_that_is_lost_to_probes_loses_its_sequences_at_once() -> None:
    stalled = ToyEngine(faults=[Fault(3, "stall")])
    other = ToyEngine()
    fleet = Fleet({"stalled": stalled})
    await fleet.start()
    fleet.add("other", other)
    whole = await run(ToyEngine())
    task = asyncio.create_task(run(_starting_with("stalled", fleet)))
    await until(lambda: stalled.running == 1)
    await asyncio.sleep(0.02)
    assert not task.done()
    stalled.well = False
    await fleet._probe_all()
    assert not task.done(), "one failed probe is not yet a loss"
    await fleet._probe_all()
    assert await asyncio.wait_for(task, 2) == whole
    assert stalled.running == 0
    state = {s.name: s.state for s in fleet.replicas}
    assert state["stalled"] == "failing"
    await fleet.close()


async def test_a_lost_replica_comes_back_slowly() -> None:
    clock = Clock()
    engines = {"a": ToyEngine(), "b": ToyEngine()}
    fleet = Fleet(engines, clock=clock, slow_start_seconds=10.0, chance=random.Random(1))
    assert {s.state for s in fleet.replicas} == {"serving"}
    engines["a"].well = False
    for _ in range(3):
        await fleet._probe_all()
    for _ in range(5):
        await run(fleet)
    assert len(engines["a"].prompts) == 0 and len(engines["b"].prompts) == 5
    engines["a"].well = True
    await fleet._probe_all()
    assert {s.name: s.state for s in fleet.replicas} == {"a": "warming", "b": "serving"}
    clock.now += 10
    assert {s.state for s in fleet.replicas} == {"serving"}


async def test_a_failing_replica_is_left_alone_for_longer_each_time() -> None:
    clock = Clock()
    broken = ToyEngine(faults=[Fault(0) for _ in range(100)])
    fleet = Fleet({"broken": broken, "good": ToyEngine()}, clock=clock, chance=random.Random(3))
    pauses = []
    for _ in range(6):
        asked = len(broken.prompts)
        waited = 0
        while len(broken.prompts) == asked and waited < 300:
            clock.now += 1
            waited += 1
            assert (await run(_starting_with("broken", fleet))).error is None
        pauses.append(waited)
        for replica in fleet._replicas.values():
            replica.sequences = 0
    assert pauses[-1] > pauses[1], pauses
    assert max(pauses) <= 62


async def test_where_all_are_failing_they_are_tried_all_the_same() -> None:
    engine = ToyEngine(faults=[Fault(0)])
    fleet = Fleet({"a": engine}, clock=Clock())
    assert (await run(fleet)).error is not None
    assert (await run(fleet)).error is None


async def test_a_fleet_over_a_silent_engine_has_its_own_limits() -> None:
    for after, seconds in (
        (0, {"first_token_timeout": 0.05}),
        (3, {"between_tokens_timeout": 0.05}),
    ):
        whole = await run(ToyEngine())
        fleet = fleet_of(
            ToyEngine(faults=[Fault(after, "stall")]),
            ToyEngine(faults=[Fault(after, "stall")]),
            ToyEngine(),
            **seconds,
        )
        assert await asyncio.wait_for(run(fleet), 2) == whole


async def test_draining_waits_and_takes_nothing_new() -> None:
    engines = {"a": ToyEngine(delay=0.005), "b": ToyEngine(delay=0.005)}
    fleet = Fleet(engines)
    task = asyncio.create_task(run(_starting_with("a", fleet)))
    await until(lambda: engines["a"].running == 1)
    fleet._replicas["b"].sequences = 0
    drained = asyncio.create_task(fleet.drain("a"))
    await asyncio.sleep(0)
    assert {s.name: s.state for s in fleet.replicas}["a"] == "draining"
    await run(fleet)
    assert len(engines["b"].prompts) == 1
    assert (await task).error is None
    await asyncio.wait_for(drained, 1)
    assert len(engines["a"].prompts) == 1


@pytest.mark.parametrize("fault", [[], [Fault(3, "stall")]])
async def test_removing_moves_what_still_runs(fault: list[Fault]) -> None:
    whole = await run(ToyEngine())
    engines = {"a": ToyEngine(delay=0.02, faults=fault), "b": ToyEngine()}
    fleet = Fleet(engines)
    task = asyncio.create_task(run(_starting_with("a", fleet)))
    await until(lambda: engines["a"].running == 1)
    await asyncio.wait_for(fleet.remove("a", within_seconds=0.07), 1)
    assert engines["a"].closed and engines["a"].running == 0
    assert await asyncio.wait_for(task, 2) == whole
    assert [s.name for s in fleet.replicas] == ["b"]
    assert (await run(fleet)) == whole


async def test_a_replica_that_leaves_has_not_failed() -> None:
    leaving = ToyEngine(delay=0.02)
    fleet = _starting_with("leaving", Fleet({"leaving": leaving, "other": ToyEngine()}))
    task = asyncio.create_task(run(fleet))
    await until(lambda: leaving.running == 1)
    await asyncio.wait_for(fleet.drain("leaving", within_seconds=0), 1)
    assert (await task).error is None
    assert [s.error_rate for s in fleet.replicas] == [0, 0]


async def test_a_lost_replica_has_lost_its_cache() -> None:
    engine = ToyEngine()
    index = PrefixIndex(block_tokens=4)
    fleet = Fleet({"a": engine, "b": ToyEngine()}, index=index)
    await run(_starting_with("a", fleet))
    assert index.match("", PROMPT.token_ids).tokens["a"] == 8
    engine.well = False
    await fleet._probe_all()
    assert index.match("", PROMPT.token_ids).tokens["a"] == 8
    await fleet._probe_all()
    assert index.match("", PROMPT.token_ids).tokens["a"] == 0


async def test_a_replica_that_leaves_while_the_client_is_slow_is_left_at_the_next_token() -> None:
    whole = await run(ToyEngine())
    leaving, other = ToyEngine(), ToyEngine()
    fleet = _starting_with("leaving", Fleet({"leaving": leaving, "other": other}))
    steps = fleet.generate(PROMPT, GREEDY, Counts())
    got = [*(await anext(steps)).token_ids, *(await anext(steps)).token_ids]
    removed = asyncio.create_task(fleet.remove("leaving", within_seconds=0))
    await asyncio.sleep(0.01)
    got += (await anext(steps)).token_ids
    await asyncio.wait_for(removed, 1)
    assert leaving.running == 0 and other.prompts == [PROMPT.token_ids + whole.token_ids[:2]]
    async for step in steps:
        got += step.token_ids
    assert tuple(got) == whole.token_ids


async def test_a_new_replica_gets_its_share_slowly() -> None:
    clock = Clock()
    old, new = ToyEngine(delay=0.01), ToyEngine(delay=0.01)
    fleet = Fleet({"old": old}, clock=clock, slow_start_seconds=10, chance=random.Random(5))
    fleet.add("new", new)
    with pytest.raises(ValueError, match="'new' already"):
        fleet.add("new", new)

    async def burst() -> tuple[int, int]:
        before = len(old.prompts), len(new.prompts)
        prompts = [Prompt(token_ids=(*PROMPT.token_ids, i)) for i in range(20)]
        await asyncio.gather(*(run(fleet, prompt=p) for p in prompts))
        return len(old.prompts) - before[0], len(new.prompts) - before[1]

    cold = await burst()
    clock.now += 10
    warm = await burst()
    assert 0 < cold[1] <= 3
    assert warm[1] == 10


async def test_probes_run_by_themselves() -> None:
    engine = ToyEngine()
    fleet = Fleet({"a": engine, "b": ToyEngine()}, probe_seconds=0.01)
    await fleet.start()
    engine.well = False
    await until(lambda: fleet.replicas[0].state == "failing")
    engine.well = True
    await until(lambda: fleet.replicas[0].state != "failing")
    await fleet.close()
    assert engine.closed


async def test_a_fleet_says_when_nobody_serves() -> None:
    engines = {"a": ToyEngine(), "b": ToyEngine()}
    fleet = Fleet(engines)
    assert fleet.failure is None
    engines["a"].well = False
    for _ in range(2):
        await fleet._probe_all()
    assert fleet.failure is None
    engines["b"].well = False
    for _ in range(2):
        await fleet._probe_all()
    assert fleet.failure == "none of 2 replicas is serving"


async def test_a_probe_that_breaks_is_a_failed_probe() -> None:
    class Broken(ToyEngine):
        async def healthy(self) -> bool:
            raise RuntimeError("a bug")

    fleet = Fleet({"a": Broken(), "b": ToyEngine()})
    for _ in range(2):
        await fleet._probe_all()
    assert {s.name: s.state for s in fleet.replicas} == {"a": "failing", "b": "serving"}


async def test_an_empty_fleet() -> None:
    fleet = Fleet({})
    assert isinstance((await run(fleet)).error, Unavailable)
    await fleet.close()


# ---------------------------------------------------------------- routing, counts, closing


async def test_a_conversation_stays_where_its_prefix_is() -> None:
    engines = {name: ToyEngine() for name in "abcd"}
    fleet = Fleet(engines, chance=random.Random(2))
    homes = []
    for number in range(12):
        turn = tuple(range(number * 1000 % 900, number * 1000 % 900 + 100))
        tokens = (number, *turn)
        for _ in range(4):
            before = {name: len(e.prompts) for name, e in engines.items()}
            prompt = Prompt(token_ids=tokens, cache_salt="t")
            got = await run(fleet, prompt=prompt)
            home = next(n for n, e in engines.items() if len(e.prompts) > before[n])
            homes.append((number, home))
            tokens = (*tokens, *got.token_ids, 5, 6, 7)
    assert len(set(homes)) == 12, "each conversation has one home"
    assert len({home for _, home in homes}) >= 3, "and not all the same"


async def test_counts_are_right_when_it_is_closed_early() -> None:
    fleet = fleet_of(ToyEngine(faults=[Fault(2)]), ToyEngine(faults=[Fault(2)]), ToyEngine())
    counts = Counts()
    steps = fleet.generate(PROMPT, GREEDY, counts)
    got: list[Step] = [await anext(steps) for _ in range(5)]
    await steps.aclose()
    assert (counts.prompt_tokens, counts.completion_tokens) == (8, 5)
    assert len(got) == 5


async def test_a_replica_that_gave_no_token_costs_nothing() -> None:
    class Empty(ToyEngine):
        async def _steps(
            self, prompt: Prompt, before: tuple[int, ...], params: SamplingParams, counts: Counts
        ) -> AsyncGenerator[Step, None]:
            counts.prompt_tokens, counts.cached_tokens, counts.completion_tokens = 8, 4, 1
            yield Step(())
            raise EngineFailed("after a step without tokens")

    got = await run(fleet_of(Empty(), Empty()))
    assert got.error is not None and got.counts == (0, 0, 0)


async def test_cached_tokens_are_those_of_the_first_replica() -> None:
    async with vllm_fleet() as (fleet, servers):
        prompt = Prompt(token_ids=tuple(range(40, 140)), cache_salt="t")
        first = await run(fleet, prompt=prompt)
        home = next(s for s in servers if s.generations)
        assert first.counts == (100, 0, 12)
        home.faults = [ServerFault("die", 3)]
        got = await run(fleet, prompt=prompt)
        assert got.token_ids == first.token_ids
        assert got.counts == (100, 0, 12), "its usage was lost with it"
        assert (await run(fleet, prompt=prompt)).counts[1] == 96


async def test_closing_and_cancelling_abort_on_the_replica() -> None:
    engine = ToyEngine(delay=0.005)
    fleet = fleet_of(engine)
    task = asyncio.create_task(run(fleet))
    await until(lambda: engine.running == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.running == 0 and fleet.replicas[0].sequences == 0
    assert fleet.replicas[0].error_rate == 0, "a client that leaves is no failure"


async def test_fingerprints() -> None:
    one = fleet_of(ToyEngine(), ToyEngine())
    assert one.fingerprint == "fp_toy"
    mixed = fleet_of(ToyEngine(), RemoteEngine(VLLM, "http://127.0.0.1:9"))
    assert mixed.fingerprint.startswith("fp_") and mixed.fingerprint != "fp_toy"
