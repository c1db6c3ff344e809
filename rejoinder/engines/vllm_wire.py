"""vLLM's two token-level endpoints: requests as JSON bytes, events as deltas.

Pure. `TokensWire` is `/inference/v1/generate`, `CompletionsWire` is `/v1/completions` with ids.
Field names that vLLM does not know are ignored silently, so they are all pinned by tests.
It must not know: sockets, time.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct

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
    Grammar,
    JsonObject,
    Prompt,
    SamplingParams,
    Tier,
    TokenIdLogprob,
)

PRIORITIES: dict[Tier, int] = {"priority": -10, "default": 0, "flex": 10}
"""Lower goes first; a server without `--scheduling-policy priority` ignores it."""

STRUCTURED_OUTPUTS = {"lark": "grammar", "json_schema": "json", "regex": "regex"}

FINISH_REASONS: Mapping[str, EngineFinishReason] = {"stop": "stop", "length": "length"}

PARAMS = {"logprobs": "top_logprobs"}
"""vLLM's names of fields at fault, where ours differ."""

MAX_SALT_LENGTH = 1024


# ---------------------------------------------------------------- requests


def sampling(params: SamplingParams) -> JsonObject:
    """The sampling fields that both endpoints spell alike."""
    fields: JsonObject = {
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": max(params.top_p, SMALLEST_TOP_P),
        "top_k": params.top_k,
        "min_p": params.min_p,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "repetition_penalty": params.repetition_penalty,
        # Any 64-bit seed is allowed here; there it is signed, and -1 would mean none.
        "seed": params.seed & 0x7FFF_FFFF_FFFF_FFFF,
    }
    if params.logit_bias:
        fields["logit_bias"] = {str(token_id): bias for token_id, bias in params.logit_bias}
    if params.stop_token_ids:
        fields["stop_token_ids"] = list(params.stop_token_ids)
    if params.grammar is not None:
        fields["structured_outputs"] = structured_outputs(params.grammar)
    return fields


def structured_outputs(grammar: Grammar) -> JsonObject:
    return {STRUCTURED_OUTPUTS[grammar.kind]: grammar.text}


def _envelope(request_id: str, model: str, prompt: Prompt, params: SamplingParams) -> JsonObject:
    fields: JsonObject = {
        "request_id": request_id,
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": False},
    }
    if params.tier != "default":
        fields["priority"] = PRIORITIES[params.tier]
    if prompt.cache_salt:
        fields["cache_salt"] = salt(prompt.cache_salt)
    return fields


def salt(cache_salt: str) -> str:
    """The salt, within vLLM's limit on its length."""
    if len(cache_salt) <= MAX_SALT_LENGTH:
        return cache_salt
    return hashlib.sha256(cache_salt.encode()).hexdigest()


# ---------------------------------------------------------------- events


class _Details(Struct):
    cached_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: _Details | None = None

    @property
    def cached_tokens(self) -> int | None:
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None


class _Top(Struct):
    logprob: float
    token_id: int | None = None
    rank: int | None = None
    token: str = ""

    @property
    def id(self) -> int:
        return self.token_id if self.token_id is not None else _id_of(self.token)


class _TokenLogprob(_Top):
    top_logprobs: list[_Top] = []


class _TokensLogprobs(Struct):
    content: list[_TokenLogprob] | None = None


class _TokensChoice(Struct):
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: _TokensLogprobs | None = None


class _TextLogprobs(Struct):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None = None


class _TextChoice(Struct):
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: _TextLogprobs | None = None


class _TokensEvent(Struct):
    choices: list[_TokensChoice] = []
    usage: _Usage | None = None
    error: msgspec.Raw = NOTHING


class _TextEvent(Struct):
    choices: list[_TextChoice] = []
    usage: _Usage | None = None
    error: msgspec.Raw = NOTHING


_read_tokens_event = msgspec.json.Decoder(_TokensEvent)
_read_text_event = msgspec.json.Decoder(_TextEvent)


class TokensWire:
    path = "/inference/v1/generate"

    def __init__(self, *, has_ranks: bool = True) -> None:
        """`has_ranks`: the server's logprobs have ranks; older servers' do not, so that ranks
        are found by asking for as many alternatives as the contract can need."""
        self._has_ranks = has_ranks

    def encode(self, request_id: str, model: str, prompt: Prompt, params: SamplingParams) -> bytes:
        fields = sampling(params)
        fields["detokenize"] = False
        if params.num_top_logprobs is not None:
            fields["logprobs"] = params.num_top_logprobs if self._has_ranks else MAX_TOP_LOGPROBS
        body = _envelope(request_id, model, prompt, params)
        body["token_ids"] = list(prompt.token_ids)
        body["sampling_params"] = fields
        return msgspec.json.encode(body)

    def decoder(self, params: SamplingParams) -> DecodeEvent:
        num_top = params.num_top_logprobs

        def decode(payload: bytes) -> Delta:
            event = _decoded(_read_tokens_event, payload)
            choice = event.choices[0] if event.choices else _TokensChoice()
            token_ids = choice.token_ids or []
            logprobs = None
            if num_top is not None and token_ids:
                content = (choice.logprobs and choice.logprobs.content) or []
                logprobs = [_logprob(entry, num_top) for entry in content]
            return delta(token_ids, logprobs, choice.finish_reason, choice.stop_reason, event.usage)

        return decode


