"""Who gets in, and who does not, whatever the header looks like (R203, R204)."""

import asyncio
import hashlib
import statistics
import time
from collections.abc import Sequence
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rejoinder.config import KeyConfig
from rejoinder.errors import AuthenticationFailed, Unavailable
from rejoinder.service.accounts import (
    LOCAL,
    Account,
    Accounts,
    CreatedKey,
    key_digest,
    period_start,
)


def key_config(key: str, account: str = "team") -> KeyConfig:
    return KeyConfig(key_sha256=hashlib.sha256(key.encode()).hexdigest(), account=account)


ACCOUNTS = Accounts([key_config("sk-test"), key_config("sk-ключ", "unicode")])


@pytest.mark.parametrize(
    "header",
    [
        "Bearer sk-test",
        "bearer sk-test",
        "BEARER sk-test",
        "Bearer  sk-test",
        "Bearer sk-test ",
        "  Bearer \t sk-test\t",
    ],
)
async def test_a_good_key_in_any_spelling(header: str) -> None:
    account = await ACCOUNTS.authenticate(header, None)
    assert account.id == "team"


@pytest.mark.parametrize(
    "header",
    [
        "",
        " ",
        "Bearer",
        "Bearer ",
        "sk-test",
        "Basic c2stdGVzdA==",
        "Basic sk-test",
        "Bearer sk-test extra",
        "Bearer Bearer sk-test",
        "Bearer SK-TEST",
        "Bearer sk-tes",
        "Bearer sk-test\x00",
        "Bearer, sk-test",
        "Bearer sk-test,",
        "Bearer " + "x" * 100_000,
        "Bearer \ud800",
        "Bearer " + hashlib.sha256(b"sk-test").hexdigest(),
    ],
)
async def test_anything_else_is_refused(header: str) -> None:
    with pytest.raises(AuthenticationFailed) as caught:
        await ACCOUNTS.authenticate(header, None)
    assert caught.value.code == "invalid_api_key"
    assert "sk-test" not in caught.value.message


async def test_the_other_header() -> None:
    assert (await ACCOUNTS.authenticate(None, " sk-test ")).id == "team"
    for bad in (None, "", "  ", "nope", "Bearer sk-test"):
        with pytest.raises(AuthenticationFailed):
            await ACCOUNTS.authenticate(None, bad)
    with pytest.raises(AuthenticationFailed):
        await ACCOUNTS.authenticate("Bearer wrong", "sk-test")


async def test_keys_are_compared_as_the_bytes_of_the_wire() -> None:
    on_the_wire = "sk-ключ".encode().decode("latin-1")
    assert (await ACCOUNTS.authenticate(f"Bearer {on_the_wire}", None)).id == "unicode"


async def test_without_any_key_everybody_is_local() -> None:
    for header in (None, "Bearer whatever", "nonsense"):
        assert await Accounts([]).authenticate(header, None) == LOCAL


@given(st.text(max_size=30))
async def test_no_header_crashes_it(header: str) -> None:
    try:
        await ACCOUNTS.authenticate(header, header)
    except AuthenticationFailed:
        return
    assert header.split()[-1] == "sk-test"


async def test_what_a_key_may_do_comes_from_its_table() -> None:
    key = KeyConfig(
        key_sha256=hashlib.sha256(b"k").hexdigest().upper(),
        account="team-a",
        tiers=("flex",),
        models=("m",),
        requests_per_minute=6,
        tokens_per_minute=7,
        budget_usd=0.1,
        budget_period="day",
        admin=True,
    )
    account = await Accounts([key]).authenticate("Bearer k", None)
    assert account == Account(
        id="team-a",
        key_id="key_" + hashlib.sha256(b"k").hexdigest()[:16],
        tiers=("flex",),
        models=("m",),
        requests_per_minute=6,
        tokens_per_minute=7,
        budget_usd=Decimal("0.1"),
        budget_period="day",
        admin=True,
    )


class Source:
    """Created keys, and how often they were read."""

    def __init__(self, keys: Sequence[CreatedKey]) -> None:
        self.keys = keys
        self.num_loads = 0

    async def revision(self) -> str:
        return str(hash(tuple((k.digest, k.revoked_at) for k in self.keys)))

    async def load(self) -> Sequence[CreatedKey]:
        self.num_loads += 1
        return self.keys


def created(key: str, **fields: float) -> CreatedKey:
    account = Account(id="made", key_id="key_x")
    return CreatedKey(digest=key_digest(key), account=account, **fields)


async def test_created_keys_come_expire_and_go() -> None:
    now = 1000.0
    source = Source([created("a"), created("b", expires_at=1010.0)])
    accounts = Accounts([], source=source, clock=lambda: now, fresh_seconds=2)
    assert (await accounts.authenticate("Bearer a", None)).id == "made"
    assert (await accounts.authenticate("Bearer b", None)).id == "made"
    now = 1010.0
    with pytest.raises(AuthenticationFailed, match="expired"):
        await accounts.authenticate("Bearer b", None)
    source.keys = [created("a", revoked_at=1010.0), created("b"), created("c")]
    with pytest.raises(AuthenticationFailed, match="Incorrect"):
        await accounts.authenticate("Bearer c", None)
    now = 1012.0
    assert (await accounts.authenticate("Bearer c", None)).id == "made"
    with pytest.raises(AuthenticationFailed, match="revoked"):
        await accounts.authenticate("Bearer a", None)


