"""R171–R186: the sums in usage. Must not know: where usage stands."""

import math
from collections.abc import Iterable, Iterator

from rejoinder.check.exchange import (
    Exchange,
    Frame,
    as_int,
    as_list,
    as_object,
    as_text,
    is_int,
    is_number,
)
from rejoinder.check.probes import (
    LIMIT,
    MANY,
    MODELS,
    SHORT,
    STREAM_USAGE,
    TOOLS,
    TOOLS_UNARY,
    UNARY,
    function,
)
from rejoinder.check.rule import Evidence, Probe, Problem, Skipped, rule, whole_rule
from rejoinder.types import JsonObject

TOTALS = ("prompt_tokens", "completion_tokens", "total_tokens")
PROMPT_DETAILS = ("cached_tokens", "cache_write_tokens", "audio_tokens")
COMPLETION_DETAILS = (
    *("reasoning_tokens", "audio_tokens"),
    *("accepted_prediction_tokens", "rejected_prediction_tokens"),
)


def usages(x: Exchange) -> Iterator[tuple[Frame | None, JsonObject]]:
    """Each usage of an answer. Raises Skipped if there is none."""
    found = False
    for thing in x.objects:
        usage = thing.json.get("usage")
        if isinstance(usage, dict):
            found = True
            yield thing.frame, usage
    if not found:
        raise Skipped


def details(usage: JsonObject, half: str) -> JsonObject:
    return as_object(usage.get(f"{half}_tokens_details"))


@rule(
    "R171",
    "total = prompt + completion",
    dialect="B",
    says="total_tokens is prompt_tokens plus completion_tokens.",
    how="Arithmetic on each usage with integer totals.",
)
def total(x: Exchange) -> Iterable[Problem]:
    for frame, usage in usages(x):
        values = [usage.get(name, 0 if x.dialect == "D" else None) for name in TOTALS]
        if not all(is_int(value) for value in values):
            continue
        if x.dialect == "D" and any(name not in usage for name in TOTALS):
            continue
        prompt, completion, total_tokens = (as_int(value) for value in values)
        if prompt + completion != total_tokens:
            yield Problem(f"{prompt} + {completion} is not {total_tokens}", frame)


@rule(
    "R172",
    "Counters are whole and not negative",
    dialect="B",
    says="All counters are integers of 0 or more.",
    how="Every value in usage but estimated_cost. Nulls in a stream are R89's and R93's.",
)
def whole_counters(x: Exchange) -> Iterable[Problem]:
    for thing in x.objects:
        usage = thing.json.get("usage")
        if usage is not None and not isinstance(usage, dict):
            yield Problem(f"usage is {usage!r:.60}", thing.frame)
            continue
        for path, value in _counters(as_object(usage)):
            if value is None and x.is_stream:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                yield Problem(f"{path} is {value!r}", thing.frame)


_NOT_COUNTERS = ("estimated_cost", "prompt_tokens_details", "completion_tokens_details")


def _counters(usage: JsonObject) -> Iterator[tuple[str, object]]:
    for name, value in usage.items():
        if name not in _NOT_COUNTERS and name.endswith("tokens"):
            yield f"usage.{name}", value
    for half, names in (("prompt", PROMPT_DETAILS), ("completion", COMPLETION_DETAILS)):
        inner = usage.get(f"{half}_tokens_details")
        if inner is not None and not isinstance(inner, dict):
            yield f"usage.{half}_tokens_details", inner
        for name in names:
            if name in as_object(inner):
                yield f"usage.{half}_tokens_details.{name}", as_object(inner)[name]


@rule(
    "R173",
    "The three totals",
    dialect="O",
    says="prompt_tokens, completion_tokens and total_tokens are present.",
    how="The keys of each usage.",
)
def three_totals(x: Exchange) -> Iterable[Problem]:
    for frame, usage in usages(x):
        for name in TOTALS:
            if name not in usage:
                yield Problem(f"usage has no {name}", frame)


