"""Systematic mutants of good streams: each frame dropped, repeated, moved; each field dropped,
nulled, retyped, renamed; and for each which rule should see it, from the contract alone.
"""

import copy
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from rejoinder.check.exchange import DialectName, Exchange
from tests.check.evidence import payloads, with_response
from tests.check.ideal import sse


class Mutant(NamedTuple):
    operation: str
    """drop, repeat, swap, null, retype, rename."""
    place: str
    """`frame:KIND`, or a path without positions."""
    value: Any
    """What stood there."""
    kind: str
    """The kind of the frame."""
    body: bytes


def kind_of(payload: Any) -> str:
    """What a frame is for: role, text, opening, finish, final (a finish with usage), usage …"""
    if payload == "[DONE]":
        return "done"
    if not payload["choices"]:
        return "moderation" if payload.get("moderation") else "usage"
    choice = payload["choices"][0]
    delta = choice["delta"]
    if choice.get("finish_reason"):
        return "final" if payload.get("usage") and "prompt_tokens" in payload["usage"] else "finish"
    if "role" in delta:
        return "role"
    if "tool_calls" in delta:
        return "opening" if "id" in delta["tool_calls"][0] else "fragment"
    if "function_call" in delta:
        return "legacy"
    return "reasoning" if "reasoning_content" in delta else "text"


def mutants(x: Exchange) -> Iterator[Mutant]:
    """All of one stream; fields only once for each path, kind of frame and type."""
    found = payloads(x)
    yield from _of_frames(found)
    seen: set[tuple[str, str, str]] = set()
    for position, payload in enumerate(found[:-1]):
        kind = kind_of(payload)
        for steps in _paths(payload):
            value = _get(payload, steps)
            place = ".".join(step for step in steps if isinstance(step, str))
            key = (place, kind, type(value).__name__ + str(value == ""))
            if key in seen:
                continue
            seen.add(key)
            for operation, changed in _of_field(payload, steps):
                rest = [*found[:position], changed, *found[position + 1 :]]
                yield Mutant(operation, place, value, kind, _bytes(rest))


def _of_frames(found: list[Any]) -> Iterator[Mutant]:
    for position, payload in enumerate(found):
        place = f"frame:{kind_of(payload)}"
        changed = {
            "drop": found[:position] + found[position + 1 :],
            "repeat": [*found[: position + 1], payload, *found[position + 1 :]],
        }
        if position + 1 < len(found):
            following = found[position + 1]
            swapped = [*found[:position], following, payload, *found[position + 2 :]]
            cross = "" if _index(payload) == _index(following) else "cross "
            changed[f"{cross}swap with {kind_of(following)}"] = swapped
        for operation, frames in changed.items():
            yield Mutant(operation, place, payload, kind_of(payload), _bytes(frames))


def _index(payload: Any) -> Any:
    return payload["choices"][0]["index"] if payload != "[DONE]" and payload["choices"] else None


def _bytes(frames: list[Any]) -> bytes:
    return b"".join(sse(frame) for frame in frames)


def _paths(value: Any, steps: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value)
    if not isinstance(value, dict | list):
        return
    for key, child in children:
        if isinstance(key, str):
            yield (*steps, key)
        if isinstance(child, dict | list):
            yield from _paths(child, (*steps, key))


def _get(value: Any, steps: tuple[Any, ...]) -> Any:
    for step in steps:
        value = value[step]
    return value


def _retyped(value: Any) -> Any:
    match value:
        case bool():
            return "x"
        case None:
            return 1
        case str():
            return 7
        case int():
            return f"{value}"
        case float():
            return f"{value}"
        case list():
            return {"x": 1}
        case _:
            return [1]


