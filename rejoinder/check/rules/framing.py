"""R1–R12: transport and framing of answers. Must not know: what the JSON of a chunk means."""

import math
from collections.abc import Iterable

from rejoinder.check.exchange import Exchange
from rejoinder.check.rule import Evidence, Probe, Problem, Skipped, at, rule, whole_rule


@rule(
    "R1",
    "A stream is an event stream",
    dialect="B",
    on="stream",
    says="A streamed request that succeeds answers 200 with Content-Type text/event-stream.",
    how="The Content-Type of each 200 answer to stream:true begins with text/event-stream.",
)
def event_stream_type(x: Exchange) -> Iterable[Problem]:
    kind = x.header("content-type") or ""
    if not kind.lower().startswith("text/event-stream"):
        yield Problem(f"Content-Type is {kind!r}, not text/event-stream")


@rule(
    "R2",
    "A unary answer is one JSON object",
    dialect="B",
    on="body",
    says="An answer without streaming is 200, application/json, and one JSON object.",
    how="Content-Type and a parse of the whole body.",
)
def json_body(x: Exchange) -> Iterable[Problem]:
    kind = x.header("content-type") or ""
    if not kind.lower().startswith("application/json"):
        yield Problem(f"Content-Type is {kind!r}, not application/json")
    if not isinstance(x.body, dict):
        yield Problem(f"the body is no JSON object: {x.response.body[:80]!r}")


@rule(
    "R3",
    "Valid UTF-8",
    dialect="B",
    says="The body is valid UTF-8; no event cuts a code point.",
    how="A strict decode of the body.",
)
def valid_utf8(x: Exchange) -> Iterable[Problem]:
    try:
        x.response.body.decode()
    except UnicodeDecodeError as error:
        frame = next((f for f in x.frames if f.offset + len(f.raw) > error.start), None)
        yield Problem(f"not UTF-8 at byte {error.start}: {error.reason}", frame)


@rule(
    "R4",
    "Events are data lines and a blank line",
    dialect="B",
    on="stream",
    says="Every event is one or more data lines ended by a blank line.",
    how="Each block of lines is a comment or has a data line, and the last one is complete.",
)
def events_end(x: Exchange) -> Iterable[Problem]:
    for frame in x.frames:
        if frame.data is None and any(frame.fields):
            yield Problem("an event without a data line", frame)
    last = x.frames[-1] if x.frames else None
    ends = (b"\n\n", b"\r\r", b"\r\n\r\n", b"\n\r\n", b"\r\n\n")
    if last and x.response.ending == "whole" and not last.raw.endswith(ends):
        yield Problem("the last event has no blank line after it", last)


@rule(
    "R5",
    "One data line an event",
    dialect="B",
    on="stream",
    severity="warning",
    says="The JSON of an event is on one data line; there are no event, id or retry fields.",
    how="The names of the fields of each event.",
)
def one_data_line(x: Exchange) -> Iterable[Problem]:
    for frame in x.frames:
        if frame.fields.count(b"data") > 1:
            yield Problem("the data is spread over several lines", frame)
        if other := set(frame.fields) - {b"data", b""}:
            names = ", ".join(sorted(name.decode("utf-8", "replace") for name in other))
            if frame.data is not None:
                yield Problem(f"fields other than data: {names}", frame)


@rule(
    "R6",
    "Every payload is a JSON object",
    dialect="B",
    on="stream",
    says="Each data payload other than [DONE] is a JSON object.",
    how="A parse; NaN and Infinity are not JSON.",
)
def payloads_are_objects(x: Exchange) -> Iterable[Problem]:
    for frame in x.frames:
        if frame.data is None or frame.is_done:
            continue
        if frame.fault:
            yield Problem(f"the payload is not JSON: {frame.fault}", frame)
        elif not isinstance(frame.json, dict):
            yield Problem("the payload is not a JSON object", frame)
    for chunk in x.chunks:
        for path, value in chunk.values:
            if isinstance(value, float) and not math.isfinite(value) and "logprob" not in path:
                yield at(chunk, f"{path} is {value}, which JSON does not have")


