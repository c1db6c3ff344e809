"""Our own server under our own checker: every rule, both dialects, every kind of backend.

Each run is a real server on a socket and all requests of the checker, one run at a time, so that
greedy answers can be compared. What a run cannot judge is named here with the reason, and
`test_every_rule_is_judged` shows that together they judge all 225 but one.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import pytest
from msgspec.structs import replace

from rejoinder.check.client import Target, ask, new_session
from rejoinder.check.exchange import DialectName
from rejoinder.check.judge import Outcome, judge
from rejoinder.check.probes import LIMIT, MODERATED, MODERATED_STREAMED
from rejoinder.check.rule import Evidence, Probe
from rejoinder.check.rules import RULES
from rejoinder.check.run import PATHS, grade
from rejoinder.config import (
    AnyModelConfig,
    Config,
    KeyConfig,
    LimitsConfig,
    LlamaConfig,
    ModerationConfig,
    PricingConfig,
    RemoteConfig,
    ScriptedConfig,
    ServerConfig,
    StoreConfig,
)
from rejoinder.testing import running_server
from tests.service.servers import free_port

pytestmark = pytest.mark.llama

DialectTitle = Literal["openai", "deepinfra"]
DIALECTS: dict[DialectTitle, DialectName] = {"openai": "O", "deepinfra": "D"}

KEY = "sk-own-server-0123456789abcdef"
POOR = "sk-own-server-without-a-budget"
SLOW = "sk-own-server-one-a-minute-000"
PRICES = PricingConfig(input_tokens=1.0, output_tokens=2.0, cache_read_tokens=0.5)


def key(secret: str, **limits: Any) -> KeyConfig:
    return KeyConfig(key_sha256=sha256(secret.encode()).hexdigest(), account=secret, **limits)


def config(*models: AnyModelConfig, **more: Any) -> Config:
    keys = (
        key(KEY, requests_per_minute=100_000, tokens_per_minute=1_000_000_000),
        key(POOR, budget_usd=0.0),
        key(SLOW, requests_per_minute=1, tokens_per_minute=1_000_000),
    )
    return Config(models=models, keys=keys, store=StoreConfig(url="sqlite://"), **more)


def call(name: str) -> list[str]:
    return [
        "<tool_call>\n",
        f'{{"name": "{name}", "arguments"',
        ': {"city": "Oslo"}}\n</tool_call>',
    ]


SCRIPT: list[dict[str, Any]] = [
    {"when": {"contains": "Call get_weather"}, "pieces": call("get_weather")},
    {"when": {"contains": "Call get_time"}, "pieces": call("get_time")},
    {"pieces": ["The", " sea", " is", " deep", "."]},
]


def scripted(folder: Path, lines: list[dict[str, Any]], **more: Any) -> ScriptedConfig:
    path = folder / "script.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return ScriptedConfig(
        id="scripted", script=str(path), tool_format="hermes", pricing=PRICES, **more
    )


# ---------------------------------------------------------------- servers


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The embedded model and a scripted one."""
    pytest.importorskip("llama_cpp")
    folder = tmp_path_factory.mktemp("near")
    with running_server(
        config(LlamaConfig(id="embedded", pricing=PRICES), scripted(folder, SCRIPT))
    ) as server:
        yield server.url


