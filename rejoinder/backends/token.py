"""Engine + tokenizer + chat template + one ChoiceDecoder a choice: a Backend of tokens.

Renders the prompt, runs one sequence a choice, and merges their events. It must not know:
which engine, how a format spells calls, accounts.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from rejoinder.errors import ContextLengthExceeded, EngineFailed, InvalidParameter
from rejoinder.events import (
    ContentDelta,
    Done,
    Event,
    ReasoningDelta,
    RefusalDelta,
    Started,
)
from rejoinder.text.choice import ChoiceDecoder, ChoiceSpec
from rejoinder.text.grammar import answer_grammar
from rejoinder.text.reasoning import budget, reasoning_format
from rejoinder.text.template import ChatTemplate, RenderedPrompt
from rejoinder.types import (
    MAX_TOP_LOGPROBS,
    ChatRequest,
    Counts,
    Engine,
    EngineFinishReason,
    Grammar,
    JsonObjectFormat,
    JsonSchemaFormat,
    Meter,
    Prompt,
    Reasoning,
    SamplingParams,
    Step,
    TextFormat,
    Tokenizer,
)

MAX_ANSWER_TOKENS = 16_384
"""The most an answer without a limit of its own may have (contract 1.3)."""

LONG_TEXT = 50_000
"""Characters from which rendering and tokenizing leave the event loop."""

SPARE_ALTERNATIVES = 4
"""Asked of the engine beyond what the request asks: a list of alternatives stays as long as asked
when control tokens, which are not reported (contract 4.1), stand among the likeliest."""

MAX_WAITING_EVENTS = 256
"""Events of several choices that may wait for a slow reader."""

T = TypeVar("T")

Hint = Callable[[Prompt], bool | None]
"""What an engine knows of its answer to a prompt; None: nothing."""


class TokenBackend:
    """One model at chat level, on an engine at token level.

    `opens_thinking`, `refuses`: the scripted engine's word on what a prompt opens and whether the
    answer is a refusal; other engines have none. `refusals`: strict output may be a refusal.
    """

    def __init__(
        self,
        *,
        model: str,
        engine: Engine,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        new_seed: Callable[[], int],
        new_call_id: Callable[[], str],
        clock: Callable[[], datetime],
        refusals: Literal["off", "on"] = "off",
        opens_thinking: Hint | None = None,
        refuses: Hint | None = None,
    ) -> None:
        self._model = model
        self._engine = engine
        self.tokenizer = tokenizer
        self.template = template
        self._new_seed = new_seed
        self._new_call_id = new_call_id
        self._clock = clock
        self._refusals = refusals
        self._opens_thinking = opens_thinking
        self._refuses = refuses
        digest = hashlib.sha256((engine.fingerprint + template.source).encode()).hexdigest()
        self._fingerprint = "fp_" + digest[:10]

    @property
    def context_length(self) -> int:
        return self._engine.context_length

    async def render(self, request: ChatRequest) -> RenderedPrompt:
        """What the model really reads. Raises InvalidRequest."""
        if _length(request) < LONG_TEXT:
            return self.template.render(request, now=self._clock())
        return await asyncio.to_thread(self.template.render, request, now=self._clock())

    async def tokenize(self, text: str, *, special: bool) -> list[int]:
        """`tokenizer.encode`, off the event loop where it takes a while."""
        if len(text) < LONG_TEXT:
            return self.tokenizer.encode(text, special=special)
        return await asyncio.to_thread(self.tokenizer.encode, text, special=special)

    async def chat(self, request: ChatRequest, meter: Meter) -> AsyncGenerator[Event, None]:
        rendered = await self.render(request)
        prompt = self._prompt(request, rendered)
        if self._opens_thinking is not None:
            opens = self._opens_thinking(prompt)
            rendered = rendered if opens is None else replace(rendered, opens_thinking=opens)
        params, thought = await self._checked_params(request, rendered)
        spec = self._spec(request, rendered)
        seed = self._new_seed() if request.seed is None else request.seed
        choices = [
            self._choice(
                ChoiceDecoder(index=index, token_bytes=self.template.token_bytes, spec=spec),
                prompt,
                replace(params, seed=choice_seed(seed, index)),
                meter,
                thought,
            )
            for index in range(request.n)
        ]
        events = _merged(choices)
        if self._refuses is not None and self._refuses(prompt):
            events = _as_refusal(events)
        if request.reasoning.effort == "none":
            events = _without_thoughts(events)
        async with aclosing(events):
            started = False
            async for event in events:
                if not started:
                    started = True
                    yield Started(model=self._model, system_fingerprint=self._fingerprint)
                yield event
        yield Done(meter.usage())

    async def close(self) -> None:
        await self._engine.close()

    # ------------------------------------------------------------ what the engine is asked for

    def _prompt(self, request: ChatRequest, rendered: RenderedPrompt) -> Prompt:
        return Prompt(
            token_ids=rendered.token_ids,
            cache_salt=request.account,
            cache_key=request.prompt_cache.key or "",
            cache_breakpoints=rendered.breakpoints,
            cache_explicit=request.prompt_cache.mode == "explicit",
        )

    async def _checked_params(
        self, request: ChatRequest, rendered: RenderedPrompt
    ) -> "tuple[SamplingParams, _ThoughtLimit | None]":
        """`_params`, off the event loop where there are schemas to check, a hostile one may take
        a while before it is refused, or a long prediction."""
        is_long = len(request.prediction or "") >= LONG_TEXT
        if is_long or request.tools or not isinstance(request.response_format, TextFormat):
            return await asyncio.to_thread(self._params, request, rendered)
        return self._params(request, rendered)

    def _params(
        self, request: ChatRequest, rendered: RenderedPrompt
    ) -> "tuple[SamplingParams, _ThoughtLimit | None]":
        """Raises ContextLengthExceeded, InvalidParameter, InvalidRequest."""
        room = self._engine.context_length - len(rendered.token_ids)
        if room <= 0:
            raise ContextLengthExceeded(
                f"This model's maximum context length is {self._engine.context_length} tokens, "
                f"but the messages have {len(rendered.token_ids)} tokens. Please reduce the "
                "length of the messages.",
                param="messages",
            )
        self._check_token_ids([token for token, _ in request.logit_bias], "logit_bias")
        self._check_token_ids(request.stop_token_ids, "stop_token_ids")
        wanted = MAX_ANSWER_TOKENS if request.max_tokens is None else request.max_tokens
        prediction: Sequence[int] = ()
        if request.prediction:
            prediction = self.tokenizer.encode(request.prediction, special=False)
        params = SamplingParams(
            max_tokens=min(wanted, room),
            temperature=_or(request.temperature, 1.0),
            top_p=_or(request.top_p, 1.0),
            top_k=_or(request.top_k, 0),
            min_p=_or(request.min_p, 0.0),
            presence_penalty=_or(request.presence_penalty, 0.0),
            frequency_penalty=_or(request.frequency_penalty, 0.0),
            repetition_penalty=_or(request.repetition_penalty, 1.0),
            logit_bias=request.logit_bias,
            num_top_logprobs=_alternatives(request),
            stop_token_ids=(*request.stop_token_ids, *sorted(self.tokenizer.end_token_ids)),
            grammar=self._grammar(request, opens_thinking=rendered.opens_thinking),
            prediction=tuple(prediction),
            tier=request.tier,
        )
        return params, self._thought_limit(request)

    def _grammar(self, request: ChatRequest, *, opens_thinking: bool) -> Grammar | None:
        return answer_grammar(
            request,
            tool_format=self.template.tool_format,
            reasoning_format=self.template.reasoning_format,
            opens_thinking=opens_thinking,
            control_tokens=self.tokenizer.control_tokens,
            refusals=self._refusals,
        )

    def _thought_limit(self, request: ChatRequest) -> "_ThoughtLimit | None":
        """None: a thought may be as long as it likes, or its format cannot be closed by force."""
        most = budget(request.reasoning.effort)
        closing = reasoning_format(self.template.reasoning_format).closing
        if not most or not closing:
            return None
        thoughtless = replace(request, reasoning=Reasoning("none"))
        return _ThoughtLimit(
            most,
            tuple(self.tokenizer.encode(closing, special=True)),
            self._grammar(thoughtless, opens_thinking=False),
        )

    def _check_token_ids(self, token_ids: Sequence[int], param: str) -> None:
        for token_id in token_ids:
            try:
                self.tokenizer.token_bytes(token_id)
            except InvalidParameter:
                raise InvalidParameter(
                    f"Invalid '{param}': token id {token_id} is not in the model's vocabulary.",
                    param=param,
                ) from None

    def _spec(self, request: ChatRequest, rendered: RenderedPrompt) -> ChoiceSpec:
        return ChoiceSpec(
            stop=request.stop,
            tools=request.tools,
            tool_choice=request.tool_choice,
            parallel_tool_calls=request.parallel_tool_calls,
            tool_format=self.template.tool_format,
            reasoning_format=self.template.reasoning_format,
            opens_thinking=rendered.opens_thinking,
            logprobs=request.logprobs,
            return_malformed_calls=request.return_malformed_calls,
            refusals=self._refusals == "on" and is_enforced_json(request),
            new_call_id=self._new_call_id,
        )

    # ------------------------------------------------------------ one choice

    async def _choice(
        self,
        decoder: ChoiceDecoder,
        prompt: Prompt,
        params: SamplingParams,
        meter: Meter,
        thought: "_ThoughtLimit | None",
    ) -> AsyncGenerator[Event, None]:
        counts = meter.sequence()
        reason: EngineFinishReason | None = None
        num_tokens = num_reasoning = 0
        if thought is None:
            running = self._engine.generate(prompt, params, counts)
            if decoder.may_stop:
                running = _one_by_one(running)
        else:
            running = self._steps_within(thought, decoder, prompt, params, counts)
        async with aclosing(running) as steps:
            async for step in steps:
                num_tokens += len(step.token_ids)
                if step.token_ids:
                    for event in decoder.feed(step):
                        yield event
                    meter.reasoning_tokens += decoder.num_reasoning_tokens - num_reasoning
                    num_reasoning = decoder.num_reasoning_tokens
                if decoder.stopped or step.finish_reason is not None:
                    reason = step.finish_reason or "stop"
                    break
        if reason is None:
            raise EngineFailed("The engine ended without a finish reason.")
        if decoder.stopped:
            # What was made beyond the stop before the engine heard of it is nobody's (R86).
            said = num_tokens + counts.rejected_prediction_tokens
            counts.completion_tokens = min(counts.completion_tokens, said)
            reason = "stop"
        for event in decoder.flush(reason):
            yield event

    async def _steps_within(
        self,
        thought: "_ThoughtLimit",
        decoder: ChoiceDecoder,
        prompt: Prompt,
        params: SamplingParams,
        counts: Counts,
    ) -> AsyncGenerator[Step, None]:
        """The engine's steps; a thought that has used up its budget is closed by force and the
        sequence goes on after it (contract 4.4)."""
        said: list[int] = []
        forced = thought.closing
        most_said = params.max_tokens - len(forced)
        async with aclosing(_one_by_one(self._engine.generate(prompt, params, counts))) as running:
            async for step in running:
                said.extend(step.token_ids)
                yield step
                if (
                    step.finish_reason is None
                    and decoder.is_thinking
                    and len(said) <= most_said
                    and decoder.num_reasoning_tokens >= thought.most
                ):
                    break
            else:
                return
        # What the engine made after the budget, before it heard of its end, is nobody's.
        counts.completion_tokens = len(said) + len(forced) + counts.rejected_prediction_tokens
        yield Step(forced)
        room = most_said - len(said)
        if not room:
            yield Step((), finish_reason="length")
            return
        longer = replace(prompt, token_ids=(*prompt.token_ids, *said, *forced))
        rest = replace(
            params,
            max_tokens=room,
            grammar=thought.grammar_after,
            seed=choice_seed(params.seed, len(said)),
        )
        more = Counts()
        added = _Addition(counts, more)
        try:
            async with aclosing(self._engine.generate(longer, rest, more)) as running:
                async for step in running:
                    added.update()
                    yield step
        finally:
            added.update()


class _ThoughtLimit(Struct, frozen=True):
    """The most tokens of a thought; the tokens that close it, and what holds after them."""

    most: int
    closing: tuple[int, ...]
    grammar_after: Grammar | None


class _Addition:
    """Keeps a sequence's counts up to date while a second part of it is made. The prompt of that
    part is the sequence so far, and is counted already."""

    _NAMES = ("completion_tokens", "accepted_prediction_tokens", "rejected_prediction_tokens")

    def __init__(self, total: Counts, part: Counts) -> None:
        self._total = total
        self._part = part
        self._before = [getattr(total, name) for name in self._NAMES]

    def update(self) -> None:
        for name, before in zip(self._NAMES, self._before, strict=True):
            setattr(self._total, name, before + getattr(self._part, name))


async def _one_by_one(steps: AsyncGenerator[Step, None]) -> AsyncGenerator[Step, None]:
    """The same steps with at most one token each: where a budget or an answer ends must not depend
    on how many tokens came together."""
    async with aclosing(steps):
        async for step in steps:
            last = len(step.token_ids) - 1
            if last < 1:
                yield step
                continue
            for number, token_id in enumerate(step.token_ids):
                logprobs = None if step.logprobs is None else step.logprobs[number : number + 1]
                yield Step((token_id,), logprobs, step.finish_reason if number == last else None)


def is_enforced_json(request: ChatRequest) -> bool:
    """Whether the answer is held to JSON: then text that is no JSON is a refusal."""
    match request.response_format:
        case JsonObjectFormat() | JsonSchemaFormat(enforced=True):
            return request.tool_choice.mode != "required"
        case _:
            return False


def choice_seed(seed: int, index: int) -> int:
    """The seed of one choice: the first is the request's own, the others are derived (4.2)."""
    if index == 0:
        return seed & 0xFFFF_FFFF_FFFF_FFFF
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def _length(request: ChatRequest) -> int:
    """About how many characters a prompt is made of: texts, calls, tools, schemas, all of it."""
    parts = (request.messages, request.tools, request.chat_template_kwargs, request.response_format)
    return sum(len(str(part)) for part in parts)


