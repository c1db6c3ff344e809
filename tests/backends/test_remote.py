"""RemoteBackend against a provider of raw sockets: no mocks, every byte is sent."""

import asyncio
import itertools
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rejoinder.backends.remote import RemoteBackend, reasoning_format_of
from rejoinder.config import RemoteConfig
from rejoinder.engines.connections import ShortQueue, shorten_queues
from rejoinder.errors import (
    ChatError,
    ContextLengthExceeded,
    InvalidRequest,
    Overloaded,
    ProviderFailed,
    ProviderTimeout,
    RequestTooLarge,
    Unavailable,
)
from rejoinder.events import (
    ContentDelta,
    Event,
    EventGrammar,
    Finished,
    Started,
    collect,
)
from rejoinder.types import (
    AssistantMessage,
    ChatRequest,
    Completion,
    JsonObjectFormat,
    Meter,
    Tool,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from tests.backends.upstream import (
    DONE,
    SSE_HEAD,
    Reply,
    Upstream,
    answer,
    chunk,
    failing,
    frame,
    serving,
    usage,
)

HI = ChatRequest(model="m", messages=(UserMessage("hi"),))

TIMEOUTS = {
    "connect_timeout_seconds": 2.0,
    "first_token_timeout_seconds": 5.0,
    "between_tokens_timeout_seconds": 5.0,
}


@asynccontextmanager
async def backend_for(
    upstream: Upstream, *, api_key: str = "", sleeps: list[float] | None = None, **keys: Any
) -> AsyncIterator[RemoteBackend]:
    """`sleeps` given: waits before retries are noted there and not slept."""
    config = RemoteConfig(id="m", base_url=upstream.base_url, **{**TIMEOUTS, **keys})
    ids = itertools.count()
    repairs: list[str] = []

    async def sleep(seconds: float) -> None:
        if sleeps is None:
            await asyncio.sleep(seconds)
        else:
            sleeps.append(seconds)

    backend = RemoteBackend(
        config,
        api_key=api_key,
        new_id=lambda: f"call_{next(ids)}",
        on_repair=repairs.append,
        sleep=sleep,
        random=lambda: 0.0,
    )
    backend.repairs = repairs  # type: ignore[attr-defined]
    try:
        yield backend
    finally:
        await backend.close()


async def run(
    backend: RemoteBackend, request: ChatRequest = HI, meter: Meter | None = None
) -> tuple[list[Event], ChatError | None]:
    """Every event, checked by the grammar, and the error that ended them."""
    grammar = EventGrammar()
    events: list[Event] = []
    try:
        async with asyncio.timeout(20), aclosing(backend.chat(request, meter or Meter())) as stream:
            async for event in stream:
                grammar.feed(event)
                events.append(event)
    except ChatError as error:
        return events, error
    return events, None


async def completed(backend: RemoteBackend, request: ChatRequest = HI) -> Completion:
    events, error = await run(backend, request)
    assert error is None, error
    return collect(events)


# ---------------------------------------------------------------- good answers


async def test_a_good_answer() -> None:
    async with serving(Reply(answer("Hel", "lo"))) as upstream, backend_for(upstream) as backend:
        meter = Meter()
        events, error = await run(backend, meter=meter)
        assert error is None
        done = collect(events)
        assert done.choices[0].content == "Hello"
        assert done.choices[0].finish_reason == "stop"
        assert done.model == "up"
        assert meter.usage() == done.usage == Usage(prompt_tokens=5, completion_tokens=2)
        assert upstream.requests[0]["stream"] is True
        assert upstream.requests[0]["stream_options"] == {"include_usage": True}
        assert b"POST /v1/chat/completions HTTP/1.1" in upstream.heads[0]


async def test_events_come_as_they_arrive() -> None:
    parts: list[bytes | float] = [chunk({"content": "a"}), 0.3, *answer("b")]
    async with serving(Reply(parts)) as upstream, backend_for(upstream) as backend:
        loop = asyncio.get_running_loop()
        start = loop.time()
        times: list[float] = []
        async for event in backend.chat(HI, Meter()):
            if isinstance(event, ContentDelta):
                times.append(loop.time() - start)
        assert times[0] < 0.25 < times[1]


async def test_any_split_of_the_bytes_gives_the_same_events() -> None:
    body = b"".join(p for p in answer("H\u2028é", "😊lo") if isinstance(p, bytes))
    async with serving(Reply([body])) as upstream, backend_for(upstream) as backend:
        whole, _ = await run(backend)
    bytewise: list[bytes | float] = [body[i : i + 1] for i in range(len(body))]
    async with serving(Reply(bytewise)) as upstream, backend_for(upstream) as backend:
        assert (await run(backend))[0] == whole


async def test_connections_are_used_again() -> None:
    async with (
        serving(Reply(answer("a"), chunked=True)) as upstream,
        backend_for(upstream) as backend,
    ):
        for _ in range(5):
            await completed(backend)
        assert len(upstream.requests) == 5
        assert upstream.num_connections == 1


async def test_a_kept_connection_that_was_closed_is_no_failure() -> None:
    """The provider closes an idle connection: one more try, even with retries off."""
    dropped = Reply([], head=None)
    async with (
        serving(Reply(answer("a"), chunked=True), dropped, Reply(answer("b"))) as upstream,
        backend_for(upstream, max_retries=0) as backend,
    ):
        assert (await completed(backend)).choices[0].content == "a"
        assert (await completed(backend)).choices[0].content == "b"


async def test_a_kept_connection_that_closes_while_we_write_is_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = aiohttp.ClientSession.post
    failures = [aiohttp.ClientOSError(None, "Can not write request body")]

    def post(session: aiohttp.ClientSession, *args: Any, **kwargs: Any) -> Any:
        if failures:
            raise failures.pop()
        return real(session, *args, **kwargs)

    monkeypatch.setattr(aiohttp.ClientSession, "post", post)
    async with (
        serving(Reply(answer("hi"))) as upstream,
        backend_for(upstream, max_retries=0) as backend,
    ):
        assert (await completed(backend)).choices[0].content == "hi"
        failures += [aiohttp.ClientOSError(None, "twice") for _ in range(2)]
        with pytest.raises(ProviderFailed, match="could not be reached"):
            await anext(backend.chat(HI, Meter()))


@pytest.mark.parametrize("label", ["application/json", "text/plain", "text/event-stream"])
async def test_a_json_body_is_a_stream_of_one(label: str) -> None:
    body = {
        "id": "x",
        "object": "chat.completion",
        "model": "up",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }
    raw = json.dumps(body, indent=1).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {label}\r\n".encode()
    parts: list[bytes | float] = [raw[:1], raw[1:40], 0.02, raw[40:]]
    async with serving(Reply(parts, head)) as upstream, backend_for(upstream) as backend:
        done = await completed(backend)
        assert done.choices[0].content == "Hi"
        assert done.usage == Usage(prompt_tokens=3, completion_tokens=2)
        assert backend.repairs == ["unary_body"]  # type: ignore[attr-defined]


async def test_what_is_repaired_is_told_once_a_kind() -> None:
    parts = [chunk({"content": "a"}, finish=""), chunk({"content": "b"}, finish=""), *answer("c")]
    async with serving(Reply(parts)) as upstream, backend_for(upstream) as backend:
        await completed(backend)
        assert sorted(backend.repairs) == [  # type: ignore[attr-defined]
            "finish_reason_empty",
            "role_missing",
        ]


async def test_ids_of_calls_go_back_as_they_were_shown() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    parts: list[bytes | float] = [
        chunk({"tool_calls": [{"index": 0, "id": "up_A", **call}]}),
        chunk({"tool_calls": [{"index": 0, "id": "up_B", **call}]}),
        chunk(finish="tool_calls"),
        DONE,
    ]
    tools = (Tool("f"),)
    async with serving(Reply(parts)) as upstream, backend_for(upstream) as backend:
        request = ChatRequest(model="m", messages=(UserMessage("hi"),), tools=tools)
        calls = (await completed(backend, request)).choices[0].tool_calls
        history = (
            UserMessage("hi"),
            AssistantMessage(tool_calls=calls),
            *(ToolMessage(f"result of {call.id}", call.id) for call in calls),
        )
        await completed(backend, ChatRequest(model="m", messages=history, tools=tools))
        sent = upstream.requests[1]["messages"]
        assert [c["id"] for c in sent[1]["tool_calls"]] == ["up_A", "up_B"]
        assert [m["tool_call_id"] for m in sent[2:]] == ["up_A", "up_B"]
        assert calls == (ToolCall("up_A", "f", "{}"), ToolCall("up_B", "f", "{}"))


# ---------------------------------------------------------------- what we do for the provider


async def test_stop_strings_past_the_limit_are_cut_here_and_end_the_request() -> None:
    parts: list[bytes | float] = [chunk({"content": "one T"}), chunk({"content": "WO three"})]
    stop = ("a", "b", "c", "d", "TWO")
    request = ChatRequest(model="m", messages=(UserMessage("hi"),), stop=stop)
    async with serving(Reply(parts, end="hang")) as upstream, backend_for(upstream) as backend:
        meter = Meter()
        events, error = await run(backend, request, meter)
        assert error is None
        done = collect(events)
        assert done.choices[0].content == "one "
        assert done.choices[0].finish_reason == "stop"
        assert meter.usage().estimated
        assert meter.usage().completion_tokens > 0
        assert upstream.requests[0]["stop"] == ["a", "b", "c", "d"]
        await asyncio.wait_for(upstream.peer_closed.wait(), 2)


async def test_one_call_where_one_was_wanted() -> None:
    calls = [
        {"index": k, "id": f"c{k}", "function": {"name": "f", "arguments": "{}"}} for k in (0, 1)
    ]
    parts: list[bytes | float] = [chunk({"tool_calls": calls}), chunk(finish="tool_calls"), DONE]
    request = ChatRequest(
        model="m", messages=(UserMessage("hi"),), tools=(Tool("f"),), parallel_tool_calls=False
    )
    async with (
        serving(Reply(parts)) as upstream,
        backend_for(upstream, dialect="deepinfra") as backend,
    ):
        assert len((await completed(backend, request)).choices[0].tool_calls) == 1
        assert "parallel_tool_calls" not in upstream.requests[0]


async def test_the_name_of_the_limit_is_learnt() -> None:
    complaint = {
        "error": {
            "message": "Unsupported parameter: use 'max_completion_tokens' instead.",
            "type": "invalid_request_error",
            "param": "max_tokens",
            "code": "unsupported_parameter",
        }
    }
    request = ChatRequest(model="m", messages=(UserMessage("hi"),), max_tokens=7)
    async with (
        serving(failing(400, complaint), Reply(answer("a"))) as upstream,
        backend_for(upstream, max_retries=0) as backend,
    ):
        await completed(backend, request)
        await completed(backend, request)
        limits = [
            {k: v for k, v in sent.items() if k.startswith("max_")} for sent in upstream.requests
        ]
        assert limits == [
            {"max_tokens": 7},
            {"max_completion_tokens": 7},
            {"max_completion_tokens": 7},
        ]


async def test_a_provider_that_wants_the_word_json_is_given_it() -> None:
    """R42 behind R43: asked once, then known; requests that were on their way learn it too."""
    complaint = {
        "error": {
            "message": "'messages' must contain the word 'json' in some form, to use "
            "'response_format' of type 'json_object'.",
            "type": "invalid_request_error",
            "param": "messages",
            "code": None,
        }
    }
    request = ChatRequest(
        model="m", messages=(UserMessage("hi"),), response_format=JsonObjectFormat()
    )
    replies = (failing(400, complaint), failing(400, complaint), Reply(answer("{}")))
    async with serving(*replies) as upstream, backend_for(upstream, max_retries=0) as backend:
        await asyncio.gather(completed(backend, request), completed(backend, request))
        await completed(backend, request)
        told = [
            any("JSON" in message["content"] for message in sent["messages"])
            for sent in upstream.requests
        ]
        assert told == [False, False, True, True, True]


def test_auto_knows_thinking_models_by_name() -> None:
    assert reasoning_format_of("deepseek-ai/DeepSeek-R1", "auto") == "deepseek_r1"
    assert reasoning_format_of("gpt-4o", "auto") == "none"
    assert reasoning_format_of("gpt-4o", "deepseek-r1") == "deepseek_r1"
    with pytest.raises(ValueError, match="unknown reasoning format"):
        reasoning_format_of("x", "nonsense")


async def test_think_tags_in_content_are_reasoning_where_the_model_thinks() -> None:
    parts = answer("<think>a", "b</th", "ink>", "X")
    async with (
        serving(Reply(parts)) as upstream,
        backend_for(upstream, reasoning_format="deepseek_r1") as backend,
    ):
        choice = (await completed(backend)).choices[0]
        assert (choice.reasoning_content, choice.content) == ("ab", "X")
    async with serving(Reply(parts)) as upstream, backend_for(upstream) as backend:
        assert (await completed(backend)).choices[0].content == "<think>ab</think>X"


# ---------------------------------------------------------------- errors


ERRORS: list[tuple[int, dict[str, Any], type[ChatError], dict[str, Any]]] = [
    (400, {"message": "bad", "param": "seed", "code": "x"}, InvalidRequest, {"param": "seed"}),
    (422, {"message": "bad"}, InvalidRequest, {"status": 400}),
    (
        400,
        {"message": "long", "code": "context_length_exceeded"},
        ContextLengthExceeded,
        {"param": "messages"},
    ),
    (
        400,
        {"message": "This model's maximum context length is 10 tokens."},
        ContextLengthExceeded,
        {"code": "context_length_exceeded"},
    ),
    (401, {"message": "Incorrect API key provided: sk-secret123"}, ProviderFailed, {"status": 502}),
    (402, {"message": "pay"}, ProviderFailed, {"status": 502}),
    (403, {"message": "no"}, ProviderFailed, {"status": 502}),
    (404, {"message": "no"}, ProviderFailed, {"status": 502}),
    (413, {"message": "big"}, RequestTooLarge, {"status": 413}),
    (429, {"message": "x", "code": "insufficient_quota"}, Overloaded, {"code": "provider_quota"}),
    (302, {"message": "moved"}, ProviderFailed, {"status": 502}),
]


@pytest.mark.parametrize(("status", "error", "kind", "has"), ERRORS)
async def test_an_error_that_no_retry_helps(
    status: int, error: dict[str, Any], kind: type[ChatError], has: dict[str, Any]
) -> None:
    sleeps: list[float] = []
    headers = "Location: http://127.0.0.1:1/\r\n" if status == 302 else ""
    async with (
        serving(failing(status, {"error": error}, headers)) as upstream,
        backend_for(upstream, sleeps=sleeps, api_key="sk-secret123") as backend,
    ):
        events, raised = await run(backend)
        assert events == []
        assert type(raised) is kind
        for name, value in has.items():
            assert getattr(raised, name) == value
        assert raised is not None and "sk-secret123" not in raised.message
        assert len(upstream.requests) == 1
        assert sleeps == []


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (408, ProviderTimeout),
        (409, ProviderFailed),
        (425, ProviderFailed),
        (429, Overloaded),
        (500, ProviderFailed),
        (502, ProviderFailed),
        (503, Unavailable),
        (504, ProviderTimeout),
        (520, ProviderFailed),
        (529, Unavailable),
    ],
)
async def test_an_error_that_is_tried_again(status: int, kind: type[ChatError]) -> None:
    sleeps: list[float] = []
    async with (
        serving(failing(status), failing(status), Reply(answer("ok"))) as upstream,
        backend_for(upstream, sleeps=sleeps) as backend,
    ):
        assert (await completed(backend)).choices[0].content == "ok"
        assert sleeps == [0.25, 0.5]
    async with (
        serving(failing(status)) as upstream,
        backend_for(upstream, sleeps=sleeps, max_retries=1) as backend,
    ):
        events, raised = await run(backend)
        assert events == []
        assert type(raised) is kind
        assert len(upstream.requests) == 2


