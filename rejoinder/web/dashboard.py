"""The last fifteen minutes of the service, kept in memory for `/dashboard`.

A step is closed every few seconds: what running requests produced meanwhile, how long first
tokens took, what the engines hold. It must not know: prompts, answers, how anything is drawn.
"""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from random import Random

from msgspec import Struct, field

from rejoinder.service.chat import Record
from rejoinder.service.ledger import Ledger
from rejoinder.types import Usage
from rejoinder.web.metrics import EngineStats, Snapshots
from rejoinder.web.middleware import Exchange, Front

log = logging.getLogger("rejoinder.web")

STEP_SECONDS = 5.0
WINDOW_SECONDS = 15 * 60
SMOOTHED_STEPS = 12
"""Percentiles are over the last minute: one step alone has too few requests."""
MAX_TIMES = 256
"""Times kept of one step; of more, a fair sample."""

TOKEN_KINDS: Mapping[str, Callable[[Usage], int]] = {
    "prompt": lambda usage: usage.prompt_tokens - usage.cached_tokens,
    "cached": lambda usage: usage.cached_tokens,
    "completion": lambda usage: usage.completion_tokens - usage.reasoning_tokens,
    "reasoning": lambda usage: usage.reasoning_tokens,
}
"""Kinds that do not overlap, so that they may be stacked."""

Totals = Callable[[str, str], Mapping[str, float]]
"""The sums of a counter by one of its labels, so far."""


class Times:
    """Durations of one step, at most `MAX_TIMES` of them, each as likely as the others."""

    __slots__ = ("_random", "_seen", "values")

    def __init__(self, random: Random) -> None:
        self._random = random
        self._seen = 0
        self.values: list[float] = []

    def add(self, seconds: float) -> None:
        self._seen += 1
        if len(self.values) < MAX_TIMES:
            self.values.append(seconds)
        elif (place := self._random.randrange(self._seen)) < MAX_TIMES:
            self.values[place] = seconds


class Step:
    """What happened in a few seconds."""

    __slots__ = (
        *("cells", "ended_at", "errors", "first_token", "hit_tokens", "per_token"),
        *("prefill_tokens", "repairs", "running", "statuses", "tokens", "violations", "waiting"),
    )

    def __init__(self, random: Random) -> None:
        self.ended_at = 0.0
        self.tokens: Counter[str] = Counter()
        self.first_token = Times(random)
        self.per_token = Times(random)
        self.statuses: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.repairs: Mapping[str, int] = {}
        self.violations: Mapping[str, int] = {}
        self.running: Mapping[str, float] = {}
        self.waiting: Mapping[str, float] = {}
        self.cells: Mapping[str, tuple[int, int]] = {}
        self.hit_tokens = 0
        self.prefill_tokens = 0


class Percentiles(Struct):
    """Milliseconds at each step; None where nothing was measured."""

    p50: list[float | None] = field(default_factory=list)
    p90: list[float | None] = field(default_factory=list)
    p99: list[float | None] = field(default_factory=list)


Series = Mapping[str, list[float]]


class Cost(Struct, frozen=True, kw_only=True):
    """What one account used in the window, and in US dollars what it cost."""

    account: str
    requests: int
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float


class Snapshot(Struct, frozen=True, kw_only=True):
    """What `/dashboard/data` says. Lists have one value a step, the oldest first."""

    step_seconds: float
    window_seconds: int
    ended_at: list[float]
    tokens_per_second: Series
    first_token_ms: Percentiles
    per_token_ms: Percentiles
    running: Series
    waiting: Series
    cells_used: Series
    cells_total: Mapping[str, int]
    prefix_hit_share: list[float | None]
    requests: Series
    errors: Series
    repairs: Series
    violations: Series
    cost: Sequence[Cost]


class _Seen(Struct):
    """A running request and what of its usage is already in a step."""

    record: Record
    usage: Usage = Usage()


