"""The thread governor: threads are given back while others need the cores."""

from pathlib import Path

import pytest

from rejoinder.engines.llama import threads
from rejoinder.engines.llama.threads import ThreadGovernor, available_cores


def run(governor: ThreadGovernor, share: float, start: float, seconds: float) -> list[int]:
    """Steps of 10 ms that got `share` of the cores they asked for; threads of each."""
    used = []
    now = start
    while now < start + seconds:
        used.append(governor.threads)
        now += 0.010
        governor.record(0.010 * governor.threads * share, 0.010, now)
    return used


def test_a_free_machine_keeps_all_threads() -> None:
    governor = ThreadGovernor(4)
    assert set(run(governor, 0.98, 0, 10)) == {4}


def test_under_contention_one_thread_decodes_and_the_rest_is_tried_now_and_then() -> None:
    governor = ThreadGovernor(2)
    used = run(governor, 0.5, 0, 60)
    assert used[:3] == [2, 2, 2], "a single slow step is no contention"
    assert used.count(2) / len(used) < 0.03
    assert used[1000:].count(2) > 0, "it never tries again"


def test_when_the_cores_are_free_again_they_are_used_soon() -> None:
    governor = ThreadGovernor(2)
    run(governor, 0.5, 0, 60)
    used = run(governor, 0.99, 60, 20)
    assert used.index(2) * 0.01 <= threads.LAST_PROBE_SECONDS + 0.1
    assert set(used[used.index(2) :]) == {2}


def test_one_core_needs_no_governing() -> None:
    governor = ThreadGovernor(1)
    assert set(run(governor, 0.3, 0, 2)) == {1}


@pytest.mark.parametrize(
    ("content", "cores"),
    [("max 100000", None), ("150000 100000", 1), ("50000 100000", 1), ("nonsense", None)],
)
def test_quotas_bound_the_cores(
    content: str, cores: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "_QUOTA_V1", tmp_path / "none")
    monkeypatch.setattr(threads, "_QUOTA_V2", tmp_path / "missing")
    free = available_cores()
    quota = tmp_path / "cpu.max"
    quota.write_text(content)
    monkeypatch.setattr(threads, "_QUOTA_V2", quota)
    assert available_cores() == (free if cores is None else min(free, cores))


def test_quotas_of_the_first_version_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_QUOTA_V2", tmp_path / "missing")
    monkeypatch.setattr(threads, "_QUOTA_V1", tmp_path)
    (tmp_path / "cpu.cfs_quota_us").write_text("100000")
    (tmp_path / "cpu.cfs_period_us").write_text("100000")
    assert available_cores() == 1
