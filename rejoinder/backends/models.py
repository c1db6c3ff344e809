"""The models that are served: names, what each can do, and its backend.

This module must not know: how a backend works, accounts, HTTP.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from rejoinder.backends import Backend
from rejoinder.config import PricingConfig
from rejoinder.errors import NotFound
from rejoinder.types import Tier


class ModelInfo(Struct, frozen=True, kw_only=True):
    """What is known of one served model. `context_length` and `max_tokens` in tokens, 0: unknown.

    `tags` are DeepInfra's words for what the model can do: `tools` means tool calling.
    """

    id: str
    aliases: tuple[str, ...] = ()
    owned_by: str = "rejoinder"
    created: int = 0
    description: str = ""
    context_length: int = 0
    max_tokens: int = 0
    pricing: PricingConfig | None = None
    tags: tuple[str, ...] = ()
    tiers: tuple[Tier, ...] = ("default",)


class ServedModel(Struct, frozen=True):
    info: ModelInfo
    backend: Backend


class Models:
    """Every model by every name that a request may use (R224)."""

    def __init__(self, models: Iterable[ServedModel]) -> None:
        self._models = {model.info.id: model for model in models}
        self._by_name: Mapping[str, ServedModel] = {
            name: model
            for model in self._models.values()
            for name in (model.info.id, *model.info.aliases)
        }

    def resolve(self, name: str) -> ServedModel:
        """The model of a request. `NAME:VERSION` is accepted for a model NAME without versions.

        Raises NotFound (R61).
        """
        found = self._by_name.get(name) or self._by_name.get(name.rpartition(":")[0])
        if found is None:
            shown = name if len(name) <= 100 else name[:100] + "…"
            raise NotFound(
                f"The model '{shown}' does not exist or you do not have access to it.",
                code="model_not_found",
            )
        return found

    def list(self) -> list[ModelInfo]:
        """Each model once, aliases included as entries of their own, in configured order."""
        return [model.info for model in self._models.values()]

    async def close(self) -> None:
        for model in self._models.values():
            await model.backend.close()
