"""Stored completions: what `store: true` keeps, and the routes that show it (R221–R223).

It must not know: the database, how events are made.
"""

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Literal
from urllib.parse import parse_qsl

import msgspec

from rejoinder.dialects import RequestPolicy
from rejoinder.dialects.bodies import decode_metadata_update
from rejoinder.errors import InvalidParameter, NotFound
from rejoinder.events import Collector, Done, Event
from rejoinder.service.accounts import Account
from rejoinder.service.store import CompletionStore, StoredCompletion, StoredMessage
from rejoinder.types import ChatRequest, DecodedRequest, JsonObject
from rejoinder.web.middleware import Exchange, Front
from rejoinder.web.requests import read_body

log = logging.getLogger("rejoinder.web")

MAX_LIMIT = 100

BOM = b"\xef\xbb\xbf"

REQUEST_FIELDS = (
    "tool_choice",
    "seed",
    "top_p",
    "temperature",
    "presence_penalty",
    "frequency_penalty",
    "tools",
    "response_format",
)
"""Parameters of the request that a stored completion repeats; null where it had none."""


class StoredCompletions:
    """Keeps completions and answers the routes over them."""

    def __init__(
        self, front: Front, store: CompletionStore, policy: RequestPolicy, *, max_body_bytes: int
    ) -> None:
        self._front = front
        self._store = store
        self._policy = policy
        self._max_body_bytes = max_body_bytes

    # ------------------------------------------------------------ keeping

    async def kept(
        self,
        events: AsyncGenerator[Event, None],
        *,
        exchange: Exchange,
        account: Account,
        body: bytes,
        decoded: DecodedRequest,
    ) -> AsyncGenerator[Event, None]:
        """The same events; the answer is stored before its last one leaves, so that who has seen
        the end can ask for it. A stream that is cut is not stored (A43)."""
        collector = Collector()
        async with aclosing(events):
            async for event in events:
                collector.feed(event)
                if isinstance(event, Done):
                    completion = collector.close()
                    document = exchange.dialect.encode_completion(
                        completion, decoded.answer, self._policy
                    )
                    try:
                        await self._save(
                            document, completion.id, exchange, account, body, decoded.chat
                        )
                    except Exception:  # the answer is good; it is only not kept
                        log.exception("completion %s could not be stored", completion.id)
                yield event

    async def _save(
        self,
        document: bytes,
        completion_id: str,
        exchange: Exchange,
        account: Account,
        body: bytes,
        request: ChatRequest,
    ) -> None:
        sent = msgspec.json.decode(body.removeprefix(BOM), type=dict[str, msgspec.Raw])
        messages = msgspec.json.decode(sent["messages"], type=list[msgspec.Raw])
        tree = msgspec.json.decode(document, type=dict[str, msgspec.Raw])
        more = {name: sent.get(name, msgspec.Raw(b"null")) for name in REQUEST_FIELDS}
        more["request_id"] = msgspec.Raw(msgspec.json.encode(exchange.request_id))
        more["input_user"] = msgspec.Raw(msgspec.json.encode(request.user))
        stored = StoredCompletion(
            id=completion_id,
            account=account.id,
            model=msgspec.json.decode(tree["model"], type=str),
            created=msgspec.json.decode(tree["created"], type=int),
            completion=msgspec.json.encode({**tree, **more}),
            messages=tuple(bytes(message) for message in messages),
            metadata=request.metadata if "metadata" in sent else None,
        )
        await self._store.save(stored)

    # ------------------------------------------------------------ routes

    async def list(self, exchange: Exchange) -> None:
        account = await self._front.require_account(exchange)
        query = Query(exchange)
        page = await self._store.list(
            account.id,
            after=query.text("after"),
            limit=query.limit(),
            order=query.order(),
            model=query.text("model"),
            metadata=query.metadata(),
        )
        rows = [(one.id, _document(one)) for one in page.items]
        await _reply_page(exchange, rows, has_more=page.has_more)

    async def retrieve(self, exchange: Exchange) -> None:
        account = await self._front.require_account(exchange)
        stored = await self._store.get(account.id, exchange.path_parameters["id"])
        await exchange.reply_json(_document(stored))

    async def update(self, exchange: Exchange) -> None:
        account = await self._front.require_account(exchange)
        raw = await read_body(exchange.scope, exchange.receive, max_bytes=self._max_body_bytes)
        metadata = decode_metadata_update(raw, exchange.dialect.name).metadata
        stored = await self._store.update_metadata(
            account.id, exchange.path_parameters["id"], metadata
        )
        await exchange.reply_json(_document(stored))

    async def delete(self, exchange: Exchange) -> None:
        account = await self._front.require_account(exchange)
        completion_id = exchange.path_parameters["id"]
        await self._store.delete(account.id, completion_id)
        await exchange.reply_json(
            {"object": "chat.completion.deleted", "id": completion_id, "deleted": True}
        )

    async def messages(self, exchange: Exchange) -> None:
        account = await self._front.require_account(exchange)
        completion_id = exchange.path_parameters["id"]
        query = Query(exchange)
        page = await self._store.messages(
            account.id,
            completion_id,
            after=_ordinal(query.text("after"), completion_id),
            limit=query.limit(),
            order=query.order(),
        )
        rows = [_message(one, completion_id) for one in page.items]
        await _reply_page(exchange, rows, has_more=page.has_more)


