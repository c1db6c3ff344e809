"""`/health` and `/ready`: whether the process lives, and whether it can serve.

It must not know: what makes a model ready.
"""

from collections.abc import Callable

from rejoinder.web.drain import Drain
from rejoinder.web.middleware import Exchange


class Status:
    """`failures` names what keeps the service from serving, empty when all is well."""

    def __init__(self, drain: Drain, failures: Callable[[], list[str]]) -> None:
        self._drain = drain
        self._failures = failures

    async def health(self, exchange: Exchange) -> None:
        await exchange.reply_json({"status": "ok"})

    async def ready(self, exchange: Exchange) -> None:
        failures = self._failures()
        if not self._drain.is_open:
            failures.append("the server is shutting down")
        status = 503 if failures else 200
        word = "not ready" if failures else "ready"
        await exchange.reply_json({"status": word, "failures": failures}, status=status)
