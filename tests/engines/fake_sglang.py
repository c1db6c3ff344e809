"""A fake of SGLang's server on the toy model, with the shapes of its source (no server was run)."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web

from tests.engines import toy_model
from tests.engines.toy_model import END, VOCABULARY, Pick


@dataclass
class SglangFault:
    kind: Literal["die", "hang", "abort", "invalid"]
    after: int = 0


@dataclass
class FakeSglang:
    model: str = "smol"
    context_length: int = 2048
    incremental: bool = False
    ids: bool = True
    delay: float = 0.0
    tokens_per_event: int = 1
    faults: list[SglangFault] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    aborts: list[str] = field(default_factory=list)
    running: int = 0
    seen: set[tuple[str, tuple[int, ...]]] = field(default_factory=set)
    url: str = ""

    @asynccontextmanager
    async def serve(self) -> AsyncIterator["FakeSglang"]:
        app = web.Application(client_max_size=2**26)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/get_model_info", self._model_info)
        app.router.add_get("/get_server_info", self._server_info)
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/abort_request", self._abort)
        runner = web.AppRunner(app, shutdown_timeout=0.01, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, request: web.Request) -> web.Response:
        card = {"id": self.model, "object": "model", "max_model_len": self.context_length}
        return web.json_response({"object": "list", "data": [card]})

    async def _model_info(self, request: web.Request) -> web.Response:
        info = {"model_path": self.model, "is_generation": True, "weight_version": "default"}
        return web.json_response(info)

    async def _server_info(self, request: web.Request) -> web.Response:
        info = {"context_length": None, "max_total_num_tokens": 99999, "version": "0.5.5"}
        return web.json_response(info)

    async def _abort(self, request: web.Request) -> web.Response:
        self.aborts.append((await request.json())["rid"])
        return web.Response()

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        fault = self.faults.pop(0) if self.faults else None
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        refused = refusal(body)
        if refused is not None or (fault is not None and fault.kind == "invalid"):
            message = refused or "The request is invalid."
            await response.write(frame({"error": {"message": message}}))
            await response.write(b"data: [DONE]\n\n")
            return response
        self.running += 1
        try:
            await self._stream(request, response, body, fault)
        finally:
            self.running -= 1
        return response

    async def _stream(
        self,
        request: web.Request,
        response: web.StreamResponse,
        body: dict[str, Any],
        fault: SglangFault | None,
    ) -> None:
        sampling = body["sampling_params"]
        prompt = body["input_ids"]
        picks: list[Pick] = []
        sent = 0
        cached = self._cached(body.get("extra_key", ""), prompt)
        room = min(sampling["max_new_tokens"], self.context_length - len(prompt))
        finish: dict[str, Any] | None = None
        while finish is None:
            if fault is not None and fault.after == len(picks):
                if fault.kind == "die":
                    await asyncio.sleep(0.005)
                    assert request.transport is not None
                    request.transport.abort()
                    return
                if fault.kind == "hang":
                    await asyncio.sleep(30)
                finish = {"type": "abort", "message": "Abort in waiting queue"}
                finish["status_code"] = 503
                await response.write(frame(self._event(body, picks, sent, finish, cached)))
                break
            picks.append(self._pick(prompt, [p.token_id for p in picks], sampling))
            last = picks[-1].token_id
            if last == END or last in sampling.get("stop_token_ids", ()):
                finish = {"type": "stop", "matched": last}
            elif len(picks) == room:
                finish = {"type": "length", "length": room}
            if finish or len(picks) - sent == self.tokens_per_event:
                await response.write(frame(self._event(body, picks, sent, finish, cached)))
                sent = len(picks)
            await asyncio.sleep(self.delay)
        await response.write(b"data: [DONE]\n\n")

    def _pick(self, prompt: list[int], output: list[int], sampling: dict[str, Any]) -> Pick:
        for kind in ("json_schema", "regex", "ebnf"):
            if kind in sampling:
                token_id = toy_model.constrained(sampling[kind], len(output))
                return Pick(token_id, -0.5, 1, ((token_id, -0.5),))
        return toy_model.pick(
            prompt,
            output,
            temperature=sampling["temperature"],
            draw=toy_model.draw_of(sampling.get("sampling_seed", 0), len(prompt) + len(output)),
            bias={int(k): v for k, v in sampling.get("logit_bias", {}).items()},
            frequency_penalty=sampling["frequency_penalty"],
            presence_penalty=sampling["presence_penalty"],
        )

    def _event(
        self,
        body: dict[str, Any],
        picks: list[Pick],
        sent: int,
        finish: dict[str, Any] | None,
        cached: int,
    ) -> dict[str, Any]:
        shown = picks[sent:] if self.incremental else picks
        meta: dict[str, Any] = {
            "id": body["rid"],
            "finish_reason": finish,
            "prompt_tokens": len(body["input_ids"]),
            "weight_version": "default",
            "completion_tokens": len(picks),
            "cached_tokens": cached,
        }
        if body.get("return_logprob"):
            top = body.get("top_logprobs_num", 0)
            meta["input_token_logprobs"] = []
            meta["output_token_logprobs"] = [[p.logprob, p.token_id, None] for p in shown]
            meta["output_top_logprobs"] = [
                [[value, token_id, None] for token_id, value in p.top[:top]] for p in shown
            ]
        event: dict[str, Any] = {"text": "x" * len(shown), "meta_info": meta}
        if self.ids:
            event["output_ids"] = [p.token_id for p in shown]
        return event

    def _cached(self, key: str, ids: list[int]) -> int:
        cached = 0
        for end in range(1, len(ids)):
            if (key, tuple(ids[:end])) in self.seen:
                cached = end
        self.seen |= {(key, tuple(ids[:end])) for end in range(1, len(ids) + 1)}
        return cached


def refusal(body: dict[str, Any]) -> str | None:
    sampling = body["sampling_params"]
    if not 0.0 < sampling["top_p"] <= 1.0:
        return f"top_p must be in (0, 1], got {sampling['top_p']}."
    if sampling["top_k"] < 1 and sampling["top_k"] != -1:
        return f"top_k must be -1 (disable) or at least 1, got {sampling['top_k']}."
    if any(token_id >= VOCABULARY for token_id in body["input_ids"]):
        return "The input_ids contains values greater than the vocab size (1000)."
    if sum(kind in sampling for kind in ("json_schema", "regex", "ebnf")) > 1:
        return "Only one of regex, json_schema, or ebnf can be set."
    return None


def frame(event: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"
