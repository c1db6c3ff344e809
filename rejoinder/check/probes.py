"""The requests that many rules share. A rule with a request of its own declares it itself.

Must not know: predicates, sockets.
"""

from typing import Final

from rejoinder.check.rule import Probe
from rejoinder.types import Json, JsonObject

LIMIT = "\0limit"
"""Stands for the name of the token limit in the dialect: the other one may be refused (R33)."""

FIXED: Final[JsonObject] = {"temperature": 0, "seed": 7}
"""What makes two answers comparable."""

BASE: Final[JsonObject] = {
    "messages": [{"role": "user", "content": "Write one short sentence about the sea."}],
    LIMIT: 16,
}


def function(name: str, *, strict: bool = False) -> JsonObject:
    parameters: JsonObject = {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    inner: JsonObject = {"name": name, "description": f"{name} of a city", "parameters": parameters}
    if strict:
        inner["strict"] = True
    return {"type": "function", "function": inner}


TOOL_MESSAGES: Final[list[Json]] = [
    {"role": "user", "content": "What is the weather in Oslo? Call get_weather for it."}
]

TOOLS: Final[JsonObject] = {
    "messages": TOOL_MESSAGES,
    "tools": [function("get_weather"), function("get_time")],
    "tool_choice": "auto",
    LIMIT: 64,
    **FIXED,
}

TIME_MESSAGES: Final[list[Json]] = [
    {"role": "user", "content": "What time is it in Oslo? Call get_time for it."}
]

NAMED: Final[JsonObject] = {"type": "function", "function": {"name": "get_time"}}

STREAM: Final[JsonObject] = {"stream": True}
USAGE: Final[JsonObject] = {"stream_options": {"include_usage": True}}

MODERATION: Final[JsonObject] = {"moderation": {"model": "omni-moderation-latest"}}

UNARY = Probe(quiet=True, name="unary", body={**FIXED})
UNARY_AGAIN = Probe(quiet=True, name="unary again", body={**FIXED, "user": "rejoinder-check"})
STREAMED = Probe(quiet=True, name="stream", body={**FIXED, **STREAM})
STREAM_USAGE = Probe(quiet=True, name="stream with usage", body={**FIXED, **STREAM, **USAGE})

MANY = Probe(quiet=True, name="n=3", body={"n": 3, "temperature": 1, "seed": 7})
MANY_STREAMED = Probe(
    quiet=True, name="n=3, streamed", body={"n": 3, "temperature": 1, "seed": 7, **STREAM, **USAGE}
)

SEEDED = Probe(quiet=True, name="seeded", body={"temperature": 1, "seed": 11})
SEEDED_AGAIN = Probe(
    quiet=True, name="seeded again", body={"temperature": 1, "seed": 11, "user": "rejoinder-check"}
)
OTHER_SEED = Probe(name="another seed", body={"temperature": 1, "seed": 12})

SHORT = Probe(quiet=True, name="limit of 3", body={LIMIT: 3, **FIXED})
SHORT_STREAMED = Probe(
    quiet=True, name="limit of 3, streamed", body={LIMIT: 3, **FIXED, **STREAM, **USAGE}
)

STOPPED = Probe(quiet=True, name="stop", body={"stop": ["e", " the"], **FIXED})
STOPPED_STREAMED = Probe(
    quiet=True, name="stop, streamed", body={"stop": ["e", " the"], **FIXED, **STREAM}
)

LOGPROBS = Probe(quiet=True, name="logprobs", body={"logprobs": True, **FIXED})
LOGPROBS_STREAMED = Probe(
    quiet=True, name="logprobs, streamed", body={"logprobs": True, **FIXED, **STREAM, **USAGE}
)
TOP_LOGPROBS = Probe(
    quiet=True,
    name="top_logprobs",
    body={"logprobs": True, "top_logprobs": 5, **FIXED},
    dialects=("O",),
)
TOP_LOGPROBS_STREAMED = Probe(
    quiet=True,
    name="top_logprobs, streamed",
    body={"logprobs": True, "top_logprobs": 5, **FIXED, **STREAM},
    dialects=("O",),
)
WIDE_LOGPROBS = Probe(
    name="top_logprobs of unlikely tokens",
    body={"logprobs": True, "top_logprobs": 20, "temperature": 2, "seed": 7, LIMIT: 32},
    dialects=("O",),
)

TOOLS_UNARY = Probe(quiet=True, name="tools", body={**TOOLS})
TOOLS_STREAMED = Probe(quiet=True, name="tools, streamed", body={**TOOLS, **STREAM, **USAGE})
TOOLS_NONE = Probe(name="tool_choice none", body={**TOOLS, "tool_choice": "none", **STREAM})
TOOLS_REQUIRED = Probe(
    quiet=True,
    name="tool_choice required",
    body={**TOOLS, "tool_choice": "required"},
    dialects=("O",),
)
TOOLS_REQUIRED_STREAMED = Probe(
    quiet=True,
    name="tool_choice required, streamed",
    body={**TOOLS, "tool_choice": "required", **STREAM},
    dialects=("O",),
)
TOOLS_NAMED = Probe(
    name="tool_choice named",
    body={**TOOLS, "messages": TIME_MESSAGES, "tool_choice": NAMED, **STREAM},
    dialects=("O",),
)
TOOLS_ALLOWED = Probe(
    name="allowed_tools required",
    body={
        **TOOLS,
        "messages": TIME_MESSAGES,
        "tool_choice": {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "required", "tools": [NAMED]},
        },
    },
    dialects=("O",),
)
TOOLS_STRICT = Probe(
    name="strict tool",
    body={
        **TOOLS,
        "tools": [function("get_weather", strict=True)],
        "tool_choice": "required",
        "parallel_tool_calls": False,
    },
    dialects=("O",),
)
FUNCTIONS = Probe(
    name="functions",
    body={
        "messages": TOOL_MESSAGES,
        "functions": [function("get_weather")["function"]],
        "function_call": {"name": "get_weather"},
        LIMIT: 64,
        **FIXED,
        **STREAM,
    },
    dialects=("O",),
)

