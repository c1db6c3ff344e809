"""A report as text, JSON, JUnit XML or one HTML page. Must not know: how rules are judged."""

import html
import io
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


def render(report: Report, form: Format) -> str:
    """The whole report in one form."""
    return _FORMS[form](report)


def summary(report: Report) -> str:
    """One line: what was checked, and how it went."""
    counts = report.verdicts
    return (
        f"{report.subject} ({report.dialect}, {report.mode}): score {report.score:.1f} of 100; "
        f"{counts['passed']} passed, {counts['failed']} failed, {counts['warned']} warned, "
        f"{counts['skipped']} skipped; {report.num_requests} requests in {report.seconds:.1f} s"
    )


def by_group(report: Report) -> dict[str, list[Outcome]]:
    groups: dict[str, list[Outcome]] = {name: [] for name in GROUPS}
    for outcome in report.outcomes:
        groups[outcome.group].append(outcome)
    return {name: outcomes for name, outcomes in groups.items() if outcomes}


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
    for verdict in ("passed", "failed", "warned", "skipped"):
        table.add_column(verdict, justify="right")
    for name, outcomes in by_group(report).items():
        counts = {v: sum(o.verdict == v for o in outcomes) for v in _STYLE}
        table.add_row(
            name,
            *(
                Text(str(n) if n else "·", style=_STYLE[v] if n else "dim")
                for v, n in counts.items()
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
            console.print(Text(f"  {' '.join(rules)}: {reason}", style="dim"))
    console.print()
    console.print(Text(summary(report), style="bold" if report.passed else "bold red"))


def _print_outcome(outcome: Outcome, console: Console) -> None:
    head = Text(f"{outcome.rule} {outcome.verdict}  ", style=_STYLE[outcome.verdict])
    head.append(outcome.title, style="bold")
    if outcome.count > len(outcome.findings):
        head.append(f"  ({outcome.count} times)", style="dim")
    console.print(head)
    console.print(Text(f"  {BY_ID[outcome.rule].says}", style="dim"))
    for finding in outcome.findings:
        console.print(Text(f"  • {finding.message}"))
        console.print(Text(f"    {place(finding)}", style="dim"))
        if finding.excerpt:
            console.print(Text(f"    {finding.excerpt}", style="cyan"))
        if finding.curl:
            console.print(Text(f"    {finding.curl}", style="dim"), soft_wrap=True)
    console.print()


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
        summary=html.escape(summary(report)),
        body="\n".join(body),
    )


def _html_outcome(outcome: Outcome) -> str:
    esc = html.escape
    head = f"<b>{outcome.verdict}</b> {outcome.rule} {esc(outcome.title)}"
    if not outcome.findings:
        reason = f" <span class=where>{esc(outcome.reason)}</span>" if outcome.reason else ""
        return f'<div class="rule {outcome.verdict}">{head}{reason}</div>'
    found = "".join(
        f"<p>{esc(f.message)} <span class=where>{esc(place(f))}</span></p>"
        + (f"<pre>{esc(f.excerpt)}</pre>" if f.excerpt else "")
        + (f"<pre>{esc(f.curl)}</pre>" if f.curl else "")
        for f in outcome.findings
    )
    return (
        f'<details class="{outcome.verdict}"{" open" if outcome.verdict == "failed" else ""}>'
        f"<summary>{head} <span class=where>×{outcome.count}</span></summary>"
        f"<p class=where>{esc(BY_ID[outcome.rule].says)}</p>{found}</details>"
    )


_FORMS: dict[Format, Callable[[Report], str]] = {
    "text": as_text,
    "json": as_json,
    "junit": as_junit,
    "html": as_html,
}