async def test_guesses_do_not_make_work_for_the_database() -> None:
    now = 0.0
    source = Source([created("a")])
    accounts = Accounts([], source=source, clock=lambda: now, fresh_seconds=2)
    for i in range(1000):
        now += 0.01
        with pytest.raises(AuthenticationFailed):
            await accounts.authenticate(f"Bearer guess-{i}", None)
    assert source.num_loads == 1


class Gated(Source):
    """Reads when it is let, and then takes until it is let go."""

    def __init__(self, keys: list[CreatedKey]) -> None:
        super().__init__(keys)
        self.reading = asyncio.Event()
        self.before, self.after = asyncio.Event(), asyncio.Event()
        self.before.set()
        self.after.set()

    async def revision(self) -> str:
        self.reading.set()
        await self.before.wait()
        return await super().revision()

    async def load(self) -> list[CreatedKey]:
        keys = list(await super().load())
        await self.after.wait()
        return keys


async def test_a_key_that_was_just_made_waits_for_the_list_that_is_being_read() -> None:
    """Others go on with the keys known so far; who is not among them may be in the new list."""
    now = 0.0
    source = Gated([created("a")])
    accounts = Accounts([], source=source, clock=lambda: now, fresh_seconds=2)
    await accounts.authenticate("Bearer a", None)
    now = 10.0
    source.reading.clear()
    source.before.clear()
    source.keys = [created("a"), created("new")]
    first = asyncio.ensure_future(accounts.authenticate("Bearer a", None))
    await source.reading.wait()
    new = asyncio.ensure_future(accounts.authenticate("Bearer new", None))
    assert (await asyncio.wait_for(accounts.authenticate("Bearer a", None), 1)).id == "made"
    await asyncio.sleep(0)
    assert not new.done()
    source.before.set()
    assert (await asyncio.wait_for(new, 1)).id == "made"
    assert (await first).id == "made"


async def test_a_key_that_is_made_while_the_list_is_read_is_found() -> None:
    """The list that was waited for is older than the key: it is read once more."""
    now = 0.0
    source = Gated([created("a")])
    accounts = Accounts([], source=source, clock=lambda: now, fresh_seconds=2)
    await accounts.authenticate("Bearer a", None)
    now = 10.0
    source.keys = [created("a"), created("b")]
    source.after.clear()
    first = asyncio.ensure_future(accounts.authenticate("Bearer a", None))
    await asyncio.sleep(0)
    source.keys = [created("a"), created("b"), created("new")]
    new = asyncio.ensure_future(accounts.authenticate("Bearer new", None))
    await asyncio.sleep(0)
    now = 11.0
    source.after.set()
    assert (await asyncio.wait_for(new, 1)).id == "made"
    await first


async def test_with_only_revoked_keys_nobody_becomes_local() -> None:
    accounts = Accounts([], source=Source([created("a", revoked_at=1.0)]))
    with pytest.raises(AuthenticationFailed):
        await accounts.authenticate(None, None)


async def test_nobody_is_local_while_the_keys_are_being_read() -> None:
    """Also not the requests that come while the first one waits for the database."""

    class Slow(Source):
        async def revision(self) -> str:
            await asyncio.sleep(0.01)
            return await super().revision()

    accounts = Accounts([], source=Slow([created("a")]))
    tries = [accounts.authenticate(header, None) for header in (None, "Bearer x", "Bearer a")]
    outcomes = await asyncio.gather(*tries, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [
        AuthenticationFailed,
        AuthenticationFailed,
        Account,
    ]


async def test_keys_that_cannot_be_read_let_nobody_in() -> None:
    now = 0.0

    class Broken(Source):
        broken = True

        async def revision(self) -> str:
            if self.broken:
                raise OSError("the database is gone")
            return await super().revision()

    source = Broken([created("a")])
    accounts = Accounts([], source=source, clock=lambda: now, fresh_seconds=2)
    for header in (None, "Bearer a"):
        with pytest.raises(Unavailable):
            await accounts.authenticate(header, None)
    source.broken = False
    assert (await accounts.authenticate("Bearer a", None)).id == "made"
    source.broken = True
    now += 10
    assert (await accounts.authenticate("Bearer a", None)).id == "made", "the last known keys"
    with pytest.raises(AuthenticationFailed):
        await accounts.authenticate(None, None)


@pytest.mark.slow
async def test_the_time_of_a_refusal_does_not_depend_on_the_guess() -> None:
    """A guess whose digest shares its beginning with a real one is not told by the clock."""
    key = key_config("sk-real")
    accounts = Accounts([key])
    near = next(
        guess
        for guess in (f"g{i}" for i in range(200_000))
        if hashlib.sha256(guess.encode()).hexdigest()[:3] == key.key_sha256[:3]
    )
    far = next(
        guess
        for guess in (f"g{i}" for i in range(200_000))
        if hashlib.sha256(guess.encode()).hexdigest()[0] != key.key_sha256[0]
    )
    times: dict[str, list[float]] = {near: [], far: []}
    for _ in range(3000):
        for guess, taken in times.items():
            started = time.perf_counter()
            with pytest.raises(AuthenticationFailed):
                await accounts.authenticate("Bearer " + guess, None)
            taken.append(time.perf_counter() - started)
    ratio = statistics.median(times[near]) / statistics.median(times[far])
    assert 0.8 < ratio < 1.25


def test_budget_periods_are_utc_days_and_months() -> None:
    moment = 1_790_000_000.0  # 2026-09-21T13:33:20Z
    assert period_start("day", moment) == 1_789_948_800.0
    assert period_start("month", moment) == 1_788_220_800.0
    assert period_start("total", moment) == 0.0
