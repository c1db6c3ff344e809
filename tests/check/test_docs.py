"""docs/conformance.md is what the rules say."""

from pathlib import Path

from rejoinder.check.docs import kept_part, main, page
from rejoinder.check.rules import RULES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "conformance.md"


def test_page_is_current() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(kept_part(text)), "run: python -m rejoinder.check.docs"


def test_page_has_every_rule() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [r.id for r in RULES if f"| **{r.id}** " not in text] == []


def test_written_part_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "c.md"
    file.write_text(page("A table of peers."))
    main(file)
    assert "A table of peers." in file.read_text()


def test_all_rules_are_there_and_say_something() -> None:
    assert sorted(int(rule.id[1:]) for rule in RULES) == list(range(1, 226))
    for rule in RULES:
        assert rule.title and rule.says.endswith((".", ".)")) and rule.checked_how, rule.id
        assert (rule.each is None) != (rule.whole is None)