@pytest.mark.parametrize(
    "parts",
    [
        [DONE],
        [],
        [frame({"error": {"message": "x"}}), DONE],
        [chunk({"role": "assistant", "content": ""}), frame({"error": "x"})],
        [chunk({"role": "assistant"}), DONE],
        [b"data: {broken\n\n"],
        [b"<html>bad gateway</html>"],
        [b'{"id":"1","choices":[]}'],
    ],
)
async def test_a_failure_before_the_first_event_is_tried_again(parts: list[bytes | float]) -> None:
    async with (
        serving(Reply(parts), Reply(answer("ok"))) as upstream,
        backend_for(upstream, sleeps=[]) as backend,
    ):
        assert (await completed(backend)).choices[0].content == "ok"
        assert len(upstream.requests) == 2


@pytest.mark.parametrize(
    ("parts", "end"),
    [
        ([], "close"),
        ([frame({"error": {"message": "boom"}}), DONE], "close"),
        ([b"data: {broken\n\n", chunk({"content": "x"}), chunk(finish="stop"), DONE], "close"),
        ([chunk({}, finish="error")], "close"),
        ([b'data: {"id":"up1","choices":[{"index":0,"del'], "close"),
        ([0.05], "reset"),
    ],
)
async def test_a_failure_after_the_first_event_is_told_and_never_tried_again(
    parts: list[bytes | float], end: Any
) -> None:
    async with (
        serving(Reply([chunk({"content": "Hel"}), 0.05, *parts], end=end)) as upstream,
        backend_for(upstream, sleeps=[]) as backend,
    ):
        meter = Meter()
        events, raised = await run(backend, meter=meter)
        assert isinstance(raised, ProviderFailed)
        assert [e.text for e in events if isinstance(e, ContentDelta)] == ["Hel"]
        assert not any(isinstance(e, Finished) for e in events)
        assert len(upstream.requests) == 1
        assert meter.usage().estimated and meter.usage().completion_tokens > 0