@pytest.fixture(scope="module")
def far(near: str) -> Iterator[str]:
    """The same models through providers: each spelled in either dialect."""
    models = [
        RemoteConfig(
            id=f"{model}, {spelled}",
            base_url=near + PATHS[DIALECTS[spelled]][0],
            upstream_model=model,
            api_key_env="OWN_SERVER_KEY",
            dialect=spelled,
            pricing=PRICES,
        )
        for model in ("embedded", "scripted")
        for spelled in DIALECTS
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OWN_SERVER_KEY", KEY)
        with running_server(config(*models)) as server:
            yield server.url


# ---------------------------------------------------------------- what the checker asks

NO_FAILURES = {
    "R119": "no stream fails",
    "R120": "no stream fails",
    "R131": "no stream fails",
    "R205": "no limit is reached",
    "R207": "no limit is reached",
    "R208": "nothing fails",
}
ONLY_O = {
    "R33": "no model of ours refuses max_tokens or a temperature",
    "R165": "nothing is refused",
    "R197": "no moderation fails",
    "R206": "no budget is spent",
    "R218": "no load was asked for",
}
ONLY_D = {
    "R186": "the model does not think",
    "R216": "no load was asked for",
    "R217": "no load was asked for",
}
NO_CALLS = {
    "R138": "the small model calls no tool unless it has to, which cannot be asked for here",
    "R139": "the same",
    "R149": "the same",
}
NO_CHANCE = {"R220": "a script leaves nothing to chance"}

UNJUDGED: dict[tuple[str, DialectTitle], dict[str, str]] = {
    ("embedded", "openai"): {**NO_FAILURES, **ONLY_O},
    ("embedded", "deepinfra"): {**NO_FAILURES, **ONLY_D, **NO_CALLS},
    ("scripted", "openai"): {**NO_FAILURES, **ONLY_O, **NO_CHANCE},
    ("scripted", "deepinfra"): {**NO_FAILURES, **ONLY_D, **NO_CHANCE},
}

CANNOT: dict[tuple[DialectTitle, DialectTitle], dict[str, str]] = {
    ("openai", "openai"): {},
    ("deepinfra", "deepinfra"): {},
    ("openai", "deepinfra"): {
        "R30": "failed",  # logit_bias: DeepInfra's API has none
    },
    ("deepinfra", "openai"): {
        "R23": "failed",  # top_k, min_p, repetition_penalty: OpenAI's API has none of them
        "R26": "failed",  # stop_token_ids, the same
        "R41": "failed",  # response_format regex, the same
        "R66": "warned",  # continue_final_message, the same
    },
}
"""By our dialect and the provider's: rules about parameters that the provider's API lacks and that
nobody else can stand in for. They are refused by name (docs/api.md). Nothing else is broken."""


def run(url: str, model: str, dialect: DialectTitle) -> tuple[Outcome, ...]:
    report = asyncio.run(grade(url, model=model, api_key=KEY, dialect=dialect, mode="strict"))
    return report.outcomes


def bad(outcomes: tuple[Outcome, ...]) -> dict[str, str]:
    return {o.rule: o.verdict for o in outcomes if o.verdict in ("failed", "warned")}


def unjudged(outcomes: tuple[Outcome, ...]) -> set[str]:
    return {o.rule for o in outcomes if o.verdict == "skipped"}


def findings(outcomes: tuple[Outcome, ...]) -> str:
    return "\n".join(f"{f.rule} {f.message} {f.excerpt}" for o in outcomes for f in o.findings)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("model", ["embedded", "scripted"])
def test_our_own_models_keep_every_rule(near: str, model: str, dialect: DialectTitle) -> None:
    outcomes = run(near, model, dialect)
    assert bad(outcomes) == {}, findings(outcomes)
    assert unjudged(outcomes) == UNJUDGED[model, dialect].keys()


@pytest.mark.parametrize("spelled", DIALECTS)
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("model", ["embedded", "scripted"])
def test_our_models_behind_a_provider_keep_every_rule(
    far: str, model: str, dialect: DialectTitle, spelled: DialectTitle
) -> None:
    outcomes = run(far, f"{model}, {spelled}", dialect)
    assert bad(outcomes) == CANNOT[dialect, spelled], findings(outcomes)
    assert unjudged(outcomes) == UNJUDGED[model, dialect].keys()


# ---------------------------------------------------------------- what it cannot provoke

TROUBLE: list[dict[str, Any]] = [
    {
        "when": {"contains": "fail at once"},
        "pieces": ["a"],
        "fault": {"after": 0, "kind": "engine_error"},
    },
    {
        "when": {"contains": "fail later"},
        "pieces": ["a", "b", "c"],
        "fault": {"after": 2, "kind": "engine_error"},
    },
    {"when": {"contains": "refuse"}, "pieces": ["I", " cannot", "."], "refusal": True},
    {"when": {"contains": "think"}, "pieces": ["<think>", "hm", "</think>", "done"]},
    {
        "when": {"contains": "garble"},
        "tokens_bytes": [[97], [240, 159], [98], [255, 254], [240], [159, 152, 128], [195]],
    },
    {"when": {"contains": "slowly"}, "pieces": ["a"] * 8, "delay_ms": 40},
    {"pieces": ["The", " sea", "."]},
]

STREAM: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}


def probe(name: str, text: str, **body: Any) -> Probe:
    return Probe(
        name=name, body={"messages": [{"role": "user", "content": text}], LIMIT: 16, **body}
    )


