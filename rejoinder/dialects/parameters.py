"""The request table: one row per parameter of a chat completion, for both dialects (1.3, 1.4).

This module must not know: rules between parameters, what a model can do.
"""

from typing import Literal

from msgspec import Struct

from rejoinder.dialects.messages import NO_AUDIO, messages_shape
from rejoinder.dialects.profile import ByDialect, Profile
from rejoinder.dialects.shapes import (
    Ignored,
    Shape,
    array,
    boolean,
    either,
    fields,
    free_object,
    integer,
    literal,
    nullable,
    number,
    one_of,
    refused,
    string,
    tagged,
    text,
)
from rejoinder.dialects.tools import (
    function_call_shape,
    functions_shape,
    response_format_shape,
    tool_choice_shape,
    tools_shape,
)
from rejoinder.dialects.violation import (
    Violation,
    above_maximum,
    below_minimum,
    string_too_long,
    too_many_properties,
    unsupported_parameter,
    unsupported_value,
    wrong_type,
)
from rejoinder.types import (
    AnyTool,
    Json,
    JsonObject,
    Message,
    ModerationRequest,
    ReasoningEffort,
    ResponseFormat,
    ServiceTierChoice,
    TextFormat,
    Tool,
    ToolChoice,
)

INT64 = 2**63


class StreamOptions(Struct, frozen=True, kw_only=True):
    """None: not said; the dialects have opposite defaults for `include_usage`."""

    include_usage: bool | None = None
    include_obfuscation: bool = False
    continuous_usage_stats: bool = False


class ReasoningOptions(Struct, frozen=True, kw_only=True):
    effort: ReasoningEffort | None = None
    enabled: bool | None = None


class PromptCacheOptions(Struct, frozen=True, kw_only=True):
    mode: Literal["implicit", "explicit"] = "implicit"
    ttl: str | None = None


class Parameters(Struct, frozen=True, kw_only=True):
    """A decoded request body, by the names of the wire; None means not set."""

    model: str
    messages: tuple[Message, ...]
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    tools: tuple[AnyTool, ...] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: tuple[Tool, ...] | None = None
    function_call: ToolChoice | None = None
    response_format: ResponseFormat = TextFormat()
    reasoning: ReasoningOptions | None = None
    reasoning_effort: ReasoningEffort | None = None
    chat_template_kwargs: JsonObject = {}
    continue_final_message: bool = False
    prediction: str | None = None
    service_tier: ServiceTierChoice | None = None
    moderation: ModerationRequest | None = None
    store: bool = False
    metadata: tuple[tuple[str, str], ...] = ()
    prompt_cache_key: str | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_retention: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    modalities: tuple[str, ...] = ()


def parameters_shape(profile: Profile) -> Shape:
    """A whole request body → Parameters."""
    return fields(
        Parameters,
        profile.rows(_table(profile)),
        required=("model", "messages"),
        lenient=profile.lenient,
    )


