"""Text → pieces: reasoning, calls and content told apart, for any split of the text.

One table-driven machine for every format: states, markers, transitions, and hold-back of what may
be the start of a marker. This module must not know: tokens, events, ids.
"""

import re
from collections.abc import Callable
from typing import Literal, Protocol

from rejoinder.text.calls import KnownTools, OpenCall
from rejoinder.text.formats import TOOL_FORMATS
from rejoinder.text.formats.format import Reader, State, ToolFormat
from rejoinder.text.harmony import HarmonyParser
from rejoinder.text.markers import Markers
from rejoinder.text.pieces import Piece
from rejoinder.text.reasoning import ReasoningFormat, reasoning_format
from rejoinder.types import AnyTool, EngineFinishReason, ToolChoice


class ParserSpec(Protocol):
    """The part of a choice's specification that its text is read by."""

    @property
    def tools(self) -> tuple[AnyTool, ...]: ...
    @property
    def tool_choice(self) -> ToolChoice: ...
    @property
    def tool_format(self) -> str: ...
    @property
    def reasoning_format(self) -> str: ...
    @property
    def opens_thinking(self) -> bool: ...


class Parser(Protocol):
    """`feed` the text, `flush` at its end."""

    @property
    def reads_calls(self) -> bool: ...

    @property
    def is_thinking(self) -> bool: ...

    def is_custom(self, name: str) -> bool: ...

    def feed(self, text: str) -> list[Piece]: ...

    def flush(self, reason: EngineFinishReason) -> list[Piece]: ...


ParserState = Literal[
    "start", "thought", "draft", "after_thought", "text", "section", "call", "skip"
]


