"""An ideal server for the checker's tests: a pure function from request to answer, both dialects.

What must be refused it knows from the rules' own tables; everything else it makes by itself, by
hand, without the package's encoders. `Ideal.answer` is one exchange; `serve` puts it on a socket.
"""

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from rejoinder.check.client import Target, request_of
from rejoinder.check.exchange import DialectName, Exchange, Read, Request, Response
from rejoinder.check.rule import Probe
from rejoinder.check.rules.requests import D_PARAMETERS, TABLES

MODEL = "ideal"
KEY = "sk-ideal-0123456789"
NOW = 1_790_000_000
PRICING = {"input_tokens": 1.0, "output_tokens": 2.0, "cache_read_tokens": 0.5}

REFUSED = {401: "invalid_api_key", 404: "model_not_found"}


def target(dialect: DialectName, base: str = "http://ideal") -> Target:
    path = "/v1" if dialect == "O" else "/v1/openai"
    return Target(base_url=base + path, model=MODEL, dialect=dialect, api_key=KEY)


class Ideal:
    """One server; it remembers what was stored, and numbers its answers."""

    def __init__(self, dialect: DialectName) -> None:
        self.dialect = dialect
        self.count = 0
        self.now = NOW
        self.stored: dict[str, Any] = {}
        self.cases = {
            request_of(probe, target(dialect), {}).body: case
            for table in TABLES
            for probe, case in zip(table.probes, table.cases, strict=True)
            if case.status and dialect in probe.dialects
        }

    # ------------------------------------------------------------ requests

    def ask(self, probe: Probe, ids: dict[str, str] | None = None) -> Exchange:
        request = request_of(probe, target(self.dialect), ids or {})
        response = self.answer(request)
        if probe.stop_after:
            head = b"\n\n".join(response.body.split(b"\n\n")[: probe.stop_after]) + b"\n\n"
            response = Response(
                status=200, headers=response.headers, body=head, ending="closed by client"
            )
        return Exchange(
            probe=probe.name, dialect=self.dialect, request=request, response=response, at=NOW
        )

    def answer(self, request: Request) -> Response:
        self.count += 1
        path = request.url.partition("://")[2].partition("/")[2].partition("?")[0]
        headers = {name.lower(): value for name, value in request.headers}
        if path == "metrics":
            return self._plain(b"# TYPE requests_running gauge\nrequests_running 0\n")
        if headers.get("authorization") != f"Bearer {KEY}":
            return self.error(401, "Incorrect API key provided.", code="invalid_api_key")
        path = path.removeprefix("v1/").removeprefix("openai/")
        match (request.method, path.split("/")):
            case ("GET", ["models"]):
                return self._json({"object": "list", "data": [self._model()]})
            case ("POST", ["chat", "completions"]):
                return self._completion(request, headers)
            case ("GET", ["chat", "completions"]):
                data = list(self.stored.values())
                ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {}
                return self._json({"object": "list", "data": data, "has_more": False, **ends})
            case (_, ["chat", "completions"]):
                return self.error(405, "Method not allowed.")
            case (_, ["chat", "completions", key]) if key in self.stored:
                return self._on_stored(request, key)
            case _:
                return self.error(404, "Not found.")

    def _on_stored(self, request: Request, key: str) -> Response:
        match request.method:
            case "GET":
                return self._json(self.stored[key])
            case "POST":
                metadata = json.loads(request.body)["metadata"]
                self.stored[key] = {**self.stored[key], "metadata": metadata}
                return self._json(self.stored[key])
            case _:
                del self.stored[key]
                return self._json({"object": "chat.completion.deleted", "id": key, "deleted": True})

    def _model(self) -> dict[str, Any]:
        return {
            "id": MODEL,
            "object": "model",
            "created": NOW,
            "owned_by": "tests",
            "metadata": {"pricing": PRICING},
        }

    def _refusal(self, body: bytes) -> Response | None:
        case = self.cases.get(body)
        if case is not None:
            status = 400 if self.dialect == "O" else 422
            return self.error(status, case.say, param=case.param, code=case.code)
        try:
            asked = json.loads(body)
        except ValueError:
            return self.error(400, "Not JSON.")
        if not isinstance(asked, dict):
            return self.error(400, "Not an object.")
        if asked["model"] != MODEL:
            return self.error(404, "No such model.", code="model_not_found")
        if len(body) > 1_000_000:
            return self.error(400, "Too long.", param="messages", code="context_length_exceeded")
        if asked.get("temperature") not in (None, 0, 0.5, 1, 2):
            return self.error(400 if self.dialect == "O" else 422, "temperature")
        if self.dialect == "O":
            marked = [*asked["messages"], *asked.get("tools", [])]
            if any("cache_control" in one for one in marked) or D_PARAMETERS.keys() & asked:
                return self.error(400, "Unknown parameter.", code="unknown_parameter")
        elif asked.get("continue_final_message") and asked["messages"][-1]["role"] == "user":
            return self.error(422, "continue_final_message")
        return None

    def error(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> Response:
        error = {
            "message": message,
            "type": "server_error" if status >= 500 else "invalid_request_error",
            "param": param,
            "code": code,
        }
        return self._json({"error": error}, status=status)

    # ------------------------------------------------------------ answers

    def _completion(self, request: Request, headers: dict[str, str]) -> Response:
        if headers.get("content-encoding", "gzip") != "gzip":
            return self.error(400, "Not JSON.")
        if (refusal := self._refusal(request.body)) is not None:
            return refusal
        asked = json.loads(request.body)
        answer = Answer(self.dialect, asked, f"chatcmpl-{self.count}", self.now)
        if not asked.get("stream"):
            body = answer.body()
            if asked.get("store"):
                self.stored[body["id"]] = {**body, "metadata": asked.get("metadata", {})}
            return self._json(body)
        text = b"".join(sse(payload) for payload in answer.frames())
        reads = tuple(Read(n, 0.001) for n in range(0, len(text), 500))
        return Response(
            status=200,
            headers=self._headers(("Content-Type", "text/event-stream; charset=utf-8")),
            body=text,
            reads=reads,
        )

    def _headers(self, *more: tuple[str, str]) -> tuple[tuple[str, str], ...]:
        limits = [
            (f"x-ratelimit-{kind}-{what}", value)
            for what in ("requests", "tokens")
            for kind, value in (("limit", "60"), ("remaining", "59"), ("reset", "6m0s"))
        ]
        return (
            ("x-request-id", f"req_{self.count}"),
            ("openai-processing-ms", "3"),
            ("openai-version", "2020-10-01"),
            ("openai-organization", "tests"),
            ("Cache-Control", "no-cache"),
            *limits,
            *more,
        )

    def _plain(self, body: bytes) -> Response:
        return Response(body=body, headers=self._headers(("Content-Type", "text/plain")))

    def _json(self, value: object, status: int = 200) -> Response:
        return Response(
            status=status,
            headers=self._headers(("Content-Type", "application/json")),
            body=json.dumps(value).encode(),
        )


def sse(payload: object) -> bytes:
    text = payload if isinstance(payload, str) else json.dumps(payload)
    return b"data: " + text.encode() + b"\n\n"


class Answer:
    """What the ideal model says to one request."""

    def __init__(
        self, dialect: DialectName, asked: dict[str, Any], id: str, now: int = NOW
    ) -> None:
        self.dialect = dialect
        self.asked = asked
        self.head = {
            "id": id,
            "created": now,
            "model": MODEL,
            "service_tier": "priority" if self._tier == "priority" else "default",
        }
        if dialect == "O":
            self.head["system_fingerprint"] = "fp_1"
        self.n = asked.get("n") or 1
        self.choices = [self._choice(index) for index in range(self.n)]

    @property
    def _tier(self) -> str:
        return self.asked.get("service_tier") or "default"

    def _choice(self, index: int) -> dict[str, Any]:
        asked = self.asked
        limit = asked.get("max_completion_tokens", asked.get("max_tokens")) or 16
        seed = asked.get("seed", 0) if asked.get("temperature") else 0
        text = ["The", " sea", f" no{seed}{index}" if seed else " is", " v", "ast", "."]
        off = asked.get("reasoning") or asked.get("reasoning_effort")
        thoughts = [] if self.dialect == "O" or off or seed else ["Let", " me", " see."]
        calls = self._calls()
        spent = len(thoughts[:limit])
        if calls:
            text = [" "] if limit > 2 else []
            calls = calls if limit > 2 else []
            return {
                "reasoning": thoughts[:limit],
                "text": [],
                "calls": calls,
                "tokens": spent + 10 if calls else limit,
                "finish": self._call_finish() if calls else "length",
            }
        text = text[: limit - spent]
        finish = "stop" if spent + len(text) < limit else "length"
        tokens, text, stopped = spent + len(text), *self._until_stop(text)
        return {
            "reasoning": thoughts[:limit],
            "text": text,
            "calls": [],
            "tokens": tokens,
            "finish": "stop" if stopped else finish,
        }

    def _until_stop(self, text: list[str]) -> tuple[list[str], bool]:
        stops = self.asked.get("stop") or []
        whole = "".join(text)
        cuts = [whole.find(stop) for stop in ([stops] if isinstance(stops, str) else stops)]
        cuts = [cut for cut in cuts if cut >= 0]
        if not cuts:
            return text, False
        kept, left = [], min(cuts)
        for piece in text:
            if left > 0:
                kept.append(piece[:left])
            left -= len(piece)
        return kept, True

    def _calls(self) -> list[tuple[str, list[str]]]:
        choice = self.asked.get("tool_choice", "auto")
        tools = [t.get("function", {}) for t in self.asked.get("tools") or []]
        tools = tools or self.asked.get("functions") or []
        if not tools or choice == "none" or "Call" not in str(self.asked["messages"]):
            return []
        name = tools[0]["name"]
        if isinstance(choice, dict):
            allowed = choice.get("allowed_tools", {}).get("tools", [choice])
            name = allowed[0]["function"]["name"]
        calls = [(name, ['{"city":', ' "Oslo"}'])]
        if choice == "auto" and len(tools) > 1:
            calls.append((tools[1]["name"], ['{"city": "Rome"}']))
        return calls

    def _call_finish(self) -> str:
        if "functions" in self.asked:
            return "function_call"
        return "tool_calls"

    # ------------------------------------------------------------ usage

    @property
    def usage(self) -> dict[str, Any]:
        prompt = 20 + 5 * len(self.asked.get("tools") or [])
        completion = sum(choice["tokens"] for choice in self.choices)
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 8},
        }
        if self.dialect == "O":
            usage["prompt_tokens_details"]["audio_tokens"] = 0
            usage["completion_tokens_details"] = {
                "reasoning_tokens": 0,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 2 if self.asked.get("prediction") else 0,
                "rejected_prediction_tokens": 0,
            }
        else:
            factor = {"priority": 1.5, "flex": 0.8}.get(self._tier, 1.0)
            cost = ((prompt - 4) * 1.0 + 4 * 0.5 + completion * 2.0) / 1e6 * factor
            usage["estimated_cost"] = cost
        return usage

    # ------------------------------------------------------------ logprobs

    def _entries(self, texts: list[str]) -> list[dict[str, Any]]:
        return [self._entry(text) for text in texts]

    def _entry(self, text: str) -> dict[str, Any]:
        num_top = self.asked.get("top_logprobs") or 0
        entry: dict[str, Any] = {"token": text, "logprob": -0.5, "bytes": list(text.encode())}
        others = [
            {"token": f"~{n}", "logprob": -3.0 - n, "bytes": list(f"~{n}".encode())}
            for n in range(19)
        ]
        if self.dialect == "O":
            entry["top_logprobs"] = [dict(entry), *others][:num_top]
        return entry

    def _logprobs(self, texts: list[str]) -> dict[str, Any]:
        value: dict[str, Any] = {"content": self._entries(texts)}
        return {**value, "refusal": None} if self.dialect == "O" else value

    @property
    def _with_logprobs(self) -> bool:
        return bool(self.asked.get("logprobs"))

    def _moderation(self) -> dict[str, Any]:
        result = {
            "type": "moderation_result",
            "model": "omni-moderation-latest",
            "flagged": False,
            "categories": {"hate": False, "violence": False},
            "category_scores": {"hate": 0.0, "violence": 0.25},
            "category_applied_input_types": {"hate": ["text"], "violence": ["text"]},
        }
        done = {"type": "moderation_results", "model": "omni-moderation-latest"}
        failed = {"type": "error", "code": "unavailable", "message": "It could not be run."}
        return {"input": {**done, "results": [result]}, "output": failed}

    # ------------------------------------------------------------ bodies

    def body(self) -> dict[str, Any]:
        body = {"object": "chat.completion", **self.head}
        body["choices"] = [self._message(i, c) for i, c in enumerate(self.choices)]
        body["usage"] = self.usage
        if self.asked.get("moderation"):
            body["moderation"] = self._moderation()
        return body

    def _message(self, index: int, choice: dict[str, Any]) -> dict[str, Any]:
        o = self.dialect == "O"
        message: dict[str, Any] = {"role": "assistant"}
        if choice["text"] or not choice["calls"]:
            message["content"] = "".join(choice["text"])
        elif o:
            message["content"] = None
        if o:
            message["refusal"] = None
            message["annotations"] = []
        if choice["reasoning"]:
            message["reasoning_content"] = "".join(choice["reasoning"])
        if choice["finish"] == "function_call":
            name, arguments = choice["calls"][0]
            message["function_call"] = {"name": name, "arguments": "".join(arguments)}
        elif choice["calls"]:
            message["tool_calls"] = [
                {
                    "id": f"call_{index}{k}",
                    "type": "function",
                    "function": {"name": name, "arguments": "".join(arguments)},
                }
                for k, (name, arguments) in enumerate(choice["calls"])
            ]
        value = {"index": index, "message": message, "finish_reason": choice["finish"]}
        if self._with_logprobs:
            value["logprobs"] = self._logprobs(choice["text"])
        elif o:
            value["logprobs"] = None
        return value

    # ------------------------------------------------------------ streams

    def frames(self) -> list[Any]:
        """The payloads of a stream, `[DONE]` last."""
        rows = [self._pieces(i, c) for i, c in enumerate(self.choices)]
        turns = max(len(row) for row in rows)
        chunks = [row[turn] for turn in range(turns) for row in rows if turn < len(row)]
        chunks.sort(key=lambda chunk: bool(chunk["choices"][0].get("finish_reason")))
        o, options = self.dialect == "O", self.asked.get("stream_options") or {}
        if o:
            if self.asked.get("moderation"):
                chunks.append(self._chunk([], moderation=self._moderation()))
            if options.get("include_usage"):
                for chunk in chunks:
                    chunk["usage"] = None
                chunks.append(self._chunk([], usage=self.usage))
            if options.get("include_obfuscation"):
                for chunk in chunks:
                    chunk["obfuscation"] = "x7Ab"
        elif options.get("continuous_usage_stats"):
            final = self.usage
            for number, chunk in enumerate(chunks):
                completion = min(number, final["completion_tokens"])
                total = final["prompt_tokens"] + completion
                running = {"completion_tokens": completion, "total_tokens": total}
                chunk["usage"] = {**final, **running} if number < len(chunks) - 1 else final
        elif options.get("include_usage") is not False:
            chunks[-1]["usage"] = self.usage
        return [*chunks, "[DONE]"]

    def _chunk(self, choices: list[Any], **more: Any) -> dict[str, Any]:
        return {"object": "chat.completion.chunk", **self.head, "choices": choices, **more}

    def _pieces(self, index: int, choice: dict[str, Any]) -> list[dict[str, Any]]:
        o = self.dialect == "O"
        first: dict[str, Any] = {"role": "assistant", "content": ""}
        if choice["calls"] and o:
            first["content"] = None
        if o:
            first["refusal"] = None
        deltas: list[tuple[dict[str, Any], list[str] | None]] = [(first, [])]
        deltas += [({"reasoning_content": text}, None) for text in choice["reasoning"]]
        deltas += [({"content": text}, [text]) for text in choice["text"]]
        for k, (name, arguments) in enumerate(choice["calls"]):
            deltas += [(delta, None) for delta in self._call_deltas(index, k, name, arguments)]
        pieces = [self._piece(index, delta, texts, None) for delta, texts in deltas]
        return [*pieces, self._piece(index, {}, None, choice["finish"])]

    def _call_deltas(
        self, index: int, k: int, name: str, arguments: list[str]
    ) -> list[dict[str, Any]]:
        if "functions" in self.asked:
            opening: dict[str, Any] = {"function_call": {"name": name, "arguments": ""}}
            return [opening, *({"function_call": {"arguments": a}} for a in arguments)]
        call = {
            "index": k,
            "id": f"call_{index}{k}",
            "type": "function",
            "function": {"name": name, "arguments": ""},
        }
        rest = [{"index": k, "function": {"arguments": a}} for a in arguments]
        return [{"tool_calls": [one]} for one in (call, *rest)]

    def _piece(
        self, index: int, delta: dict[str, Any], texts: list[str] | None, finish: str | None
    ) -> dict[str, Any]:
        value: dict[str, Any] = {"index": index, "delta": delta}
        if self._with_logprobs and texts is not None and (texts or self.dialect == "O"):
            value["logprobs"] = self._logprobs(texts)
        elif self.dialect == "O":
            value["logprobs"] = None
        if finish is not None or self.dialect == "O":
            value["finish_reason"] = finish
        return self._chunk([value])


