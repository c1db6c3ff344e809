"""Good answers of a provider, and what real servers do to them.

An `Oddity` changes the payloads of a stream, parsed, in place. What it may cost is part of it: some
leave nothing that can be repaired, and only those may end in an error.
"""

import copy
import json
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from rejoinder.dialects import DEEPINFRA, OPENAI, RequestPolicy
from rejoinder.dialects.sse import SseReader
from rejoinder.types import AnswerOptions
from tests.check.good import GoodAnswer

SHOWN = RequestPolicy(openai_reasoning="reasoning_content")

Payloads = list[Any]
Costs = Literal["nothing", "text", "logprobs", "all"]
Break = Callable[[random.Random, Payloads], None]


@dataclass(frozen=True)
class Oddity:
    """`costs`: "nothing": the client gets the good answer; "text": another one; "logprobs": the
    good answer, or an error that says that there are none; "all": it may be any error."""

    name: str
    apply: Break
    costs: Costs


ODDITIES: dict[str, Oddity] = {}


def oddity(costs: Costs = "nothing") -> Callable[[Break], Break]:
    def add(apply: Break) -> Break:
        name = apply.__name__
        ODDITIES[name] = Oddity(name, apply, costs)
        return apply

    return add


# ---------------------------------------------------------------- a good answer


def good_answer(rng: random.Random) -> tuple[dict[str, Any], Payloads]:
    """What is asked of us, in OpenAI's dialect, and the payloads of a provider that answers."""
    good = GoodAnswer(rng, "O")
    asked = good.asked
    for name in ("moderation", "stream", "stream_options", "prediction", "service_tier", "stop"):
        asked.pop(name, None)
    options = AnswerOptions(
        stream=True,
        include_usage=True,
        logprobs="logprobs" in asked,
        num_top_logprobs=asked.get("top_logprobs", 0),
        legacy_functions=False,
    )
    dialect = rng.choice([OPENAI, OPENAI, DEEPINFRA])
    encoder = dialect.chunk_encoder(options, SHOWN, lambda: "")
    events = [event for event in good.events if type(event).__name__ != "Moderated"]
    stream = b"".join(encoder.feed(event) for event in events)
    return asked, [json.loads(payload) for payload in SseReader().feed(stream)]


# ---------------------------------------------------------------- places in payloads


def chunks(payloads: Payloads) -> list[Any]:
    return [one for one in payloads if isinstance(one, dict)]


def entries(payloads: Payloads) -> list[Any]:
    """Every element of `choices`."""
    return [c for one in chunks(payloads) for c in one.get("choices") or [] if isinstance(c, dict)]


def deltas(payloads: Payloads) -> list[Any]:
    return [c["delta"] for c in entries(payloads) if isinstance(c.get("delta"), dict)]


def some(rng: random.Random, found: list[Any]) -> list[Any]:
    """All, one, or about half of what was found."""
    if not found:
        return []
    match rng.randrange(3):
        case 0:
            return found
        case 1:
            return [rng.choice(found)]
        case _:
            return [one for one in found if rng.random() < 0.5]


def tokens(payloads: Payloads) -> list[Any]:
    """Every entry of logprobs."""
    return [
        token
        for c in entries(payloads)
        if isinstance(c.get("logprobs"), dict)
        for field in ("content", "refusal")
        for token in c["logprobs"].get(field) or []
        if isinstance(token, dict)
    ]


def alternatives(payloads: Payloads) -> list[Any]:
    return [top for token in tokens(payloads) for top in token.get("top_logprobs") or []]


def usages(payloads: Payloads) -> list[Any]:
    return [one["usage"] for one in chunks(payloads) if isinstance(one.get("usage"), dict)]


def calls(payloads: Payloads) -> list[Any]:
    found = [delta.get("tool_calls") for delta in deltas(payloads)]
    return [
        call for one in found if isinstance(one, list) for call in one if isinstance(call, dict)
    ]


def copied(payloads: Payloads, delta: Any = None, **more: Any) -> Any:
    """Another chunk of the same answer."""
    first = chunks(payloads)[0]
    head = {key: value for key, value in first.items() if key not in ("choices", "usage")}
    choice = {"index": 0, "delta": {} if delta is None else delta, "finish_reason": None}
    return {**head, "choices": [{**choice, **more}]}


