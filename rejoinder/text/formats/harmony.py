"""`harmony`: messages with channels; gpt-oss. Reasoning and calls at once (text/harmony.py)."""

from rejoinder.text.formats.format import ToolFormat
from rejoinder.text.harmony import MARKERS

FORMAT = ToolFormat(
    name="harmony",
    aliases=("gpt_oss", "openai", "openai_gptoss"),
    section=dict.fromkeys(MARKERS, "section"),
    template_marks=(("<|channel|>",),),
    reasoning="harmony",
)
