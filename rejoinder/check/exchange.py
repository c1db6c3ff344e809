"""One request and its answer, as bytes with their times, and the views that rules look at.

Pure: bytes in, views out; nothing is repaired on the way, so that a rule can show the fault.
This module must not know: rules, sockets, files.
"""

import base64
import json
import re
import shlex
from collections.abc import Iterator
from functools import cached_property
from typing import Literal, TypeAlias, TypeGuard

from msgspec import Struct

from rejoinder.dialects.sse import DONE_DATA, SseReader
from rejoinder.types import Json, JsonObject

DialectName = Literal["O", "D"]

DIALECT_NAMES: dict[str, DialectName] = {"openai": "O", "deepinfra": "D"}

Headers: TypeAlias = tuple[tuple[str, str], ...]

SECRET_HEADERS = frozenset(
    {"authorization", "proxy-authorization", "xi-api-key", "api-key", "x-api-key", "cookie"}
    | {"set-cookie"}
)


class Request(Struct, frozen=True, kw_only=True):
    """What was asked. `body` is what was sent, before any content coding."""

    method: str = "POST"
    url: str = ""
    headers: Headers = ()
    body: bytes = b""


class Read(Struct, frozen=True):
    """One arrival of bytes: the offset of its first byte, and seconds since the request."""

    offset: int
    seconds: float


class Response(Struct, frozen=True, kw_only=True):
    """What came. `ending`: the body ended by itself, broke off, or the client closed it. A status
    of 0: there was no answer."""

    status: int = 200
    headers: Headers = ()
    body: bytes = b""
    reads: tuple[Read, ...] = ()
    ending: Literal["whole", "cut", "closed by client"] = "whole"


class Frame:
    """One SSE event of the body.

    `offset` and `raw` are its place and bytes in the body; `data` is None without a data line;
    `json` is None if `data` is no JSON. `fields` are the names of its lines, "" for a comment.
    """

    __slots__ = ("data", "fault", "fields", "json", "number", "offset", "raw")

    def __init__(self, number: int, offset: int, raw: bytes) -> None:
        self.number = number
        self.offset = offset
        self.raw = raw
        self.fields = [line.partition(b":")[0] for line in _LINE_END.split(raw) if line]
        reader = SseReader()
        events = reader.feed(raw) or reader.flush()
        self.data: str | None = events[0] if b"data" in self.fields and events else None
        self.json: Json = None
        self.fault = ""
        if self.data is not None and not self.is_done:
            self.json, self.fault = parse_json(self.data)

    @property
    def is_done(self) -> bool:
        return self.data is not None and self.data.strip() == DONE_DATA

    @property
    def is_error(self) -> bool:
        """An event that reports a failure instead of a chunk (R119)."""
        return (
            isinstance(self.json, dict)
            and self.json.get("error") is not None
            and "choices" not in self.json
        )


