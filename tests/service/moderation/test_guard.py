"""Guard models, by the answers that their families give, with and without logprobs."""

import asyncio
import math
from collections.abc import AsyncGenerator, Sequence

import pytest

from rejoinder.config import ConfigError, ModerationConfig
from rejoinder.errors import EngineFailed
from rejoinder.events import ContentDelta, Done, Event, Finished, Started
from rejoinder.service.moderation import CATEGORIES, ModerationUnavailable
from rejoinder.service.moderation.configured import configured_moderator
from rejoinder.service.moderation.guard import FAMILIES, GuardModerator, family_of
from rejoinder.types import ChatRequest, Meter, ModerationResult, TokenLogprob, TopLogprob, Usage

Answer = Sequence[str | tuple[str, dict[str, float]]]


class Guard:
    """A backend that answers as told. A token is (text, {alternative: probability})."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.requests: list[ChatRequest] = []
        self.logprobs = True

    async def chat(self, request: ChatRequest, meter: Meter) -> AsyncGenerator[Event, None]:
        self.requests.append(request)
        answer = self.answers.pop(0)
        yield Started(model="guard")
        for token in answer:
            await asyncio.sleep(0)
            text, spread = (token, {token: 1.0}) if isinstance(token, str) else token
            yield ContentDelta(0, text, (_logprob(text, spread),) if self.logprobs else None)
        yield Finished(0, "stop")
        yield Done(Usage())

    async def close(self) -> None:
        return


def _logprob(text: str, spread: dict[str, float]) -> TokenLogprob:
    top = tuple(TopLogprob(t, math.log(p), t.encode()) for t, p in spread.items())
    return TokenLogprob(text, math.log(spread[text]), text.encode(), 1, top)


async def score(
    model: str, *answers: Sequence[str | tuple[str, dict[str, float]]]
) -> ModerationResult:
    (scored,) = (await GuardModerator(Guard(*answers), model).moderate(["text"])).results
    assert set(scored.categories) == set(CATEGORIES)
    return scored


def flagged(scored: ModerationResult) -> list[str]:
    return [name for name, flag in scored.categories.items() if flag]


LLAMA = "meta-llama/Llama-Guard-3-8B"
QWEN = "Qwen/Qwen3Guard-Gen-0.6B"
GEMMA = "google/shieldgemma-2b"


async def test_llama_guard() -> None:
    safe = ("safe", {"safe": 0.98, "unsafe": 0.02})
    unsafe = ("unsafe", {"unsafe": 0.8, "safe": 0.2})
    assert flagged(await score(LLAMA, ["\n\n", safe])) == []
    scored = await score(LLAMA, ["\n\n", unsafe, "\n", "S", "10"])
    assert flagged(scored) == ["hate"]
    assert scored.category_scores["hate"] == pytest.approx(0.8)
    both = await score(LLAMA, [unsafe, "\n", "S1", ",", "S11"])
    assert flagged(both) == ["illicit", "illicit/violent", "self-harm", "violence"]
    assert flagged(await score(LLAMA, [unsafe])) == ["illicit"], "a verdict without a label"
    barely = ("unsafe", {"unsafe": 0.45, "safe": 0.40, "the": 0.15})
    assert (await score(LLAMA, [barely, "\nS4"])).category_scores["sexual/minors"] == pytest.approx(
        0.45 / 0.85
    )


async def test_tokens_that_begin_two_verdicts_say_nothing() -> None:
    scored = await score(LLAMA, [("un", {"un": 0.6, "s": 0.3, "safe": 0.1}), "safe", "\nS1"])
    assert scored.category_scores["violence"] == pytest.approx(0.6)


async def test_qwen3_guard() -> None:
    def answer(verdict: str, spread: dict[str, float], categories: str) -> Answer:
        return ["Safety", ":", (verdict, spread), "\n", "Categories", ":", f" {categories}"]

    unsafe = {" Unsafe": 0.9, " Safe": 0.1}
    scored = await score(QWEN, answer(" Unsafe", unsafe, "Violent, PII"))
    assert flagged(scored) == ["harassment", "violence"]
    assert scored.category_scores["violence"] == pytest.approx(0.9)
    scored = await score(QWEN, answer(" Unsafe", unsafe, "Non-violent Illegal Acts"))
    assert flagged(scored) == ["illicit"]
    safe = {" Safe": 0.99, " Unsafe": 0.01}
    assert flagged(await score(QWEN, answer(" Safe", safe, "None"))) == []
    unsure = {" Contro": 0.8, " Safe": 0.2}
    scored = await score(
        QWEN, ["Safety:", (" Contro", unsure), "versial\nCategories: Unethical Acts"]
    )
    assert scored.category_scores["harassment"] == pytest.approx(0.4)
    assert flagged(scored) == []


async def test_shield_gemma_asks_one_question_a_policy() -> None:
    guard = Guard(
        [("No", {"No": 0.9, "Yes": 0.1})],
        [("Yes", {"Yes": 0.7, "No": 0.3})],
        [("No", {"No": 1.0})],
        [("Yes", {"Yes": 1.0})],
    )
    (scored,) = (await GuardModerator(guard, GEMMA).moderate(["text"])).results
    assert flagged(scored) == ["harassment", "sexual"]
    assert scored.category_scores["harassment"] == pytest.approx(0.7)
    assert scored.category_scores["violence"] == pytest.approx(0.1)
    guidelines = [request.chat_template_kwargs["guideline"] for request in guard.requests]
    assert len(set(map(str, guidelines))) == 4
    assert len({request.account for request in guard.requests}) == 1
    for request in guard.requests:
        assert (request.temperature, request.max_tokens, request.logprobs) == (0.0, 1, True)


@pytest.mark.parametrize(
    ("model", "answers", "names"),
    [
        (LLAMA, [["unsafe", "\nS12"]], ["sexual"]),
        (LLAMA, [["safe"]], []),
        (QWEN, [["Safety: Unsafe\nCategories: Jailbreak"]], ["illicit"]),
        (GEMMA, [["No"], ["No"], ["Yes"], ["No"]], ["hate"]),
    ],
)
async def test_without_logprobs_the_words_count(
    model: str, answers: list[list[str]], names: list[str]
) -> None:
    guard = Guard(*answers)
    guard.logprobs = False
    (scored,) = (await GuardModerator(guard, model).moderate(["text"])).results
    assert flagged(scored) == names
    assert set(scored.category_scores.values()) <= {0.0, 1.0}


async def test_several_texts_keep_their_order_and_empty_ones_ask_nothing() -> None:
    guard = Guard(["safe"], ["unsafe\nS10"])
    results = await GuardModerator(guard, LLAMA).moderate(["", "a", "b", ""])
    assert [scored.flagged for scored in results.results] == [False, False, True, False]
    assert len(guard.requests) == 2
    assert len({request.account for request in guard.requests} - {""}) == 2, "no shared cache"
    assert results.model == LLAMA


@pytest.mark.parametrize("answer", [["I cannot help with that."], [], ["S1"]])
async def test_an_answer_without_a_verdict(answer: list[str]) -> None:
    with pytest.raises(ModerationUnavailable):
        await GuardModerator(Guard(answer), LLAMA).moderate(["text"])


async def test_a_guard_that_breaks_or_hangs() -> None:
    class Broken(Guard):
        async def chat(self, request: ChatRequest, meter: Meter) -> AsyncGenerator[Event, None]:
            raise EngineFailed("it broke")
            yield

    class Hanging(Guard):
        async def chat(self, request: ChatRequest, meter: Meter) -> AsyncGenerator[Event, None]:
            await asyncio.Event().wait()
            yield Started(model="m")

    before = asyncio.all_tasks()
    with pytest.raises(ModerationUnavailable):
        await GuardModerator(Broken(), LLAMA).moderate(["a", "b"])
    with pytest.raises(ModerationUnavailable) as caught:
        await GuardModerator(Hanging(), LLAMA, timeout_seconds=0.05).moderate(["a"] * 9)
    assert caught.value.code == "moderation_timeout"
    assert asyncio.all_tasks() == before


def test_families_and_their_labels() -> None:
    assert [family_of(model) for model in (LLAMA, QWEN, GEMMA)] == list(FAMILIES)
    for family in FAMILIES:
        named = [name for names in family.labels.values() for name in names]
        named += [name for _, names in family.questions for name in names]
        assert {*named, *family.otherwise} <= set(CATEGORIES)
    with pytest.raises(ConfigError, match=r"moderation\.guard"):
        family_of("gpt-4o")


async def test_from_the_configuration() -> None:
    guard = Guard(["unsafe\nS10"])
    config = ModerationConfig(model="guard", guard="llama-guard-3")
    moderator = configured_moderator(config, {"llama-guard-3": guard}.__getitem__)
    assert (await moderator.moderate(["x"])).results[0].categories["hate"]
