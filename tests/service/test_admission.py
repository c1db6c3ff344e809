"""Who may start what, and how much of it at once: models, tiers, limits, concurrency, budgets."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from decimal import Decimal

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from rejoinder.config import ConfigError, PricingConfig
from rejoinder.errors import (
    ChatError,
    InvalidRequest,
    Overloaded,
    PermissionDenied,
    QuotaExceeded,
    RateLimited,
    TokensRateLimited,
    Unavailable,
)
from rejoinder.service.accounts import Account
from rejoinder.service.admission import (
    Admission,
    ModelTerms,
    Permit,
    UnsupportedTier,
    choose_tier,
    duration,
)
from rejoinder.service.budgets import Budgets
from rejoinder.service.pricing import Prices
from rejoinder.service.rates import Rates
from rejoinder.types import ChatRequest, ServiceTierChoice, Tier, Usage, UserMessage
from tests.service.servers import free_port

REQUEST = ChatRequest(model="m", messages=(UserMessage("hi"),))
PRICES = Prices.from_config(PricingConfig(input_tokens=1e6, output_tokens=1e6))
"""One dollar a token, to count in."""


class Clock:
    def __init__(self, now: float = 1_790_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def account(**fields: object) -> Account:
    return Account(id="team", key_id=uuid.uuid4().hex, **fields)  # type: ignore[arg-type]


def admission(
    *,
    rates: Rates | None = None,
    budgets: Budgets | None = None,
    max_concurrent_requests: int = 200,
    prices: Prices = PRICES,
) -> Admission:
    return Admission(
        {"m": ModelTerms(prices=prices), "plain": ModelTerms(tiers=("default",))},
        rates=rates or Rates(),
        budgets=budgets or Budgets(),
        max_concurrent_requests=max_concurrent_requests,
    )


def admit(gate: Admission, who: Account, num_tokens: int = 10, model: str = "m"):  # type: ignore[no-untyped-def]
    return gate.admit(who, model, REQUEST, estimated_tokens=num_tokens, unsupported_tier="refuse")


# ---------------------------------------------------------------- models and tiers


async def test_a_key_for_some_models_is_for_no_other() -> None:
    gate = admission()
    async with admit(gate, account(models=("m",))):
        pass
    with pytest.raises(PermissionDenied, match="'m'"):
        async with admit(gate, account(models=("other",))):
            pass


BOTH: tuple[Tier, ...] = ("default", "flex", "priority")


@pytest.mark.parametrize(
    ("asked", "key", "model", "refuse", "default"),
    [
        (None, BOTH, BOTH, "default", "default"),
        ("auto", BOTH, BOTH, "default", "default"),
        ("default", BOTH, BOTH, "default", "default"),
        ("priority", BOTH, BOTH, "priority", "priority"),
        ("fast", BOTH, BOTH, "priority", "priority"),
        ("flex", BOTH, BOTH, "flex", "flex"),
        ("scale", BOTH, BOTH, InvalidRequest, "default"),
        ("priority", ("default",), BOTH, InvalidRequest, "default"),
        ("priority", BOTH, ("default",), InvalidRequest, "default"),
        ("flex", ("default", "priority"), BOTH, InvalidRequest, "default"),
        ("default", ("flex",), BOTH, InvalidRequest, "flex"),
        (None, ("flex",), BOTH, "flex", "flex"),
        ("auto", ("priority",), BOTH, "priority", "priority"),
        (None, ("flex",), ("default",), PermissionDenied, PermissionDenied),
    ],
)
def test_the_tier_that_is_served(
    asked: ServiceTierChoice | None,
    key: tuple[Tier, ...],
    model: tuple[Tier, ...],
    refuse: Tier | type[ChatError],
    default: Tier | type[ChatError],
) -> None:
    wanted: tuple[tuple[UnsupportedTier, Tier | type[ChatError]], ...] = (
        ("refuse", refuse),
        ("default", default),
    )
    for unsupported, expected in wanted:
        terms = ModelTerms(tiers=model)
        if isinstance(expected, str):
            assert choose_tier(asked, account(tiers=key), terms, unsupported) == expected
            continue
        with pytest.raises(expected) as caught:
            choose_tier(asked, account(tiers=key), terms, unsupported)
        if expected is InvalidRequest:
            assert (caught.value.status, caught.value.param) == (400, "service_tier")


# ---------------------------------------------------------------- concurrency


async def test_too_many_at_once_are_refused_at_once() -> None:
    gate = admission(max_concurrent_requests=3)
    who = account()
    async with AsyncExitStack() as running:
        for _ in range(3):
            await running.enter_async_context(admit(gate, who))
        with pytest.raises(Overloaded) as caught:
            async with admit(gate, who):
                pass
        assert (caught.value.status, caught.value.retry_after) == (429, 1)
        async with admit(gate, who, model="plain"):
            pass
    async with admit(gate, who):
        pass


async def test_refused_and_failed_requests_hold_no_place() -> None:
    gate = admission(max_concurrent_requests=1)
    poor = account(budget_usd=Decimal(0))
    for _ in range(3):
        with pytest.raises(QuotaExceeded):
            async with admit(gate, poor):
                pass
        with pytest.raises(ZeroDivisionError):
            async with admit(gate, account()):
                raise ZeroDivisionError
    async with admit(gate, account()):
        pass


# ---------------------------------------------------------------- requests and tokens a minute


@pytest_asyncio.fixture(params=["memory", "redis"])
async def rates(request: pytest.FixtureRequest) -> AsyncIterator[Rates]:
    url = request.getfixturevalue("redis_url") if request.param == "redis" else ""
    rates = Rates(url)
    yield rates
    await rates.close()


async def test_requests_are_counted_right_under_concurrency(rates: Rates) -> None:
    gate = admission(rates=rates)
    who = account(requests_per_minute=37)
    outcomes = await asyncio.gather(*(_outcome(gate, who, 1) for _ in range(120)))
    assert outcomes.count("admitted") == 37
    assert outcomes.count("RateLimited") == 120 - 37


async def test_tokens_are_counted_right_under_concurrency(rates: Rates) -> None:
    gate = admission(rates=rates)
    who = account(tokens_per_minute=1000)
    outcomes = await asyncio.gather(*(_outcome(gate, who, 30, used=30) for _ in range(80)))
    assert outcomes.count("admitted") == 33
    assert outcomes.count("TokensRateLimited") == 80 - 33
    assert (await gate.headers(who))["x-ratelimit-remaining-tokens"] == "10"


async def test_keys_are_limited_apart(rates: Rates) -> None:
    gate = admission(rates=rates)
    keys = [account(requests_per_minute=2) for _ in range(3)]
    outcomes = [await _outcome(gate, who, 1) for who in keys * 3]
    assert outcomes == ["admitted"] * 6 + ["RateLimited"] * 3


async def test_the_estimate_becomes_the_true_count(rates: Rates) -> None:
    gate = admission(rates=rates)
    who = account(tokens_per_minute=1000)
    assert await _outcome(gate, who, 900, used=100) == "admitted"
    assert (await gate.headers(who))["x-ratelimit-remaining-tokens"] == "900"
    assert await _outcome(gate, who, 100, used=950) == "admitted"
    assert (await gate.headers(who))["x-ratelimit-remaining-tokens"] == "0"
    assert await _outcome(gate, who, 1) == "TokensRateLimited"


async def test_a_refused_request_takes_no_tokens(rates: Rates) -> None:
    gate = admission(rates=rates)
    who = account(tokens_per_minute=100, requests_per_minute=50)
    async with admit(gate, who, 60) as permit:
        for _ in range(3):
            assert await _outcome(gate, who, 60) == "TokensRateLimited"
        assert await _outcome(gate, who, 40, used=40) == "admitted"
        permit.settle(Usage(prompt_tokens=60), Decimal(0))
    headers = await gate.headers(who)
    assert headers["x-ratelimit-remaining-tokens"] == "0"
    assert headers["x-ratelimit-remaining-requests"] == "48"


async def test_a_request_larger_than_the_window_passes_alone(rates: Rates) -> None:
    gate = admission(rates=rates)
    who = account(tokens_per_minute=100)
    assert await _outcome(gate, who, 5000, used=80) == "admitted"
    assert await _outcome(gate, who, 5000) == "TokensRateLimited"


async def test_headers_and_retry_after(rates: Rates) -> None:
    gate = admission(rates=rates)
    who = account(requests_per_minute=2, tokens_per_minute=100)
    async with admit(gate, who, 30) as permit:
        headers = permit.headers
    assert headers["x-ratelimit-limit-requests"] == "2"
    assert headers["x-ratelimit-remaining-requests"] == "1"
    assert headers["x-ratelimit-limit-tokens"] == "100"
    assert headers["x-ratelimit-remaining-tokens"] == "70"
    assert headers["x-ratelimit-reset-requests"] in ("1m0s", "59s", "58s")
    assert headers["x-ratelimit-reset-tokens"] in ("1m0s", "59s", "58s")
    async with admit(gate, who, 1):
        pass
    with pytest.raises(RateLimited) as caught:
        async with admit(gate, who, 1):
            pass
    assert not isinstance(caught.value, TokensRateLimited)
    assert caught.value.retry_after is not None
    assert 50 <= caught.value.retry_after <= 61


async def test_no_limit_no_headers() -> None:
    async with admit(admission(), account()) as permit:
        assert permit.headers == {}


async def test_windows_begin_anew() -> None:
    clock = Clock()
    gate = admission(rates=Rates(clock=clock))
    who = account(requests_per_minute=1, tokens_per_minute=10)
    assert await _outcome(gate, who, 10, used=10) == "admitted"
    clock.now += 59.9
    assert await _outcome(gate, who, 1) == "TokensRateLimited"
    clock.now += 0.2
    assert await _outcome(gate, who, 10, used=10) == "admitted"


async def test_a_long_answer_corrects_no_later_window() -> None:
    clock = Clock()
    gate = admission(rates=Rates(clock=clock))
    who = account(tokens_per_minute=100)
    async with admit(gate, who, 90) as permit:
        clock.now += 61
        assert await _outcome(gate, who, 50, used=50) == "admitted"
        permit.settle(Usage(prompt_tokens=1), Decimal(0))
    assert (await gate.headers(who))["x-ratelimit-remaining-tokens"] == "50"


async def test_without_redis_nothing_is_let_through() -> None:
    rates = Rates(f"redis://127.0.0.1:{free_port()}/0")
    gate = admission(rates=rates)
    limited = account(requests_per_minute=5)
    with pytest.raises(Unavailable):
        async with admit(gate, limited):
            pass
    assert await gate.headers(limited) == {}
    async with admit(gate, account()):
        pass
    await rates.close()


def test_a_redis_url_that_is_none() -> None:
    with pytest.raises(ConfigError, match=r"limits\.redis_url"):
        Rates("htp://nowhere")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (-1, "0ms"), (0.0125, "13ms"), (1, "1s"), (59.2, "1m0s"), (360, "6m0s")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# ---------------------------------------------------------------- budgets


async def test_a_budget_is_spent_and_stays_spent() -> None:
    gate = admission()
    who = account(budget_usd=Decimal(25))
    for _ in range(3):
        assert await _outcome(gate, who, 10, used=10) == "admitted"
    assert await _outcome(gate, who, 1) == "QuotaExceeded"


async def test_a_reservation_that_was_too_large_is_given_back() -> None:
    gate = admission()
    who = account(budget_usd=Decimal(25))
    for _ in range(12):
        assert await _outcome(gate, who, 24, used=2) == "admitted"
    assert await _outcome(gate, who, 24, used=2) == "admitted"
    assert await _outcome(gate, who, 1) == "QuotaExceeded"


async def test_a_failed_request_costs_nothing() -> None:
    gate = admission()
    who = account(budget_usd=Decimal(5))
    for _ in range(10):
        with pytest.raises(ZeroDivisionError):
            async with admit(gate, who, 100):
                raise ZeroDivisionError
    assert await _outcome(gate, who, 5, used=5) == "admitted"


async def test_what_was_spent_before_the_start_counts() -> None:
    asked = []

    async def spent_since(key_id: str, since: float) -> Decimal:
        asked.append((key_id, since))
        return Decimal(9)

    clock = Clock()
    gate = admission(budgets=Budgets(spent_since, clock=clock))
    who = account(budget_usd=Decimal(10), budget_period="day")
    assert await _outcome(gate, who, 1, used=1) == "admitted"
    assert await _outcome(gate, who, 1) == "QuotaExceeded"
    assert asked == [(who.key_id, 1_789_948_800.0)]


async def test_a_new_day_is_a_new_budget() -> None:
    clock = Clock()
    gate = admission(budgets=Budgets(clock=clock))
    who = account(budget_usd=Decimal(1), budget_period="day")
    async with admit(gate, who, 1) as permit:
        assert await _outcome(gate, who, 1) == "QuotaExceeded"
        clock.now += 86_400
        assert await _outcome(gate, who, 1, used=0) == "admitted"
        permit.settle(Usage(prompt_tokens=5), Decimal(5))
    assert await _outcome(gate, who, 1, used=1) == "admitted"
    assert await _outcome(gate, who, 1) == "QuotaExceeded"


async def test_replicas_see_what_the_others_spend() -> None:
    shared = Decimal(0)

    async def spent_since(key_id: str, since: float) -> Decimal:
        return shared

    clock = Clock()
    gate = admission(budgets=Budgets(spent_since, reread_seconds=5, clock=clock))
    who = account(budget_usd=Decimal(10))
    assert await _outcome(gate, who, 1) == "admitted"
    shared = Decimal(10)
    assert await _outcome(gate, who, 1) == "admitted"
    clock.now += 5
    assert await _outcome(gate, who, 1) == "QuotaExceeded"


async def test_requests_that_start_together_share_one_reading() -> None:
    num_reads = 0

    async def spent_since(key_id: str, since: float) -> Decimal:
        nonlocal num_reads
        num_reads += 1
        await asyncio.sleep(0.01)
        return Decimal(0)

    gate = admission(budgets=Budgets(spent_since))
    who = account(budget_usd=Decimal(5))
    outcomes = await asyncio.gather(*(_outcome(gate, who, 5, used=5, hold=0.05) for _ in range(9)))
    assert outcomes.count("admitted") == 1
    assert outcomes.count("QuotaExceeded") == 8


@settings(max_examples=200, deadline=None)
@given(
    budget=st.integers(1, 60),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["start", "end", "fail"]), st.integers(1, 20), st.integers(0, 99)
        ),
        max_size=60,
    ),
)
def test_no_budget_is_passed_by_more_than_one_reservation(
    budget: int, steps: list[tuple[str, int, int]]
) -> None:
    """Whatever starts and ends in whatever order: money spent stays below the budget plus one
    reservation, and a request is refused only when spent and reserved reach the budget."""

    async def run() -> None:
        gate = admission()
        who = account(budget_usd=Decimal(budget))
        running: list[tuple[AsyncExitStack, Permit, int]] = []
        spent = 0
        for kind, tokens, which in steps:
            if kind == "start":
                stack = AsyncExitStack()
                reserved = sum(r for _, _, r in running)
                try:
                    permit = await stack.enter_async_context(admit(gate, who, tokens))
                except QuotaExceeded:
                    assert spent + reserved >= budget
                else:
                    assert spent + reserved < budget
                    running.append((stack, permit, tokens))
            elif running:
                stack, permit, reserved = running.pop(which % len(running))
                used = which % (reserved + 1) if kind == "end" else 0
                permit.settle(Usage(completion_tokens=used), Decimal(used))
                spent += used
                await stack.aclose()
            assert spent < budget + 20
        for stack, _, _ in running:
            await stack.aclose()

    asyncio.run(run())


async def _outcome(
    gate: Admission, who: Account, num_tokens: int, used: int = 0, hold: float = 0.0
) -> str:
    try:
        async with admit(gate, who, num_tokens) as permit:
            await asyncio.sleep(hold)
            permit.settle(Usage(completion_tokens=used), Decimal(used))
    except ChatError as error:
        return type(error).__name__
    return "admitted"