class Exchange:
    """A request and its answer. `probe` names it; `at` is the unix time of the request."""

    def __init__(
        self,
        *,
        probe: str,
        dialect: DialectName,
        request: Request,
        response: Response,
        at: float = 0.0,
    ) -> None:
        self.probe = probe
        self.dialect: DialectName = dialect
        self.request = request
        self.response = response
        self.at = at

    # ------------------------------------------------------------ the request

    @cached_property
    def asked(self) -> JsonObject:
        """The request's JSON object; empty when it has none."""
        return as_object(parse_json(self.request.body.decode("utf-8", "replace"))[0])

    @cached_property
    def is_chat(self) -> bool:
        path = self.request.url.partition("?")[0]
        return self.request.method == "POST" and path.endswith("/chat/completions")

    @property
    def sent_key(self) -> str:
        """The bearer token of the request, "" without one."""
        for name, value in self.request.headers:
            if name.lower() == "authorization":
                return value.removeprefix("Bearer ")
        return ""

    @property
    def is_api(self) -> bool:
        """Whether the request was below the base URL, where errors have the dialect's shape."""
        return not self.request.url.partition("?")[0].endswith("/metrics")

    @property
    def streamed(self) -> bool:
        return self.is_chat and self.asked.get("stream") is True

    @property
    def ok(self) -> bool:
        return self.response.status == 200

    @property
    def is_unanswered(self) -> bool:
        """Whether nothing came for as long as the client waited: that proves nothing."""
        return self.response.status == 0 and self.response.ending == "closed by client"

    @property
    def how_answered(self) -> str:
        """The status in words."""
        if self.response.status:
            return f"answered with {self.response.status}"
        late = self.is_unanswered
        return "not answered in time" if late else "not answered: the connection was closed"

    @property
    def is_stream(self) -> bool:
        """A successful streamed answer."""
        return self.ok and self.streamed and self.response.ending != "closed by client"

    @property
    def is_body(self) -> bool:
        """A successful unary answer."""
        return self.ok and self.is_chat and not self.streamed

    @property
    def is_answer(self) -> bool:
        return self.is_stream or self.is_body

    @property
    def n(self) -> int:
        n = self.asked.get("n")
        return n if is_int(n) else 1

    @property
    def limit(self) -> int | None:
        """The most tokens that the request allows a choice."""
        for name in ("max_completion_tokens", "max_tokens"):
            value = self.asked.get(name)
            if is_int(value):
                return value
        return None

    @property
    def includes_usage(self) -> bool:
        """Whether a stream shows usage (1.3: the defaults of the dialects are opposite)."""
        choice = as_object(self.asked.get("stream_options")).get("include_usage")
        return choice is True if self.dialect == "O" else choice is not False

    @property
    def continuous_usage(self) -> bool:
        options = as_object(self.asked.get("stream_options"))
        return self.dialect == "D" and options.get("continuous_usage_stats") is True

    @property
    def moderated(self) -> bool:
        return isinstance(self.asked.get("moderation"), dict)

    @property
    def names_tool(self) -> bool:
        """Whether tool_choice names one function (A14)."""
        choice = self.asked.get("tool_choice")
        return isinstance(choice, dict) and choice.get("type") != "allowed_tools"

    @property
    def stops(self) -> list[str]:
        stop = self.asked.get("stop")
        return [stop] if isinstance(stop, str) else [s for s in as_list(stop) if as_text(s)]  # type: ignore[misc]

    # ------------------------------------------------------------ the answer

    def header(self, name: str) -> str | None:
        for key, value in self.response.headers:
            if key.lower() == name:
                return value
        return None

    @cached_property
    def body(self) -> Json:
        """The JSON of a unary answer or an error."""
        return parse_json(self.response.body.decode("utf-8", "replace"))[0]

    @cached_property
    def frames(self) -> list[Frame]:
        return list(split_frames(self.response.body))

    @cached_property
    def chunks(self) -> list["Chunk"]:
        """The frames that are chunks: JSON objects, error events left out."""
        return [
            Chunk(frame, frame.json)
            for frame in self.frames
            if isinstance(frame.json, dict) and not frame.is_error
        ]

    @cached_property
    def choice_chunks(self) -> list["ChoiceChunk"]:
        return [choice for chunk in self.chunks for choice in chunk.choices]

    @property
    def last_frame(self) -> Frame | None:
        return self.frames[-1] if self.frames else None

    @cached_property
    def error_frames(self) -> list[Frame]:
        return [frame for frame in self.frames if frame.is_error]

    @property
    def complete(self) -> bool:
        """A stream that ended by itself and reported no failure."""
        return not self.error_frames and self.response.ending == "whole"

    @cached_property
    def objects(self) -> list["Chunk"]:
        """What both forms have: the chunks of a stream, or the one body."""
        if self.is_stream:
            return self.chunks
        return [Chunk(None, self.body)] if self.is_body and isinstance(self.body, dict) else []

    @cached_property
    def usage(self) -> JsonObject | None:
        """The last usage that was given."""
        for thing in reversed(self.objects):
            usage = thing.json.get("usage")
            if isinstance(usage, dict):
                return usage
        return None

    @cached_property
    def choices(self) -> list["ChoiceView"]:
        """The choices by index, folded as a client would."""
        views: dict[int, ChoiceView] = {}
        for piece in (c for thing in self.objects for c in thing.choices):
            if piece.index is not None:
                views.setdefault(piece.index, ChoiceView(piece.index)).feed(piece)
        return [views[index] for index in sorted(views)]

    def seconds_at(self, offset: int) -> float:
        """When the byte at `offset` arrived."""
        seconds = 0.0
        for read in self.response.reads:
            if read.offset > offset:
                break
            seconds = read.seconds
        return seconds

    def curl(self) -> str:
        """A command that repeats the request, without its secrets."""
        words = ["curl", "-N", "-sS", "-X", self.request.method, self.request.url]
        for name, value in self.request.headers:
            if name.lower() == "authorization":
                words += ["-H", "Authorization: Bearer $API_KEY"]
            elif name.lower() not in SECRET_HEADERS | {"content-length", "accept-encoding"}:
                words += ["-H", f"{name}: {value}"]
        line = " ".join(w if w.startswith("Auth") else shlex.quote(w) for w in words)
        line = line.replace("Authorization: Bearer $API_KEY", '"Authorization: Bearer $API_KEY"')
        if not self.request.body:
            return line
        try:
            text = self.request.body.decode()
        except UnicodeDecodeError:
            coded = base64.b64encode(self.request.body[:3000]).decode()
            return f"printf %s {coded} | base64 -d | {line} --data-binary @-"
        if len(text) > 4000:
            text = f"{text[:2000]}…({len(text)} characters in all)…{text[-500:]}"
        return f"{line} --data-binary {shlex.quote(text)}"


