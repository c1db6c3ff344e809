"""The shapes of messages and content parts (contract 1.5), and the rules between messages.

This module must not know: other parameters, what a model can do with a part.
"""

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from rejoinder.dialects.profile import ByDialect, Profile
from rejoinder.dialects.shapes import (
    Ignored,
    Shape,
    anything,
    array,
    either,
    fields,
    free_object,
    literal,
    nullable,
    one_of,
    refused,
    string,
    tagged,
    text,
    unheeded,
    unused,
)
from rejoinder.dialects.violation import (
    Violation,
    missing,
    unsupported_parameter,
)
from rejoinder.types import (
    AssistantMessage,
    AudioPart,
    Content,
    ContentPart,
    DeveloperMessage,
    FilePart,
    FunctionMessage,
    ImagePart,
    Json,
    Message,
    RefusalPart,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
    VideoPart,
)

nonempty = string(empty_allowed=False)


def cache_control(value: Json, ignored: Ignored) -> bool:
    """D: any object marks the end of a reusable prefix (R62, 4.6)."""
    free_object(value, ignored)
    return True


_explicit_breakpoint = fields(lambda: True, {"mode": literal("explicit")}, required=("mode",))


# ---------------------------------------------------------------- content parts


def _part(profile: Profile, make: type[ContentPart], kind: str, body: Shape) -> Shape:
    """A part other than text: `{"type": kind, kind: body}`. It cannot end a reusable prefix."""
    return fields(
        lambda **found: make(**found[kind]),
        profile.rows(
            {
                "type": (anything, anything),
                kind: (body, body),
                "prompt_cache_breakpoint": (nullable(unheeded(_explicit_breakpoint)), None),
                "cache_control": (None, nullable(unheeded(free_object))),
            }
        ),
        required=(kind,),
        lenient=profile.lenient,
    )


def _text_part(profile: Profile) -> Shape:
    return fields(
        TextPart,
        profile.rows(
            {
                "type": (anything, anything),
                "text": (text, text),
                "prompt_cache_breakpoint": (nullable(_explicit_breakpoint), None),
                "cache_control": (None, nullable(cache_control)),
            }
        ),
        names={
            "prompt_cache_breakpoint": "cache_breakpoint",
            "cache_control": "cache_breakpoint",
        },
        required=("text",),
        lenient=profile.lenient,
    )


def _refusal_part(profile: Profile) -> Shape:
    return fields(
        RefusalPart,
        profile.rows({"type": (anything, anything), "refusal": (text, None)}),
        required=("refusal",),
        lenient=profile.lenient,
    )


def _media_parts(profile: Profile) -> dict[str, Shape]:
    def body(*required: str, **rows: Shape) -> Shape:
        return fields(dict, rows, required=required, lenient=profile.lenient)

    detail = one_of("auto", "low", "high")
    audio_format = one_of("wav", "mp3")
    audio_needs: list[str] = profile.pick(["data", "format"], ["data"])
    image = body("url", url=nonempty, detail=profile.pick(detail, nullable(detail)))
    audio = body(*audio_needs, data=nonempty, format=audio_format)
    file = body(file_data=nonempty, file_id=nonempty, filename=text)
    video = body("url", url=nonempty)
    return profile.rows(
        {
            "image_url": (_part(profile, ImagePart, "image_url", image),) * 2,
            "input_audio": (_part(profile, AudioPart, "input_audio", audio),) * 2,
            "file": (_part(profile, FilePart, "file", file), None),
            "video_url": (None, _part(profile, VideoPart, "video_url", video)),
        }
    )


def _content(profile: Profile, parts: dict[str, Shape]) -> Shape:
    """One string, or parts; O wants at least one."""
    some = array(tagged("type", parts), empty_allowed=profile.is_deepinfra)
    return either({str: text, list: some}, "a string or an array of content parts")


# ---------------------------------------------------------------- messages by role


