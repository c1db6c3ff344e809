"""SGLang as an engine, over its native `/generate`: token ids in, token ids and logprobs out.

Written from SGLang's source and tested against the shapes it has there, not against a running
server. It must not know: text, messages, other replicas.
"""

import asyncio
import hashlib
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

import msgspec
from msgspec import Struct

from rejoinder.engines.http import DEFAULT_TIMEOUTS, Server, Timeouts, steps
from rejoinder.engines.wire import (
    NOTHING,
    SMALLEST_TOP_P,
    Delta,
    Refused,
    is_given,
    naming_grammar,
    ranked,
    refusal,
    refuse_long_prompt,
)
from rejoinder.errors import ChatError, InvalidRequest, ProviderFailed, Unavailable
from rejoinder.types import (
    MAX_TOP_LOGPROBS,
    Counts,
    EngineFinishReason,
    JsonObject,
    Prompt,
    SamplingParams,
    Step,
    Tier,
    TokenIdLogprob,
)

PRIORITIES: dict[Tier, int] = {"priority": 10, "default": 0, "flex": -10}
"""Higher goes first, the opposite of vLLM; needs `--enable-priority-scheduling`."""

GRAMMARS = {"lark": "ebnf", "json_schema": "json_schema", "regex": "regex"}
"""`ebnf` reads Lark with `--grammar-backend llguidance`."""

FINISH_REASONS: dict[str, EngineFinishReason] = {"stop": "stop", "length": "length"}

ABORT_SECONDS = 5.0


def encode(request_id: str, prompt: Prompt, params: SamplingParams) -> bytes:
    """The body of `POST /generate`."""
    sampling: JsonObject = {
        "max_new_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": max(params.top_p, SMALLEST_TOP_P),
        "top_k": params.top_k or -1,
        "min_p": params.min_p,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "repetition_penalty": params.repetition_penalty,
        "sampling_seed": params.seed & 0x7FFF_FFFF,
        "skip_special_tokens": False,
    }
    if params.logit_bias:
        sampling["logit_bias"] = {str(token_id): bias for token_id, bias in params.logit_bias}
    if params.stop_token_ids:
        sampling["stop_token_ids"] = list(params.stop_token_ids)
    if params.grammar is not None:
        sampling[GRAMMARS[params.grammar.kind]] = params.grammar.text
    body: JsonObject = {
        "rid": request_id,
        "input_ids": list(prompt.token_ids),
        "sampling_params": sampling,
        "stream": True,
    }
    if params.num_top_logprobs is not None:
        # There are no ranks: they are the sampled token's place among the best 20.
        body["return_logprob"] = True
        body["top_logprobs_num"] = MAX_TOP_LOGPROBS
        body["logprob_start_len"] = -1
    if params.tier != "default":
        body["priority"] = PRIORITIES[params.tier]
    if prompt.cache_salt:
        body["extra_key"] = prompt.cache_salt
    return msgspec.json.encode(body)


class _Finish(Struct):
    type: str
    matched: int | str | list[int] | None = None
    message: str = ""
    status_code: int | None = None


_Entry = tuple[float | None, int, str | None]


class _Meta(Struct):
    finish_reason: _Finish | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    output_token_logprobs: list[_Entry] | None = None
    output_top_logprobs: list[list[_Entry] | None] | None = None


class _Event(Struct):
    output_ids: list[int] | None = None
    meta_info: _Meta | None = None
    error: msgspec.Raw = NOTHING


_read_event = msgspec.json.Decoder(_Event)


class EventDecoder:
    """Reads the events of one stream, whose ids and logprobs are all so far or, on a server with
    `--incremental-streaming-output`, only the new ones: `completion_tokens` tells which."""

    def __init__(self, params: SamplingParams) -> None:
        self._num_top = params.num_top_logprobs
        self._seen = 0

    def __call__(self, payload: bytes) -> Delta:
        try:
            event = _read_event.decode(payload)
        except msgspec.DecodeError as error:
            raise ProviderFailed(
                f"The replica sent an event that cannot be read: {error}"
            ) from None
        if is_given(event.error):
            # A refused request is a 400 within the stream, as a message alone.
            raise refusal(400, payload)
        meta = event.meta_info or _Meta()
        finish = meta.finish_reason
        if finish is not None and finish.type == "abort":
            raise Refused(finish.status_code or 500, finish.message or "aborted by the engine")
        if finish is not None and finish.type not in FINISH_REASONS:
            raise ProviderFailed(f"The replica ended the sequence itself: {finish.type!r}.")
        if event.output_ids is None:
            raise ProviderFailed("The replica does not report token ids; it is too old.")
        new = self._new(event.output_ids, meta.completion_tokens)
        logprobs = self._logprobs(new, meta) if self._num_top is not None else None
        shown = len(new)
        if finish is not None and finish.type == "stop" and new and _ends(new[-1], finish):
            shown -= 1
        return Delta(
            token_ids=tuple(new[:shown]),
            logprobs=logprobs[:shown] if logprobs is not None else None,
            num_tokens=len(new),
            finish_reason=FINISH_REASONS[finish.type] if finish is not None else None,
            cached_tokens=meta.cached_tokens,
        )

    def _new(self, output_ids: list[int], completion_tokens: int | None) -> list[int]:
        total = completion_tokens if completion_tokens is not None else len(output_ids)
        if self._seen + len(output_ids) == total:
            new = output_ids
        elif len(output_ids) >= self._seen:
            new = output_ids[self._seen :]
        else:
            raise ProviderFailed("The replica's events do not follow each other.")
        self._seen += len(new)
        return new

    def _logprobs(self, new: list[int], meta: _Meta) -> tuple[TokenIdLogprob, ...]:
        if not new:
            return ()
        entries = (meta.output_token_logprobs or [])[-len(new) :]
        tops = (meta.output_top_logprobs or [])[-len(new) :]
        if [entry[1] for entry in entries] != new or len(tops) != len(new):
            raise ProviderFailed("The replica's logprobs do not match its tokens.")
        return tuple(
            ranked(
                entry[1],
                _value(entry[0]),
                [(other[1], _value(other[0])) for other in top or ()],
                self._num_top or 0,
            )
            for entry, top in zip(entries, tops, strict=True)
        )


