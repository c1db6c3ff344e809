"""The table of routes: which path asks for what, in which dialect.

It must not know: how anything is answered.
"""

from collections.abc import Awaitable, Iterable, Mapping
from typing import Any

from msgspec import Struct
from starlette.routing import Route, Router

from rejoinder.dialects import Dialect
from rejoinder.web.middleware import Answerer, Front, answer_not_found, answer_wrong_method
from rejoinder.web.responses import Client, Scope, Send


class Endpoint(Struct, frozen=True):
    """One path and what answers each of its methods. `{name:path}` takes slashes too.

    `prefixed`: it exists under `/v1` and under `/v1/openai`, in the dialect of each.
    """

    path: str
    methods: Mapping[str, Answerer]
    prefixed: bool = True


def make_app(
    endpoints: Iterable[Endpoint],
    *,
    front: Front,
    by_prefix: Mapping[str, Dialect],
) -> "App":
    """The ASGI application. `by_prefix`: the dialect under each prefix, longest first; the last
    one is the dialect of everything else."""
    routes = []
    plain: dict[str, _MethodTable] = {}
    default = list(by_prefix.values())[-1]
    for endpoint in endpoints:
        places = by_prefix.items() if endpoint.prefixed else [("", default)]
        for prefix, dialect in places:
            answer = _MethodTable(front, endpoint.methods, dialect)
            if "{" in endpoint.path:
                routes.append(Route(prefix + endpoint.path, answer))
            else:
                plain[prefix + endpoint.path] = answer
    return App(plain, Router(routes, redirect_slashes=False, default=_NotFound(front, by_prefix)))


class App:
    """ASGI: a plain path is looked up, one with a parameter in it is matched by the router.

    Neither this nor `_MethodTable` is a coroutine: one that only awaits the next costs a frame for
    as long as a stream is open.
    """

    def __init__(self, plain: Mapping[str, "_MethodTable"], router: Router) -> None:
        self._plain = plain
        self._router = router

    def __call__(self, scope: Scope, receive: Client, send: Send) -> Awaitable[None]:
        found = self._plain.get(scope["path"]) if scope["type"] == "http" else None
        return (found or self._router)(scope, receive, send)


class _MethodTable:
    """ASGI: the answerer of the request's method, 405 for another (R214)."""

    def __init__(self, front: Front, methods: Mapping[str, Answerer], dialect: Dialect) -> None:
        self._front = front
        self._methods = methods
        self._dialect = dialect

    def __call__(self, scope: Scope, receive: Client, send: Send) -> Awaitable[None]:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        answer = self._methods.get(method, answer_wrong_method)
        scope["allowed_methods"] = self._methods.keys()
        return self._front.run(answer, self._dialect, scope, receive, send)


class _NotFound:
    """ASGI: 404 in the dialect of the path's prefix."""

    def __init__(self, front: Front, by_prefix: Mapping[str, Dialect]) -> None:
        self._front = front
        self._by_prefix = by_prefix

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"]
        found = [d for prefix, d in self._by_prefix.items() if path.startswith(prefix + "/")]
        dialect = found[0] if found else list(self._by_prefix.values())[-1]
        await self._front.run(answer_not_found, dialect, scope, receive, send)
