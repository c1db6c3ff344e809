"""ChatRequest → the request body that a provider reads, in its dialect, and what is left to us.

Always a stream with usage, whatever our caller asked. Every field is served, emulated, ignored
(a hint that changes no answer) or refused by name; `REQUEST_FIELDS` says which, and the encoder
obeys it. This module must not know: HTTP, keys, retries.
"""

from collections.abc import Callable
from typing import Literal, TypeAlias, assert_never

import msgspec
from msgspec import Struct

from rejoinder.dialects.messages import mentions_json
from rejoinder.errors import InvalidRequest
from rejoinder.types import (
    AssistantMessage,
    AudioPart,
    ChatRequest,
    Content,
    ContentPart,
    CustomTool,
    DeveloperMessage,
    FilePart,
    FunctionMessage,
    ImagePart,
    Json,
    JsonObject,
    JsonObjectFormat,
    JsonSchemaFormat,
    Message,
    RefusalPart,
    RegexFormat,
    SystemMessage,
    TextFormat,
    TextPart,
    Tool,
    ToolCall,
    ToolMessage,
    UserMessage,
    VideoPart,
)

__all__ = [
    "REQUEST_FIELDS",
    "FieldSupport",
    "JsonWord",
    "LimitName",
    "ProviderDialect",
    "ProviderRequest",
    "Support",
    "encode_request",
    "estimate_prompt_tokens",
    "lacks_json_word",
]

ProviderDialect = Literal["openai", "deepinfra"]
Support = Literal["served", "emulated", "ignored", "refused"]
LimitName = Literal["max_tokens", "max_completion_tokens"]
JsonWord = Literal["optional", "required"]


class FieldSupport(Struct, frozen=True):
    """What becomes of one request field with a provider of each dialect.

    `asked`: whether a request wants something by it, so that "refused" has to be said.
    """

    param: str
    openai: Support
    deepinfra: Support
    asked: Callable[[ChatRequest], bool]
    note: str = ""

    def by(self, dialect: ProviderDialect) -> Support:
        return self.openai if dialect == "openai" else self.deepinfra


class ProviderRequest(Struct, frozen=True):
    """`body` for the provider. `stop`: what we cut ourselves (the provider takes fewer);
    `max_calls`: how many calls of a choice we pass on."""

    body: bytes
    stop: tuple[str, ...] = ()
    max_calls: int | None = None


MAX_STOP: dict[ProviderDialect, int] = {"openai": 4, "deepinfra": 16}
MAX_CHOICES: dict[ProviderDialect, int] = {"openai": 128, "deepinfra": 4}

_DEEPINFRA_EFFORTS = {"minimal": "low", "max": "xhigh"}
"""Efforts that DeepInfra lacks and the nearest it has."""

LEAST_TOP_P = 1e-6
"""DeepInfra excludes 0: this keeps the most likely token only, as 0 does."""


_CHARS_PER_TOKEN = 4
_TOKENS_PER_MESSAGE = 4
_TOKENS_PER_MEDIUM = 500


def _has_part(request: ChatRequest, kind: type) -> bool:
    return any(
        isinstance(part, kind)
        for message in request.messages
        if isinstance(message.content, tuple)
        for part in message.content
    )


def _has_breakpoint(request: ChatRequest) -> bool:
    marked: list[bool] = [tool.cache_breakpoint for tool in request.tools if isinstance(tool, Tool)]
    marked += [bool(getattr(message, "cache_breakpoint", False)) for message in request.messages]
    return any(marked)


