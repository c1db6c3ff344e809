"""Every rule has an exchange that breaks it, and only the rules of the table see that."""

import pytest

from rejoinder.check.exchange import DialectName, Read
from rejoinder.check.rules import RULES
from tests.check.evidence import Seen, broken_rules, ideal_evidence, with_response
from tests.check.goldens import GOLDENS, Golden, N

EVIDENCE: dict[DialectName, Seen] = {"O": ideal_evidence("O"), "D": ideal_evidence("D")}


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda g: f"{g.rule}-{g.dialect}")
def test_only_its_rule_reports_it(golden: Golden) -> None:
    seen = dict(EVIDENCE[golden.dialect])
    golden.breaks(seen)
    assert broken_rules(seen, golden.dialect) == {golden.rule, *golden.also}, golden.note


def test_every_rule_has_one() -> None:
    assert {rule.id for rule in RULES} == {golden.rule for golden in GOLDENS}


def test_pairs_are_explained() -> None:
    assert [g.rule for g in GOLDENS if g.also and not g.note] == []


def test_a_stream_that_waited_in_a_queue_was_flushed() -> None:
    """R10: a long wait, then chunks at the pace of an engine."""
    seen = dict(EVIDENCE["O"])
    x = seen[N]
    assert len(x.chunks) >= 16
    reads = tuple(Read(frame.offset, 3.0 + 0.002 * k) for k, frame in enumerate(x.frames))
    seen[N] = with_response(x, reads=reads)
    assert broken_rules(seen, "O") == set()
