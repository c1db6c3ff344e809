"""A model over two vLLM replicas, served: what a client sees when one of them is lost."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from rejoinder.config import parse
from rejoinder.testing import running_server
from tests.engines.fake_vllm import FakeVllm, ServerFault
from tests.engines.toy_model import END, VOCABULARY, Pick
from tests.web import wire

SPECIAL = ("<unk>", "<s>", "</s>")
TEMPLATE = "<s>{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "


def make_tokenizer() -> tokenizers.Tokenizer:
    """One token a byte, and words to fill the toy model's vocabulary."""
    texts = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    texts += [f"Ġw{number}" for number in range(len(texts), VOCABULARY)]
    vocabulary = {text: number for number, text in enumerate(texts)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token=SPECIAL[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


TOKENIZER = make_tokenizer()


def ids_of(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False).ids)


@dataclass
class Replica(FakeVllm):
    """vLLM as the fake has it, saying `says` where that is set, or what is `next` of all replicas;
    it goes on with what it is given, and holds nothing to a grammar by itself."""

    says: list[int] = field(default_factory=list)
    next: list[list[int]] = field(default_factory=list)

    async def _picks(self, ids: list[int], sampling: dict[str, Any]) -> AsyncGenerator[Pick, None]:
        if self.next:
            self.says = self.next.pop(0)
        if not self.says:
            async for pick in super()._picks(ids, sampling):
                yield pick
            return
        done = next(
            k for k in range(len(self.says), -1, -1) if ids[len(ids) - k :] == self.says[:k]
        )
        for token_id in [*self.says[done:], END]:
            yield Pick(token_id, -0.5, 1, ((token_id, -0.5),))


@dataclass
class Served:
    port: int
    replicas: tuple[Replica, Replica]
    closing: dict[str, AsyncExitStack]

    def says(self, text: str) -> None:
        for replica in self.replicas:
            replica.says = ids_of(text)

    def says_in_turn(self, *texts: str) -> None:
        """The next requests are answered so, whichever replica gets them."""
        said = [ids_of(text) for text in texts]
        for replica in self.replicas:
            replica.next = said

    def fails(self, *faults: ServerFault) -> None:
        """The next requests of both meet these faults, whichever gets them."""
        for replica in self.replicas:
            replica.faults = list(faults)

    def one_fails(self, fault: ServerFault) -> None:
        """The next request meets this fault, and those after it none."""
        faults = [fault]
        for replica in self.replicas:
            replica.faults = faults

    async def stream(self, **fields: Any) -> wire.Answer:
        asked = {
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0,
            "max_tokens": 120,
            **fields,
        }
        return await asyncio.to_thread(wire.chat, self.port, **asked)

    async def metrics(self) -> str:
        answer = await asyncio.to_thread(wire.request, self.port, "GET", "/metrics")
        return answer.body.decode()

    async def moves(self) -> int:
        lines = (await self.metrics()).splitlines()
        found = [line for line in lines if line.startswith('rejoinder_moves{model="m"}')]
        return int(float(found[0].rpartition(" ")[2]))


@asynccontextmanager
async def served(
    folder: Path, *, delay: float = 0.0, scale_out: bool = True, more: str = ""
) -> AsyncIterator[Served]:
    TOKENIZER.save(str(folder / "tokenizer.json"))
    described = {"chat_template": TEMPLATE, "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    async with AsyncExitStack() as all_of_them:
        replicas, closing = [], {}
        for _ in range(2):
            stack = await all_of_them.enter_async_context(AsyncExitStack())
            replica = Replica(delay=delay, scale_out=scale_out)
            await stack.enter_async_context(replica.serve())
            replicas.append(replica)
            closing[replica.url] = stack
        config = parse(
            f"""
            [[models]]
            id = "m"
            backend = "vllm"
            replicas = ["{replicas[0].url}", "{replicas[1].url}"]
            tokenizer = "{folder}"
            tool_format = "hermes"
            reasoning_format = "qwen3"
            {more}
            """
        )
        running = running_server(config)
        server = await asyncio.to_thread(running.__enter__)
        try:
            yield Served(server.port, (replicas[0], replicas[1]), closing)
        finally:
            await asyncio.to_thread(running.__exit__, None, None, None)


def seen(answer: wire.Answer) -> list[Any]:
    """All that the client got, apart from what is new each time: the id, the time, how much was
    cached, and which tokens came in one read and so in one chunk."""
    assert answer.status == 200, answer.body
    assert len({(chunk["id"], chunk["created"]) for chunk in answer.chunks}) == 1
    folded: list[Any] = []
    for chunk in answer.chunks:
        chunk |= {"id": "", "created": 0}
        if chunk.get("usage"):
            chunk["usage"]["prompt_tokens_details"]["cached_tokens"] = 0
        piece = piece_of(chunk)
        if piece and folded and folded[-1][:-1] == piece[:-1]:
            folded[-1] = (*piece[:-1], folded[-1][-1] + piece[-1])
        else:
            folded.append(piece or ("chunk", chunk))
    return [*folded, answer.payloads[-1]]


def piece_of(chunk: Any) -> tuple[Any, ...] | None:
    """What a chunk that has nothing but some text adds to; the text is last."""
    match chunk.get("choices"):
        case [{"delta": {"content": str(text), **rest}, "finish_reason": None}] if not rest:
            return ("content", text)
        case [
            {
                "delta": {
                    "tool_calls": [
                        {"index": index, "function": {"arguments": str(text), **more}, **rest}
                    ]
                }
            }
        ] if not (rest or more):
            return ("arguments", index, text)
        case _:
            return None


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
