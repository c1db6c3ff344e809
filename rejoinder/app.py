"""The composition root: the only place that wires parts together.

It must not know: what any part does beyond how it is made.
"""

import asyncio
import os
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from pathlib import Path
from time import time

from msgspec import Struct
from starlette.routing import Router

from rejoinder.backends import Backend
from rejoinder.backends.models import ModelInfo, Models, ServedModel
from rejoinder.backends.token import MAX_ANSWER_TOKENS, TokenBackend
from rejoinder.config import (
    AnyModelConfig,
    Config,
    LlamaConfig,
    ModelConfig,
    RemoteConfig,
    ReplicatedConfig,
    ScriptedConfig,
    TextModelConfig,
)
from rejoinder.dialects import DEEPINFRA, OPENAI, Dialect, RequestPolicy
from rejoinder.engines.scripted import ScriptedEngine, ScriptError, read_script
from rejoinder.service.accounts import Accounts
from rejoinder.service.admission import Admission, ModelTerms
from rejoinder.service.budgets import Budgets
from rejoinder.service.chat import ChatService
from rejoinder.service.database import Database, DatabaseError, open_database
from rejoinder.service.keys import Keys
from rejoinder.service.ledger import Ledger
from rejoinder.service.pricing import FREE, Prices
from rejoinder.service.rates import Rates
from rejoinder.text.template import ChatTemplate
from rejoinder.types import Engine, Tokenizer
from rejoinder.web.completions import Completions
from rejoinder.web.drain import Drain
from rejoinder.web.metrics import EngineStats, Metrics
from rejoinder.web.middleware import Front
from rejoinder.web.models import ModelList
from rejoinder.web.routes import Endpoint, make_app
from rejoinder.web.status import Status
from rejoinder.web.text import TextRoutes


class CannotBuild(Exception):
    """The configuration is well formed, but something that it names cannot be used."""


class Built(Struct, frozen=True):
    """One model, ready to serve. `failure`: why it cannot serve any more, or None."""

    info: ModelInfo
    backend: Backend
    failure: Callable[[], str | None] = lambda: None
    stats: Callable[[], EngineStats] | None = None


class Application:
    """Everything of one server process that whoever runs it needs."""

    def __init__(self, *, built: Sequence[Built], keys: Keys, config: Config, drain: Drain) -> None:
        self._built = built
        self._keys = keys
        self._config = config
        self.drain = drain
        self.router: Router

    def failures(self) -> list[str]:
        """Why models cannot serve any more; empty when all is well."""
        return [why for one in self._built if (why := one.failure()) is not None]

    async def has_keys(self) -> bool:
        """Whether any API key exists, in the configuration or created."""
        return bool(self._config.keys) or bool(await self._keys.load())


# ---------------------------------------------------------------- ids


def new_completion_id() -> str:
    return "chatcmpl-" + secrets.token_hex(16)


def new_request_id() -> str:
    return "req_" + secrets.token_hex(16)


def new_call_id() -> str:
    return "call_" + secrets.token_hex(12)


def new_seed() -> int:
    return secrets.randbits(63)


# ---------------------------------------------------------------- models


async def build_model(config: AnyModelConfig) -> Built:
    """Raises CannotBuild."""
    match config:
        case ScriptedConfig():
            return _build_scripted(config)
        case LlamaConfig():
            return await asyncio.to_thread(_build_llama, config)
        case RemoteConfig():
            return _build_remote(config)
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
    config: TextModelConfig, engine: Engine, tokenizer: Tokenizer, source: str
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
    raise CannotBuild(f"model '{config.id}': the embedded engine is not installed")


def _build_remote(config: RemoteConfig) -> Built:
    raise CannotBuild(f"model '{config.id}': remote")


async def _build_fleet(config: ReplicatedConfig) -> Built:
    raise CannotBuild(f"model '{config.id}': fleet")


def _api_key(config: RemoteConfig | ReplicatedConfig) -> str | None:
    if not config.api_key_env:
        return None
    key = os.environ.get(config.api_key_env)
    if key is None:
        raise CannotBuild(
            f"model '{config.id}': api_key_env names the environment variable "
            f"'{config.api_key_env}', which is not set"
        )
    return key


