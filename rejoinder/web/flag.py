"""`asyncio.Event` in a tenth of its memory.

An Event keeps a deque, which is 700 bytes before anybody waits; every connection had four of
them. It must not know: what is waited for.
"""

import asyncio
from collections.abc import Callable

__all__ = ["Flag"]


class Flag:
    """Set or not; any number of tasks may wait for it."""

    __slots__ = ("_is_set", "_waiters", "_watcher")

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: list[asyncio.Future[None]] | None = None
        self._watcher: Callable[[], None] | None = None

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """All who wait go on, also where it is cleared again before they run."""
        self._is_set = True
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(None)
        if self._watcher is not None:
            self._watcher()

    def when_set(self, watcher: Callable[[], None] | None) -> None:
        """`watcher` is called each time that it is set from now on; None ends that."""
        self._watcher = watcher

    def clear(self) -> None:
        self._is_set = False

    async def wait(self) -> bool:
        """Returns True when it is set, at once where it is already."""
        if not self._is_set:
            waiter = asyncio.get_running_loop().create_future()
            if self._waiters is None:
                self._waiters = [waiter]
            else:
                self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if self._waiters is not None and waiter in self._waiters:
                    self._waiters.remove(waiter)
                raise
        return True