ODD: list[Any] = [None, "", "x", 0, -1, 1.5, True, [], {}, [None], {"a": None}]


def attempt(oddity: Oddity, rng: random.Random, payloads: Payloads) -> None:
    """Applies an oddity as far as what others have left allows it."""
    with suppress(TypeError, AttributeError, KeyError, IndexError, ValueError):
        oddity.apply(rng, payloads)


# ---------------------------------------------------------------- heads


@oddity()
def id_changes(rng: random.Random, payloads: Payloads) -> None:
    for one in some(rng, chunks(payloads)):
        one["id"] = rng.choice(["other", "", None, 7, {"a": 1}])


@oddity()
def created_changes(rng: random.Random, payloads: Payloads) -> None:
    for one in some(rng, chunks(payloads)):
        one["created"] = rng.choice([0, -1, None, 1.5, "1790000000", 1790000000123, 10**30])


@oddity()
def model_changes(rng: random.Random, payloads: Payloads) -> None:
    for one in some(rng, chunks(payloads)):
        one["model"] = rng.choice(["other", "", None, 7, "\ud800", "a/b:c\n"])


@oddity()
def object_changes(rng: random.Random, payloads: Payloads) -> None:
    for one in some(rng, chunks(payloads)):
        one["object"] = rng.choice(["chat.completion", "", None, "text_completion", 3])


@oddity()
def head_lacks(rng: random.Random, payloads: Payloads) -> None:
    for one in some(rng, chunks(payloads)):
        for key in some(rng, ["id", "object", "created", "model", "service_tier"]):
            one.pop(key, None)


@oddity()
def tier_and_fingerprint_odd(rng: random.Random, payloads: Payloads) -> None:
    for one in some(rng, chunks(payloads)):
        one["service_tier"] = rng.choice([*ODD, "auto", "scale", "priority", "flex", "on_demand"])
        one["system_fingerprint"] = rng.choice([*ODD, "fp\x00", "\ud83d"])


@oddity()
def unknown_members(rng: random.Random, payloads: Payloads) -> None:
    for one in some(rng, [*chunks(payloads), *entries(payloads), *deltas(payloads)]):
        key = rng.choice(
            [
                *("provider", "annotations", "audio", "native_finish_reason", "matched_stop"),
                *("metadata", "x_groq", "token_ids", "prompt_token_ids", "obfuscation", "name"),
                *("moderation", "citations", "prompt_filter_results", "content_filter_results"),
                *("stop_reason", "index2", "estimated_cost", "cache_control", "error", "base_resp"),
            ]
        )
        one.setdefault(key, rng.choice([None, [], {}, "", 0] if key == "error" else ODD[:-1]))


@oddity()
def null_members(rng: random.Random, payloads: Payloads) -> None:
    for delta in some(rng, deltas(payloads)):
        for key in some(
            rng, ["content", "refusal", "role", "tool_calls", "function_call", "audio"]
        ):
            delta.setdefault(key, None)
    for entry in some(rng, entries(payloads)):
        entry.setdefault("logprobs", None)


# ---------------------------------------------------------------- chunks


@oddity()
def empty_deltas(rng: random.Random, payloads: Payloads) -> None:
    indices = [c.get("index") for c in entries(payloads)]
    for _ in range(rng.randint(1, 4)):
        delta = rng.choice([{}, {"content": ""}, {"content": None}, {"reasoning_content": ""}])
        at = rng.randint(0, len(payloads))
        payloads.insert(at, copied(payloads, dict(delta), index=rng.choice(indices)))


@oddity()
def empty_choices(rng: random.Random, payloads: Payloads) -> None:
    for _ in range(rng.randint(1, 3)):
        empty = {**copied(payloads), "choices": rng.choice([[], None])}
        payloads.insert(rng.randint(0, len(payloads)), empty)


@oddity()
def heartbeats(rng: random.Random, payloads: Payloads) -> None:
    for _ in range(rng.randint(1, 3)):
        beat = rng.choice([": OPENROUTER PROCESSING", None, {}, {"type": "ping"}, [], ""])
        payloads.insert(rng.randint(0, len(payloads)), beat)


@oddity()
def role_everywhere(rng: random.Random, payloads: Payloads) -> None:
    for delta in deltas(payloads):
        delta["role"] = rng.choice(["assistant", "assistant", "", "Assistant", "model", None, 4])


