"""When a request to a provider is tried again, and how long to wait first.

Jittered exponential backoff under a deadline; the provider's own Retry-After wins while it is
short. This module must not know: HTTP clients, chunks.
"""

import math
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime

from msgspec import Struct

from rejoinder.dialects.provider_errors import may_go_better_later
from rejoinder.errors import ChatError

__all__ = ["RetryPolicy", "retry_after_seconds"]


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """Seconds. A Retry-After longer than `longest_wait` is the client's to wait for, not ours."""

    max_retries: int = 2
    first_wait: float = 0.5
    longest_backoff: float = 8.0
    longest_wait: float = 30.0

    def wait(
        self,
        error: ChatError,
        *,
        attempt: int,
        retry_after: float | None,
        remaining: float,
        random: Callable[[], float],
    ) -> float | None:
        """How long to wait before try number `attempt` + 1; None: give up.

        `attempt` counts from 0, `remaining` is what is left of the deadline, `random` is in [0, 1).
        """
        if attempt >= self.max_retries or not may_go_better_later(error):
            return None
        backoff = min(self.longest_backoff, self.first_wait * 2**attempt)
        wait = backoff * (0.5 + 0.5 * random())
        if retry_after is not None:
            if retry_after > self.longest_wait:
                return None
            wait = max(wait if retry_after == 0 else 0.0, retry_after * (1 + 0.1 * random()))
        return wait if wait < remaining else None


def retry_after_seconds(headers: Mapping[str, str], now: float) -> float | None:
    """What `Retry-After` asks for, as seconds or as a date, ≥ 0; None without a usable one.

    `now` is Unix time. `retry-after-ms`, which some providers send, is more exact.
    """
    millis = _number(headers.get("retry-after-ms", ""))
    if millis is not None:
        return millis / 1000
    value = headers.get("Retry-After", headers.get("retry-after", "")).strip()
    seconds = _number(value)
    if seconds is not None or not value:
        return seconds
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - now)
    except (ValueError, TypeError, OverflowError):
        return None


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None