REQUEST_FIELDS: tuple[FieldSupport, ...] = (
    FieldSupport("model", "served", "served", lambda r: True, "as `upstream_model`"),
    FieldSupport("messages", "served", "served", lambda r: True),
    FieldSupport(
        "messages[].role: developer",
        "served",
        "emulated",
        lambda r: any(isinstance(m, DeveloperMessage) for m in r.messages),
        "DeepInfra: system",
    ),
    FieldSupport(
        "messages[].role: function",
        "emulated",
        "emulated",
        lambda r: any(isinstance(m, FunctionMessage) for m in r.messages),
        "as the tool message that answers the latest call of that name",
    ),
    FieldSupport(
        "messages[].reasoning_content",
        "ignored",
        "served",
        lambda r: any(isinstance(m, AssistantMessage) and m.reasoning_content for m in r.messages),
        "OpenAI: sent where `reasoning_field` names its member",
    ),
    FieldSupport(
        "messages[].refusal",
        "served",
        "emulated",
        lambda r: any(isinstance(m, AssistantMessage) and m.refusal for m in r.messages),
        "DeepInfra: as content",
    ),
    FieldSupport(
        "messages[].content[]: image_url", "served", "served", lambda r: _has_part(r, ImagePart)
    ),
    FieldSupport(
        "messages[].content[]: input_audio", "served", "served", lambda r: _has_part(r, AudioPart)
    ),
    FieldSupport(
        "messages[].content[]: file", "served", "refused", lambda r: _has_part(r, FilePart)
    ),
    FieldSupport(
        "messages[].content[]: video_url", "refused", "served", lambda r: _has_part(r, VideoPart)
    ),
    FieldSupport("cache_control", "ignored", "served", _has_breakpoint),
    FieldSupport(
        "stream",
        "served",
        "served",
        lambda r: True,
        "the provider always streams; unary answers are put together here",
    ),
    FieldSupport("stream_options", "served", "served", lambda r: True, "usage is always asked for"),
    FieldSupport(
        "n", "served", "served", lambda r: r.n > 1, "DeepInfra: at most 4, more is refused"
    ),
    FieldSupport("temperature", "served", "served", lambda r: r.temperature is not None),
    FieldSupport(
        "top_p",
        "served",
        "served",
        lambda r: r.top_p is not None,
        "DeepInfra: 0 is sent as the least it takes",
    ),
    FieldSupport("top_k", "refused", "served", lambda r: bool(r.top_k)),
    FieldSupport("min_p", "refused", "served", lambda r: bool(r.min_p)),
    FieldSupport("presence_penalty", "served", "served", lambda r: r.presence_penalty is not None),
    FieldSupport(
        "frequency_penalty", "served", "served", lambda r: r.frequency_penalty is not None
    ),
    FieldSupport(
        "repetition_penalty",
        "refused",
        "served",
        lambda r: r.repetition_penalty not in (None, 1, 1.0),
    ),
    FieldSupport("seed", "served", "served", lambda r: r.seed is not None),
    FieldSupport("logit_bias", "served", "refused", lambda r: bool(r.logit_bias)),
    FieldSupport(
        "logprobs",
        "served",
        "served",
        lambda r: r.logprobs,
        "refused once a provider has begun an answer without any",
    ),
    FieldSupport("top_logprobs", "served", "served", lambda r: r.num_top_logprobs > 0),
    FieldSupport(
        "max_tokens",
        "served",
        "served",
        lambda r: r.max_tokens is not None,
        "OpenAI: under the name the client used; 0 is refused",
    ),
    FieldSupport(
        "stop",
        "served",
        "served",
        lambda r: bool(r.stop),
        "strings past the provider's 4 (OpenAI) or 16 (DeepInfra) are cut here",
    ),
    FieldSupport("stop_token_ids", "refused", "served", lambda r: bool(r.stop_token_ids)),
    FieldSupport(
        "tools[].type: custom",
        "served",
        "refused",
        lambda r: any(isinstance(tool, CustomTool) for tool in r.tools),
    ),
    FieldSupport("tools", "served", "served", lambda r: bool(r.tools)),
    FieldSupport(
        "tools[].function.strict",
        "served",
        "ignored",
        lambda r: any(isinstance(tool, Tool) and tool.strict for tool in r.tools),
    ),
    FieldSupport(
        "functions", "emulated", "emulated", lambda r: r.legacy_functions, "as `tools`, one call"
    ),
    FieldSupport(
        "tool_choice",
        "served",
        "served",
        lambda r: bool(r.tools),
        "allowed_tools: DeepInfra is given only those tools",
    ),
    FieldSupport(
        "parallel_tool_calls",
        "served",
        "emulated",
        lambda r: not r.parallel_tool_calls,
        "calls after the first are dropped here",
    ),
    FieldSupport(
        "response_format",
        "served",
        "served",
        lambda r: True,
        "OpenAI: json_object for messages without the word: the provider is told to write JSON, "
        "if it insists",
    ),
    FieldSupport(
        "response_format.type: regex",
        "refused",
        "served",
        lambda r: isinstance(r.response_format, RegexFormat),
    ),
    FieldSupport(
        "reasoning_effort",
        "served",
        "served",
        lambda r: r.reasoning.effort is not None,
        "DeepInfra: minimal is low, max is xhigh",
    ),
    FieldSupport(
        "chat_template_kwargs", "refused", "served", lambda r: bool(r.chat_template_kwargs)
    ),
    FieldSupport("continue_final_message", "refused", "served", lambda r: r.continue_final_message),
    FieldSupport("prediction", "served", "ignored", lambda r: r.prediction is not None),
    FieldSupport("verbosity", "served", "ignored", lambda r: r.verbosity is not None),
    FieldSupport("service_tier", "served", "served", lambda r: r.tier != "default"),
    FieldSupport("prompt_cache_key", "served", "served", lambda r: r.prompt_cache.key is not None),
    FieldSupport(
        "prompt_cache_options", "ignored", "ignored", lambda r: r.prompt_cache.mode == "explicit"
    ),
    FieldSupport("user", "served", "served", lambda r: r.user is not None),
    FieldSupport(
        "safety_identifier", "served", "ignored", lambda r: r.safety_identifier is not None
    ),
    FieldSupport("store", "emulated", "emulated", lambda r: r.store, "kept here"),
    FieldSupport("metadata", "emulated", "emulated", lambda r: bool(r.metadata), "kept here"),
    FieldSupport(
        "moderation", "emulated", "emulated", lambda r: r.moderation is not None, "done here"
    ),
)
"""Each request field, for a provider of either dialect."""


