"""A replica is killed at every token of a hundred answers: what the client gets is byte for byte
what it gets without.

The whole service with two simulated replicas behind a real socket. The replicas write a token a
step and cannot take over in the middle of a grammar, as vLLM cannot. Only the time and the id of
the completion are new each time; ids of calls are counted.
"""

import asyncio
import itertools
import json
import random
import re
import socket
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rejoinder import building
from rejoinder.errors import EngineFailed
from rejoinder.testing import running_server
from rejoinder.types import Counts, Prompt, SamplingParams, Step, TokenIdLogprob
from tests.web import wire
from tests.web.fleet import byte_level, fleet_config

NUM_ANSWERS = 100
WORDS = [
    "Zoë",
    "river",
    "🙂",
    "naïve",
    " <tool",
    "</",
    "stone\n",
    "{}",
    '"',
    "\\u00e9",
    "日本語",
    "…",
]


@dataclass(frozen=True)
class Case:
    """One answer: what the model writes, cut into tokens anywhere, and how it was asked for."""

    pieces: tuple[bytes, ...]
    fields: dict[str, Any] = field(default_factory=dict)
    dialect: str = "openai"


ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
            "required": ["a"],
        },
    },
}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "list": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "list"],
    "additionalProperties": False,
}


def case(seed: int) -> Case:
    chance = random.Random(seed)
    kind = ("text", "json", "calls")[seed % 3]
    fields: dict[str, Any] = {}
    if kind == "text":
        text = "".join(chance.choice(WORDS) + " " for _ in range(chance.randint(4, 12))).strip()
        if chance.random() < 0.4:
            text = f"<think>\n{chance.choice(WORDS)}, so\n</think>\n\n{text}"
        if chance.random() < 0.3:
            fields = {"logprobs": True, "top_logprobs": 2}
        if chance.random() < 0.3:
            fields["stop"] = [chance.choice(WORDS)]
        if chance.random() < 0.3:
            fields["presence_penalty"] = 0.5
    elif kind == "json":
        said = {
            "name": "".join(chance.choices(WORDS, k=3)),
            "list": [str(chance.randint(0, 999)), "é"],
        }
        text = json.dumps(said, ensure_ascii=chance.random() < 0.5)
        shape = {"name": "x", "strict": True, "schema": SCHEMA}
        fields = {"response_format": {"type": "json_schema", "json_schema": shape}}
    else:
        calls = [
            {"name": "add", "arguments": {"a": chance.randint(0, 99), "b": chance.choice(WORDS)}}
            for _ in range(chance.randint(2, 3))
        ]
        text = "".join(
            f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>\n" for call in calls
        ).strip()
        fields = {"tools": [ADD]}
        if chance.random() < 0.5:
            fields["tool_choice"] = "required"
    if chance.random() < 0.7:
        fields["stream_options"] = {"include_usage": True}
    return Case(cut(text.encode(), chance), fields, chance.choice(["openai", "deepinfra"]))


def cut(text: bytes, chance: random.Random) -> tuple[bytes, ...]:
    """Tokens of a few bytes, which also end within a character or a marker."""
    pieces = []
    while text:
        size = chance.randint(1, 9)
        pieces.append(text[:size])
        text = text[size:]
    return tuple(pieces)


CASES = [case(seed) for seed in range(NUM_ANSWERS)]


class Spelling:
    """A vocabulary of all bytes and all pieces, which the byte level spells in characters."""

    def __init__(self) -> None:
        plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
        spelled = {byte: chr(byte) for byte in plain}
        others = (byte for byte in range(256) if byte not in spelled)
        spelled |= {byte: chr(256 + number) for number, byte in enumerate(others)}
        pieces = sorted({piece for one in CASES for piece in one.pieces})
        words = ["".join(spelled[byte] for byte in piece) for piece in pieces]
        self.tokenizer = byte_level(words)
        vocabulary = self.tokenizer.get_vocab()
        self._ids = {piece: vocabulary[word] for piece, word in zip(pieces, words, strict=True)}
        self.end = vocabulary["</s>"]

    def ids(self, pieces: tuple[bytes, ...]) -> tuple[int, ...]:
        return tuple(self._ids[piece] for piece in pieces)


