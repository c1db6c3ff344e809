"""vLLM as an engine: token ids in, token ids and logprobs out, over its HTTP server.

It uses `/inference/v1/generate` where the server has it (`--enable-scale-out`), and otherwise
`/v1/completions` with ids. It must not know: text, messages, other replicas.
"""

import asyncio
import hashlib
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

import msgspec
from msgspec import Struct

from rejoinder.engines.http import DEFAULT_TIMEOUTS, Server, Timeouts, steps
from rejoinder.engines.vllm_wire import CompletionsWire, TokensWire, Wire
from rejoinder.engines.wire import Refused, naming_grammar, refuse_long_prompt
from rejoinder.errors import ChatError, InvalidRequest, ProviderFailed, Unavailable
from rejoinder.types import Counts, Prompt, SamplingParams, Step

NO_ROUTE = frozenset((403, 404, 405))
"""How a server says that `/inference/v1/generate` is switched off, or that it is too old."""


class _Model(Struct):
    id: str
    root: str | None = None
    max_model_len: int | None = None


class _Models(Struct):
    data: list[_Model] = []


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


class VllmEngine:
    """One vLLM server. It opens no connection before `start` or the first sequence.

    A sequence is aborted by closing its generator. What vLLM cannot do is not asked of it: a
    prediction is only a hint, and is not sent.
    """

    resumes_grammar = False
    resumes_penalties = False
    samples_by_position = False

    def __init__(
        self,
        base_url: str,
        *,
        model: str = "",
        api_key: str = "",
        context_length: int = 0,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        """`model` empty: the one that the server serves. `context_length` 0: what it reports."""
        self._server = Server(base_url, api_key=api_key, timeouts=timeouts)
        self._model = model
        self._context_length = context_length
        self._wire: Wire | None = None
        self._identity = ""
        self._starting = asyncio.Lock()

    @property
    def context_length(self) -> int:
        """Raises Unavailable as long as neither the configuration nor the server has told it."""
        if not self._context_length:
            raise Unavailable("The replica has not been reached yet.")
        return self._context_length

    @property
    def fingerprint(self) -> str:
        seen = f"vllm {self._model} {self._identity}"
        return "fp_" + hashlib.sha256(seen.encode()).hexdigest()[:10]

    @property
    def endpoint(self) -> str:
        """The path in use; empty before the server has been reached."""
        return self._wire.path if self._wire else ""

    async def start(self) -> None:
        """Learns the model, its context length and the endpoint to use. Raises ChatError."""
        async with self._starting:
            if self._wire is None:
                try:
                    await self._learn_model()
                    self._wire = await self._choose_wire()
                except Refused as error:
                    raise error.chat_error() from error
                except msgspec.DecodeError as error:
                    raise ProviderFailed(f"The replica does not answer as vLLM: {error}") from None

    async def healthy(self) -> bool:
        """Whether the server says so, and could be started."""
        if not await self._server.healthy():
            return False
        with suppress(ChatError):
            await self.start()
        return self._wire is not None

    async def generate(
        self, prompt: Prompt, params: SamplingParams, counts: Counts
    ) -> AsyncGenerator[Step, None]:
        if self._wire is None:
            await self.start()
        wire = self._wire
        assert wire is not None
        params = refuse_long_prompt(prompt, params, self.context_length)
        if params.max_tokens <= 0:
            counts.prompt_tokens = len(prompt.token_ids)
            yield Step((), finish_reason="length")
            return
        running = steps(
            self._server,
            wire.path,
            wire.encode(uuid.uuid4().hex, self._model, prompt, params),
            read=wire.decoder(params),
            prompt_tokens=len(prompt.token_ids),
            counts=counts,
        )
        try:
            async with aclosing(running):
                async for step in running:
                    yield step
        except InvalidRequest as error:
            raise naming_grammar(error, params) from error

    async def close(self) -> None:
        await self._server.close()

    async def _learn_model(self) -> None:
        served = msgspec.json.decode(await self._server.get("/v1/models"), type=_Models).data
        model = next((m for m in served if self._model in ("", m.id)), None)
        if model is None:
            names = ", ".join(m.id for m in served) or "none"
            raise ProviderFailed(f"The replica has no model '{self._model}'; it has: {names}.")
        self._model = model.id
        limit = model.max_model_len or 0
        if not limit and not self._context_length:
            raise ProviderFailed("The replica reports no context length; configure it.")
        self._context_length = min(filter(None, (self._context_length, limit)))
        version = ""
        with suppress(Refused, ChatError, msgspec.DecodeError):
            version = msgspec.json.decode(await self._server.get("/version"), type=_Version).version
        self._identity = f"{model.root} {version}"

    async def _choose_wire(self) -> Wire:
        """One token with a logprob tells whether the endpoint is there and reports ranks."""
        sampling = {"max_tokens": 1, "temperature": 0.0, "logprobs": 1, "detokenize": False}
        body = {"model": self._model, "token_ids": [0], "sampling_params": sampling}
        try:
            answer = await self._server.post(TokensWire.path, msgspec.json.encode(body))
        except Refused as error:
            if error.status in NO_ROUTE:
                return CompletionsWire()
            raise
        choices = msgspec.json.decode(answer, type=_Probe).choices
        logprobs = (choices[0].logprobs and choices[0].logprobs.content) if choices else None
        return TokensWire(has_ranks=bool(logprobs and logprobs[0].rank is not None))
