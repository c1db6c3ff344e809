"""Whole request bodies: rules between parameters, order of checks, hostile JSON, speed."""

import json
import time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rejoinder.dialects import DEEPINFRA, DIALECTS, OPENAI, RequestPolicy
from rejoinder.dialects.json_body import path_at
from rejoinder.errors import ChatError, InvalidParameter, InvalidRequest
from rejoinder.types import (
    AnswerOptions,
    CustomTool,
    JsonObjectFormat,
    RegexFormat,
    Tool,
    ToolChoice,
    UserMessage,
    VideoPart,
)
from tests.dialects.test_parameters import decode, refusal

POLICY = RequestPolicy()
ACCEPT = RequestPolicy(extra_parameters="accept")
USER = {"role": "user", "content": "hi"}
MINIMAL: dict[str, Any] = {"model": "m", "messages": [USER]}
FUNCTION = {"type": "function", "function": {"name": "f"}}
CUSTOM = {"type": "custom", "custom": {"name": "c"}}


def request(**fields: Any) -> dict[str, Any]:
    return {**MINIMAL, **fields}


# ---------------------------------------------------------------- rules between parameters

RULES: list[tuple[str, dict[str, Any], str, str | None]] = [
    ("R27", {"top_logprobs": 0}, "top_logprobs", None),
    ("R27", {"top_logprobs": 5, "logprobs": False}, "top_logprobs", None),
    ("R28", {"stream_options": {}}, "stream_options", None),
    ("R28", {"stream_options": {"include_usage": True}, "stream": False}, "stream_options", None),
    (
        "R32",
        {"max_tokens": 5, "max_completion_tokens": 5},
        "max_tokens",
        "invalid_parameter_combination",
    ),
    ("R35", {"tool_choice": "auto"}, "tool_choice", None),
    ("R35", {"tool_choice": "none"}, "tool_choice", None),
    ("R35", {"parallel_tool_calls": True}, "parallel_tool_calls", None),
    (
        "R37",
        {"tools": [FUNCTION], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "tool_choice",
        "invalid_value",
    ),
    (
        "R37",
        {"tools": [FUNCTION], "tool_choice": {"type": "custom", "custom": {"name": "g"}}},
        "tool_choice",
        "invalid_value",
    ),
    ("R42", {"response_format": {"type": "json_object"}}, "messages", None),
    (
        "R59",
        {"function_call": "auto"},
        "function_call",
        None,
    ),
    (
        "R59",
        {"functions": [{"name": "f"}], "function_call": {"name": "g"}},
        "function_call",
        "invalid_value",
    ),
    (
        "both",
        {"functions": [{"name": "f"}], "tools": [FUNCTION]},
        "functions",
        "invalid_parameter_combination",
    ),
    (
        "duplicate",
        {"tools": [CUSTOM, {"type": "custom", "custom": {"name": "c"}}]},
        "tools[1].custom.name",
        "invalid_value",
    ),
]


@pytest.mark.parametrize(("rule", "fields", "param", "code"), RULES)
def test_openai_rules(rule: str, fields: dict[str, Any], param: str, code: str | None) -> None:
    error = refusal("openai", request(**fields))
    assert (error.param, error.code) == (param, code)
    assert OPENAI.encode_error(error)[0] == 400  # A21


@pytest.mark.parametrize(
    "fields",
    [
        {"top_logprobs": 5},
        {"stream_options": {"include_usage": True}},  # R29
        {"tool_choice": "auto"},
        {"tool_choice": "none"},
        {"tools": [], "tool_choice": "auto"},
        {"response_format": {"type": "json_object"}},  # R43
        {"service_tier": "gold"},  # R55
        {"max_tokens": 0},  # A25
    ],
)
def test_deepinfra_has_no_such_rule(fields: dict[str, Any]) -> None:
    assert decode("deepinfra", request(**fields))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": FUNCTION}, "tool_choice"),
        ({"tools": [FUNCTION], "tool_choice": {"function": {"name": "g"}}}, "tool_choice"),
        ({"continue_final_message": True}, "continue_final_message"),  # R66
    ],
)
def test_deepinfra_rules(fields: dict[str, Any], param: str) -> None:
    error = refusal("deepinfra", request(**fields))
    assert error.param == param
    assert DEEPINFRA.encode_error(error)[0] == 422