SPELLING = Spelling()


@dataclass
class World:
    """What all replicas write now, and after how many tokens the next one is killed."""

    says: tuple[int, ...] = ()
    dies_after: int | None = None
    num_begun: int = 0


WORLD = World()


class Simulated:
    """A replica: it writes what the world says, and goes on after what it is given of it."""

    context_length = 4096
    fingerprint = "fp_simulated"

    def __init__(self, kind: Any, url: str, **_: Any) -> None:
        self.url = url

    async def healthy(self) -> bool:
        return True

    async def close(self) -> None:
        pass

    async def generate(
        self, prompt: Prompt, params: SamplingParams, counts: Counts
    ) -> AsyncGenerator[Step, None]:
        WORLD.num_begun += 1
        dies_after, WORLD.dies_after = WORLD.dies_after, None
        ids, says = prompt.token_ids, WORLD.says
        done = next(k for k in range(len(says), -1, -1) if ids[len(ids) - k :] == says[:k])
        if params.grammar is not None:
            assert done == 0, "a grammar was begun in its middle"
        counts.prompt_tokens = len(ids)
        for number, token_id in enumerate((*says[done:], SPELLING.end)):
            await asyncio.sleep(0)
            if number == dies_after:
                raise EngineFailed("killed")
            counts.completion_tokens += 1
            if token_id == SPELLING.end:
                yield Step((), None if params.num_top_logprobs is None else (), "stop")
                return
            logprobs = None
            if params.num_top_logprobs is not None:
                score = -1 / (1 + done + number)
                top = ((token_id, score), (5, score - 1))[: params.num_top_logprobs]
                logprobs = (TokenIdLogprob(token_id, score, 1, top),)
            yield Step((token_id,), logprobs)
        raise AssertionError("an answer without an end")


NEW_EACH_TIME = re.compile(rb'"id":"chatcmpl-[0-9a-f]+"|"created":[0-9]+')


class Client:
    """Asks on one connection and gives back the body's bytes."""

    def __init__(self, port: int) -> None:
        self._socket = wire.connect(port)

    def ask(self, one: Case) -> bytes:
        body = {
            "model": "m",
            "messages": [{"role": "user", "content": "hi"}],
            "stream": True,
            "max_tokens": 200,
            "seed": 7,
            **one.fields,
        }
        self._socket.sendall(wire.head_and_body("POST", wire.PATHS[one.dialect], body))
        answer = wire.read_answer(self._socket)
        assert answer.status == 200, answer.body
        return NEW_EACH_TIME.sub(b"", answer.body)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setattr("rejoinder.engines.remote.RemoteEngine", Simulated)
    monkeypatch.setattr(building, "new_call_id", lambda: f"call_{next(CALL_IDS)}")
    config = fleet_config(
        SPELLING.tokenizer,
        tmp_path,
        ("http://one", "http://two"),
        more="""
        [server]
        extra_parameters = "accept"
        openai_reasoning = "reasoning_content"
        """,
    )
    with running_server(config) as server:
        client = Client(server.port)
        yield client
        client.close()


CALL_IDS = itertools.count()


def ask(client: Client, one: Case, dies_after: int | None) -> bytes:
    global CALL_IDS
    CALL_IDS = itertools.count()
    WORLD.says = SPELLING.ids(one.pieces)
    WORLD.dies_after, WORLD.num_begun = dies_after, 0
    return client.ask(one)


def test_killed_at_every_token_of_a_hundred_answers(client: Client) -> None:
    num_killed = 0
    for number, one in enumerate(CASES):
        whole = ask(client, one, None)
        assert b"error" not in whole and whole.endswith(b"data: [DONE]\n\n"), whole
        assert WORLD.num_begun == 1
        for after in range(len(one.pieces) + 1):
            got = ask(client, one, after)
            if WORLD.num_begun == 1:  # a stop string had ended it before
                assert "stop" in one.fields
                continue
            num_killed += 1
            assert got == whole, (number, after)
    assert num_killed > 10 * NUM_ANSWERS
