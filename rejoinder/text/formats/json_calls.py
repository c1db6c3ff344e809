"""Readers of calls written as JSON: an object with name and arguments, or a name, then an object.

Arguments leave byte for byte as the model wrote them. This module must not know: markers of a
format, events.
"""

import json
import re
from collections.abc import Callable

from rejoinder.text.formats.format import CallSink, Reader, Schemas, Status

_SPACE = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_IN_STRING = re.compile(r'[^"\\]*')
_BETWEEN = re.compile(r"[\s:,0-9+\-.eEtrufalsn]*")
_SCALAR = re.compile(r"[^,{}\[\]\"\s]*")
_MAX_HEADER = 1024


class JsonScan:
    """Finds the end of one JSON object or array, whatever the pieces are.

    Brackets are only counted: whether the text is JSON is for a parser to say.
    """

    __slots__ = ("_depth", "_escaped", "_in_string", "status")

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self.status: Status = "more"

    def feed(self, text: str, position: int) -> int:
        """Reads from `position`; returns where it stopped, behind the value when it is done."""
        end = len(text)
        while position < end:
            if self._in_string:
                position = self._string(text, position, end)
                continue
            match = _BETWEEN.match(text, position)
            position = match.end() if match else position
            if position == end:
                break
            char = text[position]
            if char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    self.status = "done"
                    return position + 1
            else:
                self.status = "bad"
                return position
            position += 1
        return end

    def _string(self, text: str, position: int, end: int) -> int:
        if self._escaped:
            self._escaped = False
            return position + 1
        match = _IN_STRING.match(text, position)
        position = match.end() if match else position
        if position == end:
            return end
        if text[position] == '"':
            self._in_string = False
        else:
            self._escaped = True
        return position + 1


class JsonCallReader:
    """`{"name": …, "arguments": {…}}`, keys in any order, `parameters` as well; others are skipped.

    Arguments that come before the name wait for it. Arguments written as a string that holds JSON
    are what is in the string; null and none at all are `{}`.
    """

    _NAMES = frozenset({"name", "function"})
    _ARGUMENTS = frozenset({"arguments", "parameters"})
    _OTHERS = frozenset({"type", "id"})

    def __init__(self, sink: CallSink, *, strict: bool) -> None:
        self.status: Status = "more"
        self._sink = sink
        self._strict = strict
        self._step: Callable[[str, int], int] = self._before
        self._key = ""
        self._scan: JsonScan | None = None
        self._has_name = False
        self._waiting: list[str] = []
        self._has_arguments = False

    def feed(self, text: str, position: int, *, final: bool) -> int:
        while self.status == "more":
            step = self._step
            before = position
            position = step(text, position)
            if position == before and self._step == step:
                break
        return position

    def _before(self, text: str, position: int) -> int:
        position = _skip_space(text, position)
        if position < len(text):
            if text[position] != "{":
                self.status = "bad"
                return position
            self._step = self._at_key
            return position + 1
        return position

    def _at_key(self, text: str, position: int) -> int:
        position = _skip_space(text, position)
        if position == len(text):
            return position
        char = text[position]
        if char == "}":
            return self._finish(position + 1)
        if char == ",":
            return position + 1
        if char != '"':
            self.status = "bad"
            return position
        match = _STRING.match(text, position)
        if match is None:
            return position
        self._key = _decoded(match[0]) or ""
        if self._strict and self._key not in self._NAMES | self._ARGUMENTS | self._OTHERS:
            self.status = "bad"
            return position
        self._step = self._at_colon
        return match.end()

    def _at_colon(self, text: str, position: int) -> int:
        position = _skip_space(text, position)
        if position == len(text):
            return position
        if text[position] != ":":
            self.status = "bad"
            return position
        self._step = self._at_value
        return position + 1

    def _at_value(self, text: str, position: int) -> int:
        position = _skip_space(text, position)
        if position == len(text):
            return position
        char = text[position]
        if char in "{[":
            self._scan = JsonScan()
            self._step = self._in_value
            return position
        if char == '"':
            match = _STRING.match(text, position)
            if match is None:
                return position
            self._value(match[0])
        else:
            match = _SCALAR.match(text, position)
            if match is None or match.end() == len(text):
                return position
            if not match[0]:
                self.status = "bad"
                return position
            self._value(match[0])
        if self.status == "more":
            self._step = self._at_key
        return match.end()

    def _in_value(self, text: str, position: int) -> int:
        assert self._scan is not None
        end = self._scan.feed(text, position)
        if self._key in self._ARGUMENTS and end > position:
            self._give(text[position:end])
        if self._scan.status == "bad":
            self.status = "bad"
        elif self._scan.status == "done":
            self._step = self._at_key
        return end

    def _value(self, raw: str) -> None:
        """A string or a scalar, whole."""
        if self._key in self._NAMES and raw[0] == '"':
            name = _decoded(raw)
            if not name:
                self.status = "bad"
            elif not self._has_name:
                self._has_name = True
                if not self._sink.name(name):
                    self.status = "bad"
                self._give("".join(self._waiting))
        elif self._key in self._ARGUMENTS:
            inner = _decoded(raw) if raw[0] == '"' else None
            if inner is not None and inner.lstrip().startswith("{"):
                self._give(inner)
            elif raw != "null":
                self._give(raw)

    def _give(self, fragment: str) -> None:
        if not fragment:
            return
        self._has_arguments = True
        if self._has_name:
            self._sink.arguments(fragment)
        else:
            self._waiting.append(fragment)

    def _finish(self, position: int) -> int:
        if not self._has_name:
            self.status = "bad"
            return position
        if not self._has_arguments:
            self._sink.arguments("{}")
        self.status = "done"
        return position


class NamedJsonReader:
    """A header that holds the name, then the arguments as an object; none: `{}`.

    `header` matches all of what stands before the object. `ends`: markers that end a call.
    """

    def __init__(self, sink: CallSink, header: re.Pattern[str], ends: tuple[str, ...]) -> None:
        self.status: Status = "more"
        self._sink = sink
        self._header = header
        self._stop = re.compile("|".join(map(re.escape, ("{", *ends))))
        self._scan: JsonScan | None = None

    def feed(self, text: str, position: int, *, final: bool) -> int:
        if self._scan is None:
            found = self._stop.search(text, position)
            if found is None:
                waits = not final and len(text) - position <= _MAX_HEADER
                return position if waits else self._only_name(text, position, len(text))
            if found[0] != "{":
                return self._only_name(text, position, found.start())
            match = self._header.fullmatch(text, position, found.start())
            if match is None:
                self.status = "bad"
                return position
            self._sink.name(match["name"])
            self._scan = JsonScan()
            position = found.start()
        end = self._scan.feed(text, position)
        if end > position:
            self._sink.arguments(text[position:end])
        self.status = self._scan.status
        return end

    def _only_name(self, text: str, position: int, end: int) -> int:
        match = self._header.fullmatch(text, position, end)
        if match is None:
            self.status = "bad"
            return position
        self._sink.name(match["name"])
        self._sink.arguments("{}")
        self.status = "done"
        return end


def json_object(sink: CallSink, schemas: Schemas) -> Reader:
    """For calls that a marker announces: keys that are not known are skipped."""
    return JsonCallReader(sink, strict=False)


def bare_json_object(sink: CallSink, schemas: Schemas) -> Reader:
    """For calls that nothing announces: a key that is not known means that it is none."""
    return JsonCallReader(sink, strict=True)


def _skip_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


def _decoded(raw: str) -> str | None:
    try:
        value = json.loads(raw, strict=False)
    except ValueError:
        return None
    return value if isinstance(value, str) else None