def _ends(token_id: int, finish: _Finish) -> bool:
    """Whether the last token is the one that ended the turn."""
    matched = finish.matched
    return token_id in matched if isinstance(matched, list) else token_id == matched


def _value(logprob: float | None) -> float:
    return -9999.0 if logprob is None else logprob


class _ServerInfo(Struct):
    context_length: int | None = None
    max_req_input_len: int | None = None
    version: str = ""


class _ModelInfo(Struct):
    model_path: str = ""
    weight_version: str | None = None


class _Card(Struct):
    id: str
    max_model_len: int | None = None


class _Cards(Struct):
    data: list[_Card] = []


class SglangEngine:
    """One SGLang server. It opens no connection before `start` or the first sequence.

    `samples_by_position`: with `--enable-deterministic-inference` a token's randomness depends on
    the seed and its position alone; without it SGLang ignores seeds altogether.
    """

    resumes_grammar = False
    resumes_penalties = False
    samples_by_position = True

    def __init__(
        self,
        base_url: str,
        *,
        model: str = "",
        api_key: str = "",
        context_length: int = 0,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        """`model` is only checked: a server has one. `context_length` 0: what it reports."""
        self._server = Server(base_url, api_key=api_key, timeouts=timeouts)
        self._model = model
        self._context_length = context_length
        self._identity: str | None = None
        self._starting = asyncio.Lock()
        self._aborts: set[asyncio.Task[None]] = set()

    @property
    def context_length(self) -> int:
        """Raises Unavailable as long as neither the configuration nor the server has told it."""
        if not self._context_length:
            raise Unavailable("The replica has not been reached yet.")
        return self._context_length

    @property
    def fingerprint(self) -> str:
        seen = f"sglang {self._model} {self._identity}"
        return "fp_" + hashlib.sha256(seen.encode()).hexdigest()[:10]

    async def start(self) -> None:
        """Learns the model and its context length. Raises ChatError."""
        async with self._starting:
            if self._identity is None:
                try:
                    await self._learn_model()
                except Refused as error:
                    raise error.chat_error() from error
                except msgspec.DecodeError as error:
                    raise ProviderFailed(
                        f"The replica does not answer as SGLang: {error}"
                    ) from None

    async def healthy(self) -> bool:
        """Whether the server says so, and could be started."""
        if not await self._server.healthy():
            return False
        with suppress(ChatError):
            await self.start()
        return self._identity is not None

    async def generate(
        self, prompt: Prompt, params: SamplingParams, counts: Counts
    ) -> AsyncGenerator[Step, None]:
        if self._identity is None:
            await self.start()
        params = refuse_long_prompt(prompt, params, self.context_length)
        if params.max_tokens <= 0:
            counts.prompt_tokens = len(prompt.token_ids)
            yield Step((), finish_reason="length")
            return
        request_id = uuid.uuid4().hex
        running = steps(
            self._server,
            "/generate",
            encode(request_id, prompt, params),
            read=EventDecoder(params),
            prompt_tokens=len(prompt.token_ids),
            counts=counts,
        )
        finished = False
        try:
            async with aclosing(running):
                async for step in running:
                    finished = step.finish_reason is not None
                    yield step
        except InvalidRequest as error:
            raise naming_grammar(error, params) from error
        finally:
            if not finished:
                self._abort(request_id)

    async def close(self) -> None:
        for task in tuple(self._aborts):
            task.cancel()
        await asyncio.gather(*self._aborts, return_exceptions=True)
        await self._server.close()

    def _abort(self, request_id: str) -> None:
        """SGLang looks for lost connections only now and then: it is told as well."""
        task = asyncio.get_running_loop().create_task(self._post_abort(request_id))
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def _post_abort(self, request_id: str) -> None:
        body = msgspec.json.encode({"rid": request_id})
        with suppress(Refused, ChatError, TimeoutError):
            async with asyncio.timeout(ABORT_SECONDS):
                await self._server.post("/abort_request", body)

    async def _learn_model(self) -> None:
        served = msgspec.json.decode(await self._server.get("/v1/models"), type=_Cards).data
        card = next((c for c in served if self._model in ("", c.id)), None)
        if card is None:
            names = ", ".join(c.id for c in served) or "none"
            raise ProviderFailed(f"The replica has no model '{self._model}'; it has: {names}.")
        model = msgspec.json.decode(await self._server.get("/get_model_info"), type=_ModelInfo)
        info = msgspec.json.decode(await self._server.get("/get_server_info"), type=_ServerInfo)
        limit = card.max_model_len or info.context_length or 0
        if not limit and not self._context_length:
            raise ProviderFailed("The replica reports no context length; configure it.")
        self._context_length = min(filter(None, (self._context_length, limit)))
        self._model = card.id
        self._identity = f"{model.model_path} {model.weight_version} {info.version}"
