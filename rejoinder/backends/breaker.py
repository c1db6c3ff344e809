"""A circuit breaker: who fails again and again is left alone for a while, then tried once.

Closed: everything passes. Open: nothing does, until the pause is over. Half open: one request may
try; it decides. Sans-IO, the time is an argument. This module must not know: backends, errors.
"""

from typing import Literal

from msgspec import Struct

__all__ = ["Breaker", "BreakerPolicy", "Outcome", "Permit"]

Outcome = Literal["worked", "failed", "unknown"]
"""unknown: the client left before the provider showed anything."""

Permit = Literal["usual", "trial"]
"""What an admitted request is: one of many, or the one that may try a circuit."""


class BreakerPolicy(Struct, frozen=True, kw_only=True):
    """Opens after `failures` in a row; the pause, in seconds, doubles with each failed trial."""

    failures: int = 5
    first_pause: float = 5.0
    longest_pause: float = 120.0


class Breaker:
    """The state of one provider. Requests that were admitted before it opened change nothing."""

    __slots__ = ("_failures", "_opened_until", "_pause", "_policy", "_trying")

    def __init__(self, policy: BreakerPolicy) -> None:
        self._policy = policy
        self._failures = 0
        self._pause = 0.0
        self._opened_until: float | None = None
        self._trying = False

    def state(self, now: float) -> Literal["closed", "open", "half_open"]:
        if self._opened_until is None:
            return "closed"
        return "open" if now < self._opened_until else "half_open"

    def reopens_in(self, now: float) -> float:
        """Seconds until a request may pass again."""
        return 0.0 if self._opened_until is None else max(0.0, self._opened_until - now)

    def admit(self, now: float) -> Permit | None:
        """None: no request may pass. Every permit must be settled."""
        match self.state(now):
            case "closed":
                return "usual"
            case "half_open" if not self._trying:
                self._trying = True
                return "trial"
            case _:
                return None

    def began(self, permit: Permit) -> None:
        """The provider has given something: a trial lets others pass, but one failure reopens."""
        if permit == "trial" and self._trying:
            self._trying = False
            self._opened_until = None
            self._failures = self._policy.failures - 1

    def settle(
        self, permit: Permit, outcome: Outcome, now: float, *, pause: float | None = None
    ) -> None:
        """How an admitted request ended. `pause`: the provider itself said how long."""
        trying = permit == "trial" and self._trying
        if trying:
            self._trying = False
        elif self._opened_until is not None:
            return
        match outcome:
            case "worked":
                self._failures = 0
                self._pause = 0.0
                self._opened_until = None
            case "failed":
                self._failures += 1
                if trying or self._failures >= self._policy.failures:
                    self._open(now, pause)
            case "unknown":
                pass

    def _open(self, now: float, pause: float | None) -> None:
        doubled = self._pause * 2 if self._pause else self._policy.first_pause
        self._pause = min(self._policy.longest_pause, max(doubled, pause or 0.0))
        self._opened_until = now + self._pause
