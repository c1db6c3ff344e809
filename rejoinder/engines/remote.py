"""An engine server as an engine: token ids in, token ids and logprobs out, over HTTP.

It asks the server once what it has, and then for sequences. It must not know: which kind of
server it is, text, messages, other replicas.
"""

import asyncio
import hashlib
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress

import msgspec
from msgspec import Struct

from rejoinder.engines.http import DEFAULT_TIMEOUTS, Server, Timeouts, steps
from rejoinder.engines.wire import Refused, Wire, naming_grammar, refuse_long_prompt
from rejoinder.errors import ChatError, InvalidRequest, ProviderFailed, Unavailable
from rejoinder.types import Counts, Prompt, SamplingParams, Step

ABORT_SECONDS = 5.0


class ServedModel(Struct, frozen=True):
    """An entry of `/v1/models`, which all kinds have."""

    id: str
    root: str | None = None
    max_model_len: int | None = None


class _ServedModels(Struct):
    data: list[ServedModel] = []


class Learnt(Struct, frozen=True):
    """What a server has told of itself. `context_length` 0: nothing; `identity` changes with
    what its answers depend on."""

    wire: Wire
    context_length: int
    identity: str


class ServerKind(Struct, frozen=True, kw_only=True):
    """What one kind of server does in its own way.

    `learn` may raise Refused, ChatError and msgspec.DecodeError. `abort` tells the server that a
    sequence is not wanted any more; None: it sees that its connection was closed.
    `samples_by_position`: a token's randomness depends on the seed and its position alone.
    """

    name: str
    learn: Callable[[Server, ServedModel], Awaitable[Learnt]]
    abort: Callable[[Server, str], Awaitable[None]] | None = None
    samples_by_position: bool = False


class RemoteEngine:
    """One engine server. It opens no connection before `start` or the first sequence.

    A sequence is aborted by closing its generator. What a server cannot do is not asked of it: a
    prediction is only a hint, and is not sent.
    """

    def __init__(
        self,
        kind: ServerKind,
        base_url: str,
        *,
        model: str = "",
        api_key: str = "",
        context_length: int = 0,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        """`model` empty: the one that the server serves. `context_length` 0: what it reports."""
        self._kind = kind
        self._server = Server(base_url, api_key=api_key, timeouts=timeouts)
        self._model = model
        self._context_length = context_length
        self._wire: Wire | None = None
        self._identity = ""
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
        seen = f"{self._kind.name.lower()} {self._model} {self._identity}"
        return "fp_" + hashlib.sha256(seen.encode()).hexdigest()[:10]

    @property
    def samples_by_position(self) -> bool:
        return self._kind.samples_by_position

    @property
    def endpoint(self) -> str:
        """The path in use; empty before the server has been reached."""
        return self._wire.path if self._wire else ""

    async def start(self) -> None:
        """Learns the model, its context length and the endpoint to use. Raises ChatError."""
        await self._started()

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
        wire = self._wire or await self._started()
        params = refuse_long_prompt(prompt, params, self.context_length)
        if params.max_tokens <= 0:
            counts.prompt_tokens = len(prompt.token_ids)
            yield Step((), finish_reason="length")
            return
        request_id = uuid.uuid4().hex
        running = steps(
            self._server,
            wire.path,
            wire.encode(request_id, self._model, prompt, params),
            read=wire.decoder(params),
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

    async def _started(self) -> Wire:
        async with self._starting:
            if self._wire is None:
                try:
                    self._wire = await self._learn()
                except Refused as error:
                    raise error.chat_error() from error
                except msgspec.DecodeError as error:
                    raise ProviderFailed(
                        f"The replica does not answer as {self._kind.name}: {error}"
                    ) from None
            return self._wire

    async def _learn(self) -> Wire:
        served = msgspec.json.decode(await self._server.get("/v1/models"), type=_ServedModels).data
        model = next((m for m in served if self._model in ("", m.id)), None)
        if model is None:
            names = ", ".join(m.id for m in served) or "none"
            raise ProviderFailed(f"The replica has no model '{self._model}'; it has: {names}.")
        learnt = await self._kind.learn(self._server, model)
        if not learnt.context_length and not self._context_length:
            raise ProviderFailed("The replica reports no context length; configure it.")
        self._model = model.id
        self._context_length = min(filter(None, (self._context_length, learnt.context_length)))
        self._identity = learnt.identity
        return learnt.wire

    def _abort(self, request_id: str) -> None:
        """Beside the stream, which nobody waits for any more."""
        if self._kind.abort is not None:
            task = asyncio.get_running_loop().create_task(self._tell(self._kind.abort, request_id))
            self._aborts.add(task)
            task.add_done_callback(self._aborts.discard)

    async def _tell(self, abort: Callable[[Server, str], Awaitable[None]], request_id: str) -> None:
        with suppress(Refused, ChatError, TimeoutError):
            async with asyncio.timeout(ABORT_SECONDS):
                await abort(self._server, request_id)
