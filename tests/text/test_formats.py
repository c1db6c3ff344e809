"""The tables: names are unique, every row is in the docs, efforts mean something."""

from pathlib import Path
from typing import get_args

import pytest

from rejoinder.text.formats import TOOL_FORMATS, detect_formats, tool_format
from rejoinder.text.reasoning import (
    REASONING_FORMATS,
    budget,
    reasoning_format,
    template_kwargs,
)
from rejoinder.types import ReasoningEffort

DOCS = (Path(__file__).parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")
EFFORTS: tuple[ReasoningEffort, ...] = get_args(ReasoningEffort)


@pytest.mark.parametrize("table", [list(TOOL_FORMATS.values()), list(REASONING_FORMATS)])
def test_every_name_means_one_row(table: list[object]) -> None:
    names = [name for row in table for name in (row.name, *row.aliases)]  # type: ignore[attr-defined]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", [*TOOL_FORMATS, *(row.name for row in REASONING_FORMATS)])
def test_every_row_is_in_the_docs(name: str) -> None:
    assert f"| `{name}` |" in DOCS


def test_budgets_grow_and_are_in_the_docs() -> None:
    sizes = [budget(effort) for effort in EFFORTS]
    assert sizes == [0, 512, 1024, 4096, 16384, 32768, None]
    assert all(str(size) in DOCS for size in sizes if size)
    assert budget(None) is None


def test_efforts_become_template_variables() -> None:
    qwen, harmony = reasoning_format("qwen3"), reasoning_format("gpt-oss")
    assert template_kwargs(None, qwen) == {}
    assert template_kwargs("none", qwen)["enable_thinking"] is False
    assert template_kwargs("xhigh", qwen) == {
        "enable_thinking": True, "thinking": True, "reasoning_effort": "xhigh",
    }  # fmt: skip
    levels = [template_kwargs(effort, harmony)["reasoning_effort"] for effort in EFFORTS]
    assert levels == ["low", "low", "low", "medium", "high", "high", "high"]
    assert template_kwargs("high", reasoning_format("none")) == {}


def test_harmony_brings_its_reasoning() -> None:
    assert detect_formats("", "GPT-OSS") == ("harmony", "harmony")
    assert tool_format("Plain").name == "none"
