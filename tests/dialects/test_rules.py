"""The contract's request rules R13–R66, each probed as its "check" column says."""

import json
from typing import Any

import pytest

from rejoinder.dialects import DIALECTS, RequestPolicy
from rejoinder.errors import ChatError

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f"}}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
ANSWER = {"role": "tool", "tool_call_id": "c1", "content": "x"}
TEXT = {"type": "text", "text": "a"}
REFUSAL = {"type": "refusal", "refusal": "no"}
STRICT = {"name": "x", "strict": True}

ABSENT = object()
OK = (200, None, None)

NEED_A_MODEL = {
    "R31": "the size of the vocabulary",
    "R33": "whether the model reasons",
    "R39": "the strict subset is the backend's",
    "R60": "the length of the prompt",
    "R61": "the list of models",
}


def bad(param: str | None, code: str | None, status: int = 400) -> tuple[Any, ...]:
    return (status, param, code)


def bad_d(param: str) -> tuple[Any, ...]:
    return (422, param, None)


def messages(*given: Any) -> dict[str, Any]:
    return {"messages": list(given)}


def tool(**fields: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": fields}]}


def schema(**fields: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": fields}}


OPEN, DEEP = "openai", "deepinfra"
TYPE, VALUE = "invalid_type", "invalid_value"
UNKNOWN, MISSING = "unknown_parameter", "missing_required_parameter"
IMAX, IMIN = "integer_above_max_value", "integer_below_min_value"
DMAX, DMIN = "decimal_above_max_value", "decimal_below_min_value"
SLEN, ALEN, EMPTY = "string_above_max_length", "array_above_max_length", "empty_array"
MANY = "object_above_max_properties"

EXTRAS = {
    "top_k": 1,
    "min_p": 0,
    "repetition_penalty": 1,
    "reasoning": {},
    "chat_template_kwargs": {},
    "continue_final_message": True,
    "stop_token_ids": [],
    "cache_control": {},
}

PROBES: list[tuple[str, str, dict[str, Any], tuple[Any, ...]]] = [
    ("R13", OPEN, {"model": ABSENT}, bad("model", MISSING)),
    ("R14", OPEN, {"messages": ABSENT}, bad("messages", MISSING)),
    ("R14", OPEN, {"messages": []}, bad("messages", EMPTY)),
    ("R15", OPEN, {"foo": 1}, bad("foo", UNKNOWN)),
    ("R16", DEEP, {"foo": 1}, OK),
    ("R18", OPEN, {"n": 0}, bad("n", IMIN)),
    ("R18", OPEN, {"n": 129}, bad("n", IMAX)),
    ("R18", OPEN, {"n": 130}, bad("n", IMAX)),
    ("R19", DEEP, {"n": 0}, bad_d("n")),
    ("R19", DEEP, {"n": 5}, bad_d("n")),
    *[("R20", OPEN, {"temperature": t}, OK) for t in (0, 2)],
    ("R20", OPEN, {"temperature": -0.1}, bad("temperature", DMIN)),
    ("R20", OPEN, {"temperature": 2.1}, bad("temperature", DMAX)),
    *[("R20", OPEN, {"top_p": p}, OK) for p in (0, 1)],
    ("R20", OPEN, {"top_p": 1.1}, bad("top_p", DMAX)),
    ("R21", DEEP, {"top_p": 0}, bad_d("top_p")),
    ("R21", DEEP, {"top_p": 1}, OK),
    ("R21", DEEP, {"temperature": 0}, OK),
    ("R21", DEEP, {"temperature": 2}, OK),
    ("R21", DEEP, {"temperature": 2.1}, bad_d("temperature")),
    *[("R22", d, {"presence_penalty": p}, OK) for d in (OPEN, DEEP) for p in (2, -2)],
    ("R22", OPEN, {"presence_penalty": 2.01}, bad("presence_penalty", DMAX)),
    ("R22", OPEN, {"frequency_penalty": -2.01}, bad("frequency_penalty", DMIN)),
    ("R22", DEEP, {"frequency_penalty": 2.01}, bad_d("frequency_penalty")),
    *[("R23", DEEP, {"top_k": k}, OK) for k in (0, 999)],
    *[("R23", DEEP, {"top_k": k}, bad_d("top_k")) for k in (-1, 1000)],
    *[("R23", DEEP, {"min_p": p}, bad_d("min_p")) for p in (-0.1, 1.1)],
    *[("R23", DEEP, {"repetition_penalty": p}, bad_d("repetition_penalty")) for p in (0, 5.1)],
    *[("R23", DEEP, {"max_tokens": t}, OK) for t in (0, 1_000_000)],
    *[("R23", DEEP, {"max_tokens": t}, bad_d("max_tokens")) for t in (-1, 1_000_001)],
    *[("R24", OPEN, {name: value}, bad(name, UNKNOWN)) for name, value in EXTRAS.items()],
    *[("R25", OPEN, {"stop": stop}, OK) for stop in ("a", None, ["a"], ["a"] * 4)],
    ("R25", OPEN, {"stop": ["a"] * 5}, bad("stop", ALEN)),
    ("R26", DEEP, {"stop": ["a"] * 16}, OK),
    ("R26", DEEP, {"stop": ["a"] * 17}, bad_d("stop")),
    ("R26", DEEP, {"stop_token_ids": [1] * 16}, OK),
    ("R26", DEEP, {"stop_token_ids": [1] * 17}, bad_d("stop_token_ids")),
    ("R27", OPEN, {"top_logprobs": 1}, bad("top_logprobs", None)),
    ("R27", OPEN, {"logprobs": True, "top_logprobs": 21}, bad("top_logprobs", IMAX)),
    *[("R27", OPEN, {"logprobs": True, "top_logprobs": n}, OK) for n in (0, 20)],
    ("R28", OPEN, {"stream_options": {}}, bad("stream_options", None)),
    ("R29", DEEP, {"stream_options": {"include_usage": True}}, OK),
    ("R30", OPEN, {"logit_bias": {"a": 1}}, bad("logit_bias", None)),
    ("R30", OPEN, {"logit_bias": {"1": 101}}, bad("logit_bias", DMAX)),
    ("R30", OPEN, {"logit_bias": {"1": -100}}, OK),
    (
        "R32",
        OPEN,
        {"max_tokens": 1, "max_completion_tokens": 1},
        bad("max_tokens", "invalid_parameter_combination"),
    ),
    ("R34", OPEN, {"metadata": {str(i): "" for i in range(17)}}, bad("metadata", MANY)),
    ("R34", OPEN, {"metadata": {"k" * 65: ""}}, bad("metadata." + "k" * 65, SLEN)),
    ("R34", OPEN, {"metadata": {"k": "v" * 513}}, bad("metadata.k", SLEN)),
    ("R34", OPEN, {"metadata": {"k": 1}}, bad("metadata.k", TYPE)),
    *[("R35", OPEN, {"tool_choice": c}, bad("tool_choice", None)) for c in ("auto", "none")],
    ("R35", OPEN, {"parallel_tool_calls": False}, bad("parallel_tool_calls", None)),
    (
        "R36",
        OPEN,
        {"tools": [TOOL], "parallel_tool_calls": None},
        bad("parallel_tool_calls", TYPE),
    ),
    (
        "R37",
        OPEN,
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        bad("tool_choice", VALUE),
    ),
    ("R38", OPEN, tool(name="a b"), bad("tools[0].function.name", VALUE)),
    ("R38", OPEN, tool(name="x" * 65), bad("tools[0].function.name", SLEN)),
    ("R38", OPEN, tool(name="x" * 64), OK),
    ("R40", OPEN, {"response_format": {"type": "xml"}}, bad("response_format.type", VALUE)),
    (
        "R40",
        OPEN,
        {"response_format": {"type": "regex", "regex": "a"}},
        bad("response_format.type", VALUE),
    ),
    ("R41", DEEP, {"response_format": {"type": "regex", "regex": "a"}}, OK),
    ("R41", DEEP, {"response_format": {"type": "regex"}}, bad_d("response_format.regex")),
    ("R42", OPEN, {"response_format": {"type": "json_object"}}, bad("messages", None)),
    ("R43", DEEP, {"response_format": {"type": "json_object"}}, OK),
    ("R44", OPEN, schema(schema={}), bad("response_format.json_schema.name", MISSING)),
    ("R44", OPEN, schema(name="a b"), bad("response_format.json_schema.name", VALUE)),
    ("R44", OPEN, schema(name="x" * 65), bad("response_format.json_schema.name", SLEN)),
    ("R45", OPEN, messages(USER, ANSWER), bad("messages.[1].role", None)),
    ("R46", OPEN, messages(USER, CALLING, USER), bad("messages.[2].role", None)),
    (
        "R47",
        OPEN,
        messages(USER, {**CALLING, "tool_calls": []}),
        bad("messages[1].tool_calls", EMPTY),
    ),
    ("R48", OPEN, messages(USER, {"role": "assistant"}), bad("messages[1].content", MISSING)),
    ("R48", DEEP, messages(USER, {"role": "assistant"}), OK),
    ("R49", OPEN, messages({"role": "assistant", "content": [TEXT, TEXT]}), OK),
    ("R49", OPEN, messages({"role": "assistant", "content": [REFUSAL]}), OK),
    (
        "R49",
        OPEN,
        messages({"role": "assistant", "content": [REFUSAL, REFUSAL]}),
        bad("messages[0].content[0]", VALUE),
    ),
    *[
        (
            "R49",
            OPEN,
            messages({"role": r, "content": [REFUSAL]}),
            bad("messages[0].content[0].type", VALUE),
        )
        for r in ("system", "developer", "user")
    ],
    ("R50", DEEP, messages({"role": "developer", "content": "x"}), bad_d("messages.0.role")),
    (
        "R50",
        DEEP,
        messages({"role": "function", "name": "f", "content": ""}),
        bad_d("messages.0.role"),
    ),
    ("R51", OPEN, messages(USER, {"role": "developer", "content": [TEXT], "name": "n"}), OK),
    (
        "R52",
        OPEN,
        messages({"role": "tool", "content": "x"}),
        bad("messages[0].tool_call_id", MISSING),
    ),
    (
        "R52",
        OPEN,
        messages({"role": "tool", "tool_call_id": "c"}),
        bad("messages[0].content", MISSING),
    ),
    ("R52", DEEP, messages({"role": "tool", "content": "x"}), bad_d("messages.0.tool_call_id")),
    ("R52", DEEP, messages({"role": "tool", "tool_call_id": "c"}), bad_d("messages.0.content")),
    ("R53", OPEN, {"moderation": {}}, bad("moderation.model", MISSING)),
    ("R53", OPEN, {"moderation": None}, OK),
    ("R53", OPEN, {"moderation": {"model": "x", "policy": {"input": None, "output": None}}}, OK),
    (
        "R53",
        OPEN,
        {"moderation": {"model": "x", "policy": {"output": {"mode": "x"}}}},
        bad("moderation.policy.output.mode", VALUE),
    ),
    ("R54", OPEN, {"service_tier": "gold"}, bad("service_tier", VALUE)),
    ("R54", OPEN, {"service_tier": None}, OK),
    ("R55", DEEP, {"service_tier": "gold"}, OK),
    ("R56", OPEN, {"reasoning_effort": "minimal"}, OK),
    ("R56", OPEN, {"reasoning_effort": "ultra"}, bad("reasoning_effort", VALUE)),
    ("R56", DEEP, {"reasoning_effort": "ultra"}, bad_d("reasoning_effort")),
    ("R57", DEEP, {"reasoning": {"enabled": False}}, OK),
    ("R58", OPEN, {"prediction": {"type": "x", "content": "a"}}, bad("prediction.type", VALUE)),
    (
        "R58",
        OPEN,
        {"prediction": {"type": "content", "content": []}},
        bad("prediction.content", EMPTY),
    ),
    ("R58", OPEN, {"prediction": {"type": "content", "content": [TEXT]}}, OK),
    ("R59", OPEN, {"functions": []}, bad("functions", EMPTY)),
    ("R59", OPEN, {"functions": [{"name": f"f{i}"} for i in range(129)]}, bad("functions", ALEN)),
    (
        "R59",
        OPEN,
        {"functions": [{"name": "f", "strict": True}]},
        bad("functions[0].strict", UNKNOWN),
    ),
    (
        "R59",
        OPEN,
        {"functions": [{"name": "f"}], "function_call": "x"},
        bad("function_call", VALUE),
    ),
    *[
        ("R59", OPEN, {"functions": [{"name": "f"}], "function_call": c}, OK)
        for c in ("none", "auto", {"name": "f"})
    ],
    ("R62", DEEP, messages({**USER, "cache_control": {"any": ["thing"]}}), OK),
    ("R62", DEEP, {"tools": [{**TOOL, "cache_control": None}]}, OK),
    (
        "R62",
        OPEN,
        messages({**USER, "cache_control": {}}),
        bad("messages[0].cache_control", UNKNOWN),
    ),
    (
        "R62",
        OPEN,
        {"tools": [{**TOOL, "cache_control": {}}]},
        bad("tools[0].cache_control", UNKNOWN),
    ),
    ("R63", OPEN, {"safety_identifier": "u" * 65}, bad("safety_identifier", SLEN)),
    ("R63", OPEN, {"prompt_cache_options": {"mode": "x"}}, bad("prompt_cache_options.mode", VALUE)),
    ("R63", OPEN, {"prompt_cache_options": {"ttl": "1y"}}, bad("prompt_cache_options.ttl", VALUE)),
    ("R63", OPEN, {"prompt_cache_retention": "1y"}, bad("prompt_cache_retention", VALUE)),
    ("R63", OPEN, {"verbosity": "loud"}, bad("verbosity", VALUE)),
    ("R64", OPEN, {"temperature": None, "n": None, "stop": None, "logit_bias": None}, OK),
    ("R64", DEEP, {"stop": None, "seed": None, "tools": None, "reasoning": None}, OK),
    *[
        ("R65", DEEP, {name: None}, bad_d(name))
        for name in ("temperature", "top_p", "n", "stream", "presence_penalty", "frequency_penalty")
    ],
    ("R66", DEEP, {"continue_final_message": True}, bad_d("continue_final_message")),
    (
        "R66",
        DEEP,
        {"continue_final_message": True, **messages(USER, {"role": "assistant", "content": "a"})},
        OK,
    ),
]


def outcome(dialect: str, body: bytes) -> tuple[Any, ...]:
    try:
        DIALECTS[dialect].decode_request(body, RequestPolicy())
    except ChatError as error:
        status, encoded = DIALECTS[dialect].encode_error(error)
        shown = json.loads(encoded)["error"]
        assert shown["type"] == "invalid_request_error"
        return status, shown["param"], shown["code"]
    return OK


@pytest.mark.parametrize(("rule", "dialect", "fields", "expected"), PROBES)
def test_rule(rule: str, dialect: str, fields: dict[str, Any], expected: tuple[Any, ...]) -> None:
    body = {"model": "m", "messages": [USER], **fields}
    body = {key: value for key, value in body.items() if value is not ABSENT}
    assert outcome(dialect, json.dumps(body).encode()) == expected


@pytest.mark.parametrize("body", [b"[]", b"{"])
def test_r17(body: bytes) -> None:
    assert outcome(OPEN, body)[0] == 400
    assert outcome(DEEP, body)[0] in (400, 422)


def test_every_rule_is_probed() -> None:
    probed = {rule for rule, *_ in PROBES} | {"R17"} | set(NEED_A_MODEL)
    assert probed == {f"R{number}" for number in range(13, 67)}
