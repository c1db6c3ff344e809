"""A model over two vLLM replicas, served: what a client sees when one of them is lost."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.engines.fake_vllm import ServerFault
from tests.web import wire
from tests.web.fleet import seen, served


def text_of(answer: wire.Answer) -> str:
    choices = [c for chunk in answer.chunks for c in chunk.get("choices", ())]
    return "".join(c["delta"].get("content") or "" for c in choices)


TEXTS = {
    "text": "",
    "json": '{"name": "Zoë", "list": [1, 2, 3], "more": {"a": "🙂"}}',
    "thought": "<think>\nhm, so\n</think>\n\nIt is so. 🙂",
}


@pytest.mark.parametrize("scale_out", [True, False])
async def test_a_lost_replica_is_not_seen(tmp_path: Path, scale_out: bool) -> None:
    async with served(tmp_path, scale_out=scale_out) as model:
        for text in TEXTS.values():
            model.says(text)
            whole = await model.stream()
            if text:
                assert text_of(whole) == text.rpartition("</think>")[2].strip()
            expected, before = seen(whole), await model.moves()
            cuts = (1, 2, 7, 13, 20)
            for cut in cuts:
                model.fails(ServerFault("die", after=cut))
                assert seen(await model.stream()) == expected, cut
            assert await model.moves() >= before + len(cuts)


async def test_a_replica_that_is_gone_for_good(tmp_path: Path) -> None:
    async with served(tmp_path, delay=0.02) as model:
        model.says(TEXTS["json"])
        expected = seen(await model.stream())
        broken = asyncio.ensure_future(model.stream())
        async with asyncio.timeout(10):
            while not (busy := [r for r in model.replicas if r.running]):
                await asyncio.sleep(0.005)
        await asyncio.sleep(0.2)
        await model.closing[busy[0].url].aclose()
        assert seen(await broken) == expected
        assert await model.moves() == 1
        for _ in range(3):
            assert seen(await model.stream()) == expected, "the other one serves"
        async with asyncio.timeout(10):
            while f'replica="{busy[0].url}",state="serving"' in await model.metrics():
                await asyncio.sleep(0.1)


CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        },
    },
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
SCHEMA |= {"additionalProperties": False}
HELD: dict[str, tuple[str, dict[str, Any]]] = {
    "call": (CALL, {"tools": [ADD]}),
    "schema": (
        '{"a": 12345678}',
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "strict": True, "schema": SCHEMA},
            }
        },
    ),
}


@pytest.mark.parametrize("kind", HELD)
async def test_what_is_held_to_a_grammar_is_written_again_elsewhere(
    tmp_path: Path, kind: str
) -> None:
    """vLLM cannot begin in the middle of a grammar: another replica begins the answer again, and
    the client gets what it has not got yet. Where that comes out otherwise it gets an error."""
    text, fields = HELD[kind]
    async with served(tmp_path) as model:
        model.says(text)
        whole = without_call_ids(seen(await model.stream(**fields)))
        assert '"error"' not in json.dumps(whole)
        for cut in (0, 1, 5, len(text) - 1):
            model.one_fails(ServerFault("die", after=cut))
            assert without_call_ids(seen(await model.stream(**fields))) == whole, cut


@pytest.mark.parametrize("kind", HELD)
async def test_an_answer_that_comes_out_otherwise_is_an_error(tmp_path: Path, kind: str) -> None:
    text, fields = HELD[kind]
    async with served(tmp_path) as model:
        model.says_in_turn(text, "x" + text)
        model.fails(ServerFault("die", after=5))
        broken = await model.stream(**fields)
        assert "grammar" in broken.body.decode()
        if broken.status == 200:
            assert "error" in json.loads(broken.payloads[-2]) and broken.payloads[-1] == "[DONE]"
            finishes = [c["finish_reason"] for x in broken.chunks for c in x.get("choices", ())]
            assert not any(finishes)
        else:
            assert broken.status == 502


def without_call_ids(value: Any) -> Any:
    match value:
        case dict():
            drop = "id" if "function" in value else ""
            return {k: without_call_ids(v) for k, v in value.items() if k != drop}
        case list() | tuple():
            return [without_call_ids(one) for one in value]
        case _:
            return value


async def test_metrics_name_the_replicas(tmp_path: Path) -> None:
    async with served(tmp_path) as model:
        metrics = await model.metrics()
        for replica in model.replicas:
            line = (
                f'rejoinder_replica_state{{model="m",replica="{replica.url}",state="serving"}} 1.0'
            )
            assert line in metrics


async def test_no_replica_at_all(tmp_path: Path) -> None:
    async with served(tmp_path) as model:
        for stack in model.closing.values():
            await stack.aclose()
        answer = await model.stream()
        assert answer.status in (502, 503) and "error" in answer.json
        assert model.replicas[0].url not in answer.body.decode(), "addresses are ours"
