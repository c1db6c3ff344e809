"""ChatRequest → events: the only thing that the rest of the service knows of models.

This package must not know: HTTP requests of clients, accounts, prices.
"""

from collections.abc import AsyncGenerator
from typing import Protocol

from rejoinder.events import Event
from rejoinder.types import ChatRequest, Meter

__all__ = ["Backend"]


class Backend(Protocol):
    """One model at chat level. Closing the generator cancels all of its work."""

    def chat(self, request: ChatRequest, meter: Meter) -> AsyncGenerator[Event, None]:
        """Events of one answer, as `rejoinder.events` orders them.

        Raises ChatError: before the first event for what can be refused cleanly, later for what
        breaks underway. `meter` is right at any time, also when the generator is closed early.
        """
        ...

    async def close(self) -> None:
        """Frees everything; running generators end with an error."""
        ...