# ---------------------------------------------------------------- on a socket


@asynccontextmanager
async def serve(ideal: Ideal) -> AsyncIterator[str]:
    """The server on a free port of 127.0.0.1: raw sockets, chunked streams."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await _respond(ideal, head.decode("latin-1"), reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    ideal.now = int(time.time())
    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.close()
        await server.wait_closed()


async def _respond(
    ideal: Ideal, head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    line, *rest = head.strip().split("\r\n")
    method, path, _ = line.split(" ")
    headers = tuple(tuple(one.split(": ", 1)) for one in rest)
    length = {name.lower(): value for name, value in headers}.get("content-length", "0")
    body = await reader.readexactly(int(length))
    if body[:2] == b"\x1f\x8b":
        body = gzip.decompress(body)
    request = Request(method=method, url=f"http://ideal{path}", headers=headers, body=body)  # type: ignore[arg-type]
    response = ideal.answer(request)
    if not response.status:  # silence until the client gives up, or at once the end
        if response.ending == "closed by client":
            await reader.read()
        raise ConnectionError
    lines = [f"HTTP/1.1 {response.status} X", *(f"{n}: {v}" for n, v in response.headers)]
    if response.reads:
        writer.write("\r\n".join([*lines, "Transfer-Encoding: chunked", "", ""]).encode())
        for part in response.body.split(b"\n\n")[:-1]:
            writer.write(b"%x\r\n%s\n\n\r\n" % (len(part) + 2, part))
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(b"0\r\n\r\n")
    else:
        length = f"Content-Length: {len(response.body)}"
        writer.write("\r\n".join([*lines, length, "", ""]).encode() + response.body)
    await writer.drain()
