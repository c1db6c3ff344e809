"""`/metrics`: what a Prometheus server reads, in the field's terms (docs/metrics.md).

It must not know: how anything is measured; records and snapshots come from those who know.
"""

import functools
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from rejoinder.service.chat import Record
from rejoinder.web.middleware import Exchange

FIRST_TOKEN_BUCKETS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120,
)  # fmt: skip
PER_TOKEN_BUCKETS = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2.5,
)  # fmt: skip
REQUEST_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class EngineStats(Struct, frozen=True, kw_only=True):
    """A snapshot of one model's backend: sequences by tier, cells, and tokens so far.

    `replicas` of a fleet and `providers` of a fallback: the state of each by its name. `moves`:
    sequences that went on on another replica, so far.
    """

    running: Mapping[str, int] = {}
    waiting: Mapping[str, int] = {}
    cells_used: int = 0
    cells_total: int = 0
    prefix_cache_hit_tokens: int = 0
    prefill_tokens: int = 0
    replicas: Mapping[str, str] = {}
    providers: Mapping[str, str] = {}
    moves: int = 0


Snapshots = Callable[[], Mapping[str, EngineStats]]


class Metrics:
    """All metrics of one process. `snapshots`: the engines by model, read when asked for."""

    def __init__(self, snapshots: Snapshots) -> None:
        registry = CollectorRegistry()
        self._registry = registry
        registry.register(_EngineCollector(snapshots))

        # The child for some labels is looked up once: `labels()` takes a lock each time.
        def counter(name: str, text: str, *labels: str) -> Callable[..., Counter]:
            whole = Counter(f"rejoinder_{name}", text, labels, registry=registry)
            return functools.cache(whole.labels)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Callable[..., Histogram]:
            whole = Histogram(
                f"rejoinder_{name}", text, ("model", "tier"), buckets=buckets, registry=registry
            )
            return functools.cache(whole.labels)

        self._requests = counter(
            "requests", "Chat requests by how they ended.", "model", "dialect", "tier", "status"
        )
        running = Gauge(
            "rejoinder_requests_running",
            "Chat requests that have been admitted and not ended.",
            ("model",),
            registry=registry,
        )
        self._running: Callable[..., Gauge] = functools.cache(running.labels)
        self._tokens = counter("tokens", "Tokens by kind, as on the wire.", "model", "kind")
        self._finishes = counter("finish_reasons", "Choices by finish reason.", "model", "reason")
        self._errors = counter("errors", "Chat requests that failed, by code.", "model", "code")
        self._cost = counter("cost_usd", "Estimated cost in US dollars.", "model", "tier")
        self._repairs = counter(
            "provider_repairs", "Faults mended in providers' streams.", "model", "kind"
        )
        self._violations = counter(
            "contract_violations", "Answers that broke a rule of the contract.", "model", "rule"
        )
        self._fallback_moves = counter(
            "fallback_moves",
            "Providers of a fallback that were passed over, by the error.",
            *("model", "provider", "code"),
        )
        self._http = counter("http_responses", "HTTP answers by status.", "status")
        self._first_token = histogram(
            "time_to_first_token_seconds",
            "From accepting a request to its first event.",
            FIRST_TOKEN_BUCKETS,
        )
        self._per_token = histogram(
            "time_per_output_token_seconds",
            "Mean time between completion tokens of one request after the first.",
            PER_TOKEN_BUCKETS,
        )
        self._request = histogram(
            "request_seconds", "From accepting a request to its end.", REQUEST_BUCKETS
        )

    async def show(self, exchange: Exchange) -> None:
        await exchange.reply(200, generate_latest(self._registry), content_type=CONTENT_TYPE_LATEST)

    def families(self) -> list[str]:
        """The names of all metrics, as a scrape shows them."""
        names = []
        for metric in self._registry.collect():
            suffix = "_total" if metric.type == "counter" else ""
            names.append(metric.name + suffix)
        return names

    def totals(self, name: str, label: str) -> dict[str, float]:
        """A counter's sums by one of its labels, so far. `name` as a scrape shows it."""
        sums: dict[str, float] = {}
        for metric in self._registry.collect():
            for sample in metric.samples:
                if sample.name == name and label in sample.labels:
                    value = sample.labels[label]
                    sums[value] = sums.get(value, 0) + sample.value
        return sums

    # ------------------------------------------------------------ what is told

    def started(self, record: Record) -> None:
        self._running(record.model).inc()

    def ended(self, record: Record) -> None:
        model, tier, usage = record.model, record.tier, record.usage
        self._running(model).dec()
        self._requests(model, record.dialect, tier, record.status).inc()
        for kind, number in (
            ("prompt", usage.prompt_tokens),
            ("completion", usage.completion_tokens),
            ("cached", usage.cached_tokens),
            ("cache_write", usage.cache_write_tokens),
            ("reasoning", usage.reasoning_tokens),
            ("accepted_prediction", usage.accepted_prediction_tokens),
            ("rejected_prediction", usage.rejected_prediction_tokens),
        ):
            if number:
                self._tokens(model, kind).inc(number)
        for reason in record.finish_reasons:
            self._finishes(model, reason).inc()
        if record.error is not None:
            self._errors(model, record.error).inc()
        if record.cost:
            self._cost(model, tier).inc(float(record.cost))
        self._request(model, tier).observe(record.total_seconds)
        if record.first_event_seconds is not None:
            self._first_token(model, tier).observe(record.first_event_seconds)
        if record.seconds_per_token is not None:
            self._per_token(model, tier).observe(record.seconds_per_token)

    def answered(self, exchange: Exchange) -> None:
        self._http(str(exchange.status)).inc()

    def passed_over(self, model: str, provider: str, code: str) -> None:
        """A fallback went on to its next provider."""
        self._fallback_moves(model, provider, code).inc()

    def repaired(self, model: str, kind: str) -> None:
        self._repairs(model, kind).inc()

    def violated(self, model: str, rule: str) -> None:
        self._violations(model, rule).inc()


class _EngineCollector(Collector):
    """Gauges of the embedded engines and fleets, taken when Prometheus asks."""

    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots

    def collect(self) -> Iterable[Metric]:
        stats = self._snapshots()
        by_tier = ("model", "tier")
        for name, text, field in (
            ("sequences_running", "Sequences in the engine's batch.", "running"),
            ("sequences_waiting", "Sequences that wait for the engine.", "waiting"),
        ):
            family = GaugeMetricFamily(f"rejoinder_{name}", text, labels=by_tier)
            for model, one in stats.items():
                for tier, number in getattr(one, field).items():
                    family.add_metric((model, tier), number)
            yield family
        for name, text in (
            ("cells_used", "KV cache cells in use."),
            ("cells_total", "KV cache cells of the engine."),
            ("prefix_cache_hit_tokens", "Prompt tokens that were reused, so far."),
            ("prefill_tokens", "Prompt tokens that were computed, so far."),
            ("moves", "Sequences that went on on another replica, so far."),
        ):
            family = GaugeMetricFamily(f"rejoinder_{name}", text, labels=("model",))
            for model, one in stats.items():
                family.add_metric((model,), getattr(one, name))
            yield family
        for name, text, field in (
            ("replica", "1 for the state that each replica is in.", "replicas"),
            ("provider", "1 for the state of the breaker of each of a fallback.", "providers"),
        ):
            family = GaugeMetricFamily(
                f"rejoinder_{name}_state", text, labels=("model", name, "state")
            )
            for model, one in stats.items():
                for part, state in getattr(one, field).items():
                    family.add_metric((model, part, state), 1)
            yield family
