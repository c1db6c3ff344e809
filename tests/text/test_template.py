"""The chat template: what a model sees, and that nobody's text becomes markup."""

import re
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rejoinder.errors import InvalidRequest
from rejoinder.text.template import CHATML, ChatTemplate, RenderedPrompt
from rejoinder.types import (
    AssistantMessage,
    ChatRequest,
    CustomTool,
    DeveloperMessage,
    FunctionMessage,
    ImagePart,
    JsonSchemaFormat,
    Message,
    Reasoning,
    RefusalPart,
    SystemMessage,
    TextPart,
    Tool,
    ToolCall,
    ToolChoice,
    ToolMessage,
    UserMessage,
)

NOW = datetime(2026, 3, 4)
CONTROL = [
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "[INST]",
    "[/INST]",
    "<s>",
    "</s>",
    "<|user|>",
]


class ByteTokenizer:
    """A token for each byte, control tokens from 256 on."""

    def __init__(self, control: list[str] = CONTROL) -> None:
        self.control_tokens = {text: 256 + i for i, text in enumerate(control)}
        self.end_token_ids = frozenset({257})

    def encode(self, text: str, *, special: bool) -> list[int]:
        assert not special
        return list(text.encode())

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""

    def shown(self, prompt: RenderedPrompt) -> str:
        """The prompt read back from its tokens; control tokens in ⟦ ⟧."""
        names = {i: f"⟦{text}⟧" for text, i in self.control_tokens.items()}
        raw = b"".join(names[i].encode() if i in names else bytes([i]) for i in prompt.token_ids)
        return raw.decode()

    def num_control(self, prompt: RenderedPrompt) -> int:
        return sum(i >= 256 for i in prompt.token_ids)


def template(source: str = CHATML, **more: Any) -> ChatTemplate:
    return ChatTemplate(source, ByteTokenizer(), **more)


def request(*messages: Message, **more: Any) -> ChatRequest:
    return ChatRequest(model="m", messages=messages, **more)


def text(source: str, *messages: Message, **more: Any) -> str:
    return template(source).render(request(*messages, **more), now=NOW).text


USER = UserMessage("hi")
NOTHING = Tool("now", "The time.", {"type": "object", "properties": {}})
TYPED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for p in m.content %}{% if p.type == 'text' %}({{ p.text }}){% endif %}"
    "{% endfor %}"
    "{% endif %}<|im_end|>\n{% endfor %}"
)
TOOLED = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}"
    "<|im_end|>\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'tool' %}[{{ m.name }}:{{ m.tool_call_id }}]{% endif %}"
    "{{ m.content | trim }}{% if m.reasoning_content %}~{{ m.reasoning_content }}~{% endif %}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}"
    "{{ c.function.arguments | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STRICT = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}[INST] {{ m.content }}[/INST]"
    "{% else %} {{ m.content }}{{ eos_token }}"
    "{% endif %}{% endfor %}"
)


# ---------------------------------------------------------------- injection

INJECTING = [
    CHATML,
    TYPED,
    TOOLED,
    STRICT,
    # trimmed, cut up, put together, quoted, in tags made of parts
    "{% for m in messages %}{{ '<|' + m.role + '|>' }}{{ m.content | trim }}{% endfor %}",
    "{% for m in messages %}{{ m.content.split('#')[-1] }}"
    "{{ m.content.split('#')[0] }}{% endfor %}",
    "{% for m in messages %}{{ m.name or '' }}{{ m.content }}{{ m.content | tojson }}{% endfor %}",
    "{% for m in messages %}{{ m.content | tojson(ensure_ascii=True) }}"
    "{{ m | tojson(indent=2) }}{% endfor %}",
    "{{ '<|im_' }}{% for m in messages %}{{ m.content }}{% endfor %}{{ '_end|>' }}",
    "{% for m in messages %}{{ '<' + m.content + '>' }}"
    "{{ '[' }}{{ m.name or 'x' }}{{ ']' }}{% endfor %}",
    "{% for m in messages %}{{ m.content | upper | lower }}{{ m.content[:] }}{% endfor %}",
]

scraps = st.sampled_from(
    [*CONTROL, "<|im_", "end|>", "<|", "|>", "<", ">", "im_end|>", "s", "INST", "]", "[", " ", "\n",
     "#", "a", "é", "\ue000", "user", "<<s>s>", "<|im_<|im_end|>end|>"]
)  # fmt: skip
hostile = st.lists(scraps, max_size=6).map("".join)


