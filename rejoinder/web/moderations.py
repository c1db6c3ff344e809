"""`POST /v1/moderations`: texts → scores by category (contract, section 6).

It must not know: which moderator scores.
"""

import secrets

import msgspec

from rejoinder.errors import InvalidParameter, Unavailable
from rejoinder.service.moderation import ModerationUnavailable, Moderator
from rejoinder.types import ModerationResult
from rejoinder.web.middleware import Exchange, Front
from rejoinder.web.requests import read_body

MAX_INPUTS = 128


class _TextPart(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class _ImagePart(msgspec.Struct, tag_field="type", tag="image_url"):
    image_url: msgspec.Raw


class _Body(msgspec.Struct):
    input: str | list[str | _TextPart | _ImagePart]
    model: str | None = None


class Moderations:
    def __init__(self, front: Front, moderator: Moderator, *, max_body_bytes: int) -> None:
        self._front = front
        self._moderator = moderator
        self._max_body_bytes = max_body_bytes

    async def create(self, exchange: Exchange) -> None:
        await self._front.require_account(exchange)
        raw = await read_body(exchange.scope, exchange.receive, max_bytes=self._max_body_bytes)
        try:
            scored = await self._moderator.moderate(_texts(_decode(raw)))
        except ModerationUnavailable as error:
            raise Unavailable(error.message, code=error.code, retry_after=1) from None
        await exchange.reply_json(
            {
                "id": "modr-" + secrets.token_hex(12),
                "model": scored.model,
                "results": [_row(one) for one in scored.results],
            }
        )


def _decode(raw: bytes) -> _Body:
    try:
        return msgspec.json.decode(raw, type=_Body)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at ")
        param = path.strip("`").removeprefix("$.") or "input"
        raise InvalidParameter(f"Invalid '{param}': {text}.", param=param) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidParameter("The request body is not valid JSON.") from None


def _texts(body: _Body) -> list[str]:
    """Strings are scored one by one; content parts are one input together."""
    if isinstance(body.input, str):
        return [body.input]
    if not body.input:
        raise InvalidParameter("Invalid 'input': empty array.", param="input", code="empty_array")
    if len(body.input) > MAX_INPUTS:
        raise InvalidParameter(
            f"Invalid 'input': at most {MAX_INPUTS} texts, but got {len(body.input)}.",
            param="input",
            code="array_above_max_length",
        )
    if any(isinstance(part, _ImagePart) for part in body.input):
        raise InvalidParameter("Images cannot be scored here, only text.", param="input")
    strings = [part for part in body.input if isinstance(part, str)]
    parts = [part.text for part in body.input if isinstance(part, _TextPart)]
    if strings and parts:
        raise InvalidParameter("Invalid 'input': strings and parts are mixed.", param="input")
    return strings or ["\n".join(parts)]


def _row(result: ModerationResult) -> dict[str, object]:
    return {
        "flagged": result.flagged,
        "categories": result.categories,
        "category_scores": result.category_scores,
        "category_applied_input_types": result.category_applied_input_types,
    }
