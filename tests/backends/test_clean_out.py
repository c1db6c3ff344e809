"""Whatever a provider sends, what our clients get keeps every rule of ours, or is an honest error.

Good answers, broken as real servers break them, go through a real server over real sockets, in
both dialects, streamed and not; every rule about one exchange judges what came out.
"""

import http.client
import json
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from rejoinder.check.exchange import DialectName, Exchange, Request, Response, as_object
from rejoinder.check.judge import judge
from rejoinder.check.live import SAMPLED
from rejoinder.check.pairs import calls, texts
from rejoinder.check.rule import Evidence
from rejoinder.check.rules import RULES
from rejoinder.config import Config, PricingConfig, RemoteConfig, StoreConfig
from rejoinder.errors import INTERNAL_MESSAGE
from rejoinder.testing import running_server
from tests.backends.oddities import (
    ODDITIES,
    SPELLINGS,
    Body,
    Payloads,
    attempt,
    good_answer,
    spelled,
)

PATHS: dict[DialectName, str] = {"O": "/v1", "D": "/v1/openai"}

MODELS = ("plain", "read")
"""Passed on as it is, and searched for calls and thoughts in the text."""

JUDGED = (*SAMPLED, *(rule for rule in RULES if rule.id in ("R87", "R115", "R181")))
"""Those of one exchange, and those of many that one suffices for."""

NOT_OURS = {
    "R113 warning": "what was thought late cannot be told early",
    "R138 warning": "ids are kept in their form, for clients give them back",
    "R139 error": "the model calls what it was not given, which live mode takes for a warning",
    "R145 warning": "the model writes the arguments",
    "R146 warning": "the good calls before a bad one are kept (4.12)",
    "R167 warning": "the provider counts its tokens",
    "R186 error": "the same",
}
"""What is passed on as it is, by rule and severity."""


# ---------------------------------------------------------------- the provider and the client


class Provider:
    """A provider of raw sockets, a thread a connection, that gives `body` to everybody."""

    def __init__(self) -> None:
        self.body = Body("text/event-stream", b"")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as reader:
            while True:
                length = 0
                while (line := reader.readline()) not in (b"\r\n", b""):
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.partition(b":")[2])
                if not line:
                    return
                reader.read(length)
                head = (
                    f"HTTP/1.1 200 OK\r\nContent-Type: {self.body.content_type}\r\n"
                    f"Content-Length: {len(self.body.data)}\r\n\r\n"
                )
                connection.sendall(head.encode() + self.body.data)


@dataclass
class Gateway:
    """Our server in front of it, asked over one connection."""

    provider: Provider
    client: http.client.HTTPConnection

    def ask(self, asked: dict[str, Any], dialect: DialectName, body: Body) -> Exchange:
        self.provider.body = body
        path = PATHS[dialect] + "/chat/completions"
        request = json.dumps(asked).encode()
        self.client.request("POST", path, request, {"Content-Type": "application/json"})
        response = self.client.getresponse()
        return Exchange(
            probe=f"{dialect} {'streamed' if asked.get('stream') else 'unary'}",
            dialect=dialect,
            request=Request(url=path, body=request),
            response=Response(
                status=response.status,
                headers=tuple((k.lower(), v) for k, v in response.getheaders()),
                body=response.read(),
            ),
        )


@contextmanager
def running_gateway() -> Iterator[Gateway]:
    provider = Provider()
    common: dict[str, Any] = {
        "base_url": f"http://127.0.0.1:{provider.port}/v1",
        "max_retries": 0,
        "pricing": PricingConfig(input_tokens=1.0, output_tokens=2.0, cache_read_tokens=0.5),
    }
    plain = RemoteConfig(id="plain", **common)
    read = RemoteConfig(id="read", reasoning_format="qwen3", tool_format="hermes", **common)
    config = Config(models=(plain, read), store=StoreConfig(url="sqlite://"))
    with running_server(config) as server:
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        yield Gateway(provider, client)
        client.close()
    provider.close()


# ---------------------------------------------------------------- one case


@dataclass(frozen=True)
class Case:
    """One broken answer; everything of it follows from the seed."""

    seed: int
    oddities: tuple[str, ...]
    spelling: str
    model: str

    def made(self) -> tuple[dict[str, Any], Payloads, Body]:
        """What is asked, the good payloads, and what is sent instead."""
        asked, good = good_answer(random.Random(self.seed))
        broken = json.loads(json.dumps(good))
        for name in self.oddities:
            attempt(ODDITIES[name], random.Random(f"{self.seed} {name}"), broken)
        body = spelled(random.Random(self.seed), broken, self.spelling)
        return {**asked, "model": self.model}, good, body

    @property
    def costs(self) -> set[str]:
        cut = {"all"} if self.spelling in ("no done", "unfinished") else set()
        return {ODDITIES[name].costs for name in self.oddities} | cut


def random_case(seed: int, name: str | None = None) -> Case:
    rng = random.Random(f"case {seed}")
    names = [name] if name else []
    names += rng.choices([*ODDITIES], k=rng.choice([0, 0, 1, 2] if name else [0, 1, 1, 2, 3]))
    return Case(seed, tuple(names), rng.choice(SPELLINGS), rng.choice(MODELS))


