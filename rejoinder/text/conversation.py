"""Messages and tools → the values a chat template reads, after Hugging Face's conventions.

What a template does not know (a developer role, tool results, parts) is put in words that it does
know, as docs/formats.md says. This module must not know: jinja2, tokens, sentinels (`Ink` does).
"""

from collections.abc import Callable, Sequence
from typing import Protocol, assert_never

import jiter
import msgspec
from msgspec import Struct

from rejoinder.errors import InvalidRequest
from rejoinder.text.formats.format import Speller
from rejoinder.types import (
    AnyTool,
    AssistantMessage,
    Content,
    ContentPart,
    CustomTool,
    DeveloperMessage,
    FunctionMessage,
    Json,
    JsonObject,
    Message,
    RefusalPart,
    SystemMessage,
    TextPart,
    Tool,
    ToolCall,
    ToolMessage,
    UserMessage,
)


class Ink(Protocol):
    """How text that people wrote is put into the template's values."""

    def text(self, text: str) -> str:
        """The text, guarded against becoming markup."""
        ...

    def json(self, value: Json) -> Json:
        """The same for every string of a JSON value."""
        ...

    def breakpoint(self, text: str) -> str:
        """The (guarded) text with a mark at its end: a reusable prefix ends there."""
        ...


class Abilities(Struct, frozen=True, kw_only=True):
    """What a chat template understands; found by rendering small conversations with it."""

    parts: bool = False
    """It iterates over content parts; otherwise they are joined with nothing between."""
    system: bool = True
    late_system: bool = True
    """A system message may come after another message."""
    developer: bool = False
    tools: bool = False
    tool_calls: bool = False
    tool_role: bool = False
    object_arguments: bool = True
    """A call's arguments are an object for it, not JSON text."""
    thinking_key: bool = False
    """It reads a thought from `thinking` rather than from `reasoning_content`."""


def tool_values(tools: Sequence[AnyTool], ink: Ink) -> list[Json]:
    """The `tools` variable of a template: OpenAI's shape, without what models need not see."""
    return [_tool_value(tool, ink) for tool in tools]


def custom_parameters() -> JsonObject:
    """A custom tool is a function of one string for models that know only functions."""
    return {
        "type": "object",
        "properties": {"input": {"type": "string"}},
        "required": ["input"],
    }


def _tool_value(tool: AnyTool, ink: Ink) -> JsonObject:
    match tool:
        case Tool():
            parameters = tool.parameters
            if parameters is None:
                parameters = {"type": "object", "properties": {}}
            guarded = ink.json(parameters)
            marked = tool.cache_breakpoint
        case CustomTool():
            guarded, marked = ink.json(custom_parameters()), False
        case _:
            assert_never(tool)
    function: JsonObject = {
        "name": ink.text(tool.name),
        "description": ink.text(tool.description or ""),
        "parameters": guarded,
    }
    if marked and not _mark_last_string(function, ink):
        function["description"] = ink.breakpoint(ink.text(tool.description or ""))
    return {"type": "function", "function": function}


def _mark_last_string(value: JsonObject, ink: Ink) -> bool:
    """Puts a breakpoint at the end of the last string of a value that no template looks at."""
    for key in reversed(value):
        match value[key]:
            case dict() as inner if _mark_last_string(inner, ink):
                return True
            case str() as text if key in ("description", "title"):
                value[key] = ink.breakpoint(text)
                return True
            case _:
                continue
    return False


def message_values(
    messages: Sequence[Message], abilities: Abilities, spell: Speller, ink: Ink
) -> list[JsonObject]:
    """The `messages` variable of a template.

    Raises InvalidRequest naming the part that is not text.
    """
    return _Writer(abilities, spell, ink).write(messages)


