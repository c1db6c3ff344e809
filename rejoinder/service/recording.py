"""Puts the record of each request on the ledger: opened before the first work, closed once.

This module must not know: how rows are written, how a request is served.
"""

from decimal import Decimal

from rejoinder.service.chat import Record
from rejoinder.service.ledger import Closing, Ledger, LedgerEntry
from rejoinder.types import Meter

__all__ = ["LedgerRecorder"]


class LedgerRecorder:
    """The ledger as the path of a request sees it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def open(self, record: Record, meter: Meter) -> str:
        """The id of the row. Raises Unavailable when it cannot be written."""
        entry = LedgerEntry(
            request_id=record.request_id,
            account=record.account,
            key_id=record.key_id,
            model=record.model,
            tier=record.tier,
            prices=record.prices,
        )
        return await self._ledger.open(entry, meter)

    async def close(self, row: str, record: Record) -> None:
        self._ledger.close(
            row,
            Closing(
                status=record.status,
                usage=record.usage,
                cost=Decimal(0) if record.cost is None else record.cost,
                finish=",".join(record.finish_reasons),
                error_code=record.error or "",
                first_token_seconds=record.first_event_seconds,
                total_seconds=record.total_seconds,
            ),
        )
