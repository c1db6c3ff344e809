"""The window of the last fifteen minutes, step by step, without waiting for any."""

import json
import random
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from rejoinder.service.chat import Record
from rejoinder.service.ledger import UsageRow
from rejoinder.types import Meter, Usage
from rejoinder.web.dashboard import MAX_TIMES, STEP_SECONDS, WINDOW_SECONDS, Dashboard, Times
from rejoinder.web.metrics import EngineStats, Metrics


class Ledger:
    """Answers one report, and keeps what it was asked for."""

    def __init__(self) -> None:
        self.since: list[float | None] = []

    async def report(self, group_by: Any, *, since: float | None = None) -> list[UsageRow]:
        assert list(group_by) == ["account"]
        self.since.append(since)
        counts = dict.fromkeys(
            ("cached_tokens", "cache_write_tokens", "reasoning_tokens"), 0
        ) | dict.fromkeys(("accepted_prediction_tokens", "rejected_prediction_tokens"), 0)
        return [
            UsageRow(
                group=("team",),
                requests=2,
                prompt_tokens=10,
                completion_tokens=4,
                cost_usd=Decimal("0.25"),
                **counts,
            )
        ]


class World:
    """What the dashboard looks at, changed by the tests."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.engines: dict[str, EngineStats] = {}
        self.counters: dict[str, dict[str, float]] = {}
        self.ledger = Ledger()
        self.dashboard = Dashboard(
            snapshots=lambda: self.engines,
            totals=lambda name, _: self.counters.get(name, {}),
            ledger=self.ledger,  # type: ignore[arg-type]
            clock=lambda: self.now,
            random=random.Random(1),
        )
        self.dashboard.sample()
        self.dashboard._steps.clear()

    def step(self) -> None:
        self.now += STEP_SECONDS
        self.dashboard.sample()


@pytest.fixture
def world() -> World:
    return World()


def record(name: str, **more: Any) -> Record:
    values: dict[str, Any] = {
        "request_id": name,
        "completion_id": name,
        "created": 0,
        "account": "team",
        "key_id": "k",
        "model": "m",
        "dialect": "openai",
        "stream": True,
    }
    return Record(**{**values, **more})


async def test_tokens_count_when_they_are_made(world: World) -> None:
    meter = Meter()
    counts = meter.sequence()
    one = record("a", meter=meter)
    world.dashboard.started(one)
    counts.prompt_tokens, counts.cached_tokens = 30, 20
    counts.completion_tokens = 5
    world.step()
    counts.completion_tokens = 25
    world.step()
    world.step()
    one.usage = Usage(prompt_tokens=30, cached_tokens=20, completion_tokens=30)
    world.dashboard.ended(one)
    world.step()
    rates = (await world.dashboard.snapshot()).tokens_per_second
    assert rates["completion"] == [1.0, 4.0, 0.0, 1.0]
    assert rates["prompt"] == [2.0, 0.0, 0.0, 0.0]
    assert rates["cached"] == [4.0, 0.0, 0.0, 0.0]


async def test_kinds_of_tokens_do_not_overlap(world: World) -> None:
    one = record("a")
    world.dashboard.started(one)
    one.usage = Usage(
        prompt_tokens=100, cached_tokens=60, completion_tokens=50, reasoning_tokens=20
    )
    world.dashboard.ended(one)
    world.step()
    rates = (await world.dashboard.snapshot()).tokens_per_second
    assert {kind: series[0] * STEP_SECONDS for kind, series in rates.items()} == {
        "prompt": 40,
        "cached": 60,
        "completion": 30,
        "reasoning": 20,
    }


async def test_how_requests_ended(world: World) -> None:
    for name, status, error in (("a", "ok", None), ("b", "error", "boom"), ("c", "ok", None)):
        world.dashboard.started(record(name))
        world.dashboard.ended(record(name, status=status, error=error))
    world.step()
    world.step()
    shown = await world.dashboard.snapshot()
    assert shown.requests == {"error": [1.0, 0.0], "ok": [2.0, 0.0]}
    assert shown.errors == {"boom": [1.0, 0.0]}


async def test_percentiles_are_over_the_last_minute(world: World) -> None:
    for number in range(1, 101):
        seconds = number / 100
        ended = record(
            str(number),
            first_event_seconds=seconds,
            total_seconds=seconds + 0.9,
            usage=Usage(completion_tokens=10),
        )
        world.dashboard.ended(ended)
    world.step()
    world.step()
    world.dashboard.ended(record("late", first_event_seconds=5.0, total_seconds=5.0))
    world.step()
    shown = await world.dashboard.snapshot()
    first = shown.first_token_ms
    assert (first.p50[0], first.p90[0], first.p99[0]) == (500, 900, 990)
    assert first.p50[1] is None
    assert first.p99[2] == 1000
    assert shown.per_token_ms.p50[0] == pytest.approx(100)
    assert shown.per_token_ms.p50[2] is None
    for _ in range(11):
        world.step()
    world.dashboard.ended(record("later", first_event_seconds=7.0, total_seconds=7.0))
    world.step()
    assert (await world.dashboard.snapshot()).first_token_ms.p50[-1] == 7000


async def test_engines_and_other_models_are_counted_by_tier(world: World) -> None:
    world.engines["m"] = EngineStats(
        running={"default": 3}, waiting={"flex": 2}, cells_used=10, cells_total=40
    )
    world.engines["other"] = EngineStats(providers={"x": "closed"})
    world.dashboard.started(record("a", model="m"))
    world.dashboard.started(record("b", model="other", tier="priority"))
    began = record("c", model="other")
    began.first_event_seconds = 0.1
    world.dashboard.started(began)
    world.step()
    shown = await world.dashboard.snapshot()
    assert shown.running == {"default": [4.0]}
    assert shown.waiting == {"flex": [2.0], "priority": [1.0]}
    assert shown.cells_used == {"m": [10.0]}
    assert shown.cells_total == {"m": 40}


async def test_an_engine_without_tiers_is_shared_out_by_those_of_its_requests(
    world: World,
) -> None:
    for name, tier in (("a", "default"), ("b", "default"), ("c", "flex"), ("d", "flex")):
        world.dashboard.started(record(name, tier=tier))
    world.engines["m"] = EngineStats(running={"all": 6}, waiting={"flex": 1})
    world.step()
    world.engines["m"] = EngineStats(running={"all": 0}, waiting={})
    world.step()
    shown = await world.dashboard.snapshot()
    assert shown.running == {"default": [4.0, 0.0], "flex": [2.0, 0.0]}
    assert shown.waiting == {"flex": [1.0, 0.0]}


async def test_the_share_of_cached_prompt_tokens_is_of_each_step(world: World) -> None:
    def engine(hits: int, prefills: int) -> EngineStats:
        return EngineStats(
            running={}, waiting={}, prefix_cache_hit_tokens=hits, prefill_tokens=prefills
        )

    for hits, prefills in ((0, 100), (300, 200), (300, 200)):
        world.engines["m"] = engine(hits, prefills)
        world.step()
    assert (await world.dashboard.snapshot()).prefix_hit_share == [0.0, 0.75, None]


async def test_repairs_and_violations_are_what_came_since(world: World) -> None:
    repairs = world.counters.setdefault("rejoinder_provider_repairs_total", {})
    repairs["role"] = 2
    world.step()
    repairs["role"] = 5
    world.counters["rejoinder_contract_violations_total"] = {"R95": 1}
    world.step()
    shown = await world.dashboard.snapshot()
    assert shown.repairs == {"role": [2.0, 3.0]}
    assert shown.violations == {"R95": [0.0, 1.0]}


async def test_the_window_forgets(world: World) -> None:
    world.dashboard.ended(record("first", status="error", error="old"))
    for _ in range(int(WINDOW_SECONDS / STEP_SECONDS) + 1):
        world.step()
    shown = await world.dashboard.snapshot()
    assert len(shown.ended_at) == WINDOW_SECONDS / STEP_SECONDS
    assert shown.errors == {}
    assert shown.ended_at[-1] - shown.ended_at[0] == WINDOW_SECONDS - STEP_SECONDS


async def test_cost_is_of_the_window(world: World) -> None:
    (cost,) = (await world.dashboard.snapshot()).cost
    assert (cost.account, cost.requests, cost.cost_usd) == ("team", 2, 0.25)
    assert world.ledger.since == [world.now - WINDOW_SECONDS]


async def test_who_ended_is_not_followed_any_more(world: World) -> None:
    for number in range(1000):
        one = record(str(number))
        world.dashboard.started(one)
        world.dashboard.ended(one)
    assert not world.dashboard._running


def test_a_sample_of_many_times_is_fair() -> None:
    times = Times(random.Random(2))
    for number in range(100 * MAX_TIMES):
        times.add(float(number))
    assert len(times.values) == MAX_TIMES
    mean = sum(times.values) / MAX_TIMES
    assert 0.4 < mean / (100 * MAX_TIMES) < 0.6


# ---------------------------------------------------------------- Grafana's

GRAFANA = Path(__file__).parent.parent.parent / "docs" / "grafana.json"


def test_the_grafana_dashboard_asks_only_for_metrics_that_exist() -> None:
    known = {f"{name}{part}" for name in Metrics(dict).families() for part in ("", "_bucket")}
    dashboard = json.loads(GRAFANA.read_text(encoding="utf-8"))
    asked = set()
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            asked |= set(re.findall(r"\brejoinder_\w+", target["expr"]))
            assert target["expr"].count("(") == target["expr"].count(")")
    assert asked <= known
    shown = {name.removesuffix("_bucket") for name in asked}
    assert shown == set(Metrics(dict).families())


def test_the_panels_of_the_grafana_dashboard_do_not_overlap() -> None:
    panels = json.loads(GRAFANA.read_text(encoding="utf-8"))["panels"]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in panels}) == len(panels)
