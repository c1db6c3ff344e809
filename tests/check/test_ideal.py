"""The ideal server keeps every rule of both dialects: no false alarm on what is right."""

import pytest

from rejoinder.check.exchange import DialectName
from rejoinder.check.rule import Mode
from tests.check.evidence import ideal_evidence, judged

NOT_SHOWN: dict[DialectName, set[str]] = {
    "O": {"R33", "R119", "R120", "R131", "R165", "R205", "R206", "R207", "R208", "R218"},
    "D": {"R119", "R120", "R131", "R205", "R207", "R208", "R216", "R217"},
}
"""What an ideal server does not show of itself: failures, limits and refusals."""


@pytest.mark.parametrize("dialect", ["O", "D"])
@pytest.mark.parametrize("mode", ["strict", "live"])
def test_ideal_server_keeps_every_rule(dialect: DialectName, mode: Mode) -> None:
    outcomes = judged(ideal_evidence(dialect), dialect, mode)
    assert [o for o in outcomes if o.verdict in ("failed", "warned")] == []
    skipped = {o.rule: o.reason for o in outcomes if o.verdict == "skipped"}
    assert set(skipped) == NOT_SHOWN[dialect], skipped