class Chunk:
    """The JSON object of a chunk, or of a unary body (then `frame` is None)."""

    __slots__ = ("_values", "choices", "frame", "json")

    def __init__(self, frame: Frame | None, value: Json) -> None:
        self.frame = frame
        self.json = as_object(value)
        self.choices = [
            ChoiceChunk(self, position, choice)
            for position, choice in enumerate(as_list(self.json.get("choices")))
            if isinstance(choice, dict)
        ]
        self._values: list[tuple[str, Json]] | None = None

    @property
    def values(self) -> list[tuple[str, Json]]:
        """Every value below, with its path."""
        if self._values is None:
            self._values = list(walk(self.json))
        return self._values


class ChoiceChunk:
    """One element of `choices`. `delta` is its delta, or the message of a unary body."""

    __slots__ = ("chunk", "delta", "json", "position")

    def __init__(self, chunk: Chunk, position: int, value: JsonObject) -> None:
        self.chunk = chunk
        self.position = position
        self.json = value
        self.delta = as_object(value.get("delta" if chunk.frame else "message"))

    @property
    def frame(self) -> Frame | None:
        return self.chunk.frame

    @property
    def index(self) -> int | None:
        index = self.json.get("index")
        return index if is_int(index) else None

    @property
    def finish(self) -> str | None:
        return as_text(self.json.get("finish_reason")) or None

    @property
    def calls(self) -> list[JsonObject]:
        return [call for call in as_list(self.delta.get("tool_calls")) if isinstance(call, dict)]

    def logprobs(self, field: str) -> list[JsonObject]:
        entries = as_list(as_object(self.json.get("logprobs")).get(field))
        return [entry for entry in entries if isinstance(entry, dict)]


class CallView:
    """One tool call. `name` and `id` are the first that were given."""

    __slots__ = ("arguments", "frame", "id", "kind", "name")

    def __init__(self) -> None:
        self.id = ""
        self.kind = ""
        self.name = ""
        self.arguments = ""
        self.frame: Frame | None = None

    def feed(self, call: JsonObject, frame: Frame | None) -> None:
        self.frame = self.frame or frame
        inner = as_object(call.get("function")) or as_object(call.get("custom"))
        self.id = self.id or as_text(call.get("id"))
        self.kind = self.kind or as_text(call.get("type"))
        self.name = self.name or as_text(inner.get("name"))
        self.arguments += as_text(inner.get("arguments")) + as_text(inner.get("input"))


