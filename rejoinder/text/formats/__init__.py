"""The table of tool formats. Adding one is a file here and a row of `_ROWS` (docs/formats.md)."""

from rejoinder.text.formats import json, none
from rejoinder.text.formats.format import ToolFormat
from rejoinder.text.reasoning import REASONING_FORMATS, plain_name, reasoning_format

_ROWS: tuple[ToolFormat, ...] = (json.FORMAT, none.FORMAT)
"""In the order in which `auto` tries them."""

TOOL_FORMATS: dict[str, ToolFormat] = {row.name: row for row in _ROWS}


def tool_format(name: str) -> ToolFormat:
    """The row of a name or alias, in any case, with '-' for '_'. Raises ValueError."""
    plain = plain_name(name)
    for row in _ROWS:
        if plain == row.name or plain in row.aliases:
            return row
    raise ValueError(f"unknown tool format '{name}'; known: auto, {', '.join(TOOL_FORMATS)}")


def detect_formats(template: str, tools: str = "auto", reasoning: str = "auto") -> tuple[str, str]:
    """The names of the tool and reasoning formats; "auto" reads the chat template.

    A template that has no words for tools gets `json`, one that has none for thoughts `none`.
    Raises ValueError for a name that no row has.
    """
    if plain_name(tools) != "auto":
        row = tool_format(tools)
    else:
        row = next((row for row in _ROWS if _writes(template, row)), TOOL_FORMATS["json"])
    if plain_name(reasoning) != "auto":
        thought = reasoning_format(reasoning).name
    elif row.reasoning is not None:
        thought = row.reasoning
    else:
        marked = (r for r in REASONING_FORMATS if any(m in template for m in r.template_marks))
        thought = next(marked, reasoning_format("none")).name
    return row.name, thought


def _writes(template: str, row: ToolFormat) -> bool:
    return any(all(mark in template for mark in group) for group in row.template_marks)