@pytest.mark.parametrize("word", ["json", "JSON", "answer in Json!"])
def test_json_object_with_the_word(word: str) -> None:
    """R42: in any message, in any part."""
    for content in (word, [{"type": "text", "text": "x"}, {"type": "text", "text": word}]):
        body = request(
            messages=[{"role": "system", "content": content}, USER],
            response_format={"type": "json_object"},
        )
        assert decode("openai", body).chat.response_format == JsonObjectFormat()


def test_custom_tools() -> None:
    grammar = {"type": "grammar", "grammar": {"definition": "start: /a/", "syntax": "lark"}}
    tools = [
        CUSTOM,
        {"type": "custom", "custom": {"name": "g", "description": "d", "format": grammar}},
        {"type": "custom", "custom": {"name": "t", "format": {"type": "text"}}},
    ]
    choice = {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "required", "tools": [CUSTOM, FUNCTION]},
    }
    chat = decode("openai", request(tools=[*tools, FUNCTION], tool_choice=choice)).chat
    assert chat.tools == (
        CustomTool("c"),
        CustomTool("g", "d", "lark", "start: /a/"),
        CustomTool("t"),
        Tool("f"),
    )
    assert chat.tool_choice == ToolChoice("required", ("c", "f"))
    bad = {"type": "grammar", "grammar": {"definition": "x", "syntax": "yacc"}}
    error = refusal(
        "openai", request(tools=[{"type": "custom", "custom": {"name": "x", "format": bad}}])
    )
    assert error.param == "tools[0].custom.format.grammar.syntax"


def test_tool_choice_defaults() -> None:
    for dialect in DIALECTS:
        assert decode(dialect, MINIMAL).chat.tool_choice == ToolChoice("none")
        assert decode(dialect, request(tools=[FUNCTION])).chat.tool_choice == ToolChoice("auto")


def test_legacy_functions() -> None:
    decoded = decode("openai", request(functions=[{"name": "f"}]))
    assert decoded.chat.tools == (Tool("f"),)
    assert decoded.chat.tool_choice == ToolChoice("auto")
    assert decoded.chat.legacy_functions and decoded.answer.legacy_functions
    assert not decoded.chat.parallel_tool_calls


@pytest.mark.parametrize(
    ("fields", "effort"),
    [
        ({"reasoning_effort": "low"}, "low"),
        ({"reasoning_effort": "low", "reasoning": {}}, "low"),
        ({"reasoning_effort": "low", "reasoning": {"effort": "high"}}, "high"),
        ({"reasoning_effort": "low", "reasoning": {"effort": "high", "enabled": False}}, "none"),
        ({"reasoning": {"enabled": True}}, None),
        ({}, None),
    ],
)
def test_reasoning_precedence(fields: dict[str, Any], effort: str | None) -> None:
    """A23."""
    for dialect, policy in (("deepinfra", POLICY), ("openai", ACCEPT)):
        assert decode(dialect, request(**fields), policy).chat.reasoning.effort == effort


