"""One replica of a fleet: its engine, what runs on it, and whether to trust it with more.

It knows no clock: times are arguments. It must not know: other replicas, routing, HTTP.
"""

import asyncio
from types import TracebackType
from typing import Literal, Protocol, runtime_checkable

from msgspec import Struct

from rejoinder.engines.routing import Candidate
from rejoinder.types import Engine

State = Literal["serving", "warming", "failing", "draining"]

FIRST_BACKOFF_SECONDS = 1.0
MAX_BACKOFF_SECONDS = 60.0

LOST_AFTER_PROBES = 2
"""Failed probes in a row after which a replica's running sequences are moved."""

MAX_ERROR_RATE = 0.5
ERROR_MEMORY = 0.8
"""How much of the error rate one more sequence leaves as it was."""

COLD_WEIGHT = 0.1
"""The share of its normal load that a replica gets when it has just joined or come back."""


@runtime_checkable
class ProbedEngine(Protocol):
    """An engine that can be asked whether it is well; the others only show it in their work."""

    async def healthy(self) -> bool: ...


class ReplicaStatus(Struct, frozen=True):
    """A replica as an operator sees it. `error_rate`: of late, in [0, 1]."""

    name: str
    state: State
    sequences: int
    error_rate: float
    failed_probes: int


class Replica:
    """Health, load and slow start of one engine."""

    def __init__(self, name: str, engine: Engine, *, slow_start: float, since: float) -> None:
        """`slow_start`: seconds until it gets its full share, counted from `since`."""
        self.name = name
        self.engine = engine
        self.sequences = 0
        self.draining = False
        self.reports_cached_tokens = False
        self._slow_start = slow_start
        self._serving_since = since
        self._failures_in_row = 0
        self._failed_probes = 0
        self._not_before = 0.0
        self._error_rate = 0.0
        self._leave = False
        self._waits: set[asyncio.Timeout] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def lost(self) -> bool:
        """Its sequences have to go on elsewhere."""
        return self._leave or self._failed_probes >= LOST_AFTER_PROBES

    def available(self, now: float) -> bool:
        """Whether it may get new sequences."""
        return not self.draining and not self.lost and now >= self._not_before

    def candidate(self, now: float) -> Candidate:
        return Candidate(self.name, self.sequences, self._weight(now))

    def status(self, now: float) -> ReplicaStatus:
        state: State = "serving"
        if self.draining:
            state = "draining"
        elif not self.available(now):
            state = "failing"
        elif self._weight(now) < 1:
            state = "warming"
        return ReplicaStatus(
            self.name, state, self.sequences, round(self._error_rate, 3), self._failed_probes
        )

    def succeeded(self, now: float) -> None:
        """A sequence has ended as it should, or a probe found it well."""
        if self._failures_in_row:
            self._serving_since = now
        self._failures_in_row = 0
        self._not_before = 0.0
        self._error_rate *= ERROR_MEMORY

    def failed(self, now: float) -> None:
        """A sequence has failed here: a pause that doubles each time in a row, at once when it
        fails often."""
        self._error_rate = self._error_rate * ERROR_MEMORY + (1 - ERROR_MEMORY)
        self._failures_in_row += 1
        times = self._failures_in_row - 1 + (2 if self._error_rate > MAX_ERROR_RATE else 0)
        pause = min(FIRST_BACKOFF_SECONDS * 2.0**times, MAX_BACKOFF_SECONDS)
        self._not_before = max(self._not_before, now + pause)

    def busy(self, until: float) -> None:
        """It has no room now; that is no failure."""
        self._not_before = max(self._not_before, until)

    def probed(self, now: float, *, well: bool) -> bool:
        """Whether this probe made the replica lost, so that its cache is gone too."""
        if well:
            if self._failed_probes >= LOST_AFTER_PROBES:
                self._failures_in_row = max(self._failures_in_row, 1)
            if self._failed_probes:
                self.succeeded(now)
            self._failed_probes = 0
            return False
        self._failed_probes += 1
        if self._failed_probes != LOST_AFTER_PROBES:
            return False
        self._interrupt()
        return True

    def leave(self) -> None:
        """Moves what runs here to other replicas, at once."""
        self.draining = self._leave = True
        self._interrupt()

    def began(self) -> None:
        self.sequences += 1
        self._idle.clear()

    def ended(self) -> None:
        self.sequences -= 1
        if not self.sequences:
            self._idle.set()

    async def idle(self) -> None:
        """Returns when nothing runs here."""
        await self._idle.wait()

    def wait(self, seconds: float | None) -> "Wait":
        """A limit on waiting for this replica, which its loss ends too."""
        return Wait(self._waits, seconds)

    def _interrupt(self) -> None:
        for wait in tuple(self._waits):
            wait.reschedule(asyncio.get_running_loop().time())

    def _weight(self, now: float) -> float:
        if self._slow_start <= 0:
            return 1.0
        share = (now - self._serving_since) / self._slow_start
        return min(1.0, max(COLD_WEIGHT, share))


class Wait:
    """`asyncio.timeout` that is known to its replica as long as it runs."""

    def __init__(self, waits: "set[asyncio.Timeout]", seconds: float | None) -> None:
        self._waits = waits
        self._timeout = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()
        self._waits.add(self._timeout)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._waits.discard(self._timeout)
        await self._timeout.__aexit__(kind, error, traceback)