@oddity()
def role_nowhere(rng: random.Random, payloads: Payloads) -> None:
    for delta in deltas(payloads):
        delta.pop("role", None)


@oddity()
def chunks_merged(rng: random.Random, payloads: Payloads) -> None:
    """The choices of the next chunk come in this one."""
    at = 0
    while at + 1 < len(payloads):
        one, other = payloads[at], payloads[at + 1]
        merge = isinstance(one, dict) and isinstance(other, dict) and rng.random() < 0.4
        if merge and one.get("choices") and other.get("choices") and not other.get("usage"):
            if {c["index"] for c in one["choices"]} & {c["index"] for c in other["choices"]}:
                at += 1
                continue
            one["choices"] += other["choices"]
            del payloads[at + 1]
        else:
            at += 1


@oddity()
def choices_shuffled(rng: random.Random, payloads: Payloads) -> None:
    """Each choice keeps its order, not those of several to each other."""
    mine = [one for one in chunks(payloads) if one.get("choices")]
    by_index: dict[Any, list[Any]] = {}
    for one in mine:
        by_index.setdefault(one["choices"][0].get("index"), []).append(one)
    rest = [one for one in payloads if one not in mine]
    order: list[Any] = []
    while any(by_index.values()):
        order.append(rng.choice([queue for queue in by_index.values() if queue]).pop(0))
    payloads[:] = order + rest


@oddity("all")
def wrong_n(rng: random.Random, payloads: Payloads) -> None:
    """Fewer choices, more of them, or all with one index."""
    match rng.randrange(3):
        case 0:
            for entry in entries(payloads):
                entry["index"] = 0
        case 1:
            for entry in entries(payloads):
                entry["index"] += rng.choice([0, 0, 1])
        case _:
            for one in chunks(payloads):
                one["choices"] = [c for c in one.get("choices") or [] if c.get("index") == 0]


@oddity("all")
def index_odd(rng: random.Random, payloads: Payloads) -> None:
    for entry in some(rng, entries(payloads)):
        entry["index"] = rng.choice([None, "0", 0.0, -1, True, 5, {}])


@oddity("all")
def chunk_lost(rng: random.Random, payloads: Payloads) -> None:
    del payloads[rng.randrange(len(payloads))]


@oddity("all")
def chunk_twice(rng: random.Random, payloads: Payloads) -> None:
    at = rng.randrange(len(payloads))
    payloads.insert(at, copy.deepcopy(payloads[at]))


@oddity("all")
def chunks_swapped(rng: random.Random, payloads: Payloads) -> None:
    a, b = rng.randrange(len(payloads)), rng.randrange(len(payloads))
    payloads[a], payloads[b] = payloads[b], payloads[a]


@oddity("all")
def whole_message_at_end(rng: random.Random, payloads: Payloads) -> None:
    for entry in entries(payloads):
        if entry.get("finish_reason"):
            entry["message"] = {"role": "assistant", "content": "all of it"}
            if rng.random() < 0.5:
                entry.pop("delta", None)


@oddity("all")
def anything_anywhere(rng: random.Random, payloads: Payloads) -> None:
    places = list(_places(payloads))
    for _ in range(rng.randint(1, 3)):
        holder, key = rng.choice(places)
        holder[key] = rng.choice([*ODD, "stop", "\ud83d", 1e300, 10**25, [{}], {"content": "x"}])


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key in value if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


# ---------------------------------------------------------------- payloads of a delta


@oddity()
def content_in_parts(rng: random.Random, payloads: Payloads) -> None:
    for delta in some(rng, deltas(payloads)):
        if isinstance(delta.get("content"), str):
            part = {"type": "text", "text": delta["content"]}
            delta["content"] = rng.choice(
                [[part], part, [part, {"type": "odd"}], [delta["content"]]]
            )


@oddity("text")
def content_odd(rng: random.Random, payloads: Payloads) -> None:
    for delta in some(rng, deltas(payloads)):
        delta["content"] = rng.choice([7, True, 1.5, [], {}, [[]], {"text": 3}, [None, 3]])


