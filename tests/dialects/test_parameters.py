"""The request table: one row a parameter, with what each dialect makes of values in and out of
range. The exact error bodies are in tests/golden/request_errors.txt."""

import json
import os
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from rejoinder.dialects import DIALECTS, RequestPolicy
from rejoinder.dialects.parameters import Parameters
from rejoinder.errors import ChatError
from rejoinder.types import (
    ChatRequest,
    DecodedRequest,
    JsonObjectFormat,
    JsonSchemaFormat,
    ModerationRequest,
    RegexFormat,
    TextFormat,
    Tool,
    ToolChoice,
)

GOLDEN = Path(__file__).parent.parent / "golden" / "request_errors.txt"
WRITE = bool(os.environ.get("REJOINDER_WRITE_GOLDENS"))

POLICY = RequestPolicy()
MESSAGES = [{"role": "user", "content": "hi"}]
INT64 = 2**63

TYPE, VALUE = "invalid_type", "invalid_value"
UNKNOWN, MISSING = "unknown_parameter", "missing_required_parameter"
INT_MAX, INT_MIN = "integer_above_max_value", "integer_below_min_value"
DEC_MAX, DEC_MIN = "decimal_above_max_value", "decimal_below_min_value"
LONG_STRING, LONG_ARRAY = "string_above_max_length", "array_above_max_length"
EMPTY_ARRAY, EMPTY_STRING = "empty_array", "empty_string"
UNSUPPORTED = "unsupported_parameter"

Bad = tuple[Any, str | None, str]
"""What is given, the error's code, what the param has after the parameter's name."""


class Side(Struct):
    """One dialect's half of a row. `null`: accepted as absent, or an error."""

    ok: list[tuple[Any, Any]] = []
    bad: list[tuple[Any, ...]] = []
    null: bool = True
    also: dict[str, Any] = {}


class Row(Struct):
    attribute: str
    absent: Any
    openai: Side | None
    deepinfra: Side | None


def same(*values: Any) -> list[tuple[Any, Any]]:
    return [(value, value) for value in values]


FUNCTION = {"type": "function", "function": {"name": "f"}}
WITH_TOOLS = {"tools": [FUNCTION]}


def function(name: Any, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


BOOLS = same(True, False)
NOT_BOOLS: list[tuple[Any, ...]] = [("yes", TYPE), (1, TYPE), ([], TYPE)]
PENALTY_OK = [(-2, -2.0), (0, 0.0), (2, 2.0), (0.5, 0.5)]
PENALTY_BAD: list[tuple[Any, ...]] = [
    ("1", TYPE),
    (True, TYPE),
    (-2.01, DEC_MIN),
    (2.01, DEC_MAX),
    (3, DEC_MAX),
]
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"b": {}, "a": {}}}


