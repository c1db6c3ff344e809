"""The one strict JSON parse of a request body: a JSON object, or a clear error that says where.

Refused: what RFC 8259 refuses, and lone surrogates, duplicate keys, NaN and Infinity, nesting
deeper than 200, half a million brackets or colons. This module must not know: any parameter.
"""

import re
from itertools import islice

import jiter

from rejoinder.dialects.violation import Path, Unservable, Violation, clean, wrong_type
from rejoinder.types import JsonObject

_POSITION = re.compile(r"^(?P<reason>.*) at line (?P<line>\d+) column (?P<column>\d+)$", re.DOTALL)

_REASONS = (
    ("hex escape", "a \\u escape that is not a Unicode character (a lone surrogate?)"),
    ("unicode code point", "bytes that are not UTF-8"),
    ("recursion limit", "the values are nested too deeply"),
    ("EOF", "it ends too early"),
    ("Detected duplicate key", "an object has the same key twice"),
)
"""Parts of the parser's messages, and what we say instead."""

_NOT_FINITE = re.compile(rb".?-?(NaN|Infinity)", re.DOTALL)

_BOM = b"\xef\xbb\xbf"

_MAX_MARKS = 500_000
"""No prompt is that long; a body of empty objects, or of keys, would hold the process for
seconds."""

_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[{}\[\],:]', re.DOTALL)
_MAX_TOKENS = 100_000


def parse_object(body: bytes) -> JsonObject:
    """The body's object. Raises a Violation whose path leads to the fault as far as it is known."""
    if not body:
        raise _unreadable("it is empty", ())
    if body.startswith(_BOM):
        raise _unreadable("it starts with a byte order mark", ())
    if len(body) > _MAX_MARKS:
        if body.count(b"{") + body.count(b"[") > _MAX_MARKS:
            raise _unreadable(f"it has more than {_MAX_MARKS} opening brackets", ())
        if body.count(b":") > _MAX_MARKS:
            raise _unreadable(f"it has more than {_MAX_MARKS} colons", ())
    try:
        value = jiter.from_json(body, allow_inf_nan=False, catch_duplicate_keys=True)
    except ValueError as error:
        raise _explain(body, str(error)) from None
    if type(value) is not dict:
        fault = wrong_type("an object", value)
        fault.lead, fault.rest = "", "The request body must be a JSON object" + fault.rest
        raise fault
    return value


def _explain(body: bytes, text: str) -> Violation:
    found = _POSITION.match(text)
    if found is None:
        return _unreadable(clean(text, 200), ())
    reason = next((ours for part, ours in _REASONS if part in text), found["reason"])
    line, column = int(found["line"]), int(found["column"])
    start = 0
    for _ in range(line - 1):
        start = body.find(b"\n", start) + 1
    if _NOT_FINITE.match(body, max(0, start + column - 2)):
        reason = "NaN and Infinity are not numbers of JSON"
    where = f"{clean(reason, 200)} (line {line}, column {column})"
    path = path_at(body[: max(0, start + column - 1)])
    return _unreadable(where, path if path and isinstance(path[0], str) else ())


def _unreadable(reason: str, path: Path) -> Violation:
    text = f"The JSON body of the request cannot be read: {reason}."
    return Unservable(None, text, path=path)


def path_at(head: bytes) -> Path:
    """Where in the document a text that breaks off at the end of `head` is.

    () when that would take too long to find out.
    """
    path: list[str | int | None] = []
    expects_key = False
    tokens = list(islice(_TOKEN.finditer(head), _MAX_TOKENS + 1))
    if len(tokens) > _MAX_TOKENS:
        return ()
    for match in tokens:
        match match[0]:
            case b"{":
                path.append(None)
                expects_key = True
            case b"[":
                path.append(0)
                expects_key = False
            case b"}" | b"]":
                if path:
                    path.pop()
                expects_key = False
            case b",":
                if path and isinstance(path[-1], int):
                    path[-1] += 1
                else:
                    expects_key = bool(path)
            case b":":
                expects_key = False
            case string if expects_key and path:
                path[-1] = string.strip(b'"').decode("utf-8", "replace")
    return tuple(step for step in path if step is not None)