def _table(profile: Profile) -> dict[str, ByDialect]:
    """Name: (OpenAI's shape, DeepInfra's shape). `nullable`: an explicit null is "not set"."""
    penalty = number(-2, 2)
    tools = tools_shape(profile)
    choice = tool_choice_shape(profile)
    answer_format = response_format_shape(profile)
    messages = messages_shape(profile)
    return {
        "model": (_model, _model),
        "messages": (messages, messages),
        "stream": (nullable(boolean), boolean),
        "stream_options": (nullable(_stream_options(profile)),) * 2,
        "temperature": (nullable(number(0, 2)), number(0, 2)),
        "top_p": (nullable(number(0, 1)), number(0, 1, above=0)),
        "n": (nullable(integer(1, 128)), integer(1, 4)),
        "stop": (nullable(_stop(4, profile)), nullable(_stop(16, profile))),
        "max_tokens": (nullable(integer(1, INT64 - 1)), nullable(integer(0, 1_000_000))),
        "presence_penalty": (nullable(penalty), penalty),
        "frequency_penalty": (nullable(penalty), penalty),
        "logprobs": (nullable(boolean), nullable(boolean)),
        "top_logprobs": (nullable(integer(0, 20)), nullable(integer(0, 20))),
        "seed": (nullable(integer(-INT64, INT64 - 1)), nullable(integer(-INT64, 2 * INT64 - 1))),
        "tools": (tools, nullable(tools)),
        "tool_choice": (choice, nullable(choice)),
        "response_format": (answer_format, nullable(answer_format)),
        "reasoning_effort": (
            nullable(one_of("none", "minimal", "low", "medium", "high", "xhigh", "max")),
            nullable(one_of("none", "low", "medium", "high", "xhigh")),
        ),
        "service_tier": (nullable(one_of(*_TIERS)), nullable(_any_tier)),
        "prompt_cache_key": (nullable(text), nullable(text)),
        "user": (text, nullable(text)),
        # OpenAI only.
        "max_completion_tokens": (nullable(integer(1, INT64 - 1)), None),
        "logit_bias": (nullable(_logit_bias), None),
        "metadata": (nullable(metadata), None),
        "store": (nullable(boolean), None),
        "moderation": (nullable(_moderation(profile)), None),
        "prediction": (nullable(_prediction(profile)), None),
        "modalities": (nullable(_modalities), None),
        "audio": (nullable(_audio(profile)), None),
        "parallel_tool_calls": (boolean, None),
        "verbosity": (nullable(one_of("low", "medium", "high")), None),
        "safety_identifier": (string(longest=64), None),
        "prompt_cache_options": (_prompt_cache_options(profile), None),
        "prompt_cache_retention": (nullable(one_of("in_memory", "24h")), None),
        "web_search_options": (_web_search_options(profile), None),
        "functions": (functions_shape(profile), None),
        "function_call": (function_call_shape(profile), None),
        # DeepInfra only.
        "top_k": (None, integer(0, 999)),
        "min_p": (None, number(0, 1)),
        "repetition_penalty": (None, number(0.01, 5)),
        "stop_token_ids": (None, nullable(array(integer(0, 2**31 - 1), longest=16))),
        "reasoning": (None, nullable(_reasoning(profile))),
        "chat_template_kwargs": (None, nullable(free_object)),
        "continue_final_message": (None, nullable(boolean)),
    }


# ---------------------------------------------------------------- shapes of single parameters

_model = string(empty_allowed=False)

_TIERS: tuple[ServiceTierChoice, ...] = (
    "auto",
    "default",
    "flex",
    "scale",
    "priority",
    "fast",
)


def _any_tier(value: Json, ignored: Ignored) -> str | None:
    """D: a tier that does not exist is served standard, without an error (R55)."""
    tier: str = text(value, ignored)
    if tier in _TIERS:
        return tier
    ignored.append(())
    return None


def _stream_options(profile: Profile) -> Shape:
    flag = profile.pick(boolean, nullable(boolean))
    return fields(
        StreamOptions,
        profile.rows(
            {
                "include_usage": (flag, flag),
                "include_obfuscation": (flag, None),
                "continuous_usage_stats": (None, flag),
            }
        ),
        lenient=profile.lenient,
    )


def _stop(most: int, profile: Profile) -> Shape:
    one = string(empty_allowed=False)
    several = array(one, empty_allowed=profile.is_deepinfra, longest=most)
    return either(
        {str: lambda value, ignored: (one(value, ignored),), list: several},
        "a string or an array of strings",
    )


def _is_token_id(key: str) -> bool:
    return key.isascii() and key.isdigit() and len(key) <= 10


def _logit_bias(value: Json, ignored: Ignored) -> tuple[tuple[int, float], ...]:
    """Token id → bias. Every fault has the param `logit_bias` itself (R30)."""
    if type(value) is not dict:
        raise wrong_type("an object", value)
    biases: dict[int, float] = {}
    for key, bias in value.items():
        if not _is_token_id(key):
            raise Violation(
                None,
                f": the key '{key[:32]}' is not a token id. "
                "Each key must be an integer that is not negative.",
                lead="Invalid",
            )
        if type(bias) is not int and type(bias) is not float:
            raise wrong_type("an object whose values are numbers", bias)
        if bias > 100:
            raise above_maximum("decimal", 100, bias)
        if bias < -100:
            raise below_minimum("decimal", -100, bias)
        biases[int(key)] = float(bias)
    return tuple(biases.items())


