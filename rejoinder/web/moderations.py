"""`POST /v1/moderations`: texts → scores by category (contract, section 6).

It must not know: which moderator scores.
"""

import secrets

from rejoinder.dialects.bodies import decode_moderation
from rejoinder.errors import InvalidParameter, Unavailable
from rejoinder.service.moderation import ModerationUnavailable, Moderator
from rejoinder.types import ContentPart, ModerationResult, TextPart
from rejoinder.web.middleware import Exchange, Front
from rejoinder.web.requests import read_body


class Moderations:
    def __init__(self, front: Front, moderator: Moderator, *, max_body_bytes: int) -> None:
        self._front = front
        self._moderator = moderator
        self._max_body_bytes = max_body_bytes

    async def create(self, exchange: Exchange) -> None:
        await self._front.require_account(exchange)
        raw = await read_body(exchange.scope, exchange.receive, max_bytes=self._max_body_bytes)
        body = decode_moderation(raw, exchange.dialect.name)
        try:
            scored = await self._moderator.moderate([_text(item) for item in body.input])
        except ModerationUnavailable as error:
            raise Unavailable(error.message, code=error.code, retry_after=1) from None
        await exchange.reply_json(
            {
                "id": "modr-" + secrets.token_hex(12),
                "model": scored.model,
                "results": [_row(one) for one in scored.results],
            }
        )


def _text(item: str | tuple[ContentPart, ...]) -> str:
    """Parts are one text together. Raises InvalidParameter for what is not text."""
    if isinstance(item, str):
        return item
    texts = [part.text for part in item if isinstance(part, TextPart)]
    if len(texts) < len(item):
        raise InvalidParameter("Images cannot be scored here, only text.", param="input")
    return "\n".join(texts)


def _row(result: ModerationResult) -> dict[str, object]:
    return {
        "flagged": result.flagged,
        "categories": result.categories,
        "category_scores": result.category_scores,
        "category_applied_input_types": result.category_applied_input_types,
    }
