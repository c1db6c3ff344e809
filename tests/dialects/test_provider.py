"""Requests to providers: every field by its row of the table, in both dialects."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from rejoinder.dialects.dialect import RequestPolicy
from rejoinder.dialects.openai import OpenAI
from rejoinder.dialects.provider import (
    REQUEST_FIELDS,
    ProviderDialect,
    ProviderRequest,
    encode_request,
    estimate_prompt_tokens,
)
from rejoinder.errors import InvalidRequest
from rejoinder.types import (
    AssistantMessage,
    AudioPart,
    ChatRequest,
    CustomTool,
    DeveloperMessage,
    FilePart,
    FunctionMessage,
    ImagePart,
    JsonObjectFormat,
    JsonSchemaFormat,
    ModerationRequest,
    PromptCache,
    Reasoning,
    RefusalPart,
    RegexFormat,
    SystemMessage,
    TextPart,
    Tool,
    ToolCall,
    ToolChoice,
    ToolMessage,
    UserMessage,
    VideoPart,
)

HI = ChatRequest(model="m", messages=(UserMessage("hi"),))
BOTH: tuple[ProviderDialect, ...] = ("openai", "deepinfra")


def sent(request: ChatRequest, dialect: ProviderDialect = "openai", **keys: Any) -> ProviderRequest:
    return encode_request(request, dialect=dialect, model="up", **keys)


def body(request: ChatRequest, dialect: ProviderDialect = "openai", **keys: Any) -> dict[str, Any]:
    encoded: dict[str, Any] = json.loads(sent(request, dialect, **keys).body)
    return encoded


def asking(**fields: Any) -> ChatRequest:
    return replace(HI, **fields)


def user(*parts: Any) -> ChatRequest:
    return asking(messages=(UserMessage(parts),))


TOOL = Tool("f", parameters={"type": "object"})

# For each row of the table: a request that asks for it, and how it is then seen in the body
# (a member and its value; None: the member is absent).
Seen = dict[str, Any] | None
EXAMPLES: dict[str, tuple[ChatRequest, Seen, Seen]] = {
    "model": (HI, {"model": "up"}, {"model": "up"}),
    "messages": (HI, {"messages": [{"role": "user", "content": "hi"}]}, {}),
    "messages[].role: developer": (
        asking(messages=(DeveloperMessage("d"),)),
        {"messages": [{"role": "developer", "content": "d"}]},
        {"messages": [{"role": "system", "content": "d"}]},
    ),
    "messages[].role: function": (
        asking(
            messages=(
                AssistantMessage(tool_calls=(ToolCall("c1", "f", "{}"),)),
                FunctionMessage("r", "f"),
            )
        ),
        {},
        {},
    ),
    "messages[].reasoning_content": (
        asking(messages=(AssistantMessage("a", reasoning_content="r"),)),
        {"messages": [{"role": "assistant", "content": "a"}]},
        {"messages": [{"role": "assistant", "content": "a", "reasoning_content": "r"}]},
    ),
    "messages[].refusal": (
        asking(messages=(AssistantMessage(refusal="no"),)),
        {"messages": [{"role": "assistant", "content": None, "refusal": "no"}]},
        {"messages": [{"role": "assistant", "content": "no"}]},
    ),
    "messages[].content[]: image_url": (user(ImagePart("u", "low")), {}, {}),
    "messages[].content[]: input_audio": (user(AudioPart("d", "mp3")), {}, {}),
    "messages[].content[]: file": (user(FilePart(file_id="x")), {}, None),
    "messages[].content[]: video_url": (user(VideoPart("u")), None, {}),
    "cache_control": (
        asking(messages=(UserMessage("hi", cache_breakpoint=True),)),
        {"messages": [{"role": "user", "content": "hi"}]},
        {"messages": [{"role": "user", "content": "hi", "cache_control": {"type": "ephemeral"}}]},
    ),
    "stream": (HI, {"stream": True}, {"stream": True}),
    "stream_options": (HI, {"stream_options": {"include_usage": True}}, {}),
    "n": (asking(n=3), {"n": 3}, {"n": 3}),
    "temperature": (asking(temperature=0.0), {"temperature": 0.0}, {"temperature": 0.0}),
    "top_p": (asking(top_p=0.0), {"top_p": 0.0}, {"top_p": 1e-6}),
    "top_k": (asking(top_k=5), None, {"top_k": 5}),
    "min_p": (asking(min_p=0.1), None, {"min_p": 0.1}),
    "presence_penalty": (asking(presence_penalty=1.0), {"presence_penalty": 1.0}, {}),
    "frequency_penalty": (asking(frequency_penalty=-1.0), {"frequency_penalty": -1.0}, {}),
    "repetition_penalty": (asking(repetition_penalty=1.2), None, {"repetition_penalty": 1.2}),
    "seed": (asking(seed=0), {"seed": 0}, {"seed": 0}),
    "logit_bias": (asking(logit_bias=((5, -100.0),)), {"logit_bias": {"5": -100.0}}, None),
    "logprobs": (asking(logprobs=True), {"logprobs": True, "top_logprobs": None}, {}),
    "top_logprobs": (
        asking(logprobs=True, num_top_logprobs=4),
        {"logprobs": True, "top_logprobs": 4},
        {"top_logprobs": 4},
    ),
    "max_tokens": (asking(max_tokens=9), {"max_tokens": 9}, {"max_tokens": 9}),
    "stop": (
        asking(stop=tuple("abcde")),
        {"stop": ["a", "b", "c", "d"]},
        {"stop": ["a", "b", "c", "d", "e"]},
    ),
    "stop_token_ids": (asking(stop_token_ids=(1,)), None, {"stop_token_ids": [1]}),
    "tools[].type: custom": (
        asking(tools=(CustomTool("c", syntax="regex", definition="a+"),)),
        {
            "tools": [
                {
                    "type": "custom",
                    "custom": {
                        "name": "c",
                        "format": {
                            "type": "grammar",
                            "grammar": {"syntax": "regex", "definition": "a+"},
                        },
                    },
                }
            ]
        },
        None,
    ),
    "tools": (
        asking(tools=(TOOL,)),
        {
            "tools": [
                {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
            ]
        },
        {"tool_choice": None},
    ),
    "tools[].function.strict": (
        asking(tools=(Tool("f", strict=True),)),
        {"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
    ),
    "functions": (
        asking(tools=(TOOL,), legacy_functions=True, parallel_tool_calls=False),
        {"functions": None, "parallel_tool_calls": False},
        {"functions": None, "parallel_tool_calls": None},
    ),
    "tool_choice": (
        asking(tools=(TOOL,), tool_choice=ToolChoice("required")),
        {"tool_choice": "required"},
        {"tool_choice": "required"},
    ),
    "parallel_tool_calls": (
        asking(tools=(TOOL,), parallel_tool_calls=False),
        {"parallel_tool_calls": False},
        {"parallel_tool_calls": None},
    ),
    "response_format": (
        asking(response_format=JsonObjectFormat()),
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_object"}},
    ),
    "response_format.type: regex": (
        asking(response_format=RegexFormat("a+")),
        None,
        {"response_format": {"type": "regex", "regex": "a+"}},
    ),
    "reasoning_effort": (
        asking(reasoning=Reasoning("minimal")),
        {"reasoning_effort": "minimal"},
        {"reasoning_effort": "low"},
    ),
    "chat_template_kwargs": (
        asking(chat_template_kwargs={"a": 1}),
        None,
        {"chat_template_kwargs": {"a": 1}},
    ),
    "continue_final_message": (
        asking(continue_final_message=True),
        None,
        {"continue_final_message": True},
    ),
    "prediction": (
        asking(prediction="p"),
        {"prediction": {"type": "content", "content": "p"}},
        {"prediction": None},
    ),
    "verbosity": (asking(verbosity="low"), {"verbosity": "low"}, {"verbosity": None}),
    "service_tier": (asking(tier="priority"), {"service_tier": "priority"}, {}),
    "prompt_cache_key": (
        asking(prompt_cache=PromptCache(key="k")),
        {"prompt_cache_key": "k"},
        {"prompt_cache_key": "k"},
    ),
    "prompt_cache_options": (
        asking(prompt_cache=PromptCache(mode="explicit")),
        {"prompt_cache_options": None},
        {"prompt_cache_options": None},
    ),
    "user": (asking(user="u"), {"user": "u"}, {"user": "u"}),
    "safety_identifier": (
        asking(safety_identifier="s"),
        {"safety_identifier": "s"},
        {"safety_identifier": None},
    ),
    "store": (asking(store=True), {"store": None}, {"store": None}),
    "metadata": (asking(metadata=(("a", "b"),)), {"metadata": None}, {"metadata": None}),
    "moderation": (
        asking(moderation=ModerationRequest("omni")),
        {"moderation": None},
        {"moderation": None},
    ),
}


def test_every_row_has_an_example() -> None:
    assert [field.param for field in REQUEST_FIELDS] == list(EXAMPLES)


@pytest.mark.parametrize("dialect", BOTH)
@pytest.mark.parametrize("field", REQUEST_FIELDS, ids=lambda field: field.param)
def test_a_row_does_what_it_says(field: Any, dialect: ProviderDialect) -> None:
    request, *seen = EXAMPLES[field.param]
    wanted = seen[dialect == "deepinfra"]
    assert field.asked(request)
    assert (wanted is None) == (field.by(dialect) == "refused")
    if wanted is None:
        with pytest.raises(InvalidRequest) as raised:
            sent(request, dialect)
        assert raised.value.param
        assert raised.value.param in field.param
        assert raised.value.code == "unsupported_parameter"
        return
    encoded = body(request, dialect)
    for member, value in wanted.items():
        assert encoded.get(member) == value, member


def test_what_was_not_asked_is_not_refused_and_not_sent() -> None:
    for dialect in BOTH:
        assert body(HI, dialect) == {
            "model": "up",
            "messages": [{"role": "user", "content": "hi"}],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    neutral = asking(top_k=0, min_p=0.0, repetition_penalty=1.0)
    assert body(neutral).keys() == body(HI).keys()


@pytest.mark.parametrize(
    ("request_", "dialect", "param"),
    [
        (asking(n=5), "deepinfra", "n"),
        (asking(max_tokens=0), "openai", "max_tokens"),
        (user(VideoPart("u")), "openai", "messages"),
        (asking(tools=(CustomTool("c"),)), "deepinfra", "tools"),
        (asking(response_format=RegexFormat("a")), "openai", "response_format.type"),
    ],
)
def test_refusals_name_the_parameter(
    request_: ChatRequest, dialect: ProviderDialect, param: str
) -> None:
    with pytest.raises(InvalidRequest) as raised:
        sent(request_, dialect)
    assert raised.value.param == param
    assert raised.value.status == 400


@pytest.mark.parametrize(
    ("named", "configured", "told"),
    [
        ("max_tokens", None, "max_tokens"),
        ("max_completion_tokens", None, "max_completion_tokens"),
        ("max_tokens", "max_completion_tokens", "max_completion_tokens"),
        ("max_completion_tokens", "max_tokens", "max_tokens"),
    ],
)
def test_the_token_limit_has_one_name(named: str, configured: Any, told: str) -> None:
    request = asking(max_tokens=5, max_tokens_param=named)
    limits = {k: v for k, v in body(request, limit_name=configured).items() if "max" in k}
    assert limits == {told: 5}
    assert {k for k in body(request, "deepinfra") if "max" in k} == {"max_tokens"}


def test_the_word_json_is_said_only_where_it_is_required_and_missing() -> None:
    told = {"role": "system", "content": "Answer with one JSON object."}
    hi = {"role": "user", "content": "hi"}
    request = asking(response_format=JsonObjectFormat())
    assert body(request)["messages"] == [hi]
    assert body(request, json_word="required")["messages"] == [told, hi]
    assert body(HI, json_word="required")["messages"] == [hi]
    with_word = replace(request, messages=(UserMessage("as Json"),))
    assert len(body(with_word, json_word="required")["messages"]) == 1
    with_system = replace(request, messages=(SystemMessage("s"), UserMessage("hi")))
    roles = [m["content"] for m in body(with_system, json_word="required")["messages"]]
    assert roles == ["s", told["content"], "hi"]


def test_what_is_left_to_us() -> None:
    assert sent(asking(stop=tuple("abcd"))).stop == ()
    assert sent(asking(stop=tuple("abcde"))).stop == tuple("abcde")
    assert sent(asking(stop=tuple("abcde")), "deepinfra").stop == ()
    assert sent(HI).max_calls is None
    assert sent(asking(tools=(TOOL,), parallel_tool_calls=False)).max_calls == 1


@pytest.mark.parametrize(
    ("choice", "openai", "deepinfra"),
    [
        (ToolChoice("auto"), None, None),
        (ToolChoice("none"), "none", "none"),
        (
            ToolChoice("required", ("g",), named=True),
            {"type": "function", "function": {"name": "g"}},
            {"type": "function", "function": {"name": "g"}},
        ),
        (
            ToolChoice("required", ("g",)),
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "g"}}],
                },
            },
            "required",
        ),
    ],
)
def test_tool_choices(choice: ToolChoice, openai: Any, deepinfra: Any) -> None:
    request = asking(tools=(TOOL, Tool("g")), tool_choice=choice)
    assert body(request).get("tool_choice") == openai
    assert body(request, "deepinfra").get("tool_choice") == deepinfra
    shown = [tool["function"]["name"] for tool in body(request, "deepinfra")["tools"]]
    assert shown == (["g"] if choice.allowed and not choice.named else ["f", "g"])


def test_a_schema_is_forwarded_whole_and_in_order() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}, "required": ["b"]}
    request = asking(response_format=JsonSchemaFormat("n", schema, "d", strict=True))
    wanted = {"name": "n", "description": "d", "schema": schema, "strict": True}
    for dialect in BOTH:
        got = body(request, dialect)["response_format"]
        assert got == {"type": "json_schema", "json_schema": wanted}
        assert list(got["json_schema"]["schema"]["properties"]) == ["b", "a"]


def test_a_whole_conversation() -> None:
    request = asking(
        messages=(
            SystemMessage("s", name="sys"),
            UserMessage((TextPart("look"), ImagePart("http://x/y.png"))),
            AssistantMessage(
                tool_calls=(ToolCall("a", "f", '{"x":1}'), ToolCall("b", "f", "not json"))
            ),
            ToolMessage("1", "a"),
            ToolMessage((TextPart("2"),), "b"),
            AssistantMessage((RefusalPart("no"),)),
        )
    )
    for dialect in BOTH:
        assert body(request, dialect)["messages"] == [
            {"role": "system", "content": "s", "name": "sys"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "look"},
                    {"type": "image_url", "image_url": {"url": "http://x/y.png"}},
                ],
            },
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "a",
                        "type": "function",
                        "function": {"name": "f", "arguments": '{"x":1}'},
                    },
                    {
                        "id": "b",
                        "type": "function",
                        "function": {"name": "f", "arguments": "not json"},
                    },
                ],
            },
            {"role": "tool", "tool_call_id": "a", "content": "1"},
            {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "2"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "no"}]},
        ]


def test_legacy_answers_belong_to_the_latest_call_of_their_name() -> None:
    request = asking(
        messages=(
            AssistantMessage(tool_calls=(ToolCall("", "f", "{}"),)),
            FunctionMessage("r", "f"),
        )
    )
    call, answered = body(request)["messages"]
    assert call["tool_calls"][0]["id"] == answered["tool_call_id"] != ""
    with pytest.raises(InvalidRequest) as raised:
        body(asking(messages=(FunctionMessage("r", "f"),)))
    assert raised.value.param == "messages.[0].role"


def test_reasoning_goes_back_where_the_configuration_says() -> None:
    request = asking(messages=(AssistantMessage("a", reasoning_content="r"),))
    assert body(request, reasoning_field="reasoning")["messages"][0]["reasoning"] == "r"
    assert "reasoning" not in body(request, reasoning_field="none")["messages"][0]


def test_what_we_send_our_own_dialect_reads() -> None:
    """A provider of OpenAI's dialect accepts everything that is sent to one."""
    for param, (request, openai, _) in EXAMPLES.items():
        if openai is None or param == "messages[].role: function":
            continue
        if param in ("prediction", "messages[].refusal", "functions"):
            request = replace(request, n=1)
        raw = json.loads(sent(request).body)
        if raw.get("response_format") == {"type": "json_object"}:
            raw["messages"].append({"role": "user", "content": "json"})
        OpenAI().decode_request(json.dumps(raw).encode(), RequestPolicy())


def test_the_estimate_grows_with_the_text_and_not_with_media() -> None:
    assert estimate_prompt_tokens(HI) > 0
    long = asking(messages=(UserMessage("word " * 1000),))
    assert 1000 < estimate_prompt_tokens(long) < 1500
    picture = user(ImagePart("data:image/png;base64," + "A" * 1_000_000))
    assert estimate_prompt_tokens(picture) < 1000
    assert estimate_prompt_tokens(asking(tools=(TOOL,))) > estimate_prompt_tokens(HI)