class MarkupParser:
    """Every format whose text is content unless a marker says otherwise.

    start: nothing shown yet, a thought may begin. thought; draft: a call's marker inside an open
    thought, held until the thought is closed (then it is thought) or the text ends (then it is a
    call). after_thought: newlines vanish. text. section: between calls. call: a reader reads.
    skip: to the end of a call that is none.
    """

    def __init__(
        self,
        format: ToolFormat,
        reasoning: ReasoningFormat,
        tools: KnownTools,
        *,
        opens_thinking: bool,
    ) -> None:
        self._tools = tools
        self._format = format
        self.reads_calls = bool(tools) and format.reader is not None
        openers = format.text if self.reads_calls else {}
        self._openers = Markers(openers)
        self._section = Markers((*format.section, *format.text))
        self._transitions: dict[str, State] = {**format.text, **format.section}
        self._bare = format.bare if self.reads_calls else None
        self._calls_begin_marked = "call" in format.section.values()
        self._thinks = bool(reasoning.start)
        ends = (reasoning.end, *reasoning.end_forms)
        self._thought_start = Markers([reasoning.start])
        self._thought_edges = Markers((reasoning.start, *ends))
        self._thought_end_texts = frozenset(ends)
        self._thought_ends = Markers(ends)
        self._in_thought = Markers((*ends, *openers))
        self._buffer = ""
        self._at = 0
        self._base = 0
        self._out: list[Piece] = []
        self._raw: list[str] | None = None
        """Text of a call that is not certain yet, to give back."""
        self._call = OpenCall(tools)
        self._reader: Reader | None = None
        self._is_bare = False
        self._num_in_section = 0
        self._line_is_blank = True
        self._may_indent = True
        self._has_content = False
        self._thought_is_blank = True
        self._state: ParserState = "text"
        if self._thinks:
            self._state = "thought" if opens_thinking else "start"
        self._steps: dict[ParserState, Callable[..., None]] = {
            "start": self._start,
            "thought": self._thought,
            "draft": self._draft,
            "after_thought": self._after_thought,
            "text": self._text,
            "section": self._between_calls,
            "call": self._in_call,
            "skip": self._skip,
        }

    @property
    def is_thinking(self) -> bool:
        return self._state == "thought"

    def is_custom(self, name: str) -> bool:
        return self._tools.is_custom(name)

    def feed(self, text: str) -> list[Piece]:
        self._buffer = self._buffer + text if self._buffer else text
        return self._run(final=False)

    def flush(self, reason: EngineFinishReason) -> list[Piece]:
        """What was held. A call that the limit cut is left as it is; one that just ends is bad."""
        pieces = self._run(final=True)
        if self._state in ("section", "call", "skip"):
            out = self._out = []
            self._call.into(out)
            if self._state == "call":
                self._end_in_call(reason)
            elif self._state == "skip":
                self._give_back()
            elif self._num_in_section == 0:
                self._end_in_section(reason)
            pieces += out
        return pieces

    # ------------------------------------------------------------ the machine

    def _run(self, *, final: bool) -> list[Piece]:
        out: list[Piece] = []
        self._out = out
        self._call.into(out)
        while True:
            state, at = self._state, self._at
            self._steps[state](final=final)
            if self._state == state and self._at == at:
                break
        self._forget()
        return out

    def _forget(self) -> None:
        """Drops the text that has been read."""
        at = self._at
        if at:
            self._base += at
            self._buffer = self._buffer[at:]
            self._at = 0

    def _advance(self, position: int) -> str:
        """Moves on to `position`; the text in between."""
        text = self._buffer[self._at : position]
        if self._raw is not None:
            self._raw.append(text)
        self._at = position
        return text

    def _emit(self, kind: Literal["content", "reasoning", "markup", "thought"], text: str) -> None:
        self._out.append(Piece(kind, text, self._base + self._at))

    def _say(self, position: int) -> None:
        """The text up to `position` is content."""
        if position > self._at:
            text = self._advance(position)
            self._has_content = self._has_content or not text.isspace()
            self._out.append(Piece("content", text, self._base + position))
            tail = text[text.rfind("\n") + 1 :]
            blank = not (tail.strip(" \t") if self._may_indent else tail)
            self._line_is_blank = blank and (self._line_is_blank or "\n" in text)

    # ------------------------------------------------------------ thoughts

    def _start(self, *, final: bool) -> None:
        buffer = self._buffer
        position = _skip_blanks(buffer, self._at)
        match = self._thought_edges.match(buffer, position)
        if match is not None:
            self._advance(match.end())
            self._emit("thought", "")
            is_end = match[0] in self._thought_end_texts
            self._state = "after_thought" if is_end else "thought"
            self._thought_is_blank = True
        elif final or not self._thought_edges.may_begin(buffer, position):
            self._state = "text"

    def _thought(self, *, final: bool) -> None:
        buffer = self._buffer
        if self._thought_is_blank and not self._begin_thought(final=final):
            return
        match = self._in_thought.search(buffer, self._at)
        if match is None:
            end = len(buffer) if final else self._in_thought.held_from(buffer, self._at)
            self._think(end)
            return
        self._think(match.start())
        if match[0] in self._thought_end_texts:
            self._advance(match.end())
            self._emit("thought", "")
            self._state = "after_thought"
        else:
            self._raw = []
            self._state = "draft"

    def _begin_thought(self, *, final: bool) -> bool:
        """Blanks at the start wait: an empty thought vanishes. A repeated start tag does too."""
        buffer = self._buffer
        position = _skip_blanks(buffer, self._at)
        match = self._thought_edges.match(buffer, position)
        if match is not None:
            self._advance(match.end())
            self._emit("thought", "")
            if match[0] in self._thought_end_texts:
                self._state = "after_thought"
            return False
        if self._thought_edges.may_begin(buffer, position) and not final:
            return False
        if position == len(buffer):
            if final:
                self._advance(position)
                self._emit("thought", "")
            return False
        self._thought_is_blank = False
        return True

    def _think(self, position: int) -> None:
        if position > self._at:
            text = self._advance(position)
            self._emit("reasoning", text)

    def _draft(self, *, final: bool) -> None:
        buffer = self._buffer
        match = self._thought_ends.search(buffer, self._at)
        if match is not None:
            self._advance(match.start())
            text = "".join(self._raw or ())
            self._raw = None
            if text:
                self._emit("reasoning", text)
            self._advance(match.end())
            self._emit("thought", "")
            self._state = "after_thought"
        elif final:
            # nothing closed the thought: the marker ended it, and this is a call after all
            self._advance(len(buffer))
            held = "".join(self._raw or ())
            self._raw = None
            self._base += len(buffer) - len(held)
            self._buffer, self._at = held, 0
            self._thinks = False
            self._state = "text"
        else:
            self._advance(self._thought_ends.held_from(buffer, self._at))

    def _after_thought(self, *, final: bool) -> None:
        position, buffer = self._at, self._buffer
        while position < len(buffer) and buffer[position] in "\r\n":
            position += 1
        if position > self._at:
            self._advance(position)
            self._emit("thought", "")
        if position < len(buffer):
            self._state = "start"

    # ------------------------------------------------------------ content

    def _text(self, *, final: bool) -> None:
        buffer = self._buffer
        match = self._openers.search(buffer, self._at)
        limit = match.start() if match is not None else len(buffer)
        if self._bare is not None:
            begin = self._bare_start(limit)
            if begin is not None:
                self._say(begin)
                self._raw = []
                self._is_bare = True
                self._num_in_section = 0
                self._state = "section"
                return
        if match is not None:
            self._say(limit)
            self._raw = []
            self._is_bare = False
            self._num_in_section = 0
            self._take_marker(match)
            return
        if not final:
            limit = self._openers.held_from(buffer, self._at)
        self._say(limit)

    def _bare_start(self, limit: int) -> int | None:
        """Where a call that nothing announces may begin: at the start of a line."""
        assert self._bare is not None
        position = self._at
        is_start = self._line_is_blank
        while position < limit:
            if is_start and self._may_indent:
                position = _skip_indent(self._buffer, position, limit)
            if is_start and self._bare.match(self._buffer, position, limit):
                return position
            position = self._buffer.find("\n", position, limit) + 1
            if not position:
                return None
            is_start = True
        return None

    def _leave_section(self) -> None:
        self._raw = None
        self._is_bare = False
        self._line_is_blank = True
        self._state = "start" if self._thinks else "text"

    def _take_marker(self, match: re.Match[str]) -> None:
        self._advance(match.end())
        if match[0] in self._format.text:
            self._num_in_section = 0
        match self._transitions[match[0]]:
            case "section":
                self._state = "section"
            case "call":
                self._begin_call()
            case "text":
                if self._num_in_section == 0:
                    self._give_back()
                else:
                    self._emit("markup", "")
                self._leave_section()

    # ------------------------------------------------------------ calls

    def _between_calls(self, *, final: bool) -> None:
        buffer, position = self._buffer, self._at
        match = self._section.match(buffer, position)
        while match is None and position < len(buffer):
            if buffer[position] not in self._format.separators:
                break
            if not final and self._section.may_begin(buffer, position):
                return
            position += 1
            match = self._section.match(buffer, position)
        if match is not None:
            self._advance(position)
            self._take_marker(match)
            return
        if self._section.may_begin(buffer, position) and position < len(buffer):
            if final and self._num_in_section:
                self._advance(len(buffer))  # the limit cut the marker
            return
        if position == len(buffer):
            if final and self._is_bare and self._num_in_section == 0:
                self._not_bare()
            return
        starts = self._format.starts
        if not self._calls_begin_marked and starts.match(buffer, position):
            self._advance(position)
            self._begin_call()
        elif self._num_in_section:
            # whatever this is, it belongs to no call
            self._at = position
            self._emit("markup", "")
            self._leave_section()
        elif self._is_bare:
            self._not_bare()
        else:
            self._state = "skip"

    def _begin_call(self) -> None:
        assert self._format.reader is not None
        self._call.begin(self._out)
        self._call.only_known = self._is_bare
        self._reader = self._format.reader(self._call, self._tools)
        self._state = "call"

    def _in_call(self, *, final: bool) -> None:
        reader, call = self._reader, self._call
        assert reader is not None
        call.place = self._base + self._at
        position = reader.feed(self._buffer, self._at, final=False)
        self._advance(position)
        if call.is_open and self._raw is not None:
            self._raw = None
        call.place = self._base + self._at
        if self._is_bare and not call.is_open and reader.status == "bad":
            self._not_bare()
        elif reader.status == "done":
            self._end_call()
        elif reader.status == "bad":
            self._state = "skip"

    def _end_call(self) -> None:
        if self._call.is_unknown:
            if self._format.section:
                self._state = "skip"
                return
            self._give_back()
            self._next_call()
            return
        self._call.finish()
        self._next_call()

    def _next_call(self) -> None:
        self._call.begin(self._out)
        self._num_in_section += 1
        self._raw = []
        self._state = "section"

    def _not_bare(self) -> None:
        """What looked like a call is none: it is content. If the answer began with it, it is an
        answer in JSON, or the like; later, what is inside of it is indented."""
        text = "".join(self._raw or ())
        self._raw = None
        if text:
            self._emit("content", text)
        self._line_is_blank = False
        self._may_indent = False
        if not self._has_content:
            self._bare = None
        self._has_content = True
        self._is_bare = False
        self._state = "text"

    def _skip(self, *, final: bool) -> None:
        """To the end of a call that cannot be read, its end marker included."""
        buffer = self._buffer
        match = self._section.search(buffer, self._at)
        if match is None:
            end = len(buffer) if final else self._section.held_from(buffer, self._at)
            self._skip_to(end)
            return
        self._skip_to(match.start())
        ends = match[0] not in self._format.text and self._transitions[match[0]] != "call"
        if ends:
            self._advance(match.end())
        self._give_back()
        self._next_call()
        if ends and self._transitions[match[0]] == "text":
            self._leave_section()

    def _skip_to(self, position: int) -> None:
        text = self._advance(position)
        if text and self._call.is_open:
            self._call.place = self._base + position
            self._call.arguments(text)

    def _give_back(self) -> None:
        """What announced a call and is none: its text, or the end of a call that has begun."""
        if self._call.is_open:
            self._call.place = self._base + self._at
            self._call.fail()
            self._call.begin(self._out)
            return
        text = "".join(self._raw or ())
        self._raw = None
        if text:
            self._out.append(Piece("bad", text, self._base + self._at))

    def _end_in_section(self, reason: EngineFinishReason) -> None:
        self._advance(len(self._buffer))
        if reason == "stop":
            self._give_back()

    def _end_in_call(self, reason: EngineFinishReason) -> None:
        reader, call = self._reader, self._call
        assert reader is not None
        if reason == "length":
            if self._is_bare and not call.is_open:
                self._advance(len(self._buffer))
                self._not_bare()
            return
        call.place = self._base + self._at
        self._advance(reader.feed(self._buffer, self._at, final=True))
        if reader.status == "done" and not call.is_unknown:
            call.finish()
            return
        self._advance(len(self._buffer))
        if self._is_bare and not call.is_open:
            self._not_bare()
        else:
            self._give_back()


def _skip_blanks(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position


def _skip_indent(text: str, position: int, limit: int) -> int:
    while position < limit and text[position] in " \t":
        position += 1
    return position


def parser_for(spec: ParserSpec) -> Parser | None:
    """None: all of the text is content."""
    tools = KnownTools(spec.tools, spec.tool_choice)
    format = TOOL_FORMATS[spec.tool_format]
    reasoning = reasoning_format(spec.reasoning_format)
    if "harmony" in (format.name, reasoning.name):
        return HarmonyParser(tools)
    if not reasoning.start and not (tools and format.reader):
        return None
    return MarkupParser(format, reasoning, tools, opens_thinking=spec.opens_thinking)
