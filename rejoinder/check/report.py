"""A report as text, JSON, JUnit XML or one HTML page. Must not know: how rules are judged."""

import html
import io
import itertools
from collections.abc import Callable
from typing import Literal
from xml.etree import ElementTree

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rejoinder.check.judge import Finding, Outcome, Report, Verdict
from rejoinder.check.rules import BY_ID, GROUPS

Format = Literal["text", "json", "junit", "html"]

_STYLE: dict[Verdict, str] = {
    "passed": "green",
    "failed": "bold red",
    "warned": "yellow",
    "skipped": "dim",
}


_TITLES: dict[Verdict, str] = {
    "passed": "passed",
    "failed": "failed",
    "warned": "warned",
    "skipped": "not judged",
}


def render(report: Report, form: Format) -> str:
    """The whole report in one form."""
    return _FORMS[form](report)


def summary(report: Report) -> str:
    """One line: what was checked, and how it went."""
    return f"{subject(report)}: score {report.score:.1f} of 100; {counts(report)}"


def subject(report: Report) -> str:
    return f"{report.subject} ({report.dialect}, {report.mode})"


def counts(report: Report) -> str:
    """How it went, without the score."""
    found = report.verdicts
    silence = f", {report.num_unanswered} without an answer" if report.num_unanswered else ""
    return (
        f"{found['passed']} passed, {found['failed']} failed, {found['warned']} warned, "
        f"{found['skipped']} not judged; {report.num_requests} requests{silence} "
        f"in {report.seconds:.1f} s"
    )


def by_group(report: Report) -> dict[str, list[Outcome]]:
    groups: dict[str, list[Outcome]] = {name: [] for name in GROUPS}
    for outcome in report.outcomes:
        groups[outcome.group].append(outcome)
    return {name: outcomes for name, outcomes in groups.items() if outcomes}


def by_place(outcome: Outcome) -> list[list[Finding]]:
    """Findings of the same bytes and request together."""
    found = itertools.groupby(outcome.findings, lambda f: (place(f), f.curl))
    return [list(one) for _, one in found]


# ---------------------------------------------------------------- text


def as_text(report: Report) -> str:
    out = io.StringIO()
    print_report(report, Console(file=out, width=110, highlight=False))
    return out.getvalue()


def print_report(report: Report, console: Console) -> None:
    """Findings with their bytes and requests, a table by group, the score."""
    for outcome in report.outcomes:
        if outcome.findings:
            _print_outcome(outcome, console)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("section")
    for title in _TITLES.values():
        table.add_column(title, justify="right")
    for name, outcomes in by_group(report).items():
        numbers = {v: sum(o.verdict == v for o in outcomes) for v in _STYLE}
        table.add_row(
            name,
            *(
                Text(str(n) if n else "·", style=_STYLE[v] if n else "dim")
                for v, n in numbers.items()
            ),
        )
    console.print(table)
    skipped = [o for o in report.outcomes if o.verdict == "skipped"]
    if skipped:
        console.print(Text("\nnot judged", style="bold"))
        reasons: dict[str, list[str]] = {}
        for outcome in skipped:
            reasons.setdefault(outcome.reason, []).append(outcome.rule)
        for reason, rules in reasons.items():
            _indented(f"{' '.join(rules)}: {reason}", console, "dim", by=2)
    console.print()
    for line in (subject(report), f"score {report.score:.1f} of 100; {counts(report)}"):
        console.print(Text(line, style="bold" if report.passed else "bold red"), soft_wrap=True)


def _print_outcome(outcome: Outcome, console: Console) -> None:
    head = Text(f"{outcome.rule} {outcome.verdict}  ", style=_STYLE[outcome.verdict])
    head.append(outcome.title, style="bold")
    if outcome.count > len(outcome.findings):
        head.append(f"  ({outcome.count} times)", style="dim")
    console.print(head)
    _indented(BY_ID[outcome.rule].says, console, "dim", by=2)
    for found in by_place(outcome):
        for finding in found:
            _indented(f"• {finding.message}", console, by=2)
        _indented(place(found[0]), console, "dim")
        _indented(found[0].excerpt, console, "cyan")
        if found[0].curl:  # one line, to be copied
            console.print(Text(f"    {found[0].curl}", style="dim"), soft_wrap=True)
    console.print()


def _indented(text: str, console: Console, style: str = "", *, by: int = 4) -> None:
    for line in Text(text, style=style).wrap(console, max(20, console.width - by)):
        line.rstrip()
        console.print(Text(" " * by) + line)


def place(finding: Finding) -> str:
    """Where it was seen."""
    parts = [f"“{finding.probe}”"] if finding.probe else []
    if finding.status:
        parts.append(f"status {finding.status}")
    if finding.frame is not None:
        parts.append(f"event {finding.frame} at byte {finding.offset}")
    return ", ".join(parts)


# ---------------------------------------------------------------- JSON


def as_json(report: Report) -> str:
    """The report with its score; the fields are those of `Report`."""
    tree = msgspec.to_builtins(report)
    counts: dict[str, int] = {str(k): n for k, n in report.verdicts.items()}
    tree = {"score": round(report.score, 2), "passed": report.passed, "verdicts": counts, **tree}
    return msgspec.json.format(msgspec.json.encode(tree), indent=2).decode() + "\n"


# ---------------------------------------------------------------- JUnit