class _Writer:
    def __init__(self, abilities: Abilities, spell: Speller, ink: Ink) -> None:
        self._abilities = abilities
        self._spell = spell
        self._ink = ink
        self._tool_names: dict[str, str] = {}

    def write(self, messages: Sequence[Message]) -> list[JsonObject]:
        written: list[JsonObject] = []
        previous: Message | None = None
        for i, message in enumerate(messages):
            value = self._message(message, f"messages[{i}]")
            joined = (
                isinstance(message, ToolMessage | FunctionMessage)
                and isinstance(previous, ToolMessage | FunctionMessage)
                and not self._abilities.tool_role
            )
            if joined:  # the results of parallel calls are one turn of the user
                written[-1] = merged(written[-1], value, "\n")
            else:
                written.append(value)
            previous = message
        return written

    def _message(self, message: Message, path: str) -> JsonObject:
        match message:
            case SystemMessage():
                return self._turn("system", message.content, message, path)
            case DeveloperMessage():
                role = "developer" if self._abilities.developer else "system"
                return self._turn(role, message.content, message, path)
            case UserMessage():
                return self._turn("user", message.content, message, path)
            case AssistantMessage():
                return self._assistant(message, path)
            case ToolMessage():
                name = self._tool_names.get(message.tool_call_id)
                content = self._content(message.content, path, marked=message.cache_breakpoint)
                return self._result(content, message.tool_call_id, name)
            case FunctionMessage():
                content = self._content(message.content or "", path, marked=False)
                return self._result(content, None, message.name)
            case _:
                assert_never(message)

    def _turn(
        self,
        role: str,
        content: Content,
        message: SystemMessage | DeveloperMessage | UserMessage,
        path: str,
    ) -> JsonObject:
        value: JsonObject = {
            "role": role,
            "content": self._content(content, path, marked=message.cache_breakpoint),
        }
        if message.name is not None:
            value["name"] = self._ink.text(message.name)
        return value

    def _content(self, content: Content, path: str, *, marked: bool) -> Json:
        ink = self._ink
        if isinstance(content, str):
            text = ink.text(content)
            return ink.breakpoint(text) if marked else text
        texts = [self._part(part, f"{path}.content[{j}]") for j, part in enumerate(content)]
        if marked and texts:
            texts[-1] = ink.breakpoint(texts[-1])
        if self._abilities.parts:
            return [{"type": "text", "text": text} for text in texts]
        return "".join(texts)

    def _part(self, part: ContentPart, path: str) -> str:
        match part:
            case TextPart(text=text, cache_breakpoint=marked):
                guarded = self._ink.text(text)
                return self._ink.breakpoint(guarded) if marked else guarded
            case RefusalPart(refusal=refusal):
                return self._ink.text(refusal)
            case _:
                kind = type(part).__struct_config__.tag
                raise InvalidRequest(
                    f"This model reads text only; a content part of type '{kind}' cannot be used.",
                    param=path,
                )

    def _assistant(self, message: AssistantMessage, path: str) -> JsonObject:
        content = message.content
        if content is None:
            content = message.refusal or ""
        value: JsonObject = {
            "role": "assistant",
            "content": self._content(content, path, marked=message.cache_breakpoint),
        }
        if message.name is not None:
            value["name"] = self._ink.text(message.name)
        if message.reasoning_content:
            key = "thinking" if self._abilities.thinking_key else "reasoning_content"
            value[key] = self._ink.text(message.reasoning_content)
        for call in message.tool_calls:
            self._tool_names[call.id] = call.name
        if message.tool_calls:  # an empty list is absent
            self._add_calls(value, message.tool_calls)
        return value

    def _add_calls(self, value: JsonObject, calls: tuple[ToolCall, ...]) -> None:
        if self._abilities.tool_calls:
            value["tool_calls"] = [self._call(call) for call in calls]
            return
        spelled = "\n".join(self._spell(call.name, _call_arguments(call)) for call in calls)
        said = {"role": "assistant", "content": self._content(spelled, "", marked=False)}
        value["content"] = (
            merged(value, said, "\n")["content"] if value["content"] else said["content"]
        )

    def _call(self, call: ToolCall) -> JsonObject:
        text = _call_arguments(call)
        arguments: Json = self._ink.text(text)
        if self._abilities.object_arguments:
            parsed = _object(text)
            if parsed is not None:
                arguments = self._ink.json(parsed)
        name = self._ink.text(call.name)
        return {
            "id": self._ink.text(call.id),
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }

    def _result(self, content: Json, call_id: str | None, name: str | None) -> JsonObject:
        if not self._abilities.tool_role:
            return {"role": "user", "content": _enclosed(content)}
        value: JsonObject = {"role": "tool", "content": content}
        if call_id is not None:
            value["tool_call_id"] = self._ink.text(call_id)
        if name is not None:
            value["name"] = self._ink.text(name)
        return value


