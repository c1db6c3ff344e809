"""Configured models become backends: one builder a kind.

The only other place beside `app` that knows concrete engines. It must not know: HTTP, accounts.
"""

import asyncio
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path
from time import time
from typing import TYPE_CHECKING

from msgspec import Struct

from rejoinder.backends import Backend
from rejoinder.backends.fallback import Fallback
from rejoinder.backends.models import ModelInfo
from rejoinder.backends.token import MAX_ANSWER_TOKENS, TokenBackend
from rejoinder.config import (
    AnyModelConfig,
    FallbackConfig,
    LlamaConfig,
    ModelConfig,
    RemoteConfig,
    ReplicatedConfig,
    ScriptedConfig,
    TextModelConfig,
    VllmConfig,
)
from rejoinder.engines.scripted import ScriptedEngine, ScriptError, read_script
from rejoinder.errors import ChatError, Unavailable
from rejoinder.text.template import ChatTemplate
from rejoinder.types import Engine, Tokenizer
from rejoinder.web.fleets import Replicas
from rejoinder.web.metrics import EngineStats

if TYPE_CHECKING:
    from rejoinder.engines.fleet import Fleet
    from rejoinder.engines.llama.engine import LlamaEngine
    from rejoinder.engines.remote import RemoteEngine
    from rejoinder.engines.replica import ReplicaStatus

OnRepair = Callable[[str, str], None]
OnMove = Callable[[str, str, str], None]

TOKENIZER_FILES = [
    "tokenizer*.json",
    "special_tokens_map.json",
    "generation_config.json",
    "*.jinja",
]


class CannotBuild(Exception):
    """The configuration is well formed, but something that it names cannot be used."""


class Built(Struct, frozen=True):
    """One model, ready to serve. `failure`: why it can never serve again, or None; `trouble`: why
    it cannot serve now."""

    info: ModelInfo
    backend: Backend
    failure: Callable[[], str | None] = lambda: None
    trouble: Callable[[], str | None] = lambda: None
    stats: Callable[[], EngineStats] | None = None
    replicas: Replicas | None = None
    """What an operator may change of it while it serves."""


def new_completion_id() -> str:
    return "chatcmpl-" + secrets.token_hex(16)


def new_request_id() -> str:
    return "req_" + secrets.token_hex(16)


def new_call_id() -> str:
    return "call_" + secrets.token_hex(12)


def new_seed() -> int:
    return secrets.randbits(63)


# ---------------------------------------------------------------- models


async def build_model(config: AnyModelConfig, *, on_repair: OnRepair) -> Built:
    """Raises CannotBuild. `on_repair(model, kind)` is told what a provider's stream needed."""
    match config:
        case ScriptedConfig():
            return _build_scripted(config)
        case LlamaConfig():
            return await asyncio.to_thread(_build_llama, config)
        case RemoteConfig():
            return _build_remote(config, on_repair)
        case ReplicatedConfig():
            return await _build_fleet(config)
    raise CannotBuild(f"model '{config.id}': nothing serves this kind of backend")


def _info(config: ModelConfig, *, context_length: int, tags: Sequence[str] = ()) -> ModelInfo:
    return ModelInfo(
        id=config.id,
        aliases=config.aliases,
        owned_by=config.owned_by,
        created=int(time()),
        description=config.description,
        context_length=context_length,
        max_tokens=min(context_length, MAX_ANSWER_TOKENS),
        pricing=config.pricing,
        tags=tuple(tags),
        tiers=config.tiers,
    )


def _text_backend(
    config: TextModelConfig,
    engine: Engine,
    tokenizer: Tokenizer,
    source: str,
    *,
    bos_token: str = "",
    eos_token: str = "",
) -> TokenBackend:
    if config.chat_template:
        try:
            source = Path(config.chat_template).read_text(encoding="utf-8")
        except OSError as error:
            raise CannotBuild(f"model '{config.id}': chat_template: {error}") from None
    try:
        template = ChatTemplate(
            source,
            tokenizer,
            tool_format=config.tool_format,
            reasoning_format=config.reasoning_format,
            bos_token=bos_token,
            eos_token=eos_token,
        )
    except ValueError as error:
        raise CannotBuild(f"model '{config.id}': {error}") from None
    scripted = engine if isinstance(engine, ScriptedEngine) else None
    return TokenBackend(
        model=config.id,
        engine=engine,
        tokenizer=tokenizer,
        template=template,
        new_seed=new_seed,
        new_call_id=new_call_id,
        clock=datetime.now,
        refusals="on" if isinstance(config, LlamaConfig) and config.refusals else "off",
        opens_thinking=scripted.opens_thinking if scripted else None,
        refuses=scripted.refuses if scripted else None,
    )


