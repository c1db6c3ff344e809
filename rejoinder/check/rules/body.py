"""R67–R87: unary bodies. Rules that a stream shares (R71, R72, R79, R87 …) look at both.

Must not know: other requests, sockets.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rejoinder.check.exchange import Exchange, as_int, as_list, as_object, as_text, is_int
from rejoinder.check.pairs import both, require_seed, texts
from rejoinder.check.probes import (
    CONTINUOUS,
    LOGPROBS,
    LOGPROBS_STREAMED,
    MANY,
    MANY_STREAMED,
    SEEDED,
    SEEDED_AGAIN,
    SHORT,
    SHORT_STREAMED,
    STOPPED,
    STOPPED_STREAMED,
    STREAM_USAGE,
    STREAMED,
    TOOLS_STREAMED,
    TOOLS_UNARY,
    UNARY,
    UNARY_AGAIN,
)
from rejoinder.check.rule import Evidence, Probe, Problem, Skipped, at, of_each, rule, whole_rule
from rejoinder.check.shapes import (
    D_ONLY,
    FINISH_REASONS,
    FOREIGN_FINISH_REASONS,
    O_ONLY,
    schema_faults,
    unknown_keys,
)

if TYPE_CHECKING:
    from rejoinder.types import JsonObject


def messages(x: Exchange) -> "Iterator[JsonObject]":
    if isinstance(x.body, dict):
        for choice in as_list(x.body.get("choices")):
            yield as_object(as_object(choice).get("message"))


@rule(
    "R67",
    "The body fits DeepInfra's schema",
    dialect="D",
    on="body",
    says="The body validates against the published schema: model, choices and usage are required; "
    "in a choice index and message.",
    how="JSON Schema. Nulls, counters and finish reasons have rules of their own.",
)
def body_schema(x: Exchange) -> Iterable[Problem]:
    for fault in schema_faults("deepinfra_response", x.body):
        yield Problem(fault)


@rule(
    "R68",
    "No null in a body",
    dialect="D",
    on="body",
    says="There is no null in a body, except inside free objects.",
    how="A walk over all values.",
)
def no_null_in_body(x: Exchange) -> Iterable[Problem]:
    for path, value in (pair for thing in x.objects for pair in thing.values):
        if value is None and "cache_control" not in path and not path.startswith("usage."):
            yield Problem(f"{path} is null")


_REQUIRED_BODY = ("id", "object", "created", "model", "choices")


@rule(
    "R69",
    "The body has what it must",
    dialect="O",
    on="body",
    says="Required are id, object, created, model and choices; in a choice index, message, "
    "finish_reason and the key logprobs; in a message role and the keys content and refusal.",
    how="A walk. A missing logprobs key is a warning: reasoning models are seen to omit it.",
)
def required_in_body(x: Exchange) -> Iterable[Problem]:
    body = as_object(x.body)
    for key in _REQUIRED_BODY:
        if body.get(key) is None:
            yield Problem(f"{key} is missing or null")
    if body.get("object") not in (None, "chat.completion"):
        yield Problem(f"object is {body['object']!r}, not chat.completion")
    if not isinstance(body.get("model", ""), str):
        yield Problem("model is not a string")
    for n, value in enumerate(as_list(body.get("choices"))):
        choice, message = as_object(value), as_object(as_object(value).get("message"))
        for key in ("index", "message", "finish_reason"):
            if choice.get(key) is None:
                yield Problem(f"choices[{n}].{key} is missing or null")
        if "logprobs" not in choice:
            yield Problem(f"choices[{n}].logprobs is missing", level="lenient")
        if message.get("role") != "assistant":
            yield Problem(f"choices[{n}].message.role is {message.get('role')!r}")
        for key in ("content", "refusal"):
            if message and key not in message:
                yield Problem(f"choices[{n}].message.{key} is missing")
        if not isinstance(message.get("refusal"), str | None):
            yield Problem(f"choices[{n}].message.refusal is not a string")


@rule(
    "R70",
    "n choices in order",
    dialect="B",
    on="body",
    says="There are exactly n choices, with the indices 0 … n−1 in order.",
    how="The indices against the request's n.",
)
def n_choices(x: Exchange) -> Iterable[Problem]:
    indices = [
        as_object(choice).get("index") for choice in as_list(as_object(x.body).get("choices"))
    ]
    if indices != list(range(x.n)) or any(isinstance(i, bool | float) for i in indices):
        yield Problem(f"the indices are {indices}; n is {x.n}")


@rule(
    "R71",
    "A known finish reason",
    dialect="B",
    says="finish_reason is one of the dialect's values.",
    how="The value in each choice; the other dialect's own values are R147's.",
)
def known_finish_reason(x: Exchange) -> Iterable[Problem]:
    for thing in x.objects:
        for choice in thing.choices:
            reason = choice.json.get("finish_reason")
            if reason is None or as_text(reason) in FINISH_REASONS[x.dialect]:
                continue
            if as_text(reason) not in FOREIGN_FINISH_REASONS[x.dialect]:
                yield at(thing, f"finish_reason is {reason!r}")


@rule(
    "R72",
    "created is in seconds",
    dialect="B",
    says="created is a whole number of seconds since 1970.",
    how="Type, and within a day of the request.",
)
def created_in_seconds(x: Exchange) -> Iterable[Problem]:
    for thing in x.objects:
        created = thing.json.get("created")
        if created is None:
            continue
        if not is_int(created):
            yield at(thing, f"created is {created!r}, not an integer")
        elif not 1_000_000_000 <= as_int(created) <= 9_999_999_999:
            yield at(thing, f"created is {created}, which is not in seconds")
        elif x.at and abs(as_int(created) - x.at) > 86_400:
            yield at(thing, f"created is {created}; the request was made at {x.at:.0f}")


@rule(
    "R73",
    "A refusal or an answer",
    dialect="O",
    on="body",
    says="With a refusal content is null and there are no calls; content is null only with a "
    "refusal or a call.",
    how="The three fields of each message. An answer cut by its limit or a filter may be empty.",
)
def refusal_or_answer(x: Exchange) -> Iterable[Problem]:
    for choice in as_list(as_object(x.body).get("choices")):
        message = as_object(as_object(choice).get("message"))
        content, refusal = message.get("content"), message.get("refusal")
        calls = message.get("tool_calls") or message.get("function_call")
        if refusal and (content is not None or calls):
            yield Problem("a refusal together with content or calls")
        cut = as_object(choice).get("finish_reason") in ("length", "content_filter")
        if (
            ("content" in message and content is None and not (refusal or calls or cut))
            and refusal != ""
            and not message.get("audio")
        ):
            yield Problem("content is null, without a refusal or a call")


@rule(
    "R74",
    "content is a string or null",
    dialect="O",
    on="body",
    says="A message's content is a string or null, never an array.",
    how="The type.",
)
def content_is_string(x: Exchange) -> Iterable[Problem]:
    for message in messages(x):
        if not isinstance(message.get("content"), str | None):
            yield Problem(f"content is of type {type(message['content']).__name__}")


@rule(
    "R75",
    "content is a plain string",
    dialect="D",
    on="body",
    severity="warning",
    says="A message's content is a plain string; an array of text parts is legal but not sent.",
    how="The type.",
)
def content_is_plain(x: Exchange) -> Iterable[Problem]:
    for message in messages(x):
        if isinstance(message.get("content"), list):
            yield Problem("content is an array of parts")


@rule(
    "R76",
    "The role is assistant",
    dialect="D",
    on="body",
    says="role, when present, is assistant.",
    how="Equality.",
)
def role_is_assistant(x: Exchange) -> Iterable[Problem]:
    for message in messages(x):
        if message.get("role", "assistant") not in ("assistant", None):
            yield Problem(f"role is {message['role']!r}")


@rule(
    "R77",
    "tool_calls means calls",
    dialect="B",
    says="finish_reason is tool_calls if and only if there are calls. A named tool_choice may say "
    "stop; a limit or a filter may cut calls.",
    how="finish_reason against the calls of each choice.",
)
def tool_calls_means_calls(x: Exchange) -> Iterable[Problem]:
    for choice in x.choices:
        if choice.finish == "tool_calls" and not choice.calls:
            yield Problem("finish_reason is tool_calls without a call", choice.frame)
        if choice.calls and choice.finish == "stop" and not x.names_tool:
            yield Problem("finish_reason is stop, but there are calls", choice.frame)


@rule(
    "R78",
    "function_call only for functions",
    dialect="O",
    says="finish_reason function_call appears only if the request used functions.",
    how="finish_reason against the request.",
)
def function_call_only_for_functions(x: Exchange) -> Iterable[Problem]:
    for choice in x.choices:
        if choice.finish == "function_call" and "functions" not in x.asked:
            yield Problem("finish_reason is function_call", choice.frame)


@rule(
    "R79",
    "No stop sequence in the text",
    dialect="B",
    on="body",
    says="No stop sequence occurs in the returned text.",
    how="A search in the content of each choice.",
)
def no_stop_in_body(x: Exchange) -> Iterable[Problem]:
    if not x.stops:
        raise Skipped
    for choice in x.choices:
        for stop in x.stops:
            if stop in choice.content:
                yield Problem(f"the text holds the stop sequence {stop!r}", choice.frame)


def cut_by_length(x: Exchange) -> "Iterator[tuple[int, int]]":
    """(limit, completion tokens) of a single choice that its limit has cut."""
    if x.n != 1 or x.limit is None or x.usage is None or len(x.choices) != 1:
        raise Skipped
    if x.choices[0].finish != "length":
        raise Skipped
    if as_int(x.usage.get("total_tokens")) < 2048:
        # A longer one may have filled the model's context.
        yield x.limit, as_int(x.usage.get("completion_tokens"))


@rule(
    "R80",
    "length means the limit was reached",
    dialect="B",
    says="finish_reason length appears only if the limit was reached or the context is full.",
    how="completion_tokens of a single choice against the request's limit.",
)
def length_means_limit(x: Exchange) -> Iterable[Problem]:
    for limit, completion in cut_by_length(x):
        if completion < limit:
            yield Problem(f"finish_reason is length after {completion} of {limit} tokens")


@rule(
    "R81",
    "The tier that was used",
    dialect="O",
    severity="warning",
    says="service_tier appears when the request set it; it is the tier that was used, never auto.",
    how="The value in each body or chunk.",
)
def tier_used(x: Exchange) -> Iterable[Problem]:
    tiers = ("default", "flex", "scale", "priority", None)
    for thing in x.objects:
        if thing.json.get("service_tier") not in tiers:
            yield at(thing, f"service_tier is {thing.json['service_tier']!r}")
    asked = x.asked.get("service_tier")
    if asked is not None and x.objects and not x.objects[0].json.get("service_tier"):
        yield Problem(f"the request set service_tier {asked!r}, the answer has none")


@rule(
    "R82",
    "The tier that was used",
    dialect="D",
    says="service_tier, when present, is default or priority; priority only if it was asked for.",
    how="The value in each body or chunk, against the request.",
)
def tier_used_d(x: Exchange) -> Iterable[Problem]:
    for thing in x.objects:
        tier = thing.json.get("service_tier")
        if tier not in (None, "default", "priority"):
            yield at(thing, f"service_tier is {tier!r}")
        elif tier == "priority" and x.asked.get("service_tier") != "priority":
            yield at(thing, "service_tier is priority, which was not asked for")


@rule(
    "R83",
    "system_fingerprint is a string",
    dialect="O",
    says="system_fingerprint, when present, is a string.",
    how="The type in each body or chunk. Null in a chunk is R93's.",
)
def fingerprint_is_string(x: Exchange) -> Iterable[Problem]:
    for thing in x.objects:
        value = thing.json.get("system_fingerprint", "")
        if not isinstance(value, str) and not (value is None and thing.frame):
            yield at(thing, f"system_fingerprint is {value!r}")


def _extra(x: Exchange, own: frozenset[str], other: frozenset[str]) -> Iterator[Problem]:
    for thing in x.objects:
        for path, key in unknown_keys(x.dialect, thing.json, streamed=thing.frame is not None):
            belongs = "the other dialect's" if key in other else "unknown to"
            if key not in own:
                yield at(
                    thing,
                    f"{path} is {belongs} the contract"
                    if key not in other
                    else f"{path} is a field of the other dialect",
                )


@rule(
    "R84",
    "No field of the other dialect",
    dialect="O",
    severity="warning",
    says="There is no field that only DeepInfra has, nor one that the reference does not know.",
    how="A walk over the keys. reasoning_content in a stream is R114's, obfuscation R117's.",
)
def no_d_fields(x: Exchange) -> Iterable[Problem]:
    own = frozenset({"obfuscation", "error"} | ({"reasoning_content"} if x.is_stream else set()))
    yield from _extra(x, own, D_ONLY)


@rule(
    "R85",
    "No field of the other dialect",
    dialect="D",
    severity="warning",
    says="There is no field that only OpenAI has, nor one that the schema does not know.",
    how="A walk over the keys. top_logprobs is R168's, function_call R147's.",
)
def no_o_fields(x: Exchange) -> Iterable[Problem]:
    yield from _extra(x, frozenset({"top_logprobs", "error"}), O_ONLY)


@whole_rule(
    "R87",
    "A unique id",
    dialect="B",
    kind="T",
    says="id is a non-empty string, unique among answers.",
    how="Each body and chunk; then the ids of all answers against each other.",
)
def unique_id(e: Evidence) -> Iterable[Problem]:
    seen: dict[str, str] = {}
    for x in (x for x in e.exchanges if x.is_answer):
        for thing in x.objects:
            value = thing.json.get("id", "absent")
            if value is not None and not as_text(value):
                yield Problem(f"id is {value!r}", thing.frame, x)
                break
        first = as_text(x.objects[0].json.get("id")) if x.objects else ""
        if first and seen.setdefault(first, x.probe) != x.probe:
            yield Problem(f"id {first!r} was also the id of “{seen[first]}”", None, x)
    if not any(x.is_answer for x in e.exchanges):
        raise Skipped("no answer was seen")


_COUNTERS = ("prompt_tokens", "completion_tokens", "total_tokens")


@whole_rule(
    "R86",
    "Unary and streamed answers agree",
    dialect="B",
    says="The same request with the same seed gives the same text, finish reasons and counters, "
    "streamed or not.",
    how="Pairs of requests at temperature 0 with a seed. Skipped where two unary answers differ.",
    probes=(
        *(UNARY, UNARY_AGAIN, STREAMED, STREAM_USAGE, STOPPED, STOPPED_STREAMED),
        *(SHORT, SHORT_STREAMED, TOOLS_UNARY, TOOLS_STREAMED, LOGPROBS, LOGPROBS_STREAMED),
        *(CONTINUOUS, MANY, MANY_STREAMED, SEEDED, SEEDED_AGAIN),
    ),
)
def unary_and_stream_agree(e: Evidence) -> Iterable[Problem]:
    made = [(a, b) for a, b in _PAIRS if e.find(a.name) and e.find(b.name)]
    if not made:
        raise Skipped("no request was made both ways")
    return of_each(made, lambda pair: _pair_differences(e, *pair))


def _pair_differences(e: Evidence, first: Probe, second: Probe) -> Iterable[Problem]:
    if first is MANY:
        body, stream = e.answer(first.name), e.answer(second.name)
        require_seed(e)
    else:
        body, stream = both(e, first, second)
    if stream.complete:
        yield from _differences(body, stream)


_PAIRS = (
    (UNARY, STREAMED),
    (UNARY, STREAM_USAGE),
    (UNARY, CONTINUOUS),
    (STOPPED, STOPPED_STREAMED),
    (SHORT, SHORT_STREAMED),
    (TOOLS_UNARY, TOOLS_STREAMED),
    (LOGPROBS, LOGPROBS_STREAMED),
    (MANY, MANY_STREAMED),
)


def _differences(body: Exchange, stream: Exchange) -> Iterator[Problem]:
    names = ("content", "refusal", "reasoning_content", "finish_reason")
    for one, other in zip(texts(body), texts(stream), strict=False):
        for name, unary, streamed in zip(names, one, other, strict=True):
            if unary != streamed and not (name == "finish_reason" and streamed is None):
                message = f"{name} is {unary!r:.200} in the body, {streamed!r:.200} in the stream"
                yield Problem(message, None, stream)
    if body.usage is not None and stream.usage is not None:
        for counter in _COUNTERS:
            if body.usage.get(counter) != stream.usage.get(counter):
                yield Problem(
                    f"{counter} is {body.usage.get(counter)!r} in the body, "
                    f"{stream.usage.get(counter)!r} in the stream",
                    None,
                    stream,
                )
