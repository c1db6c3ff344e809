"""`/fleets`: an operator looks at the replicas of a model, and adds, drains and removes some.

Only admin keys, who are everybody where no key exists. What is changed here lasts as long as the
process; the configuration file says what the next one begins with. It must not know: engines, how
replicas are chosen.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Annotated, Any, Protocol
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct

from rejoinder.errors import InvalidParameter, InvalidRequest, NotFound, PermissionDenied
from rejoinder.web.middleware import Exchange, Front
from rejoinder.web.requests import read_body

__all__ = ["Fleets", "Replicas"]

log = logging.getLogger("rejoinder.web")

MAX_BODY_BYTES = 64 * 1024


class Replicas(Protocol):
    """The replicas of one model; each is known by its URL."""

    def status(self) -> Sequence[Struct]: ...

    async def add(self, url: str) -> None:
        """Raises Unavailable where it does not answer as a replica should."""

    async def drain(self, url: str, within_seconds: float | None) -> None:
        """Returns when nothing runs there any more."""

    async def remove(self, url: str, within_seconds: float | None) -> None: ...


class _Change(Struct, forbid_unknown_fields=True):
    url: str
    within_seconds: Annotated[float, Meta(ge=0)] | None = None


class Fleets:
    """Answers for the fleets of this process, by the id of their model."""

    def __init__(self, front: Front, fleets: Mapping[str, Replicas]) -> None:
        self._front = front
        self._fleets = fleets
        self._deciding = asyncio.Lock()
        self._leaving: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        for task in self._leaving:
            task.cancel()
        await asyncio.gather(*self._leaving, return_exceptions=True)

    async def list(self, exchange: Exchange) -> None:
        await self._require_admin(exchange)
        fleets = [{"model": name, "replicas": one.status()} for name, one in self._fleets.items()]
        await self._reply(exchange, {"fleets": fleets})

    async def add(self, exchange: Exchange) -> None:
        """Answers when the replica is well and in the fleet."""
        fleet, change = await self._asked(exchange)
        if not _is_address(change.url):
            raise InvalidParameter(
                "Invalid 'url': expected http://HOST:PORT or https://….", param="url"
            )
        if change.url in _names(fleet):
            raise InvalidParameter(
                "The fleet has this replica already; one that drains can be removed and then "
                "added again.",
                param="url",
                code="replica_exists",
            )
        await fleet.add(change.url)
        log.info("replica %s was added", change.url)
        await self._show(exchange, fleet)

    async def drain(self, exchange: Exchange) -> None:
        """Answers at once: the replica gets nothing new. It stays in the list."""
        fleet, change = await self._asked(exchange)
        await self._let_go(exchange, fleet, change, fleet.drain)
        log.info("replica %s drains", change.url)

    async def remove(self, exchange: Exchange) -> None:
        """Answers at once: the replica gets nothing new, and leaves the list when it is empty."""
        fleet, change = await self._asked(exchange)
        await self._let_go(exchange, fleet, change, fleet.remove)
        log.info("replica %s leaves", change.url)

    # ------------------------------------------------------------ parts

    async def _require_admin(self, exchange: Exchange) -> None:
        await self._front.require_admin(
            exchange, "Fleets are about the whole server: they need an admin key."
        )

    def _fleet(self, exchange: Exchange) -> Replicas:
        name = exchange.path_parameters["model"]
        fleet = self._fleets.get(name)
        if fleet is None:
            raise NotFound(f"The model '{name[:200]}' is no fleet of this server.")
        return fleet

    async def _asked(self, exchange: Exchange) -> tuple[Replicas, _Change]:
        await self._require_admin(exchange)
        if exchange.header(b"origin") is not None:
            # Where no key exists, any page that an operator looks at could ask this.
            raise PermissionDenied("Fleets are not changed from web pages.")
        fleet = self._fleet(exchange)
        raw = await read_body(exchange.scope, exchange.receive, max_bytes=MAX_BODY_BYTES)
        try:
            return fleet, msgspec.json.decode(raw, type=_Change)
        except msgspec.MsgspecError as error:
            raise InvalidRequest(
                f'Expected {{"url": "…", "within_seconds": seconds or null}}: {error}'
            ) from None

    async def _let_go(
        self,
        exchange: Exchange,
        fleet: Replicas,
        change: _Change,
        leave: Callable[[str, float | None], Coroutine[Any, Any, None]],
    ) -> None:
        """Raises InvalidParameter for the last replica that would serve."""
        async with self._deciding:  # or two requests would count on each other's replica
            names = _names(fleet)
            if change.url not in names:
                raise NotFound(f"The fleet has no replica '{change.url[:200]}'.", param="url")
            if not any(state != "draining" for name, state in names.items() if name != change.url):
                raise InvalidParameter(
                    "No other replica would serve this model: add one first.",
                    param="url",
                    code="last_replica",
                )
            task = asyncio.create_task(leave(change.url, change.within_seconds))
            self._leaving.add(task)
            task.add_done_callback(self._left)
            await asyncio.sleep(0)  # it is marked by then, and what need not wait is done
        await self._show(exchange, fleet, status=202)

    def _left(self, task: "asyncio.Task[None]") -> None:
        self._leaving.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a replica could not be drained or removed", exc_info=error)

    async def _show(self, exchange: Exchange, fleet: Replicas, *, status: int = 200) -> None:
        body = {"model": exchange.path_parameters["model"], "replicas": fleet.status()}
        await self._reply(exchange, body, status=status)

    async def _reply(self, exchange: Exchange, body: object, *, status: int = 200) -> None:
        exchange.headers["cache-control"] = "no-store"
        await exchange.reply_json(body, status=status)


def _is_address(url: str) -> bool:
    """Of a server: no credentials, which logs and lists would show, and nothing that a path
    cannot be put behind."""
    try:
        parts = urlsplit(url)
        port_is_one = parts.port != 0
    except ValueError:
        return False
    clean = url.isascii() and url.isprintable() and not set(" @?#\\") & set(url)
    return clean and port_is_one and parts.scheme in ("http", "https") and bool(parts.hostname)


def _names(fleet: Replicas) -> dict[str, str]:
    """State by name."""
    shown = (msgspec.to_builtins(one) for one in fleet.status())
    return {one["name"]: one["state"] for one in shown}
