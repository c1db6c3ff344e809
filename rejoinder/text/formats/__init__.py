"""The table of tool formats. Adding one is a file here and a row of `_ROWS` (docs/formats.md)."""

from collections.abc import Callable

from rejoinder.text.formats import (
    deepseek_v3,
    glm4,
    granite,
    harmony,
    hermes,
    json,
    kimi_k2,
    llama3_json,
    mistral,
    none,
    pythonic,
    qwen3_coder,
)
from rejoinder.text.formats.format import ToolFormat
from rejoinder.text.reasoning import REASONING_FORMATS, plain_name, reasoning_format
from rejoinder.types import Tokenizer

_ROWS: tuple[ToolFormat, ...] = (
    harmony.FORMAT,
    qwen3_coder.FORMAT,
    glm4.FORMAT,
    kimi_k2.FORMAT,
    deepseek_v3.FORMAT,
    mistral.FORMAT,
    granite.FORMAT,
    hermes.FORMAT,
    pythonic.FORMAT,
    llama3_json.FORMAT,
    json.FORMAT,
    none.FORMAT,
)
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


def marker_bytes(tokenizer: Tokenizer, tools: str, reasoning: str) -> Callable[[int], bytes]:
    """A tokenizer's `token_bytes` that gives the text of control tokens which are markers of these
    formats: the parser has to see them. Other control tokens stay without text."""
    row, thought = tool_format(tools), reasoning_format(reasoning)
    markers = {*row.markers, thought.start, thought.end, *thought.end_forms}
    if thought.name == "harmony":
        markers |= tool_format("harmony").markers
    inside = "\n".join(markers | row.inner_markers)
    texts = {
        token_id: text.encode()
        for text, token_id in tokenizer.control_tokens.items()
        if text and text in inside and token_id not in tokenizer.end_token_ids
    }
    if not texts:
        return tokenizer.token_bytes
    plain = tokenizer.token_bytes

    def token_bytes(token_id: int) -> bytes:
        return texts.get(token_id) or plain(token_id)

    return token_bytes