def _tool_call(profile: Profile) -> Shape:
    def function(name: str, arguments: str) -> dict[str, str]:
        return {"name": name, "arguments": arguments}

    def custom(name: str, input: str) -> dict[str, str]:
        return {"name": name, "arguments": input, "kind": "custom"}

    def call(kind: str, body: Shape) -> Shape:
        return fields(
            lambda **found: ToolCall(id=found["id"], **found[kind]),
            {"id": nonempty, "type": anything, "index": anything, kind: body},
            required=("id", kind),
            lenient=profile.lenient,
        )

    function_body = fields(
        function,
        {"name": nonempty, "arguments": text, "parsed_arguments": anything},
        required=("name", "arguments"),
        lenient=profile.lenient,
    )
    custom_body = fields(
        custom,
        {"name": nonempty, "input": text},
        required=("name", "input"),
        lenient=profile.lenient,
    )
    kinds: dict[str, ByDialect] = {
        "function": (call("function", function_body),) * 2,
        "custom": (call("custom", custom_body), None),
    }
    default: str | None = "function" if profile.is_deepinfra else None
    return tagged("type", profile.rows(kinds), default=default)


class _LegacyCall(Struct, frozen=True):
    name: str
    arguments: str


LEGACY_CALL_ID = "call_legacy_{}"
"""The id that an assistant's `function_call` gets in the core; {} is the message's index."""


def _assistant(profile: Profile) -> Shape:
    part_kinds = {"text": _text_part(profile)}
    if not profile.is_deepinfra:
        part_kinds["refusal"] = _refusal_part(profile)
    name = profile.pick(text, nullable(text))
    calls = array(_tool_call(profile), empty_allowed=profile.is_deepinfra)
    audio = fields(dict, {"id": text}, required=("id",), lenient=profile.lenient)
    legacy = fields(
        _LegacyCall,
        {"name": nonempty, "arguments": text},
        required=("name", "arguments"),
        lenient=profile.lenient,
    )
    shows_reasoning = nullable(text) if profile.reasoning else None
    rows: dict[str, ByDialect] = {
        "role": (anything, anything),
        "content": (nullable(_content(profile, part_kinds)),) * 2,
        "name": (name, name),
        "refusal": (nullable(text), None),
        "reasoning_content": (shows_reasoning, nullable(text)),
        "tool_calls": (nullable(calls),) * 2,
        "function_call": (nullable(legacy), None),
        "audio": (nullable(refused(audio, lambda: unsupported_parameter(NO_AUDIO))), None),
        # What our own answers carry, and clients send back as it is.
        "annotations": (nullable(unused(array(anything))), None),
        # What OpenAI's own SDKs add to a parsed answer, and send back: this, null calls, and
        # `index` and `parsed_arguments` in calls.
        "parsed": (anything, None),
        "cache_control": (None, nullable(cache_control)),
    }

    def make(function_call: _LegacyCall | None = None, **found: Any) -> AssistantMessage:
        if function_call is not None:
            call = ToolCall(id="", name=function_call.name, arguments=function_call.arguments)
            found["tool_calls"] = (*found.get("tool_calls", ()), call)
        message = AssistantMessage(**found)
        if not profile.is_deepinfra:
            _check_assistant(message)
        return message

    return fields(
        make,
        profile.rows(rows),
        names={"cache_control": "cache_breakpoint"},
        lenient=profile.lenient,
    )


NO_AUDIO = "no model here makes audio."


def _check_assistant(message: AssistantMessage) -> None:
    content = message.content
    if content is None and not message.tool_calls and message.refusal is None:
        raise missing("content")  # R48
    if isinstance(content, tuple) and len(content) > 1:
        for index, part in enumerate(content):
            if isinstance(part, RefusalPart):
                fault = Violation(
                    "invalid_value",
                    ": a refusal must be the only content part.",
                    lead="Invalid value for",
                    path=("content", index),
                )
                raise fault  # R49


