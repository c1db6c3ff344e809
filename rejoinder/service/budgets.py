"""What a key may spend: money is reserved when a request starts and settled when it ends.

A request is admitted while what is spent and reserved is below the budget, so a budget is passed
by no more than the last request that fitted under it. This module must not know: tokens, prices.
"""

import time
from collections.abc import Awaitable, Callable
from decimal import Decimal

from msgspec import Struct

from rejoinder.service.accounts import Account, period_start

__all__ = ["Budgets", "Reservation", "SpentSince"]

SpentSince = Callable[[str, float], Awaitable[Decimal]]
"""(key id, seconds since the epoch) → US dollars on the ledger since then."""


class Reservation(Struct, frozen=True):
    key_id: str
    period: float
    amount: Decimal


class _Book:
    """One key in one period. `read_at`: when `spent` was last read from the ledger."""

    __slots__ = ("period", "read_at", "reserved", "spent")

    def __init__(self, period: float, spent: Decimal, read_at: float) -> None:
        self.period = period
        self.spent = spent
        self.read_at = read_at
        self.reserved = Decimal(0)


class Budgets:
    """The budgets of all keys, read from the ledger when a key first asks in a period.

    `reread_seconds`: where several replicas write one ledger, how old the sum of what the others
    have spent may be. None: this process is the only one, and keeps count itself.
    """

    def __init__(
        self,
        spent_since: SpentSince | None = None,
        *,
        reread_seconds: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._spent_since = spent_since
        self._reread_seconds = reread_seconds
        self._clock = clock
        self._books: dict[str, _Book] = {}

    async def reserve(self, account: Account, amount: Decimal) -> Reservation | None:
        """None: the budget is spent. An account without a budget reserves nothing."""
        if account.budget_usd is None:
            return Reservation(account.key_id, -1.0, Decimal(0))
        book = await self._book(account)
        if book.spent + book.reserved >= account.budget_usd:
            return None
        book.reserved += amount
        return Reservation(account.key_id, book.period, amount)

    async def settle(self, reservation: Reservation, cost: Decimal) -> None:
        """The reservation becomes the true cost, in the period in which it was made."""
        book = self._books.get(reservation.key_id)
        if book is not None and book.period == reservation.period:
            book.reserved -= reservation.amount
            book.spent += cost

    async def _book(self, account: Account) -> _Book:
        now = self._clock()
        period = period_start(account.budget_period, now)
        book = self._books.get(account.key_id)
        if book is not None and book.period == period and self._is_fresh(book, now):
            return book
        spent = Decimal(0)
        if self._spent_since is not None:
            spent = await self._spent_since(account.key_id, period)
        newest = self._books.get(account.key_id)
        if newest is None or newest.period != period:
            newest = self._books[account.key_id] = _Book(period, spent, now)
        elif not self._is_fresh(newest, now):
            newest.spent, newest.read_at = spent, now
        return newest

    def _is_fresh(self, book: _Book, now: float) -> bool:
        return self._reread_seconds is None or now - book.read_at < self._reread_seconds
