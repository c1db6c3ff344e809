"""Harmony: an answer made of messages with channels; analysis is thought, final is content.

A message to a function is a call, commentary to nobody is content. This module must not know:
tokens, events, ids.
"""

import re
from typing import Literal

from rejoinder.text.calls import KnownTools, OpenCall
from rejoinder.text.formats.json_calls import JsonScan
from rejoinder.text.markers import Markers
from rejoinder.text.pieces import Piece
from rejoinder.types import EngineFinishReason

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
ENDS = ("<|end|>", "<|return|>", "<|call|>")
MARKERS = (START, CHANNEL, MESSAGE, *ENDS, "<|constrain|>")

_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"to=([^\s<]+)")
_MAX_HEADER = 2048

BodyKind = Literal["reasoning", "content", "call", "after", "unknown"]
"""after: a call's object is complete, its end marker is not there yet."""


class HarmonyParser:
    """between: a header or plain content may begin. header: up to `<|message|>`. body."""

    def __init__(self, tools: KnownTools) -> None:
        self.reads_calls = bool(tools)
        self._tools = tools
        self._buffer = ""
        self._at = 0
        self._base = 0
        self._out: list[Piece] = []
        self._state: Literal["between", "header", "body"] = "between"
        self._kind: BodyKind = "content"
        self._call = OpenCall(tools)
        self._scan = JsonScan()
        self._name = ""
        self._raw: list[str] = []
        self._headers = Markers((START, CHANNEL, MESSAGE, "to="))
        self._message = Markers((MESSAGE,))
        self._edges = Markers((*ENDS, START, CHANNEL))

    @property
    def is_thinking(self) -> bool:
        return self._state == "body" and self._kind == "reasoning"

    def is_custom(self, name: str) -> bool:
        return self._tools.is_custom(name)

    def feed(self, text: str) -> list[Piece]:
        self._buffer = self._buffer + text if self._buffer else text
        return self._run(final=False)

    def flush(self, reason: EngineFinishReason) -> list[Piece]:
        pieces = self._run(final=True)
        if self._state == "body" and (reason == "stop" or self._scan.status == "done"):
            self._out = pieces
            self._call.into(pieces)
            self._end_body()
        return pieces

    def _run(self, *, final: bool) -> list[Piece]:
        out: list[Piece] = []
        self._out = out
        self._call.into(out)
        while True:
            state, at = self._state, self._at
            match state:
                case "between":
                    self._between(final=final)
                case "header":
                    self._header(final=final)
                case "body":
                    self._body(final=final)
            if self._state == state and self._at == at:
                break
        self._base += self._at
        self._buffer = self._buffer[self._at :]
        self._at = 0
        return out

    def _emit(
        self, kind: Literal["content", "reasoning", "markup", "thought", "bad"], text: str
    ) -> None:
        self._out.append(Piece(kind, text, self._base + self._at))

    def _between(self, *, final: bool) -> None:
        buffer, position = self._buffer, self._at
        while position < len(buffer) and buffer[position].isspace():
            position += 1
        if self._headers.match(buffer, position):
            self._at = position
            self._state = "header"
        elif position < len(buffer) and (final or not self._headers.may_begin(buffer, position)):
            self._kind = "content"
            self._state = "body"

    def _header(self, *, final: bool) -> None:
        buffer = self._buffer
        match = self._message.search(buffer, self._at)
        if match is None:
            if len(buffer) - self._at > _MAX_HEADER:
                self._kind = "content"
                self._state = "body"
            elif final:
                self._at = len(buffer)
            return
        header = buffer[self._at : match.start()]
        self._at = match.end()
        self._open(header)
        self._emit("thought" if self._kind == "reasoning" else "markup", "")
        self._state = "body"

    def _open(self, header: str) -> None:
        channels = _CHANNEL.findall(header)
        recipient = _RECIPIENT.search(header)
        is_thought = bool(channels) and channels[-1] == "analysis"
        self._kind = "reasoning" if is_thought else "content"
        if recipient is None or not self.reads_calls:
            return
        name = recipient[1].removeprefix("functions.")
        if name in self._tools:
            self._kind = "call"
            self._scan = JsonScan()
            self._call.begin(self._out)
            self._call.place = self._base + self._at
            self._call.name(name)
            self._name = name
        elif recipient[1] != name:
            self._kind = "unknown"
            self._scan = JsonScan()
            self._raw = []

    def _body(self, *, final: bool) -> None:
        is_json = self._kind == "unknown" or not self._tools.is_custom(self._name)
        if is_json and self._kind in ("call", "unknown"):
            self._read_arguments()
            if self._scan.status == "more" and self._at < len(self._buffer):
                return
        buffer = self._buffer
        match = self._edges.search(buffer, self._at)
        if match is None:
            end = self._edges.held_from(buffer, self._at)
            self._take(len(buffer) if final and self._kind != "after" else end)
            if final:
                self._at = len(buffer)
            return
        self._take(match.start())
        self._end_body()
        if match[0] in ENDS:
            self._at = match.end()
        self._emit("thought" if self._kind == "reasoning" else "markup", "")
        self._state = "between"

    def _read_arguments(self) -> None:
        """Marks inside JSON strings are data: the end of the object is looked for first."""
        buffer, at = self._buffer, self._at
        if self._scan.status == "more" and at < len(buffer):
            self._take(self._scan.feed(buffer, at))
            if self._is_complete and self._kind == "call":
                self._end_body()
                self._kind = "after"

    @property
    def _is_complete(self) -> bool:
        return self._scan.status == "done"

    def _take(self, position: int) -> None:
        text = self._buffer[self._at : position]
        self._at = position
        if not text:
            return
        match self._kind:
            case "content" | "reasoning":
                self._emit(self._kind, text)
            case "unknown":
                self._raw.append(text)
            case "call":
                self._call.place = self._base + position
                self._call.arguments(text)
            case "after":
                if not text.isspace():
                    self._emit("content", text)

    def _end_body(self) -> None:
        if self._kind == "call":
            self._call.place = self._base + self._at
            if not self._call.has_arguments:
                self._call.arguments("{}")
            self._call.finish(free_text=True)
            self._kind = "content"
        elif self._kind == "unknown":
            self._emit("bad", "".join(self._raw) or " ")
            self._raw = []
