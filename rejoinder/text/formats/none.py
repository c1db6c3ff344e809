"""No tools: nothing in the text is a call."""

from rejoinder.text.formats.format import ToolFormat

FORMAT = ToolFormat(name="none", aliases=("plain", "off", ""))
