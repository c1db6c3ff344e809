"""SGLang as a kind of engine server: its native `/generate`, and what it tells of itself.

Written from SGLang's source and tested against the shapes it has there, not against a running
server. It must not know: sequences, text, messages.
"""

import msgspec
from msgspec import Struct

from rejoinder.engines.http import Server
from rejoinder.engines.remote import Learnt, ServedModel, ServerKind
from rejoinder.engines.wire import (
    NOTHING,
    SMALLEST_TOP_P,
    DecodeEvent,
    Delta,
    Refused,
    is_given,
    ranked,
    refusal,
)
from rejoinder.errors import ProviderFailed
from rejoinder.types import (
    MAX_TOP_LOGPROBS,
    EngineFinishReason,
    JsonObject,
    Prompt,
    SamplingParams,
    Tier,
    TokenIdLogprob,
)

PRIORITIES: dict[Tier, int] = {"priority": 10, "default": 0, "flex": -10}
"""Higher goes first, the opposite of vLLM; needs `--enable-priority-scheduling`."""

GRAMMARS = {"lark": "ebnf", "json_schema": "json_schema", "regex": "regex"}
"""`ebnf` reads Lark with `--grammar-backend llguidance`."""

FINISH_REASONS: dict[str, EngineFinishReason] = {"stop": "stop", "length": "length"}


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


class GenerateWire:
    path = "/generate"

    def encode(self, request_id: str, model: str, prompt: Prompt, params: SamplingParams) -> bytes:
        """`model` is not sent: a server has one."""
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

    def decoder(self, params: SamplingParams) -> DecodeEvent:
        return EventDecoder(params)


class _ServerInfo(Struct):
    context_length: int | None = None
    version: str = ""


class _ModelInfo(Struct):
    model_path: str = ""
    weight_version: str | None = None


async def _learn(server: Server, model: ServedModel) -> Learnt:
    about = msgspec.json.decode(await server.get("/get_model_info"), type=_ModelInfo)
    info = msgspec.json.decode(await server.get("/get_server_info"), type=_ServerInfo)
    return Learnt(
        wire=GenerateWire(),
        context_length=model.max_model_len or info.context_length or 0,
        identity=f"{about.model_path} {about.weight_version} {info.version}",
    )


async def _abort(server: Server, request_id: str) -> None:
    """SGLang looks for lost connections only now and then: it is told as well."""
    await server.post("/abort_request", msgspec.json.encode({"rid": request_id}))


SGLANG = ServerKind(name="SGLang", learn=_learn, abort=_abort, samples_by_position=True)
"""With `--enable-deterministic-inference` a token's randomness depends on the seed and its
position alone; without it SGLang ignores seeds altogether."""