def encode_request(
    request: ChatRequest,
    *,
    dialect: ProviderDialect,
    model: str,
    limit_name: LimitName | None = None,
    json_word: JsonWord = "optional",
    reasoning_field: str = "auto",
) -> ProviderRequest:
    """The provider's body and what is left to us. Raises InvalidRequest naming the parameter.

    `limit_name`: what this provider calls the token limit; None: as the client did. `json_word`:
    whether it serves json_object only where the word is in a message (R42, R43).
    """
    _refuse(request, dialect)
    body: JsonObject = {"model": model}
    messages = _Messages(dialect, reasoning_field).encode(request.messages)
    if json_word == "required" and lacks_json_word(request):
        first = isinstance(request.messages[0], SystemMessage | DeveloperMessage)
        messages.insert(int(first), {"role": "system", "content": "Answer with one JSON object."})
    body["messages"] = messages
    body["stream"] = True
    body["stream_options"] = {"include_usage": True}
    for encode in (_sampling, _limits, _tools, _format, _hints):
        encode(request, dialect, body)
    if "max_tokens" in body and dialect == "openai":
        name = limit_name or request.max_tokens_param
        body["max_completion_tokens" if name == "max_completion_tokens" else "max_tokens"] = (
            body.pop("max_tokens")
        )
    stop = request.stop if len(request.stop) > MAX_STOP[dialect] else ()
    one_call = not request.parallel_tool_calls or request.legacy_functions
    return ProviderRequest(msgspec.json.encode(body), stop, 1 if one_call else None)


