"""`json`: for models whose template knows no tools: one JSON object is the whole answer.

The tools are described in the system prompt (`describe_json`); docs/formats.md has the words.
"""

import re

from rejoinder.text.formats.format import ToolFormat
from rejoinder.text.formats.json_calls import bare_json_object

FORMAT = ToolFormat(
    name="json",
    aliases=("plain_json", "generic"),
    reader=bare_json_object,
    separators=" \t\r\n;,[]",
    bare=re.compile(r"[\[{]"),
)
