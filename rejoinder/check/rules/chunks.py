"""R88–R122: what holds for the chunks of one stream.

Usage, tools, logprobs and moderation have files of their own. Must not know: other requests.
"""

import re
from collections.abc import Iterable, Iterator

from rejoinder.check.exchange import (
    ChoiceChunk,
    Chunk,
    Exchange,
    as_int,
    as_list,
    as_object,
    as_text,
    is_int,
    is_number,
)
from rejoinder.check.pairs import require_repeatable, texts
from rejoinder.check.probes import (
    LIMIT,
    MANY,
    MANY_STREAMED,
    STOPPED,
    STOPPED_STREAMED,
    UNARY,
    UNARY_AGAIN,
)
from rejoinder.check.rule import Evidence, Probe, Problem, Skipped, at, rule, whole_rule
from rejoinder.check.shapes import schema_faults

_INDEX = re.compile(r"\[\d+\]")


def plain(path: str) -> str:
    return _INDEX.sub("", path)


@rule(
    "R88",
    "Each chunk fits DeepInfra's schema",
    dialect="D",
    on="stream",
    says="Each chunk validates against the published schema: model and choices are required; in a "
    "choice index and delta.",
    how="JSON Schema. Nulls, counters, calls and finish reasons have rules of their own.",
)
def chunk_schema(x: Exchange) -> Iterable[Problem]:
    for chunk in x.chunks:
        for fault in schema_faults("deepinfra_chunk", chunk.json):
            yield at(chunk, fault)


@rule(
    "R89",
    "No null in a chunk",
    dialect="D",
    on="stream",
    says="There is no null in a chunk. finish_reason:null is a warning in live mode (A1).",
    how="A walk over all values.",
)
def no_null_in_chunk(x: Exchange) -> Iterable[Problem]:
    for chunk in x.chunks:
        for path, value in chunk.values:
            if value is None and not plain(path).endswith(_D_NULL_ELSEWHERE):
                level = "lenient" if path.endswith("finish_reason") else "rule"
                yield at(chunk, f"{path} is null", level)  # type: ignore[arg-type]


_D_NULL_ELSEWHERE = ("logprobs.content.logprob",)
"""R154 reports it."""


_REQUIRED = ("id", "object", "created", "model", "choices")


@rule(
    "R90",
    "Each chunk has its head",
    dialect="O",
    on="stream",
    says="Each chunk has id, object, created, model and choices, none of them null.",
    how="Presence, and the types of model and choices.",
)
def chunk_head(x: Exchange) -> Iterable[Problem]:
    for chunk in x.chunks:
        for key in _REQUIRED:
            if chunk.json.get(key) is None:
                yield at(chunk, f"{key} is {'null' if key in chunk.json else 'missing'}")
        if not isinstance(chunk.json.get("model"), str | None):
            yield at(chunk, "model is not a string")
        choices = chunk.json.get("choices")
        if not isinstance(choices, list | None):
            yield at(chunk, "choices is not an array")
        elif any(not isinstance(choice, dict) for choice in as_list(choices)):
            yield at(chunk, "an element of choices is not an object")


_TEXTS = ("content", "refusal")


@rule(
    "R91",
    "Each choice has its keys",
    dialect="O",
    on="stream",
    says="Each choice has index, delta and the key finish_reason, of the right types.",
    how="Presence and types, also those of the delta's texts.",
)
def choice_keys(x: Exchange) -> Iterable[Problem]:
    for piece in x.choice_chunks:
        for key in ("index", "delta", "finish_reason"):
            if key not in piece.json:
                yield at(piece, f"choices[{piece.position}].{key} is missing")
        if piece.index is None and piece.json.get("index") is not None:
            yield at(piece, f"index is {piece.json['index']!r}, not an integer")
        if not isinstance(piece.json.get("delta"), dict | None):
            yield at(piece, "delta is not an object")
        if not isinstance(piece.json.get("finish_reason"), str | None):
            yield at(piece, "finish_reason is not a string")
        for key in _TEXTS:
            if not isinstance(piece.delta.get(key), str | None):
                yield at(piece, f"delta.{key} is not a string")


