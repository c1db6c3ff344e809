"""When a request is tried again and after how long: the policy by itself, no clock, no sockets."""

from typing import Any

import pytest

from rejoinder.backends.retry import RetryPolicy, retry_after_seconds
from rejoinder.errors import ChatError, InvalidRequest, Overloaded, ProviderFailed

POLICY = RetryPolicy(max_retries=3, first_wait=1.0, longest_backoff=3.0, longest_wait=30.0)


def wait(error: ChatError | None = None, **keys: Any) -> float | None:
    given: dict[str, Any] = {
        "attempt": 0,
        "retry_after": None,
        "remaining": 1000.0,
        "random": lambda: 1.0,
        **keys,
    }
    return POLICY.wait(error or ProviderFailed("x"), **given)


def test_backoff_doubles_up_to_its_limit_and_ends() -> None:
    assert [wait(attempt=n) for n in range(4)] == [1.0, 2.0, 3.0, None]


def test_jitter_takes_up_to_half() -> None:
    assert wait(random=lambda: 0.0) == 0.5
    assert wait(random=lambda: 0.5) == 0.75


@pytest.mark.parametrize(
    ("asked", "waited"), [(0.0, 1.0), (2.0, 2.2), (20.0, 22.0), (30.0, 33.0), (30.1, None)]
)
def test_the_providers_wish_wins_while_it_is_short(asked: float, waited: float | None) -> None:
    got = wait(retry_after=asked)
    assert got == (None if waited is None else pytest.approx(waited))


def test_never_past_the_deadline() -> None:
    assert wait(remaining=0.9) is None
    assert wait(retry_after=20.0, remaining=21.0) is None


@pytest.mark.parametrize(
    "error", [InvalidRequest("x"), Overloaded("x", code="provider_quota"), ChatError("x")]
)
def test_what_no_retry_helps(error: ChatError) -> None:
    assert wait(error) is None


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "2"}, 2.0),
        ({"Retry-After": " 2.5 "}, 2.5),
        ({"retry-after": "3"}, 3.0),
        ({"Retry-After": "9", "retry-after-ms": "1500"}, 1.5),
        ({"Retry-After": "Thu, 01 Jan 1970 00:01:40 GMT"}, 40.0),
        ({"Retry-After": "Thu, 01 Jan 1970 00:00:10 GMT"}, 0.0),
        ({"Retry-After": "-5"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "Thu, 99 Jan 99999999999 00:00:10 GMT"}, None),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_seconds(headers, now=60.0) == seconds