@rule(
    "R174",
    "Absent totals are 0",
    dialect="D",
    says="An absent total means 0.",
    how="The sum with 0 for what is absent; in strict mode absence itself is reported.",
)
def absent_totals(x: Exchange) -> Iterable[Problem]:
    for frame, usage in usages(x):
        lacking = [name for name in TOTALS if name not in usage]
        if not lacking:
            continue
        prompt, completion, total_tokens = (as_int(usage.get(name)) for name in TOTALS)
        wrong = prompt + completion != total_tokens
        message = f"usage has no {', '.join(lacking)}"
        yield Problem(message, frame, None, "rule" if wrong else "lenient")


@rule(
    "R175",
    "Cached tokens are prompt tokens",
    dialect="B",
    says="cached_tokens is at most prompt_tokens.",
    how="Arithmetic.",
)
def cached_at_most_prompt(x: Exchange) -> Iterable[Problem]:
    for frame, usage in usages(x):
        cached = as_int(details(usage, "prompt").get("cached_tokens"))
        if cached > as_int(usage.get("prompt_tokens")):
            yield Problem(f"cached_tokens {cached} of {usage.get('prompt_tokens')}", frame)


@rule(
    "R176",
    "Read or written",
    dialect="B",
    says="cached_tokens + cache_write_tokens is at most prompt_tokens.",
    how="Arithmetic. A warning in live mode.",
)
def read_or_written(x: Exchange) -> Iterable[Problem]:
    for frame, usage in usages(x):
        inner, prompt = details(usage, "prompt"), as_int(usage.get("prompt_tokens"))
        cached, written = (as_int(inner.get(f"{n}_tokens")) for n in ("cached", "cache_write"))
        if cached <= prompt < cached + written:
            yield Problem(
                f"{cached} read and {written} written of {prompt}", frame, None, "lenient"
            )


@rule(
    "R177",
    "Reasoning is part of the completion",
    dialect="O",
    says="reasoning_tokens is at most completion_tokens.",
    how="Arithmetic.",
)
def reasoning_in_completion(x: Exchange) -> Iterable[Problem]:
    for frame, usage in usages(x):
        yield from _reasoning(frame, usage)


def _reasoning(frame: Frame | None, usage: JsonObject) -> Iterator[Problem]:
    reasoning = as_int(details(usage, "completion").get("reasoning_tokens"))
    if reasoning > as_int(usage.get("completion_tokens")):
        yield Problem(f"reasoning_tokens {reasoning} of {usage.get('completion_tokens')}", frame)


@rule(
    "R178",
    "The parts of the completion",
    dialect="O",
    says="Reasoning, accepted and rejected prediction tokens add up to completion_tokens at most.",
    how="Arithmetic.",
)
def parts_of_completion(x: Exchange) -> Iterable[Problem]:
    for frame, usage in usages(x):
        inner, completion = details(usage, "completion"), as_int(usage.get("completion_tokens"))
        reasoning = as_int(inner.get("reasoning_tokens"))
        accepted = as_int(inner.get("accepted_prediction_tokens"))
        rejected = as_int(inner.get("rejected_prediction_tokens"))
        if reasoning <= completion < reasoning + accepted + rejected:
            message = f"{reasoning} + {accepted} + {rejected} is more than {completion}"
            yield Problem(message, frame)


@rule(
    "R179",
    "No prediction, no prediction tokens",
    dialect="O",
    says="Accepted and rejected prediction tokens are 0 without a prediction.",
    how="The counters against the request.",
)
def no_prediction_tokens(x: Exchange) -> Iterable[Problem]:
    if x.asked.get("prediction") is not None:
        raise Skipped
    for frame, usage in usages(x):
        inner = details(usage, "completion")
        for kind in ("accepted", "rejected"):
            count = inner.get(f"{kind}_prediction_tokens")
            if is_int(count) and as_int(count) > 0:
                yield Problem(f"{kind}_prediction_tokens is {count}, without a prediction", frame)