_NULLABLE = frozenset(
    {"usage", "moderation", "service_tier", "choices.finish_reason", "choices.logprobs"}
    | {"choices.logprobs.content", "choices.logprobs.refusal"}
    | {"choices.delta.content", "choices.delta.refusal"}
    | {f"choices.logprobs.{k}.bytes" for k in _TEXTS}
    | {f"choices.logprobs.{k}.top_logprobs.bytes" for k in _TEXTS}
)
_NEVER_NULL = re.compile(
    r"system_fingerprint|choices\.delta\.(role|tool_calls.*|function_call.*)|usage\..*"
)
_NULL_ELSEWHERE = re.compile("|".join(_REQUIRED) + r"|moderation\..*|error")
"""R90, R189 and R121 report these."""


def _nulls(x: Exchange) -> Iterator[tuple[Chunk, str, str]]:
    for chunk in x.chunks:
        for path, value in chunk.values:
            if value is None:
                yield chunk, path, plain(path)


@rule(
    "R92",
    "Null only where it may be",
    dialect="O",
    on="stream",
    says="Only usage, moderation, service_tier, finish_reason, logprobs and its two lists, the "
    "delta's content and refusal, and a token's bytes may be null.",
    how="A walk; R93 has the places that are named as never null.",
)
def null_where_allowed(x: Exchange) -> Iterable[Problem]:
    for chunk, path, place in _nulls(x):
        if place in _NULLABLE or _NEVER_NULL.fullmatch(place) or _NULL_ELSEWHERE.fullmatch(place):
            continue
        yield at(chunk, f"{path} is null")


@rule(
    "R93",
    "Never null",
    dialect="O",
    on="stream",
    says="system_fingerprint, role, tool_calls and function_call and what is in them, and both "
    "usage details with every counter are never null.",
    how="A walk over these places.",
)
def never_null(x: Exchange) -> Iterable[Problem]:
    for chunk, path, place in _nulls(x):
        if _NEVER_NULL.fullmatch(place):
            yield at(chunk, f"{path} is null")


@rule(
    "R94",
    "object is chat.completion.chunk",
    dialect="B",
    on="stream",
    says="object is exactly chat.completion.chunk; in DeepInfra's dialect it may be absent.",
    how="Equality. The official SDKs drop chunks with another object.",
)
def object_literal(x: Exchange) -> Iterable[Problem]:
    for chunk in x.chunks:
        value = chunk.json.get("object")
        if value is not None and value != "chat.completion.chunk":
            yield at(chunk, f"object is {value!r}")


def _same(x: Exchange, key: str) -> Iterator[Problem]:
    """A key whose value changes on the way; absent and null do not count."""
    first = None
    for chunk in x.chunks:
        value = chunk.json.get(key)
        if value is None:
            continue
        if first is None:
            first = value
        elif value != first:
            yield at(chunk, f"{key} was {first!r} and is now {value!r}")
            return


@rule(
    "R95",
    "One id",
    dialect="O",
    on="stream",
    says="id is identical in all chunks, also the moderation and the usage chunk.",
    how="Comparison with the first.",
)
def one_id(x: Exchange) -> Iterable[Problem]:
    yield from _same(x, "id")


@rule(
    "R96",
    "One created",
    dialect="O",
    on="stream",
    says="created is identical in all chunks.",
    how="Comparison with the first.",
)
def one_created(x: Exchange) -> Iterable[Problem]:
    yield from _same(x, "created")


@rule(
    "R97",
    "One id and created",
    dialect="D",
    on="stream",
    says="id and created are identical in all chunks that have them, and in all chunks or none.",
    how="Comparison with the first.",
)
def one_id_and_created(x: Exchange) -> Iterable[Problem]:
    for key in ("id", "created"):
        yield from _same(x, key)
        have = [key in chunk.json for chunk in x.chunks]
        if any(have) and not all(have):
            yield at(x.chunks[have.index(False)], f"{key} is missing in some chunks")


@rule(
    "R98",
    "One model",
    dialect="B",
    on="stream",
    says="model is identical in all chunks.",
    how="Comparison with the first.",
)
def one_model(x: Exchange) -> Iterable[Problem]:
    yield from _same(x, "model")


@rule(
    "R99",
    "One fingerprint and tier",
    dialect="O",
    on="stream",
    severity="warning",
    says="system_fingerprint and service_tier are identical in all chunks that carry them.",
    how="Comparison with the first.",
)
def one_fingerprint(x: Exchange) -> Iterable[Problem]:
    for key in ("system_fingerprint", "service_tier"):
        yield from _same(x, key)


