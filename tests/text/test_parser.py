"""Every format: whatever the meaning and however the text is cut, the meaning comes out.

The oracle is the meaning that the text was written from (spelling.py), not another parser.
"""

import json
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rejoinder.text.formats import TOOL_FORMATS
from rejoinder.types import EngineFinishReason, Tool, ToolChoice
from tests.text.decoding import CUSTOM, TOOLS, Answer, Call, answer, decode, decode_counting, summed
from tests.text.spelling import FORMATS, Format, json_values, same

FREE = Tool("free-form_1", None, None)
TYPED = Tool(
    "typed",
    None,
    {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "number": {"type": "integer"},
            "flag": {"type": "boolean"},
            "maybe": {"anyOf": [{"$ref": "#/$defs/whole"}, {"type": "null"}]},
            "list": {"type": "array"},
            "object": {"type": ["object", "null"]},
        },
        "$defs": {"whole": {"type": "integer"}},
    },
)
MARKED = {"hermes", "granite", "mistral", "kimi_k2", "deepseek_v3", "qwen3_coder", "glm4"}

quick = settings(
    max_examples=int(os.environ.get("EXAMPLES", "25")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)


def cut(data: st.DataObject, text: str) -> list[bytes]:
    """Tokens of a text: any bytes, so also parts of characters."""
    raw = text.encode()
    sizes = data.draw(
        st.sampled_from([[1], [2], [3], [4], [7], [1, 5], [11, 1, 2], [64], [10_000]]),
        label="sizes",
    )
    tokens, at, turn = [], 0, 0
    while at < len(raw):
        tokens.append(raw[at : at + sizes[turn % len(sizes)]])
        at += sizes[turn % len(sizes)]
        turn += 1
    return tokens


def prose(data: st.DataObject, format: Format, *, label: str) -> str:
    """Visible text with half markers in it, that is no call and does not end in white space."""
    words = ["Hello", " there", "é😊", "\n", " ", '"', *format.noise]
    text = "".join(data.draw(st.lists(st.sampled_from(words), max_size=5), label=label))
    return f"So{text}." if text else ""


def fields(format: Format, reasoning: str = "none", **more: Any) -> dict[str, Any]:
    return {
        "tools": (FREE, TYPED, *TOOLS),
        "tool_format": format.name,
        "reasoning_format": "harmony" if format.name == "harmony" else reasoning,
        **more,
    }


@pytest.mark.parametrize("format", FORMATS, ids=lambda f: f.name)
@given(data=st.data())
@quick
def test_the_meaning_comes_out_however_the_text_is_cut(format: Format, data: st.DataObject) -> None:
    name = "typed" if format.name in ("qwen3_coder", "glm4") else FREE.name
    if format.name == "pythonic":
        name = "typed"
    calls = data.draw(
        st.lists(st.tuples(st.just(name), format.arguments), min_size=0, max_size=3), label="calls"
    )
    written = format.write(calls, lambda xs: data.draw(st.sampled_from(xs))) if calls else ""
    thought = data.draw(
        st.sampled_from(["", "hm", "a\n<b> é", "use {tool} <|x|>"]), label="thought"
    )
    before = prose(data, format, label="before")
    if format.name == "harmony":
        text, reasoning = _harmony_text(thought, before, written), "harmony"
    else:
        reasoning = "deepseek_r1"
        joint = "\n" if before and written and format.name not in MARKED else ""
        before += joint
        text = (f"<think>{thought}</think>\n\n" if thought else "") + before + written
    step = data.draw(st.sampled_from([1, 3]), label="tokens a step")
    got = summed(decode(cut(data, text), step=step, **fields(format, reasoning)))
    assert got.reasoning == thought
    assert got.content == before
    assert same(got.calls, calls), (got.calls, calls)
    assert got.finish == ("tool_calls" if calls else "stop")
    if format.exact:  # byte for byte as the model wrote them
        assert all(c.arguments in text or c.arguments == "{}" for c in got.calls)


def _harmony_text(thought: str, before: str, written: str) -> str:
    messages = []
    if thought:
        messages.append(f"<|channel|>analysis<|message|>{thought}<|end|>")
    if before:
        channel = "commentary" if written else "final"
        messages.append(f"<|channel|>{channel}<|message|>{before}<|end|>")
    if written:
        messages.append(written)
    return "<|start|>assistant".join(messages)


@pytest.mark.parametrize("format", FORMATS, ids=lambda f: f.name)
@given(data=st.data())
@quick
def test_any_text_is_read_the_same_in_any_pieces_and_nothing_is_lost(
    format: Format, data: st.DataObject
) -> None:
    row = TOOL_FORMATS[format.name]
    scraps = [
        *row.markers, *row.inner_markers, *format.noise, "<think>", "</think>", "now", "add", "zz",
        '{"name": "add", "arguments": {"a": 1}}', '{"name": "zz"}', "{", "}", "[", "]", '"', ",",
        "\n",        " ", "now()", "add(a=1)", "(", ")", "functions.add", "to=functions.add", "x",
    ]  # fmt: skip
    text = "".join(data.draw(st.lists(st.sampled_from(scraps), max_size=9), label="text"))
    reasoning = data.draw(st.sampled_from(["none", "qwen3"]), label="reasoning")
    end: EngineFinishReason = data.draw(st.sampled_from(["stop", "length"]), label="end")
    more = {
        "opens_thinking": data.draw(st.booleans(), label="opens"),
        "return_malformed_calls": data.draw(st.booleans(), label="give back"),
    }
    whole = summed(decode([text], end, **fields(format, reasoning, **more)))
    parts = summed(decode(cut(data, text), end, **fields(format, reasoning, **more)))
    assert parts == whole
    gives_back = more["return_malformed_calls"] and end == "stop" and reasoning == "none"
    if gives_back and not whole.calls and format.name != "harmony":
        assert whole.content == text  # what is no call comes back
    assert whole.finish == "length" if end == "length" else whole.finish != "length"


@pytest.mark.parametrize("format", FORMATS, ids=lambda f: f.name)
@given(data=st.data())
@quick
def test_a_limit_leaves_a_prefix_of_the_same_answer(format: Format, data: st.DataObject) -> None:
    name = "typed" if format.name in ("qwen3_coder", "glm4", "pythonic") else FREE.name
    calls = [(name, data.draw(format.arguments)) for _ in range(2)]
    text = format.write(calls, lambda xs: data.draw(st.sampled_from(xs)))
    whole = summed(decode([text], **fields(format)))
    limit = data.draw(st.integers(0, len(text)), label="limit")
    tokens = cut(data, text[:limit])
    got = summed(decode(tokens, "length", **fields(format)))
    assert got.finish == "length"
    for number, call in enumerate(got.calls):
        assert call.name == whole.calls[number].name
        last = number == len(got.calls) - 1
        full = whole.calls[number].arguments
        assert full.startswith(call.arguments) if last else full == call.arguments
    forced = fields(format, tool_choice=ToolChoice("required"), return_malformed_calls=True)
    held = summed(decode(tokens, "length", **forced))
    assert all(held.calls[i] == whole.calls[i] for i in range(len(held.calls)))
    assert held.content == ""
    if format.name not in ("llama3_json", "json", "pythonic"):
        # only what is no more than the beginning of a marker is text
        markers = TOOL_FORMATS[format.name].markers
        assert any(marker.startswith(got.content.strip()) for marker in markers)


@pytest.mark.parametrize("format", FORMATS, ids=lambda f: f.name)
@given(arguments=st.data())
@quick
def test_without_tools_nothing_is_a_call(format: Format, arguments: st.DataObject) -> None:
    calls = [("add", arguments.draw(format.arguments))]
    text = format.write(calls, lambda xs: arguments.draw(st.sampled_from(xs)))
    for more in ({"tools": ()}, {"tool_choice": ToolChoice("none")}):
        got = answer(text, **fields(format, **more))
        assert got.calls == ()
        assert got.finish == "stop"
        if format.name == "harmony":
            assert "<|channel|>" not in got.content
        else:
            assert got.content == text


# ---------------------------------------------------------------- single faults, by kind

HERMES: dict[str, Any] = {"tools": TOOLS, "tool_format": "hermes"}
ADD = '{"name": "add", "arguments": {"a": 1}}'


@pytest.mark.parametrize("cut_at", [1, 2, 5, 1000])
@pytest.mark.parametrize(
    ("text", "more", "want"),
    [
        ("x <tool_call>nope</tool_call> y", {}, Answer(
            content="x  y", finish="malformed_function_call")),
        (
            "x <tool_call>nope</tool_call> y",
            {"return_malformed_calls": True},
            Answer(content="x <tool_call>nope</tool_call> y"),
        ),
        (
            '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
            {"return_malformed_calls": True},
            Answer(content='<tool_call>{"name": "other", "arguments": {}}</tool_call>'),
        ),
        (
            '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
            {},
            Answer(finish="malformed_function_call"),
        ),
        (
            f"<tool_call>{ADD}</tool_call>",
            {"tool_choice": ToolChoice("auto", ("now",))},
            Answer(finish="malformed_function_call"),
        ),
        (
            '<tool_call>{"name": "add", "arguments": {"a": }}</tool_call>',
            {"return_malformed_calls": True},
            Answer(calls=(Call("add", '{"a": }'),), finish="tool_calls"),
        ),
        (
            '<tool_call>{"name": "add", "arguments": {"a": }}</tool_call>',
            {},
            Answer(calls=(Call("add", '{"a": }'),), finish="malformed_function_call"),
        ),
        (
            f"<tool_call>{ADD}</tool_call><tool_call>{ADD}</tool_call>",
            {"parallel_tool_calls": False},
            Answer(calls=(Call("add", '{"a": 1}'),), finish="tool_calls"),
        ),
        (
            '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>',
            {},
            Answer(calls=(Call("add", '{"a": 1}'),), finish="tool_calls"),
        ),
        (
            '<tool_call>{"name": "run_code", "arguments": {"input": "a\\nb"}}</tool_call>',
            {"tools": (CUSTOM,)},
            Answer(calls=(Call("run_code", "a\nb", "custom"),), finish="tool_calls"),
        ),
        (
            f"<think>let me</think>\n\n\n<tool_call>{ADD}</tool_call>\n",
            {"reasoning_format": "qwen3"},
            Answer(reasoning="let me", calls=(Call("add", '{"a": 1}'),), finish="tool_calls"),
        ),
        (
            f"let me <tool_call>{ADD}</tool_call>",
            {"reasoning_format": "qwen3", "opens_thinking": True},
            Answer(reasoning="let me ", calls=(Call("add", '{"a": 1}'),), finish="tool_calls"),
        ),
        (
            f"let me <tool_call>{ADD}</tool_call> or not</think>No.",
            {"reasoning_format": "qwen3", "opens_thinking": True},
            Answer(reasoning=f"let me <tool_call>{ADD}</tool_call> or not", content="No."),
        ),
        (
            '<tool_call>{"name": "add", "arguments": {"a": "END"}}</tool_call> x END y',
            {"stop": ("END",)},
            Answer(content=" x ", calls=(Call("add", '{"a": "END"}'),), finish="tool_calls"),
        ),
        (
            "<think>END</think>a END b",
            {"reasoning_format": "qwen3", "stop": ("END",)},
            Answer(reasoning="END", content="a "),
        ),
        ("\n\nSTOP", {"stop": ("\n",)}, Answer()),
    ],
)  # fmt: skip
def test_hermes(cut_at: int, text: str, more: dict[str, Any], want: Answer) -> None:
    assert answer(text, cut=cut_at, **{**HERMES, **more}) == want


@pytest.mark.parametrize("cut_at", [1, 3, 1000])
@pytest.mark.parametrize(
    ("format", "text", "want"),
    [
        ("llama3_json", '{"foo": 1, "name": "add"}', Answer(content='{"foo": 1, "name": "add"}')),
        ("llama3_json", '{"name": "zz", "parameters": {}}\nx', Answer(
            content='{"name": "zz", "parameters": {}}\nx')),
        ("llama3_json", 'Sure.\n{"name": "now", "parameters": {}}', Answer(
            content="Sure.\n", calls=(Call("now", "{}"),), finish="tool_calls")),
        ("pythonic", "[1, 2]", Answer(content="[1, 2]")),
        ("pythonic", "[add](http://x)", Answer(content="[add](http://x)")),
        ("pythonic", "[add(1, b=0x1_0)]", Answer(
            calls=(Call("add", '{"a": 1, "b": 16}'),), finish="tool_calls")),
        ("pythonic", '[write_file(path=\'a\', text="""x\n"y" """)]', Answer(
            calls=(Call("write_file", '{"path": "a", "text": "x\\n\\"y\\" "}'),),
            finish="tool_calls")),
        ("qwen3_coder", "<function=now>\n</function>", Answer(
            calls=(Call("now", "{}"),), finish="tool_calls")),
        ("qwen3_coder", "<tool_call>\n<function=write_file>\n<parameter=path>\n</tool_call> a "
            "</parameter> b\n\n</parameter>\n</function>\n</tool_call>", Answer(
            calls=(Call("write_file", '{"path": "</tool_call> a </parameter> b\\n"}'),),
            finish="tool_calls")),
        ("glm4", '<tool_call>add\n{"a": 1}</tool_call>', Answer(
            calls=(Call("add", '{"a": 1}'),), finish="tool_calls")),
        ("kimi_k2", "<|tool_call_begin|>functions.now:0<|tool_call_end|>", Answer(
            calls=(Call("now", "{}"),), finish="tool_calls")),
        ("mistral", "[TOOL_CALLS]now", Answer(calls=(Call("now", "{}"),), finish="tool_calls")),
        ("harmony", "<|channel|>commentary to=functions.add<|message|>"
            '{"a": "<|end|>"}<|call|>', Answer(
            calls=(Call("add", '{"a": "<|end|>"}'),), finish="tool_calls")),
        ("harmony", "<|channel|>final<|message|>a<|end|>"
            "<|start|>assistant<|channel|>final<|message|>b",
            Answer(content="ab")),
        ("harmony", "plain", Answer(content="plain")),
        ("mistral", '[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]now[ARGS]{}', Answer(
            calls=(Call("add", '{"a": 1}'), Call("now", "{}")), finish="tool_calls")),
        ("hermes", '<tool_call>{"name": "add", "arguments": {"a": <x>}}</tool_call>', Answer(
            calls=(Call("add", '{"a": <x>}}'),), finish="malformed_function_call")),
        ("harmony", "<|channel|>commentary to=functions.now<|message|>{} \n<|call|>"
            "<|start|>assistant<|channel|>final<|message|>x", Answer(
            content="x", calls=(Call("now", "{}"),), finish="tool_calls")),
    ],
)  # fmt: skip
def test_single_faults(cut_at: int, format: str, text: str, want: Answer) -> None:
    assert answer(text, cut=cut_at, tools=TOOLS, tool_format=format) == want


@pytest.mark.parametrize(
    ("reasoning", "text", "want"),
    [
        ("deepseek_r1", "<think>\n\n</think>\n\nHi", Answer(content="Hi")),
        ("deepseek_r1", "</think>\nHi", Answer(content="Hi")),
        ("deepseek_r1", "a <think>b</think>", Answer(content="a <think>b</think>")),
        ("deepseek_r1", "<think>a</think>\n<think>b</think>c", Answer(reasoning="ab", content="c")),
        ("deepseek_r1", " \n ", Answer(content=" \n ")),
        ("deepseek_r1", "<think>a", Answer(reasoning="a")),
        ("mistral", "[THINK]a[/THINK]b", Answer(reasoning="a", content="b")),
        ("granite", "Here is my thought process:a\nHere's my response:\nb", Answer(
            reasoning="a\n", content="b")),
        ("none", "<think>a</think>b", Answer(content="<think>a</think>b")),
        ("gpt-oss", "<|channel|>analysis<|message|>a<|end|>"
            "<|start|>assistant<|channel|>final<|message|>b",
            Answer(reasoning="a", content="b")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("cut_at", [1, 2, 3, 1000])
def test_thoughts(cut_at: int, reasoning: str, text: str, want: Answer) -> None:
    assert answer(text, cut=cut_at, reasoning_format=reasoning) == want


@pytest.mark.parametrize("cut_at", [1, 3, 1000])
def test_an_end_marker_that_the_limit_cuts_is_no_text(cut_at: int) -> None:
    want = Answer(calls=(Call("now", "{}"),), finish="length")
    for format, text in (
        ("harmony", "<|channel|>commentary to=functions.now<|message|>{}<|cal"),
        ("hermes", '<tool_call>{"name": "now"}\n</tool_c'),
    ):
        assert answer(text, "length", cut=cut_at, tools=TOOLS, tool_format=format) == want


def test_reasoning_tokens_are_counted_with_their_markers() -> None:
    tokens = ["<think>", "a", "b", "</th", "ink>", "\n\n", "X", "Y"]
    events, count = decode_counting(tokens, reasoning_format="qwen3")
    assert summed(events) == Answer(reasoning="ab", content="XY")
    assert count == 6
    _, count = decode_counting(["a", "b"], "length", reasoning_format="qwen3", opens_thinking=True)
    assert count == 2
    _, count = decode_counting(["<th", "is"], reasoning_format="qwen3")
    assert count == 0


def test_arguments_stream_as_they_come() -> None:
    tokens = list('<tool_call>{"name": "write_file", "arguments": {"path": "' + "x" * 50)
    events = decode(tokens, "length", **HERMES)
    assert len([e for e in events if type(e).__name__ == "ToolCallDelta"]) > 50
    tokens = list("<tool_call><function=write_file><parameter=path>" + "x" * 50)
    events = decode(tokens, "length", tools=TOOLS, tool_format="qwen3_coder")
    assert len([e for e in events if type(e).__name__ == "ToolCallDelta"]) > 50


def test_huge_and_hostile_text_is_read_in_reasonable_time() -> None:
    deep = '<tool_call>{"name": "add", "arguments": ' + "[" * 100_000
    assert answer(deep, cut=40, **HERMES).finish == "malformed_function_call"
    half = "<tool_call" * 20_000
    assert answer(half, cut=3, **HERMES).content == half
    thought = "<tool_call>" + "x" * 200_000
    got = answer(thought, cut=40, reasoning_format="qwen3", opens_thinking=True, **HERMES)
    assert got.finish == "malformed_function_call"
    python = "[add(a=" + "[" * 50_000
    assert answer(python, cut=40, tools=TOOLS, tool_format="pythonic").calls


@given(value=json_values)
@quick
def test_json_scan_finds_the_end_of_any_value(value: Any) -> None:
    text = json.dumps({"v": value})
    got = answer(f'<tool_call>{{"name": "now", "arguments": {text}}}</tool_call>', cut=3, **HERMES)
    assert got.calls == (Call("now", text),)