def metadata(value: Json, ignored: Ignored) -> tuple[tuple[str, str], ...]:
    """At most 16 pairs, keys up to 64 characters, values up to 512 (R34)."""
    if type(value) is not dict:
        raise wrong_type("an object", value)
    if len(value) > 16:
        raise too_many_properties(16, len(value))
    pairs: list[tuple[str, str]] = []
    for key, item in value.items():
        if len(key) > 64:
            raise string_too_long(64, key).inside(key)
        if type(item) is not str:
            raise wrong_type("a string", item).inside(key)
        if len(item) > 512:
            raise string_too_long(512, item).inside(key)
        pairs.append((key, item))
    return tuple(pairs)


def _moderation(profile: Profile) -> Shape:
    mode = fields(
        lambda mode: mode,
        {"mode": one_of("score", "block")},
        required=("mode",),
        lenient=profile.lenient,
    )
    policy = fields(
        dict,
        {"input": nullable(mode), "output": nullable(mode)},
        names={"input": "input_mode", "output": "output_mode"},
        lenient=profile.lenient,
    )

    def make(model: str, policy: dict[str, Literal["score", "block"]] | None = None) -> object:
        return ModerationRequest(model=model, **(policy or {}))

    return fields(
        make,
        {"model": string(empty_allowed=False), "policy": nullable(policy)},
        required=("model",),
        lenient=profile.lenient,
    )


def _prediction(profile: Profile) -> Shape:
    part = fields(
        lambda text: text,
        {"type": literal("text"), "text": text},
        required=("type", "text"),
        lenient=profile.lenient,
    )
    parts = array(part, empty_allowed=False)
    content = either(
        {str: text, list: lambda value, ignored: "".join(parts(value, ignored))},
        "a string or an array of text parts",
    )
    body = fields(
        lambda content: content,
        {"type": literal("content"), "content": content},
        required=("type", "content"),
        lenient=profile.lenient,
    )
    return tagged("type", {"content": body})


_modality_names = array(one_of("text", "audio"), empty_allowed=False)


def _modalities(value: Json, ignored: Ignored) -> tuple[str, ...]:
    modalities: tuple[str, ...] = _modality_names(value, ignored)
    if "audio" in modalities:
        raise unsupported_value(NO_AUDIO)
    return modalities


def _audio(profile: Profile) -> Shape:
    voice = either(
        {str: text, dict: fields(dict, {"id": text}, required=("id",), lenient=profile.lenient)},
        "a string or an object",
    )
    audio = fields(
        dict,
        {"voice": voice, "format": one_of("wav", "aac", "mp3", "flac", "opus", "pcm16")},
        required=("voice", "format"),
        lenient=profile.lenient,
    )
    return refused(audio, lambda: unsupported_parameter(NO_AUDIO))


def _web_search_options(profile: Profile) -> Shape:
    place = fields(
        dict,
        {key: nullable(text) for key in ("city", "country", "region", "timezone")},
        lenient=profile.lenient,
    )
    location = fields(
        dict,
        {"type": literal("approximate"), "approximate": place},
        required=("type", "approximate"),
        lenient=profile.lenient,
    )
    options = fields(
        dict,
        {
            "search_context_size": one_of("low", "medium", "high"),
            "user_location": nullable(location),
        },
        lenient=profile.lenient,
    )
    return refused(options, lambda: unsupported_parameter("no model here searches the web."))


def _prompt_cache_options(profile: Profile) -> Shape:
    return fields(
        PromptCacheOptions,
        {"mode": one_of("implicit", "explicit"), "ttl": one_of("30m")},
        lenient=profile.lenient,
    )


def _reasoning(profile: Profile) -> Shape:
    return fields(
        ReasoningOptions,
        {
            "effort": nullable(one_of("low", "medium", "high", "xhigh")),
            "enabled": nullable(boolean),
        },
        lenient=profile.lenient,
    )