@rule(
    "R100",
    "Choices appear in order",
    dialect="B",
    on="stream",
    says="The first chunk with a choice delivers index 0; new indices appear in ascending order.",
    how="The order of first appearance.",
)
def choices_in_order(x: Exchange) -> Iterable[Problem]:
    highest = -1
    for piece in x.choice_chunks:
        index = piece.index
        if index is None or index <= highest:
            continue
        if index < x.n and index != highest + 1:
            yield at(piece, f"choice {index} appears before choice {highest + 1}")
        highest = max(highest, index)


@rule(
    "R101",
    "n choices",
    dialect="B",
    on="stream",
    says="index is below n, and every index 0 … n−1 appears.",
    how="The indices that appear; an interrupted stream may lack some.",
)
def n_choices(x: Exchange) -> Iterable[Problem]:
    seen: set[int] = set()
    for piece in x.choice_chunks:
        index = piece.index
        if index is not None and index not in seen:
            seen.add(index)
            if not 0 <= index < x.n:
                yield at(piece, f"index is {index}; n is {x.n}")
    missing = sorted(set(range(x.n)) - seen)
    if missing and x.complete:
        yield Problem(f"no chunk of choice {missing[0]}; n is {x.n}", x.last_frame)


def by_choice(x: Exchange) -> dict[int, list[ChoiceChunk]]:
    """The pieces of each choice in order."""
    pieces: dict[int, list[ChoiceChunk]] = {}
    for piece in x.choice_chunks:
        if piece.index is not None:
            pieces.setdefault(piece.index, []).append(piece)
    return pieces


@rule(
    "R102",
    "The first delta has the role",
    dialect="B",
    on="stream",
    says="The first delta of each choice has role assistant.",
    how="The first chunk of each choice.",
)
def first_delta_has_role(x: Exchange) -> Iterable[Problem]:
    for index, pieces in by_choice(x).items():
        if pieces[0].delta.get("role") != "assistant":
            role = pieces[0].delta.get("role")
            yield at(pieces[0], f"the first delta of choice {index} has the role {role!r}")


@rule(
    "R103",
    "The role comes once",
    dialect="B",
    on="stream",
    says="role occurs once in a choice: clients join strings.",
    how="Count.",
)
def role_once(x: Exchange) -> Iterable[Problem]:
    for index, pieces in by_choice(x).items():
        for piece in pieces[1:]:
            if piece.delta.get("role") is not None:
                yield at(piece, f"choice {index} has a role again")
                break


@rule(
    "R104",
    "One choice a chunk",
    dialect="B",
    on="stream",
    severity="warning",
    says="A chunk has one element in choices.",
    how="The length.",
)
def one_choice_a_chunk(x: Exchange) -> Iterable[Problem]:
    for chunk in x.chunks:
        if len(chunk.choices) > 1:
            yield at(chunk, f"{len(chunk.choices)} choices in one chunk")


@rule(
    "R105",
    "No choices only at the end",
    dialect="O",
    on="stream",
    says="choices is empty only on the usage chunk and the moderation chunk. A leading empty chunk "
    "is a warning.",
    how="Every empty choices.",
)
def empty_choices(x: Exchange) -> Iterable[Problem]:
    for position, chunk in enumerate(x.chunks):
        empty = chunk.json.get("choices") == []
        if empty and not chunk.json.get("usage") and not chunk.json.get("moderation"):
            level = "warning" if position == 0 else "rule"
            yield at(chunk, "choices is empty, without usage or moderation", level)  # type: ignore[arg-type]


@rule(
    "R106",
    "choices is never empty",
    dialect="D",
    on="stream",
    says="choices is never empty, unless the server sends usage in a chunk of its own.",
    how="Every empty choices. One with usage is a warning.",
)
def never_empty_choices(x: Exchange) -> Iterable[Problem]:
    for chunk in x.chunks:
        if chunk.json.get("choices") == []:
            level = "lenient" if chunk.json.get("usage") else "rule"
            yield at(chunk, "choices is empty", level)  # type: ignore[arg-type]


