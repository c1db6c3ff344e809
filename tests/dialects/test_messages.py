"""Messages and content parts, role by role, in both dialects (contract 1.5, R45–R52, R62)."""

from typing import Any

import pytest

from rejoinder.dialects import OPENAI, RequestPolicy
from rejoinder.types import (
    AnswerOptions,
    AssistantMessage,
    AudioPart,
    DeveloperMessage,
    FilePart,
    FunctionMessage,
    ImagePart,
    Message,
    RefusalPart,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
    VideoPart,
)
from tests.dialects.test_goldens import CASES
from tests.dialects.test_parameters import decode, refusal
from tests.dialects.wire import SHOWN, body_of

TYPE, VALUE = "invalid_type", "invalid_value"
UNKNOWN, MISSING = "unknown_parameter", "missing_required_parameter"
EMPTY_ARRAY, EMPTY_STRING = "empty_array", "empty_string"

USER = {"role": "user", "content": "hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
ANSWER = {"role": "tool", "tool_call_id": "c1", "content": "12:00"}
DECODED_CALL = ToolCall("c1", "now", "{}")
ACCEPT = RequestPolicy(extra_parameters="accept")


def body(*messages: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages)}


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **more}


def image(**fields: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": fields}


EXPLICIT = {"mode": "explicit"}
EPHEMERAL = {"type": "ephemeral", "ttl": "1h"}

LEGAL: list[tuple[str, dict[str, Any], Message]] = [
    ("OD", USER, UserMessage("hi")),
    ("OD", {**USER, "content": ""}, UserMessage("")),
    ("OD", {**USER, "name": "ann"}, UserMessage("hi", "ann")),
    ("D", {**USER, "name": None}, UserMessage("hi")),
    ("OD", {"role": "system", "content": "s"}, SystemMessage("s")),
    ("OD", {"role": "system", "content": [text("s")]}, SystemMessage((TextPart("s"),))),
    ("O", {"role": "developer", "content": "d", "name": "n"}, DeveloperMessage("d", "n")),
    (
        "OD",
        {**USER, "content": [text("a"), text("b")]},
        UserMessage((TextPart("a"), TextPart("b"))),
    ),
    ("OD", {**USER, "content": [image(url="u")]}, UserMessage((ImagePart("u"),))),
    (
        "OD",
        {**USER, "content": [image(url="u", detail="low")]},
        UserMessage((ImagePart("u", "low"),)),
    ),
    (
        "OD",
        {
            **USER,
            "content": [{"type": "input_audio", "input_audio": {"data": "d", "format": "mp3"}}],
        },
        UserMessage((AudioPart("d", "mp3"),)),
    ),
    (
        "D",
        {**USER, "content": [{"type": "input_audio", "input_audio": {"data": "d"}}]},
        UserMessage((AudioPart("d", "wav"),)),
    ),
    (
        "O",
        {**USER, "content": [{"type": "file", "file": {"file_id": "f", "filename": "n"}}]},
        UserMessage((FilePart(file_id="f", filename="n"),)),
    ),
    (
        "D",
        {**USER, "content": [{"type": "video_url", "video_url": {"url": "u"}}]},
        UserMessage((VideoPart("u"),)),
    ),
    (
        "O",
        {**USER, "content": [text("a", prompt_cache_breakpoint=EXPLICIT)]},
        UserMessage((TextPart("a", cache_breakpoint=True),)),
    ),
    (
        "O",
        {**USER, "content": [text("a", prompt_cache_breakpoint=None)]},
        UserMessage((TextPart("a"),)),
    ),
    ("D", {**USER, "cache_control": EPHEMERAL}, UserMessage("hi", cache_breakpoint=True)),
    ("D", {**USER, "cache_control": {}}, UserMessage("hi", cache_breakpoint=True)),
    ("D", {**USER, "cache_control": None}, UserMessage("hi")),
    (
        "D",
        {**USER, "content": [text("a", cache_control=EPHEMERAL)]},
        UserMessage((TextPart("a", cache_breakpoint=True),)),
    ),
    ("OD", {"role": "assistant", "content": "a"}, AssistantMessage("a")),
    ("OD", {"role": "assistant", "content": "a", "tool_calls": None}, AssistantMessage("a")),
    ("O", {"role": "assistant", "content": "a", "parsed": {"b": 1}}, AssistantMessage("a")),
    ("D", {"role": "assistant"}, AssistantMessage()),
    ("D", {"role": "assistant", "content": None, "tool_calls": None}, AssistantMessage()),
    ("D", {"role": "assistant", "content": "b", "tool_calls": []}, AssistantMessage("b")),
    (
        "D",
        {"role": "assistant", "content": "b", "reasoning_content": "why"},
        AssistantMessage("b", reasoning_content="why"),
    ),
    (
        "O",
        {"role": "assistant", "content": None, "refusal": "no"},
        AssistantMessage(refusal="no"),
    ),
    (
        "O",
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        AssistantMessage((RefusalPart("no"),)),
    ),
    (
        "O",
        {
            "role": "assistant",
            "content": "a",
            "refusal": None,
            "annotations": [],
            "audio": None,
            "function_call": None,
        },
        AssistantMessage("a"),
    ),
]


@pytest.mark.parametrize(
    ("dialect", "message", "decoded"),
    [
        pytest.param({"O": "openai", "D": "deepinfra"}[letter], message, decoded)
        for letters, message, decoded in LEGAL
        for letter in letters
    ],
)
def test_legal_messages(dialect: str, message: dict[str, Any], decoded: Message) -> None:
    request = decode(dialect, body(USER, message))
    assert request.chat.messages == (UserMessage("hi"), decoded)
    assert request.ignored == ()


def part(kind: str, **fields: Any) -> dict[str, Any]:
    return {**USER, "content": [{"type": kind, **fields}]}


ILLEGAL: list[tuple[str, dict[str, Any], str | None, str]] = [
    ("openai", {}, MISSING, "messages[1].role"),
    ("openai", {"content": "x"}, MISSING, "messages[1].role"),
    ("openai", {"role": None, "content": "x"}, TYPE, "messages[1].role"),
    ("openai", {"role": ["user"], "content": "x"}, TYPE, "messages[1].role"),
    ("openai", {"role": "robot", "content": "x"}, VALUE, "messages[1].role"),
    ("openai", {"role": "user"}, MISSING, "messages[1].content"),
    ("openai", {**USER, "content": None}, TYPE, "messages[1].content"),
    ("openai", {**USER, "content": 1}, TYPE, "messages[1].content"),
    ("openai", {**USER, "content": []}, EMPTY_ARRAY, "messages[1].content"),
    ("openai", {**USER, "content": ["x"]}, TYPE, "messages[1].content[0]"),
    ("openai", {**USER, "content": [{}]}, MISSING, "messages[1].content[0].type"),
    ("openai", part("magic"), VALUE, "messages[1].content[0].type"),
    ("openai", part("text"), MISSING, "messages[1].content[0].text"),
    ("openai", part("text", text=None), TYPE, "messages[1].content[0].text"),
    ("openai", part("text", text="x", y=1), UNKNOWN, "messages[1].content[0].y"),
    ("openai", part("image_url"), MISSING, "messages[1].content[0].image_url"),
    ("openai", part("image_url", image_url="u"), TYPE, "messages[1].content[0].image_url"),
    ("openai", part("image_url", image_url={}), MISSING, "messages[1].content[0].image_url.url"),
    (
        "openai",
        part("image_url", image_url={"url": "u", "detail": "max"}),
        VALUE,
        "messages[1].content[0].image_url.detail",
    ),
    (
        "openai",
        part("input_audio", input_audio={"data": "d"}),
        MISSING,
        "messages[1].content[0].input_audio.format",
    ),
    (
        "openai",
        part("input_audio", input_audio={"data": "d", "format": "flac"}),
        VALUE,
        "messages[1].content[0].input_audio.format",
    ),
    ("openai", part("video_url", video_url={"url": "u"}), VALUE, "messages[1].content[0].type"),
    (
        "openai",
        part("text", text="x", prompt_cache_breakpoint={"mode": "implicit"}),
        VALUE,
        "messages[1].content[0].prompt_cache_breakpoint.mode",
    ),
    ("openai", {**USER, "name": None}, TYPE, "messages[1].name"),
    ("openai", {**USER, "cache_control": {}}, UNKNOWN, "messages[1].cache_control"),
    ("openai", {**USER, "timestamp": 1}, UNKNOWN, "messages[1].timestamp"),
    ("openai", {"role": "system"}, MISSING, "messages[1].content"),
    (
        "openai",
        {"role": "system", "content": [image(url="u")]},
        VALUE,
        "messages[1].content[0].type",
    ),
    ("openai", {"role": "assistant"}, MISSING, "messages[1].content"),
    ("openai", {"role": "assistant", "content": None}, MISSING, "messages[1].content"),
    ("openai", {"role": "assistant", "content": []}, EMPTY_ARRAY, "messages[1].content"),
    (
        "openai",
        {"role": "assistant", "content": [text("a"), {"type": "refusal", "refusal": "b"}]},
        VALUE,
        "messages[1].content[1]",
    ),
    (
        "openai",
        {"role": "assistant", "content": "a", "reasoning_content": "r"},
        UNKNOWN,
        "messages[1].reasoning_content",
    ),
    (
        "openai",
        {"role": "assistant", "content": "a", "audio": {"id": "x"}},
        "unsupported_parameter",
        "messages[1].audio",
    ),
    (
        "openai",
        {"role": "assistant", "content": "a", "tool_calls": []},
        EMPTY_ARRAY,
        "messages[1].tool_calls",
    ),
    (
        "openai",
        {"role": "assistant", "tool_calls": [{**CALL, "position": 0}]},
        UNKNOWN,
        "messages[1].tool_calls[0].position",
    ),
    (
        "openai",
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "function"}]},
        MISSING,
        "messages[1].tool_calls[0].function",
    ),
    (
        "openai",
        {
            "role": "assistant",
            "tool_calls": [
                {**CALL, "function": {"name": "now", "arguments": {"a": 1}}},
            ],
        },
        TYPE,
        "messages[1].tool_calls[0].function.arguments",
    ),
    ("openai", {"role": "tool", "tool_call_id": "c1"}, MISSING, "messages[1].content"),
    ("openai", {"role": "tool", "content": "x"}, MISSING, "messages[1].tool_call_id"),
    ("openai", {"role": "function", "content": "x"}, MISSING, "messages[1].name"),
    ("openai", {"role": "function", "name": "f"}, MISSING, "messages[1].content"),
    ("deepinfra", {"role": "developer", "content": "x"}, VALUE, "messages.1.role"),
    ("deepinfra", {"role": "function", "name": "f", "content": "x"}, VALUE, "messages.1.role"),
    ("deepinfra", {"content": "x"}, MISSING, "messages.1.role"),
    ("deepinfra", {"role": "tool", "tool_call_id": "c1"}, MISSING, "messages.1.content"),
    ("deepinfra", {"role": "tool", "content": "x"}, MISSING, "messages.1.tool_call_id"),
    ("deepinfra", {"role": "user"}, MISSING, "messages.1.content"),
    ("deepinfra", {**USER, "cache_control": "on"}, TYPE, "messages.1.cache_control"),
    ("deepinfra", part("file", file={"file_id": "f"}), VALUE, "messages.1.content.0.type"),
    (
        "deepinfra",
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "b"}]},
        VALUE,
        "messages.1.content.0.type",
    ),
    (
        "deepinfra",
        {"role": "assistant", "tool_calls": [{"id": "c"}]},
        MISSING,
        "messages.1.tool_calls.0.function",
    ),
]


