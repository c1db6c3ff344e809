"""OpenTelemetry: spans and measurements after the GenAI conventions, from records of requests."""

from decimal import Decimal

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from rejoinder.service.chat import Record
from rejoinder.types import Usage
from rejoinder.web.tracing import Tracing

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def record(**more: object) -> Record:
    values: dict[str, object] = {
        "request_id": "req_1",
        "completion_id": "chatcmpl-1",
        "created": 1,
        "account": "a",
        "key_id": "k",
        "model": "m",
        "dialect": "openai",
        "stream": True,
        "status": "ok",
        "finish_reasons": ("stop",),
        "usage": Usage(prompt_tokens=7, completion_tokens=3, cached_tokens=2),
        "cost": Decimal("0.1"),
        "first_event_seconds": 0.5,
        "total_seconds": 1.5,
        "traceparent": PARENT,
        **more,
    }
    return Record(**values)  # type: ignore[arg-type]


def test_a_request_is_a_span_and_four_measurements() -> None:
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    spans = TracerProvider()
    spans.add_span_processor(SimpleSpanProcessor(exporter))
    tracing = Tracing(spans, MeterProvider(metric_readers=[reader]))
    tracing.started(record())
    tracing.ended(record())
    tracing.ended(record(status="error", error="server_error"))

    good, bad = exporter.get_finished_spans()
    assert good.name == "chat m"
    assert good.attributes is not None
    assert good.attributes["gen_ai.operation.name"] == "chat"
    assert good.attributes["gen_ai.usage.input_tokens"] == 7
    assert good.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert good.parent is not None and f"{good.parent.trace_id:032x}" == PARENT.split("-")[1]
    assert good.end_time and good.start_time
    assert good.end_time - good.start_time == pytest.approx(1.5e9, rel=1e-6)
    assert bad.status.status_code is StatusCode.ERROR
    assert bad.attributes is not None and bad.attributes["error.type"] == "server_error"

    data = reader.get_metrics_data()
    assert data is not None
    found = {
        metric.name: metric
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert set(found) == {
        "gen_ai.client.token.usage",
        "gen_ai.server.request.duration",
        "gen_ai.server.time_to_first_token",
        "gen_ai.server.time_per_output_token",
    }
    points = found["gen_ai.server.time_per_output_token"].data.data_points
    assert points[0].sum == pytest.approx(2 * 0.5)
