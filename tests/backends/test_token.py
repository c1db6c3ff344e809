"""TokenBackend on an engine of bytes that says what it is told and remembers what it was asked."""

import asyncio
import contextlib
import itertools
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from rejoinder.backends import token
from rejoinder.backends.token import TokenBackend, choice_seed
from rejoinder.engines.scripted import ScriptedTokenizer
from rejoinder.errors import ContextLengthExceeded, EngineFailed, InvalidParameter, InvalidRequest
from rejoinder.events import Event, EventGrammar, collect
from rejoinder.text.template import ChatTemplate
from rejoinder.types import (
    AssistantMessage,
    ChatRequest,
    Completion,
    Counts,
    JsonSchemaFormat,
    Meter,
    Prompt,
    PromptCache,
    Reasoning,
    SamplingParams,
    Step,
    TextPart,
    TokenIdLogprob,
    Tool,
    ToolCall,
    ToolChoice,
    ToolMessage,
    UserMessage,
)

CLOSING = "\n</think>\n\n"
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}|"
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}


@dataclass
class Echo:
    """Answers with `says`, and with `after` where its prompt ends with a closed thought.

    `ahead`: tokens that are counted before they are delivered, as by an engine that has them
    ready when it is closed. `slow`: choices by the order of their sequences, seconds a step.
    """

    says: str
    after: str = ""
    tokens_per_step: int = 1
    ahead: int = 0
    rejected: int = 0
    slow: dict[int, float] = field(default_factory=dict)
    fails: set[int] = field(default_factory=set)
    context: int = 4096
    prompts: list[Prompt] = field(default_factory=list)
    params: list[SamplingParams] = field(default_factory=list)
    running: int = 0

    @property
    def context_length(self) -> int:
        return self.context

    @property
    def fingerprint(self) -> str:
        return "fp_echo"

    async def close(self) -> None:
        pass

    async def generate(
        self, prompt: Prompt, params: SamplingParams, counts: Counts
    ) -> AsyncGenerator[Step, None]:
        number = len(self.prompts)
        self.prompts.append(prompt)
        self.params.append(params)
        self.running += 1
        try:
            goes_on = bytes(prompt.token_ids).decode().endswith(CLOSING)
            ids = list((self.after if goes_on else self.says).encode())
            counts.prompt_tokens = len(prompt.token_ids)
            counts.cached_tokens = len(prompt.token_ids) // 2
            counts.rejected_prediction_tokens = self.rejected
            reason = "length" if len(ids) >= params.max_tokens else "stop"
            ids = ids[: params.max_tokens]
            size = self.tokens_per_step
            for start in range(0, len(ids), size):
                await asyncio.sleep(self.slow.get(number, 0))
                if number in self.fails and start >= 2:
                    raise EngineFailed("as told")
                step = ids[start : start + size]
                made = min(len(ids), start + len(step) + self.ahead)
                counts.completion_tokens = made + self.rejected
                yield Step(tuple(step), _logprobs(step, params))
            yield Step((), finish_reason=reason)  # type: ignore[arg-type]
        finally:
            self.running -= 1


def _logprobs(ids: list[int], params: SamplingParams) -> tuple[TokenIdLogprob, ...] | None:
    if params.num_top_logprobs is None:
        return None
    return tuple(TokenIdLogprob(i, -0.5, 1, ((i, -0.5),)) for i in ids)


def backend_on(engine: Any, *, template: str = TEMPLATE, **more: Any) -> TokenBackend:
    tokenizer = ScriptedTokenizer()
    calls = itertools.count()
    formats = {"tool_format": "hermes", "reasoning_format": "qwen3", **more}
    return TokenBackend(
        model="m",
        engine=engine,
        tokenizer=tokenizer,
        template=ChatTemplate(template, tokenizer, **formats),
        new_seed=lambda: 77,
        new_call_id=lambda: f"call_{next(calls)}",
        clock=lambda: datetime(2026, 1, 1, tzinfo=UTC),
    )