@oddity("text")
def everything_at_once(rng: random.Random, payloads: Payloads) -> None:
    call = {"index": 0, "id": "call_x", "function": {"name": "alpha", "arguments": "{}"}}
    more = [("content", "more"), ("reasoning_content", "hm"), ("refusal", "no")]
    for delta in some(rng, deltas(payloads)):
        for key, value in some(rng, [*more, ("tool_calls", [call])]):
            delta[key] = copy.deepcopy(value)


@oddity("text")
def reasoning_in_several_fields(rng: random.Random, payloads: Payloads) -> None:
    fields = ["reasoning", "reasoning_content", "reasoning_text", "thinking", "reasoning_details"]
    for delta in some(rng, deltas(payloads)):
        for field in some(rng, fields):
            text = rng.choice(["so", "", " \n", "\ud83d", "é"])
            as_details = [{"type": "reasoning.text", "text": text, "index": 0}, {"type": "odd"}]
            delta[field] = rng.choice([text, text, as_details, {"text": text}, None, 5])


@oddity("text")
def refusals_odd(rng: random.Random, payloads: Payloads) -> None:
    for delta in some(rng, deltas(payloads)):
        delta["refusal"] = rng.choice(["no", "", None, False, 3, ["no"], {"text": "no"}])


@oddity("text")
def think_tags(rng: random.Random, payloads: Payloads) -> None:
    for delta in some(rng, deltas(payloads)):
        if isinstance(delta.get("content"), str):
            delta["content"] = (
                rng.choice(["<think>", "</think>", "</thi", "nk>"]) + delta["content"]
            )


@oddity("text")
def surrogates_split(rng: random.Random, payloads: Payloads) -> None:
    """Halves of characters, together or alone."""
    for delta in some(rng, deltas(payloads)):
        if isinstance(delta.get("content"), str):
            half = rng.choice(["\ud83d", "\ude0a", "\ufffd", "\ud83d\ud83d"])
            delta["content"] = rng.choice([half + delta["content"], delta["content"] + half])


@oddity("text")
def stop_strings_left_in(rng: random.Random, payloads: Payloads) -> None:
    for delta in some(rng, deltas(payloads)):
        if isinstance(delta.get("content"), str):
            delta["content"] += rng.choice(["</s>", "<|im_end|>", "<|eot_id|>", "\x00", "\u2028"])


# ---------------------------------------------------------------- finish reasons


@oddity()
def finish_spelled_otherwise(rng: random.Random, payloads: Payloads) -> None:
    spellings = {
        "stop": ["STOP", "eos", "end_turn", "stop_sequence", "complete", "finished?", 1, True],
        "length": ["max_tokens", "MAX_TOKENS", "model_length", "max_output_tokens"],
        "tool_calls": ["tool_use", "function_call", "stop", "TOOL_CALLS", "end_turn", "eos"],
        "content_filter": ["safety", "SAFETY", "sensitive"],
    }
    for entry in entries(payloads):
        reason = entry.get("finish_reason")
        if isinstance(reason, str):
            entry["finish_reason"] = rng.choice(spellings.get(reason, [reason]))


@oddity()
def finish_repeated(rng: random.Random, payloads: Payloads) -> None:
    for one in [one for one in chunks(payloads) if one.get("choices")]:
        if any(c.get("finish_reason") for c in one["choices"]):
            again = [{**c, "delta": {}, "logprobs": None} for c in one["choices"]]
            payloads += [{**one, "choices": again, "usage": None}] * rng.randint(1, 2)


@oddity()
def finish_empty_before(rng: random.Random, payloads: Payloads) -> None:
    for entry in some(rng, entries(payloads)):
        if not entry.get("finish_reason"):
            entry["finish_reason"] = rng.choice(["", None, False, 0])


@oddity()
def finish_early(rng: random.Random, payloads: Payloads) -> None:
    """The reason is on every chunk of the choice."""
    reasons = {c["index"]: c["finish_reason"] for c in entries(payloads) if c.get("finish_reason")}
    for entry in some(rng, entries(payloads)):
        entry["finish_reason"] = reasons.get(entry.get("index"))


@oddity("all")
def finish_missing(rng: random.Random, payloads: Payloads) -> None:
    for entry in some(rng, entries(payloads)):
        entry["finish_reason"] = None