@pytest.mark.parametrize(("dialect", "message", "code", "param"), ILLEGAL)
def test_illegal_messages(
    dialect: str, message: dict[str, Any], code: str | None, param: str
) -> None:
    error = refusal(dialect, body(USER, message))
    assert (error.param, error.code) == (param, code)


def test_a_whole_tool_round() -> None:
    for dialect in ("openai", "deepinfra"):
        messages = decode(dialect, body(USER, CALLING, ANSWER, USER)).chat.messages
        assert messages[1:3] == (
            AssistantMessage(tool_calls=(DECODED_CALL,)),
            ToolMessage("12:00", "c1"),
        )


@pytest.mark.parametrize("parsed", [None, {"zone": "UTC"}])
def test_what_sdks_add_to_a_call_may_come_back(parsed: Any) -> None:
    call = {**CALL, "index": 0, "function": {**CALL["function"], "parsed_arguments": parsed}}
    calling = {**CALLING, "tool_calls": [call]}
    for dialect in ("openai", "deepinfra"):
        messages = decode(dialect, body(USER, calling, ANSWER)).chat.messages
        assert messages[1] == AssistantMessage(tool_calls=(DECODED_CALL,))


def test_custom_calls_are_history_in_openai_only() -> None:
    call = {"id": "c1", "type": "custom", "custom": {"name": "run", "input": "x = 1"}}
    calling = {"role": "assistant", "tool_calls": [call]}
    messages = decode("openai", body(USER, calling, ANSWER)).chat.messages
    assert messages[1] == AssistantMessage(tool_calls=(ToolCall("c1", "run", "x = 1", "custom"),))
    error = refusal("deepinfra", body(USER, calling, ANSWER))
    assert error.param == "messages.1.tool_calls.0.type"


