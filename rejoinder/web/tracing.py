"""OpenTelemetry after the GenAI semantic conventions, when the extra `otel` is installed.

One span and four measurements a chat request, made from its record; never text of prompts or
answers. It must not know: exporters; the environment (`OTEL_*`) configures the SDK.
"""

import os
import time
from collections.abc import Mapping

from opentelemetry import metrics, trace
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from rejoinder.service.chat import Record

PROVIDER = "rejoinder"


class Tracing:
    """An Observer of requests that reports to OpenTelemetry."""

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        """None: the global providers."""
        self._tracer = trace.get_tracer("rejoinder", tracer_provider=tracer_provider)
        meter = metrics.get_meter("rejoinder", meter_provider=meter_provider)
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage", unit="{token}", description="Tokens of a request."
        )
        self._duration = meter.create_histogram(
            "gen_ai.server.request.duration", unit="s", description="Time to the last token."
        )
        self._first = meter.create_histogram(
            "gen_ai.server.time_to_first_token", unit="s", description="Time to the first token."
        )
        self._per_token = meter.create_histogram(
            "gen_ai.server.time_per_output_token", unit="s", description="Time a token after it."
        )

    def started(self, record: Record) -> None:
        return

    def ended(self, record: Record) -> None:
        self._trace(record)
        self._measure(record)

    def _trace(self, record: Record) -> None:
        end = time.time_ns()
        start = end - int(record.total_seconds * 1e9)
        parent = TraceContextTextMapPropagator().extract({"traceparent": record.traceparent or ""})
        span = self._tracer.start_span(
            f"chat {record.model}",
            context=parent,
            kind=SpanKind.SERVER,
            start_time=start,
            attributes={
                **_common(record),
                "gen_ai.response.id": record.completion_id,
                "gen_ai.response.finish_reasons": list(record.finish_reasons),
                "gen_ai.usage.input_tokens": record.usage.prompt_tokens,
                "gen_ai.usage.output_tokens": record.usage.completion_tokens,
                "rejoinder.request.id": record.request_id,
                "rejoinder.service_tier": record.tier,
                "rejoinder.usage.cached_tokens": record.usage.cached_tokens,
            },
        )
        if record.first_event_seconds is not None:
            first = start + int(record.first_event_seconds * 1e9)
            span.add_event("first token", timestamp=first)
        if record.error is not None:
            span.set_attribute("error.type", record.error)
            span.set_status(Status(StatusCode.ERROR))
        span.end(end_time=end)

    def _measure(self, record: Record) -> None:
        common = _common(record)
        usage = record.usage
        for kind, number in (("input", usage.prompt_tokens), ("output", usage.completion_tokens)):
            self._tokens.record(number, {**common, "gen_ai.token.type": kind})
        failed = {} if record.error is None else {"error.type": record.error}
        self._duration.record(record.total_seconds, {**common, **failed})
        if record.first_event_seconds is not None:
            self._first.record(record.first_event_seconds, common)
        if record.seconds_per_token is not None:
            self._per_token.record(record.seconds_per_token, common)


def _common(record: Record) -> Mapping[str, str]:
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": record.model,
        "gen_ai.response.model": record.model,
    }


def configure_from_environment() -> bool:
    """Exports over OTLP when `OTEL_EXPORTER_OTLP_ENDPOINT` names where; whether it does."""
    if not os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        return False
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import MeterProvider as SdkMeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider as SdkTracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({SERVICE_NAME: os.environ.get("OTEL_SERVICE_NAME", "rejoinder")})
    spans = SdkTracerProvider(resource=resource)
    spans.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(spans)
    reader = PeriodicExportingMetricReader(OTLPMetricExporter())
    metrics.set_meter_provider(SdkMeterProvider(resource=resource, metric_readers=[reader]))
    return True