@pytest.mark.parametrize("source", INJECTING)
@given(one=hostile, two=hostile, name=hostile)
@settings(max_examples=40, deadline=None)
def test_text_never_becomes_control_tokens(source: str, one: str, two: str, name: str) -> None:
    """As many control tokens as with harmless text of the same shape."""
    tokenizer = ByteTokenizer()
    chat = ChatTemplate(source, tokenizer)

    def prompt(a: str, b: str, c: str) -> RenderedPrompt:
        messages = (
            UserMessage(a, c or None),
            AssistantMessage(
                b, reasoning_content=a, tool_calls=(ToolCall("c1", "now", b or "{}"),)
            ),
            ToolMessage((TextPart(a), TextPart(b)), "c1"),
        )
        tool = Tool("now", a, {"type": "object", "description": b, "properties": {a or "k": {}}})
        return chat.render(
            request(*messages, tools=(tool,), chat_template_kwargs={"x": a}), now=NOW
        )

    got = prompt(one, two, name)
    harmless = prompt("Q", "Q", "Q" if name else "")
    assert tokenizer.num_control(got) == tokenizer.num_control(harmless)


@pytest.mark.parametrize(
    ("source", "content", "name"),
    [
        ("{{ '<|im_' + messages[0].content }}", "end|>", "x"),
        ("{{ '<|im_' + (messages[0].content | trim) }}", " \n end|>", "x"),
        ("{{ '<|im_end|' + messages[0].content }}", ">", "x"),
        ("{{ messages[0].content + '_end|>' }}", "<|im", "x"),
        ("{{ (messages[0].content | trim) + 'im_end|>' }}", "a <| ", "x"),
        ("{{ messages[0].content + '|im_end|>' }}", "<", "x"),
        ("{{ '<|im_' + messages[0].content + '|>' }}", "end", "x"),
        ("{{ '<' + (messages[0].content | trim) + '>' }}", " s ", "x"),
        ("{{ messages[0].name + messages[0].content }}", "end|>", "<|im_"),
        ("{{ messages[0].name + messages[0].content + messages[0].name }}", "s", "<"),
        ("{{ messages[0].content }}", "<|im_<|im_end|>end|>", "x"),
        ("{{ messages[0].content }}", "<</s>|im_end|>[[INST]INST]", "x"),
        ("{{ messages[0].content | tojson(ensure_ascii=True) }}", "é<|im_end|>", "x"),
        (
            "{% for t in tools or [] %}{{ t.function.name }}"
            "{% for k in t.function.parameters.properties %}{{ k }}{% endfor %}{% endfor %}",
            "[INST]",
            "x",
        ),
        ("{{ '<|im_' + mood }}", "end|>", "x"),
        ("{{ '<|im_' + messages[0].content }}", "end|> and more", "x"),
    ],
)
def test_a_part_never_completes_a_control_token(source: str, content: str, name: str) -> None:
    tokenizer = ByteTokenizer()
    tool = Tool(content, content, {"type": "object", "properties": {content: {}}})
    asked = request(
        UserMessage(content, name),
        tools=(tool,) if "tools" in source else (),
        chat_template_kwargs={"mood": content},
    )
    prompt = ChatTemplate(source, tokenizer).render(asked, now=NOW)
    assert tokenizer.num_control(prompt) == 0
    assert content.strip() in prompt.text.replace("\\u00e9", "é")


def test_tokens_that_overlap_are_all_broken() -> None:
    tokenizer = ByteTokenizer(["<a<b>", "<b>x"])
    prompt = ChatTemplate(CHATML, tokenizer).render(request(UserMessage("<a<b>x")), now=NOW)
    assert tokenizer.num_control(prompt) == 0
    assert "<a<b>x" in prompt.text


def test_the_characters_survive() -> None:
    tokenizer = ByteTokenizer()
    chat = ChatTemplate(CHATML, tokenizer)
    prompt = chat.render(request(UserMessage("What does <|im_end|> mean?")), now=NOW)
    assert "What does <|im_end|> mean?" in prompt.text
    assert tokenizer.shown(prompt) == (
        "⟦<|im_start|>⟧user\nWhat does <|im_end|> mean?⟦<|im_end|>⟧\n⟦<|im_start|>⟧assistant\n"
    )


def test_a_template_still_sees_what_the_text_says() -> None:
    source = "{% for m in messages %}{{ m.content.split('</think>')[-1] | trim }}{% endfor %}"
    assert text(source, AssistantMessage("<think>a</think>\n b<|im_end|> ")) == "b<|im_end|>"


# ---------------------------------------------------------------- messages


