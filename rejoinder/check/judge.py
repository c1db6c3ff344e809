"""Evidence and rules → a report. Pure. This module must not know: sockets, terminals."""

from collections import Counter
from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec import Struct

from rejoinder.check.decoded import repairs
from rejoinder.check.exchange import DialectName, Exchange, Frame
from rejoinder.check.rule import Evidence, Mode, Problem, Rule, Severity, Skipped

Verdict = Literal["passed", "failed", "warned", "skipped"]

MAX_FINDINGS = 5
"""Of one rule; the rest is only counted."""

MAX_EXCERPT_BYTES = 400

_WEIGHT: dict[Severity, int] = {"error": 4, "warning": 1}


class Finding(Struct, frozen=True, kw_only=True):
    """One breach of one rule, with what is needed to see it again.

    `frame` and `offset` are the number of the SSE event and its first byte in the body; None
    where the answer is no stream or no single event is at fault.
    """

    rule: str
    severity: Severity
    message: str
    probe: str
    status: int
    frame: int | None
    offset: int | None
    excerpt: str
    curl: str


class Outcome(Struct, frozen=True, kw_only=True):
    """What became of one rule. `looked`: how many exchanges it judged; `count`: all breaches."""

    rule: str
    group: str
    title: str
    severity: Severity
    verdict: Verdict
    looked: int = 0
    count: int = 0
    reason: str = ""
    findings: tuple[Finding, ...] = ()


class Report(Struct, frozen=True, kw_only=True):
    """All outcomes of one server or one file. Times in seconds. `num_unanswered`: how many of the
    requests got nothing, in time or at all."""

    subject: str
    model: str
    dialect: Literal["openai", "deepinfra"]
    mode: Mode
    outcomes: tuple[Outcome, ...]
    num_requests: int
    num_unanswered: int = 0
    seconds: float = 0.0

    @property
    def verdicts(self) -> Counter[Verdict]:
        return Counter(outcome.verdict for outcome in self.outcomes)

    @property
    def passed(self) -> bool:
        """Whether no rule was broken; warnings do not count."""
        return self.verdicts["failed"] == 0

    @property
    def score(self) -> float:
        """0 … 100: the share of the judged rules that hold; an error weighs four warnings."""
        judged = [o for o in self.outcomes if o.verdict != "skipped"]
        weight = sum(_WEIGHT[o.severity] for o in judged)
        held = sum(_WEIGHT[o.severity] for o in judged if o.verdict == "passed")
        # A rule that only warned lost what a warning weighs.
        held += sum(
            _WEIGHT[o.severity] - _WEIGHT["warning"] for o in judged if o.verdict == "warned"
        )
        return 100.0 * held / weight if weight else 0.0


DIALECT_TITLES: dict[DialectName, Literal["openai", "deepinfra"]] = {
    "O": "openai",
    "D": "deepinfra",
}


def judge(evidence: Evidence, rules: Iterable[Rule]) -> list[Outcome]:
    """Every rule of the dialect, judged; then what only the chunk decoder stumbles over."""
    outcomes = [judge_rule(evidence, r) for r in rules if r.applies_to(evidence.dialect)]
    return with_repairs(evidence, outcomes)


def with_repairs(evidence: Evidence, outcomes: list[Outcome]) -> list[Outcome]:
    """Adds a warning to the rules of what the decoder repairs in a stream without a finding."""
    seen = {finding.probe for outcome in outcomes for finding in outcome.findings}
    found: dict[str, list[Problem]] = {}
    for exchange in evidence.exchanges:
        if exchange.is_stream and exchange.probe not in seen:
            for rule_id, message in repairs(exchange):
                text = f"the chunk decoder repairs it: {message}"
                found.setdefault(rule_id, []).append(Problem(text, None, exchange, "warning"))
    return [
        _with_problems(outcome, found[outcome.rule]) if outcome.rule in found else outcome
        for outcome in outcomes
    ]


def _with_problems(outcome: Outcome, problems: list[Problem]) -> Outcome:
    findings = tuple(_finding(outcome.rule, "warning", problem) for problem in problems)
    return msgspec.structs.replace(
        outcome,
        verdict="failed" if outcome.verdict == "failed" else "warned",
        looked=outcome.looked + len(problems),
        count=outcome.count + len(problems),
        findings=(*outcome.findings, *findings)[:MAX_FINDINGS],
    )


def judge_rule(evidence: Evidence, rule: Rule) -> Outcome:
    severity = rule.severity_in(evidence.mode)
    try:
        problems, looked = rule.judge(evidence)
    except Skipped as skipped:
        return Outcome(
            rule=rule.id,
            group=rule.group,
            title=rule.title,
            severity=severity,
            verdict="skipped",
            reason=str(skipped),
        )
    findings = tuple(
        _finding(rule.id, rule.severity_in(evidence.mode, problem.level), problem)
        for problem in problems
    )
    worst = "passed"
    if findings:
        worst = "failed" if any(f.severity == "error" for f in findings) else "warned"
    return Outcome(
        rule=rule.id,
        group=rule.group,
        title=rule.title,
        severity=severity,
        verdict=worst,  # type: ignore[arg-type]
        looked=looked,
        count=len(findings),
        findings=_most_telling(findings),
    )


def _most_telling(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Errors before warnings, and what was not said yet before what repeats."""
    first = {finding.message: finding for finding in reversed(findings)}
    ranked = sorted(findings, key=lambda f: (f.severity, first[f.message] is not f))
    return tuple(ranked[:MAX_FINDINGS])


def _finding(rule: str, severity: Severity, problem: Problem) -> Finding:
    exchange, frame = problem.exchange, problem.frame
    return Finding(
        rule=rule,
        severity=severity,
        message=problem.message.encode("utf-8", "backslashreplace").decode(),
        probe=exchange.probe if exchange else "",
        status=exchange.response.status if exchange else 0,
        frame=frame.number if frame else None,
        offset=frame.offset if frame else None,
        excerpt=_excerpt(exchange, frame),
        curl=exchange.curl() if exchange else "",
    )


def _excerpt(exchange: Exchange | None, frame: Frame | None) -> str:
    if frame is not None:
        raw = frame.raw
    elif exchange is not None and not exchange.is_stream:
        raw = exchange.response.body
    else:
        return ""
    text = raw[:MAX_EXCERPT_BYTES].decode("utf-8", "backslashreplace").strip("\r\n")
    more = len(raw) - MAX_EXCERPT_BYTES
    return f"{text} … {more} bytes more" if more > 0 else text