def lacks_json_word(request: ChatRequest) -> bool:
    """Whether an OpenAI-like provider may refuse its json_object."""
    is_json = isinstance(request.response_format, JsonObjectFormat)
    return is_json and not mentions_json(request.messages)


def estimate_prompt_tokens(request: ChatRequest) -> int:
    """About how many tokens a request costs; used, with a mark, where a provider counts none."""
    num_chars = 0
    num_tokens = 0
    for message in request.messages:
        num_tokens += _TOKENS_PER_MESSAGE
        content = message.content or ""
        for part in (TextPart(content),) if isinstance(content, str) else content:
            match part:
                case TextPart(text=text) | RefusalPart(refusal=text):
                    num_chars += len(text)
                case _:
                    num_tokens += _TOKENS_PER_MEDIUM
        if isinstance(message, AssistantMessage):
            num_chars += sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
    num_chars += len(msgspec.json.encode(request.tools)) if request.tools else 0
    return num_tokens + -(-num_chars // _CHARS_PER_TOKEN)


def _refuse(request: ChatRequest, dialect: ProviderDialect) -> None:
    for field in REQUEST_FIELDS:
        if field.by(dialect) == "refused" and field.asked(request):
            raise _cannot(field.param, f"does not take '{field.param}'")
    if request.n > MAX_CHOICES[dialect]:
        raise _cannot("n", f"gives at most {MAX_CHOICES[dialect]} choices")
    if request.max_tokens == 0 and dialect == "openai":
        raise _cannot(request.max_tokens_param, "cannot answer with 0 tokens")


def _cannot(param: str, why: str) -> InvalidRequest:
    name = param.partition(":")[0].partition("[")[0]
    return InvalidRequest(
        f"The provider of this model {why}.", param=name, code="unsupported_parameter"
    )


# ---------------------------------------------------------------- parameters


def _sampling(request: ChatRequest, dialect: ProviderDialect, body: JsonObject) -> None:
    plain: dict[str, float | int | None] = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "seed": request.seed,
        "top_k": request.top_k or None,
        "min_p": request.min_p or None,
    }
    body |= {name: value for name, value in plain.items() if value is not None}
    if dialect == "deepinfra" and request.top_p == 0:
        body["top_p"] = LEAST_TOP_P
    if request.repetition_penalty not in (None, 1):
        body["repetition_penalty"] = request.repetition_penalty
    if request.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in request.logit_bias}
    if request.logprobs:
        body["logprobs"] = True
        if request.num_top_logprobs:
            body["top_logprobs"] = request.num_top_logprobs
    if request.n > 1:
        body["n"] = request.n


def _limits(request: ChatRequest, dialect: ProviderDialect, body: JsonObject) -> None:
    if request.max_tokens is not None:
        body["max_tokens"] = request.max_tokens
    if request.stop:
        body["stop"] = list(request.stop[: MAX_STOP[dialect]])
    if request.stop_token_ids:
        body["stop_token_ids"] = list(request.stop_token_ids)
    if request.continue_final_message:
        body["continue_final_message"] = True


def _tools(request: ChatRequest, dialect: ProviderDialect, body: JsonObject) -> None:
    if not request.tools:
        return
    choice = request.tool_choice
    tools = request.tools
    if choice.allowed is not None and not choice.named and dialect == "deepinfra":
        tools = tuple(tool for tool in tools if tool.name in choice.allowed)
    if not tools:
        return
    body["tools"] = [_tool(tool, dialect) for tool in tools]
    kinds = {tool.name: "custom" if isinstance(tool, CustomTool) else "function" for tool in tools}
    if choice.allowed is None or (not choice.named and dialect == "deepinfra"):
        if choice.mode != "auto":
            body["tool_choice"] = choice.mode
    elif choice.named and choice.allowed:
        body["tool_choice"] = _reference(choice.allowed[0], kinds)
    else:
        allowed: list[Json] = [_reference(name, kinds) for name in choice.allowed]
        body["tool_choice"] = {
            "type": "allowed_tools",
            "allowed_tools": {"mode": choice.mode, "tools": allowed},
        }
    if dialect == "openai" and (not request.parallel_tool_calls or request.legacy_functions):
        body["parallel_tool_calls"] = False