@rule(
    "R107",
    "One finish reason a choice",
    dialect="B",
    on="stream",
    says="A complete stream has exactly one finish_reason for each choice.",
    how="Count of those that are not null.",
)
def one_finish_reason(x: Exchange) -> Iterable[Problem]:
    for index, pieces in by_choice(x).items():
        finishes = [p for p in pieces if p.json.get("finish_reason") is not None]
        if len(finishes) > 1:
            yield at(finishes[1], f"choice {index} has finish_reason {len(finishes)} times")
        elif not finishes and x.complete:
            yield at(pieces[-1], f"choice {index} has no finish_reason")


@rule(
    "R108",
    "Nothing after the finish",
    dialect="B",
    on="stream",
    says="Nothing of a choice comes after its finish_reason.",
    how="Chunks of the choice after the first that has one.",
)
def nothing_after_finish(x: Exchange) -> Iterable[Problem]:
    for index, pieces in by_choice(x).items():
        finished = False
        for piece in pieces:
            if finished and piece.json.get("finish_reason") is None:
                yield at(piece, f"a chunk of choice {index} after its finish_reason")
                break
            finished |= piece.json.get("finish_reason") is not None


@rule(
    "R109",
    "The finish chunk has an empty delta",
    dialect="O",
    on="stream",
    severity="warning",
    says="The delta of the finish chunk is {}.",
    how="Equality.",
)
def finish_delta_is_empty(x: Exchange) -> Iterable[Problem]:
    for piece in x.choice_chunks:
        if piece.finish is not None and piece.json.get("delta") not in ({}, None):
            yield at(piece, f"the finish chunk has the delta keys {sorted(piece.delta)}")


@rule(
    "R110",
    "One kind of payload a delta",
    dialect="B",
    on="stream",
    says="A delta has at most one of content, refusal, reasoning_content and tool_calls.",
    how="Those that are not empty.",
)
def one_payload(x: Exchange) -> Iterable[Problem]:
    for piece in x.choice_chunks:
        kinds = [
            key
            for key in ("content", "refusal", "reasoning_content", "tool_calls")
            if piece.delta.get(key)
        ]
        if len(kinds) > 1:
            yield at(piece, f"a delta with {' and '.join(kinds)}")


@rule(
    "R111",
    "Content or a refusal",
    dialect="O",
    on="stream",
    says="A choice never has both content and a refusal.",
    how="The joined texts of each choice.",
)
def content_or_refusal(x: Exchange) -> Iterable[Problem]:
    for choice in x.choices:
        if choice.content and choice.refusal:
            yield Problem(f"choice {choice.index} has content and a refusal", choice.frame)


@rule(
    "R112",
    "A refusal ends with stop",
    dialect="O",
    on="answer",
    says="A refused choice has finish_reason stop, or length if its limit cut it.",
    how="finish_reason of each choice with a refusal.",
)
def refusal_stops(x: Exchange) -> Iterable[Problem]:
    for choice in x.choices:
        if choice.refusal and choice.finish not in (None, "stop", "length"):
            yield Problem(f"a refusal with finish_reason {choice.finish}", choice.frame)


@rule(
    "R113",
    "Reasoning first",
    dialect="D",
    on="stream",
    severity="warning",
    says="reasoning_content of a choice comes before its first content and calls.",
    how="The order of the deltas of each choice.",
)
def reasoning_first(x: Exchange) -> Iterable[Problem]:
    for index, pieces in by_choice(x).items():
        answering = False
        for piece in pieces:
            if answering and piece.delta.get("reasoning_content"):
                yield at(piece, f"choice {index} reasons after it has begun to answer")
                break
            answering |= bool(piece.delta.get("content") or piece.delta.get("tool_calls"))


@rule(
    "R114",
    "No reasoning_content",
    dialect="O",
    on="stream",
    says="reasoning_content never appears.",
    how="The keys of each delta.",
)
def no_reasoning_content(x: Exchange) -> Iterable[Problem]:
    for piece in x.choice_chunks:
        if "reasoning_content" in piece.delta:
            yield at(piece, "delta.reasoning_content")
            return


@whole_rule(
    "R115",
    "No stop sequence in a stream",
    dialect="B",
    kind="T",
    says="No stop sequence is in the joined text, and no beginning of one leaks: the text equals "
    "the unary text.",
    how="A search in each choice; the end of the text against the unary answer.",
    probes=(STOPPED, STOPPED_STREAMED, UNARY, UNARY_AGAIN),
)
def no_stop_in_stream(e: Evidence) -> Iterable[Problem]:
    streams = [x for x in e.exchanges if x.is_stream and x.stops]
    if not streams:
        raise Skipped("no stream with a stop sequence was seen")
    for x in streams:
        for choice in x.choices:
            for stop in x.stops:
                if stop in choice.content:
                    message = f"the text of choice {choice.index} holds {stop!r}"
                    yield Problem(message, choice.frame, x)
    yield from _leaked_stop(e)