def messages_shape(profile: Profile) -> Shape:
    text_content = _content(profile, {"text": _text_part(profile)})
    user_content = _content(profile, {"text": _text_part(profile), **_media_parts(profile)})
    name = profile.pick(text, nullable(text))
    mark: ByDialect = (None, nullable(cache_control))

    def message(make: type[Message], *required: str, **rows: Shape) -> Shape:
        table: dict[str, ByDialect] = {key: (shape, shape) for key, shape in rows.items()}
        return fields(
            make,
            profile.rows({"role": (anything, anything), **table, "cache_control": mark}),
            required=required,
            names={"cache_control": "cache_breakpoint"},
            lenient=profile.lenient,
        )

    system = message(SystemMessage, "content", content=text_content, name=name)
    developer = message(DeveloperMessage, "content", content=text_content, name=name)
    user = message(UserMessage, "content", content=user_content, name=name)
    tool = message(
        ToolMessage,
        "content",
        "tool_call_id",
        content=text_content,
        tool_call_id=nonempty,
        name=nullable(unheeded(text)),  # in no specification, and in very many clients
    )
    function = fields(
        lambda name, content=None: FunctionMessage(content=content, name=name),
        {"role": anything, "content": nullable(text), "name": nonempty},
        required=("content", "name"),
        lenient=profile.lenient,
    )
    roles: dict[str, ByDialect] = {
        "developer": (developer, None),
        "system": (system, system),
        "user": (user, user),
        "assistant": (_assistant(profile),) * 2,
        "tool": (tool, tool),
        "function": (function, None),
    }
    return array(tagged("role", profile.rows(roles)), empty_allowed=False)


# ---------------------------------------------------------------- rules between messages


def modern(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Legacy function calls and their answers as tool calls and tool messages.

    An answer that follows no call of its name stays what it is.
    """
    if not any(_has_legacy_call(message) for message in messages):
        return messages
    renewed: list[Message] = []
    waiting: ToolCall | None = None
    for index, message in enumerate(messages):
        match message:
            case AssistantMessage() if _has_legacy_call(message):
                waiting = replace(message.tool_calls[-1], id=LEGACY_CALL_ID.format(index))
                renewed.append(replace(message, tool_calls=(*message.tool_calls[:-1], waiting)))
            case FunctionMessage() if waiting is not None and waiting.name == message.name:
                renewed.append(ToolMessage(message.content or "", waiting.id))
                waiting = None
            case _:
                waiting = None
                renewed.append(message)
    return tuple(renewed)


def _has_legacy_call(message: Message) -> bool:
    return isinstance(message, AssistantMessage) and any(not c.id for c in message.tool_calls)


def check_tool_answers(messages: tuple[Message, ...]) -> None:
    """O: every call is answered before the next other message, and only calls are (R45, R46)."""
    announced: set[str] = set()
    open_ids: dict[str, None] = {}
    for index, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in announced:
                raise Violation(
                    None,
                    "A message with role 'tool' must answer a call in 'tool_calls' of the "
                    "assistant message before it; "
                    f"'{message.tool_call_id[:64]}' is the id of none.",
                    param=f"messages.[{index}].role",
                )
            open_ids.pop(message.tool_call_id, None)
            continue
        if open_ids:
            raise _unanswered(index, open_ids)
        calls = message.tool_calls if isinstance(message, AssistantMessage) else ()
        announced = {call.id for call in calls if call.id}
        open_ids = dict.fromkeys(call.id for call in calls if call.id)
    if open_ids:
        raise _unanswered(len(messages) - 1, open_ids)


def _unanswered(index: int, ids: dict[str, None]) -> Violation:
    named = ", ".join(ids)
    return Violation(
        None,
        "An assistant message with 'tool_calls' must be followed by a tool message for each of "
        f"its calls. No message answers: {named}",
        param=f"messages.[{index}].role",
    )


def texts_of(content: Content | None) -> list[str]:
    """The text of a content, part by part."""
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    return [part.text for part in content if isinstance(part, TextPart)]


def mentions_json(messages: tuple[Message, ...]) -> bool:
    """Whether the word json is anywhere in the messages' text (R42)."""
    return any(
        "json" in piece.lower() for message in messages for piece in texts_of(message.content)
    )
