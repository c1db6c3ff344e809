"""`kimi_k2`: `functions.NAME:NUMBER` and a JSON object, between control tokens; Kimi K2."""

import re

from rejoinder.text.formats.format import CallSink, Reader, Schemas, ToolFormat
from rejoinder.text.formats.json_calls import NamedJsonReader

_HEADER = re.compile(
    r"\s*(?:functions\.)?(?P<name>[\w.\-]+?)(?::\d+)?\s*(?:<\|tool_call_argument_begin\|>)?\s*"
)
_ENDS = ("<|tool_call_end|>", "<|tool_calls_section_end|>")


def _reader(sink: CallSink, schemas: Schemas) -> Reader:
    return NamedJsonReader(sink, _HEADER, _ENDS)


FORMAT = ToolFormat(
    name="kimi_k2",
    aliases=("kimi", "kimi_k2_5"),
    reader=_reader,
    text={"<|tool_calls_section_begin|>": "section", "<|tool_call_begin|>": "call"},
    section={
        "<|tool_call_begin|>": "call",
        "<|tool_call_end|>": "section",
        "<|tool_calls_section_end|>": "text",
    },
    inner_markers=frozenset({"<|tool_call_argument_begin|>"}),
    template_marks=(("<|tool_calls_section_begin|>",),),
)