def _alternatives(request: ChatRequest) -> int | None:
    """How many the engine is asked for; None without logprobs."""
    asked = request.num_top_logprobs
    if not request.logprobs:
        return None
    return min(asked + SPARE_ALTERNATIVES, MAX_TOP_LOGPROBS) if asked else 0


def _or(value: T | None, default: T) -> T:
    return default if value is None else value


async def _without_thoughts(
    events: AsyncGenerator[Event, None],
) -> AsyncGenerator[Event, None]:
    """The same events without what a model thought that was told not to (R57)."""
    async with aclosing(events):
        async for event in events:
            if not isinstance(event, ReasoningDelta):
                yield event


async def _as_refusal(events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
    """The same events with the text as a refusal (contract 4.11)."""
    async with aclosing(events):
        async for event in events:
            if isinstance(event, ContentDelta):
                yield RefusalDelta(event.index, event.text, event.logprobs)
            else:
                yield event


async def _merged(
    choices: Sequence[AsyncGenerator[Event, None]],
) -> AsyncGenerator[Event, None]:
    """The events of all choices as they come; a choice first appears after those before it
    (R100)."""
    if len(choices) == 1:
        async with aclosing(choices[0]) as events:
            async for event in events:
                yield event
        return
    queue: asyncio.Queue[tuple[int, Event | Exception | None]] = asyncio.Queue(MAX_WAITING_EVENTS)
    pumps = [asyncio.ensure_future(_pump(i, c, queue)) for i, c in enumerate(choices)]
    waiting: dict[int, list[Event]] = {}
    num_shown, num_open = 0, len(choices)
    try:
        while num_open:
            index, item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                num_open -= 1
            elif index < num_shown:
                yield item
            else:
                waiting.setdefault(index, []).append(item)
                while num_shown in waiting:
                    for event in waiting.pop(num_shown):
                        yield event
                    num_shown += 1
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(
    index: int,
    choice: AsyncGenerator[Event, None],
    queue: "asyncio.Queue[tuple[int, Event | Exception | None]]",
) -> None:
    try:
        async with aclosing(choice) as events:
            async for event in events:
                await queue.put((index, event))
        await queue.put((index, None))
    except Exception as error:
        await queue.put((index, error))
