"""`glm4`: the name, then `<arg_key>` and `<arg_value>` by turns, in `<tool_call>`; GLM 4.5 on."""

import re

from rejoinder.text.formats.format import CallSink, Reader, Schemas, ToolFormat
from rejoinder.text.formats.tagged import TaggedReader, Tags

_TAGS = Tags(
    name_end=("\n", "<arg_key>", "</tool_call>", "{"),
    keeps_name_end=("<arg_key>", "</tool_call>", "{"),
    key="<arg_key>",
    key_end="</arg_key>",
    value="<arg_value>",
    value_end="</arg_value>",
    end="",
    followers=("<arg_key>", "</tool_call>", "<tool_call>"),
)


def _reader(sink: CallSink, schemas: Schemas) -> Reader:
    return TaggedReader(sink, schemas, _TAGS)


FORMAT = ToolFormat(
    name="glm4",
    aliases=("glm45", "glm4_5", "glm47", "glm4_moe", "glm"),
    reader=_reader,
    text={"<tool_call>": "section"},
    section={"</tool_call>": "text"},
    starts=re.compile(r"[\w]"),
    inner_markers=frozenset({"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"}),
    template_marks=(("<arg_key>",),),
)