class Dashboard:
    """Observes requests, samples engines, and answers `/dashboard/data`.

    `start` it before use, `stop` it at the end.
    """

    def __init__(
        self,
        *,
        snapshots: Snapshots,
        totals: Totals,
        ledger: Ledger,
        clock: Callable[[], float] = time.time,
        random: Random | None = None,
    ) -> None:
        self._snapshots = snapshots
        self._totals = totals
        self._ledger = ledger
        self._clock = clock
        self._random = random or Random()
        self._steps: deque[Step] = deque(maxlen=int(WINDOW_SECONDS / STEP_SECONDS))
        self._step = Step(self._random)
        self._running: dict[str, _Seen] = {}
        self._last_totals: dict[str, dict[str, float]] = {}
        self._last_cache: dict[str, tuple[int, int]] = {}
        self._task: asyncio.Task[None] | None = None

    # ------------------------------------------------------------ what is told

    def started(self, record: Record) -> None:
        self._running[record.completion_id] = _Seen(record)

    def ended(self, record: Record) -> None:
        seen = self._running.pop(record.completion_id, None)
        if seen is not None:
            self._count(seen, record.usage)
        step = self._step
        step.statuses[record.status] += 1
        if record.error is not None:
            step.errors[record.error] += 1
        if record.first_event_seconds is not None:
            step.first_token.add(record.first_event_seconds)
        if record.seconds_per_token is not None:
            step.per_token.add(record.seconds_per_token)

    def _count(self, seen: _Seen, usage: Usage) -> None:
        for kind, number in TOKEN_KINDS.items():
            more = number(usage) - number(seen.usage)
            if more > 0:
                self._step.tokens[kind] += more
        seen.usage = usage

    # ------------------------------------------------------------ steps

    async def start(self) -> None:
        self.sample()
        self._steps.clear()
        self._task = asyncio.create_task(self._sample_for_ever(), name="dashboard")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _sample_for_ever(self) -> None:
        while True:
            await asyncio.sleep(STEP_SECONDS)
            try:
                self.sample()
            except Exception:  # a graph with a hole is better than none
                log.exception("the dashboard could not take its sample")

    def sample(self) -> None:
        """Closes the current step and opens the next."""
        for seen in self._running.values():
            if seen.record.meter is not None:
                self._count(seen, seen.record.meter.usage())
        step, self._step = self._step, Step(self._random)
        step.ended_at = self._clock()
        engines = self._snapshots()
        step.running, step.waiting = self._sequences(engines)
        step.cells = {m: (e.cells_used, e.cells_total) for m, e in engines.items() if e.cells_total}
        step.hit_tokens, step.prefill_tokens = self._prefix_cache(engines)
        step.repairs = self._more_of("rejoinder_provider_repairs_total", "kind")
        step.violations = self._more_of("rejoinder_contract_violations_total", "rule")
        self._steps.append(step)

    def _sequences(
        self, engines: Mapping[str, EngineStats]
    ) -> tuple[Mapping[str, float], Mapping[str, float]]:
        """By tier: what engines say of themselves; of other models, requests before and after
        their first event."""
        running: Counter[str] = Counter()
        waiting: Counter[str] = Counter()
        counting = {m: stats for m, stats in engines.items() if stats.running or stats.waiting}
        for model, stats in counting.items():
            running.update(self._by_tier(model, stats))
            waiting.update(stats.waiting)
        for seen in self._running.values():
            record = seen.record
            if record.model not in counting:
                began = record.first_event_seconds is not None
                (running if began else waiting)[record.tier] += 1
        return running, waiting

    def _by_tier(self, model: str, stats: EngineStats) -> Mapping[str, float]:
        """An engine that only says how many sequences run: shared out over the tiers of the
        requests that it has and that do not wait."""
        if set(stats.running) != {"all"}:
            return stats.running
        records = (seen.record for seen in self._running.values())
        tiers = Counter[str](record.tier for record in records if record.model == model)
        tiers.subtract(stats.waiting)
        tiers = +tiers
        number, total = stats.running["all"], tiers.total()
        if not total:
            return {"default": number} if number else {}
        return {tier: number * count / total for tier, count in tiers.items()}

    def _prefix_cache(self, engines: Mapping[str, EngineStats]) -> tuple[int, int]:
        hits = prefills = 0
        for model, stats in engines.items():
            now = (stats.prefix_cache_hit_tokens, stats.prefill_tokens)
            before = self._last_cache.get(model, (0, 0))
            self._last_cache[model] = now
            hits += max(0, now[0] - before[0])
            prefills += max(0, now[1] - before[1])
        return hits, prefills

    def _more_of(self, counter: str, label: str) -> Mapping[str, int]:
        now = dict(self._totals(counter, label))
        before = self._last_totals.get(counter, {})
        self._last_totals[counter] = now
        more = {name: int(number - before.get(name, 0)) for name, number in now.items()}
        return {name: number for name, number in more.items() if number > 0}

    # ------------------------------------------------------------ what is shown

    async def snapshot(self) -> Snapshot:
        steps = list(self._steps)
        return Snapshot(
            step_seconds=STEP_SECONDS,
            window_seconds=WINDOW_SECONDS,
            ended_at=[step.ended_at for step in steps],
            tokens_per_second={
                kind: [step.tokens[kind] / STEP_SECONDS for step in steps] for kind in TOKEN_KINDS
            },
            first_token_ms=_percentiles([step.first_token for step in steps]),
            per_token_ms=_percentiles([step.per_token for step in steps]),
            running=_series([step.running for step in steps]),
            waiting=_series([step.waiting for step in steps]),
            cells_used=_series([{m: used for m, (used, _) in s.cells.items()} for s in steps]),
            cells_total={m: total for s in steps for m, (_, total) in s.cells.items()},
            prefix_hit_share=[_share(s.hit_tokens, s.prefill_tokens) for s in steps],
            requests=_series([step.statuses for step in steps]),
            errors=_series([step.errors for step in steps]),
            repairs=_series([step.repairs for step in steps]),
            violations=_series([step.violations for step in steps]),
            cost=await self._cost(),
        )

    async def _cost(self) -> list[Cost]:
        rows = await self._ledger.report(["account"], since=self._clock() - WINDOW_SECONDS)
        return [
            Cost(
                account=row.group[0],
                requests=row.requests,
                prompt_tokens=row.prompt_tokens,
                completion_tokens=row.completion_tokens,
                cost_usd=float(row.cost_usd),
            )
            for row in rows
        ]