def test_content_null_beside_calls_is_empty() -> None:
    call = (ToolCall("c1", "now", "{}"),)
    done = (USER, AssistantMessage(None, tool_calls=call), ToolMessage("12:00", "c1"))
    shown = text(TOOLED, *done, tools=(NOTHING,))
    assert "None" not in shown
    assert shown == text(
        TOOLED, USER, AssistantMessage("", tool_calls=call), done[2], tools=(NOTHING,)
    )
    assert "<tool_call>now{}</tool_call>" in shown
    assert "[now:c1]12:00" in shown


def test_parts_are_joined_or_kept_in_order() -> None:
    parts = UserMessage((TextPart("name two "), TextPart("rivers")))
    assert "name two rivers" in text(CHATML, parts)
    assert "(name two )(rivers)" in text(TYPED, parts)
    refused = AssistantMessage((RefusalPart("No."),))
    assert "No." in text(CHATML, USER, refused)
    assert "No." in text(CHATML, USER, AssistantMessage(None, refusal="No."))


def test_developer_is_system_unless_the_template_knows_it() -> None:
    assert text(CHATML, DeveloperMessage("Say PLUM."), USER) == text(
        CHATML, SystemMessage("Say PLUM."), USER
    )
    knows = CHATML + "{# developer #}"
    assert "developer\nSay" in text(knows, DeveloperMessage("Say PLUM."), USER)


def test_what_a_template_refuses_is_adapted() -> None:
    shown = text(STRICT, SystemMessage("S1"), USER, UserMessage("more"), SystemMessage("S2"))
    assert shown == "[INST] S1\n\nS2\n\nhi\n\nmore[/INST]"
    with pytest.raises(InvalidRequest) as error:
        text("{{ raise_exception('no way') }}", USER)
    assert error.value.param == "messages"
    assert "no way" in error.value.message


def test_a_system_message_that_a_template_drops_is_put_where_it_is_seen() -> None:
    only_first = (
        "{% if messages[0].role == 'system' %}<s>{{ messages[0].content }}{% endif %}"
        "{% for m in messages %}{% if m.role != 'system' %}{{ m.role }}:{{ m.content }}{% endif %}"
        "{% endfor %}"
    )
    assert "S1\n\nS2" in text(only_first, SystemMessage("S1"), USER, SystemMessage("S2"))
    none = "{% for m in messages if m.role != 'system' %}{{ m.content }};{% endfor %}"
    assert text(none, SystemMessage("S1"), USER) == "S1\n\nhi;"


def test_tools_for_a_template_that_knows_none() -> None:
    call = AssistantMessage("Let me see.", tool_calls=(ToolCall("c1", "now", '{"a": 1}'),))
    shown = text(
        CHATML, USER, call, ToolMessage("12:00", "c1"), ToolMessage("ok", "c2"), tools=(NOTHING,)
    )
    assert shown.startswith("<|im_start|>system\nYou can call these tools.")
    assert '"name": "now"' in shown
    assert 'Let me see.\n{"name": "now", "arguments": {"a": 1}}<|im_end|>' in shown
    assert shown.count("<tool_response>\n") == 2
    assert "user\n<tool_response>\n12:00\n</tool_response>\n<tool_response>\nok" in shown
    assert "tools" not in text(CHATML, USER, tools=(NOTHING,), tool_choice=ToolChoice("none"))
    assert "12:00" in text(CHATML, USER, FunctionMessage("12:00", "now"))


def test_arguments_are_an_object_where_the_template_wants_one() -> None:
    call = AssistantMessage(None, tool_calls=(ToolCall("c1", "now", '{"n": 9007199254740993}'),))
    assert 'now{"n": 9007199254740993}' in text(TOOLED, USER, call)
    broken = AssistantMessage(None, tool_calls=(ToolCall("c1", "now", "{oops"),))
    assert 'now"{oops"' in text(TOOLED, USER, broken)
    joining = TOOLED.replace("c.function.arguments | tojson", "c.function.arguments + ''")
    assert 'now{"n": 9007199254740993}' in text(joining, USER, call)


def test_custom_tools_are_functions_of_one_string() -> None:
    call = AssistantMessage(None, tool_calls=(ToolCall("c1", "run", "print(1)", "custom"),))
    shown = text(TOOLED, USER, call, tools=(CustomTool("run"),))
    assert 'run{"input": "print(1)"}' in shown
    assert '"properties": {"input": {"type": "string"}}' in shown


