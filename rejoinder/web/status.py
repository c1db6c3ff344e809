"""`/health` and `/ready`: whether the process lives, and whether it can serve.

It must not know: what makes a model ready.
"""

from collections.abc import Callable

from rejoinder.web.drain import Drain
from rejoinder.web.middleware import Exchange


class Status:
    """`readiness` says whether the service can serve, and what is wrong with it."""

    def __init__(self, drain: Drain, readiness: Callable[[], tuple[bool, list[str]]]) -> None:
        self._drain = drain
        self._readiness = readiness

    async def health(self, exchange: Exchange) -> None:
        await exchange.reply_json({"status": "ok"})

    async def ready(self, exchange: Exchange) -> None:
        ready, failures = self._readiness()
        if not self._drain.is_open:
            ready = False
            failures.append("the server is shutting down")
        status = 200 if ready else 503
        word = "ready" if ready else "not ready"
        await exchange.reply_json({"status": word, "failures": failures}, status=status)