@oddity("all")
def finish_wrong(rng: random.Random, payloads: Payloads) -> None:
    reasons = ["stop", "length", "tool_calls", "function_call", "content_filter", "error", "abort"]
    for entry in some(rng, [c for c in entries(payloads) if c.get("finish_reason")]):
        entry["finish_reason"] = rng.choice([*reasons, "malformed_function_call", [], {}, "?"])


# ---------------------------------------------------------------- calls


@oddity()
def call_ids_repeated(rng: random.Random, payloads: Payloads) -> None:
    """Every fragment has the id, or the name, or both, of its call."""
    seen: dict[tuple[Any, Any], Any] = {}
    with_name, with_id = rng.random() < 0.5, rng.random() < 0.7
    for entry in entries(payloads):
        for call in (entry.get("delta") or {}).get("tool_calls") or []:
            opening = seen.setdefault((entry.get("index"), call.get("index")), dict(call))
            if with_id:
                call["id"] = opening.get("id")
            if with_name and isinstance(call.get("function"), dict):
                call["function"]["name"] = opening.get("function", {}).get("name")
            call["type"] = "function"


@oddity("text")
def call_ids_odd(rng: random.Random, payloads: Payloads) -> None:
    for call in some(rng, calls(payloads)):
        if "id" in call:
            call["id"] = rng.choice(["", None, 7, "same", "functions.alpha:0", "\ud83d", "a b"])


@oddity("text")
def call_index_odd(rng: random.Random, payloads: Payloads) -> None:
    for call in some(rng, calls(payloads)):
        call["index"] = rng.choice([None, "0", 0, 1, 1.0, -1, 200, True])
        if rng.random() < 0.3:
            del call["index"]


@oddity("text")
def call_names_odd(rng: random.Random, payloads: Payloads) -> None:
    for call in some(rng, calls(payloads)):
        if isinstance(call.get("function"), dict) and "name" in call["function"]:
            call["function"]["name"] = rng.choice(
                [
                    "",
                    None,
                    "al",
                    "alpha",
                    "functions.alpha",
                    "ALPHA",
                    "alpha ",
                    "no such",
                    3,
                    "\ud83d",
                ]
            )


@oddity("text")
def call_arguments_odd(rng: random.Random, payloads: Payloads) -> None:
    for call in some(rng, calls(payloads)):
        if isinstance(call.get("function"), dict):
            call["function"]["arguments"] = rng.choice(
                [
                    "",
                    None,
                    "{}",
                    "{",
                    "}",
                    "null",
                    '""',
                    {"a": 1},
                    {},
                    [],
                    5,
                    '{"a": NaN}',
                    "\ud83d",
                ]
            )


@oddity("text")
def calls_odd(rng: random.Random, payloads: Payloads) -> None:
    for delta in some(rng, deltas(payloads)):
        call = {"id": "call_y", "type": "function", "function": {"name": "beta", "arguments": "{}"}}
        odd = [None, [], {}, "", [None], [{}], [call], call, [call, call], [{"function": None}]]
        delta["tool_calls"] = copy.deepcopy(rng.choice(odd))


@oddity("text")
def legacy_calls(rng: random.Random, payloads: Payloads) -> None:
    for delta in deltas(payloads):
        if delta.get("tool_calls"):
            delta["function_call"] = delta.pop("tool_calls")[0].get("function")


@oddity("text")
def calls_are_custom(rng: random.Random, payloads: Payloads) -> None:
    for call in some(rng, calls(payloads)):
        function = call.pop("function", {})
        call["custom"] = {"input": function.get("arguments", ""), "name": function.get("name")}
        call["type"] = rng.choice(["custom", "function", None])


@oddity("text")
def calls_split_by_text(rng: random.Random, payloads: Payloads) -> None:
    for one in [one for one in chunks(payloads) if calls([one])]:
        index = one["choices"][0]["index"]
        text = copied(payloads, {"content": rng.choice(["\n", " and", ""])}, index=index)
        payloads.insert(payloads.index(one) + rng.randint(0, 1), text)


# ---------------------------------------------------------------- usage


COUNTERS = ["prompt_tokens", "completion_tokens", "total_tokens"]


@oddity()
def usage_odd(rng: random.Random, payloads: Payloads) -> None:
    for usage in usages(payloads):
        for counter in some(rng, COUNTERS):
            usage[counter] = rng.choice(
                [-1, -(10**20), 10**25, 1.5, 7.0, "7", "x", None, True, [], 0]
            )


