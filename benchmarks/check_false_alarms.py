"""How often does the checker accuse a good answer? 10,000 random ones in each dialect.

    python benchmarks/check_false_alarms.py [COUNT]

Prints every alarm with its seed, and how fast whole exchanges are judged.
"""

import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from rejoinder.check.exchange import DialectName
from rejoinder.check.judge import judge
from rejoinder.check.live import SAMPLED
from rejoinder.check.rule import Evidence
from tests.check.good import good_exchange


def run(dialect: DialectName, count: int) -> int:
    alarms = chunks = 0
    seconds = 0.0
    for seed in range(count):
        x = good_exchange(random.Random(seed), dialect)
        started = time.perf_counter()
        outcomes = judge(Evidence({x.probe: x}, dialect=dialect, mode="strict"), SAMPLED)
        seconds += time.perf_counter() - started
        chunks += len(x.objects)
        for finding in (f for outcome in outcomes for f in outcome.findings):
            alarms += 1
            print(f"{dialect} seed {seed}: {finding.rule} {finding.message}\n  {finding.excerpt}")
    each = 1000 * seconds / count
    print(f"{dialect}: {alarms} alarms on {count} answers ({chunks} chunks); {each:.2f} ms each")
    return alarms


if __name__ == "__main__":
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    sys.exit(1 if run("O", number) + run("D", number) else 0)