def _build_scripted(config: ScriptedConfig) -> Built:
    try:
        engine = ScriptedEngine(
            read_script(Path(config.script)),
            model=config.id,
            context_length=config.context_length,
        )
    except ScriptError as error:
        raise CannotBuild(f"model '{config.id}': script: {error}") from None
    backend = _text_backend(config, engine, engine.tokenizer, "")
    info = _info(config, context_length=config.context_length, tags=("tools",))
    return Built(info, backend, lambda: engine.failure)


def _build_llama(config: LlamaConfig) -> Built:
    try:
        from rejoinder.engines.llama.engine import LlamaEngine
    except ImportError as error:
        raise CannotBuild(
            f"model '{config.id}': the embedded engine is not installed ({error.name} is missing);"
            " install rejoinder[llama]"
        ) from None
    try:
        engine = LlamaEngine(
            path=config.path,
            context_length=config.context_length,
            max_sequences=config.max_sequences,
            threads=config.threads,
            max_queue=config.max_queue,
            flex_wait_seconds=config.flex_wait_seconds,
            snapshot_bytes=config.snapshot_bytes,
            speculation=config.speculation,
            unpack_weights=config.unpack_weights,
        )
    except ChatError as error:
        raise CannotBuild(f"model '{config.id}': {error.message}") from None
    backend = _text_backend(
        config,
        engine,
        engine.tokenizer,
        engine.chat_template or "",
        bos_token=engine.tokenizer.bos_text,
        eos_token=engine.tokenizer.eos_text,
    )
    info = _info(config, context_length=engine.context_length, tags=("tools", "json", "chat"))
    return Built(info, backend, lambda: engine.failure, stats=lambda: _llama_stats(engine))


def _llama_stats(engine: "LlamaEngine") -> EngineStats:
    stats = engine.stats()
    return EngineStats(
        running={"all": stats.running},
        waiting=stats.waiting,
        cells_used=stats.cells_used,
        cells_total=stats.cells_total,
        prefix_cache_hit_tokens=stats.cached_tokens,
        prefill_tokens=stats.prefill_tokens,
    )


def _build_remote(config: RemoteConfig, on_repair: OnRepair) -> Built:
    from rejoinder.backends.remote import RemoteBackend

    try:
        backend = RemoteBackend(
            config,
            new_id=new_call_id,
            api_key=_api_key(config),
            on_repair=lambda kind: on_repair(config.id, kind),
        )
    except ValueError as error:
        raise CannotBuild(f"model '{config.id}': {error}") from None
    return Built(_info(config, context_length=config.context_length, tags=("tools",)), backend)