@pytest.mark.parametrize(
    ("dialect", "fields", "options"),
    [
        ("openai", {}, AnswerOptions()),
        ("deepinfra", {}, AnswerOptions(include_usage=True)),
        ("openai", {"stream": True}, AnswerOptions(stream=True)),
        (
            "openai",
            {"stream": True, "stream_options": {"include_usage": True}},
            AnswerOptions(stream=True, include_usage=True),
        ),
        (
            "openai",
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            AnswerOptions(stream=True, include_obfuscation=True),
        ),
        (
            "deepinfra",
            {"stream": True, "stream_options": {"include_usage": False}},
            AnswerOptions(stream=True),
        ),
        (
            "deepinfra",
            {"stream": True, "stream_options": {"continuous_usage_stats": True}},
            AnswerOptions(stream=True, include_usage=True, continuous_usage=True),
        ),
        (
            "openai",
            {"logprobs": True, "top_logprobs": 3, "moderation": {"model": "x"}},
            AnswerOptions(logprobs=True, num_top_logprobs=3, moderation=True),
        ),
        (
            "openai",
            {"logprobs": True, "top_logprobs": None},
            AnswerOptions(logprobs=True),
        ),
        (
            "openai",
            {"tools": [FUNCTION], "tool_choice": FUNCTION},
            AnswerOptions(named_tool=True),
        ),
        (
            "openai",
            {
                "tools": [FUNCTION],
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "required", "tools": [FUNCTION]},
                },
            },
            AnswerOptions(),
        ),
        ("openai", {"modalities": ["text"], "audio": None}, AnswerOptions()),
    ],
)
def test_answer_options(dialect: str, fields: dict[str, Any], options: AnswerOptions) -> None:
    assert decode(dialect, request(**fields)).answer == options


def test_the_limit_knows_its_name() -> None:
    assert decode("openai", request(max_tokens=3)).chat.max_tokens_param == "max_tokens"
    chat = decode("openai", request(max_completion_tokens=3)).chat
    assert (chat.max_tokens, chat.max_tokens_param) == (3, "max_completion_tokens")


# ---------------------------------------------------------------- unknown parameters


def test_unknown_parameters_are_refused_or_listed() -> None:
    body = request(foo=1, stream_options={"bar": 1, "include_usage": True}, stream=True)
    error = refusal("openai", request(foo=1))
    assert (error.param, error.code) == ("foo", "unknown_parameter")
    assert "'foo'" in error.message and "server.extra_parameters" in error.message
    assert decode("openai", body, ACCEPT).ignored == ("foo", "stream_options.bar")
    assert decode("deepinfra", body).ignored == ("foo", "stream_options.bar")


def test_deepinfra_s_values_are_accepted_in_known_parameters() -> None:
    video = {"type": "video_url", "video_url": {"url": "u"}}
    body = request(
        messages=[{"role": "user", "content": [video]}],
        response_format={"type": "regex", "regex": "a+"},
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )
    decoded = decode("openai", body, ACCEPT)
    assert decoded.ignored == ()
    assert decoded.answer.continuous_usage
    assert decoded.chat.response_format == RegexFormat("a+")
    assert decoded.chat.messages == (UserMessage((VideoPart("u"),)),)
    # OpenAI's own rows keep their ranges.
    assert decode("openai", request(top_p=0, n=128), ACCEPT).chat.n == 128
    assert refusal("openai", request(stop=["a"] * 5), ACCEPT).param == "stop"


def test_listed_parameters_are_safe_in_a_header() -> None:
    body = request(**{"a\r\nSet-Cookie: x": 1, "é東": 1, "k" * 5000: 1, "": 1})
    for dialect, policy in (("deepinfra", POLICY), ("openai", ACCEPT)):
        for name in decode(dialect, body, policy).ignored:
            assert name.isascii() and (name.isprintable() or not name)
            assert len(name) <= 1000
    many = request(**{f"k{i}": 1 for i in range(1000)})
    assert len(decode("deepinfra", many).ignored) <= 32


# ---------------------------------------------------------------- order of checks