class DashboardData:
    """Answers `/dashboard/data`: only for admins, who are everybody where no key exists."""

    def __init__(self, front: Front, dashboard: Dashboard) -> None:
        self._front = front
        self._dashboard = dashboard

    async def show(self, exchange: Exchange) -> None:
        await self._front.require_admin(
            exchange, "The dashboard is about the whole server: it needs an admin key."
        )
        exchange.headers["cache-control"] = "no-store"
        await exchange.reply_json(await self._dashboard.snapshot())


def _series(steps: Sequence[Mapping[str, float]]) -> Series:
    names = sorted({name for step in steps for name in step})
    return {name: [float(step.get(name, 0)) for step in steps] for name in names}


def _share(hits: int, prefills: int) -> float | None:
    return hits / (hits + prefills) if hits + prefills else None


def _percentiles(steps: Sequence[Times]) -> Percentiles:
    """Of the last minute at each step; None for a step in which nothing ended."""
    shown = Percentiles()
    for place, step in enumerate(steps):
        recent = steps[max(0, place + 1 - SMOOTHED_STEPS) : place + 1]
        values = sorted(value for times in recent for value in times.values) if step.values else []
        for series, share in ((shown.p50, 0.5), (shown.p90, 0.9), (shown.p99, 0.99)):
            series.append(_rank(values, share))
    return shown


def _rank(values: Sequence[float], share: float) -> float | None:
    """The nearest-rank percentile in milliseconds."""
    if not values:
        return None
    place = min(len(values) - 1, max(0, -int(-share * len(values) // 1) - 1))
    return round(values[place] * 1000, 3)
