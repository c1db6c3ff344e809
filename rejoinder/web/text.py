"""`/tokenize`, `/detokenize`, `/apply-template`: what the model really sees.

It must not know: how a template renders, which engine.
"""

from typing import TypeVar

import msgspec
from msgspec import Struct

from rejoinder.backends.models import Models
from rejoinder.backends.token import TokenBackend
from rejoinder.dialects import RequestPolicy
from rejoinder.errors import InvalidParameter, InvalidRequest
from rejoinder.web.middleware import Exchange, Front
from rejoinder.web.requests import read_body


class TokenizeBody(Struct, frozen=True):
    """`prompt`, or `content` as llama.cpp's server calls it. `special`: control tokens in it are
    ids, not text."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    special: bool = False


class DetokenizeBody(Struct, frozen=True):
    tokens: list[int]
    model: str | None = None


B = TypeVar("B", TokenizeBody, DetokenizeBody)


class TextRoutes:
    """Text ⇄ tokens of the models that are tokens here."""

    def __init__(
        self, front: Front, models: Models, policy: RequestPolicy, *, max_body_bytes: int
    ) -> None:
        self._front = front
        self._models = models
        self._policy = policy
        self._max_body_bytes = max_body_bytes

    async def tokenize(self, exchange: Exchange) -> None:
        body = await self._body(exchange, TokenizeBody)
        backend = self._backend(body.model)
        text = body.prompt if body.prompt is not None else body.content
        if text is None:
            raise InvalidParameter("Missing required parameter: 'prompt'.", param="prompt")
        tokens = backend.tokenizer.encode(text, special=body.special)
        answer = {
            "tokens": tokens,
            "count": len(tokens),
            "max_model_len": backend.context_length,
        }
        await exchange.reply_json(answer)

    async def detokenize(self, exchange: Exchange) -> None:
        body = await self._body(exchange, DetokenizeBody)
        tokenizer = self._backend(body.model).tokenizer
        names = {token_id: text for text, token_id in tokenizer.control_tokens.items()}
        pieces = [
            names[token].encode() if token in names else tokenizer.token_bytes(token)
            for token in body.tokens
        ]
        text = b"".join(pieces).decode(errors="replace")
        await exchange.reply_json({"prompt": text, "content": text})

    async def apply_template(self, exchange: Exchange) -> None:
        """The prompt that a chat request would be: `{"prompt", "tokens"}`."""
        await self._front.require_account(exchange)
        raw = await read_body(exchange.scope, exchange.receive, max_bytes=self._max_body_bytes)
        request = exchange.dialect.decode_request(raw, self._policy).chat
        rendered = await self._backend(request.model).render(request)
        await exchange.reply_json({"prompt": rendered.text, "tokens": list(rendered.token_ids)})

    async def _body(self, exchange: Exchange, kind: type[B]) -> B:
        await self._front.require_account(exchange)
        raw = await read_body(exchange.scope, exchange.receive, max_bytes=self._max_body_bytes)
        try:
            return msgspec.json.decode(raw, type=kind)
        except msgspec.ValidationError as error:
            text, _, path = str(error).partition(" - at ")
            param = path.strip("`").removeprefix("$.") or None
            raise InvalidParameter(f"Invalid request: {text}.", param=param) from None
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            raise InvalidRequest("The request body is not valid JSON.") from None

    def _backend(self, model: str | None) -> TokenBackend:
        """The model asked for, the first one by default. Raises NotFound, InvalidParameter."""
        name = model if model is not None else self._models.list()[0].id
        backend = self._models.resolve(name).backend
        if not isinstance(backend, TokenBackend):
            raise InvalidParameter(
                f"The model '{name[:100]}' is a provider's: its tokens are not known here.",
                param="model",
            )
        return backend