@pytest.mark.parametrize(
    ("fields", "missing", "param"),
    [
        ({"temperature": 5, "n": "x"}, (), "n"),
        ({"n": "x", "temperature": 5}, (), "n"),
        ({"temperature": 5}, ("model",), "model"),
        ({"n": "x"}, ("model",), "n"),
        ({}, ("model", "messages"), "model"),
        ({"temperature": 5, "top_logprobs": 1}, (), "temperature"),
        ({"temperature": 5, "unknown": 1, "n": "x"}, (), "unknown"),
        ({"n": "x", "unknown": 1}, (), "n"),
        ({"top_p": 5, "temperature": 5}, (), "top_p"),
        ({"stream_options": {}, "prediction": {}}, ("model",), "prediction.type"),
    ],
)
def test_types_then_missing_then_ranges_then_rules(
    fields: dict[str, Any], missing: tuple[str, ...], param: str
) -> None:
    """A34."""
    body = {key: value for key, value in request(**fields).items() if key not in missing}
    assert refusal("openai", body).param == param


# ---------------------------------------------------------------- hostile JSON

BROKEN: list[tuple[bytes, str | None]] = [
    (b"", None),
    (b" \n", None),
    (b"{", None),
    (b"nonsense", None),
    (b'{"model":"m"} {}', None),
    (b"\xef\xbb\xbf{}", None),
    (json.dumps(MINIMAL).encode("utf-16"), None),
    (b'{"model":"m","messages":[{"role":"user","content":"\xff\xfe"}]}', "messages"),
    (b'{"model":"m","messages":[{"role":"user","content":"\xed\xa0\x80"}]}', "messages"),
    (b'{"model":"m","messages":[{"role":"user","content":"x\\ud800y"}]}', "messages[0].content"),
    (b'{"model":"m","messages":[{},{"content":"x\\udc00"}]}', "messages[1].content"),
    (
        b'{"messages":[{"role":"user","content":[{"text":"\\ud83dx"}]}]}',
        "messages[0].content[0].text",
    ),
    (b'{"temperature":NaN}', "temperature"),
    (b'{"temperature":Infinity}', "temperature"),
    (b'{"temperature":-Infinity}', "temperature"),
    (b'{"messages":"' + b":" * 500_001 + b'"}', None),
    (b'{"model":"m","model":"n"}', "model"),
    (b'{"messages":[{"role":"user","content":"a","role":"tool"}]}', "messages[0].role"),
    (b'{"metadata":' + b"[" * 20_000 + b"]" * 20_000 + b"}", "metadata"),
    (b'{"x":' + b"[" * 10_000 + b"]" * 10_000 + b"}", "x"),
    (b'{"response_format":' + b'{"a":' * 2000 + b"1" + b"}" * 2001, "response_format"),
    (b"[" * 1_000_000, None),
    (b'{"seed":' + b"9" * 5000 + b"}", "seed"),
    (b'{"n":01}', "n"),
    (b'{"n":+1}', "n"),
    (b"{'n':1}", None),
    (b'{"n":1,}', None),
    (b'{"model":"a\nb"}', "model"),
    (b'{"model":"a\x00b"}', "model"),
    (b'{"n":1}\x00', None),
    (b'{"n":1/*c*/}', None),
]


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
@pytest.mark.parametrize(("body", "param"), BROKEN, ids=lambda v: repr(v)[:40])
def test_broken_json(dialect: Any, body: bytes, param: str | None) -> None:
    with pytest.raises(InvalidRequest) as caught:
        dialect.decode_request(body, POLICY)
    status, encoded = dialect.encode_error(caught.value)
    error = json.loads(encoded)["error"]
    assert status == 400
    assert error["message"].isprintable()
    if param is None:
        assert dialect is DEEPINFRA or error["param"] is None or body.startswith(b"{")
    else:
        spelled = param if dialect is OPENAI else param.replace("[", ".").replace("]", "")
        assert error["param"].startswith(spelled)
        assert len(error["param"]) <= 200


@pytest.mark.parametrize("number", ["NaN", "-NaN", "Infinity", "-Infinity"])
def test_what_python_writes_for_no_number_is_named(number: str) -> None:
    with pytest.raises(InvalidRequest, match="NaN and Infinity are not numbers of JSON"):
        OPENAI.decode_request(b'{"temperature": %b}' % number.encode(), POLICY)