def ask(text: str = "hi", **fields: Any) -> ChatRequest:
    return ChatRequest(model="m", messages=(UserMessage(text),), **fields)


async def events_of(
    backend: TokenBackend, request: ChatRequest, meter: Meter | None = None
) -> list[Event]:
    grammar = EventGrammar()
    found = []
    async with aclosing(backend.chat(request, meter or Meter())) as events:
        async for event in events:
            grammar.feed(event)
            found.append(event)
    return found


async def answer(
    backend: TokenBackend, request: ChatRequest, meter: Meter | None = None
) -> Completion:
    return collect(await events_of(backend, request, meter))


def starts(engine: Echo) -> list[str]:
    """The start rule of the grammar of each sequence."""
    grammars = [params.grammar for params in engine.params]
    return [grammar.text.partition("\n")[0] for grammar in grammars if grammar is not None]


# ---------------------------------------------------------------- thoughts within a budget


@pytest.fixture
def small_budget(monkeypatch: pytest.MonkeyPatch) -> int:
    """A budget that a test can exceed; the real ones begin at 512 tokens."""
    monkeypatch.setattr(token, "budget", lambda effort: 20 if effort == "low" else None)
    return 20


LOW = Reasoning("low")
THOUGHT = "<think>" + "hm " * 40 + "</think>\n\nfree"


@pytest.mark.parametrize("tokens_per_step", [1, 2, 7, 1000])
async def test_a_long_thought_is_closed(small_budget: int, tokens_per_step: int) -> None:
    engine = Echo(THOUGHT, after="done", tokens_per_step=tokens_per_step)
    meter = Meter()
    found = await answer(backend_on(engine), ask(reasoning=LOW, max_tokens=200), meter)
    choice = found.choices[0]
    thought = "<think>" + choice.reasoning_content if choice.reasoning_content else ""
    said = bytes(engine.prompts[1].token_ids[len(engine.prompts[0].token_ids) :]).decode()
    assert said.endswith(CLOSING) and said.startswith("<think>hm hm")
    assert thought.rstrip() == said.removesuffix(CLOSING).rstrip()
    assert small_budget <= len(said.removesuffix(CLOSING)) <= small_budget + 3
    assert choice.content == "done" and choice.finish_reason == "stop"
    assert found.usage.completion_tokens == len(said) + len("done")
    assert found.usage.prompt_tokens == len(engine.prompts[0].token_ids)
    assert found.usage.cached_tokens == len(engine.prompts[0].token_ids) // 2
    assert small_budget <= found.usage.reasoning_tokens <= len(said)
    assert meter.usage() == found.usage
    assert engine.running == 0


async def test_closing_does_not_depend_on_the_size_of_steps(small_budget: int) -> None:
    request = ask(reasoning=LOW, max_tokens=200)
    one, many = (Echo(THOUGHT, after="done", tokens_per_step=size) for size in (1, 64))
    first = await answer(backend_on(one), request)
    second = await answer(backend_on(many), request)
    assert first.choices == second.choices and first.usage == second.usage


async def test_after_a_closed_thought_the_grammar_has_none(small_budget: int) -> None:
    engine = Echo(THOUGHT, after='{"a":1}')
    format = JsonSchemaFormat("x", SCHEMA, strict=True, enforced=True)
    found = await answer(
        backend_on(engine), ask(reasoning=LOW, response_format=format, max_tokens=200)
    )
    assert found.choices[0].content == '{"a":1}'
    before, after = starts(engine)
    assert "until" in before and "until" not in after
    assert "think" in before and "think" not in after and "%json" in after


