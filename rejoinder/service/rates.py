"""Requests and tokens a minute, by key, in this process or through Redis (package `limits`).

Fixed windows of one minute that begin with the first request in them, because what is left and
when it comes back can then be told exactly (R211). This module must not know: models, money.
"""

import functools
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from limits import RateLimitItem, RateLimitItemPerMinute
from limits.aio.storage import RedisStorage, Storage
from limits.aio.strategies import FixedWindowRateLimiter
from msgspec import Struct

from rejoinder.config import ConfigError
from rejoinder.errors import Unavailable
from rejoinder.service.accounts import Account

if TYPE_CHECKING:
    from redis.asyncio import ConnectionPool

__all__ = ["Allowance", "Rates", "Window"]


_log = logging.getLogger(__name__)


class Window(Struct, frozen=True):
    """One limit as it stands: `remaining` after the request, `reset_seconds` until it is whole."""

    kind: Literal["requests", "tokens"]
    limit: int
    remaining: int
    reset_seconds: float


class Allowance(Struct, frozen=True):
    """What a request took. `refused`: the window that had no room; then nothing was taken."""

    account: Account
    windows: tuple[Window, ...]
    num_tokens: int = 0
    token_window_ends: float = 0.0
    refused: Window | None = None


class Rates:
    """The windows of all keys. `redis_url` empty: in this process."""

    def __init__(self, redis_url: str = "", *, clock: Callable[[], float] = time.time) -> None:
        self._storage: Storage
        self._pool: ConnectionPool | None = None
        if redis_url:
            self._storage, self._pool = _redis(redis_url)
        else:
            self._storage = WindowStorage(clock)
        self._limiter = FixedWindowRateLimiter(self._storage)
        self._clock = clock

    async def take(self, account: Account, num_tokens: int) -> Allowance:
        """Counts one request and its estimated tokens, or refuses.

        A request larger than a whole window may pass when the window is untouched: it could
        never pass otherwise. Raises Unavailable when Redis cannot be reached: a limit that
        cannot be counted is not lifted.
        """
        try:
            return await self._take(account, num_tokens)
        except self._storage.base_exceptions as error:
            raise Unavailable("The rate limits cannot be read.", retry_after=1) from error

    async def _take(self, account: Account, num_tokens: int) -> Allowance:
        rpm, tpm = _items(account)
        if tpm is not None:
            num_tokens = min(num_tokens, tpm.amount)
            if not await self._limiter.test(tpm, account.key_id, cost=num_tokens):
                return await self._refuse(account, "tokens")
        if rpm is not None and not await self._limiter.hit(rpm, account.key_id):
            return await self._refuse(account, "requests")
        if tpm is not None and not await self._limiter.hit(tpm, account.key_id, cost=num_tokens):
            await self._give_back(tpm, account, num_tokens)
            if rpm is not None:
                await self._give_back(rpm, account, 1)
            return await self._refuse(account, "tokens")
        windows = await self._windows(account)
        return Allowance(account, windows, num_tokens, self._end_of_tokens(windows))

    async def correct(self, allowance: Allowance, num_tokens: int) -> None:
        """Replaces the estimate by the true count, in the window that it was taken from."""
        _, tpm = _items(allowance.account)
        if tpm is None or self._clock() >= allowance.token_window_ends:
            return
        excess = allowance.num_tokens - num_tokens
        try:
            if excess > 0:
                await self._give_back(tpm, allowance.account, excess)
            elif excess < 0:
                await self._limiter.hit(tpm, allowance.account.key_id, cost=-excess)
        except self._storage.base_exceptions as error:
            _log.warning("a token count could not be corrected: %s", type(error).__name__)

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.disconnect()

    async def peek(self, account: Account) -> Allowance:
        """How the windows stand, as far as that can be told now; takes nothing."""
        try:
            return Allowance(account, await self._windows(account))
        except self._storage.base_exceptions:
            return Allowance(account, ())

    async def _refuse(self, account: Account, kind: Literal["requests", "tokens"]) -> Allowance:
        windows = await self._windows(account)
        refused = next(window for window in windows if window.kind == kind)
        return Allowance(account, windows, refused=refused)

    async def _give_back(self, item: RateLimitItem, account: Account, amount: int) -> None:
        key = item.key_for(account.key_id)
        await self._storage.incr(key, item.get_expiry(), amount=-amount)

    async def _windows(self, account: Account) -> tuple[Window, ...]:
        windows = []
        kinds: tuple[Literal["requests", "tokens"], ...] = ("requests", "tokens")
        for kind, item in zip(kinds, _items(account), strict=True):
            if item is not None:
                reset, remaining = await self._limiter.get_window_stats(item, account.key_id)
                seconds = max(0.0, reset - self._clock())
                windows.append(Window(kind, item.amount, remaining, seconds))
        return tuple(windows)

    def _end_of_tokens(self, windows: tuple[Window, ...]) -> float:
        now = self._clock()
        return max((now + w.reset_seconds for w in windows if w.kind == "tokens"), default=0.0)


