"""A fake of vLLM's server on the toy model: real HTTP on 127.0.0.1, vLLM 0.32's bodies and traps.

Kept from the real one: refusals inside a 200 stream, the end token among the ids, silent clamping,
silently ignored keys, a bare 200 with `abort` while draining, hanging streams after SIGTERM.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web

from tests.engines import toy_model
from tests.engines.toy_model import END, VOCABULARY, Pick

BLOCK = 16
MAX_LOGPROBS = 20
STRUCTURED = {"json", "regex", "choice", "grammar", "json_object", "structural_tag"}

Kind = Literal["die", "hang", "engine_dead", "abort", "cut", "no_done", "bare_end", "error_status"]


@dataclass
class ServerFault:
    """What happens to one request after this many tokens."""

    kind: Kind
    after: int = 0
    status: int = 500


@dataclass
class FakeVllm:
    model: str = "smol"
    max_model_len: int = 2048
    scale_out: bool = True
    ranks: bool = True
    prompt_details: bool = True
    api_key: str = ""
    tokens_per_event: int = 1
    events_per_write: int = 1
    delay: float = 0.0
    healthy: bool = True
    comments: bool = False
    faults: list[ServerFault] = field(default_factory=list)
    overloaded: int = 0
    requests: list[dict[str, Any]] = field(default_factory=list)
    running: int = 0
    connections: set[Any] = field(default_factory=set)
    cache: set[tuple[str, tuple[int, ...]]] = field(default_factory=set)
    url: str = ""

    @asynccontextmanager
    async def serve(self) -> AsyncIterator["FakeVllm"]:
        app = web.Application(client_max_size=2**26)
        app.router.add_get("/health", self._health)
        app.router.add_get("/version", self._version)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/inference/v1/generate", self._generate)
        app.router.add_post("/inference/v1/abort_requests", self._abort)
        app.router.add_post("/v1/completions", self._completions)
        runner = web.AppRunner(app, shutdown_timeout=0.01, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    @property
    def generations(self) -> list[dict[str, Any]]:
        """The requests that were for tokens, without the client's probe."""
        return [r for r in self.requests if r.get("stream")]

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503)

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    async def _models(self, request: web.Request) -> web.Response:
        if not self._authorized(request):
            return web.json_response({"error": "Unauthorized"}, status=401)
        card = {"id": self.model, "object": "model", "root": "/m", "permission": []}
        card["max_model_len"] = self.max_model_len  # type: ignore[assignment]
        return web.json_response({"object": "list", "data": [card]})

    async def _abort(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        if not self._authorized(request):
            return web.json_response({"error": "Unauthorized"}, status=401)
        if not self.scale_out:
            return error(
                403,
                "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to "
                "enable them.",
                "PermissionDeniedError",
            )
        body = await request.json()
        self.requests.append(body)
        if "token_ids" not in body or "sampling_params" not in body:
            return error(400, "1 validation error:\n  Field required", "Bad Request", "body")
        sampling = body["sampling_params"]
        return await self._serve(request, body, body["token_ids"], sampling, TokensShape(self))

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        if not self._authorized(request):
            return web.json_response({"error": "Unauthorized"}, status=401)
        body = await request.json()
        self.requests.append(body)
        if len(body["prompt"]) >= self.max_model_len:
            return error(400, self._too_long(body["prompt"]), "BadRequestError")
        return await self._serve(request, body, body["prompt"], body, TextShape(self, body))

    def _authorized(self, request: web.Request) -> bool:
        return not self.api_key or request.headers.get("Authorization") == f"Bearer {self.api_key}"

    def _too_long(self, ids: list[int]) -> str:
        return (
            f"The decoder prompt (length {len(ids)}) is longer than the maximum model length of "
            f"{self.max_model_len}. Make sure that `max_model_len` is no smaller than the number "
            "of text tokens."
        )

    async def _serve(
        self,
        request: web.Request,
        body: dict[str, Any],
        ids: list[int],
        sampling: dict[str, Any],
        shape: "TokensShape | TextShape",
    ) -> web.StreamResponse:
        fault = self.faults.pop(0) if self.faults and body.get("stream") else None
        if fault is not None and fault.kind == "error_status":
            return error(fault.status, "internal words", "InternalServerError")
        if body.get("model") not in (None, self.model):
            message = f"The model `{body['model']}` does not exist. Valid aliases: {self.model}."
            return error(404, message, "NotFoundError", "model")
        if (refused := at_parse(sampling)) is not None:
            return error(400, refused, "BadRequestError")
        late = self._at_add(ids, sampling)
        if not body.get("stream"):
            if late is not None:
                return error(late[0], late[1], "BadRequestError", late[2])
            return web.json_response(await self._unary(ids, sampling, shape))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        if late is not None:
            await response.write(frame(error_body(late[0], late[1], "BadRequestError", late[2])))
            await response.write(b"data: [DONE]\n\n")
            return response
        self.running += 1
        try:
            events = self._events(body, ids, sampling, shape, fault)
            waiting = b""
            count = 0
            async for event in events:
                waiting += event
                count += 1
                if count % self.events_per_write == 0:
                    await response.write(waiting)
                    waiting = b""
            await response.write(waiting)
        except Die:
            if waiting:
                await response.write(waiting)
                await asyncio.sleep(0.005)
            assert request.transport is not None
            request.transport.abort()
        finally:
            self.running -= 1
        return response

    def _at_add(
        self, ids: list[int], sampling: dict[str, Any]
    ) -> tuple[int, str, str | None] | None:
        if self.overloaded:
            self.overloaded -= 1
            return 503, "The engine queue is full.", None
        for token_id in ids:
            if token_id >= VOCABULARY:
                return 400, f"Token id {token_id} is out of vocabulary", None
        if len(ids) >= self.max_model_len:
            return 400, self._too_long(ids), None
        if (asked := sampling.get("logprobs") or 0) > MAX_LOGPROBS:
            message = (
                f"Requested sample logprobs of {asked}, which is greater than max allowed: "
                f"{MAX_LOGPROBS} (parameter=logprobs, value={asked})"
            )
            return 400, message, "logprobs"
        grammar = sampling.get("structured_outputs") or {}
        if grammar.get("grammar") == "bad":
            return 400, "Grammar error: no rule named start", "structured_outputs"
        return None

    async def _unary(
        self, ids: list[int], sampling: dict[str, Any], shape: "TokensShape | TextShape"
    ) -> dict[str, Any]:
        picks = [one async for one in self._picks(ids, sampling)]
        event = shape.event(picks, sampling, "length", None, first=True)
        return {**event, "usage": usage(len(ids), len(picks), None)}

    async def _events(
        self,
        body: dict[str, Any],
        ids: list[int],
        sampling: dict[str, Any],
        shape: "TokensShape | TextShape",
        fault: ServerFault | None,
    ) -> AsyncGenerator[bytes, None]:
        cached = self._cached(body.get("cache_salt", ""), ids)
        sent = 0
        waiting: list[Pick] = []
        finish: str | None = None
        picks = self._picks(ids, sampling)
        room = self._room(ids, sampling)
        while finish is None:
            if fault is not None and sent + len(waiting) == fault.after:
                if waiting:
                    yield frame(shape.event(waiting, sampling, None, None, first=not sent))
                async for end in self._fail(fault, shape, sampling):
                    yield end
                return
            one = await anext(picks)
            waiting.append(one)
            stops = sampling.get("stop_token_ids") or []
            stop_reason = one.token_id if one.token_id in stops else None
            if one.token_id == END or stop_reason is not None:
                finish = "stop"
            elif sent + len(waiting) == room:
                finish = "length"
            if finish or len(waiting) == self.tokens_per_event or not sent:
                if self.comments:
                    yield b": keep-alive\n\n"
                yield frame(shape.event(waiting, sampling, finish, stop_reason, first=not sent))
                sent += len(waiting)
                waiting = []
            await asyncio.sleep(self.delay)
        if fault is not None and fault.kind == "cut" and fault.after < 0:
            raise Die
        if (body.get("stream_options") or {}).get("include_usage"):
            details = cached if self.prompt_details else None
            yield frame(shape.last(usage(len(ids), sent, details)))
        if fault is None or fault.kind != "no_done":
            yield b"data: [DONE]\n\n"

    async def _fail(
        self, fault: ServerFault, shape: "TokensShape | TextShape", sampling: dict[str, Any]
    ) -> AsyncGenerator[bytes, None]:
        match fault.kind:
            case "die":
                raise Die
            case "hang":
                await asyncio.sleep(30)
            case "cut":
                yield b'data: {"request_id":"generate-to'
                raise Die
            case "abort":
                yield frame(shape.event([], sampling, "abort", None, first=False))
                yield b"data: [DONE]\n\n"
            case "engine_dead":
                self.healthy = False
                message = (
                    "EngineCore encountered an issue. See stack trace (above) for the root cause."
                )
                yield frame(error_body(500, message, "InternalServerError"))
                yield b"data: [DONE]\n\n"
            case "bare_end":
                yield b"data: [DONE]\n\n"

    async def _picks(self, ids: list[int], sampling: dict[str, Any]) -> AsyncGenerator[Pick, None]:
        output: list[int] = []
        grammar = sampling.get("structured_outputs")
        for _ in range(self._room(ids, sampling)):
            if grammar:
                token_id = toy_model.constrained(next(iter(grammar.values())), len(output))
                one = Pick(token_id, -0.5, 1, ((token_id, -0.5),))
            else:
                one = toy_model.pick(
                    ids,
                    output,
                    temperature=sampling.get("temperature", 1.0),
                    # A generator made for the request: the first draw is the first again.
                    draw=toy_model.draw_of(sampling.get("seed", 0), len(output)),
                    bias={int(k): v for k, v in (sampling.get("logit_bias") or {}).items()},
                    frequency_penalty=sampling.get("frequency_penalty", 0.0),
                    presence_penalty=sampling.get("presence_penalty", 0.0),
                )
            output.append(one.token_id)
            yield one

    def _room(self, ids: list[int], sampling: dict[str, Any]) -> int:
        room = self.max_model_len - len(ids)
        return min(room, sampling.get("max_tokens") or room)

    def _cached(self, salt: str, ids: list[int]) -> int:
        ends = range(BLOCK, len(ids), BLOCK)
        cached = 0
        for end in ends:
            if (salt, tuple(ids[:end])) not in self.cache:
                break
            cached = end
        self.cache |= {(salt, tuple(ids[:end])) for end in ends}
        return cached


class Die(Exception):
    """The connection is lost without a word."""


class TokensShape:
    def __init__(self, server: FakeVllm) -> None:
        self._ranks = server.ranks

    def event(
        self,
        picks: list[Pick],
        sampling: dict[str, Any],
        finish: str | None,
        stop_reason: int | None,
        *,
        first: bool,
    ) -> dict[str, Any]:
        logprobs = None
        if (asked := sampling.get("logprobs")) is not None:
            logprobs = {"content": [self._logprob(one, asked) for one in picks]}
        choice = {
            "index": 0,
            "finish_reason": finish,
            "stop_reason": stop_reason,
            "token_ids": [one.token_id for one in picks],
            "routed_experts": None,
            "sampling_mask": None,
            "weight_versions": None,
            "logprobs": logprobs,
        }
        return {
            "request_id": "generate-tokens-x",
            "usage": None,
            "output_mode": "tokens",
            "choices": [choice],
        }

    def last(self, counted: dict[str, Any]) -> dict[str, Any]:
        return {
            "request_id": "generate-tokens-x",
            "usage": counted,
            "output_mode": "tokens",
            "choices": [],
        }

    def _logprob(self, one: Pick, asked: int) -> dict[str, Any]:
        own = self._entry(one.token_id, one.logprob, one.rank)
        others = [
            self._entry(token_id, value, rank)
            for rank, (token_id, value) in enumerate(one.top[:asked], 1)
            if token_id != one.token_id
        ]
        return {**own, "top_logprobs": [own, *others]}

    def _entry(self, token_id: int, value: float, rank: int) -> dict[str, Any]:
        if self._ranks:
            return {"token_id": token_id, "logprob": value, "rank": rank}
        return {"token": f"token_id:{token_id}", "logprob": value, "bytes": None}


class TextShape:
    def __init__(self, server: FakeVllm, body: dict[str, Any]) -> None:
        self._model = server.model
        self._body = body

    def event(
        self,
        picks: list[Pick],
        sampling: dict[str, Any],
        finish: str | None,
        stop_reason: int | None,
        *,
        first: bool,
    ) -> dict[str, Any]:
        logprobs = None
        if (asked := sampling.get("logprobs")) is not None:
            logprobs = {
                "text_offset": [0] * len(picks),
                "token_logprobs": [one.logprob for one in picks],
                "tokens": [self._key(one.token_id) for one in picks],
                "top_logprobs": [self._top(one, asked) for one in picks],
            }
        choice: dict[str, Any] = {
            "index": 0,
            "text": "".join("" if one.token_id == END else "x" for one in picks),
            "logprobs": logprobs,
            "finish_reason": finish,
            "stop_reason": stop_reason,
        }
        if self._body.get("return_token_ids"):
            choice["prompt_token_ids"] = self._body["prompt"] if first else None
            choice["token_ids"] = [one.token_id for one in picks]
        return {
            "id": "cmpl-x",
            "object": "text_completion",
            "created": 1795976642,
            "model": self._model,
            "choices": [choice],
        }

    def last(self, counted: dict[str, Any]) -> dict[str, Any]:
        return {"id": "cmpl-x", "object": "text_completion", "choices": [], "usage": counted}

    def _key(self, token_id: int) -> str:
        if self._body.get("return_tokens_as_token_ids"):
            return f"token_id:{token_id}"
        return f"word{token_id}"

    def _top(self, one: Pick, asked: int) -> dict[str, float]:
        top = {self._key(one.token_id): one.logprob}
        return top | {self._key(token_id): value for token_id, value in one.top[:asked]}


def at_parse(sampling: dict[str, Any]) -> str | None:
    """What vLLM refuses when it parses a request: a plain 400 even for a stream."""
    if not 0 < sampling.get("top_p", 1.0) <= 1:
        return f"top_p must be in (0, 1], got {sampling['top_p']}."
    if sampling.get("temperature", 1.0) < 0:
        return "temperature must be non-negative"
    if sampling.get("max_tokens", 1) < 1:
        return f"max_tokens must be at least 1, got {sampling['max_tokens']}."
    grammar = sampling.get("structured_outputs")
    if grammar is not None and len(STRUCTURED & set(grammar)) != 1:
        return "You must use exactly one kind of structured outputs constraint"
    return None


def usage(prompt: int, completion: int, cached: int | None) -> dict[str, Any]:
    counted: dict[str, Any] = {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
    }
    if cached is not None:
        counted["prompt_tokens_details"] = {"cached_tokens": cached}
    return counted


def frame(event: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def error_body(status: int, message: str, kind: str, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def error(status: int, message: str, kind: str, param: str | None = None) -> web.Response:
    return web.json_response(error_body(status, message, kind, param), status=status)
