"""Recorded exchanges as JSON lines: small, readable, without secrets, exact to the byte.

One exchange a line: the request, then what came back with the time of each part. This module
must not know: sockets.
"""

import base64
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from rejoinder.check.exchange import (
    SECRET_HEADERS,
    Headers,
    Read,
    Request,
    Response,
    as_list,
    as_object,
    as_text,
    is_int,
    is_number,
    parse_json,
)
from rejoinder.types import Json, JsonObject

VERSION = 1

REDACTED: Final = "REDACTED"

_SECRET_TEXT = re.compile(
    rb"(?<![A-Za-z0-9])(?:sk|pk|rk|key|hf|xai|gsk)[-_][A-Za-z0-9_\-]{16,}|"
    rb"(?<![A-Za-z0-9])eyJ[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-]{10,}"
)
"""API keys and tokens as they are usually written, wherever they stand in a request."""


class BadTape(Exception):
    """A file that is no tape; the text names the line."""


class Recorded(Struct, frozen=True):
    """One exchange. The response's reads are the parts in which its bytes came."""

    request: Request
    response: Response


def redacted(request: Request) -> Request:
    """The request without its secrets: headers that carry keys, and keys in URL and body."""
    headers = tuple(
        (name, REDACTED if name.lower() in SECRET_HEADERS else value)
        for name, value in request.headers
    )
    url = _SECRET_TEXT.sub(REDACTED.encode(), request.url.encode()).decode()
    url = re.sub(r"([?&](?:api[-_]?key|key|token)=)[^&]+", rf"\1{REDACTED}", url)
    body = _SECRET_TEXT.sub(REDACTED.encode(), request.body)
    return Request(method=request.method, url=url, headers=headers, body=body)


def redacted_headers(headers: Headers) -> Headers:
    """Answer headers without cookies."""
    return tuple(
        (name, REDACTED if name.lower() in SECRET_HEADERS else value) for name, value in headers
    )


# ---------------------------------------------------------------- lines


def to_line(recorded: Recorded) -> str:
    """One line of a tape, redacted, without its line end."""
    request, response = redacted(recorded.request), recorded.response
    bounds = [read.offset for read in response.reads] + [len(response.body)]
    parts = [
        {"at_ms": round(read.seconds * 1000, 3), **_packed(response.body[start:end])}
        for read, (start, end) in zip(response.reads, itertools.pairwise(bounds), strict=True)
    ]
    tree = {
        "v": VERSION,
        "method": request.method,
        "url": request.url,
        "headers": [list(pair) for pair in request.headers],
        "body": _packed(request.body),
        "status": response.status,
        "response_headers": [list(pair) for pair in redacted_headers(response.headers)],
        "ending": response.ending,
        "parts": parts,
    }
    return json.dumps(tree, ensure_ascii=False, separators=(",", ":"))


def from_line(line: str) -> Recorded:
    """Raises BadTape."""
    tree, fault = parse_json(line)
    if fault or not isinstance(tree, dict):
        raise BadTape(f"not a JSON object: {fault}")
    if tree.get("v") != VERSION:
        raise BadTape(f"version {tree.get('v')!r} is not {VERSION}")
    body = bytearray()
    reads: list[Read] = []
    for part in as_list(tree.get("parts")):
        at = as_object(part).get("at_ms")
        if not is_number(at) or at < 0:
            raise BadTape("a part without at_ms")
        reads.append(Read(len(body), float(at) / 1000))
        body += _unpacked(as_object(part))
    status, ending = tree.get("status"), tree.get("ending")
    if not is_int(status) or ending not in ("whole", "cut", "closed by client"):
        raise BadTape("status or ending is wrong")
    return Recorded(
        Request(
            method=as_text(tree.get("method")),
            url=as_text(tree.get("url")),
            headers=_headers(tree.get("headers")),
            body=_unpacked(as_object(tree.get("body"))),
        ),
        Response(
            status=status,
            headers=_headers(tree.get("response_headers")),
            body=bytes(body),
            reads=tuple(reads),
            ending=ending,  # type: ignore[arg-type]
        ),
    )


def _headers(value: Json) -> Headers:
    pairs = [as_list(pair) for pair in as_list(value)]
    return tuple((as_text(pair[0]), as_text(pair[1])) for pair in pairs if len(pair) == 2)


def _packed(data: bytes) -> dict[str, str]:
    """Text where it is text, so that people can read it; base64 otherwise."""
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _unpacked(value: JsonObject) -> bytes:
    if "base64" in value:
        try:
            return base64.b64decode(as_text(value["base64"]), validate=True)
        except ValueError as error:
            raise BadTape(f"base64: {error}") from None
    return as_text(value.get("text")).encode("utf-8", "surrogatepass")


def read_tape(path: Path) -> Iterator[Recorded]:
    """The exchanges of a file in order. Raises BadTape, OSError."""
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    yield from_line(line)
                except BadTape as error:
                    raise BadTape(f"{path}, line {number}: {error}") from None


def write_tape(path: Path, exchanges: Iterable[Recorded]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for recorded in exchanges:
            file.write(to_line(recorded) + "\n")