async def test_what_follows_a_thought_in_the_prompt_is_held_too(small_budget: int) -> None:
    engine = Echo("hm " * 40, after='{"a":1}')
    format = JsonSchemaFormat("x", SCHEMA, strict=True, enforced=True)
    backend = backend_on(engine, template=TEMPLATE + "<think>\n")
    found = await answer(backend, ask(reasoning=LOW, response_format=format, max_tokens=200))
    assert found.choices[0].content == '{"a":1}'
    before, after = starts(engine)
    assert "until" in before and "until" not in after


async def test_free_text_with_tools_may_not_think_again(small_budget: int) -> None:
    engine = Echo(THOUGHT, after="ok")
    tool = Tool("f", parameters=SCHEMA)  # type: ignore[arg-type]
    await answer(backend_on(engine), ask(reasoning=LOW, tools=(tool,), max_tokens=200))
    before, after = starts(engine)
    assert "<think>" in before and "<think>" not in after


async def test_the_rest_of_the_limit_is_what_is_left(small_budget: int) -> None:
    engine = Echo(THOUGHT, after="0123456789")
    found = await answer(backend_on(engine), ask(reasoning=LOW, max_tokens=40))
    said = len(engine.prompts[1].token_ids) - len(engine.prompts[0].token_ids)
    assert engine.params[1].max_tokens == 40 - said
    assert found.choices[0].finish_reason == "length"
    assert found.usage.completion_tokens == 40


@pytest.mark.parametrize("limit", [21, 23, 25, 30, 31, 32, 33])
async def test_a_limit_inside_the_closing(small_budget: int, limit: int) -> None:
    engine = Echo(THOUGHT, after="0123456789")
    found = await answer(backend_on(engine), ask(reasoning=LOW, max_tokens=limit))
    assert found.choices[0].finish_reason == "length"
    assert found.usage.completion_tokens == limit
    assert "<" not in (found.choices[0].reasoning_content or ""), "no half of a marker"


async def test_the_second_part_has_draws_of_its_own(small_budget: int) -> None:
    engine = Echo(THOUGHT, after="done")
    for _ in range(2):
        await answer(backend_on(engine), ask(reasoning=LOW, seed=5, max_tokens=200))
    first, second, again, second_again = (params.seed for params in engine.params)
    assert first == again == 5 and second == second_again != first


async def test_rejected_predictions_of_both_parts_are_counted(small_budget: int) -> None:
    engine = Echo(THOUGHT, after="done", rejected=3)
    found = await answer(backend_on(engine), ask(reasoning=LOW, prediction="done", max_tokens=200))
    said = len(engine.prompts[1].token_ids) - len(engine.prompts[0].token_ids)
    assert found.usage.rejected_prediction_tokens == 6
    assert found.usage.completion_tokens == said + len("done") + 6


async def test_what_was_made_beyond_a_budget_is_nobodys(small_budget: int) -> None:
    plain, eager = Echo(THOUGHT, after="done"), Echo(THOUGHT, after="done", ahead=30)
    request = ask(reasoning=LOW, max_tokens=200)
    first = await answer(backend_on(plain), request)
    second = await answer(backend_on(eager), request)
    assert first.usage == second.usage


async def test_left_after_the_closing(small_budget: int) -> None:
    """The meter has both parts when the client leaves in the second."""
    engine = Echo(THOUGHT, after="0123456789")
    meter = Meter()
    shown = ""
    async with aclosing(backend_on(engine).chat(ask(reasoning=LOW), meter)) as events:
        async for event in events:
            shown += getattr(event, "text", "") if type(event).__name__ == "ContentDelta" else ""
            if len(shown) == 4:
                break
    said = len(engine.prompts[1].token_ids) - len(engine.prompts[0].token_ids)
    assert meter.usage().completion_tokens == said + 4
    assert engine.running == 0


async def test_short_thoughts_are_left_alone(small_budget: int) -> None:
    engine = Echo("<think>hm</think>\n\nfree " * 1 + "x" * 50)
    found = await answer(backend_on(engine), ask(reasoning=LOW))
    assert len(engine.prompts) == 1
    assert found.choices[0].reasoning_content == "hm"


