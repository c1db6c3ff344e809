"""What the tests of the dialects share: events → parsed chunks and bodies, and the schemas."""

import json
from collections.abc import Iterable
from typing import Any

from rejoinder.dialects import DEEPINFRA, OPENAI, Dialect, RequestPolicy
from rejoinder.dialects.sse import SseReader
from rejoinder.events import Event, collect
from rejoinder.types import AnswerOptions, Usage
from tests.schemas import validator

POLICY = RequestPolicy()
SHOWN = RequestPolicy(openai_reasoning="reasoning_content")


def padding() -> str:
    return "x7Kq2"


CHUNK_SCHEMAS = {
    OPENAI.name: validator("openai_chunk"),
    DEEPINFRA.name: validator("deepinfra_chunk"),
}
BODY_SCHEMA = validator("deepinfra_response")


def strict_json(text: str | bytes) -> Any:
    """Parses what RFC 8259 allows and nothing else."""

    def no_constant(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs), pairs
        return dict(pairs)

    return json.loads(text, parse_constant=no_constant, object_pairs_hook=no_duplicates)


def stream_of(
    dialect: Dialect,
    events: Iterable[Event],
    options: AnswerOptions,
    *,
    policy: RequestPolicy = POLICY,
    usages: Iterable[Usage | None] | None = None,
) -> bytes:
    encoder = dialect.chunk_encoder(options, policy, padding)
    if usages is None:
        return b"".join(encoder.feed(event) for event in events)
    return b"".join(map(encoder.feed, events, usages))


def chunks_of(
    dialect: Dialect,
    events: Iterable[Event],
    options: AnswerOptions,
    *,
    policy: RequestPolicy = POLICY,
    usages: Iterable[Usage | None] | None = None,
) -> list[Any]:
    reader = SseReader()
    stream = stream_of(dialect, events, options, policy=policy, usages=usages)
    frames = reader.feed(stream)
    assert reader.flush() == []
    assert stream.count(b"\n") == 2 * len(frames), "one line an event (R5)"
    return [strict_json(frame) for frame in frames]


def body_of(
    dialect: Dialect,
    events: Iterable[Event],
    options: AnswerOptions,
    *,
    policy: RequestPolicy = POLICY,
) -> Any:
    return strict_json(dialect.encode_completion(collect(events), options, policy))
