"""What an answer leaves behind in the server: nothing that only the collector of cycles frees.

The collector seldom runs in a server (`rejoinder.serving`), so a cycle in each answer keeps
thousands of ended answers, with their sockets' buffers, until it does.
"""

import asyncio
import gc
import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from rejoinder.config import parse
from rejoinder.testing import running_server
from tests.backends.upstream import SSE_HEAD, Reply, answer, chunk, failing, serving
from tests.web import wire

OURS = ("rejoinder.", "uvicorn.", "aiohttp.", "uvloop.")
TIMES = 5

CALLS = [
    chunk({"role": "assistant", "content": None}),
    chunk(
        {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "add", "arguments": '{"a'}}]}
    ),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": '":1}'}}]}),
    chunk(finish="tool_calls"),
    b"data: [DONE]\n\n",
]
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}

REPLIES: dict[str, Reply] = {
    "whole": Reply(answer("Hello", " there"), chunked=True),
    "calls": Reply(list(CALLS), chunked=True),
    "cut": Reply([chunk({"content": "Hel"})], end="reset"),
    "torn": Reply(
        [SSE_HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"50\r\ndata: {", 0.05],
        head=None,
        end="close",
    ),
    "early": Reply([], end="reset"),
    "headless": Reply([b""], head=None, end="close"),
    "refusing": failing(500, {"error": {"message": "no", "type": "server_error"}}),
    "slow": Reply([chunk({"content": "Hel"}), 0.3, chunk({"content": "lo"})], end="close"),
}


def ask(port: int, **fields: object) -> None:
    wire.request(port, "POST", wire.PATHS["openai"], body(**fields))


def body(**fields: object) -> dict[str, object]:
    return {"model": "p", "messages": [{"role": "user", "content": "hi"}], **fields}


def leave(port: int, **fields: object) -> None:
    """Goes away when the first bytes have come."""
    with wire.connect(port) as sock:
        sock.sendall(wire.head_and_body("POST", wire.PATHS["openai"], body(**fields)))
        sock.recv(1000)


def never_read(port: int, **fields: object) -> None:
    with wire.connect(port) as sock:
        sock.sendall(wire.head_and_body("POST", wire.PATHS["openai"], body(**fields)))


KINDS: dict[str, tuple[str, Callable[[int], None]]] = {
    "stream": ("whole", lambda port: ask(port, stream=True)),
    "unary": ("whole", lambda port: ask(port)),
    "scripted stream": ("whole", lambda port: ask(port, stream=True, model="m")),
    "scripted unary": ("whole", lambda port: ask(port, model="m", n=2, logprobs=True)),
    "stop strings": ("whole", lambda port: ask(port, stream=True, stop=["there"])),
    "calls": ("calls", lambda port: ask(port, stream=True, tools=[ADD])),
    "provider cut": ("cut", lambda port: ask(port, stream=True)),
    "provider cut, unary": ("cut", lambda port: ask(port)),
    "provider cut before a byte": ("early", lambda port: ask(port, stream=True)),
    "provider cut within a chunk": ("torn", lambda port: ask(port, stream=True)),
    "provider cut before its head": ("headless", lambda port: ask(port, stream=True)),
    "provider refuses": ("refusing", lambda port: ask(port, stream=True)),
    "client leaves a stream": ("slow", lambda port: leave(port, stream=True)),
    "client leaves at once": ("slow", lambda port: never_read(port, stream=True)),
    "client leaves a unary answer": ("slow", lambda port: never_read(port)),
    "bad request": ("whole", lambda port: ask(port, temperature=9)),
    "old client": (
        "whole",
        lambda port: (
            wire.request(port, "POST", wire.PATHS["openai"], body(stream=True), version="1.0"),
            None,
        )[1],
    ),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_no_cycle_is_left(tmp_path: Path, kind: str) -> None:
    (tmp_path / "script.jsonl").write_text(json.dumps({"pieces": ["Hi", " you"]}) + "\n")
    reply, act = KINDS[kind]
    async with serving(REPLIES[reply]) as upstream:
        config = parse(
            f"""
            [[models]]
            id = "p"
            backend = "remote"
            base_url = "{upstream.base_url}"
            max_retries = 0
            [[models]]
            id = "m"
            backend = "scripted"
            script = "{tmp_path}/script.jsonl"
            """
        )
        running = running_server(config)
        server = await asyncio.to_thread(running.__enter__)
        try:
            await asyncio.to_thread(act, server.port)
            await _quiet(server.port)
            gc.collect()
            gc.disable()
            for _ in range(TIMES):
                await asyncio.to_thread(act, server.port)
            await _quiet(server.port)
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            found = Counter(
                f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.garbage
            )
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
            await asyncio.to_thread(running.__exit__, None, None, None)
    left = {name: number for name, number in found.items() if name.startswith(OURS)}
    assert not any(number >= TIMES for number in left.values()), found.most_common(30)


async def _quiet(port: int) -> None:
    """Returns when nothing runs in the server any more."""
    async with asyncio.timeout(10):
        while True:
            answer = await asyncio.to_thread(wire.request, port, "GET", "/metrics")
            lines = [x for x in answer.body.decode().splitlines() if "requests_running{" in x]
            with suppress(ValueError):
                if not any(float(line.rpartition(" ")[2]) for line in lines):
                    break
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.1)
