"""`python -m rejoinder.check.docs [FILE]`: docs/conformance.md, from the rules themselves.

A part between two marks is written by people and kept. Must not know: how rules are judged.
"""

import sys
from pathlib import Path
from typing import Final

from rejoinder.check.probes import BY_GROUP
from rejoinder.check.rule import Rule
from rejoinder.check.rules import GROUPS, RULES

KEPT_FROM = "<!-- peers: written by hand -->"
KEPT_TO = "<!-- peers end -->"

DIALECTS: Final = {"O": "OpenAI", "D": "DeepInfra", "B": "both"}
KINDS: Final = {"T": "any exchange", "P": "own request", "E": "engine"}

HEAD: Final = """# Conformance

`rejoinder check URL --model M` grades any chat completions server against the contract: {count}
rules in {groups} sections, in OpenAI's dialect, DeepInfra's, or both. Rules are data plus one
predicate each (`rejoinder/check/rules/`); this page is made from them by
`python -m rejoinder.check.docs`, and a test keeps it current.

- **Severity.** A broken error rule makes the exit status 1; warnings do not. Weights in the
  score: an error rule 4, a warning rule 1; the score is the share of what could be judged.
- **Modes.** `strict` is the published schemas to the letter; `live` lets pass, as warnings, what
  the vendors' own servers are seen to do (A1 `finish_reason: null`, A2, A6 and others).
- **Kinds.** *Any exchange*: every answer that is seen is judged. *Own request*: the checker asks
  something for this rule. *Engine*: the rule speaks of the engine; what shows from outside is
  judged.
- **Not judged.** A rule that nothing showed is skipped, with the reason, and never counts as
  passed; so is one whose request was not answered in time. The report counts such requests.
  Failures, rate limits and load are not provoked unless asked for (`--load`).
- What the chunk decoder, the one that reads providers, has to repair in a stream without any
  other finding is a warning of the rule concerned.

"""

GROUP_TITLES: Final = {
    "framing": "Transport and framing",
    "requests": "Request validation",
    "body": "Unary bodies",
    "chunks": "Streams: chunks",
    "usage": "Streams: usage",
    "tools": "Tools",
    "logprobs": "Logprobs",
    "arithmetic": "Usage arithmetic",
    "moderation": "Moderation",
    "errors": "Errors and headers",
    "determinism": "Determinism and other endpoints",
}


def page(kept: str) -> str:
    """The whole page. `kept` stands between the marks."""
    parts = [HEAD.format(count=len(RULES), groups=len(GROUPS))]
    parts.append(f"{KEPT_FROM}\n{kept.strip()}\n{KEPT_TO}\n")
    for name, rules in GROUPS.items():
        parts.append(f"\n## {GROUP_TITLES[name]} (`{name}`)\n\n{_shared(name)}")
        parts.append("| Rule | Dialect | Severity | Kind | Contract | Check |\n")
        parts.append("|---|---|---|---|---|---|\n")
        parts += [_row(rule) for rule in rules]
    return "".join(parts)


def _shared(group: str) -> str:
    probes = BY_GROUP.get(group, ())
    if not probes:
        return ""
    names = ", ".join(probe.name for probe in probes)
    return f"Looks at every exchange, and for this asks: {names}.\n\n"


def _row(rule: Rule) -> str:
    severity: str = rule.severity
    if rule.strict is not None:
        severity += f" ({rule.strict} in strict mode)"
    cells = (
        f"**{rule.id}** {rule.title}",
        DIALECTS[rule.dialect],
        severity,
        KINDS[rule.kind],
        rule.says,
        rule.checked_how,
    )
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def kept_part(text: str) -> str:
    """What people wrote between the marks of an existing page."""
    return text.partition(KEPT_FROM)[2].partition(KEPT_TO)[0].strip()


def main(path: Path) -> None:
    kept = kept_part(path.read_text(encoding="utf-8")) if path.exists() else ""
    path.write_text(page(kept), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/conformance.md"))