@oddity()
def usage_details_odd(rng: random.Random, payloads: Payloads) -> None:
    paths = {
        "prompt_tokens_details": ["cached_tokens", "cache_write_tokens", "audio_tokens"],
        "completion_tokens_details": [
            *("reasoning_tokens", "audio_tokens"),
            *("accepted_prediction_tokens", "rejected_prediction_tokens"),
        ],
    }
    for usage in usages(payloads):
        for half, counters in paths.items():
            details = usage.get(half) if isinstance(usage.get(half), dict) else {}
            for counter in some(rng, counters):
                details[counter] = rng.choice([0, 1, 5, 10**6, -1, None, "3", 2.0, 10**20, {}])
            usage[half] = rng.choice([details, details, details, None, {}, [], 3])


@oddity()
def usage_lacks(rng: random.Random, payloads: Payloads) -> None:
    for usage in usages(payloads):
        for key in some(rng, list(usage)):
            del usage[key]


@oddity()
def usage_elsewhere(rng: random.Random, payloads: Payloads) -> None:
    for usage in usages(payloads)[-1:]:
        for one in chunks(payloads):
            one.pop("usage", None)
        at = rng.randrange(len(payloads))
        match rng.randrange(4):
            case 0:
                payloads[at]["x_groq"] = {"usage": usage}
            case 1:
                payloads[at]["usage"] = usage
            case 2:
                payloads.append({"usage": usage})
            case _:
                for entry in entries(payloads)[-1:]:
                    entry["usage"] = usage


@oddity()
def usage_everywhere(rng: random.Random, payloads: Payloads) -> None:
    """On every chunk, rising, falling or at random."""
    way = rng.choice(["rise", "fall", "random"])
    for number, one in enumerate(chunks(payloads)):
        count = {"rise": number, "fall": 100 - number, "random": rng.randrange(50)}[way]
        one["usage"] = dict(zip(COUNTERS, (9, count, 9 + count), strict=True))


@oddity()
def usage_nowhere(rng: random.Random, payloads: Payloads) -> None:
    for one in chunks(payloads):
        one.pop("usage", None)


@oddity()
def usage_zero(rng: random.Random, payloads: Payloads) -> None:
    for usage in usages(payloads):
        usage.update(dict.fromkeys(COUNTERS, 0))


# ---------------------------------------------------------------- logprobs

LOGPROBS = [0, -0.0, 1e-9, 0.5, 3, None, -9999.0, -9999, -12345.6, -1e300, "x", "-0.5"]
LOGPROBS += [float("nan"), float("inf"), float("-inf"), True, []]


@oddity()
def logprob_values_odd(rng: random.Random, payloads: Payloads) -> None:
    for token in some(rng, tokens(payloads)):
        token["logprob"] = rng.choice(LOGPROBS)
    for top in some(rng, alternatives(payloads)):
        top["logprob"] = rng.choice(LOGPROBS)


@oddity()
def alternatives_all_certain(rng: random.Random, payloads: Payloads) -> None:
    for top in alternatives(payloads):
        top["logprob"] = 0.0


@oddity()
def alternatives_unsorted(rng: random.Random, payloads: Payloads) -> None:
    for token in tokens(payloads):
        rng.shuffle(token.get("top_logprobs") or [])


@oddity()
def alternatives_repeated(rng: random.Random, payloads: Payloads) -> None:
    for token in some(rng, tokens(payloads)):
        top = token.get("top_logprobs") or []
        if top:
            top.insert(rng.randint(0, len(top)), dict(rng.choice(top)))


@oddity()
def alternatives_more_than_asked(rng: random.Random, payloads: Payloads) -> None:
    for token in some(rng, tokens(payloads)):
        top = token.setdefault("top_logprobs", []) or []
        for number in range(rng.randint(1, 25)):
            text = f"?{number}"
            top.append({"token": text, "logprob": -30.0 - number, "bytes": list(text.encode())})
        token["top_logprobs"] = top


@oddity()
def alternatives_without_the_chosen(rng: random.Random, payloads: Payloads) -> None:
    for token in some(rng, tokens(payloads)):
        top = token.get("top_logprobs") or []
        token["top_logprobs"] = [t for t in top if t.get("token") != token.get("token")]