def test_our_own_answer_can_be_sent_back() -> None:
    policies = {"hidden": RequestPolicy(), "shown": SHOWN}
    for name, case in CASES.items():
        for policy in policies.values():
            answer = body_of(OPENAI, case.events, AnswerOptions(), policy=policy)
            for choice in answer["choices"]:
                message = choice["message"]
                answers = [
                    {"role": "tool", "tool_call_id": call["id"], "content": "ok"}
                    for call in message.get("tool_calls", [])
                ]
                request = body(USER, message, *answers)
                assert decode("openai", request, policy).ignored == (), name


ORPHANS: list[tuple[list[Any], str, str]] = [
    ([USER, ANSWER], "messages.[1].role", "c1"),
    ([USER, {"role": "assistant", "content": "a"}, ANSWER], "messages.[2].role", "c1"),
    ([CALLING, ANSWER, USER, ANSWER], "messages.[3].role", "c1"),
    ([CALLING, {**ANSWER, "tool_call_id": "c2"}], "messages.[1].role", "c2"),
    ([USER, CALLING, USER], "messages.[2].role", "c1"),
    ([USER, CALLING], "messages.[1].role", "c1"),
    (
        [{**CALLING, "tool_calls": [CALL, {**CALL, "id": "c2"}]}, ANSWER, USER],
        "messages.[2].role",
        "c2",
    ),
]


