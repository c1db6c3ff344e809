"""Every test that docs/threats.md names exists."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_defence_has_its_test() -> None:
    text = (ROOT / "docs" / "threats.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/.]+)::(\w+)`", text)
    assert len(named) > 40
    for file, name in named:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        names = {getattr(node, "name", "") for node in tree.body}
        assert name in names, f"{file}::{name}"