@oddity()
def chosen_disagrees(rng: random.Random, payloads: Payloads) -> None:
    """As where one value is processed and the other raw."""
    for token in some(rng, tokens(payloads)):
        token["logprob"] = -rng.random() * rng.choice([0.01, 5, 50])


@oddity()
def alternatives_odd(rng: random.Random, payloads: Payloads) -> None:
    odd = [None, [], {}, "x", [None], [{}], [{"token": None, "logprob": None}], [{"token": "a"}]]
    for token in some(rng, tokens(payloads)):
        token["top_logprobs"] = copy.deepcopy(rng.choice(odd))
        if rng.random() < 0.2:
            del token["top_logprobs"]


@oddity()
def bytes_missing(rng: random.Random, payloads: Payloads) -> None:
    for one in some(rng, [*tokens(payloads), *alternatives(payloads)]):
        if rng.random() < 0.5:
            one.pop("bytes", None)
        else:
            one["bytes"] = None


@oddity("logprobs")
def bytes_wrong(rng: random.Random, payloads: Payloads) -> None:
    for one in some(rng, [*tokens(payloads), *alternatives(payloads)]):
        one["bytes"] = rng.choice(
            [[], [1, 2], [256], [-1], ["97"], "abc", [True], [0xF0], {}, [1.0]]
        )


@oddity()
def tokens_in_their_raw_spelling(rng: random.Random, payloads: Payloads) -> None:
    """Byte-level BPE and SentencePiece as they are in the vocabulary; the bytes are right."""
    for one in [*tokens(payloads), *alternatives(payloads)]:
        if isinstance(one.get("token"), str):
            one["token"] = one["token"].replace(" ", rng.choice(["Ġ", "▁"])).replace("\n", "Ċ")


@oddity("logprobs")
def tokens_odd(rng: random.Random, payloads: Payloads) -> None:
    for one in some(rng, [*tokens(payloads), *alternatives(payloads)]):
        one["token"] = rng.choice(["", None, 7, "token_id:42", "\ud83d", "\ufffd", "<|im_end|>"])


@oddity()
def special_tokens_reported(rng: random.Random, payloads: Payloads) -> None:
    """The end of the turn, on the chunk with the finish reason or before."""
    for entry in some(rng, entries(payloads)):
        special = _token("<|im_end|>")
        if rng.random() < 0.5:
            special["bytes"] = rng.choice([[], None])
        held = entry.get("logprobs") if isinstance(entry.get("logprobs"), dict) else {}
        entry["logprobs"] = {**held, "content": [*(held.get("content") or []), special]}


@oddity("logprobs")
def logprobs_missing_somewhere(rng: random.Random, payloads: Payloads) -> None:
    for entry in some(rng, entries(payloads)):
        entry["logprobs"] = rng.choice([None, {}, {"content": None}, {"content": []}])


@oddity()
def logprobs_before_their_text(rng: random.Random, payloads: Payloads) -> None:
    """As while a character is not complete: the tokens come first, alone."""
    for one in [one for one in chunks(payloads) if tokens([one])]:
        entry = one["choices"][0]
        early = copied(payloads, {"content": ""}, index=entry["index"])
        early["choices"][0]["logprobs"] = entry["logprobs"]
        if rng.random() < 0.5:
            entry["logprobs"] = None
            payloads.insert(payloads.index(one), early)


@oddity("logprobs")
def logprobs_after_their_text(rng: random.Random, payloads: Payloads) -> None:
    held: dict[Any, list[Any]] = {}
    for entry in entries(payloads):
        found = entry.get("logprobs")
        mine = held.setdefault(entry.get("index"), [])
        if isinstance(found, dict) and found.get("content"):
            mine += found["content"]
            late = rng.random() < 0.5
            entry["logprobs"] = None if late else {"content": list(mine), "refusal": None}
            if not late:
                mine.clear()
        elif entry.get("finish_reason") and mine:
            entry["logprobs"] = {"content": list(mine), "refusal": None}


@oddity()
def logprobs_with_everything_so_far(rng: random.Random, payloads: Payloads) -> None:
    so_far: dict[Any, list[Any]] = {}
    for entry in entries(payloads):
        found = entry.get("logprobs")
        if isinstance(found, dict) and found.get("content"):
            mine = so_far.setdefault(entry.get("index"), [])
            mine += found["content"]
            entry["logprobs"] = {"content": list(mine), "refusal": None}


