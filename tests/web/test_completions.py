"""Chat completions over real sockets, on the scripted engine: unary, streamed, broken, left."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rejoinder.testing import TestServer, scripted_server
from tests.web import wire
from tests.web.wire import PATHS, chat

SCRIPT: list[dict[str, Any]] = [
    {"when": {"contains": "count"}, "pieces": [f"{i} " for i in range(50)], "delay_ms": 20},
    {"when": {"contains": "break"}, "pieces": ["one", "two"],
     "fault": {"after": 1, "kind": "engine_error"}},
    {"when": {"contains": "fail"}, "pieces": [], "fault": {"after": 0, "kind": "engine_error"}},
    {"when": {"contains": "stall"}, "pieces": ["x"], "fault": {"after": 1, "kind": "stall"}},
    {"when": {"contains": "slow start"}, "pieces": ["late"], "delay_ms": 700},
    {"when": {"contains": "no thanks"}, "pieces": ["I cannot", " do that."], "refusal": True},
    {"pieces": ["Hello", " there", "."]},
]  # fmt: skip

KEEPALIVE = 0.2


@pytest.fixture(scope="module")
def server() -> Iterator[TestServer]:
    pricing = (
        "[models.pricing]\ninput_tokens = 1\noutput_tokens = 2\n"
        f"[server]\nkeepalive_seconds = {KEEPALIVE}\ngrace_seconds = 1\n"
    )
    with scripted_server(SCRIPT, toml=pricing) as server:
        yield server


def say(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def text_of(answer: wire.Answer, field: str = "content") -> str:
    deltas = [choice["delta"] for chunk in answer.chunks for choice in chunk["choices"]]
    return "".join(delta.get(field) or "" for delta in deltas)


@pytest.mark.parametrize("dialect", PATHS)
def test_unary(server: TestServer, dialect: str) -> None:
    answer = chat(server.port, dialect)
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    body = answer.json
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"]["content"] == "Hello there."
    assert body["choices"][0]["finish_reason"] == "stop"
    usage = body["usage"]
    assert usage["completion_tokens"] == 3
    assert usage["total_tokens"] == usage["prompt_tokens"] + 3


@pytest.mark.parametrize("dialect", PATHS)
def test_stream_and_unary_agree(server: TestServer, dialect: str) -> None:
    options = {"include_usage": True}
    stream = chat(server.port, dialect, stream=True, stream_options=options)
    unary = chat(server.port, dialect).json
    assert stream.headers["content-type"].startswith("text/event-stream")
    assert stream.headers["x-accel-buffering"] == "no"
    assert stream.payloads[-1] == "[DONE]" and stream.payloads.count("[DONE]") == 1
    assert text_of(stream) == unary["choices"][0]["message"]["content"]
    usages = [chunk["usage"] for chunk in stream.chunks if chunk.get("usage")]
    assert usages == [unary["usage"]]
    assert len({chunk["id"] for chunk in stream.chunks}) == 1


def test_deepinfra_costs(server: TestServer) -> None:
    usage = chat(server.port, "deepinfra").json["usage"]
    expected = (usage["prompt_tokens"] * 1 + usage["completion_tokens"] * 2) / 1e6
    assert usage["estimated_cost"] == pytest.approx(expected, rel=1e-12)


def test_several_choices(server: TestServer) -> None:
    answer = chat(server.port, n=3, stream=True, stream_options={"include_usage": True})
    firsts: list[int] = []
    for chunk in answer.chunks:
        for choice in chunk["choices"]:
            if choice["index"] not in firsts:
                firsts.append(choice["index"])
                assert choice["delta"]["role"] == "assistant"
    assert firsts == [0, 1, 2]
    one = chat(server.port).json["usage"]
    usage = answer.chunks[-1]["usage"]
    assert usage["prompt_tokens"] == one["prompt_tokens"]
    assert usage["completion_tokens"] == 3 * one["completion_tokens"]


def test_length_and_stop(server: TestServer) -> None:
    short = chat(server.port, max_tokens=2).json
    assert short["choices"][0]["finish_reason"] == "length"
    assert short["usage"]["completion_tokens"] == 2
    stopped = chat(server.port, stop=" the").json["choices"][0]
    assert (stopped["message"]["content"], stopped["finish_reason"]) == ("Hello", "stop")


def test_refusal(server: TestServer) -> None:
    message = chat(server.port, messages=say("no thanks")).json["choices"][0]["message"]
    assert message["refusal"] == "I cannot do that." and message["content"] is None
    shown = chat(server.port, "deepinfra", messages=say("no thanks")).json["choices"][0]["message"]
    assert shown["content"] == "I cannot do that."


@pytest.mark.parametrize("dialect", PATHS)
def test_error_before_the_first_event_is_a_status(server: TestServer, dialect: str) -> None:
    for stream in (False, True):
        answer = chat(server.port, dialect, messages=say("fail"), stream=stream)
        assert answer.status == 500
        assert answer.headers["content-type"] == "application/json"
        assert answer.json["error"]["type"] == "server_error"
        assert answer.headers["x-request-id"]


@pytest.mark.parametrize("dialect", PATHS)
def test_error_after_the_first_event_is_a_frame(server: TestServer, dialect: str) -> None:
    answer = chat(server.port, dialect, messages=say("break"), stream=True)
    assert answer.status == 200
    *chunks, error, done = answer.payloads
    assert done == "[DONE]"
    assert json.loads(error)["error"]["type"] == "server_error"
    assert not any(json.loads(c)["choices"][0].get("finish_reason") for c in chunks)
    unary = chat(server.port, dialect, messages=say("break"))
    assert unary.status == 500


def test_keepalive_comments_while_nothing_comes(server: TestServer) -> None:
    answer = chat(server.port, messages=say("slow start"), stream=True)
    assert answer.body.startswith(b": ")
    assert answer.body.count(b": keep-alive\n\n") >= 3
    assert text_of(answer) == "late"


def test_error_after_the_head_was_sent(server: TestServer) -> None:
    script = [{"pieces": ["x"], "delay_ms": 500, "fault": {"after": 0, "kind": "engine_error"}}]
    with scripted_server(script, toml="[server]\nkeepalive_seconds = 0.1\n") as slow:
        answer = chat(slow.port, stream=True)
    assert answer.status == 200
    assert json.loads(answer.payloads[0])["error"]
    assert answer.payloads[-1] == "[DONE]"


def test_chunks_leave_as_they_are_made(server: TestServer) -> None:
    answer = chat(server.port, messages=say("count"), stream=True)
    assert len(answer.reads) > 20
    assert answer.reads[-1][0] - answer.reads[0][0] > 0.5


def test_connection_is_kept_after_a_stream(server: TestServer) -> None:
    body = {"model": "m", "messages": say("hi"), "stream": True}
    with wire.connect(server.port) as sock:
        for _ in range(3):
            sock.sendall(wire.head_and_body("POST", PATHS["openai"], body))
            assert wire.read_answer(sock).status == 200


def test_http_1_0_is_not_chunked(server: TestServer) -> None:
    for stream in (False, True):
        body = {"model": "m", "messages": say("hi"), "stream": stream}
        answer = wire.request(server.port, "POST", PATHS["openai"], body, version="1.0")
        assert answer.status == 200
        assert "transfer-encoding" not in answer.headers
        assert b"there" in answer.body
        assert not stream or answer.body.endswith(b"data: [DONE]\n\n")


def test_client_that_leaves_ends_the_work(server: TestServer) -> None:
    body = {"model": "m", "messages": say("stall"), "stream": True}
    before = running(server)
    with wire.connect(server.port) as sock:
        sock.sendall(wire.head_and_body("POST", PATHS["openai"], body))
        assert sock.recv(65536)
        assert running(server) == before + 1
    wait_until(lambda: running(server) == before)


def running(server: TestServer) -> int:
    text = wire.request(server.port, "GET", "/metrics").body.decode()
    lines = [line for line in text.splitlines() if line.startswith("rejoinder_requests_running{")]
    return int(sum(float(line.rpartition(" ")[2]) for line in lines))


def wait_until(condition: Any, seconds: float = 3.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@pytest.mark.parametrize("asked", [False, True])
def test_prompts_are_in_the_log_only_where_asked_for(
    caplog: pytest.LogCaptureFixture, asked: bool
) -> None:
    toml = f"[server]\nlog_prompts = {str(asked).lower()}\n"
    with caplog.at_level("INFO", "rejoinder"), scripted_server(SCRIPT, toml=toml) as own:
        assert chat(own.port, messages=say("my secret")).status == 200
        wait_until(lambda: "chat/completions" in caplog.text)
    assert ("my secret" in caplog.text) is asked