class ChoiceView:
    """One choice, folded. Texts are "" where there was none."""

    __slots__ = (
        "calls",
        "content",
        "content_logprobs",
        "finish",
        "frame",
        "function_call",
        "index",
        "reasoning",
        "refusal",
        "refusal_logprobs",
        "role",
    )

    def __init__(self, index: int) -> None:
        self.index = index
        self.role = ""
        self.content = ""
        self.refusal = ""
        self.reasoning = ""
        self.calls: list[CallView] = []
        self.function_call: CallView | None = None
        self.finish: str | None = None
        self.content_logprobs: list[JsonObject] = []
        self.refusal_logprobs: list[JsonObject] = []
        self.frame: Frame | None = None
        """The frame that finished the choice, or the last one."""

    def feed(self, piece: ChoiceChunk) -> None:
        delta = piece.delta
        self.role = self.role or as_text(delta.get("role"))
        self.content += text_of(delta.get("content"))
        self.refusal += as_text(delta.get("refusal"))
        self.reasoning += as_text(delta.get("reasoning_content"))
        for position, call in enumerate(piece.calls):
            index = call.get("index", position)
            while is_int(index) and len(self.calls) <= index < 128:
                self.calls.append(CallView())
            if is_int(index) and 0 <= index < len(self.calls):
                self.calls[index].feed(call, piece.frame)
        legacy = delta.get("function_call")
        if isinstance(legacy, dict):
            self.function_call = self.function_call or CallView()
            self.function_call.feed({"function": legacy}, piece.frame)
        self.content_logprobs += piece.logprobs("content")
        self.refusal_logprobs += piece.logprobs("refusal")
        if self.finish is None:
            self.finish = piece.finish
            self.frame = piece.frame


# ---------------------------------------------------------------- bytes → frames

_LINE_END = re.compile(rb"\r\n|\r|\n")
_BLANK_LINE = re.compile(rb"(?:\r\n|\r(?!\n)|\n)(?:\r\n|\r(?!\n)|\n)|\A(?:\r\n|\r|\n)")


def split_frames(body: bytes) -> Iterator[Frame]:
    """The events of a body with their offsets; comments are frames too."""
    start = 3 if body.startswith(b"\xef\xbb\xbf") else 0
    number = 0
    while start < len(body):
        match = _BLANK_LINE.search(body, start)
        end = match.end() if match else len(body)
        raw = body[start:end]
        if raw.strip(b"\r\n"):
            yield Frame(number, start, raw)
            number += 1
        start = end


# ---------------------------------------------------------------- untrusted JSON


def walk(value: Json, path: str = "") -> Iterator[tuple[str, Json]]:
    """Every value, with its path: `choices[0].delta.content`."""
    yield path, value
    if isinstance(value, dict):
        for key, child in value.items():
            yield from walk(child, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for position, child in enumerate(value):
            yield from walk(child, f"{path}[{position}]")


def parse_json(text: str) -> tuple[Json, str]:
    """The value and "", or None and what is wrong. NaN and Infinity are kept for R155."""
    try:
        value: Json = json.loads(text)
    except (ValueError, RecursionError) as error:
        return None, str(error)
    return value, ""


def is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def as_object(value: Json) -> JsonObject:
    return value if isinstance(value, dict) else {}


def as_list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def as_text(value: Json) -> str:
    return value if isinstance(value, str) else ""


def as_int(value: Json) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def text_of(content: Json) -> str:
    """Content that is a string or, in a DeepInfra body, text parts (A3)."""
    if isinstance(content, list):
        return "".join(as_text(as_object(part).get("text")) for part in content)
    return as_text(content)