async def test_formats_that_cannot_be_closed_are_not(small_budget: int) -> None:
    text = "<|channel|>analysis<|message|>" + "hm " * 40 + "<|end|>"
    text += "<|start|>assistant<|channel|>final<|message|>free"
    engine = Echo(text)
    backend = backend_on(engine, tool_format="harmony", reasoning_format="harmony")
    found = await answer(backend, ask(reasoning=LOW))
    assert len(engine.prompts) == 1 and found.choices[0].content == "free"


# ---------------------------------------------------------------- several choices


async def test_choices_appear_in_order_however_they_come() -> None:
    engine = Echo("abcdef", slow={0: 0.02, 1: 0.0, 2: 0.005})
    found = await events_of(backend_on(engine), ask(n=3))
    firsts = list(dict.fromkeys(event.index for event in found if hasattr(event, "index")))
    assert firsts == [0, 1, 2]
    done = collect(found)
    assert [choice.content for choice in done.choices] == ["abcdef"] * 3
    assert done.usage.completion_tokens == 18
    assert done.usage.prompt_tokens == len(engine.prompts[0].token_ids)


async def test_seeds_of_choices() -> None:
    engine = Echo("a")
    for seed in (9, 9, None):
        await answer(backend_on(engine), ask(n=3, seed=seed))
    seeds = [params.seed for params in engine.params]
    assert seeds[:3] == seeds[3:6] == [9, choice_seed(9, 1), choice_seed(9, 2)]
    assert len(set(seeds[:3])) == 3
    assert seeds[6] == 77, "without a seed the backend draws one"
    assert all(0 <= seed < 2**64 for seed in seeds)


async def test_one_failing_choice_ends_the_answer_and_all_sequences() -> None:
    engine = Echo("abcdef" * 50, fails={1}, slow=dict.fromkeys(range(3), 0.001))
    with pytest.raises(EngineFailed):
        await events_of(backend_on(engine), ask(n=3))
    assert engine.running == 0


async def test_leaving_closes_every_sequence() -> None:
    engine = Echo("abcdef" * 50, slow=dict.fromkeys(range(3), 0.001))
    meter = Meter()
    async with aclosing(backend_on(engine).chat(ask(n=3), meter)) as events:
        async for event in events:
            if getattr(event, "index", 0) == 2:
                break
    assert engine.running == 0
    assert 3 <= meter.usage().completion_tokens < 900


# ---------------------------------------------------------------- counts


@pytest.mark.parametrize("ahead", [0, 5])
async def test_the_meter_is_right_when_the_client_leaves(ahead: int) -> None:
    engine = Echo("abcdef" * 10, ahead=ahead)
    meter = Meter()
    async with aclosing(backend_on(engine).chat(ask(), meter)) as events:
        async for event in events:
            if getattr(event, "text", "") == "d":
                break
    assert meter.usage().completion_tokens == 4 + ahead, "what the engine made is what it cost"
    assert meter.usage().prompt_tokens == len(engine.prompts[0].token_ids)


@pytest.mark.parametrize("tokens_per_step", [1, 4, 100])
async def test_a_stop_ends_the_count_too(tokens_per_step: int) -> None:
    engine = Echo("one STOP two three", tokens_per_step=tokens_per_step, ahead=4)
    found = await answer(backend_on(engine), ask(stop=("STOP",)))
    assert found.choices[0].content == "one " and found.choices[0].finish_reason == "stop"
    assert found.usage.completion_tokens == len("one STOP")
    assert engine.running == 0


async def test_a_stop_leaves_rejected_predictions_counted() -> None:
    engine = Echo("one STOP two", rejected=2)
    found = await answer(backend_on(engine), ask(stop=("STOP",), prediction="x"))
    assert found.usage.rejected_prediction_tokens == 2
    assert found.usage.completion_tokens == len("one STOP") + 2


