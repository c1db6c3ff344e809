"""`qwen3_coder`: `<function=NAME>` with `<parameter=KEY>` tags, in `<tool_call>`; Qwen3-Coder."""

from rejoinder.text.formats.format import CallSink, Reader, Schemas, ToolFormat
from rejoinder.text.formats.tagged import TaggedReader, Tags

_TAGS = Tags(
    name_end=(">",),
    key="<parameter=",
    key_end=">",
    value="",
    value_end="</parameter>",
    end="</function>",
    followers=("<parameter=", "</function>", "</tool_call>", "<tool_call>", "<function="),
    sure_breaks=("\n<parameter=",),
    breaks=("</function>", "</tool_call>"),
    newline_frames=True,
)


def _reader(sink: CallSink, schemas: Schemas) -> Reader:
    return TaggedReader(sink, schemas, _TAGS)


FORMAT = ToolFormat(
    name="qwen3_coder",
    aliases=("qwen3_xml", "qwen3_coder_xml", "qwen_coder"),
    reader=_reader,
    text={"<tool_call>": "section", "<function=": "call"},
    section={"<function=": "call", "</function>": "section", "</tool_call>": "text"},
    inner_markers=frozenset({"</parameter>", "<parameter="}),
    template_marks=(("<function=", "<parameter="),),
)