def _leaked_stop(e: Evidence) -> Iterator[Problem]:
    body, stream = e.find(STOPPED.name), e.find(STOPPED_STREAMED.name)
    if body is None or stream is None or not (body.is_body and stream.is_stream):
        return
    try:
        require_repeatable(e)
    except Skipped:
        return
    for one, other in zip(texts(body), texts(stream), strict=False):
        leaked = other[0].removeprefix(one[0])
        if leaked and leaked != other[0] and any(s.startswith(leaked) for s in stream.stops):
            yield Problem(f"{leaked!r} of a stop sequence leaked into the stream", None, stream)


_SURROGATE = re.compile("[\ud800-\udfff]")


@rule(
    "R116",
    "Fragments are whole characters",
    dialect="B",
    on="stream",
    says="Each text fragment is valid Unicode by itself: no character is split over two.",
    how="Lone surrogates, and U+FFFD at the edges of adjacent fragments.",
)
def whole_characters(x: Exchange) -> Iterable[Problem]:
    for pieces in by_choice(x).values():
        for key in ("content", "refusal", "reasoning_content"):
            before = ""
            for piece in pieces:
                text = as_text(piece.delta.get(key))
                if _SURROGATE.search(text):
                    yield at(piece, f"delta.{key} has half a surrogate pair: {text!r}")
                elif before.endswith("\ufffd") and text.startswith("\ufffd"):
                    yield at(piece, f"delta.{key} splits a character: {before!r}, {text!r}")
                before = text or before


@rule(
    "R117",
    "obfuscation only when enabled",
    dialect="O",
    on="stream",
    severity="warning",
    says="The field obfuscation is there only if include_obfuscation is true, as a printable "
    "string.",
    how="Presence against the request. In live mode its presence by default passes.",
)
def obfuscation(x: Exchange) -> Iterable[Problem]:
    asked = as_object(x.asked.get("stream_options")).get("include_obfuscation")
    for chunk in x.chunks:
        if "obfuscation" not in chunk.json:
            continue
        value = chunk.json["obfuscation"]
        if asked is not True:
            yield at(chunk, "obfuscation, which was not asked for")
            return
        if not isinstance(value, str) or not value.isprintable():
            yield at(chunk, f"obfuscation is {value!r}")


_METRICS_BEFORE = Probe(
    name="R118: metrics before", method="GET", path="//metrics", alone=True, delay_seconds=0.2
)
_LEFT = Probe(
    name="R118: a client that leaves",
    body={LIMIT: 2000, "stream": True, "temperature": 1},
    stop_after=2,
    alone=True,
)
_RUNNING = re.compile(
    r"^([a-z_:]*(?:running|processing|in_flight|in_progress|active)[a-z_]*)(?:\{[^}]*\})? (\S+)$",
    re.MULTILINE | re.IGNORECASE,
)


def running(x: Exchange) -> dict[str, float]:
    """The gauges of running requests in a Prometheus text, by name."""
    sums: dict[str, float] = {}
    text = x.response.body.decode("utf-8", "replace")
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    for name, value in _RUNNING.findall(text):
        if kinds.get(name) == "gauge":
            sums[name] = sums.get(name, 0.0) + float(value)
    return sums


def _still_running(before: Exchange, after: Exchange) -> dict[str, float]:
    gauges = running(before)
    return {n: value for n, value in running(after).items() if value > gauges.get(n, 0.0)}


_METRICS_AFTER = Probe(
    name="R118: metrics after",
    method="GET",
    path="//metrics",
    alone=True,
    delay_seconds=2.0,
    until=lambda seen, after: not _still_running(seen[_METRICS_BEFORE.name], after),
)


