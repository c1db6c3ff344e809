"""`hermes`: one JSON object in `<tool_call>` … `</tool_call>`; Qwen 2.5 and 3, Hermes 2 and 3."""

from rejoinder.text.formats.format import ToolFormat
from rejoinder.text.formats.json_calls import json_object

FORMAT = ToolFormat(
    name="hermes",
    aliases=("qwen", "qwen2_5", "qwen25", "qwen3"),
    reader=json_object,
    text={"<tool_call>": "section"},
    section={"</tool_call>": "text"},
    separators=" \t\r\n,[]",
    template_marks=(("<tool_call>",),),
)