def _of_field(payload: Any, steps: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    *way, last = steps
    value = _get(payload, steps)

    def changed() -> tuple[Any, Any]:
        whole = copy.deepcopy(payload)
        return whole, _get(whole, tuple(way))

    whole, parent = changed()
    del parent[last]
    yield "drop", whole
    whole, parent = changed()
    parent[f"{last}_x"] = parent.pop(last)
    yield "rename", whole
    whole, parent = changed()
    parent[last] = _retyped(value)
    yield "retype", whole
    if value is not None:
        whole, parent = changed()
        parent[last] = None
        yield "null", whole


def mutated(x: Exchange, mutant: Mutant) -> Exchange:
    return with_response(x, body=mutant.body)


# ---------------------------------------------------------------- which rule should see it

LEGAL = frozenset({"legal"})
"""Not a fault: the contract allows what the mutant says."""

Row = tuple[str, str, str]
"""A pattern over `operation place kind empty|full`, and the rules of each dialect."""


def wanted(mutant: Mutant, dialect: DialectName, stream: str) -> frozenset[str]:
    """The rules of which at least one must see the mutant."""
    fill = "empty" if mutant.value in (None, "", [], {}) else "full"
    text = f"{mutant.operation} {mutant.place} {mutant.kind} {fill} {stream}"
    for pattern, rules_o, rules_d in TABLE:
        rules = rules_o if dialect == "O" else rules_d
        if rules and re.fullmatch(pattern, text):
            return frozenset(rules.split())
    raise AssertionError(f"no row for: {text} = {json.dumps(mutant.value)[:60]}")


GONE = r"(drop|rename)"

TABLE: list[Row] = [
    # ------------------------------------------------------------ frames
    (r"drop frame:done .*", "R7", "R7"),
    (r"repeat frame:done .*", "R7", "R7"),
    (r"(cross )?swap with done .*", "R7", "R7"),
    (r"drop frame:role .*", "R102", "R102"),
    (r"repeat frame:role .*", "R103", "R103"),
    (r"drop frame:(text|reasoning) .*", "R86 R166 R199", "R86 R166"),
    (r"repeat frame:(text|reasoning) .*", "R86 R166 R199", "R86 R166"),
    (r"drop frame:opening .*", "R134", "R134"),
    (r"repeat frame:opening .*", "R135", "R135"),
    (r"(drop|repeat) frame:fragment .*", "R149 R145 R144", "R149"),
    (r"(drop|repeat) frame:legacy .*", "R150 R145", ""),
    (r"drop frame:(finish|final) .*", "R107", "R107"),
    (r"repeat frame:(finish|final) .*", "R107", "R107"),
    (r"drop frame:moderation .*", "R188", ""),
    (r"repeat frame:moderation .*", "R188", ""),
    (r"drop frame:usage .*", "R124", ""),
    (r"repeat frame:usage .*", "R125", ""),
    (r"cross swap with role frame:role .*", "R100", "R100"),
    (
        r"cross swap with (role|text|reasoning|finish) frame:(role|text|reasoning|finish) .*",
        "legal",
        "legal",
    ),
    (r"cross swap with final frame:finish .*", "", "R127"),
    (r"swap with (text|reasoning|opening|legacy) frame:role .*", "R102", "R102"),
    (
        r"swap with (finish|final) frame:(text|reasoning|fragment|legacy|role|opening) .*",
        "R108",
        "R108",
    ),
    (r"swap with (text|opening) frame:reasoning .*", "", "R113"),
    (r"swap with reasoning frame:reasoning .*", "", "R86 R166"),
    (r"swap with text frame:text .*", "R86 R166 R199", "R86 R166"),
    (r"swap with fragment frame:opening .*", "R134", "R134"),
    (r"swap with opening frame:fragment .*", "R137", "R137"),
    (r"swap with fragment frame:fragment .*", "R149 R145 R144", "R149"),
    (r"swap with legacy frame:legacy .*", "R150 R145", ""),
    (r"cross swap with (moderation|usage) frame:finish .*", "R191 R124", ""),
    (r"swap with usage frame:moderation .*", "R192", ""),
    # ------------------------------------------------------------ null
    (r"null choices\.finish_reason (finish|final) .*", "R107", "R89"),
    (r"null (id|object|created|model|choices) .*", "R90", "R89"),
    (
        r"null (system_fingerprint|choices\.delta\.(role|tool_calls.*|function_call.*)) .*",
        "R93",
        "R89",
    ),
    (r"null usage usage .*", "R124", ""),
    (r"null usage .*", "R93", "R89"),
    (r"null usage\..*", "R93", "R89"),
    (r"null choices\.(index|delta) .*", "R92", "R89"),
    (r"null service_tier .*", "legal", "R89"),
    (r"null choices\.delta\.content \w+ empty .*", "legal", "R89"),
    (r"null choices\.delta\.content .*", "R86 R164 R199", "R89"),
    (r"null choices\.delta\.reasoning_content .*", "", "R89"),
    (r"null moderation moderation .*", "R188", ""),
    (r"null moderation\.(input|output) .*", "R189", ""),
    (r"null moderation\.\w+\.results\.(categories|category_\w+)\.\w+ .*", "R195 R196", ""),
    (r"null moderation\.\w+\.results\.\w+ .*", "R194", ""),
    (r"null moderation\.\w+\.\w+ .*", "R193", ""),
    (r"null choices\.logprobs role .*", "legal", "legal"),
    (r"null choices\.logprobs .*", "R164", "R89"),
    (r"null choices\.logprobs\.content role .*", "legal", "legal"),
    (r"null choices\.logprobs\.content .*", "R164", "R89"),
    (r"null choices\.logprobs\.content\.(top_logprobs\.)?bytes .*", "legal", "R89"),
    (r"null choices\.logprobs\.content\.logprob .*", "R92", "R154"),
    (r"null choices\.logprobs\.content\..*", "R92", "R89"),
    # ------------------------------------------------------------ the head
    (rf"{GONE} (id|created) .*", "R90", "R97"),
    (r"drop object .*", "R90", "legal"),
    (r"rename object .*", "R90", "R85"),
    (rf"{GONE} (model|choices) .*", "R90", "R88"),
    (r"retype id .*", "R87", "R87"),
    (r"retype object .*", "R94", "R94"),
    (r"retype created .*", "R72", "R72"),
    (r"retype (model|choices) .*", "R90", "R88"),
    (r"drop (system_fingerprint|service_tier) .*", "legal", "legal"),
    (r"rename (system_fingerprint|service_tier) .*", "R84", "R85"),
    (r"retype system_fingerprint .*", "R83", ""),
    (r"retype service_tier .*", "R81", "R82"),
    # ------------------------------------------------------------ choices
    (rf"({GONE}|retype) choices\.(index|delta) .*", "R91", "R88"),
    (rf"{GONE} choices\.finish_reason (finish|final) .*", "R91", "R107"),
    (rf"{GONE} choices\.finish_reason .*", "R91", ""),
    (r"retype choices\.finish_reason .*", "R91", "R71"),
    (rf"({GONE}|retype) choices\.delta\.role .*", "R102", "R102"),
    (r"drop choices\.delta\.content \w+ empty .*", "legal", "legal"),
    (r"drop choices\.delta\.(content|reasoning_content) .*", "R86 R164 R199", "R86 R166"),
    (r"rename choices\.delta\.\w+ .*", "R84", "R85"),
    (r"retype choices\.delta\.(content|refusal) .*", "R91", "R88"),
    (r"retype choices\.delta\.reasoning_content .*", "", "R88"),
    (r"drop choices\.delta\.refusal .*", "legal", ""),
    (r"drop choices\.delta\.tool_calls opening .*", "R134", "R134"),
    (r"drop choices\.delta\.tool_calls .*", "R149 R145 R144", "R149"),
    (r"retype choices\.delta\.tool_calls .*", "R132", "R132"),
    (rf"({GONE}|retype) choices\.delta\.tool_calls\.index .*", "R132", "R132"),
    (rf"({GONE}|retype) choices\.delta\.tool_calls\.(id|type|function) opening .*", "R134", "R134"),
    (rf"({GONE}|retype) choices\.delta\.tool_calls\.function\.name .*", "R134", "R134"),
    (r"retype choices\.delta\.tool_calls\.function\.arguments opening .*", "R134", "R134"),
    (r"drop choices\.delta\.tool_calls\.function\.arguments opening .*", "R136", "legal"),
    (r"rename choices\.delta\.tool_calls\.function\.arguments opening .*", "R136", "R85"),
    (
        rf"({GONE}|retype) choices\.delta\.tool_calls\.function(\.arguments)? fragment .*",
        "R135",
        "R135",
    ),
    (r"drop choices\.delta\.function_call .*", "R150 R145", ""),
    (r"retype choices\.delta\.function_call .*", "R150", ""),
    (r"rename choices\.delta\.function_call\.\w+ .*", "R84", ""),
    (r"drop choices\.delta\.function_call\.arguments \w+ empty .*", "legal", ""),
    (r"(drop|retype) choices\.delta\.function_call\.\w+ .*", "R150", ""),
    # ------------------------------------------------------------ usage
    (rf"{GONE} usage usage .*", "R124", ""),
    (r"rename usage \w+ full .*", "", "R127 R129"),
    (r"drop usage \w+ full .*", "", "R127 R129"),
    (rf"{GONE} usage .*", "R126", ""),
    (r"retype usage .*", "R172", "R172"),
    (rf"{GONE} usage\.(prompt|completion|total)_tokens .*", "R173", "R174"),
    (rf"{GONE} usage\.estimated_cost .*", "", "legal"),
    (r"retype usage\.estimated_cost .*", "", "R181"),
    (rf"{GONE} usage\.\w+_details(\.\w+)? .*", "R180", "legal"),
    (r"retype usage\..*", "R172", "R172"),
    # ------------------------------------------------------------ moderation
    (rf"({GONE}|retype) moderation .*", "R188", ""),
    (rf"({GONE}|retype) moderation\.(input|output) .*", "R189", ""),
    (
        rf"({GONE}|retype) moderation\.\w+\.results\.category_applied_input_types\.\w+ .*",
        "R195 R196",
        "",
    ),
    (rf"({GONE}|retype) moderation\.\w+\.results\.(categories|category_\w+)\.\w+ .*", "R195", ""),
    (rf"({GONE}|retype) moderation\.\w+\.results\.\w+ .*", "R194", ""),
    (rf"({GONE}|retype) moderation\.\w+\.\w+ .*", "R193", ""),
    # ------------------------------------------------------------ logprobs
    (r"drop choices\.logprobs \w+ empty .*", "legal", "legal"),
    (r"drop choices\.logprobs role .*", "legal", "legal"),
    (r"drop choices\.logprobs .*", "R164", "R166"),
    (r"rename choices\.logprobs .*", "R84", "R85"),
    (r"retype choices\.logprobs \w+ \w+ logprobs", "R152", "R88"),
    (r"retype choices\.logprobs .*", "R151", "R88"),
    (rf"({GONE}|retype) choices\.logprobs\.(content|refusal) .*", "R152", "R88 R85 R166"),
    (rf"{GONE} choices\.logprobs\.content\.(token|logprob) .*", "R153", "R154"),
    (r"drop choices\.logprobs\.content\.bytes .*", "R153", "legal"),
    (r"rename choices\.logprobs\.content\.bytes .*", "R153", "R85"),
    (rf"{GONE} choices\.logprobs\.content\.(top_logprobs|top_logprobs\.\w+) .*", "R153", ""),
    (r"retype choices\.logprobs\.content\.(top_logprobs\.)?bytes .*", "R162", "R162"),
    (r"retype choices\.logprobs\.content\..*", "R153", "R154"),
]