class Query:
    """The query string of a list route. Raises InvalidParameter that names the parameter."""

    def __init__(self, exchange: Exchange) -> None:
        text = exchange.scope["query_string"].decode("latin-1")
        self._values = dict(parse_qsl(text, keep_blank_values=True))

    def text(self, name: str) -> str | None:
        return self._values.get(name)

    def limit(self) -> int:
        limit = _natural(self._values.get("limit", "20"))
        if limit is None or not 1 <= limit <= MAX_LIMIT:
            raise InvalidParameter(
                f"Invalid 'limit': expected an integer from 1 to {MAX_LIMIT}.", param="limit"
            )
        return limit

    def order(self) -> Literal["asc", "desc"]:
        match self._values.get("order", "asc"):
            case "asc":
                return "asc"
            case "desc":
                return "desc"
            case _:
                raise InvalidParameter("Invalid 'order': expected asc or desc.", param="order")

    def metadata(self) -> tuple[tuple[str, str], ...]:
        pairs = self._values.items()
        return tuple(
            (name[len("metadata[") : -1], value)
            for name, value in pairs
            if name.startswith("metadata[") and name.endswith("]")
        )


Row = tuple[str, object]


async def _reply_page(exchange: Exchange, rows: Sequence[Row], *, has_more: bool) -> None:
    await exchange.reply_json(
        {
            "object": "list",
            "data": [value for _, value in rows],
            "first_id": rows[0][0] if rows else None,
            "last_id": rows[-1][0] if rows else None,
            "has_more": has_more,
        }
    )


def _document(stored: StoredCompletion) -> dict[str, object]:
    tree = msgspec.json.decode(stored.completion, type=dict[str, msgspec.Raw])
    metadata = None if stored.metadata is None else dict(stored.metadata)
    return {**tree, "metadata": metadata}


def _message(stored: StoredMessage, completion_id: str) -> Row:
    """An input message as the list shows it: parts apart from a string content."""
    message: JsonObject = msgspec.json.decode(stored.message)
    content = message.get("content")
    parts = content if isinstance(content, list) else None
    message_id = f"{completion_id}-{stored.ordinal}"
    shown = {
        "name": None,
        **message,
        "id": message_id,
        "content": None if parts is not None else content,
        "content_parts": parts,
    }
    return message_id, shown


def _ordinal(after: str | None, completion_id: str) -> int | None:
    if after is None:
        return None
    prefix, _, number = after.rpartition("-")
    ordinal = _natural(number)
    if prefix != completion_id or ordinal is None:
        raise NotFound(f"No message with the id '{after[:100]}'.", param="after")
    return ordinal


def _natural(text: str) -> int | None:
    """A number of a few ASCII digits, as any client of ours writes it; None for all else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
