"""`llama3_json`: one JSON object at the start of a line, more after `;`; Llama 3.1 to 3.3."""

import re

from rejoinder.text.formats.format import ToolFormat
from rejoinder.text.formats.json_calls import bare_json_object

FORMAT = ToolFormat(
    name="llama3_json",
    aliases=("llama3", "llama4_json", "llama"),
    reader=bare_json_object,
    text={"<|python_tag|>": "section"},
    separators=" \t\r\n;,",
    bare=re.compile(r"\{"),
    template_marks=(("<|python_tag|>",), ('"parameters": dictionary of argument name',)),
)