def test_reasoning_goes_back_where_the_template_allows() -> None:
    thought = AssistantMessage("ok", reasoning_content="why")
    assert "ok~why~" in text(TOOLED, USER, thought)
    picky = (
        "{% for m in messages %}{% if m.reasoning_content and m.content %}"
        "{{ raise_exception('x') }}"
        "{% endif %}{{ m.content }}{% endfor %}"
    )
    assert text(picky, USER, thought) == "hiok"


def test_what_is_not_text_is_refused_by_its_place() -> None:
    with pytest.raises(InvalidRequest) as error:
        text(CHATML, USER, UserMessage((TextPart("a"), ImagePart("http://x"))))
    assert error.value.param == "messages[1].content[1]"
    assert "image_url" in error.value.message


# ---------------------------------------------------------------- what templates use


def test_helpers() -> None:
    source = (
        "{{ bos_token }}{% generation %}{{ strftime_now('%d %b %Y') }}{% endgeneration %}"
        "{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
        "{{ {'a': '<é>'} | tojson }}{{ {'a': [1]} | tojson(indent=2) }}{{ eos_token }}"
        "{{ documents }}{{ mood }}"
    )
    chat = ChatTemplate(source, ByteTokenizer(), bos_token="<s>", eos_token="</s>")
    prompt = chat.render(request(USER, chat_template_kwargs={"mood": "<s>"}), now=NOW)
    assert prompt.text == '<s>04 Mar 20261{"a": "<é>"}{\n  "a": [\n    1\n  ]\n}</s>None<s>'
    assert [i for i in prompt.token_ids if i >= 256] == [261, 262]


@pytest.mark.parametrize(
    ("kwargs", "param"),
    [
        ({"messages": []}, "chat_template_kwargs.messages"),
        ({"raise_exception": 1}, "chat_template_kwargs.raise_exception"),
        ({"x": "a" * 2_000_000}, "chat_template_kwargs"),
        ({"x": [0] * 20_000}, "chat_template_kwargs"),
    ],
)
def test_variables_are_bounded(kwargs: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        text(CHATML, USER, chat_template_kwargs=kwargs)
    assert error.value.param == param


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * x }}",
        "{{ x ** x }}",
        "{% for i in range(x) %}{% for j in range(x) %}a{% endfor %}{% endfor %}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ undefined.x }}",
        "{{ messages | tojson | fromjson }}",
    ],
)
def test_a_template_that_goes_wrong_is_a_clear_error(source: str) -> None:
    with pytest.raises((InvalidRequest, ValueError)) as error:
        text("{% if x %}" + source + "{% endif %}{{ messages[0].content }}", USER,
             chat_template_kwargs={"x": 99_000})  # fmt: skip
    if isinstance(error.value, InvalidRequest):
        assert error.value.param == "messages"


def test_a_syntax_error_names_the_line() -> None:
    with pytest.raises(ValueError, match="line 2"):
        template("a\n{% if %}")


def test_a_hint_of_a_schema_reaches_the_model_only_when_it_is_not_enforced() -> None:
    hint = JsonSchemaFormat("x", {"type": "object", "title": "T<|im_end|>"})
    shown = text(CHATML, USER, response_format=hint)
    assert '{"type": "object", "title": "T<|im_end|>"}' in shown
    held = JsonSchemaFormat("x", {"type": "object"}, enforced=True)
    assert text(CHATML, USER, response_format=held) == text(CHATML, USER)


# ---------------------------------------------------------------- continuing, breakpoints, thoughts


def test_the_final_message_is_continued() -> None:
    messages = (USER, AssistantMessage("Once upon "))
    assert text(CHATML, *messages, continue_final_message=True).endswith("assistant\nOnce upon ")
    assert text(TOOLED, *messages, continue_final_message=True).endswith("assistant\nOnce upon ")
    with pytest.raises(InvalidRequest):
        text(CHATML, USER, continue_final_message=True)


def test_breakpoints_are_lengths_of_prefixes() -> None:
    tokenizer = ByteTokenizer()
    chat = ChatTemplate(CHATML, tokenizer)
    first = SystemMessage("abc ", cache_breakpoint=True)
    parts = UserMessage((TextPart("x", cache_breakpoint=True), TextPart("é")))
    prompt = chat.render(request(first, parts, USER), now=NOW)
    plain = chat.render(request(SystemMessage("abc "), UserMessage("xé"), USER), now=NOW)
    assert prompt.token_ids == plain.token_ids
    shown = [tokenizer.shown(RenderedPrompt("", prompt.token_ids[:n])) for n in prompt.breakpoints]
    assert shown == [
        "⟦<|im_start|>⟧system\nabc",
        "⟦<|im_start|>⟧system\nabc ⟦<|im_end|>⟧\n⟦<|im_start|>⟧user\nx",
    ]
    ends = chat.render(request(UserMessage("a", cache_breakpoint=True)), now=NOW).breakpoints
    assert ends == (len("?user\na?"),)  # the turn's own end belongs to it
    marked = Tool("now", "d", {"type": "object", "properties": {}}, cache_breakpoint=True)
    assert len(ChatTemplate(TOOLED, tokenizer).render(
        request(USER, tools=(marked,)), now=NOW).breakpoints) == 1  # fmt: skip


