"""How many threads decode: what the machine has, what a quota leaves, what others do not use.

This module must not know: the model, sequences, the event loop.
"""

import math
import os
from pathlib import Path

__all__ = ["available_cores"]

_QUOTA_V2 = Path("/sys/fs/cgroup/cpu.max")
_QUOTA_V1 = Path("/sys/fs/cgroup/cpu")


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
