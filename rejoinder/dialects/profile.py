"""Which spelling of the API a request body is read in, and how a table row depends on it.

A profile is a column of the request tables. This module must not know: any parameter.
"""

from collections.abc import Mapping
from typing import Literal, TypeAlias, TypeVar

from msgspec import Struct

from rejoinder.dialects.shapes import Shape
from rejoinder.dialects.violation import Path

T = TypeVar("T")

ByDialect: TypeAlias = tuple[Shape | None, Shape | None]
"""A row: the shape in OpenAI's dialect, the shape in DeepInfra's. None: unknown there."""


class Profile(Struct, frozen=True):
    """`extras`: DeepInfra's parameters work in OpenAI's dialect, unknown keys are ignored.

    `reasoning`: OpenAI's dialect shows `reasoning_content`, so clients send it back.
    """

    dialect: Literal["openai", "deepinfra"]
    extras: bool = False
    reasoning: bool = False

    @property
    def is_deepinfra(self) -> bool:
        return self.dialect == "deepinfra"

    @property
    def lenient(self) -> bool:
        """Unknown keys are ignored (R15, R16)."""
        return self.is_deepinfra or self.extras

    def pick(self, openai: T, deepinfra: T) -> T:
        return deepinfra if self.is_deepinfra else openai

    def spell(self, path: Path) -> str:
        """`messages[3].content` in OpenAI's dialect, `messages.3.content` in DeepInfra's."""
        if self.is_deepinfra:
            return ".".join(map(str, path))
        steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in path]
        return "".join(steps).removeprefix(".")

    def rows(self, table: Mapping[str, ByDialect]) -> dict[str, Shape]:
        """The rows that this profile knows. A row of both dialects is read as its own says."""
        picked: dict[str, Shape] = {}
        for key, (openai, deepinfra) in table.items():
            shape = deepinfra if self.is_deepinfra else openai
            if shape is None and self.extras:
                shape = deepinfra
            if shape is not None:
                picked[key] = shape
        return picked