@rule(
    "R180",
    "All details",
    dialect="O",
    severity="warning",
    says="Both detail objects are present with every counter, 0 where unused.",
    how="The keys.",
)
def all_details(x: Exchange) -> Iterable[Problem]:
    for frame, usage in usages(x):
        for half, names in (("prompt", PROMPT_DETAILS), ("completion", COMPLETION_DETAILS)):
            lacking = [name for name in names if name not in details(usage, half)]
            if lacking:
                yield Problem(f"{half}_tokens_details has no {', '.join(lacking)}", frame)


_FACTOR = {"priority": 1.5, "flex": 0.8}


def prices(e: Evidence) -> JsonObject | None:
    """The model's prices in dollars per million tokens, where /models has them."""
    listed = e.find(MODELS.name)
    for item in as_list(as_object(listed.body).get("data")) if listed else []:
        if as_object(item).get("id") == e.model:
            pricing = as_object(as_object(as_object(item).get("metadata")).get("pricing"))
            return pricing or None
    return None


def cost_of(usage: JsonObject, pricing: JsonObject, factor: float) -> float:
    def price(name: str, default: float = 0.0) -> float:
        value = pricing.get(name)
        return float(value) if isinstance(value, int | float) else default

    prompt, completion = (as_int(usage.get(name)) for name in TOTALS[:2])
    inner = details(usage, "prompt")
    cached, written = (as_int(inner.get(f"{n}_tokens")) for n in ("cached", "cache_write"))
    read = price("cache_read_tokens", price("input_tokens"))
    write = price("cache_write_tokens", price("input_tokens"))
    plain = max(0, prompt - cached - written)
    dollars = plain * price("input_tokens") + cached * read + written * write
    return (dollars + completion * price("output_tokens")) / 1e6 * factor


@whole_rule(
    "R181",
    "The price",
    dialect="D",
    kind="T",
    says="estimated_cost is a finite number of 0 or more, and what the model's prices say.",
    how="Range; against the prices in /models, with the factor of the tier, within 1 %. A "
    "different price of what was written to the cache passes.",
    probes=(MODELS,),
)
def price(e: Evidence) -> Iterable[Problem]:
    pricing = prices(e)
    judged = False
    for x in (x for x in e.exchanges if x.is_answer):
        for thing in x.objects:
            usage = as_object(thing.json.get("usage"))
            cost = usage.get("estimated_cost")
            if cost is None:
                continue
            judged = True
            if not isinstance(cost, int | float) or isinstance(cost, bool):
                yield Problem(f"estimated_cost is {cost!r}", thing.frame, x)
            elif not math.isfinite(cost) or cost < 0:
                yield Problem(f"estimated_cost is {cost}", thing.frame, x)
            elif pricing is not None and thing is x.objects[-1] and x.complete:
                yield from _against_prices(x, thing.frame, usage, cost, pricing)
    if not judged:
        raise Skipped("no answer has an estimated_cost")


def _against_prices(
    x: Exchange, frame: Frame | None, usage: JsonObject, cost: float, pricing: JsonObject
) -> Iterator[Problem]:
    asked = as_text(x.asked.get("service_tier"))
    factors = {1.0, _FACTOR.get(asked, 1.0)}
    bare: JsonObject = {
        **usage,
        "prompt_tokens_details": {**details(usage, "prompt"), "cache_write_tokens": 0},
    }
    right = {cost_of(u, pricing, f) for f in factors for u in (usage, bare)}
    if not any(abs(cost - one) <= max(0.01 * one, 1e-9) for one in right):
        yield Problem(f"estimated_cost is {cost:.9f}; the prices say {max(right):.9f}", frame, x)


