"""The page and the dashboard: static files, read once, served from memory.

Only names in the table exist, so no path can lead outside. It must not know: what the pages do.
"""

import gzip
import hashlib
from collections.abc import Mapping
from importlib.resources import files

from msgspec import Struct

from rejoinder.errors import NotFound
from rejoinder.web.middleware import Exchange

CONTENT_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""Nothing from elsewhere, nothing inline, and no text that becomes HTML."""

HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-cache",
    "vary": "accept-encoding",
}
"""`no-cache`: kept by browsers and asked about each time, so that an upgrade shows at once."""


class Page(Struct, frozen=True):
    """One file, plain and compressed, with the tag of its content."""

    content_type: str
    body: bytes
    compressed: bytes
    tag: str


def read_pages() -> Mapping[str, Page]:
    """The files of the package `rejoinder.web.playground` by their names."""
    pages = {}
    for file in (files("rejoinder.web") / "playground").iterdir():
        content_type = CONTENT_TYPES.get(file.name.rpartition(".")[2])
        if content_type is not None:
            body = file.read_bytes()
            tag = f'"{hashlib.sha256(body).hexdigest()[:20]}"'
            pages[file.name] = Page(content_type, body, gzip.compress(body, mtime=0), tag)
    return pages


class Pages:
    """Answers `/`, `/dashboard` and `/playground/NAME`. Anyone may have them: they hold no data."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self._pages = pages

    async def playground(self, exchange: Exchange) -> None:
        await self._show(exchange, "index.html")

    async def dashboard(self, exchange: Exchange) -> None:
        await self._show(exchange, "dashboard.html")

    async def file(self, exchange: Exchange) -> None:
        await self._show(exchange, exchange.path_parameters["name"])

    async def _show(self, exchange: Exchange, name: str) -> None:
        page = self._pages.get(name)
        if page is None:
            raise NotFound("There is no such page.", code="unknown_url")
        headers = {**HEADERS, "etag": page.tag}
        if _names(exchange.header(b"if-none-match"), page.tag):
            await exchange.reply(304, b"", headers, content_type=page.content_type)
            return
        body = page.body
        if _names(exchange.header(b"accept-encoding"), "gzip"):
            headers["content-encoding"] = "gzip"
            body = page.compressed
        await exchange.reply(200, body, headers, content_type=page.content_type)


def _names(header: str | None, value: str) -> bool:
    """Whether a list header has this value; weak tags count, refusals (`;q=0`) do not."""
    for part in (header or "").split(","):
        name, _, weight = part.strip().partition(";")
        if name.strip().removeprefix("W/") == value:
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