def _redis(url: str) -> "tuple[Storage, ConnectionPool]":
    """Raises ConfigError when Redis cannot be used from here at all."""
    try:
        from redis.asyncio import BlockingConnectionPool
    except ImportError:
        raise ConfigError("limits.redis_url needs the package extra 'redis'") from None
    try:
        pool = BlockingConnectionPool.from_url(
            url, max_connections=32, timeout=5, socket_timeout=2, socket_connect_timeout=2
        )
    except ValueError as error:
        raise ConfigError(f"limits.redis_url: {error}") from None
    options: dict[str, Any] = {"connection_pool": pool}
    return RedisStorage("async+" + url, implementation="redispy", **options), pool


def _items(account: Account) -> tuple[RateLimitItem | None, RateLimitItem | None]:
    return _items_of(account.requests_per_minute, account.tokens_per_minute)


@functools.lru_cache(maxsize=1024)
def _items_of(
    rpm: int | None, tpm: int | None
) -> tuple[RateLimitItem | None, RateLimitItem | None]:
    return (
        None if rpm is None else RateLimitItemPerMinute(rpm, namespace="requests"),
        None if tpm is None else RateLimitItemPerMinute(tpm, namespace="tokens"),
    )


class WindowStorage(Storage):
    """Windows in this process. The storage of `limits` for this looks at every key on each hit,
    which shows from a few hundred keys on; this one forgets what has expired once a minute."""

    STORAGE_SCHEME = ["async+rejoinder"]  # noqa: RUF012 — declared so by `Storage`

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        super().__init__()
        self._clock = clock
        self._windows: dict[str, tuple[int, float]] = {}
        """By key: the count, and when it is forgotten."""
        self._sweep_at = 0.0

    @property
    def base_exceptions(self) -> type[Exception]:
        return ValueError

    async def incr(self, key: str, expiry: float, amount: int = 1) -> int:
        now = self._clock()
        if now >= self._sweep_at:
            self._sweep_at = now + 60
            self._windows = {k: w for k, w in self._windows.items() if w[1] > now}
        count, ends = self._windows.get(key, (0, 0.0))
        if ends <= now:
            count, ends = 0, now + expiry
        count = max(0, count + amount)
        self._windows[key] = (count, ends)
        return count

    async def get(self, key: str) -> int:
        count, ends = self._windows.get(key, (0, 0.0))
        return count if ends > self._clock() else 0

    async def get_expiry(self, key: str) -> float:
        now = self._clock()
        _, ends = self._windows.get(key, (0, 0.0))
        return max(now, ends)

    async def check(self) -> bool:
        return True

    async def reset(self) -> int:
        num_windows = len(self._windows)
        self._windows.clear()
        return num_windows

    async def clear(self, key: str) -> None:
        self._windows.pop(key, None)
