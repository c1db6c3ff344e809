"""`json`: for models whose template knows no tools: one JSON object is the whole answer."""

from rejoinder.text.formats.format import ToolFormat

FORMAT = ToolFormat(name="json", aliases=("plain_json",))
