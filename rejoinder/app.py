"""The composition root: the only place that wires parts together.

It must not know: what any part does beyond how it is made.
"""

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from rejoinder.backends.models import Models, ServedModel
from rejoinder.building import (
    Built,
    CannotBuild,
    build_fallback,
    build_model,
    new_completion_id,
    new_request_id,
)
from rejoinder.checking import AnswerChecks
from rejoinder.config import (
    Config,
    ConfigError,
    ModerationConfig,
    StoreConfig,
)
from rejoinder.dialects import DEEPINFRA, OPENAI, Dialect, RequestPolicy
from rejoinder.errors import InvalidParameter, NotFound
from rejoinder.service.accounts import Accounts
from rejoinder.service.admission import Admission, ModelTerms
from rejoinder.service.budgets import Budgets
from rejoinder.service.chat import ChatService, Observer, Stage
from rejoinder.service.database import Database, DatabaseError, open_database
from rejoinder.service.keys import Keys
from rejoinder.service.ledger import Ledger
from rejoinder.service.moderation import Moderator
from rejoinder.service.moderation.configured import configured_moderator
from rejoinder.service.moderation.stage import moderated
from rejoinder.service.pricing import FREE, Prices
from rejoinder.service.rates import Rates
from rejoinder.service.store import CompletionStore
from rejoinder.types import ChatRequest, Meter
from rejoinder.web.completions import Completions
from rejoinder.web.dashboard import Dashboard, DashboardData
from rejoinder.web.drain import Drain
from rejoinder.web.fleets import Fleets, Replicas
from rejoinder.web.metrics import EngineStats, Metrics
from rejoinder.web.middleware import Front
from rejoinder.web.models import ModelList
from rejoinder.web.moderations import Moderations
from rejoinder.web.pages import Pages, read_pages
from rejoinder.web.resume import Streams
from rejoinder.web.routes import App, Endpoint, make_app
from rejoinder.web.status import Status
from rejoinder.web.stored import StoredCompletions
from rejoinder.web.text import TextRoutes

log = logging.getLogger("rejoinder")

BUDGET_REREAD_SECONDS = 5.0

MODERATION_MODELS = (
    "omni-moderation-latest",
    "omni-moderation-2024-09-26",
    "text-moderation-latest",
)
"""Names that clients know; each is answered by the configured moderator."""


class Application:
    """Everything of one server process that whoever runs it needs."""

    def __init__(self, *, built: Sequence[Built], keys: Keys, config: Config, drain: Drain) -> None:
        self._built = built
        self._keys = keys
        self._config = config
        self.drain = drain
        seconds = config.server.resume_seconds
        self.streams = Streams(keep_seconds=seconds) if seconds else None
        self.router: App
        self.fleets: Fleets

    def failures(self) -> list[str]:
        """Why models cannot serve any more; empty when all is well."""
        return [why for one in self._built if (why := one.failure()) is not None]

    def readiness(self) -> tuple[bool, list[str]]:
        """Whether this process can serve, and what is wrong: a dead engine makes it useless, a
        fleet or provider that is away only when it is all there is."""
        dead = self.failures()
        away = [why for one in self._built if (why := one.trouble()) is not None]
        return not dead and len(away) < len(self._built), dead + away

    def replicas(self) -> dict[str, Replicas]:
        """The models whose replicas may be changed."""
        return {one.info.id: one.replicas for one in self._built if one.replicas is not None}

    async def has_keys(self) -> bool:
        """Whether any API key exists, in the configuration or created."""
        return bool(self._config.keys) or bool(await self._keys.load())


# ---------------------------------------------------------------- the service


@asynccontextmanager
async def build(
    config: Config, *, on_progress: Callable[[str], None] = lambda _: None
) -> AsyncGenerator[Application, None]:
    """One server process, for as long as the context lasts. Raises CannotBuild."""
    async with AsyncExitStack() as stack:

        def snapshots() -> dict[str, EngineStats]:
            return {one.info.id: one.stats() for one in built if one.stats}

        metrics = Metrics(snapshots)
        built = await _build_models(config, stack, metrics, on_progress)
        models = Models(ServedModel(one.info, one.backend) for one in built)
        database = await _open_database(config, stack)
        ledger = Ledger(database)
        await ledger.start()
        stack.push_async_callback(ledger.stop)
        dashboard = Dashboard(snapshots=snapshots, totals=metrics.totals, ledger=ledger)
        await dashboard.start()
        stack.push_async_callback(dashboard.stop)
        prices = {
            one.info.id: Prices.from_config(one.info.pricing) if one.info.pricing else FREE
            for one in built
        }
        store = CompletionStore(database, retention_days=config.store.retention_days)
        moderator = _moderator(config, models)
        stack.push_async_callback(moderator.close)
        service = ChatService(
            models=models,
            prices=prices,
            admission=_admission(config, built, prices, ledger, database, stack),
            ledger=ledger,
            new_id=new_completion_id,
            extra_stages=partial(_moderation_stages, config.moderation, moderator),
            observers=[metrics, dashboard, *_tracing()],
        )
        keys = Keys(database)
        application = Application(built=built, keys=keys, config=config, drain=Drain())
        accounts = Accounts(config.keys, source=keys)
        application.router = _router(
            config,
            service,
            accounts,
            metrics,
            application,
            dashboard,
            store=store,
            moderator=moderator,
        )
        stack.push_async_callback(application.fleets.close)
        if application.streams is not None:
            stack.push_async_callback(application.streams.close)
        yield application