def _reference(name: str, kinds: dict[str, str]) -> JsonObject:
    kind = kinds.get(name, "function")
    return {"type": kind, kind: {"name": name}}


def _tool(tool: Tool | CustomTool, dialect: ProviderDialect) -> JsonObject:
    described: JsonObject = {"name": tool.name}
    if tool.description is not None:
        described["description"] = tool.description
    match tool:
        case Tool():
            if tool.parameters is not None:
                described["parameters"] = tool.parameters
            if tool.strict and dialect == "openai":
                described["strict"] = True
            encoded: JsonObject = {"type": "function", "function": described}
            if tool.cache_breakpoint and dialect == "deepinfra":
                encoded["cache_control"] = {"type": "ephemeral"}
            return encoded
        case CustomTool():
            if tool.syntax != "text":
                grammar: JsonObject = {"syntax": tool.syntax, "definition": tool.definition}
                described["format"] = {"type": "grammar", "grammar": grammar}
            return {"type": "custom", "custom": described}
        case _:
            assert_never(tool)


def _format(request: ChatRequest, dialect: ProviderDialect, body: JsonObject) -> None:
    match request.response_format:
        case TextFormat():
            pass
        case JsonObjectFormat():
            body["response_format"] = {"type": "json_object"}
        case RegexFormat(regex=regex):
            body["response_format"] = {"type": "regex", "regex": regex}
        case JsonSchemaFormat() as format:
            schema: JsonObject = {"name": format.name}
            if format.description is not None:
                schema["description"] = format.description
            if format.schema is not None or dialect == "deepinfra":
                schema["schema"] = format.schema or {}
            if format.strict:
                schema["strict"] = True
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        case _:
            assert_never(request.response_format)


def _hints(request: ChatRequest, dialect: ProviderDialect, body: JsonObject) -> None:
    effort = request.reasoning.effort
    if effort is not None:
        deepinfra = dialect == "deepinfra"
        body["reasoning_effort"] = _DEEPINFRA_EFFORTS.get(effort, effort) if deepinfra else effort
    if request.tier != "default":
        body["service_tier"] = request.tier
    if request.prompt_cache.key is not None:
        body["prompt_cache_key"] = request.prompt_cache.key
    if request.user is not None:
        body["user"] = request.user
    if request.chat_template_kwargs:
        body["chat_template_kwargs"] = request.chat_template_kwargs
    if dialect == "openai":
        if request.safety_identifier is not None:
            body["safety_identifier"] = request.safety_identifier
        if request.verbosity is not None:
            body["verbosity"] = request.verbosity
        if request.prediction is not None:
            body["prediction"] = {"type": "content", "content": request.prediction}


# ---------------------------------------------------------------- messages

_Encoded: TypeAlias = list[Json]


