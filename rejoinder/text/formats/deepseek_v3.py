"""`deepseek_v3`: a name and a JSON object between control tokens; DeepSeek V3, R1 and V3.1.

V3 writes `function`, a separator, the name, and the object in a code fence; V3.1 writes the name,
the separator and the object.
"""

import re

from rejoinder.text.formats.format import CallSink, Reader, Schemas, ToolFormat
from rejoinder.text.formats.json_calls import NamedJsonReader

_SEPARATOR = "<｜tool▁sep｜>"
_HEADER = re.compile(
    rf"\s*(?:function\s*{_SEPARATOR})?\s*(?P<name>[\w.\-]+)\s*(?:{_SEPARATOR})?\s*(?:```(?:json)?)?\s*"
)
_ENDS = ("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>")


def _reader(sink: CallSink, schemas: Schemas) -> Reader:
    return NamedJsonReader(sink, _HEADER, _ENDS)


FORMAT = ToolFormat(
    name="deepseek_v3",
    aliases=("deepseek", "deepseek_r1", "deepseek_v3_1", "deepseek_v31"),
    reader=_reader,
    text={"<｜tool▁calls▁begin｜>": "section", "<｜tool▁call▁begin｜>": "call"},
    section={
        "<｜tool▁call▁begin｜>": "call",
        "<｜tool▁call▁end｜>": "section",
        "<｜tool▁calls▁end｜>": "text",
    },
    separators=" \t\r\n`",
    inner_markers=frozenset({_SEPARATOR}),
    template_marks=(("<｜tool▁calls▁begin｜>",),),
)