async def test_what_came_before_a_failure_in_the_same_read_is_not_lost() -> None:
    data = chunk({"content": "a"}) + chunk({"content": "b"}) + b"data: {broken\n\n"
    async with serving(Reply([data])) as upstream, backend_for(upstream) as backend:
        events, raised = await run(backend)
        assert isinstance(raised, ProviderFailed)
        assert [type(e) for e in events] == [Started, ContentDelta, ContentDelta]


async def test_errors_tell_neither_key_nor_address() -> None:
    async with serving(Reply([DONE])) as upstream:
        message = (
            f"POST {upstream.base_url}/chat/completions with Bearer abc.def-ghi failed: "
            f"/srv/app/main.py line 3, key my-odd-key, 10.1.2.3:8000"
        )
        upstream.replies[:] = [failing(500, {"error": {"message": message}})]
        async with backend_for(upstream, api_key="my-odd-key", max_retries=0) as backend:
            _, raised = await run(backend)
            assert raised is not None
            for secret in (
                "127.0.0.1",
                str(upstream.port),
                "abc.def",
                "my-odd-key",
                "/srv",
                "10.1",
            ):
                assert secret not in raised.message
            assert "failed" in raised.message
        assert b"authorization: bearer my-odd-key" in upstream.heads[0].lower()