class _Messages:
    """The messages of one request. Ids of calls go back as they were shown: they are the
    provider's own wherever it gave any."""

    def __init__(self, dialect: ProviderDialect, reasoning_field: str) -> None:
        self._dialect = dialect
        self._reasoning_field = (
            reasoning_field
            if reasoning_field not in ("auto", "none")
            else "reasoning_content"
            if dialect == "deepinfra"
            else ""
        )
        self._calls: list[ToolCall] = []
        """The calls of the latest assistant message that made any."""

    def encode(self, messages: tuple[Message, ...]) -> _Encoded:
        return [self._message(message, number) for number, message in enumerate(messages)]

    def _message(self, message: Message, number: int) -> Json:
        match message:
            case SystemMessage():
                return self._plain("system", message)
            case DeveloperMessage():
                role = "developer" if self._dialect == "openai" else "system"
                return self._plain(role, message)
            case UserMessage():
                return self._plain("user", message)
            case AssistantMessage():
                return self._assistant(message, number)
            case ToolMessage():
                return self._tool(message, message.tool_call_id)
            case FunctionMessage():
                return {
                    "role": "tool",
                    "tool_call_id": self._id_of(message.name, number),
                    "content": message.content or "",
                }
            case _:
                assert_never(message)

    def _plain(self, role: str, message: SystemMessage | DeveloperMessage | UserMessage) -> Json:
        encoded: JsonObject = {"role": role, "content": self._content(message.content)}
        if message.name is not None:
            encoded["name"] = message.name
        return self._marked(encoded, marked=message.cache_breakpoint)

    def _tool(self, message: ToolMessage, call_id: str) -> Json:
        encoded: JsonObject = {
            "role": "tool",
            "tool_call_id": call_id,
            "content": self._content(message.content),
        }
        return self._marked(encoded, marked=message.cache_breakpoint)

    def _assistant(self, message: AssistantMessage, number: int) -> Json:
        content: Json = None if message.content is None else self._content(message.content)
        encoded: JsonObject = {"role": "assistant"}
        if message.refusal is not None:
            if self._dialect == "openai":
                encoded["refusal"] = message.refusal
            elif not content:
                content = message.refusal
        if content is None and not message.tool_calls and message.refusal is None:
            content = ""
        encoded["content"] = content
        if message.name is not None:
            encoded["name"] = message.name
        if message.reasoning_content and self._reasoning_field:
            encoded[self._reasoning_field] = message.reasoning_content
        if message.tool_calls:
            self._calls = [
                call if call.id else msgspec.structs.replace(call, id=f"call_{number}_{k}")
                for k, call in enumerate(message.tool_calls)
            ]
            encoded["tool_calls"] = [_call(call) for call in self._calls]
        return self._marked(encoded, marked=message.cache_breakpoint)

    def _id_of(self, name: str, number: int) -> str:
        """The id of the call that a legacy answer belongs to: the next of that name."""
        for position, call in enumerate(self._calls):
            if call.name == name:
                return self._calls.pop(position).id
        raise InvalidRequest(
            f"The answer of function '{name[:64]}' follows no call of it.",
            param=f"messages.[{number}].role",
        )

    def _marked(self, encoded: JsonObject, *, marked: bool) -> JsonObject:
        if marked and self._dialect == "deepinfra":
            encoded["cache_control"] = {"type": "ephemeral"}
        return encoded

    def _content(self, content: Content) -> Json:
        if isinstance(content, str):
            return content
        return [_part(part) for part in content]


def _part(part: ContentPart) -> Json:
    match part:
        case TextPart(text=text):
            return {"type": "text", "text": text}
        case ImagePart(url=url, detail=detail):
            image: JsonObject = {"url": url}
            if detail != "auto":
                image["detail"] = detail
            return {"type": "image_url", "image_url": image}
        case AudioPart(data=data, format=format):
            return {"type": "input_audio", "input_audio": {"data": data, "format": format}}
        case FilePart():
            members = {
                "file_data": part.file_data,
                "file_id": part.file_id,
                "filename": part.filename,
            }
            return {"type": "file", "file": {k: v for k, v in members.items() if v is not None}}
        case VideoPart(url=url):
            return {"type": "video_url", "video_url": {"url": url}}
        case RefusalPart(refusal=refusal):
            return {"type": "text", "text": refusal}
        case _:
            assert_never(part)


def _call(call: ToolCall) -> JsonObject:
    if call.kind == "custom":
        return {
            "id": call.id,
            "type": "custom",
            "custom": {"name": call.name, "input": call.arguments},
        }
    function: JsonObject = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}