# ---------------------------------------------------------------- the service


@asynccontextmanager
async def build(
    config: Config, *, on_progress: Callable[[str], None] = lambda _: None
) -> AsyncGenerator[Application, None]:
    """One server process, for as long as the context lasts. Raises CannotBuild."""
    async with AsyncExitStack() as stack:
        built: list[Built] = []
        for model in config.models:
            on_progress(model.id)
            built.append(await build_model(model))
            stack.push_async_callback(built[-1].backend.close)
        models = Models(ServedModel(one.info, one.backend) for one in built)
        database = await _open_database(config, stack)
        ledger = Ledger(database)
        await ledger.start()
        stack.push_async_callback(ledger.stop)
        prices = {
            one.info.id: Prices.from_config(one.info.pricing) if one.info.pricing else FREE
            for one in built
        }
        metrics = Metrics(lambda: {one.info.id: one.stats() for one in built if one.stats})
        service = ChatService(
            models=models,
            prices=prices,
            admission=_admission(config, built, prices, ledger),
            ledger=ledger,
            new_id=new_completion_id,
            extra_stages=lambda decoded, record: [],
            observer=metrics,
        )
        keys = Keys(database)
        application = Application(built=built, keys=keys, config=config, drain=Drain())
        accounts = Accounts(config.keys, source=keys)
        application.router = _router(config, service, accounts, metrics, application)
        yield application


async def _open_database(config: Config, stack: AsyncExitStack) -> Database:
    try:
        database = await open_database(config.store)
    except DatabaseError as error:
        raise CannotBuild(str(error)) from None
    stack.push_async_callback(database.close)
    return database


def _admission(
    config: Config, built: Sequence[Built], prices: dict[str, Prices], ledger: Ledger
) -> Admission:
    terms = {
        one.info.id: ModelTerms(tiers=one.info.tiers, prices=prices[one.info.id]) for one in built
    }
    return Admission(
        terms,
        rates=Rates(config.limits.redis_url),
        budgets=Budgets(ledger.spent_since),
        max_concurrent_requests=config.limits.max_concurrent_requests,
    )


def _router(
    config: Config,
    service: ChatService,
    accounts: Accounts,
    metrics: Metrics,
    application: Application,
) -> Router:
    server = config.server
    policy = RequestPolicy(server.extra_parameters, server.openai_reasoning)
    front = Front(
        authenticate=accounts.authenticate,
        new_request_id=new_request_id,
        on_answer=metrics.answered,
    )
    completions = Completions(
        front,
        service,
        application.drain,
        policy=policy,
        max_body_bytes=server.max_body_bytes,
        keepalive_seconds=server.keepalive_seconds,
    )
    lists = ModelList(front, service.models)
    status = Status(application.drain, application.failures)
    text = TextRoutes(front, service.models, policy, max_body_bytes=server.max_body_bytes)
    endpoints = [
        Endpoint("/chat/completions", {"POST": completions.create}),
        Endpoint("/models", {"GET": lists.list}),
        Endpoint("/models/{model:path}", {"GET": lists.retrieve}),
        *(
            Endpoint(path, {"POST": answer}, prefixed=prefixed)
            for path, answer in (
                ("/tokenize", text.tokenize),
                ("/detokenize", text.detokenize),
                ("/apply-template", text.apply_template),
            )
            for prefixed in (True, False)
        ),
        Endpoint("/metrics", {"GET": metrics.show}, prefixed=False),
        Endpoint("/health", {"GET": status.health}, prefixed=False),
        Endpoint("/ready", {"GET": status.ready}, prefixed=False),
    ]

    return make_app(endpoints, front=front, by_prefix=dialects_of(server.dialect))


def dialects_of(pinned: str) -> dict[str, Dialect]:
    """The dialect under each prefix; a pinned one is under both."""
    openai, deepinfra = OPENAI, DEEPINFRA
    match pinned:
        case "openai":
            return {"/v1/openai": openai, "/v1": openai}
        case "deepinfra":
            return {"/v1/openai": deepinfra, "/v1": deepinfra}
        case _:
            return {"/v1/openai": deepinfra, "/v1": openai}