def test_a_place_that_the_core_names_is_spelled_as_the_dialect_does() -> None:
    error = InvalidRequest("No.", param="messages[3].content[0]", code="x")
    for dialect, param in (
        (OPENAI, "messages[3].content[0]"),
        (DEEPINFRA, "messages.3.content.0"),
    ):
        assert json.loads(dialect.encode_error(error)[1])["error"]["param"] == param


@pytest.mark.parametrize("body", [b"[]", b"null", b'"x"', b"1", b"true", b"[{}]"])
def test_a_body_that_is_not_an_object(body: bytes) -> None:
    """R17."""
    for dialect, status in ((OPENAI, 400), (DEEPINFRA, 422)):
        with pytest.raises(InvalidParameter) as caught:
            dialect.decode_request(body, POLICY)
        assert dialect.encode_error(caught.value)[0] == status
        assert caught.value.param is None


@pytest.mark.parametrize(
    ("field", "number", "param"),
    [
        ("temperature", "1e999", "temperature"),
        ("temperature", "-1e999", "temperature"),
        ("seed", "1e999", "seed"),
        ("seed", "18446744073709551616", "seed"),
        ("n", "9" * 4000, "n"),
        ("max_tokens", "1e2", "max_tokens"),
        ("logit_bias", '{"1":1e999}', "logit_bias"),
    ],
)
def test_hostile_numbers(field: str, number: str, param: str) -> None:
    body = json.dumps(MINIMAL)[:-1] + f',"{field}":{number}}}'
    with pytest.raises(InvalidParameter) as caught:
        OPENAI.decode_request(body.encode(), POLICY)
    assert caught.value.param == param
    assert len(caught.value.message) <= 1000


def test_free_objects_hold_no_infinity() -> None:
    body = json.dumps(MINIMAL)[:-1] + ',"chat_template_kwargs":{"a":[1,{"b":1e999}]}}'
    with pytest.raises(InvalidParameter) as caught:
        DEEPINFRA.decode_request(body.encode(), POLICY)
    assert caught.value.param == "chat_template_kwargs.a.1.b"


def test_hostile_names_and_values_are_cut_and_clean() -> None:
    long = "k\r\n\x00\u2028" * 100_000
    for body in (request(**{long: 1}), request(service_tier=long), request(metadata={long: 1})):
        _, encoded = OPENAI.encode_error(refusal("openai", body))
        error = json.loads(encoded)["error"]
        assert len(encoded) < 8000
        assert error["message"].isprintable()
        assert error["param"].isprintable()


@pytest.mark.parametrize(
    ("head", "path"),
    [
        (b"", ()),
        (b"{", ()),
        (b'{"a', ("a",)),
        (b'{"a":', ("a",)),
        (b'{"a":{"b":[1,{"c":', ("a", "b", 1, "c")),
        (b'{"a":{"b":1},"c":[[],[2,', ("c", 1, 1)),
        (b'{"a":"x\\"]}{","b":"y[', ("b",)),
        (b'{"a":[1],"a"', ("a",)),
        (b"]]}}", ()),
        (b'{"a":"\\', ("a",)),
        (b"[" + b"1," * 200_000, ()),
    ],
)
def test_path_of_a_broken_document(head: bytes, path: tuple[str | int, ...]) -> None:
    assert path_at(head) == path


def test_errors_in_huge_bodies_are_quick() -> None:
    bodies = [
        b'{"model":"m","messages":[' + b"[]," * 3_000_000 + b"\\",
        b'{"model":"' + b"\\\\" * 4_000_000 + b"\\ud800",
        b"{" + b'"a":{' * 1_000_000,
        b'{"x":"' + b"\n" * 1_000_000,
        b'{"x":[' + b"{}," * 8_000_000 + b"1]}",
        b'{"x":[' + b"1," * 10_000_000 + b"1]}",
    ]
    for body in bodies:
        started = time.process_time()
        with pytest.raises(ChatError):
            OPENAI.decode_request(body, POLICY)
        assert time.process_time() - started < 3