@oddity()
def logprobs_unasked(rng: random.Random, payloads: Payloads) -> None:
    for entry in some(rng, entries(payloads)):
        entry["logprobs"] = {"content": [_token("x")], "refusal": None}


@oddity()
def logprobs_in_the_other_list(rng: random.Random, payloads: Payloads) -> None:
    for entry in entries(payloads):
        found = entry.get("logprobs")
        if isinstance(found, dict):
            found["content"], found["refusal"] = found.get("refusal"), found.get("content")


@oddity()
def logprobs_on_other_deltas(rng: random.Random, payloads: Payloads) -> None:
    """Tokens of thoughts and of calls."""
    for entry in entries(payloads):
        delta = entry.get("delta") or {}
        if delta.get("reasoning_content") or delta.get("tool_calls"):
            entry["logprobs"] = {"content": [_token("hm")], "refusal": None}


@oddity()
def logprobs_as_lists(rng: random.Random, payloads: Payloads) -> None:
    """The form of the text completions."""
    for entry in entries(payloads):
        found = entry.get("logprobs")
        listed = (found.get("content") or []) if isinstance(found, dict) else []
        if listed and all(isinstance(one, dict) for one in listed):
            entry["logprobs"] = {
                "tokens": [one.get("token") for one in listed],
                "token_logprobs": [rng.choice([one.get("logprob"), None]) for one in listed],
                "top_logprobs": [
                    {str(t.get("token")): t.get("logprob") for t in one.get("top_logprobs") or []}
                    for one in listed
                ],
                "text_offset": [0] * len(listed),
            }


@oddity("logprobs")
def logprobs_odd(rng: random.Random, payloads: Payloads) -> None:
    odd = [[], {}, "x", 3, True, {"content": "x"}, {"content": {}}, {"content": [None, 3, []]}]
    odd += [
        {"content": [{}]},
        {"refusal": [{}]},
        [{}],
        {"token_logprobs": [None], "tokens": [None]},
    ]
    for entry in some(rng, entries(payloads)):
        entry["logprobs"] = copy.deepcopy(rng.choice(odd))


def _token(text: str) -> dict[str, Any]:
    return {"token": text, "logprob": -0.5, "bytes": list(text.encode()), "top_logprobs": []}


# ---------------------------------------------------------------- bytes


@dataclass(frozen=True)
class Body:
    """How the payloads are spelled: the content type that is claimed, and the bytes."""

    content_type: str
    data: bytes


SPELLINGS = (
    *("plain", "plain", "plain", "crlf", "cr", "comments", "bom", "several lines", "escaped"),
    *("no space", "event names", "no done", "done twice", "as json", "as lines", "unfinished"),
)


def spelled(rng: random.Random, payloads: Payloads, how: str) -> Body:
    escape = how == "escaped" or rng.random() < 0.5
    texts = [
        one if isinstance(one, str) else json.dumps(one, ensure_ascii=escape or _has_surrogate(one))
        for one in (chunks(payloads) if how == "as lines" else payloads)
    ]
    if how == "as json":
        return Body("application/json", json.dumps(chunks(payloads)).encode())
    if how == "as lines":
        return Body("application/x-ndjson", "".join(text + "\n" for text in texts).encode())
    if how != "no done":
        texts += ["[DONE]"] * (2 if how == "done twice" else 1)
    frames = [_frame(rng, text, how) for text in texts]
    data = b"".join(frames)
    if how == "bom":
        data = b"\xef\xbb\xbf" + data
    if how == "unfinished":
        data = data.rstrip(b"\n")
    if how in ("crlf", "cr"):
        data = data.replace(b"\n", b"\r\n" if how == "crlf" else b"\r")
    return Body("text/event-stream", data)


def _frame(rng: random.Random, text: str, how: str) -> bytes:
    data = text.encode("utf-8", "replace")
    start = b"data:" if how == "no space" else b"data: "
    if how == "event names":
        start = b"event: message\nid: 7\nretry: 10\n" + start
    if how == "comments" and rng.random() < 0.5:
        start = b": ping\n\n:\n" + start
    if how == "several lines" and text.startswith("{"):
        data = b"{\ndata: " + data[1:]
    return start + data + b"\n\n"


def _has_surrogate(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False
