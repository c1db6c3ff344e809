"""Writes the table of request fields in docs/api.md: `python -m tests.fields_table`."""

from pathlib import Path

from rejoinder.dialects.provider import REQUEST_FIELDS

PATH = Path(__file__).parent.parent / "docs" / "api.md"
MARK = "<!-- generated: python -m tests.fields_table -->\n"
END = "<!-- end -->\n"

TOKENS = {
    "messages[].content[]: image_url": "refused",
    "messages[].content[]: input_audio": "refused",
    "messages[].content[]: file": "refused",
    "messages[].content[]: video_url": "refused",
    "messages[].role: developer": "served",
    "functions": "served",
    "user": "ignored",
    "safety_identifier": "ignored",
    "verbosity": "ignored",
}
"""Where models of tokens differ from "served"."""


def table() -> str:
    """The rows, one a field."""
    lines = [
        "| field | tokens | provider, OpenAI | provider, DeepInfra | |",
        "|---|---|---|---|---|",
    ]
    for field in REQUEST_FIELDS:
        tokens = TOKENS.get(field.param, "served")
        lines.append(
            f"| `{field.param}` | {tokens} | {field.openai} | {field.deepinfra} | {field.note} |"
        )
    return "\n".join(lines) + "\n"


def current() -> str:
    """The document as it should be."""
    text = PATH.read_text(encoding="utf-8")
    before, _, rest = text.partition(MARK)
    after = rest.partition(END)[2]
    return f"{before}{MARK}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PATH.write_text(current(), encoding="utf-8")
