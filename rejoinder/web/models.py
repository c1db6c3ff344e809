"""`GET …/models`: what is served, in both dialects' shapes (contract, section 6).

It must not know: backends.
"""

from collections.abc import Callable

import msgspec

from rejoinder.backends.models import ModelInfo, Models
from rejoinder.web.middleware import Exchange, Front

Row = dict[str, object]


class ModelList:
    """Answers the model routes. Aliases are listed too: every name that may be used (R224)."""

    def __init__(self, front: Front, models: Models) -> None:
        self._front = front
        self._models = models

    async def list(self, exchange: Exchange) -> None:
        account = await self._front.require_account(exchange)
        describe = shape_of(exchange)
        rows = [
            describe(name, info)
            for info in self._models.list()
            if not account.models or info.id in account.models
            for name in (info.id, *info.aliases)
        ]
        await exchange.reply_json({"object": "list", "data": rows})

    async def retrieve(self, exchange: Exchange) -> None:
        await self._front.require_account(exchange)
        name = exchange.path_parameters["model"]
        info = self._models.resolve(name).info
        await exchange.reply_json(shape_of(exchange)(name, info))

    async def retrieve_described(self, exchange: Exchange) -> None:
        """DeepInfra's own look-up outside of both prefixes: its clients read `metadata.tags`."""
        await self._front.require_account(exchange)
        name = exchange.path_parameters["model"]
        await exchange.reply_json(describe_deepinfra(name, self._models.resolve(name).info))


def shape_of(exchange: Exchange) -> Callable[[str, ModelInfo], Row]:
    return _SHAPES[exchange.dialect.name]


def describe_openai(name: str, info: ModelInfo) -> Row:
    return {"id": name, "object": "model", "created": info.created, "owned_by": info.owned_by}


def describe_deepinfra(name: str, info: ModelInfo) -> Row:
    prices = msgspec.structs.asdict(info.pricing) if info.pricing else {}
    known = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
    pricing = {key: prices[key] for key in known if prices.get(key) is not None}
    metadata: Row = {
        "description": info.description,
        "context_length": info.context_length,
        "max_tokens": info.max_tokens,
        "pricing": pricing or {"input_tokens": 0.0, "output_tokens": 0.0},
        "tags": list(info.tags),
    }
    return {**describe_openai(name, info), "root": info.id, "parent": None, "metadata": metadata}


_SHAPES = {"openai": describe_openai, "deepinfra": describe_deepinfra}