def _enclosed(content: Json) -> Json:
    """A tool's result for a template that knows no tools, as part of a turn of the user."""
    before, after = "<tool_response>\n", "\n</tool_response>"
    if isinstance(content, list):
        first: Json = {"type": "text", "text": before}
        last: Json = {"type": "text", "text": after}
        return [first, *content, last]
    return f"{before}{content}{after}"


def _call_arguments(call: ToolCall) -> str:
    if call.kind == "custom":
        return msgspec.json.encode({"input": call.arguments}).decode()
    return call.arguments


def _object(text: str) -> JsonObject | None:
    try:
        value: Json = jiter.from_json(text.encode())
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def merged(one: JsonObject, other: JsonObject, between: str) -> JsonObject:
    """Two turns of one role as one turn; everything but the content is the first one's."""
    a, b = one["content"], other["content"]
    if isinstance(a, list) or isinstance(b, list):
        gap: Json = {"type": "text", "text": between}
        return {**one, "content": [*_parts(a), gap, *_parts(b)]}
    return {**one, "content": f"{a}{between}{b}"}


def _parts(content: Json) -> list[Json]:
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


# ---------------------------------------------------------------- for templates that refuse


def without_thoughts(messages: list[JsonObject]) -> list[JsonObject]:
    return [
        {key: item for key, item in message.items() if key not in ("reasoning_content", "thinking")}
        for message in messages
    ]


def with_one_system(messages: list[JsonObject]) -> list[JsonObject]:
    """All instructions as one system message in front."""
    systems = [m for m in messages if m["role"] in ("system", "developer")]
    others = [m for m in messages if m["role"] not in ("system", "developer")]
    if not systems:
        return messages
    first = systems[0]
    for message in systems[1:]:
        first = merged(first, message, "\n\n")
    return [{**first, "role": "system"}, *others]


def without_system(messages: list[JsonObject]) -> list[JsonObject]:
    """The instructions in front of what the user says first."""
    messages = with_one_system(messages)
    if not messages or messages[0]["role"] != "system":
        return messages
    system, *others = messages
    for i, message in enumerate(others):
        if message["role"] == "user":
            both = merged({**message, "content": system["content"]}, message, "\n\n")
            return [*others[:i], both, *others[i + 1 :]]
    return [{"role": "user", "content": system["content"]}, *others]


def with_turns_by_turns(messages: list[JsonObject]) -> list[JsonObject]:
    """Neighbours of one role, without calls, as one turn."""
    turns: list[JsonObject] = []
    for message in messages:
        last = turns[-1] if turns else None
        if (
            last is not None
            and last["role"] == message["role"]
            and message["role"] in ("user", "assistant")
            and "tool_calls" not in last
            and "tool_calls" not in message
        ):
            turns[-1] = merged(last, message, "\n\n")
        else:
            turns.append(message)
    return turns


ADAPTATIONS: tuple[Callable[[list[JsonObject]], list[JsonObject]], ...] = (
    without_thoughts,
    with_one_system,
    without_system,
    with_turns_by_turns,
)
"""Tried one on top of the other when a template refuses a conversation as it is."""


def with_instructions(messages: list[JsonObject], text: str) -> list[JsonObject]:
    """The text at the end of the first system message, or as one."""
    said: JsonObject = {"role": "system", "content": text}
    if messages and messages[0]["role"] in ("system", "developer"):
        return [merged(messages[0], said, "\n\n"), *messages[1:]]
    return [said, *messages]
