"""How many threads decode: what the machine has, what a quota leaves, what others do not use.

This module must not know: the model, sequences, the event loop.
"""

import math
import os
from pathlib import Path

__all__ = ["ThreadGovernor", "available_cores"]

_QUOTA_V2 = Path("/sys/fs/cgroup/cpu.max")
_QUOTA_V1 = Path("/sys/fs/cgroup/cpu")

WINDOW_SECONDS = 0.04
"""Of decoding, after which the share of CPU time is judged."""

FAIR_SHARE = 0.8
"""Threads that get less of their cores than this wait for each other most of the time."""

FIRST_PROBE_SECONDS = 0.5
LAST_PROBE_SECONDS = 8.0
CALM_SECONDS = 2.0
"""After this long with a fair share the next retreat is short again."""


def available_cores() -> int:
    """Cores that this process may use: its affinity, and the quota of its control group."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:
        cores = os.cpu_count() or 1
    quota = _quota()
    return max(1, min(cores, math.floor(quota))) if quota else cores


def _quota() -> float | None:
    """Cores' worth of CPU time that the control group has, or None without a bound."""
    try:
        limit, period = _QUOTA_V2.read_text().split()[:2]
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        pass
    try:
        limit = (_QUOTA_V1 / "cpu.cfs_quota_us").read_text()
        period = (_QUOTA_V1 / "cpu.cfs_period_us").read_text()
        return int(limit) / int(period) if int(limit) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None


class ThreadGovernor:
    """Takes back threads while others use the cores, and tries again now and then.

    The threads of a step wait for each other hundreds of times, spinning: when one has lost its
    core, the others burn theirs, and two threads are far slower than one. A step that used less
    CPU time than its threads could have shows it.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.threads = most
        self._cpu = 0.0
        self._wall = 0.0
        self._pause = FIRST_PROBE_SECONDS
        self._probe_at = 0.0
        self._calm_since = 0.0

    def record(self, cpu_seconds: float, wall_seconds: float, now: float) -> None:
        """One decode with `threads` threads took so much of both. Updates `threads`."""
        if self.most == 1:
            return
        self._cpu += cpu_seconds
        self._wall += wall_seconds
        if self._wall >= WINDOW_SECONDS:
            share = self._cpu / (self._wall * self.threads)
            self._cpu = self._wall = 0.0
            self._judge(share, now)
        if self.threads < self.most and now >= self._probe_at:
            self.threads = self.most
            self._cpu = self._wall = 0.0

    def _judge(self, share: float, now: float) -> None:
        if self.threads == 1:
            return
        if share < FAIR_SHARE:
            self.threads = max(1, math.floor(self.threads * share))
            self._probe_at = now + self._pause
            self._pause = min(LAST_PROBE_SECONDS, 2 * self._pause)
            self._calm_since = now
        elif now - self._calm_since > CALM_SECONDS:
            self._pause = FIRST_PROBE_SECONDS