MODERATED = Probe(quiet=True, name="moderation", body={**FIXED, **MODERATION}, dialects=("O",))
MODERATED_STREAMED = Probe(
    quiet=True,
    name="moderation, streamed",
    body={**FIXED, **MODERATION, **STREAM, **USAGE},
    dialects=("O",),
)

PREDICTED = Probe(
    name="prediction",
    body={
        **FIXED,
        "prediction": {"type": "content", "content": "The sea is a vast and blue expanse."},
    },
    dialects=("O",),
)

TIER = Probe(
    name="service_tier default", body={**FIXED, "service_tier": "default"}, dialects=("O",)
)
TIER_D = Probe(name="service_tier flex", body={**FIXED, "service_tier": "flex"}, dialects=("D",))
TIER_PRIORITY = Probe(
    name="service_tier priority", body={**FIXED, "service_tier": "priority"}, dialects=("D",)
)

NO_USAGE = Probe(
    name="stream without usage",
    body={**FIXED, **STREAM, "stream_options": {"include_usage": False}},
    dialects=("D",),
)
CONTINUOUS = Probe(
    quiet=True,
    name="continuous usage",
    body={**FIXED, **STREAM, "stream_options": {"continuous_usage_stats": True}},
    dialects=("D",),
)
REASONING_OFF = Probe(
    name="reasoning off",
    body={**FIXED, **STREAM, "reasoning": {"enabled": False}, LIMIT: 64},
    dialects=("D",),
)
REASONING_NONE = Probe(
    name="reasoning_effort none",
    body={**FIXED, "reasoning_effort": "none", LIMIT: 64},
    dialects=("D",),
)

OBFUSCATED = Probe(
    name="obfuscation",
    body={**FIXED, **STREAM, "stream_options": {"include_obfuscation": True}},
    dialects=("O",),
)

MODELS = Probe(name="models", method="GET", path="/models")

PLAIN = (UNARY, STREAMED, STREAM_USAGE, MANY, MANY_STREAMED)

BY_GROUP: Final[dict[str, tuple[Probe, ...]]] = {
    "framing": PLAIN,
    "body": (*PLAIN, SHORT, STOPPED, TIER, TIER_D, TIER_PRIORITY, TOOLS_UNARY),
    "chunks": (*PLAIN, STOPPED_STREAMED, OBFUSCATED, TOOLS_STREAMED, MODERATED_STREAMED),
    "usage": (STREAMED, STREAM_USAGE, MANY_STREAMED, NO_USAGE, CONTINUOUS),
    "tools": (
        *(TOOLS_UNARY, TOOLS_STREAMED, TOOLS_NONE, TOOLS_REQUIRED, TOOLS_REQUIRED_STREAMED),
        *(TOOLS_NAMED, TOOLS_ALLOWED, TOOLS_STRICT, FUNCTIONS),
    ),
    "logprobs": (
        *(LOGPROBS, LOGPROBS_STREAMED, TOP_LOGPROBS, TOP_LOGPROBS_STREAMED, WIDE_LOGPROBS),
        *(UNARY, STREAMED),
    ),
    "arithmetic": (*PLAIN, SHORT, SHORT_STREAMED, PREDICTED, TIER_D, TIER_PRIORITY, TOOLS_UNARY),
    "moderation": (MODERATED, MODERATED_STREAMED, UNARY, STREAMED),
    "errors": (UNARY, STREAMED),
}
"""What the rules of a group that look at any exchange want to see."""
