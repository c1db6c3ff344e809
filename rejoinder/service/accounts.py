"""Who asks: API keys become accounts (R203, R204).

Only SHA-256 digests of keys are kept. Keys come from the configuration and from the database
(`rejoinder keys create`). This module must not know: HTTP beyond the two header values, models.
"""

import asyncio
import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Literal, Protocol

from msgspec import Struct

from rejoinder.config import KeyConfig
from rejoinder.errors import AuthenticationFailed, Unavailable
from rejoinder.types import Tier

__all__ = ["LOCAL", "Account", "Accounts", "CreatedKey", "KeySource", "bearer_token"]

_log = logging.getLogger(__name__)

BudgetPeriod = Literal["day", "month", "total"]

UNKNOWN_KEY_SECONDS = 0.2
"""An unknown key makes the stored keys be read again, at most so often."""

ALL_TIERS: tuple[Tier, ...] = ("default", "flex", "priority")


class Account(Struct, frozen=True, kw_only=True):
    """What one key may do. `id` is who pays, `key_id` names the key without telling it.

    `models` empty: every model. Limits and budget (US dollars) are the key's own; None: no limit.
    """

    id: str
    key_id: str
    tiers: tuple[Tier, ...] = ALL_TIERS
    models: tuple[str, ...] = ()
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    budget_usd: Decimal | None = None
    budget_period: BudgetPeriod = "total"
    admin: bool = False


LOCAL = Account(id="local", key_id="local", admin=True)
"""Everybody, where no key is configured at all (loopback only)."""


class CreatedKey(Struct, frozen=True, kw_only=True):
    """A key made by `rejoinder keys create`, as it is stored: digest, never the key."""

    digest: bytes
    account: Account
    name: str = ""
    created_at: float = 0.0
    expires_at: float | None = None
    revoked_at: float | None = None


class KeySource(Protocol):
    """Where created keys are stored."""

    async def revision(self) -> str:
        """Changes when any key is created or revoked."""
        ...

    async def load(self) -> Sequence[CreatedKey]: ...


def bearer_token(authorization: str) -> str | None:
    """The token of `Bearer TOKEN`: the scheme in any case, any blanks around, exactly one word."""
    words = authorization.split()
    if len(words) != 2 or words[0].lower() != "bearer":
        return None
    return words[1]


def key_digest(key: str) -> bytes:
    """SHA-256 of the key's bytes as they were on the wire (header text is Latin-1)."""
    try:
        data = key.encode("latin-1")
    except UnicodeEncodeError:
        data = key.encode("utf-8", "surrogatepass")
    return hashlib.sha256(data).digest()


def key_id_of(digest: bytes) -> str:
    return "key_" + digest.hex()[:16]


class Accounts:
    """Authenticates requests. Look-ups do not depend on how much of a guess is right.

    A created or revoked key counts at most `fresh_seconds` after it was stored.
    """

    def __init__(
        self,
        keys: Iterable[KeyConfig],
        *,
        source: KeySource | None = None,
        clock: Callable[[], float] = time.time,
        fresh_seconds: float = 2.0,
    ) -> None:
        self._secret = secrets.token_bytes(32)
        self._clock = clock
        self._source = source
        self._fresh_seconds = fresh_seconds
        self._revision = ""
        self._checked_at = float("-inf")
        self._loaded = False
        self._refreshing = asyncio.Lock()
        self._configured = {}
        for key in keys:
            digest = bytes.fromhex(key.key_sha256)
            self._configured[self._slot(digest)] = CreatedKey(
                digest=digest, account=_account_of(key, digest)
            )
        self._created: dict[bytes, CreatedKey] = {}

    async def authenticate(self, authorization: str | None, xi_api_key: str | None) -> Account:
        """The account of the key in either header. Raises AuthenticationFailed, Unavailable.

        Where there is no key anywhere, everybody is the account "local".
        """
        await self._refresh()
        if not self._configured and not self._created:
            return LOCAL
        digest = key_digest(_presented_key(authorization, xi_api_key))
        key = self._find(digest)
        if key is None and self._source is not None:
            await self._refresh(fresh_seconds=min(UNKNOWN_KEY_SECONDS, self._fresh_seconds))
            key = self._find(digest)
        if key is None or not hmac.compare_digest(key.digest, digest):
            raise AuthenticationFailed("Incorrect API key provided.")
        if key.revoked_at is not None:
            raise AuthenticationFailed("This API key has been revoked.")
        if key.expires_at is not None and self._clock() >= key.expires_at:
            raise AuthenticationFailed("This API key has expired.")
        return key.account

    def _find(self, digest: bytes) -> CreatedKey | None:
        slot = self._slot(digest)
        return self._configured.get(slot) or self._created.get(slot)

    async def _refresh(self, fresh_seconds: float | None = None) -> None:
        """Until the created keys have been read once nobody gets in: not knowing of any is not
        the same as there being none. Later the last known keys serve while they are read, but
        who comes with an unknown key waits (`fresh_seconds`): it may have just been made."""
        waits = fresh_seconds is not None
        fresh = self._fresh_seconds if fresh_seconds is None else fresh_seconds
        if self._source is None or self._clock() - self._checked_at < fresh:
            return
        if self._loaded and self._refreshing.locked() and not waits:
            return
        async with self._refreshing:
            began = self._clock()
            if began - self._checked_at < fresh:
                return
            try:
                await self._load(self._source)
            except Exception as error:
                _log.warning("the created keys cannot be read: %s", error)
                if not self._loaded:
                    raise Unavailable("The API keys cannot be read.", retry_after=1) from error
            # What was stored while they were read may be missing from them.
            self._checked_at = began

    async def _load(self, source: KeySource) -> None:
        revision = await source.revision()
        if revision != self._revision or not self._loaded:
            keys = await source.load()
            self._created = {self._slot(key.digest): key for key in keys}
            self._revision = revision
        self._loaded = True

    def _slot(self, digest: bytes) -> bytes:
        """Where a digest is filed: keyed with a secret of this process, so that the time of the
        look-up tells nothing about how near a guess is."""
        return hashlib.blake2b(digest, key=self._secret, digest_size=16).digest()


def _presented_key(authorization: str | None, xi_api_key: str | None) -> str:
    if authorization is not None:
        token = bearer_token(authorization)
        if token is None:
            raise AuthenticationFailed(
                "You didn't provide an API key. Send it as 'Authorization: Bearer KEY'."
            )
        return token
    if xi_api_key is not None and xi_api_key.strip():
        return xi_api_key.strip()
    raise AuthenticationFailed(
        "You didn't provide an API key. Send it as 'Authorization: Bearer KEY'."
    )


def _account_of(key: KeyConfig, digest: bytes) -> Account:
    return Account(
        id=key.account,
        key_id=key_id_of(digest),
        tiers=key.tiers,
        models=key.models,
        requests_per_minute=key.requests_per_minute,
        tokens_per_minute=key.tokens_per_minute,
        budget_usd=None if key.budget_usd is None else Decimal(repr(key.budget_usd)),
        budget_period=key.budget_period,
        admin=key.admin,
    )


def new_key() -> str:
    """A fresh key: 32 random bytes, in letters that survive copying."""
    return "sk-rj-" + secrets.token_urlsafe(32)


def period_start(period: BudgetPeriod, now: float) -> float:
    """When the budget period that contains `now` began: UTC days and calendar months."""
    moment = datetime.fromtimestamp(now, UTC)
    match period:
        case "day":
            return moment.replace(hour=0, minute=0, second=0, microsecond=0).timestamp()
        case "month":
            start = moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
            return start.timestamp()
        case "total":
            return 0.0