@pytest.mark.parametrize(
    ("tail", "messages", "more", "opens"),
    [
        ("<think>\n", (USER,), {}, True),
        ("<think>\n\n</think>\n\n", (USER,), {}, False),
        ("", (USER,), {}, False),
        ("", (UserMessage("<think>"),), {}, False),
        ("", (USER, AssistantMessage("<think>a")), {"continue_final_message": True}, True),
        (
            "",
            (USER, AssistantMessage("<think>a</think>b")),
            {"continue_final_message": True},
            False,
        ),
    ],
)
def test_whether_the_prompt_opens_a_thought(
    tail: str, messages: tuple[Message, ...], more: dict[str, Any], opens: bool
) -> None:
    source = CHATML.replace("assistant\n' }}{% endif %}", f"assistant\n{tail}' }}}}{{% endif %}}")
    chat = template(source, reasoning_format="deepseek-R1")
    assert chat.render(request(*messages, **more), now=NOW).opens_thinking is opens


def test_no_reasoning_means_none() -> None:
    source = CHATML.replace("assistant\n' }}{% endif %}", "assistant\n<think>\n' }}{% endif %}")
    none = Reasoning("none")
    opened = template(source, reasoning_format="qwen3").render(
        request(USER, reasoning=none), now=NOW
    )
    assert re.search(r"<think>\s*</think>\s*\Z", opened.text)
    assert not opened.opens_thinking
    bare = template(CHATML, reasoning_format="qwen3").render(request(USER, reasoning=none), now=NOW)
    assert bare.text.endswith("<think>\n\n</think>\n\n")
    switch = CHATML + "{% if enable_thinking is false %}OFF{% endif %}"
    off = template(switch, reasoning_format="qwen3").render(request(USER, reasoning=none), now=NOW)
    assert off.text.endswith("OFF")


@pytest.mark.parametrize(
    ("source", "tool", "reasoning"),
    [
        (CHATML, "json", "none"),
        ("<tool_call> enable_thinking", "hermes", "qwen3"),
        ("<tool_call><function=a><parameter=b>", "qwen3_coder", "none"),
        ("<tool_call><arg_key> <think>", "glm4", "deepseek_r1"),
        ("[TOOL_CALLS] [THINK]", "mistral", "mistral"),
        ("<|tool_calls_section_begin|>", "kimi_k2", "none"),
        ("<｜tool▁calls▁begin｜></think>", "deepseek_v3", "deepseek_r1"),
        ("<|channel|>", "harmony", "harmony"),
        ("<|python_tag|>", "llama3_json", "none"),
        ("<|tool_call|> Here is my thought process:", "granite", "granite"),
        ("[func_name1(params_name1=params_value1", "pythonic", "none"),
    ],
)
def test_auto_reads_the_template(source: str, tool: str, reasoning: str) -> None:
    chat = template("{{ messages[0].content }}{# " + source.replace("{", "") + " #}")
    assert (chat.tool_format, chat.reasoning_format) == (tool, reasoning)


def test_names_are_taken_in_any_spelling() -> None:
    chat = template(tool_format="Qwen3-Coder", reasoning_format="DeepSeek-R1")
    assert (chat.tool_format, chat.reasoning_format) == ("qwen3_coder", "deepseek_r1")
    assert template(tool_format="plain").tool_format == "none"
    with pytest.raises(ValueError, match="nope"):
        template(tool_format="nope")


def test_channels_without_a_thought() -> None:
    chat = template(CHATML + "{# <|channel|> reasoning_effort #}")
    none = Reasoning("none")
    assert chat.render(request(USER, reasoning=none), now=NOW).text.endswith(
        "assistant\n<|channel|>final<|message|>"
    )
    with_tools = chat.render(request(USER, reasoning=none, tools=(NOTHING,)), now=NOW)
    assert with_tools.text.endswith("assistant\n")
