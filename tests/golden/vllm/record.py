"""Records exchanges with a real vLLM server for test_vllm.py: `python record.py URL`.

Each file has the request, the raw events, and what the client read from them at the time. Look at
the difference before you keep new ones: they are the truth that the client is tested against.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from rejoinder.engines.vllm_wire import CompletionsWire, TokensWire
from rejoinder.engines.wire import DataLines, Refused
from rejoinder.types import Grammar, Prompt, SamplingParams

HERE = Path(__file__).parent
CHAT = (1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411)
GREEDY = SamplingParams(max_tokens=12, temperature=0.0)

CASES: dict[str, SamplingParams] = {
    "greedy": GREEDY,
    "logprobs": msgspec.structs.replace(GREEDY, num_top_logprobs=3),
    "sampled_logprobs": SamplingParams(max_tokens=12, temperature=2.0, seed=5, num_top_logprobs=2),
    "no_alternatives": msgspec.structs.replace(GREEDY, num_top_logprobs=0),
    "end": msgspec.structs.replace(
        GREEDY, max_tokens=60, grammar=Grammar("regex", "[A-Z][a-z]{2,5} [0-9]{3}")
    ),
    "schema": msgspec.structs.replace(
        GREEDY,
        max_tokens=80,
        grammar=Grammar(
            "json_schema",
            '{"type":"object","properties":{"city":{"type":"string","maxLength":12}},'
            '"required":["city"],"additionalProperties":false}',
        ),
    ),
    "lark": msgspec.structs.replace(
        GREEDY, max_tokens=40, grammar=Grammar("lark", 'start: "yes" | "no " NUM\nNUM: /[0-9]{2}/')
    ),
}


async def events_of(session: aiohttp.ClientSession, url: str, body: bytes) -> list[str]:
    lines = DataLines()
    payloads: list[bytes] = []
    headers = {"Content-Type": "application/json"}
    async with session.post(url, data=body, headers=headers) as response:
        assert response.status == 200, await response.text()
        async for part in response.content.iter_any():
            payloads += lines.feed(part)
    assert payloads[-1] == b"[DONE]"
    return [payload.decode() for payload in payloads[:-1]]


async def record(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        models = await (await session.get(f"{url}/v1/models")).json()
        model = models["data"][0]["id"]
        version = (await (await session.get(f"{url}/version")).json())["version"]
        for wire, label in ((TokensWire(), "tokens"), (CompletionsWire(), "completions")):
            free: tuple[int, ...] = ()
            for name, params in CASES.items():
                found = await one(session, url + wire.path, wire, model, params)
                write(f"{label}_{name}", wire.path, version, params, found)
                free = free or tuple(found["token_ids"])
            stop = msgspec.structs.replace(GREEDY, stop_token_ids=(free[5],))
            found = await one(session, url + wire.path, wire, model, stop)
            write(f"{label}_stop_token", wire.path, version, stop, found)
            long = Prompt(token_ids=tuple(range(300, 600)), cache_salt="golden-" + label)
            for name in ("cold", "warm"):
                found = await one(session, url + wire.path, wire, model, GREEDY, long)
                write(f"{label}_cache_{name}", wire.path, version, GREEDY, found)


async def one(
    session: aiohttp.ClientSession,
    url: str,
    wire: TokensWire | CompletionsWire,
    model: str,
    params: SamplingParams,
    prompt: Prompt = Prompt(token_ids=CHAT),  # noqa: B008
) -> dict[str, Any]:
    body = wire.encode("golden", model, prompt, params)
    events = await events_of(session, url, body)
    read = wire.decoder(params)
    try:
        deltas = [read(event.encode()) for event in events]
    except Refused as refused:
        raise SystemExit(f"{url}: {refused}\n{body.decode()}") from None
    logprobs = [entry for delta in deltas for entry in delta.logprobs or ()]
    return {
        "request": json.loads(body),
        "events": events,
        "token_ids": [token_id for delta in deltas for token_id in delta.token_ids],
        "completion_tokens": sum(delta.num_tokens for delta in deltas),
        "finish_reason": next(d.finish_reason for d in deltas if d.finish_reason),
        "cached_tokens": [d.cached_tokens for d in deltas if d.cached_tokens is not None],
        "logprobs": [[p.token_id, p.logprob, p.rank, p.top] for p in logprobs],
    }


def write(
    name: str, path: str, version: str, params: SamplingParams, found: dict[str, Any]
) -> None:
    kept = {"path": path, "server": f"vllm {version}", "num_top_logprobs": params.num_top_logprobs}
    text = json.dumps({**kept, **found}, indent=1)
    (HERE / f"{name}.json").write_text(text + "\n")
    print(f"{name:32} {found['finish_reason']:7} {len(found['token_ids']):3} tokens", flush=True)


if __name__ == "__main__":
    asyncio.run(record(sys.argv[1].rstrip("/")))