# ---------------------------------------------------------------- what the engine is asked


@pytest.mark.parametrize("token_id", [-1, 257, 10**9, 2**70])
@pytest.mark.parametrize("param", ["logit_bias", "stop_token_ids"])
async def test_token_ids_that_do_not_exist(param: str, token_id: int) -> None:
    engine = Echo("a")
    value = ((token_id, 1.0),) if param == "logit_bias" else (token_id,)
    with pytest.raises(InvalidParameter, match=param) as caught:
        await answer(backend_on(engine), ask(**{param: value}))
    assert caught.value.param == param and str(token_id) in caught.value.message
    assert engine.prompts == []


async def test_token_ids_that_do() -> None:
    engine = Echo("a")
    await answer(backend_on(engine), ask(logit_bias=((65, -5.0),), stop_token_ids=(66,)))
    assert engine.params[0].logit_bias == ((65, -5.0),)
    assert engine.params[0].stop_token_ids == (66, 256), "and what ends a turn"


async def test_predictions_are_passed_on() -> None:
    engine = Echo("a")
    await answer(backend_on(engine), ask(prediction="né"))
    assert engine.params[0].prediction == tuple("né".encode())
    await answer(backend_on(engine), ask())
    assert engine.params[1].prediction == ()


async def test_cache_wishes_are_passed_on() -> None:
    engine = Echo("a")
    parts = (TextPart("stable", cache_breakpoint=True), TextPart(" rest"))
    request = ChatRequest(
        model="m",
        messages=(UserMessage(parts),),
        account="team",
        prompt_cache=PromptCache("key", "explicit"),
    )
    await answer(backend_on(engine), request)
    prompt = engine.prompts[0]
    assert (prompt.cache_salt, prompt.cache_key, prompt.cache_explicit) == ("team", "key", True)
    assert prompt.cache_breakpoints
    end = prompt.cache_breakpoints[0]
    assert bytes(prompt.token_ids[:end]).decode() == "stable"
    await answer(backend_on(engine), ask())
    assert engine.prompts[1].cache_breakpoints == () and not engine.prompts[1].cache_explicit


async def test_the_limit_is_what_the_context_has_room_for() -> None:
    engine = Echo("a" * 100, context=20)
    found = await answer(backend_on(engine), ask("0123456789", max_tokens=50))
    assert engine.params[0].max_tokens == 20 - len(engine.prompts[0].token_ids)
    assert found.choices[0].finish_reason == "length"
    with pytest.raises(ContextLengthExceeded, match="20 tokens") as caught:
        await answer(backend_on(engine), ask("x" * 20))
    assert caught.value.param == "messages"


async def test_sampling_defaults_and_wishes() -> None:
    engine = Echo("a")
    await answer(backend_on(engine), ask())
    plain = engine.params[0]
    assert (plain.temperature, plain.top_p, plain.top_k, plain.min_p) == (1.0, 1.0, 0, 0.0)
    assert plain.repetition_penalty == 1.0 and plain.num_top_logprobs is None
    await answer(
        backend_on(engine),
        ask(temperature=0.0, top_p=0.0, min_p=0.5, logprobs=True, num_top_logprobs=0),
    )
    asked = engine.params[1]
    assert (asked.temperature, asked.top_p, asked.min_p) == (0.0, 0.0, 0.5)
    assert asked.num_top_logprobs == 0


async def test_an_engine_that_just_ends_has_failed() -> None:
    class Mute(Echo):
        async def generate(
            self, prompt: Prompt, params: SamplingParams, counts: Counts
        ) -> AsyncGenerator[Step, None]:
            yield Step((65,))

    with pytest.raises(EngineFailed, match="finish reason"):
        await answer(backend_on(Mute("")), ask())


LONG = "x" * 2_000_000

