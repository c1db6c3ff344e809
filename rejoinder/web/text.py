"""`/tokenize`, `/detokenize`, `/apply-template`, `/embeddings`: what the model really sees.

It must not know: how a template renders, which engine.
"""

from rejoinder.backends.models import Models
from rejoinder.backends.token import TokenBackend
from rejoinder.dialects import RequestPolicy
from rejoinder.dialects.bodies import decode_detokenize, decode_embeddings, decode_tokenize
from rejoinder.errors import InvalidParameter, InvalidRequest
from rejoinder.web.middleware import Exchange, Front
from rejoinder.web.requests import read_body


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
        body = decode_tokenize(await self._body(exchange), exchange.dialect.name)
        backend = self._backend(body.model)
        tokens = await backend.tokenize(body.prompt, special=body.special)
        answer = {
            "tokens": tokens,
            "count": len(tokens),
            "max_model_len": backend.context_length,
        }
        await exchange.reply_json(answer)

    async def detokenize(self, exchange: Exchange) -> None:
        body = decode_detokenize(await self._body(exchange), exchange.dialect.name)
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
        raw = await self._body(exchange)
        request = exchange.dialect.decode_request(raw, self._policy).chat
        rendered = await self._backend(request.model).render(request)
        await exchange.reply_json({"prompt": rendered.text, "tokens": list(rendered.token_ids)})

    async def embed(self, exchange: Exchange) -> None:
        """No backend here has embeddings: an honest refusal of a well-formed request."""
        body = decode_embeddings(await self._body(exchange), exchange.dialect.name)
        self._models.resolve(body.model)
        raise InvalidRequest(
            f"The model '{body.model[:100]}' has no embeddings; it is served for chat only.",
            param="model",
            code="unsupported_value",
        )

    async def _body(self, exchange: Exchange) -> bytes:
        await self._front.require_account(exchange)
        return await read_body(exchange.scope, exchange.receive, max_bytes=self._max_body_bytes)

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