@rule(
    "R182",
    "Reasoning is part of the completion",
    dialect="D",
    severity="warning",
    says="completion_tokens_details may appear; then reasoning_tokens is at most "
    "completion_tokens.",
    how="Arithmetic.",
)
def reasoning_in_completion_d(x: Exchange) -> Iterable[Problem]:
    for frame, usage in usages(x):
        yield from _reasoning(frame, usage)


@rule(
    "R183",
    "The limit is the limit",
    dialect="B",
    says="completion_tokens of a single answer is never above its limit, and is the limit where "
    "that cut it.",
    how="completion_tokens above the limit; R80 has those below. Rejected prediction tokens count "
    "too, and may exceed it.",
)
def limit_is_the_limit(x: Exchange) -> Iterable[Problem]:
    if x.asked.get("prediction") is not None or x.n != 1 or x.usage is None:
        raise Skipped
    if x.limit is None or x.limit < 0:  # no limit at all, R23's
        raise Skipped
    completion = as_int(x.usage.get("completion_tokens"))
    if completion > x.limit:
        yield Problem(f"{completion} completion tokens; the limit is {x.limit}")


@whole_rule(
    "R184",
    "The prompt counts the same",
    dialect="B",
    says="prompt_tokens does not depend on stream, n, seed or temperature.",
    how="The same message asked in all these ways.",
    probes=(UNARY, STREAM_USAGE, MANY, SHORT),
)
def prompt_counts_the_same(e: Evidence) -> Iterable[Problem]:
    first = e.answer(UNARY.name)
    if first.usage is None:
        raise Skipped("the answer has no usage")
    wanted = first.usage.get("prompt_tokens")
    for probe in (STREAM_USAGE, MANY, SHORT):
        x = e.find(probe.name)
        if x is None or not x.is_answer or x.usage is None:
            continue
        found = x.usage.get("prompt_tokens")
        if (
            is_number(found)
            and is_number(wanted)
            and found != wanted
            and not (probe is MANY and found == 3 * as_int(wanted))
        ):
            yield Problem(f"prompt_tokens is {found}; of the plain answer {wanted}", None, x)


_MORE_TOOLS = Probe(
    name="R185: more tools",
    body={
        **TOOLS,
        "tools": [function(f"get_{what}") for what in ("weather", "time", "news", "tide", "sun")],
        LIMIT: 1,
    },
)


@whole_rule(
    "R185",
    "Tools count in the prompt",
    dialect="O",
    says="Tool definitions count in prompt_tokens.",
    how="The same message with two and with five tools.",
    probes=(TOOLS_UNARY, _MORE_TOOLS),
)
def tools_count(e: Evidence) -> Iterable[Problem]:
    few, more = e.answer(TOOLS_UNARY.name), e.answer(_MORE_TOOLS.name)
    if few.usage is None or more.usage is None:
        raise Skipped("an answer without usage")
    if as_int(more.usage.get("prompt_tokens")) <= as_int(few.usage.get("prompt_tokens")):
        message = (
            f"prompt_tokens is {few.usage.get('prompt_tokens')} with two tools, "
            f"{more.usage.get('prompt_tokens')} with five"
        )
        yield Problem(message, None, more)


@rule(
    "R186",
    "Reasoning counts",
    dialect="D",
    on="stream",
    kind="P",
    says="Reasoning counts in completion_tokens.",
    how="Streams with reasoning_content: at least as many completion tokens as deltas with text.",
)
def reasoning_counts(x: Exchange) -> Iterable[Problem]:
    if not any(c.reasoning for c in x.choices) or x.usage is None or not x.complete:
        raise Skipped
    keys = ("content", "reasoning_content")
    pieces = sum(1 for p in x.choice_chunks if any(p.delta.get(key) for key in keys))
    completion = as_int(x.usage.get("completion_tokens"))
    # A token that ends the reasoning may show text on both sides of the marker.
    if completion + 2 < pieces:
        yield Problem(f"{pieces} deltas with text, completion_tokens is {completion}")