async def _build_models(
    config: Config,
    stack: AsyncExitStack,
    metrics: Metrics,
    on_progress: Callable[[str], None],
) -> list[Built]:
    built: dict[str, Built] = {}
    for model in config.models:
        on_progress(model.id)
        one = await build_model(model, on_repair=metrics.repaired)
        stack.push_async_callback(one.backend.close)
        built |= dict.fromkeys((model.id, *model.aliases), one)
    for fallback in config.fallbacks:
        built[fallback.id] = build_fallback(fallback, built, on_move=metrics.passed_over)
    return list({id(one): one for one in built.values()}.values())


async def _open_database(config: Config, stack: AsyncExitStack) -> Database:
    try:
        database = await open_database(config.store)
    except DatabaseError as error:
        raise CannotBuild(str(error)) from None
    stack.push_async_callback(database.close)
    if database.volatile and config.store == StoreConfig():
        log.warning(
            "%s cannot be written here: the ledger, keys and stored completions are in memory and "
            "are lost when the server ends. Set store.url.",
            config.store.url,
        )
    return database


def _tracing() -> list[Observer]:
    """OpenTelemetry, where its extra is installed and the environment says where to send."""
    try:
        from rejoinder.web.tracing import Tracing, configure_from_environment
    except ImportError:
        return []
    return [Tracing()] if configure_from_environment() else []


def _moderator(config: Config, models: Models) -> Moderator:
    try:
        return configured_moderator(config.moderation, lambda name: models.resolve(name).backend)
    except (ConfigError, NotFound) as error:
        raise CannotBuild(str(error)) from None


def _moderation_stages(
    config: ModerationConfig, moderator: Moderator, request: ChatRequest, meter: Meter
) -> list[Stage]:
    """Raises InvalidParameter for a moderation model that nobody serves here."""
    asked = request.moderation
    if asked is None and config.enforce == "off":
        return []
    if asked is not None and asked.model not in (*MODERATION_MODELS, config.model):
        raise InvalidParameter(
            f"Invalid 'moderation.model': '{asked.model[:100]}' is not a moderation model. "
            f"Known: {', '.join(MODERATION_MODELS)}.",
            param="moderation.model",
            code="invalid_value",
        )
    stage = partial(
        moderated, request=request, moderator=moderator, enforce=config.enforce, meter=meter
    )
    return [stage]


def _admission(
    config: Config,
    built: Sequence[Built],
    prices: dict[str, Prices],
    ledger: Ledger,
    database: Database,
    stack: AsyncExitStack,
) -> Admission:
    terms = {
        one.info.id: ModelTerms(tiers=one.info.tiers, prices=prices[one.info.id]) for one in built
    }
    rates = Rates(config.limits.redis_url)
    stack.push_async_callback(rates.close)
    # Other processes spend from the same budgets where the database is shared.
    reread = BUDGET_REREAD_SECONDS if database.shared else None
    return Admission(
        terms,
        rates=rates,
        budgets=Budgets(ledger.spent_since, reread_seconds=reread),
        max_concurrent_requests=config.limits.max_concurrent_requests,
    )


def _router(
    config: Config,
    service: ChatService,
    accounts: Accounts,
    metrics: Metrics,
    application: Application,
    dashboard: Dashboard,
    *,
    store: CompletionStore,
    moderator: Moderator,
) -> App:
    server = config.server
    policy = RequestPolicy(server.extra_parameters, server.openai_reasoning)
    front = Front(
        authenticate=accounts.authenticate,
        new_request_id=new_request_id,
        on_answer=metrics.answered,
    )
    stored = StoredCompletions(front, store, policy, max_body_bytes=server.max_body_bytes)
    moderations = Moderations(front, moderator, max_body_bytes=server.max_body_bytes)
    completions = Completions(
        front,
        service,
        application.drain,
        stored,
        AnswerChecks(server.check_share, metrics.violated),
        policy=policy,
        max_body_bytes=server.max_body_bytes,
        keepalive_seconds=server.keepalive_seconds,
        prompts_in_log="always" if server.log_prompts else "never",
        streams=application.streams,
    )
    lists = ModelList(front, service.models)
    status = Status(application.drain, application.readiness)
    pages = Pages(read_pages())
    data = DashboardData(front, dashboard)
    fleets = application.fleets = Fleets(front, application.replicas())
    text = TextRoutes(front, service.models, policy, max_body_bytes=server.max_body_bytes)
    endpoints = [
        Endpoint("/chat/completions", {"POST": completions.create, "GET": stored.list}),
        Endpoint(
            "/chat/completions/{id}",
            {"GET": stored.retrieve, "POST": stored.update, "DELETE": stored.delete},
        ),
        Endpoint("/chat/completions/{id}/messages", {"GET": stored.messages}),
        Endpoint("/moderations", {"POST": moderations.create}),
        Endpoint("/models", {"GET": lists.list}),
        Endpoint("/models/{model:path}", {"GET": lists.retrieve}),
        Endpoint("/models/{model:path}", {"GET": lists.retrieve_described}, prefixed=False),
        Endpoint("/embeddings", {"POST": text.embed}),
        *(
            Endpoint(path, {"POST": answer}, prefixed=prefixed)
            for path, answer in (
                ("/tokenize", text.tokenize),
                ("/detokenize", text.detokenize),
                ("/apply-template", text.apply_template),
            )
            for prefixed in (True, False)
        ),
        Endpoint("/", {"GET": pages.playground}, prefixed=False),
        Endpoint("/playground/{name}", {"GET": pages.file}, prefixed=False),
        Endpoint("/dashboard", {"GET": pages.dashboard}, prefixed=False),
        Endpoint("/dashboard/data", {"GET": data.show}, prefixed=False),
        Endpoint("/fleets", {"GET": fleets.list}, prefixed=False),
        *(
            Endpoint(f"/fleets/{word}/{{model:path}}", {"POST": answer}, prefixed=False)
            for word, answer in (
                ("add", fleets.add),
                ("drain", fleets.drain),
                ("remove", fleets.remove),
            )
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
