"""Answers as models write them, made from what they mean: the oracle knows the meaning.

Each format spells a call by itself here, without the code under test.
"""

import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from msgspec import Struct

from tests.text.decoding import Call

Arguments = dict[str, Any]

# fmt: off
WORDS = [
    "a",
    "é",
    "😊",
    " ",
    "\n",
    '"',
    "\\",
    "'",
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "<",
    ">",
    "/",
    "|",
]
TAGS = [
    "</tool_call>", "<tool_call>", "</think>", "<think>", "</parameter>", "<parameter=a>",
    "<|end|>", "[ARGS]", "[TOOL_CALLS]", "</arg_value>", "<arg_key>", "</function>", "<|call|>",
    "</tool", "<|", "<｜tool▁call▁end｜>", "<|tool_call_end|>", "```", "name", "arguments",
]  # fmt: skip

# fmt: on
strings = st.lists(st.sampled_from(WORDS + TAGS), max_size=6).map("".join)
integers = st.integers(-(10**25), 10**25)
json_values = st.recursive(
    st.none() | st.booleans() | integers | strings,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(strings, inner, max_size=3),
    max_leaves=5,
)


class Format(Struct, frozen=True):
    """How a test writes calls in a format; `values` are the arguments that it can express."""

    name: str
    write: Callable[[list[tuple[str, Arguments]], Callable[[list[Any]], Any]], str]
    arguments: st.SearchStrategy[Arguments]
    exact: bool = True
    """The arguments leave as they were written (else: equal as JSON)."""
    noise: tuple[str, ...] = ()
    before: bool = True
    """Prose may come before the calls."""


def dumps(value: Any, pick: Callable[[list[Any]], Any]) -> str:
    separators = pick([(", ", ": "), (",", ":"), (" , ", " :  ")])
    return json.dumps(value, ensure_ascii=pick([True, False]), separators=separators)


def _object(name: str, arguments: Arguments, pick: Callable[[list[Any]], Any], key: str) -> str:
    body = dumps(arguments, pick)
    quoted = json.dumps(name)
    if not arguments and pick([True, False]):
        return f'{{"name": {quoted}}}'
    if pick([True, False]):
        return f'{{"{key}": {body}, "name": {quoted}}}'
    return f'{{"name":{quoted} ,\n "{key}" : {body}}}'


def hermes(calls: list[tuple[str, Arguments]], pick: Callable[[list[Any]], Any]) -> str:
    written = [_object(n, a, pick, "arguments") for n, a in calls]
    gap = pick(["", "\n"])
    return "\n".join(f"<tool_call>{gap}{text}{gap}</tool_call>" for text in written)


def granite(calls: list[tuple[str, Arguments]], pick: Callable[[list[Any]], Any]) -> str:
    return "<|tool_call|>[" + ", ".join(_object(n, a, pick, "arguments") for n, a in calls) + "]"


def llama3_json(calls: list[tuple[str, Arguments]], pick: Callable[[list[Any]], Any]) -> str:
    lead = pick(["", "<|python_tag|>"])
    return lead + pick(["; ", ";", "\n"]).join(_object(n, a, pick, "parameters") for n, a in calls)


def plain_json(calls: list[tuple[str, Arguments]], pick: Callable[[list[Any]], Any]) -> str:
    written = [_object(n, a, pick, "arguments") for n, a in calls]
    return "[" + ", ".join(written) + "]" if pick([True, False]) else "\n".join(written)


def mistral(calls: list[tuple[str, Arguments]], pick: Callable[[list[Any]], Any]) -> str:
    if pick([True, False]):
        return "[TOOL_CALLS][" + ", ".join(_object(n, a, pick, "arguments") for n, a in calls) + "]"
    lead = pick(["[ARGS]", "[CALL_ID]a1b2c3d4e[ARGS]"])
    return "".join(f"[TOOL_CALLS]{n}{lead}{dumps(a, pick)}" for n, a in calls)


def kimi_k2(calls: list[tuple[str, Arguments]], pick: Callable[[list[Any]], Any]) -> str:
    inner = "".join(
        f"<|tool_call_begin|>functions.{n}:{i}<|tool_call_argument_begin|>{dumps(a, pick)}"
        "<|tool_call_end|>"
        for i, (n, a) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{inner}<|tool_calls_section_end|>"


def deepseek_v3(calls: list[tuple[str, Arguments]], pick: Callable[[list[Any]], Any]) -> str:
    old = pick([True, False])
    inner = "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{n}\n"
        f"```json\n{dumps(a, pick)}\n```<｜tool▁call▁end｜>"
        if old
        else f"<｜tool▁call▁begin｜>{n}<｜tool▁sep｜>{dumps(a, pick)}<｜tool▁call▁end｜>"
        for n, a in calls
    )
    return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"