# ---------------------------------------------------------------- fuzz

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(st.characters(), max_size=8)
    | st.sampled_from(
        ["auto", "text", "function", "user", "assistant", "tool", "json_schema", "explicit", "f"]
    )
)
keys = st.sampled_from(
    [
        "model", "messages", "role", "content", "type", "text", "function", "name", "tools",
        "tool_calls", "id", "tool_call_id", "arguments", "strict", "schema", "json_schema", "mode",
        "allowed_tools", "custom", "format", "grammar", "policy", "input", "x", "image_url", "url",
        "cache_control", "prompt_cache_breakpoint", "function_call", "effort", "parameters",
    ]
) | st.text(st.characters(), max_size=4)  # fmt: skip
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4)
)
parameters = st.sampled_from(
    [
        "messages", "tools", "tool_choice", "response_format", "stream_options", "moderation",
        "prediction", "functions", "function_call", "reasoning", "logit_bias", "metadata", "stop",
        "n", "temperature", "seed", "audio", "modalities", "web_search_options", "stream",
        "prompt_cache_options", "chat_template_kwargs", "service_tier", "stop_token_ids",
    ]
)  # fmt: skip
bodies = st.dictionaries(parameters | keys, values, max_size=5).map(
    lambda fields: json.dumps({**MINIMAL, **fields}).encode()
)
profiles = st.sampled_from(
    [
        (OPENAI, POLICY),
        (OPENAI, ACCEPT),
        (OPENAI, RequestPolicy(openai_reasoning="reasoning_content")),
        (DEEPINFRA, POLICY),
    ]
)


def only_chat_errors(dialect: Any, policy: RequestPolicy, body: bytes) -> None:
    try:
        decoded = dialect.decode_request(body, policy)
    except ChatError as error:
        status, encoded = dialect.encode_error(error)
        shown = json.loads(encoded)["error"]
        assert status in (400, 422)
        assert shown["message"].isprintable()
    else:
        for name in decoded.ignored:
            name.encode("latin-1")
        hash(decoded.chat.messages)


@settings(max_examples=400)
@given(profiles, st.binary(max_size=200))
def test_any_bytes_give_a_request_or_a_chat_error(profile: Any, body: bytes) -> None:
    only_chat_errors(*profile, body)


@settings(max_examples=150)
@given(profiles, bodies)
def test_any_json_gives_a_request_or_a_chat_error(profile: Any, body: bytes) -> None:
    only_chat_errors(*profile, body)


@settings(max_examples=100)
@given(profiles, bodies, st.integers(0, 400), st.binary(max_size=3))
@example((OPENAI, POLICY), b'{"a":"\\ud800"}', 12, b"")
def test_any_damaged_json_gives_a_request_or_a_chat_error(
    profile: Any, body: bytes, position: int, damage: bytes
) -> None:
    only_chat_errors(*profile, body[:position] + damage + body[position + 1 :])


# ---------------------------------------------------------------- speed


def seconds_of(body: bytes, *, times: int) -> float:
    def once() -> float:
        started = time.process_time()
        for _ in range(times):
            OPENAI.decode_request(body, POLICY)
        return (time.process_time() - started) / times

    return min(once() for _ in range(5))


def test_decoding_is_quick() -> None:
    """Well under 100 µs and 10 ms on an idle core; the bounds leave room for a busy one."""
    assert seconds_of(json.dumps(MINIMAL).encode(), times=100) < 100e-6
    big = request(messages=[{"role": "user", "content": "word\n" * 200_000}])
    assert seconds_of(json.dumps(big).encode(), times=2) < 20e-3
