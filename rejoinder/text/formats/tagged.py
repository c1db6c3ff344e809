"""Readers of calls written as tags around names and values: qwen3_coder and glm4.

The values are typed by the tool's schema and leave as one JSON object, in one spelling, as they
come; integers keep every digit. This module must not know: events, what else is in the text.
"""

import json
import re

import jiter
from msgspec import Struct

from rejoinder.text.formats.format import CallSink, Schemas, Status
from rejoinder.text.formats.json_calls import JsonScan
from rejoinder.text.markers import Markers
from rejoinder.types import Json, JsonObject

_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_SCALARS = {
    "true": ("true", "boolean"),
    "false": ("false", "boolean"),
    "null": ("null", "null"),
    "none": ("null", "null"),
}
_MAX_NAME = 1024


class Tags(Struct, frozen=True, kw_only=True):
    """The markup of one call's body. `name_end` ends the tool's name.

    A value ends at `value_end` when one of `followers` (or the end of the text) comes after it;
    so a tag inside a value is data. `breaks` end a value whose end tag the model forgot, by the
    same rule, `sure_breaks` without it.
    """

    name_end: tuple[str, ...]
    key: str
    key_end: str
    value: str
    value_end: str
    end: str
    followers: tuple[str, ...]
    sure_breaks: tuple[str, ...] = ()
    breaks: tuple[str, ...] = ()
    newline_frames: bool = False
    """One newline next to a value's tags is framing."""
    keeps_name_end: tuple[str, ...] = ()
    """Ends of the name that are also the beginning of what follows."""


class TaggedReader:
    """name, then `key` NAME `key_end` `value` VALUE `value_end` …, then `end`."""

    def __init__(self, sink: CallSink, schemas: Schemas, tags: Tags) -> None:
        self.status: Status = "more"
        self._sink = sink
        self._schemas = schemas
        self._tags = tags
        self._state = "name"
        self._parameters: JsonObject | None = None
        self._count = 0
        self._types: frozenset[str] = frozenset()
        self._streams = False
        self._value: list[str] = []
        self._at_start = False
        self._ends = Markers((tags.value_end, *tags.breaks, *tags.sure_breaks))
        self._scan = JsonScan()

    def feed(self, text: str, position: int, *, final: bool) -> int:
        while self.status == "more":
            state = self._state
            before = position
            match state:
                case "name":
                    position = self._name(text, position, final=final)
                case "body":
                    position = self._body(text, position, final=final)
                case "key":
                    position = self._key(text, position)
                case "json":
                    position = self._json(text, position)
                case _:
                    position = self._in_value(text, position, final=final)
            if position == before and self._state == state:
                break
        return position

    def _name(self, text: str, position: int, *, final: bool) -> int:
        ends = [(i, t) for t in self._tags.name_end if (i := text.find(t, position)) >= 0]
        if not ends:
            if final and "\n" in self._tags.name_end:
                return self._open(text[position:], len(text))
            if len(text) - position > _MAX_NAME:
                self.status = "bad"
            return position
        at, tag = min(ends)
        keep = tag in self._tags.keeps_name_end
        return self._open(text[position:at], at if keep else at + len(tag))

    def _open(self, name: str, position: int) -> int:
        name = name.strip().strip("\"'")
        if not name or any(char in name for char in " <>{}\n"):
            self.status = "bad"
            return position
        self._sink.name(name)
        self._parameters = self._schemas.parameters(name)
        self._state = "body"
        return position

    def _body(self, text: str, position: int, *, final: bool) -> int:
        tags = self._tags
        while position < len(text) and text[position] in " \t\r\n":
            position += 1
        if not self._count and text.startswith("{", position):
            self._state = "json"
            return position
        if text.startswith(tags.key, position):
            self._state = "key"
            return position + len(tags.key)
        if tags.end and text.startswith(tags.end, position):
            return self._finish(position + len(tags.end))
        rest = text[position : position + 64]
        if not final and any(t.startswith(rest) for t in (tags.key, tags.end, *tags.followers)):
            return position
        # whatever comes now is not the call's: a section's end, or the end tag was forgotten
        if final or any(text.startswith(t, position) for t in tags.followers):
            return self._finish(position)
        self.status = "bad"
        return position

    def _json(self, text: str, position: int) -> int:
        """Arguments as one object where tags were expected."""
        end = self._scan.feed(text, position)
        if end > position:
            self._sink.arguments(text[position:end])
        self._count = -1
        if self._scan.status == "done":
            self._state = "body"
        elif self._scan.status == "bad":
            self.status = "bad"
        return end

    def _key(self, text: str, position: int) -> int:
        tags = self._tags
        at = text.find(tags.key_end, position)
        if at < 0:
            if len(text) - position > _MAX_NAME:
                self.status = "bad"
            return position
        start = at + len(tags.key_end)
        if tags.value:
            while start < len(text) and text[start] in " \t\r\n":
                start += 1
            if not text.startswith(tags.value, start):
                if not tags.value.startswith(text[start:]):
                    self.status = "bad"
                return position
            start += len(tags.value)
        key = text[position:at].strip().strip("\"'")
        self._types = _types(self._parameters, key)
        self._streams = self._types == {"string"}
        spelled = json.dumps(key, ensure_ascii=False)
        self._sink.arguments(f"{', ' if self._count else '{'}{spelled}: ")
        self._count += 1
        self._state = "value"
        self._at_start = True
        self._value = []
        if self._streams:
            self._sink.arguments('"')
        return start

    def _in_value(self, text: str, position: int, *, final: bool) -> int:
        tags = self._tags
        if self._at_start:
            if position == len(text) and not final:
                return position
            self._at_start = False
            if tags.newline_frames and text.startswith("\n", position):
                position += 1
        search = position
        while True:
            found = self._ends.search(text, search)
            if found is None:
                break
            verdict = self._is_end(text, found, final=final)
            stop = found.start()
            if found[0][0] != "\n":
                stop = self._without_frame(text, position, stop)
            if verdict is None:  # what comes next decides
                return self._take(text, position, stop)
            if verdict:
                self._take(text, position, stop)
                self._close_value()
                is_own = found[0] == tags.value_end
                return found.end() if is_own else found.start() + (found[0][0] == "\n")
            search = found.start() + 1
        if final:
            self._take(text, position, self._without_frame(text, position, len(text)))
            self._close_value()
            self.status = "bad"
            return len(text)
        hold = self._ends.held_from(text, position)
        return self._take(text, position, self._without_frame(text, position, hold))

    def _is_end(self, text: str, found: re.Match[str], *, final: bool) -> bool | None:
        if found[0] in self._tags.sure_breaks:
            return True
        rest = text[found.end() :].lstrip()
        if any(rest.startswith(t) for t in self._tags.followers):
            return True
        if not rest:
            return True if final else None
        return (
            None if not final and any(t.startswith(rest) for t in self._tags.followers) else False
        )

    def _without_frame(self, text: str, position: int, end: int) -> int:
        frames = self._tags.newline_frames and end > position and text[end - 1] == "\n"
        return end - 1 if frames else end

    def _take(self, text: str, position: int, end: int) -> int:
        if end > position:
            if self._streams:
                self._sink.arguments(json.dumps(text[position:end], ensure_ascii=False)[1:-1])
            else:
                self._value.append(text[position:end])
        return max(position, end)

    def _close_value(self) -> None:
        if self._streams:
            self._sink.arguments('"')
        else:
            self._sink.arguments(_typed("".join(self._value), self._types))
        self._state = "body"

    def _finish(self, position: int) -> int:
        if self._count >= 0:
            self._sink.arguments("}" if self._count else "{}")
        self.status = "done"
        return position