def requests(case: Case, asked: dict[str, Any], dialect: DialectName) -> list[dict[str, Any]]:
    """The same question, unary and streamed."""
    rng = random.Random(f"{case.seed} {dialect}")
    asked = dict(asked)
    if dialect == "D" and "functions" in asked:
        functions = asked.pop("functions")
        asked["tools"] = [{"type": "function", "function": one} for one in functions]
    options = {"include_usage": rng.random() < 0.8}
    if dialect == "D" and rng.random() < 0.2:
        options["continuous_usage_stats"] = True
    return [asked, {**asked, "stream": True, "stream_options": options}]


def faults_of(gateway: Gateway, case: Case) -> list[str]:
    asked, good, body = case.made()
    wanted = said(good, asked, case)
    faults: list[str] = []
    dialects: tuple[DialectName, ...] = ("O", "D")
    for dialect in dialects:
        pair = [gateway.ask(one, dialect, body) for one in requests(case, asked, dialect)]
        for x in pair:
            faults += [f"{x.probe}: {one}" for one in _findings(x)]
            if failure := failure_of(x):
                if not _is_allowed(failure, case):
                    faults.append(f"{x.probe}: {x.response.status} {failure}")
            elif case.costs <= {"nothing", "logprobs"} and _said(x, case) != wanted:
                faults.append(f"{x.probe}: said {_said(x, case)}, not {wanted}")
        faults += _differences(*pair)
    return faults


def _findings(x: Exchange) -> Iterator[str]:
    evidence = Evidence({x.probe: x}, dialect=x.dialect, mode="strict")
    for outcome in judge(evidence, JUDGED):
        for found in outcome.findings:
            if f"{found.rule} {found.severity}" not in NOT_OURS:
                yield f"{found.rule} {found.severity} {found.message} {found.excerpt[:300]}"


def failure_of(x: Exchange) -> dict[str, Any] | None:
    """The error of an answer, told by its status or by an event."""
    if x.ok and not x.error_frames:
        return None
    told = as_object(x.error_frames[0].json if x.ok else x.body)
    return as_object(told.get("error"))


def _is_allowed(failure: dict[str, Any], case: Case) -> bool:
    """An error is honest where nothing can be repaired, and never our own."""
    if failure.get("message") == INTERNAL_MESSAGE:
        return False
    no_logprobs = failure.get("param") == "logprobs" and case.costs & {"logprobs", "text"}
    return "all" in case.costs or bool(no_logprobs)


Said = list[tuple[str, list[tuple[str, str]]]]


def said(good: Payloads, asked: dict[str, Any], case: Case) -> Said:
    """What a good stream says: the text and the calls of each choice."""
    stream = Exchange(
        probe="good",
        dialect="O",
        request=Request(
            url="/chat/completions", body=json.dumps({**asked, "stream": True}).encode()
        ),
        response=Response(body=spelled(random.Random(0), good, "plain").data),
    )
    return _said(stream, case)


def _said(x: Exchange, case: Case) -> Said:
    found: Said = []
    for choice in x.choices:
        legacy = [choice.function_call] if choice.function_call else []
        called = [(call.name, call.arguments) for call in (*choice.calls, *legacy)]
        limit = 1 if "functions" in x.asked or x.asked.get("parallel_tool_calls") is False else None
        text = choice.refusal + choice.content
        if case.model == "read" and called:
            text = text.strip()  # blanks around calls frame them
        found.append((text, called[:limit]))
    return found


def _differences(body: Exchange, stream: Exchange) -> Iterator[str]:
    """The stream adds up to the body."""
    if failure_of(body) or failure_of(stream):
        if failure_of(body) != failure_of(stream):
            yield f"{body.dialect}: {failure_of(body)} and {failure_of(stream)}"
    elif texts(body) != texts(stream):
        yield f"{body.dialect}: texts {texts(body)} and {texts(stream)}"
    elif calls(body) != calls(stream):
        yield f"{body.dialect}: calls {calls(body)} and {calls(stream)}"


def smallest(gateway: Gateway, case: Case) -> Case:
    """The same fault with as few oddities as show any."""
    for name in case.oddities:
        fewer = tuple(one for one in case.oddities if one != name)
        other = Case(case.seed, fewer, case.spelling, case.model)
        if faults_of(gateway, other):
            return smallest(gateway, other)
    return case


# ---------------------------------------------------------------- the property


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with running_gateway() as running:
        yield running


@pytest.mark.parametrize("name", ODDITIES)
def test_each_oddity_comes_out_clean(gateway: Gateway, name: str) -> None:
    for seed in range(4):
        case = random_case(seed, name)
        assert faults_of(gateway, case) == [], smallest(gateway, case)


def test_any_of_them_together_come_out_clean(gateway: Gateway) -> None:
    for seed in range(100, 200):
        case = random_case(seed)
        assert faults_of(gateway, case) == [], smallest(gateway, case)
