"""Stopping in order: no new work, running answers may finish, the rest end with an error.

It must not know: signals, sockets.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from rejoinder.errors import ChatError, Unavailable

STOPPING = "The server is shutting down. Please retry your request."


class Drain:
    """Every running answer registers how to end it early."""

    def __init__(self) -> None:
        self._open = True
        self._aborts: dict[object, Callable[[ChatError], None]] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def is_open(self) -> bool:
        return self._open

    def require_open(self) -> None:
        """Raises Unavailable once the server is stopping."""
        if not self._open:
            raise Unavailable(STOPPING, retry_after=1)

    def running(self, abort: Callable[[ChatError], None]) -> "_Running":
        """Counts an answer as running; `abort` ends it with an error when time is up."""
        return _Running(self._aborts, self._empty, abort)

    @contextlib.asynccontextmanager
    async def running_task(self) -> AsyncIterator[None]:
        """The same for work of the current task, which is cancelled and raises the error."""
        task = asyncio.current_task()
        assert task is not None
        failure: list[ChatError] = []

        def abort(error: ChatError) -> None:
            failure.append(error)
            task.cancel()

        with self.running(abort):
            try:
                yield
            except asyncio.CancelledError:
                if failure and task.uncancel() == 0:
                    raise failure[0] from None
                raise

    async def close(self, grace_seconds: float) -> None:
        """Refuses new work and waits; what still runs after the grace period is ended."""
        self._open = False
        try:
            async with asyncio.timeout(grace_seconds):
                await self._empty.wait()
        except TimeoutError:
            for abort in list(self._aborts.values()):
                abort(Unavailable(STOPPING, retry_after=1))
            await self._empty.wait()


class _Running:
    """An answer that runs, from enter to exit: an object, a quarter of the size of a generator."""

    __slots__ = ("_abort", "_aborts", "_empty")

    def __init__(
        self,
        aborts: dict[object, Callable[[ChatError], None]],
        empty: asyncio.Event,
        abort: Callable[[ChatError], None],
    ) -> None:
        self._aborts = aborts
        self._empty = empty
        self._abort = abort

    def __enter__(self) -> None:
        self._aborts[self] = self._abort
        self._empty.clear()

    def __exit__(self, *_: object) -> None:
        del self._aborts[self]
        if not self._aborts:
            self._empty.set()
