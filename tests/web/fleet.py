"""A model over replicas, served, for tests of what a client sees of them."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from rejoinder.config import Config, parse
from rejoinder.testing import running_server
from tests.engines.fake_vllm import FakeVllm, ServerFault
from tests.engines.toy_model import END, VOCABULARY, Pick
from tests.web import wire

SPECIAL = ("<unk>", "<s>", "</s>")
TEMPLATE = "<s>{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "


def byte_level(words: Iterable[str]) -> tokenizers.Tokenizer:
    """The special tokens, one token a byte, and these words, which no text becomes by itself."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    texts = dict.fromkeys([*SPECIAL, *alphabet, *words])
    vocabulary = {text: number for number, text in enumerate(texts)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token=SPECIAL[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def fleet_config(
    tokenizer: tokenizers.Tokenizer, folder: Path, replicas: Iterable[str], *, more: str = ""
) -> Config:
    """One model "m" over vLLM replicas, with its tokenizer in this folder. `more` is TOML: keys
    of the model, then other tables."""
    tokenizer.save(str(folder / "tokenizer.json"))
    described = {"chat_template": TEMPLATE, "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    return parse(
        f"""
        [[models]]
        id = "m"
        backend = "vllm"
        replicas = {json.dumps(list(replicas))}
        tokenizer = "{folder}"
        tool_format = "hermes"
        reasoning_format = "qwen3"
        {more}
        """
    )


# The words fill the toy model's vocabulary.
TOKENIZER = byte_level(f"Ġw{number}" for number in range(256 + len(SPECIAL), VOCABULARY))


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
    async with AsyncExitStack() as all_of_them:
        replicas, closing = [], {}
        for _ in range(2):
            stack = await all_of_them.enter_async_context(AsyncExitStack())
            replica = Replica(delay=delay, scale_out=scale_out)
            await stack.enter_async_context(replica.serve())
            replicas.append(replica)
            closing[replica.url] = stack
        config = fleet_config(TOKENIZER, folder, closing, more=more)
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
