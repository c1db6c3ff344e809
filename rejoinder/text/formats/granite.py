"""`granite`: a list of JSON objects after `<|tool_call|>`, or in `<tool_call>`; IBM Granite 3."""

from rejoinder.text.formats.format import ToolFormat
from rejoinder.text.formats.json_calls import json_object

FORMAT = ToolFormat(
    name="granite",
    aliases=("granite3", "granite_20b_fc"),
    reader=json_object,
    text={"<|tool_call|>": "section", "<tool_call>": "section"},
    section={"</tool_call>": "text"},
    separators=" \t\r\n,[]",
    template_marks=(("<|tool_call|>",),),
)
