"""What the encoders make of any legal answer raises no alarm (10,000 of them: benchmarks/)."""

import random

import pytest

from rejoinder.check.exchange import DialectName
from rejoinder.check.judge import judge
from rejoinder.check.live import SAMPLED
from rejoinder.check.rule import Evidence
from tests.check.good import good_exchange


@pytest.mark.parametrize("dialect", ["O", "D"])
def test_good_answers_raise_no_alarm(dialect: DialectName) -> None:
    judged: set[str] = set()
    for seed in range(250):
        x = good_exchange(random.Random(seed), dialect)
        evidence = Evidence({x.probe: x}, dialect=dialect, mode="strict")
        outcomes = judge(evidence, SAMPLED)
        found = [f for o in outcomes for f in o.findings]
        assert found == [], f"seed {seed}: {x.asked}"
        judged |= {o.rule for o in outcomes if o.verdict == "passed"}
    # The streams are varied enough to be judged by nearly every rule about one exchange.
    assert len(judged) >= (75 if dialect == "O" else 50)
