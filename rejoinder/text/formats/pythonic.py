"""`pythonic`: a list of Python calls is the answer; Llama 3.2 and 4, LFM2."""

import re

from rejoinder.text.formats.format import ToolFormat
from rejoinder.text.formats.python_calls import PythonCallReader

FORMAT = ToolFormat(
    name="pythonic",
    aliases=("llama4_pythonic", "llama4", "lfm2", "olmo3"),
    reader=PythonCallReader,
    text={
        "<|python_start|>": "section",
        "<|tool_call_start|>": "section",
    },
    section={"<|python_end|>": "text", "<|tool_call_end|>": "text"},
    separators=" \t\r\n,;[]",
    starts=re.compile(r"[A-Za-z_]"),
    bare=re.compile(r"\["),
    template_marks=(
        ("<|python_start|>",),
        ("<|tool_call_start|>",),
        ("[func_name1(params_name1=params_value1",),
    ),
)