@whole_rule(
    "R118",
    "A client that leaves stops the work",
    dialect="B",
    says="When the client disconnects, generation stops within a bounded time and the slot is "
    "free.",
    how="A long stream that the client closes after two events; within two seconds the gauges of "
    "running requests in /metrics are no higher than before. Skipped without such gauges.",
    probes=(_METRICS_BEFORE, _LEFT, _METRICS_AFTER),
)
def leaving_stops_work(e: Evidence) -> Iterable[Problem]:
    left = e.get(_LEFT.name)
    if not left.ok:
        raise Skipped(f"the long stream was answered with {left.response.status}")
    before, after = e.get(_METRICS_BEFORE.name), e.get(_METRICS_AFTER.name)
    gauges = running(before)
    if not (before.ok and after.ok and gauges):
        raise Skipped("the server has no /metrics with a gauge of running requests")
    if left.response.ending != "closed by client":
        raise Skipped("the long stream ended before the client could leave")
    for name, value in _still_running(before, after).items():
        yield Problem(f"{name} is still {value:g}, it was {gauges.get(name, 0):g}", None, left)


@rule(
    "R119",
    "An error event, then [DONE]",
    dialect="B",
    on="stream",
    says="An error after the first byte is one event with a top-level error object, then [DONE], "
    "with no chunk in between.",
    how="What follows the error event.",
)
def error_then_done(x: Exchange) -> Iterable[Problem]:
    if not x.error_frames:
        raise Skipped
    first = x.error_frames[0]
    if len(x.error_frames) > 1:
        yield Problem("a second error event", x.error_frames[1])
    after = [f for f in x.frames if f.number > first.number and isinstance(f.json, dict)]
    if any(not frame.is_error for frame in after):
        yield Problem("a chunk after the error event", after[0])
    error = as_object(first.json).get("error")
    if not isinstance(error, dict) or not as_text(error.get("message")):
        yield Problem("error is not an object with a message", first)


@rule(
    "R120",
    "No invented finish",
    dialect="B",
    on="stream",
    says="With an error event no finish_reason is invented for choices that had not finished.",
    how="finish_reason in a stream with an error event: error, or on the chunk right before it "
    "for every choice.",
)
def no_invented_finish(x: Exchange) -> Iterable[Problem]:
    if not x.error_frames:
        raise Skipped
    error = x.error_frames[0]
    for piece in x.choice_chunks:
        frame = piece.frame
        if piece.finish == "error" or (piece.finish and frame and frame.number > error.number):
            yield at(piece, f"finish_reason {piece.finish!r} in a stream that failed")
    finished = {p.index for p in x.choice_chunks if p.finish}
    last = x.choice_chunks[-1] if x.choice_chunks else None
    before = last and last.frame and last.frame.number == error.number - 1
    if last and before and last.finish and last.finish != "error" and len(finished) == x.n:
        yield at(last, "every choice has finished, and then the stream failed", "warning")


@rule(
    "R121",
    "No error key in a chunk",
    dialect="B",
    on="stream",
    says="No chunk has a top-level key error unless it is the error event.",
    how="The keys of each chunk.",
)
def no_error_key(x: Exchange) -> Iterable[Problem]:
    for chunk in x.chunks:
        if "error" in chunk.json:
            yield at(chunk, "a chunk with the key error")


@whole_rule(
    "R122",
    "Usage sums all choices",
    dialect="O",
    says="With n over 1 usage sums all choices, and the prompt counts once.",
    how="prompt_tokens of n=3 against n=1; completion_tokens of n=3 at least the visible pieces.",
    probes=(UNARY, MANY, MANY_STREAMED),
)
def usage_sums_choices(e: Evidence) -> Iterable[Problem]:
    one, many = e.answer(UNARY.name), e.answer(MANY.name)
    if one.usage is None or many.usage is None:
        raise Skipped("an answer without usage")
    prompt, prompts = as_int(one.usage.get("prompt_tokens")), many.usage.get("prompt_tokens")
    if is_int(prompts) and prompts == 3 * prompt and prompt:
        yield Problem(f"the prompt of {prompt} tokens counts {prompts} with n=3", None, many)
    stream = e.find(MANY_STREAMED.name)
    if stream is not None and stream.is_stream and stream.usage is not None:
        cut = [c for c in stream.choices if c.finish == "length"]
        least = (stream.limit or 0) * len(cut)
        completion = stream.usage.get("completion_tokens")
        if is_number(completion) and as_int(completion) < least:
            message = f"completion_tokens is {completion}; {len(cut)} choices reached their limit"
            yield Problem(message, None, stream)
