"""vLLM as a kind of engine server: what it tells of itself, and which endpoint it has.

`/inference/v1/generate` is used where the server has it (`--enable-scale-out`), and otherwise
`/v1/completions` with ids. It must not know: sequences, text, messages.
"""

from contextlib import suppress

import msgspec
from msgspec import Struct

from rejoinder.engines.http import Server
from rejoinder.engines.remote import Learnt, ServedModel, ServerKind
from rejoinder.engines.vllm_wire import CompletionsWire, TokensWire
from rejoinder.engines.wire import Refused, Wire
from rejoinder.errors import ChatError

NO_ROUTE = frozenset((403, 404, 405))
"""How a server says that `/inference/v1/generate` is switched off, or that it is too old."""


class _Version(Struct):
    version: str = ""


class _ProbeLogprob(Struct):
    rank: int | None = None


class _ProbeLogprobs(Struct):
    content: list[_ProbeLogprob] | None = None


class _ProbeChoice(Struct):
    logprobs: _ProbeLogprobs | None = None


class _Probe(Struct):
    choices: list[_ProbeChoice] = []


async def _learn(server: Server, model: ServedModel) -> Learnt:
    version = ""
    with suppress(Refused, ChatError, msgspec.DecodeError):
        version = msgspec.json.decode(await server.get("/version"), type=_Version).version
    return Learnt(
        wire=await _choose_wire(server, model),
        context_length=model.max_model_len or 0,
        identity=f"{model.root} {version}",
    )


async def _choose_wire(server: Server, model: ServedModel) -> Wire:
    """One token with a logprob tells whether the endpoint is there and reports ranks."""
    sampling = {"max_tokens": 1, "temperature": 0.0, "logprobs": 1, "detokenize": False}
    body = {"model": model.id, "token_ids": [0], "sampling_params": sampling}
    try:
        answer = await server.post(TokensWire.path, msgspec.json.encode(body))
    except Refused as error:
        if error.status in NO_ROUTE:
            return CompletionsWire()
        raise
    choices = msgspec.json.decode(answer, type=_Probe).choices
    logprobs = (choices[0].logprobs and choices[0].logprobs.content) if choices else None
    return TokensWire(has_ranks=bool(logprobs and logprobs[0].rank is not None))


VLLM = ServerKind(name="vLLM", learn=_learn)