async def _build_fleet(config: ReplicatedConfig) -> Built:
    from rejoinder.engines.fleet import Fleet
    from rejoinder.engines.http import Timeouts
    from rejoinder.engines.remote import RemoteEngine
    from rejoinder.engines.sglang import SGLANG
    from rejoinder.engines.vllm import VLLM

    try:
        from rejoinder.text.tokenizer import HfTokenizer
    except ImportError:
        raise CannotBuild(
            f"model '{config.id}': fleets need the package tokenizers; install rejoinder[hf]"
        ) from None
    if not config.tokenizer:
        raise CannotBuild(
            f"model '{config.id}': the key 'tokenizer' is missing: a folder with the model's "
            "tokenizer.json and tokenizer_config.json, or hf:ORG/REPO"
        )
    try:
        tokenizer = HfTokenizer(await asyncio.to_thread(tokenizer_folder, config.tokenizer))
    except (OSError, ValueError) as error:
        raise CannotBuild(f"model '{config.id}': tokenizer: {error}") from None
    kind = VLLM if isinstance(config, VllmConfig) else SGLANG
    api_key = _api_key(config)
    timeouts = Timeouts(
        connect=config.connect_timeout_seconds,
        first_token=config.first_token_timeout_seconds,
        between_tokens=config.between_tokens_timeout_seconds,
    )

    def engine(url: str) -> RemoteEngine:
        return RemoteEngine(
            kind,
            url,
            model=config.upstream_model,
            api_key=api_key,
            context_length=config.context_length,
            timeouts=timeouts,
        )

    fleet = Fleet({url: engine(url) for url in config.replicas})
    await fleet.start()
    backend = _text_backend(
        config,
        fleet,
        tokenizer,
        tokenizer.files.chat_template,
        bos_token=tokenizer.files.bos_token,
        eos_token=tokenizer.files.eos_token,
    )
    info = _info(config, context_length=config.context_length, tags=("tools", "json"))
    return Built(
        info,
        backend,
        trouble=lambda: fleet.failure,
        stats=lambda: _fleet_stats(fleet),
        replicas=_FleetReplicas(fleet, engine),
    )


class _FleetReplicas:
    """The replicas of a fleet by their URLs. `engine(url)` makes what speaks to one."""

    def __init__(self, fleet: "Fleet", engine: "Callable[[str], RemoteEngine]") -> None:
        self._fleet = fleet
        self._engine = engine

    def status(self) -> Sequence["ReplicaStatus"]:
        return self._fleet.replicas

    async def add(self, url: str) -> None:
        async with AsyncExitStack() as stack:
            engine = self._engine(url)
            stack.push_async_callback(engine.close)
            if not await engine.healthy():
                raise Unavailable("The replica does not answer, or not as one of this kind.")
            if all(one.name != url for one in self._fleet.replicas):  # else it was asked for twice
                self._fleet.add(url, engine)
                stack.pop_all()

    async def drain(self, url: str, within_seconds: float | None) -> None:
        await self._fleet.drain(url, within_seconds=within_seconds)

    async def remove(self, url: str, within_seconds: float | None) -> None:
        await self._fleet.remove(url, within_seconds=within_seconds)


def _fleet_stats(fleet: "Fleet") -> EngineStats:
    replicas = fleet.replicas
    return EngineStats(
        running={"all": sum(replica.sequences for replica in replicas)},
        replicas={replica.name: replica.state for replica in replicas},
        moves=fleet.num_moves,
    )


def tokenizer_folder(name: str) -> Path:
    """The folder of a configured tokenizer; `hf:ORG/REPO` is fetched. Raises ValueError."""
    if not name.startswith("hf:"):
        return Path(name)
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError:
        raise ValueError(f"'{name}' needs huggingface-hub; install rejoinder[hf]") from None
    try:
        return Path(snapshot_download(name.removeprefix("hf:"), allow_patterns=TOKENIZER_FILES))
    except (HfHubHTTPError, OSError) as error:
        raise ValueError(f"'{name}' cannot be fetched: {error}") from None


def build_fallback(
    config: FallbackConfig, models: Mapping[str, Built], *, on_move: OnMove
) -> Built:
    """A model name made of others; it can do what the first of them can. `on_move(model, name,
    code)` is told of each that is passed over, and why."""
    parts = [models[name] for name in config.models]
    first = parts[0].info
    backend = Fallback(
        [(one.info.id, one.backend) for one in parts],
        on_move=lambda name, error: on_move(config.id, name, error.code or type(error).__name__),
    )
    info = ModelInfo(
        id=config.id,
        created=int(time()),
        context_length=first.context_length,
        max_tokens=first.max_tokens,
        pricing=first.pricing,
        tags=first.tags,
        tiers=first.tiers,
    )
    return Built(info, backend, stats=lambda: EngineStats(providers=backend.states()))


def _api_key(config: RemoteConfig | ReplicatedConfig) -> str:
    if not config.api_key_env:
        return ""
    key = os.environ.get(config.api_key_env)
    if key is None:
        raise CannotBuild(
            f"model '{config.id}': api_key_env names the environment variable "
            f"'{config.api_key_env}', which is not set"
        )
    return key