@pytest.mark.parametrize(("messages", "param", "named"), ORPHANS)
def test_calls_and_their_answers(messages: list[Any], param: str, named: str) -> None:
    """R45, R46; DeepInfra has no such rule."""
    error = refusal("openai", body(*messages))
    assert (error.param, error.code) == (param, None)
    assert named in error.message
    assert decode("deepinfra", body(*messages))


def test_answers_in_any_order_and_more_than_once() -> None:
    calls = {**CALLING, "tool_calls": [CALL, {**CALL, "id": "c2"}]}
    second = {**ANSWER, "tool_call_id": "c2"}
    assert decode("openai", body(USER, calls, second, ANSWER, second, USER))


def test_a_tool_message_may_have_a_name() -> None:
    request = decode("openai", body(USER, CALLING, {**ANSWER, "name": "now"}))
    assert request.chat.messages[-1] == ToolMessage("12:00", "c1")
    assert request.ignored == ("messages[2].name",)


def test_legacy_calls_become_tool_calls() -> None:
    calling = {"role": "assistant", "content": None, "function_call": CALL["function"]}
    answer = {"role": "function", "name": "now", "content": "12:00"}
    messages = decode("openai", body(USER, calling, answer, answer)).chat.messages
    assert messages[1:] == (
        AssistantMessage(tool_calls=(ToolCall("call_legacy_1", "now", "{}"),)),
        ToolMessage("12:00", "call_legacy_1"),
        FunctionMessage("12:00", "now"),
    )
    nothing = {"role": "function", "name": "now", "content": None}
    assert decode("openai", body(USER, calling, nothing)).chat.messages[2] == ToolMessage(
        "", "call_legacy_1"
    )
    other = {"role": "function", "name": "later", "content": "x"}
    assert decode("openai", body(USER, calling, other)).chat.messages[2] == FunctionMessage(
        "x", "later"
    )


def test_extras_accepted_in_messages() -> None:
    history = {"role": "assistant", "content": "a", "reasoning_content": "r", "x": {"y": [1]}}
    marked = {**USER, "cache_control": {}, "content": [text("a", seen=True)]}
    request = decode("openai", body(marked, history, USER), ACCEPT)
    assert request.chat.messages[:2] == (
        UserMessage((TextPart("a"),), cache_breakpoint=True),
        AssistantMessage("a", reasoning_content="r"),
    )
    assert request.ignored == ("messages[0].content[0].seen", "messages[1].x")


def test_shown_reasoning_is_accepted_back() -> None:
    history = {"role": "assistant", "content": "a", "reasoning_content": "r"}
    shown = RequestPolicy(openai_reasoning="reasoning_content")
    request = decode("openai", body(USER, history, USER), shown)
    assert request.chat.messages[1] == AssistantMessage("a", reasoning_content="r")


def test_breakpoints_on_other_parts_are_listed_as_ignored() -> None:
    part = image(url="u")
    openai = decode(
        "openai", body({**USER, "content": [{**part, "prompt_cache_breakpoint": EXPLICIT}]})
    )
    assert openai.ignored == ("messages[0].content[0].prompt_cache_breakpoint",)
    deepinfra = decode("deepinfra", body({**USER, "content": [{**part, "cache_control": {}}]}))
    assert deepinfra.ignored == ("messages.0.content.0.cache_control",)