@rule(
    "R7",
    "[DONE] once, last",
    dialect="B",
    on="stream",
    says="There is exactly one data: [DONE]; it is the last event.",
    how="Count and position.",
)
def done_is_last(x: Exchange) -> Iterable[Problem]:
    events = [frame for frame in x.frames if frame.data is not None]
    done = [frame for frame in events if frame.is_done]
    if len(done) != 1:
        yield Problem(f"{len(done)} [DONE] events", done[1] if done else x.last_frame)
    elif events[-1] is not done[0]:
        yield Problem("an event comes after [DONE]", events[-1])


@rule(
    "R8",
    "Comments are the only keep-alive",
    dialect="B",
    on="stream",
    severity="warning",
    says="Comment lines are the only legal keep-alive, and none holds JSON.",
    how="Comments with a JSON object in them; events whose data is empty.",
)
def comments_hold_no_json(x: Exchange) -> Iterable[Problem]:
    for frame in x.frames:
        if b"" in frame.fields and b"{" in frame.raw.partition(b":")[2] and frame.data is None:
            yield Problem("a comment holds JSON", frame)


@whole_rule(
    "R9",
    "Early failures have their status",
    dialect="B",
    says="A request that fails before its first chunk gets its HTTP status and a JSON error body.",
    how="A request for a model that does not exist, with stream:true.",
    probes=(
        Probe(
            name="unknown model, streamed", body={"model": "no/such-model-exists", "stream": True}
        ),
    ),
)
def early_failure(e: Evidence) -> Iterable[Problem]:
    x = e.get("unknown model, streamed")
    if x.response.status < 400:
        yield Problem(x.how_answered, None, x)
    elif not isinstance(x.body, dict):
        yield Problem("the error is no JSON object", None, x)


@rule(
    "R10",
    "Chunks are flushed as they are made",
    dialect="B",
    on="stream",
    severity="warning",
    says="The first chunk of a long output leaves clearly before the last.",
    how="16 or more chunks that took over half a second, and then came all at once, faster than "
    "one a millisecond: a stream that waited in a queue comes at the engine's pace.",
)
def flushed(x: Exchange) -> Iterable[Problem]:
    if len(x.chunks) < 16 or not x.response.reads:
        raise Skipped
    first = x.seconds_at(x.frames[0].offset)
    last = x.seconds_at(x.frames[-1].offset)
    if first > 0.5 and last - first < min(0.02 * first, 0.001 * len(x.chunks)):
        yield Problem(
            f"{len(x.chunks)} chunks came within {last - first:.3f} s after {first:.1f} s"
        )


@whole_rule(
    "R11",
    "gzip request bodies",
    dialect="D",
    says="Request bodies coded with gzip are accepted; other codings are refused cleanly.",
    how="The same request coded with gzip, and one that claims to be coded with br.",
    probes=(
        Probe(name="gzip body", headers=(("Content-Encoding", "gzip"),), dialects=("D",)),
        Probe(
            name="br body",
            raw=b"\x0b\x02\x80not brotli\x03",
            headers=(("Content-Encoding", "br"),),
            dialects=("D",),
        ),
    ),
)
def gzip_bodies(e: Evidence) -> Iterable[Problem]:
    coded = e.get("gzip body")
    if not coded.ok:
        yield Problem(f"a gzip body was {coded.how_answered}", None, coded)
    other = e.get("br body")
    if not 400 <= other.response.status < 500:
        yield Problem(f"a br body was {other.how_answered}", None, other)


@rule(
    "R12",
    "Streams are not cached",
    dialect="B",
    on="stream",
    severity="warning",
    says="Streams carry Cache-Control no-cache or no-store and are not compressed.",
    how="The headers.",
)
def not_cached(x: Exchange) -> Iterable[Problem]:
    control = (x.header("cache-control") or "").lower()
    if "no-cache" not in control and "no-store" not in control:
        yield Problem(f"Cache-Control is {control!r}")
    if (coding := x.header("content-encoding")) not in (None, "identity"):
        yield Problem(f"Content-Encoding is {coding!r}")