def _text(value: Any, pick: Callable[[list[Any]], Any]) -> str:
    return value if isinstance(value, str) else dumps(value, pick)


def qwen3_coder(calls: list[tuple[str, Arguments]], pick: Callable[[list[Any]], Any]) -> str:
    def one(name: str, arguments: Arguments) -> str:
        inner = "".join(
            f"<parameter={k}>\n{_text(v, pick)}\n</parameter>\n" for k, v in arguments.items()
        )
        return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"

    return "\n".join(one(n, a) for n, a in calls)


def glm4(calls: list[tuple[str, Arguments]], pick: Callable[[list[Any]], Any]) -> str:
    gap = pick(["", "\n"])

    def one(name: str, arguments: Arguments) -> str:
        inner = "".join(
            f"<arg_key>{k}</arg_key>{gap}<arg_value>{_text(v, pick)}</arg_value>{gap}"
            for k, v in arguments.items()
        )
        return f"<tool_call>{name}\n{inner}</tool_call>"

    return "\n".join(one(n, a) for n, a in calls)


def pythonic(calls: list[tuple[str, Arguments]], pick: Callable[[list[Any]], Any]) -> str:
    inner = pick([", ", ","]).join(
        f"{n}({', '.join(f'{k}={v!r}' for k, v in a.items())})" for n, a in calls
    )
    return f"<|python_start|>[{inner}]<|python_end|>" if pick([True, False]) else f"[{inner}]"


def harmony(calls: list[tuple[str, Arguments]], pick: Callable[[list[Any]], Any]) -> str:
    written = []
    for name, arguments in calls:
        form = pick(
            [
                "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>",
                "<|channel|>commentary to=functions.{}<|message|>",
                " to=functions.{}<|channel|>commentary json<|message|>",
            ]
        )
        written.append(f"{form.format(name)}{dumps(arguments, pick)}<|call|>")
    return "<|start|>assistant".join(written)


any_arguments = st.dictionaries(strings, json_values, max_size=3)
"""Of a tool whose schema says nothing: it takes anything."""

_plain = st.lists(st.sampled_from(WORDS), max_size=6).map("".join)
_tagged = st.fixed_dictionaries(
    {},
    optional={
        "text": strings.filter(
            lambda s: not any(t in s for t in ("\n<parameter=", "</arg_value>", "</parameter>"))
            and "</function>" not in s and "</tool_call>" not in s and "<tool_call>" not in s
        ),
        "number": integers,
        "flag": st.booleans(),
        "maybe": st.none() | integers,
        "list": st.lists(integers | _plain, max_size=3),
        "object": st.dictionaries(_plain, json_values, max_size=2),
    },
)  # fmt: skip
_keyed = st.dictionaries(st.sampled_from(["a", "b", "_c1", "längd"]), json_values, max_size=3)

FORMATS = (
    Format("hermes", hermes, any_arguments, noise=("<tool", "<tool_call", "</tool_call", "<", "[")),
    Format("granite", granite, any_arguments, noise=("<|tool", "<|tool_call|", "<", "[")),
    Format("llama3_json", llama3_json, any_arguments, noise=("<|python", " {", " {}", ";")),
    Format("json", plain_json, any_arguments, noise=(" {", " [", ";")),
    Format("mistral", mistral, any_arguments, noise=("[TOOL", "[TOOL_CALLS", "[", "[ARGS]")),
    Format("kimi_k2", kimi_k2, any_arguments, noise=("<|tool_calls_section", "<|", "<")),
    Format("deepseek_v3", deepseek_v3, any_arguments, noise=("<｜tool▁calls", "<", "```")),
    Format("qwen3_coder", qwen3_coder, _tagged, False, noise=("<function", "<tool_call", "<")),
    Format("glm4", glm4, _tagged, False, noise=("<tool_call", "<arg_key>", "<")),
    Format("pythonic", pythonic, _keyed, False, noise=(" [", "(", "<|python", "=")),
    Format("harmony", harmony, any_arguments, noise=("<|", "<|chan", "<", "to=")),
)


def expected(calls: list[tuple[str, Arguments]]) -> list[tuple[str, Arguments]]:
    return [(name, arguments) for name, arguments in calls]


def same(got: tuple[Call, ...], calls: list[tuple[str, Arguments]]) -> bool:
    """Names in order, arguments equal as JSON, integers exact and no bool for a number."""
    return [(c.name, _canonical(json.loads(c.arguments))) for c in got] == [
        (name, _canonical(arguments)) for name, arguments in calls
    ]


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
