"""How each tool format writes calls: rows of `CallSpelling`, for grammars.

A model may use any of its format's spellings. They are what the format's reader reads (formats/),
in the one form that the model's own template shows.
"""

from rejoinder.text.call_spelling import CallSpelling, raw_arguments
from rejoinder.text.keyword_arguments import python_arguments, tagged_arguments

_KEYS = r'(?:"(?:type|id)"\s*:\s*(?:"[^"\n]*"|[^\s,{}"\[\]]+)\s*,\s*)*'
_OBJECT = r"(?:\[\s*)?\{\s*" + _KEYS + r'"(?:name|function)"\s*:\s*{names}'

SPELLINGS: dict[str, tuple[CallSpelling, ...]] = {
    "json": (
        CallSpelling(
            before='{"name": {name}, "arguments": ', after="}", line_start=_OBJECT, many=False
        ),
    ),
    "llama3_json": (
        CallSpelling(
            before='<|python_tag|>{"name": {name}, "parameters": ',
            after="}",
            between="; ",
            trigger="<|python_tag|>",
            token="<|python_tag|>",
        ),
        CallSpelling(
            before='{"name": {name}, "parameters": ', after="}", between="; ", line_start=_OBJECT
        ),
    ),
    "hermes": (
        CallSpelling(
            before='<tool_call>\n{"name": {name}, "arguments": ',
            after="}\n</tool_call>",
            between="\n",
            trigger="<tool_call>",
        ),
    ),
    "mistral": (
        CallSpelling(
            before="[TOOL_CALLS]{name}[ARGS]",
            after="",
            name="plain",
            trigger="[TOOL_CALLS]",
            token="[ARGS]",
        ),
        CallSpelling(
            begin="[TOOL_CALLS] [",
            before='{"name": {name}, "arguments": ',
            after="}",
            between=", ",
            end="]",
            trigger="[TOOL_CALLS]",
        ),
    ),
    "granite": (
        CallSpelling(
            begin="<|tool_call|>[",
            before='{"name": {name}, "arguments": ',
            after="}",
            between=", ",
            end="]",
            trigger="<|tool_call|>",
        ),
        CallSpelling(
            before='<tool_call>\n{"name": {name}, "arguments": ',
            after="}\n</tool_call>",
            between="\n",
            trigger="<tool_call>",
        ),
    ),
    "deepseek_v3": (
        CallSpelling(
            begin="<｜tool▁calls▁begin｜>",
            before="<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>",
            after="<｜tool▁call▁end｜>",
            end="<｜tool▁calls▁end｜>",
            name="plain",
            trigger="<｜tool▁calls▁begin｜>",
        ),
        CallSpelling(
            begin="<｜tool▁calls▁begin｜>",
            before="<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n",
            after="\n```<｜tool▁call▁end｜>",
            between="\n",
            end="<｜tool▁calls▁end｜>",
            name="plain",
            trigger="<｜tool▁calls▁begin｜>",
        ),
    ),
    "kimi_k2": (
        CallSpelling(
            begin="<|tool_calls_section_begin|>",
            before="<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>",
            after="<|tool_call_end|>",
            end="<|tool_calls_section_end|>",
            name="plain",
            trigger="<|tool_calls_section_begin|>",
        ),
    ),
    "harmony": (
        CallSpelling(
            before="<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>",
            after="",
            name="plain",
            arguments=raw_arguments,
            many=False,
        ),
    ),
    "glm4": (
        CallSpelling(
            before="<tool_call>{name}\n",
            after="</tool_call>",
            between="\n",
            name="plain",
            arguments=tagged_arguments("glm4"),
            trigger="<tool_call>",
        ),
    ),
    "qwen3_coder": (
        CallSpelling(
            before="<tool_call>\n<function={name}>\n",
            after="</function>\n</tool_call>",
            between="\n",
            name="plain",
            arguments=tagged_arguments("qwen3_coder"),
            trigger="<tool_call>",
        ),
    ),
    "pythonic": (
        CallSpelling(
            begin="<|tool_call_start|>[",
            before="{name}(",
            after=")",
            between=", ",
            end="]<|tool_call_end|>",
            name="plain",
            arguments=python_arguments,
            trigger="<|tool_call_start|>",
            token="<|tool_call_start|>",
        ),
        CallSpelling(
            begin="<|python_start|>[",
            before="{name}(",
            after=")",
            between=", ",
            end="]<|python_end|>",
            name="plain",
            arguments=python_arguments,
            trigger="<|python_start|>",
            token="<|python_start|>",
        ),
        CallSpelling(
            begin="[",
            before="{name}(",
            after=")",
            between=", ",
            end="]",
            name="plain",
            arguments=python_arguments,
            line_start=r"\[\s*{names}\(",
            taken="(",
        ),
    ),
}