def as_junit(report: Report) -> str:
    """One suite a section, one case a rule; warnings are in the output of their case."""
    root = ElementTree.Element("testsuites", name=f"rejoinder check {report.subject}")
    for name, outcomes in by_group(report).items():
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=name,
            tests=str(len(outcomes)),
            failures=str(sum(o.verdict == "failed" for o in outcomes)),
            skipped=str(sum(o.verdict == "skipped" for o in outcomes)),
        )
        for outcome in outcomes:
            case = ElementTree.SubElement(
                suite,
                "testcase",
                classname=f"contract.{name}",
                name=f"{outcome.rule} {outcome.title}",
            )
            said = "\n".join(
                f"{f.message} [{place(f)}]\n{f.excerpt}\n{f.curl}" for f in outcome.findings
            )
            if outcome.verdict == "skipped":
                ElementTree.SubElement(case, "skipped", message=outcome.reason)
            elif outcome.verdict == "failed":
                message = outcome.findings[0].message
                ElementTree.SubElement(case, "failure", message=_xml(message)).text = _xml(said)
            elif outcome.verdict == "warned":
                ElementTree.SubElement(case, "system-out").text = _xml(said)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _xml(text: str) -> str:
    """Text without the characters that XML cannot hold."""
    return "".join(
        c if c in "\t\n" or (c >= " " and c not in "\ufffe\uffff") else "\ufffd" for c in text
    )


# ---------------------------------------------------------------- HTML

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{
  color-scheme: light dark;
  --line: #8884; --bad: #c62828; --warn: #b26a00; --good: #2e7d32;
}}
@media (prefers-color-scheme: dark) {{
  :root {{ --bad: #ff7b72; --warn: #e3b341; --good: #56d364; }}
}}
body {{
  font: 15px/1.5 system-ui, sans-serif;
  max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
}}
h1 {{ font-size: 1.3rem; }}
h2 {{ font-size: 1.05rem; margin: 2rem 0 .5rem; text-transform: capitalize; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .15rem 1.2rem .15rem 0; text-align: right; }}
th:first-child, td:first-child {{ text-align: left; }}
.score {{ font-size: 2.4rem; font-weight: 650; }}
details, .rule {{ border-top: 1px solid var(--line); padding: .35rem 0; }}
summary {{ cursor: pointer; }}
.rule {{ padding-left: 1.1rem; }}
.passed b {{ color: var(--good); }}
.failed b {{ color: var(--bad); }}
.warned b {{ color: var(--warn); }}
.skipped {{ opacity: .65; }}
pre {{
  white-space: pre-wrap; overflow-wrap: anywhere; background: #8881;
  padding: .5rem .7rem; border-radius: .4rem; font-size: .85em; margin: .3rem 0;
}}
.where {{ opacity: .7; font-size: .9em; }}
</style></head><body>
<h1>{title}</h1>
<p><span class="score">{score}</span> of 100<br>{summary}</p>
{table}
{body}
</body></html>
"""


def as_html(report: Report) -> str:
    """One page without scripts and without anything from elsewhere."""
    body: list[str] = []
    for name, outcomes in by_group(report).items():
        body.append(f"<h2>{html.escape(name)}</h2>")
        body += [_html_outcome(outcome) for outcome in outcomes]
    return _PAGE.format(
        title=html.escape(f"rejoinder check {report.subject}"),
        score=f"{report.score:.1f}",
        summary=html.escape(f"{report.model} ({report.dialect}, {report.mode}): {counts(report)}"),
        table=_html_table(report),
        body="\n".join(body),
    )


def _html_table(report: Report) -> str:
    rows = ["<tr>" + "".join(f"<th>{title}" for title in ("section", *_TITLES.values()))]
    for name, outcomes in by_group(report).items():
        numbers = (sum(o.verdict == verdict for o in outcomes) for verdict in _TITLES)
        rows.append(f"<tr><td>{name}" + "".join(f"<td>{number or '·'}" for number in numbers))
    return f"<table>{''.join(rows)}</table>"


def _html_outcome(outcome: Outcome) -> str:
    esc = html.escape
    head = f"<b>{_TITLES[outcome.verdict]}</b> {outcome.rule} {esc(outcome.title)}"
    if not outcome.findings:
        reason = f" <span class=where>{esc(outcome.reason)}</span>" if outcome.reason else ""
        return f'<div class="rule {outcome.verdict}">{head}{reason}</div>'
    found = "".join(
        f"<p>{'<br>'.join(esc(f.message) for f in same)} "
        f"<span class=where>{esc(place(same[0]))}</span></p>"
        + (f"<pre>{esc(same[0].excerpt)}</pre>" if same[0].excerpt else "")
        + (f"<pre>{esc(same[0].curl)}</pre>" if same[0].curl else "")
        for same in by_place(outcome)
    )
    times = f" <span class=where>×{outcome.count}</span>" if outcome.count > 1 else ""
    return (
        f'<details class="{outcome.verdict}"{" open" if outcome.verdict == "failed" else ""}>'
        f"<summary>{head}{times}</summary>"
        f"<p class=where>{esc(BY_ID[outcome.rule].says)}</p>{found}</details>"
    )


_FORMS: dict[Format, Callable[[Report], str]] = {
    "text": as_text,
    "json": as_json,
    "junit": as_junit,
    "html": as_html,
}
