"""The formula of contract 4.9, exact, with every kind of token paid once."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rejoinder.config import PricingConfig
from rejoinder.service.pricing import FREE, Prices
from rejoinder.types import Tier, Usage

TABLE = Prices.from_config(
    PricingConfig(
        input_tokens=1.0,
        output_tokens=4.0,
        cache_read_tokens=0.1,
        cache_write_tokens=1.25,
        priority_factor=2.0,
        flex_factor=0.5,
    )
)


@pytest.mark.parametrize(
    ("usage", "tier", "cost"),
    [
        (Usage(), "default", "0"),
        (Usage(prompt_tokens=1000, completion_tokens=50), "default", "0.0012"),
        (Usage(prompt_tokens=1000, completion_tokens=50), "priority", "0.0024"),
        (Usage(prompt_tokens=1000, completion_tokens=50), "flex", "0.0006"),
        (
            Usage(
                prompt_tokens=1000,
                cached_tokens=600,
                cache_write_tokens=300,
                completion_tokens=50,
            ),
            "default",
            "0.000735",
        ),
        (Usage(prompt_tokens=1000), "default", "0.001"),
        (Usage(completion_tokens=1), "default", "0.000004"),
        (Usage(prompt_tokens=10, cached_tokens=99, cache_write_tokens=99), "default", "0.000001"),
    ],
)
def test_cost(usage: Usage, tier: Tier, cost: str) -> None:
    assert TABLE.cost(usage, tier) == Decimal(cost)


def test_the_documented_example() -> None:
    prices = Prices.from_config(PricingConfig(input_tokens=0.8, output_tokens=0.925))
    usage = Usage(prompt_tokens=15, completion_tokens=16)
    assert prices.cost(usage, "default") == Decimal("0.0000268")


def test_unpublished_cache_prices_are_the_input_price() -> None:
    prices = Prices.from_config(PricingConfig(input_tokens=3.0, output_tokens=7.0))
    plain = Usage(prompt_tokens=1000, completion_tokens=10)
    cached = Usage(
        prompt_tokens=1000, cached_tokens=400, cache_write_tokens=500, completion_tokens=10
    )
    assert prices.cost(plain, "default") == prices.cost(cached, "default")


def test_no_prices_cost_nothing() -> None:
    assert FREE.cost(Usage(prompt_tokens=10**9, completion_tokens=10**9), "priority") == 0


def test_a_version_names_the_whole_table() -> None:
    configs = [
        PricingConfig(),
        PricingConfig(input_tokens=1.0),
        PricingConfig(output_tokens=1.0),
        PricingConfig(cache_read_tokens=1.0),
        PricingConfig(cache_write_tokens=1.0),
        PricingConfig(priority_factor=1.0),
        PricingConfig(flex_factor=1.0),
    ]
    versions = [Prices.from_config(config).version for config in configs]
    assert len(set(versions)) == len(versions)
    assert Prices.from_config(PricingConfig(input_tokens=1)).version == versions[1]


prices = st.integers(0, 10**15).map(lambda n: n / 10**9)
counts = st.integers(0, 10**12)


@given(prices, prices, prices, prices, counts, counts, counts, counts)
def test_cost_is_exact(
    put: float, out: float, read: float, write: float, p: int, c: int, w: int, o: int
) -> None:
    """Against rational arithmetic, for prices up to a million with nine decimals."""
    table = Prices.from_config(
        PricingConfig(
            input_tokens=put, output_tokens=out, cache_read_tokens=read, cache_write_tokens=write
        )
    )
    usage = Usage(
        prompt_tokens=p + c + w, cached_tokens=c, cache_write_tokens=w, completion_tokens=o
    )
    exact = sum(
        (n * Fraction(repr(price)) for n, price in ((p, put), (c, read), (w, write), (o, out))),
        Fraction(0),
    )
    assert Fraction(table.cost(usage, "default")) == exact / 10**6
    assert Fraction(table.cost(usage, "priority")) == exact / 10**6 * Fraction(3, 2)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_reservation_covers_any_outcome(plain: int, cached: int, written: int, out: int) -> None:
    usage = Usage(
        prompt_tokens=plain + cached + written,
        cached_tokens=cached,
        cache_write_tokens=written,
        completion_tokens=out,
    )
    for tier in ("default", "priority", "flex"):
        assert TABLE.cost(usage, tier) <= TABLE.at_most(usage.total_tokens, tier)
