"""Of all systematic mutants that are faults, the rule that should catches nearly every one."""

import functools
from collections import Counter
from typing import NamedTuple

import pytest

from rejoinder.check.exchange import DialectName
from tests.check.evidence import Seen, broken_rules, ideal_evidence
from tests.check.mutants import Mutant, mutants, mutated, wanted


class Subject(NamedTuple):
    """A stream, the exchanges that its rules compare it with, and what is special about it."""

    dialect: DialectName
    stream: str
    twins: tuple[str, ...]
    special: str = "plain"


PAIR = ("unary", "unary again")
SEEDED = ("seeded", "seeded again")

SUBJECTS = (
    Subject("O", "stream with usage", PAIR),
    Subject("O", "n=3, streamed", ("n=3", *SEEDED)),
    Subject("O", "tools, streamed", (*PAIR, "tools")),
    Subject("O", "tool_choice required, streamed", (*PAIR, "tool_choice required")),
    Subject("O", "functions", ()),
    Subject("O", "logprobs, streamed", (*PAIR, "logprobs"), "logprobs"),
    Subject("O", "top_logprobs, streamed", (*PAIR, "top_logprobs"), "logprobs"),
    Subject("O", "moderation, streamed", (*PAIR, "stream with usage")),
    Subject("D", "stream with usage", PAIR),
    Subject("D", "n=3, streamed", ("n=3", *SEEDED)),
    Subject("D", "tools, streamed", (*PAIR, "tools")),
    Subject("D", "logprobs, streamed", (*PAIR, "logprobs"), "logprobs"),
    Subject("D", "continuous usage", PAIR),
)


@functools.cache
def evidence(dialect: DialectName) -> Seen:
    return ideal_evidence(dialect)


def outcome(subject: Subject, mutant: Mutant) -> set[str]:
    everything = evidence(subject.dialect)
    seen = {name: everything[name] for name in (*subject.twins, subject.stream)}
    seen[subject.stream] = mutated(seen[subject.stream], mutant)
    return broken_rules(seen, subject.dialect)


def run(subject: Subject) -> Counter[str]:
    """How many mutants are faults, were caught by their rule, by another, by none."""
    counts: Counter[str] = Counter()
    for mutant in mutants(evidence(subject.dialect)[subject.stream]):
        rules = wanted(mutant, subject.dialect, subject.special)
        reported = outcome(subject, mutant)
        if rules == {"legal"}:
            counts["legal"] += 1
            counts["false alarms"] += bool(reported)
            if reported:
                print("false alarm:", subject.stream, mutant.operation, mutant.place, reported)
            continue
        counts["faults"] += 1
        counts["caught"] += bool(reported & rules) or (not reported and "legal" in rules)
        if not reported & rules:
            where = f"{mutant.place} in {mutant.kind} of {subject.dialect} {subject.stream}"
            print("missed:", mutant.operation, where, sorted(rules), reported)
    return counts


RESULTS: Counter[str] = Counter()


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda s: f"{s.dialect}-{s.stream}")
def test_mutants_of_one_stream(subject: Subject) -> None:
    counts = run(subject)
    RESULTS.update(counts)
    assert counts["caught"] >= 0.98 * counts["faults"]
    assert not counts["false alarms"]


def test_all_mutants() -> None:
    if len(RESULTS) == 0:
        pytest.skip("the streams were not mutated in this run")
    assert RESULTS["faults"] >= 500
    assert RESULTS["caught"] >= 0.98 * RESULTS["faults"]