TROUBLES = (
    probe("fails at once", "fail at once"),
    probe("fails at once, streamed", "fail at once", **STREAM),
    probe("fails later", "fail later"),
    probe("fails later, streamed", "fail later", **STREAM),
    probe("fails later, two choices", "fail later", n=2, temperature=1, **STREAM),
    probe("refuses", "refuse", logprobs=True),
    probe("refuses, streamed", "refuse", logprobs=True, **STREAM),
    probe("no text", "garble", logprobs=True),
    probe("no text, streamed", "garble", logprobs=True, **STREAM),
    probe("thinks", "think"),
    probe("thinks, streamed", "think", **STREAM),
)

NUM_AT_ONCE = 12
LOAD = tuple(
    probe(f"load {n}", "slowly", **({"service_tier": "flex"} if n % 4 == 0 else {}))
    for n in range(NUM_AT_ONCE)
)
PLAIN = probe("plain", "hi")

PROVOKED: dict[DialectTitle, set[str]] = {
    "openai": {"R119", "R120", "R131", "R165", "R197", "R205", "R206", "R207", "R208", "R218"},
    "deepinfra": {"R119", "R120", "R131", "R186", "R205", "R207", "R208", "R216", "R217"},
}


# Through DeepInfra's dialect a refusal is content: R165 has nothing to judge.


async def provoked(url: str, dialect: DialectName) -> Evidence:
    """Faults, refusals, thoughts, a moderator that is away, spent limits, and load."""
    target = Target(
        base_url=url + PATHS[dialect][0],
        model="scripted",
        dialect=dialect,
        api_key=KEY,
        timeout_seconds=30,
    )
    moderated = (MODERATED, MODERATED_STREAMED) if dialect == "O" else ()
    async with new_session() as session:
        seen = {one.name: await ask(session, one, target, {}) for one in (*TROUBLES, *moderated)}
        for secret in (POOR, SLOW, SLOW):
            other = replace(target, api_key=secret)
            seen[f"{secret}, {len(seen)}"] = await ask(session, PLAIN, other, {})
        loaded = await asyncio.gather(*(ask(session, one, target, {}) for one in LOAD))
    seen |= {x.probe: x for x in loaded}
    return Evidence(seen, dialect=dialect, mode="strict", model="scripted", api_key=KEY)


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A server in trouble, and the same through a provider in each dialect, by name."""
    model = scripted(tmp_path_factory.mktemp("troubled"), TROUBLE, reasoning_format="deepseek_r1")
    shows_thoughts = ServerConfig(openai_reasoning="reasoning_content")
    trouble = {
        "limits": LimitsConfig(max_concurrent_requests=4),
        "moderation": ModerationConfig(model="remote", url=f"http://127.0.0.1:{free_port()}"),
    }
    with (
        pytest.MonkeyPatch.context() as patch,
        running_server(config(model, **trouble)) as direct,
        running_server(config(model, server=shows_thoughts)) as upstream,
        ExitStack() as stack,
    ):
        patch.setenv("OWN_SERVER_KEY", KEY)
        urls = {"": direct.url}
        for spelled, name in DIALECTS.items():
            remote = RemoteConfig(
                id="scripted",
                base_url=upstream.url + PATHS[name][0],
                api_key_env="OWN_SERVER_KEY",
                dialect=spelled,
                pricing=PRICES,
                max_retries=0,
            )
            urls[spelled] = stack.enter_context(running_server(config(remote, **trouble))).url
        yield urls


@pytest.mark.parametrize("through", ["", *DIALECTS])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_failures_and_limits_keep_every_rule(
    troubled: dict[str, str], dialect: DialectTitle, through: str
) -> None:
    evidence = asyncio.run(provoked(troubled[through], DIALECTS[dialect]))
    outcomes = tuple(judge(evidence, RULES))
    assert bad(outcomes) == {}, findings(outcomes)
    shown = PROVOKED[dialect] - ({"R165"} if through == "deepinfra" else set())
    assert {o.rule for o in outcomes if o.verdict == "passed"} >= shown
    failure = 502 if through else 500
    spent = {402} if dialect == "deepinfra" else set()
    assert {x.response.status for x in evidence.exchanges} == {200, 429, failure, *spent}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_rule_is_judged(dialect: DialectTitle) -> None:
    """By one of the runs above, whose own lists are checked there."""
    never = UNJUDGED["embedded", dialect].keys() & UNJUDGED["scripted", dialect].keys()
    assert never - PROVOKED[dialect] == ({"R33"} if dialect == "openai" else set())