def json_schema(**fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": fields}


def schema_format(*, enforced: bool, strict: bool = False) -> JsonSchemaFormat:
    return JsonSchemaFormat(name="x", schema=SCHEMA, strict=strict, enforced=enforced)


def named(name: str) -> ToolChoice:
    return ToolChoice("required", (name,), named=True)


TABLE: dict[str, Row] = {
    "model": Row(
        "chat.model",
        MISSING,
        Side(same("m", "a/b:c", "é"), [(1, TYPE), ("", EMPTY_STRING)], null=False),
        Side(same("m", "deploy_id:x"), [(["m"], TYPE), ("", EMPTY_STRING)], null=False),
    ),
    "messages": Row(
        "chat.messages",
        MISSING,
        Side([], [([], EMPTY_ARRAY), ("hi", TYPE), ({}, TYPE), ([1], TYPE, "[0]")], null=False),
        Side([], [([], EMPTY_ARRAY), (None, TYPE), ([None], TYPE, ".0")], null=False),
    ),
    "stream": Row(
        "answer.stream", False, Side(BOOLS, NOT_BOOLS), Side(BOOLS, NOT_BOOLS, null=False)
    ),
    "stream_options": Row(
        "answer",
        None,
        Side(
            [],
            [
                ([], TYPE),
                ({"include_usage": 1}, TYPE, ".include_usage"),
                ({"include_usage": None}, TYPE, ".include_usage"),
                ({"continuous_usage_stats": True}, UNKNOWN, ".continuous_usage_stats"),
                ({"x": 1}, UNKNOWN, ".x"),
            ],
            also={"stream": True},
        ),
        Side([], [([], TYPE), ({"include_usage": 1}, TYPE, ".include_usage")]),
    ),
    "temperature": Row(
        "chat.temperature",
        None,
        Side(
            [(0, 0.0), (2, 2.0), (1.5, 1.5)],
            [("hot", TYPE), (True, TYPE), (-0.1, DEC_MIN), (2.1, DEC_MAX), (-1, DEC_MIN)],
        ),
        Side([(0, 0.0), (2, 2.0)], [("1", TYPE), (-0.1, DEC_MIN), (2.1, DEC_MAX)], null=False),
    ),
    "top_p": Row(
        "chat.top_p",
        None,
        Side([(0, 0.0), (1, 1.0)], [("1", TYPE), (-0.1, DEC_MIN), (1.1, DEC_MAX)]),
        Side(
            [(1, 1.0), (0.01, 0.01)],
            [("1", TYPE), (0, DEC_MIN), (0.0, DEC_MIN), (1.1, DEC_MAX)],
            null=False,
        ),
    ),
    "n": Row(
        "chat.n",
        1,
        Side(same(1, 128), [("1", TYPE), (1.0, TYPE), (0, INT_MIN), (129, INT_MAX)]),
        Side(same(1, 4), [("1", TYPE), (True, TYPE), (0, INT_MIN), (5, INT_MAX)], null=False),
    ),
    "stop": Row(
        "chat.stop",
        (),
        Side(
            [("a", ("a",)), (["a"], ("a",)), (["a", "b", "c", "d"], ("a", "b", "c", "d"))],
            [
                (["a"] * 5, LONG_ARRAY),
                ([], EMPTY_ARRAY),
                (1, TYPE),
                (["a", 1], TYPE, "[1]"),
                ("", EMPTY_STRING),
            ],
        ),
        Side(
            [("a", ("a",)), ([], ()), (["a"] * 16, ("a",) * 16)],
            [(["a"] * 17, LONG_ARRAY), ({}, TYPE), ([None], TYPE, ".0")],
        ),
    ),
    "max_tokens": Row(
        "chat.max_tokens",
        None,
        Side(same(1, 2**63 - 1), [("1", TYPE), (0, INT_MIN), (-1, INT_MIN), (2**63, INT_MAX)]),
        Side(same(0, 1_000_000), [(1.5, TYPE), (-1, INT_MIN), (1_000_001, INT_MAX)]),
    ),
    "presence_penalty": Row(
        "chat.presence_penalty",
        None,
        Side(PENALTY_OK, PENALTY_BAD),
        Side(PENALTY_OK, PENALTY_BAD, null=False),
    ),
    "frequency_penalty": Row(
        "chat.frequency_penalty",
        None,
        Side(PENALTY_OK, PENALTY_BAD),
        Side(PENALTY_OK, PENALTY_BAD, null=False),
    ),
    "logprobs": Row("chat.logprobs", False, Side(BOOLS, NOT_BOOLS), Side(BOOLS, NOT_BOOLS)),
    "top_logprobs": Row(
        "chat.num_top_logprobs",
        0,
        Side(
            same(0, 20),
            [("1", TYPE), (True, TYPE), (-1, INT_MIN), (21, INT_MAX)],
            also={"logprobs": True},
        ),
        Side(same(0, 20), [("1", TYPE), (-1, INT_MIN), (21, INT_MAX)]),
    ),
    "seed": Row(
        "chat.seed",
        None,
        Side(
            same(0, -INT64, INT64 - 1),
            [("1", TYPE), (1.0, TYPE), (INT64, INT_MAX), (2**64, INT_MAX), (-INT64 - 1, INT_MIN)],
        ),
        Side(same(-INT64, 2 * INT64 - 1), [("1", TYPE), (2**64, INT_MAX), (-INT64 - 1, INT_MIN)]),
    ),
    "tools": Row(
        "chat.tools",
        (),
        Side(
            [
                ([FUNCTION], (Tool("f"),)),
                (
                    [function("a-B_1", description="d", parameters=SCHEMA, strict=True)],
                    (Tool("a-B_1", "d", SCHEMA, strict=True),),
                ),
                ([function("f", strict=None)], (Tool("f"),)),
                ([function("f", description=None)], (Tool("f"),)),
                ([function("x" * 64)], (Tool("x" * 64),)),
            ],
            [
                ([], EMPTY_ARRAY),
                ({}, TYPE),
                ([function(f"f{i}") for i in range(129)], LONG_ARRAY),
                ([1], TYPE, "[0]"),
                ([{}], MISSING, "[0].type"),
                ([{"type": "magic"}], VALUE, "[0].type"),
                ([{"type": "function"}], MISSING, "[0].function"),
                ([{"type": "function", "function": {}}], MISSING, "[0].function.name"),
                ([function("a b")], VALUE, "[0].function.name"),
                ([function("x" * 65)], LONG_STRING, "[0].function.name"),
                ([function("")], EMPTY_STRING, "[0].function.name"),
                ([FUNCTION, FUNCTION], VALUE, "[1].function.name"),
                ([function("f", description=1)], TYPE, "[0].function.description"),
                ([function("f", parameters=[])], TYPE, "[0].function.parameters"),
                ([function("f", strict="yes")], TYPE, "[0].function.strict"),
                ([function("f", magic=1)], UNKNOWN, "[0].function.magic"),
                ([{**FUNCTION, "cache_control": {}}], UNKNOWN, "[0].cache_control"),
            ],
            null=False,
        ),
        Side(
            [
                ([], ()),
                ([{"function": {"name": "f"}}], (Tool("f"),)),
                ([function("a b", strict=True, parameters=None)], (Tool("a b"),)),
                (
                    [{**FUNCTION, "cache_control": {"type": "ephemeral"}}],
                    (Tool("f", cache_breakpoint=True),),
                ),
                ([{**FUNCTION, "cache_control": None}], (Tool("f"),)),
            ],
            [
                ({}, TYPE),
                ([{"type": "custom", "custom": {"name": "f"}}], VALUE, ".0.type"),
                ([{"type": "function", "function": {}}], MISSING, ".0.function.name"),
                ([function(1)], TYPE, ".0.function.name"),
                ([{**FUNCTION, "cache_control": 1}], TYPE, ".0.cache_control"),
            ],
        ),
    ),
    "tool_choice": Row(
        "chat.tool_choice",
        ToolChoice("none"),
        Side(
            [
                ("none", ToolChoice("none")),
                ("auto", ToolChoice("auto")),
                ("required", ToolChoice("required")),
                (FUNCTION, named("f")),
                (
                    {
                        "type": "allowed_tools",
                        "allowed_tools": {"mode": "auto", "tools": [FUNCTION]},
                    },
                    ToolChoice("auto", ("f",)),
                ),
            ],
            [
                ("any", VALUE),
                (1, TYPE),
                ({}, MISSING, ".type"),
                ({"type": "magic"}, VALUE, ".type"),
                ({"type": "function"}, MISSING, ".function"),
                ({"type": "function", "function": {}}, MISSING, ".function.name"),
                (function("nope"), VALUE),
                (
                    {"type": "allowed_tools", "allowed_tools": {"mode": "none", "tools": []}},
                    VALUE,
                    ".allowed_tools.mode",
                ),
                (
                    {
                        "type": "allowed_tools",
                        "allowed_tools": {"mode": "auto", "tools": [function("nope")]},
                    },
                    VALUE,
                ),
            ],
            null=False,
            also=WITH_TOOLS,
        ),
        Side(
            [
                ("auto", ToolChoice("auto")),
                ("required", ToolChoice("required")),
                ("any", ToolChoice("required")),
                ({"function": {"name": "f", "parameters": {}}}, named("f")),
            ],
            [("some", VALUE), (1, TYPE), ({"type": "function"}, MISSING, ".function")],
            also=WITH_TOOLS,
        ),
    ),
    "response_format": Row(
        "chat.response_format",
        TextFormat(),
        Side(
            [
                ({"type": "text"}, TextFormat()),
                (json_schema(name="x", schema=SCHEMA), schema_format(enforced=False)),
                (
                    json_schema(name="x", schema=SCHEMA, strict=True),
                    schema_format(enforced=True, strict=True),
                ),
                (json_schema(name="x"), JsonSchemaFormat(name="x")),
            ],
            [
                ("text", TYPE),
                ({}, MISSING, ".type"),
                ({"type": "xml"}, VALUE, ".type"),
                ({"type": "regex", "regex": "a"}, VALUE, ".type"),
                ({"type": "json_schema"}, MISSING, ".json_schema"),
                (json_schema(), MISSING, ".json_schema.name"),
                (json_schema(name="a b"), VALUE, ".json_schema.name"),
                (json_schema(name="x" * 65), LONG_STRING, ".json_schema.name"),
                (json_schema(name="x", schema="{}"), TYPE, ".json_schema.schema"),
                (json_schema(name="x", schema=[1]), TYPE, ".json_schema.schema"),
            ],
            null=False,
        ),
        Side(
            [
                (
                    json_schema(name="x", schema=SCHEMA, strict=False),
                    schema_format(enforced=True),
                ),
                (json_schema(name="a b", schema={}), JsonSchemaFormat("a b", {}, enforced=True)),
                ({"type": "json_object"}, JsonObjectFormat()),
                ({"type": "regex", "regex": "a+"}, RegexFormat("a+")),
            ],
            [
                ({"type": "regex"}, MISSING, ".regex"),
                ({"type": "regex", "regex": 1}, TYPE, ".regex"),
                (json_schema(name="x"), MISSING, ".json_schema.schema"),
                (json_schema(schema={}), MISSING, ".json_schema.name"),
                ({"type": "xml"}, VALUE, ".type"),
            ],
        ),
    ),
    "reasoning_effort": Row(
        "chat.reasoning.effort",
        None,
        Side(
            same("none", "minimal", "low", "medium", "high", "xhigh", "max"),
            [("ultra", VALUE), (1, TYPE)],
        ),
        Side(
            same("none", "low", "medium", "high", "xhigh"),
            [("ultra", VALUE), ("minimal", VALUE), (1, TYPE)],
        ),
    ),
    "service_tier": Row(
        "chat.service_tier",
        None,
        Side(
            same("auto", "default", "flex", "scale", "priority", "fast"),
            [("gold", VALUE), (1, TYPE)],
        ),
        Side([*same("priority", "flex"), ("gold", None)], [(1, TYPE)]),
    ),
    "prompt_cache_key": Row(
        "chat.prompt_cache.key", None, Side(same("k"), [(1, TYPE)]), Side(same("k"), [(1, TYPE)])
    ),
    "user": Row(
        "chat.user", None, Side(same("u"), [(1, TYPE)], null=False), Side(same("u"), [(1, TYPE)])
    ),
    "max_completion_tokens": Row(
        "chat.max_tokens",
        None,
        Side(same(1, 2**63 - 1), [("1", TYPE), (0, INT_MIN), (2**63, INT_MAX)]),
        None,
    ),
    "logit_bias": Row(
        "chat.logit_bias",
        (),
        Side(
            [
                ({}, ()),
                ({"1": 100, "0": -100, "50256": 0.5}, ((1, 100.0), (0, -100.0), (50256, 0.5))),
            ],
            [
                ([], TYPE),
                ({"a": 1}, None),
                ({"-1": 1}, None),
                ({"1.5": 1}, None),
                ({"²": 1}, None),
                ({"": 1}, None),
                ({"9" * 11: 1}, None),
                ({"1": "x"}, TYPE),
                ({"1": True}, TYPE),
                ({"1": 101}, DEC_MAX),
                ({"1": -100.5}, DEC_MIN),
            ],
        ),
        None,
    ),
    "metadata": Row(
        "chat.metadata",
        (),
        Side(
            [
                ({}, ()),
                ({"k" * 64: "v" * 512}, (("k" * 64, "v" * 512),)),
                ({str(i): "" for i in range(16)}, tuple((str(i), "") for i in range(16))),
            ],
            [
                ([], TYPE),
                ({str(i): "" for i in range(17)}, "object_above_max_properties"),
                ({"k" * 65: ""}, LONG_STRING, "." + "k" * 65),
                ({"k": "v" * 513}, LONG_STRING, ".k"),
                ({"k": 1}, TYPE, ".k"),
                ({"k": None}, TYPE, ".k"),
            ],
        ),
        None,
    ),
    "store": Row("chat.store", False, Side(BOOLS, NOT_BOOLS), None),
    "moderation": Row(
        "chat.moderation",
        None,
        Side(
            [
                ({"model": "x"}, ModerationRequest("x")),
                ({"model": "x", "policy": None}, ModerationRequest("x")),
                ({"model": "x", "policy": {"input": None}}, ModerationRequest("x")),
                (
                    {"model": "x", "policy": {"output": {"mode": "block"}}},
                    ModerationRequest("x", output_mode="block"),
                ),
                (
                    {"model": "x", "policy": {"input": {"mode": "block"}, "output": None}},
                    ModerationRequest("x", input_mode="block"),
                ),
            ],
            [
                (True, TYPE),
                ({}, MISSING, ".model"),
                ({"model": None}, TYPE, ".model"),
                ({"model": "x", "policy": {"input": {}}}, MISSING, ".policy.input.mode"),
                (
                    {"model": "x", "policy": {"input": {"mode": "drop"}}},
                    VALUE,
                    ".policy.input.mode",
                ),
                ({"model": "x", "policy": {"both": None}}, UNKNOWN, ".policy.both"),
            ],
        ),
        None,
    ),
    "prediction": Row(
        "chat.prediction",
        None,
        Side(
            [
                ({"type": "content", "content": "abc"}, "abc"),
                (
                    {
                        "type": "content",
                        "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
                    },
                    "ab",
                ),
            ],
            [
                ("abc", TYPE),
                ({"content": "a"}, MISSING, ".type"),
                ({"type": "text", "content": "a"}, VALUE, ".type"),
                ({"type": "content"}, MISSING, ".content"),
                ({"type": "content", "content": []}, EMPTY_ARRAY, ".content"),
                (
                    {"type": "content", "content": [{"type": "image_url"}]},
                    MISSING,
                    ".content[0].text",
                ),
            ],
        ),
        None,
    ),
    "modalities": Row(
        "answer",
        None,
        Side(
            [],
            [
                ("text", TYPE),
                ([], EMPTY_ARRAY),
                (["video"], VALUE, "[0]"),
                (["text", "audio"], "unsupported_value"),
            ],
        ),
        None,
    ),
    "audio": Row(
        "answer",
        None,
        Side(
            [],
            [
                ({"voice": "x", "format": "wav"}, UNSUPPORTED),
                ({"voice": "x"}, MISSING, ".format"),
                ({"format": "wav"}, MISSING, ".voice"),
                ({"voice": "x", "format": "midi"}, VALUE, ".format"),
                (1, TYPE),
            ],
        ),
        None,
    ),
    "parallel_tool_calls": Row(
        "chat.parallel_tool_calls",
        True,
        Side(BOOLS, NOT_BOOLS, null=False, also=WITH_TOOLS),
        None,
    ),
    "verbosity": Row(
        "chat.verbosity",
        None,
        Side(same("low", "medium", "high"), [("loud", VALUE), (1, TYPE)]),
        None,
    ),
    "safety_identifier": Row(
        "chat.safety_identifier",
        None,
        Side(same("u", "u" * 64), [("u" * 65, LONG_STRING), (1, TYPE)], null=False),
        None,
    ),
    "prompt_cache_options": Row(
        "chat.prompt_cache.mode",
        "implicit",
        Side(
            [({}, "implicit"), ({"mode": "explicit", "ttl": "30m"}, "explicit")],
            [({"mode": "never"}, VALUE, ".mode"), ({"ttl": "1y"}, VALUE, ".ttl"), (1, TYPE)],
            null=False,
        ),
        None,
    ),
    "prompt_cache_retention": Row(
        "chat.prompt_cache.ttl",
        None,
        Side([("in_memory", None), ("24h", "24h")], [("1y", VALUE), (1, TYPE)]),
        None,
    ),
    "web_search_options": Row(
        "answer",
        None,
        Side(
            [],
            [
                ({}, UNSUPPORTED),
                ({"search_context_size": "high"}, UNSUPPORTED),
                ({"search_context_size": "huge"}, VALUE, ".search_context_size"),
                (True, TYPE),
            ],
            null=False,
        ),
        None,
    ),
    "functions": Row(
        "chat.tools",
        (),
        Side(
            [
                ([{"name": "f"}], (Tool("f"),)),
                ([{"name": "f", "description": "d", "parameters": {}}], (Tool("f", "d", {}),)),
                (
                    [{"name": f"f{i}"} for i in range(128)],
                    tuple(Tool(f"f{i}") for i in range(128)),
                ),
            ],
            [
                ([], EMPTY_ARRAY),
                ([{"name": f"f{i}"} for i in range(129)], LONG_ARRAY),
                ([{}], MISSING, "[0].name"),
                ([{"name": "a b"}], VALUE, "[0].name"),
                ([{"name": "f", "strict": True}], UNKNOWN, "[0].strict"),
                ([{"name": "f"}, {"name": "f"}], VALUE, "[1].name"),
            ],
            null=False,
        ),
        None,
    ),
    "function_call": Row(
        "chat.tool_choice",
        ToolChoice("none"),
        Side(
            [
                ("none", ToolChoice("none")),
                ("auto", ToolChoice("auto")),
                ({"name": "f"}, named("f")),
            ],
            [
                ("required", VALUE),
                ({}, MISSING, ".name"),
                ({"name": "nope"}, VALUE),
                (1, TYPE),
            ],
            null=False,
            also={"functions": [{"name": "f"}]},
        ),
        None,
    ),
    "top_k": Row(
        "chat.top_k",
        None,
        None,
        Side(same(0, 999), [("1", TYPE), (1.5, TYPE), (-1, INT_MIN), (1000, INT_MAX)], null=False),
    ),
    "min_p": Row(
        "chat.min_p",
        None,
        None,
        Side([(0, 0.0), (1, 1.0)], [("1", TYPE), (-0.1, DEC_MIN), (1.1, DEC_MAX)], null=False),
    ),
    "repetition_penalty": Row(
        "chat.repetition_penalty",
        None,
        None,
        Side([(0.01, 0.01), (5, 5.0)], [("1", TYPE), (0.009, DEC_MIN), (5.1, DEC_MAX)], null=False),
    ),
    "stop_token_ids": Row(
        "chat.stop_token_ids",
        (),
        None,
        Side(
            [([], ()), ([0, 2], (0, 2)), ([1] * 16, (1,) * 16)],
            [([1] * 17, LONG_ARRAY), (1, TYPE), (["a"], TYPE, ".0"), ([-1], INT_MIN, ".0")],
        ),
    ),
    "reasoning": Row(
        "chat.reasoning.effort",
        None,
        None,
        Side(
            [
                ({}, None),
                ({"effort": "low"}, "low"),
                ({"effort": None, "enabled": None}, None),
                ({"enabled": False}, "none"),
                ({"enabled": False, "effort": "high"}, "none"),
                ({"enabled": True, "effort": "high"}, "high"),
            ],
            [
                (True, TYPE),
                ({"effort": "none"}, VALUE, ".effort"),
                ({"enabled": "no"}, TYPE, ".enabled"),
            ],
        ),
    ),
    "chat_template_kwargs": Row(
        "chat.chat_template_kwargs",
        {},
        None,
        Side(
            same({}, {"enable_thinking": False, "x": [None, {"y": 1.5}]}), [([], TYPE), ("", TYPE)]
        ),
    ),
    "continue_final_message": Row(
        "chat.continue_final_message",
        False,
        None,
        Side(
            BOOLS,
            NOT_BOOLS,
            also={"messages": [*MESSAGES, {"role": "assistant", "content": "Once"}]},
        ),
    ),
}


def decode(dialect: str, body: Any, policy: RequestPolicy = POLICY) -> DecodedRequest:
    return DIALECTS[dialect].decode_request(json.dumps(body).encode(), policy)


def refusal(dialect: str, body: Any, policy: RequestPolicy = POLICY) -> ChatError:
    with pytest.raises(ChatError) as caught:
        decode(dialect, body, policy)
    return caught.value


def attribute(decoded: DecodedRequest, path: str) -> Any:
    return reduce(getattr, path.split("."), decoded)


def body_with(name: str, value: Any, also: dict[str, Any]) -> dict[str, Any]:
    return {"model": "m", "messages": MESSAGES, **also, name: value}


def sides() -> list[Any]:
    return [
        pytest.param(name, dialect, side, id=f"{name}-{dialect}")
        for name, row in TABLE.items()
        for dialect, side in (("openai", row.openai), ("deepinfra", row.deepinfra))
        if side is not None
    ]


def test_every_parameter_has_a_row() -> None:
    assert set(TABLE) == set(Parameters.__struct_fields__) | {"audio", "web_search_options"}


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_absent(name: str, dialect: str) -> None:
    row = TABLE[name]
    body: dict[str, Any] = {"model": "m", "messages": MESSAGES}
    if row.absent == MISSING:
        del body[name]
        error = refusal(dialect, body)
        assert (error.param, error.code) == (name, MISSING)
    elif row.absent is not None:
        assert attribute(decode(dialect, body), row.attribute) == row.absent


@pytest.mark.parametrize(("name", "dialect", "side"), sides())
def test_null(name: str, dialect: str, side: Side) -> None:
    """R64, R65, R36."""
    also = {"messages": MESSAGES, **side.also}
    body = body_with(name, None, also)
    if not side.null:
        error = refusal(dialect, body)
        assert (error.param, error.code) == (name, TYPE)
        return
    absent = decode(dialect, {key: value for key, value in body.items() if key != name})
    assert decode(dialect, body) == absent


@pytest.mark.parametrize(("name", "dialect", "side"), sides())
def test_legal_values(name: str, dialect: str, side: Side) -> None:
    for given, decoded in side.ok:
        value = attribute(decode(dialect, body_with(name, given, side.also)), TABLE[name].attribute)
        if decoded is not None or name in ("service_tier", "reasoning"):
            assert value == decoded
            assert type(value) is type(decoded)


def errors_of(name: str, dialect: str, side: Side) -> list[tuple[Any, ChatError, str | None, str]]:
    spelled: list[tuple[Any, ChatError, str | None, str]] = []
    for given, code, *suffix in side.bad:
        error = refusal(dialect, body_with(name, given, side.also))
        spelled.append((given, error, code, name + "".join(suffix)))
    return spelled


@pytest.mark.parametrize(("name", "dialect", "side"), sides())
def test_illegal_values(name: str, dialect: str, side: Side) -> None:
    for given, error, code, param in errors_of(name, dialect, side):
        assert (error.param, error.code) == (param, code), given
        status, _ = DIALECTS[dialect].encode_error(error)
        assert status == (400 if dialect == "openai" else 422)


@pytest.mark.parametrize("name", TABLE)
def test_a_parameter_of_the_other_dialect(name: str) -> None:
    """R15, R16, R24."""
    row = TABLE[name]
    if row.openai is None and row.deepinfra is not None:
        given = row.deepinfra.ok[0][0]
        error = refusal("openai", body_with(name, given, row.deepinfra.also))
        assert (error.param, error.code) == (name, UNKNOWN)
        assert "server.extra_parameters" in error.message
    if row.deepinfra is None and row.openai is not None:
        for given in ([], "x", None, *(value for value, _ in row.openai.ok)):
            decoded = decode("deepinfra", body_with(name, given, {}))
            assert decoded.ignored == (name,)
            assert attribute(decoded, row.attribute) == attribute(
                decode("deepinfra", {"model": "m", "messages": MESSAGES}), row.attribute
            )


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row.openai is None])
def test_extra_parameters_accepted(name: str) -> None:
    """With `server.extra_parameters = "accept"` DeepInfra's rows work in OpenAI's dialect."""
    policy = RequestPolicy(extra_parameters="accept")
    row = TABLE[name]
    side = row.deepinfra
    assert side is not None
    for given, decoded in side.ok:
        request = decode("openai", body_with(name, given, side.also), policy)
        assert attribute(request, row.attribute) == decoded
        assert request.ignored == ()
    for given, code, *suffix in side.bad:
        error = refusal("openai", body_with(name, given, side.also), policy)
        param = name + "".join(suffix).replace(".0", "[0]")
        assert (error.param, error.code) == (param, code)


def test_error_bodies() -> None:
    lines: list[str] = []
    for case in sides():
        name, dialect, side = case.values
        for given, error, _, _ in errors_of(name, dialect, side):
            status, body = DIALECTS[dialect].encode_error(error)
            shown = json.dumps(given)
            shown = shown if len(shown) <= 80 else shown[:79] + "…"
            lines.append(f"{dialect} {name} = {shown}\n    {status} {body.decode()}\n")
    text = "".join(lines)
    if WRITE:
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


def test_defaults_are_those_of_the_core() -> None:
    for dialect, choice in (("openai", ToolChoice("none")), ("deepinfra", ToolChoice("none"))):
        chat = decode(dialect, {"model": "m", "messages": MESSAGES}).chat
        assert chat == ChatRequest(
            model="m",
            messages=chat.messages,
            tool_choice=choice,
            return_malformed_calls=dialect == "openai",
        )
