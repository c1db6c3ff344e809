"""The handed cases (real faults of real servers), black box, where their folder is present.

`REJOINDER_CASES` names the folder; by default it is looked for beside the checkout.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("REJOINDER_CASES", Path(__file__).parents[2] / "shared" / "cases"))

pytestmark = pytest.mark.skipif(
    not (FOLDER / "run.py").exists(), reason="the cases are not beside this checkout"
)


def run(report: Path, *more: str) -> dict[str, str]:
    """Case id → passed, failed or skipped."""
    command = [
        sys.executable,
        str(FOLDER / "run.py"),
        *("--rejoinder", f"{sys.executable} -m rejoinder"),
        *("--moderation", str(FOLDER / "moderation.toml")),
        *("--seconds", "60", "--limit", "420", "--json", str(report)),
        *more,
    ]
    subprocess.run(command, capture_output=True, timeout=480, cwd=report.parent)
    rows = json.loads(report.read_text(encoding="utf-8"))["cases"]
    return {row["id"]: row["result"] for row in rows}


def test_every_case_passes(tmp_path: Path) -> None:
    results = run(tmp_path / "first.json")
    assert sum(result == "passed" for result in results.values()) > 100
    failed = sorted(case for case, result in results.items() if result == "failed")
    if failed:  # some measure time, and the machine may have been busy
        again = run(tmp_path / "again.json", "--only", ",".join(failed))
        failed = [case for case in failed if again.get(case) != "passed"]
    assert not failed, failed
