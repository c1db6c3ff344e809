"""What does a token cost this process, from the socket to the step?

CPU time of the client for each token and each sequence, from a server in a process of its own
that only writes bytes encoded beforehand: the vLLM client alone, and the same behind a fleet.

    python benchmarks/fleet_stream.py [--streams 32] [--tokens 64] [--rounds 20]
"""

import argparse
import asyncio
import json
import multiprocessing
import statistics
import time
from contextlib import suppress
from multiprocessing.connection import Connection

from rejoinder.engines.fleet import Fleet
from rejoinder.engines.remote import RemoteEngine
from rejoinder.engines.vllm import VLLM
from rejoinder.types import Counts, Engine, Prompt, SamplingParams

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(text: str) -> bytes:
    return b"%x\r\n%b\r\n" % (len(text), text.encode())


def event(token_id: int, finish: str | None, *, logprobs: bool) -> str:
    entry = {"token_id": token_id, "logprob": -0.5, "rank": 1}
    choice = {
        "index": 0,
        "finish_reason": finish,
        "stop_reason": None,
        "token_ids": [token_id],
        "routed_experts": None,
        "sampling_mask": None,
        "weight_versions": None,
        "logprobs": {"content": [{**entry, "top_logprobs": [entry]}]} if logprobs else None,
    }
    whole = {
        "request_id": "generate-tokens-1",
        "usage": None,
        "output_mode": "tokens",
        "choices": [choice],
    }
    return f"data: {json.dumps(whole)}\n\n"


def serve(ready: Connection, num_tokens: int) -> None:
    """Answers every stream with the same events, one write each."""
    events = [chunk(event(i, None, logprobs=False)) for i in range(5, num_tokens + 4)]
    events.append(chunk(event(9, "length", logprobs=False)))
    counted = {"prompt_tokens": 8, "completion_tokens": num_tokens, "total_tokens": num_tokens + 8}
    last = {"request_id": "r", "choices": [], "usage": counted}
    events.append(chunk(f"data: {json.dumps(last)}\n\n") + chunk("data: [DONE]\n\n"))
    events[-1] += b"0\r\n\r\n"
    models = json.dumps({"data": [{"id": "m", "root": "m", "max_model_len": 4096}]}).encode()
    unary = json.dumps({"choices": [{"logprobs": {"content": [{"rank": 1}]}}]}).encode()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            await answer(reader, writer)
        writer.close()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = [int(h[15:]) for h in head.split(b"\r\n") if h[:15] == b"Content-Length:"]
            body = await reader.readexactly(length[0]) if length else b""
            if b'"stream":true' in body:
                writer.write(HEAD % b"text/event-stream")
                for one in events:
                    writer.write(one)
                    await asyncio.sleep(0)
            else:
                content = unary if body else models
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(content))
                writer.write(content)
            await writer.drain()

    async def main() -> None:
        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        ready.send(server.sockets[0].getsockname()[1])
        await asyncio.sleep(600)

    asyncio.run(main())


async def measure(engine: Engine, streams: int, num_tokens: int, rounds: int) -> list[float]:
    """CPU seconds of each round of sequences that run at once."""
    params = SamplingParams(max_tokens=num_tokens)
    prompt = Prompt(token_ids=tuple(range(8)))

    async def one() -> int:
        got = 0
        async for step in engine.generate(prompt, params, Counts()):
            got += len(step.token_ids)
        return got

    times = []
    for number in range(rounds + 1):
        began = time.process_time()
        got = await asyncio.gather(*(one() for _ in range(streams)))
        assert got == [num_tokens] * streams
        if number:
            times.append(time.process_time() - began)
    return times


async def compare(port: int, streams: int, num_tokens: int, rounds: int) -> None:
    url = f"http://127.0.0.1:{port}"
    for label, engine in (
        ("vllm client", RemoteEngine(VLLM, url)),
        ("fleet of two", Fleet({"a": RemoteEngine(VLLM, url), "b": RemoteEngine(VLLM, url)})),
    ):
        each = statistics.median(await measure(engine, streams, num_tokens, rounds))
        short = statistics.median(await measure(engine, streams, num_tokens, rounds))
        each = min(each, short)
        print(
            f"{label:13} {each / streams / num_tokens * 1e6:6.1f} µs a token, "
            f"{each / streams * 1e3:5.2f} ms a sequence of {num_tokens}"
        )
        await engine.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(theirs, asked.tokens), daemon=True)
    server.start()
    try:
        asyncio.run(compare(ours.recv(), asked.streams, asked.tokens, asked.rounds))
    finally:
        server.terminate()
        server.join()


if __name__ == "__main__":
    main()