def _typed(raw: str, types: frozenset[str]) -> str:
    """A value's JSON: as its type where the text is one, else as a string."""
    text = raw.strip()
    spelling, kind = _SCALARS.get(text.lower(), ("", ""))
    if spelling and (not types or kind in types):
        return spelling
    if _JSON_NUMBER.fullmatch(text) and (not types or types & {"integer", "number"}):
        return text
    if text[:1] in ("{", "[") and (not types or types & {"object", "array"}):
        try:
            jiter.from_json(text.encode(), allow_inf_nan=False)
        except ValueError:
            pass
        else:
            return text
    return json.dumps(raw, ensure_ascii=False)


def _types(parameters: JsonObject | None, key: str) -> frozenset[str]:
    """The JSON types that a tool's schema allows for a parameter; empty: it does not say."""
    if parameters is None:
        return frozenset()
    properties = parameters.get("properties")
    schema = properties.get(key) if isinstance(properties, dict) else None
    if schema is None:
        schema = parameters.get("additionalProperties")
    return _types_of(schema, parameters, 0)


def _types_of(schema: Json, root: JsonObject, depth: int) -> frozenset[str]:
    if not isinstance(schema, dict) or depth > 16:
        return frozenset()
    match schema:
        case {"type": str() as name}:
            return frozenset({name})
        case {"type": list() as names}:
            return frozenset(name for name in names if isinstance(name, str))
        case {"$ref": str() as reference}:
            return _types_of(_resolved(reference, root), root, depth + 1)
        case {"enum": list() as values}:
            return frozenset(map(_type_name, values))
        case {"const": value}:
            return frozenset({_type_name(value)})
        case {"anyOf": list() as choices} | {"oneOf": list() as choices}:
            found = [_types_of(choice, root, depth + 1) for choice in choices]
            return frozenset().union(*found) if all(found) else frozenset()
        case {"allOf": list() as parts}:
            found = [f for part in parts if (f := _types_of(part, root, depth + 1))]
            return found[0] if found else frozenset()
        case _:
            return frozenset()


def _resolved(reference: str, root: JsonObject) -> Json:
    value: Json = root
    if not reference.startswith("#"):
        return None
    for part in reference[1:].strip("/").split("/"):
        if part and isinstance(value, dict):
            value = value.get(part.replace("~1", "/").replace("~0", "~"))
    return value


def _type_name(value: Json) -> str:
    match value:
        case bool():
            return "boolean"
        case str():
            return "string"
        case int():
            return "integer"
        case float():
            return "number"
        case None:
            return "null"
        case list():
            return "array"
        case _:
            return "object"