LONG_REQUESTS = {
    "content": ask(LONG),
    "parts": ChatRequest(model="m", messages=(UserMessage((TextPart(LONG),)),)),
    "many messages": ChatRequest(model="m", messages=(UserMessage("x"),) * 100_000),
    "thought": ChatRequest(
        model="m",
        messages=(UserMessage("x"), AssistantMessage("y", reasoning_content=LONG)),
    ),
    "call": ChatRequest(
        model="m",
        messages=(
            UserMessage("x"),
            AssistantMessage(None, tool_calls=(ToolCall("c", "f", LONG),)),
            ToolMessage("z", "c"),
        ),
    ),
    "tool": ask(tools=(Tool("f", LONG),)),
    "schema": ask(response_format=JsonSchemaFormat("x", {"type": "object", "description": LONG})),
    "variables": ask(chat_template_kwargs={"x": LONG}),
    "prediction": ask(prediction=LONG),
}


@pytest.mark.parametrize("asked", LONG_REQUESTS.values(), ids=LONG_REQUESTS)
async def test_long_requests_are_prepared_off_the_loop(
    asked: ChatRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the length is: in what is rendered, and in what is only tokenized."""
    threads = set()
    backend = backend_on(Echo("a", context=10**7))
    render, encode = backend.template.render, backend.tokenizer.encode

    def rendered(*given: Any, **more: Any) -> Any:
        threads.add(threading.current_thread())
        return render(*given, **more)

    def encoded(text: str, *, special: bool) -> list[int]:
        if len(text) > 50_000:
            threads.add(threading.current_thread())
        return encode(text, special=special)

    monkeypatch.setattr(backend.template, "render", rendered)
    monkeypatch.setattr(backend.tokenizer, "encode", encoded)
    with contextlib.suppress(InvalidRequest):
        await answer(backend, asked)
    if asked.prediction is None:
        assert threads and threading.main_thread() not in threads
    else:
        assert len(threads) == 2, "the prompt is short, its prediction long"


async def test_long_texts_are_tokenized_off_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """`/tokenize` has no prompt to render."""
    backend = backend_on(Echo(""))
    encode = backend.tokenizer.encode
    threads = []

    def encoded(text: str, *, special: bool) -> list[int]:
        threads.append(threading.current_thread())
        return encode(text, special=special)

    monkeypatch.setattr(backend.tokenizer, "encode", encoded)
    assert await backend.tokenize("hi", special=False) == list(b"hi")
    assert len(await backend.tokenize(LONG, special=False)) == len(LONG)
    assert [thread is threading.main_thread() for thread in threads] == [True, False]


PRIVATE = "".join(map(chr, (*range(0xE000, 0xF8FF), *range(0xF0000, 0xF1000))))


async def test_private_characters_of_people_are_text() -> None:
    """Characters that keep people's text apart from control tokens must not be theirs."""
    engine = Echo("a", context=10**6)
    await answer(backend_on(engine), ask(PRIVATE[:3000]))
    assert bytes(engine.prompts[0].token_ids).decode() == PRIVATE[:3000] + "|"
    with pytest.raises(InvalidRequest, match="private-use") as caught:
        await answer(backend_on(engine), ask(PRIVATE))
    assert caught.value.param == "messages"


async def test_one_call_and_no_more() -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    counted = []
    for size in (1, 1000):
        engine = Echo(call + "\n" + call, tokens_per_step=size)
        tool = Tool("f", parameters=SCHEMA)  # type: ignore[arg-type]
        found = await answer(
            backend_on(engine),
            ask(
                tools=(tool,),
                parallel_tool_calls=False,
                tool_choice=ToolChoice("required"),
            ),
        )
        assert [c.arguments for c in found.choices[0].tool_calls] == ['{"a": 1}']
        assert found.choices[0].finish_reason == "tool_calls"
        counted.append(found.usage.completion_tokens)
    assert counted[0] == counted[1] <= len(call), "nothing of the second call"