async def test_nobody_listens() -> None:
    async with serving(Reply([])) as upstream:
        pass
    sleeps: list[float] = []
    async with backend_for(upstream, sleeps=sleeps) as backend:
        events, raised = await run(backend)
        assert events == []
        assert isinstance(raised, ProviderFailed)
        assert str(upstream.port) not in raised.message
        assert len(sleeps) == 2


@pytest.mark.parametrize(
    "raw",
    [
        b"HELLO\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X-Bomb: " + b"a" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: a\r\n" % i for i in range(50_000)) + b"\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_bad_http_is_an_honest_error(raw: bytes) -> None:
    async with (
        serving(Reply([raw], head=None)) as upstream,
        backend_for(upstream, max_retries=0) as backend,
    ):
        events, raised = await run(backend)
        assert events == []
        assert isinstance(raised, ProviderFailed)


# ---------------------------------------------------------------- Retry-After and deadlines


async def test_retry_after_is_honoured_as_seconds_and_as_a_date() -> None:
    sleeps: list[float] = []
    async with (
        serving(failing(429, headers="Retry-After: 2\r\n"), Reply(answer("ok"))) as upstream,
        backend_for(upstream, sleeps=sleeps) as backend,
    ):
        await completed(backend)
        assert sleeps == [2.0]
    date = formatdate(usegmt=True)
    async with (
        serving(failing(429, headers=f"Retry-After: {date}\r\n"), Reply(answer("ok"))) as upstream,
        backend_for(upstream, sleeps=sleeps) as backend,
    ):
        await completed(backend)
        assert 0 <= sleeps[1] <= 1


async def test_a_long_retry_after_is_the_clients_to_wait_for() -> None:
    sleeps: list[float] = []
    async with (
        serving(failing(429, headers="Retry-After: 7200\r\n")) as upstream,
        backend_for(upstream, sleeps=sleeps) as backend,
    ):
        _, raised = await run(backend)
        assert isinstance(raised, Overloaded)
        assert raised.retry_after == 7200
        assert len(upstream.requests) == 1
        assert sleeps == []


async def test_no_retry_past_the_deadline() -> None:
    async with (
        serving(failing(429, headers="Retry-After: 20\r\n")) as upstream,
        backend_for(upstream, sleeps=[]) as backend,
    ):
        _, raised = await run(backend)
        assert raised is not None and raised.retry_after == 20
        assert len(upstream.requests) == 1


@pytest.mark.parametrize("parts", [[], [SSE_HEAD + b"\r\n"], [SSE_HEAD + b"\r\n: ping\n\n"]])
async def test_no_first_token_in_time(parts: list[bytes | float]) -> None:
    reply = Reply(parts, head=None, end="hang")
    async with (
        serving(reply) as upstream,
        backend_for(upstream, first_token_timeout_seconds=0.3) as backend,
    ):
        events, raised = await run(backend)
        assert events == []
        assert isinstance(raised, ProviderTimeout)
        assert len(upstream.requests) == 1


async def test_comments_are_no_tokens() -> None:
    """A provider that only keeps the connection alive is silent, before and after the start."""
    pings: list[bytes | float] = []
    for _ in range(40):
        pings += [b": ping\n\n", 0.02]
    async with (
        serving(Reply(pings)) as upstream,
        backend_for(upstream, first_token_timeout_seconds=0.3, max_retries=0) as backend,
    ):
        _, raised = await run(backend)
        assert isinstance(raised, ProviderTimeout)
    async with (
        serving(Reply([chunk({"content": "a"}), *pings])) as upstream,
        backend_for(upstream, between_tokens_timeout_seconds=0.3) as backend,
    ):
        events, raised = await run(backend)
        assert isinstance(raised, ProviderTimeout)
        assert len(events) == 2


async def test_a_slow_stream_is_no_silent_one() -> None:
    parts: list[bytes | float] = []
    for _ in range(10):
        parts += [chunk({"content": "a"}), 0.1]
    async with (
        serving(Reply([*parts, chunk(finish="stop"), DONE])) as upstream,
        backend_for(
            upstream, between_tokens_timeout_seconds=0.4, first_token_timeout_seconds=0.4
        ) as backend,
    ):
        assert (await completed(backend)).choices[0].content == "a" * 10


async def test_a_reader_that_takes_its_time_is_not_the_providers_silence() -> None:
    parts = [part for one in answer(*"abcdef") for part in (one, 0.1)]
    async with (
        serving(Reply(parts)) as upstream,
        backend_for(upstream, between_tokens_timeout_seconds=0.15) as backend,
    ):
        texts = []
        async for event in backend.chat(HI, Meter()):
            if isinstance(event, ContentDelta):
                texts.append(event.text)
                await asyncio.sleep(0.2)
        assert texts == [*"abcdef"]


@pytest.mark.parametrize("end", ["close", "reset", "hang"])
@pytest.mark.parametrize("rest", [[], [usage()]])
async def test_an_answer_that_is_complete_needs_no_done(
    end: Any, rest: list[bytes | float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rejoinder.backends.remote.DONE_SECONDS", 0.2)
    monkeypatch.setattr("rejoinder.backends.remote.USAGE_SECONDS", 0.3)
    parts: list[bytes | float] = [chunk({"content": "a"}), chunk(finish="stop"), *rest, 0.05]
    async with serving(Reply(parts, end=end)) as upstream, backend_for(upstream) as backend:
        done = await completed(backend)
        assert done.choices[0].content == "a"
        assert done.usage.estimated is not bool(rest)
        assert "missing_done" in backend.repairs  # type: ignore[attr-defined]


# ---------------------------------------------------------------- leaving early


async def test_leaving_closes_the_providers_connection_and_counts_what_was_seen() -> None:
    parts: list[bytes | float] = []
    for _ in range(200):
        parts += [chunk({"content": "word "}), 0.02]
    async with serving(Reply(parts)) as upstream, backend_for(upstream) as backend:
        meter = Meter()
        stream = backend.chat(HI, meter)
        seen = 0
        async for event in stream:
            seen += isinstance(event, ContentDelta)
            if seen == 3:
                break
        await stream.aclose()
        await asyncio.wait_for(upstream.peer_closed.wait(), 2)
        assert meter.usage().estimated
        assert meter.usage().completion_tokens >= 3
        assert meter.usage().prompt_tokens > 0


async def test_a_cancelled_wait_closes_the_connection() -> None:
    async with serving(Reply([], end="hang")) as upstream, backend_for(upstream) as backend:
        task = asyncio.ensure_future(run(backend))
        while not upstream.requests:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(upstream.peer_closed.wait(), 2)


async def test_closing_the_backend_ends_running_answers_with_an_error() -> None:
    reply = Reply([chunk({"content": "a"})], end="hang")
    async with serving(reply) as upstream, backend_for(upstream) as backend:
        task = asyncio.ensure_future(run(backend))
        await asyncio.sleep(0.1)
        await backend.close()
        events, raised = await task
        assert len(events) == 2
        assert isinstance(raised, ProviderFailed)
        events, raised = await run(backend)
        assert isinstance(raised, ProviderFailed)


async def test_many_at_once_stay_apart() -> None:
    async with (
        serving(Reply(answer("a", "b"), chunked=True)) as upstream,
        backend_for(upstream) as backend,
    ):
        done = await asyncio.gather(*(completed(backend) for _ in range(40)))
        assert {one.choices[0].content for one in done} == {"ab"}


# ---------------------------------------------------------------- hostile


async def test_a_line_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rejoinder.backends.remote.MAX_EVENT_BYTES", 1 << 20)
    endless: list[bytes | float] = [b"data: {", *([b"x" * 65536] * 200)]
    async with (
        serving(Reply(endless)) as upstream,
        backend_for(upstream, max_retries=0) as backend,
    ):
        events, raised = await run(backend)
        assert events == []
        assert isinstance(raised, ProviderFailed)


async def test_a_json_body_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rejoinder.backends.remote.MAX_BODY_BYTES", 1 << 20)
    endless: list[bytes | float] = [b'{"a":"', *([b"x" * 65536] * 200)]
    async with (
        serving(Reply(endless)) as upstream,
        backend_for(upstream, max_retries=0) as backend,
    ):
        _, raised = await run(backend)
        assert isinstance(raised, ProviderFailed)


async def test_an_endless_error_body_is_not_read_to_its_end() -> None:
    head = b"HTTP/1.1 500 X\r\nContent-Length: 100000000\r\n"
    parts: list[bytes | float] = [b"x" * 65536] * 3
    async with (
        serving(Reply(parts, head, end="hang")) as upstream,
        backend_for(upstream, max_retries=0) as backend,
    ):
        _, raised = await run(backend)
        assert isinstance(raised, ProviderFailed)
        await asyncio.wait_for(upstream.peer_closed.wait(), 2)


@pytest.mark.parametrize(
    "payload",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"choices":[{"index":0,"delta":{"content":' + b"[" * 50_000,
        b'{"choices":[{"index":1e400,"delta":{"content":"x"}}]}',
        b'{"choices":[{"index":' + b"9" * 5000 + b',"delta":{"content":"x"}}]}',
        b"\xff\xfe\x00",
        b'"just a text"',
        b"12",
        b"[1,2]",
    ],
)
async def test_nonsense_is_an_honest_error(payload: bytes) -> None:
    async with (
        serving(Reply([b"data: " + payload + b"\n\n"])) as upstream,
        backend_for(upstream, max_retries=0) as backend,
    ):
        events, raised = await run(backend)
        assert not any(isinstance(e, Finished) for e in events)
        assert isinstance(raised, ProviderFailed)


# ---------------------------------------------------------------- the shared cases

CASES = Path(
    os.environ.get("REJOINDER_CASES")
    or Path(__file__).parents[3] / "shared" / "cases" / "handed.jsonl"
)


def cases() -> list[Any]:
    if not CASES.is_file():
        return []
    rows = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines() if line]
    return [
        pytest.param(row, id=row["id"])
        for row in rows
        if row["kind"] == "upstream_stream" and "moderation" not in row["given"]
    ]


def reply_of(given: dict[str, Any], *, bytewise: bool) -> Reply:
    pause = given.get("delay_ms", 10) / 1000
    if "body_gen" in given:
        raw = [*answer("x" * 300_000)]
    elif "parts_hex" in given:
        raw = [bytes.fromhex(part) for part in given["parts_hex"]]
    else:
        raw = [part.encode() for part in given.get("parts", [given.get("body", "")])]
    parts: list[bytes | float] = []
    for part in raw:
        assert isinstance(part, bytes)
        if bytewise and len(part) < 10_000:
            parts += [part[i : i + 1] for i in range(len(part))]
        else:
            parts += [part, pause]
    headers = {"Content-Type": "text/event-stream", **given.get("headers", {})}
    date = "{HTTP-date 2 s from now}"
    lines = [
        f"{k}: {formatdate(time.time() + 2, usegmt=True)}" if v == date else f"{k}: {v}"
        for k, v in headers.items()
    ]
    head = f"HTTP/1.1 {given.get('status', 200)} X\r\n" + "".join(f"{x}\r\n" for x in lines)
    return Reply(parts, head.encode())


def request_of(given: dict[str, Any]) -> ChatRequest:
    asked = given.get("request", {})
    tools = tuple(
        Tool(t["function"]["name"], parameters=t["function"]["parameters"])
        for t in asked.get("tools", [])
    )
    return ChatRequest(
        model="m",
        messages=(UserMessage("hi"),),
        n=asked.get("n", 1),
        tools=tools,
        logprobs=asked.get("logprobs", False),
        num_top_logprobs=asked.get("top_logprobs", 0),
    )


@pytest.mark.skipif(not CASES.is_file(), reason="the cases are not here")
@pytest.mark.parametrize("way", ["stream", "bytes"])
@pytest.mark.parametrize("case", cases())
async def test_reported_faults(case: dict[str, Any], way: str) -> None:
    given, expect = case["given"], case["expect"]
    replies = [reply_of(given, bytewise=way == "bytes")]
    if "then_body" in given:
        replies.append(Reply([given["then_body"].encode()]))
    profile = given.get("model_profile", {}).get("reasoning", "auto")
    async with (
        serving(*replies) as upstream,
        backend_for(upstream, reasoning_format=profile, sleeps=[]) as backend,
    ):
        meter = Meter()
        events, raised = await run(backend, request_of(given), meter)
        wanted = expect.get("any_of", [expect])
        problems = [list(differences(one, events, raised, meter, upstream)) for one in wanted]
        assert [] in problems, problems


def differences(
    expect: dict[str, Any],
    events: list[Event],
    raised: ChatError | None,
    meter: Meter,
    upstream: Upstream,
) -> Any:
    """What an answer does not have of what a case asks for; keys of the wire are not looked at."""
    fails = (
        "status" in expect or "status_or_stream_error" in expect or expect.get("error_in_stream")
    )
    text = "".join(e.text for e in events if isinstance(e, ContentDelta))
    if fails:
        if raised is None:
            yield "no error"
            return
        statuses = expect.get("status_or_stream_error") or [expect.get("status", raised.status)]
        if raised.status not in statuses:
            yield f"status {raised.status}"
        if any(isinstance(e, Finished) for e in events):
            yield "a finish reason"
        if "content" in expect and text != expect["content"]:
            yield f"content {text!r}"
        if (part := expect.get("error_message_contains")) and part not in raised.message:
            yield raised.message
    elif raised is not None:
        yield f"error {raised!r}"
    else:
        done = collect(events)
        for index, wanted in expect.get("choices", {"0": expect}).items():
            yield from choice_differences(wanted, done.choices[int(index)])
        for name, value in expect.get("usage", {}).items():
            if name.endswith("_tokens") and getattr(done.usage, name) != value:
                yield f"{name} {getattr(done.usage, name)}"
        for name in expect.get("internal_usage_positive", []):
            if getattr(meter.usage(), name) <= 0:
                yield name
    if "upstream_calls" in expect and len(upstream.requests) != expect["upstream_calls"]:
        yield f"{len(upstream.requests)} calls"


def choice_differences(wanted: dict[str, Any], choice: Any) -> Any:
    for name in ("content", "reasoning_content", "finish_reason"):
        if name in wanted and (getattr(choice, name) or None) != (wanted[name] or None):
            yield f"{name} {getattr(choice, name)!r}"
    if "content_length" in wanted and len(choice.content or "") != wanted["content_length"]:
        yield f"length {len(choice.content or '')}"
    if "tool_calls" in wanted:
        if len(choice.tool_calls) != len(wanted["tool_calls"]):
            yield f"calls {choice.tool_calls}"
            return
        for call, one in zip(choice.tool_calls, wanted["tool_calls"], strict=True):
            if one["id"] not in ("*", call.id) or call.name != one["name"]:
                yield f"call {call}"
            if "arguments" in one and call.arguments != one["arguments"]:
                yield f"arguments {call.arguments}"
            if "arguments_json" in one and json.loads(call.arguments) != one["arguments_json"]:
                yield f"arguments {call.arguments}"
    if "top_logprob_values" in wanted:
        values = [[t.logprob for t in entry.top] for entry in choice.content_logprobs or ()]
        if values != wanted["top_logprob_values"]:
            yield f"logprobs {values}"


async def test_the_queues_of_aiohttp_are_short_and_lose_nothing() -> None:
    pieces = [chunk({"content": str(number)}) for number in range(300)]
    async with (
        serving(Reply([pieces[0], 0.1, *pieces[1:]], chunked=True)) as upstream,
        aiohttp.ClientSession() as session,
        session.post(upstream.base_url + "/chat/completions", json={}) as response,
    ):
        shorten_queues(response)
        assert isinstance(response.content._buffer, ShortQueue)
        assert response.connection is not None and response.connection.protocol is not None
        assert isinstance(response.connection.protocol._buffer, ShortQueue)
        assert await response.content.read() == b"".join(pieces)