class CompletionsWire:
    path = "/v1/completions"

    def encode(self, request_id: str, model: str, prompt: Prompt, params: SamplingParams) -> bytes:
        body = _envelope(request_id, model, prompt, params)
        body["prompt"] = list(prompt.token_ids)
        body["return_token_ids"] = True
        body["return_tokens_as_token_ids"] = True
        if params.num_top_logprobs is not None:
            # There are no ranks here: they are the sampled token's place among the best 20.
            body["logprobs"] = MAX_TOP_LOGPROBS
        body.update(sampling(params))
        return msgspec.json.encode(body)

    def decoder(self, params: SamplingParams) -> DecodeEvent:
        num_top = params.num_top_logprobs

        def decode(payload: bytes) -> Delta:
            event = _decoded(_read_text_event, payload)
            choice = event.choices[0] if event.choices else _TextChoice()
            if event.choices and choice.token_ids is None and choice.finish_reason is None:
                raise ProviderFailed("The replica does not report token ids; it is too old.")
            token_ids = choice.token_ids or []
            logprobs = None
            if num_top is not None and token_ids:
                logprobs = _text_logprobs(token_ids, choice.logprobs, num_top)
            return delta(token_ids, logprobs, choice.finish_reason, choice.stop_reason, event.usage)

        return decode


def delta(
    token_ids: Sequence[int],
    logprobs: Sequence[TokenIdLogprob] | None,
    finish_reason: str | None,
    stop_reason: int | str | None,
    usage: _Usage | None,
) -> Delta:
    """One event. What ended the turn is the last token id: an end of sequence token where
    `stop_reason` is null, else the stop token id that it names."""
    if finish_reason is not None and finish_reason not in FINISH_REASONS:
        raise ProviderFailed(f"The replica ended the sequence itself: {finish_reason!r}.")
    if logprobs is not None and len(logprobs) != len(token_ids):
        raise ProviderFailed("The replica's logprobs do not match its tokens.")
    shown = len(token_ids)
    if finish_reason == "stop" and token_ids and stop_reason in (None, token_ids[-1]):
        shown -= 1
    return Delta(
        token_ids=tuple(token_ids[:shown]),
        logprobs=tuple(logprobs[:shown]) if logprobs is not None else None,
        num_tokens=len(token_ids),
        finish_reason=FINISH_REASONS[finish_reason] if finish_reason else None,
        cached_tokens=usage.cached_tokens if usage else None,
    )


def _logprob(entry: _TokenLogprob, num_top: int) -> TokenIdLogprob:
    if entry.rank is None:
        top = [(other.id, other.logprob) for other in entry.top_logprobs]
        return ranked(entry.id, entry.logprob, top, num_top)
    # The sampled token comes first and may be one more than was asked for.
    best = sorted((o for o in entry.top_logprobs if (o.rank or 0) <= num_top), key=_rank)
    top = [(other.id, other.logprob) for other in best[:num_top]]
    return TokenIdLogprob(entry.id, entry.logprob, entry.rank, tuple(top))


def _rank(entry: _Top) -> int:
    return entry.rank or 0


def _text_logprobs(
    token_ids: Sequence[int], seen: _TextLogprobs | None, num_top: int
) -> list[TokenIdLogprob]:
    if seen is None:
        return []
    tops = seen.top_logprobs or [None] * len(seen.token_logprobs)
    return [
        ranked(
            token_id,
            logprob if logprob is not None else -9999.0,
            [(_id_of(key), value) for key, value in (top or {}).items()],
            num_top,
        )
        for token_id, logprob, top in zip(token_ids, seen.token_logprobs, tops, strict=False)
    ]


def _id_of(token: str) -> int:
    """`token_id:504` → 504."""
    prefix, _, number = token.partition(":")
    if prefix != "token_id" or not number.isdecimal():
        raise ProviderFailed("The replica names tokens by their text, not by their ids.")
    return int(number)


_Event = TypeVar("_Event", _TokensEvent, _TextEvent)


def _decoded(decoder: "msgspec.json.Decoder[_Event]", payload: bytes) -> _Event:
    try:
        event = decoder.decode(payload)
    except msgspec.DecodeError as error:
        raise ProviderFailed(f"The replica sent an event that cannot be read: {error}") from None
    if is_given(event.error):
        found = refusal(500, payload)
        raise Refused(found.status, found.message, PARAMS.get(found.param or "", found.param))
    return event
