"""One running generation as the scheduler sees it: tokens, places and counts.

This module must not know: the model, sampling, text, the event loop.
"""

from enum import Enum, auto

from rejoinder.engines.llama.prefix_cache import Hold
from rejoinder.types import Counts, Prompt, Tier

__all__ = ["RANKS", "Phase", "Sequence"]

RANKS: dict[Tier, int] = {"priority": 0, "default": 1, "flex": 2}
"""Tiers in the order in which they are served."""


class Phase(Enum):
    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


class Sequence:
    """`tokens` are the prompt and what was generated; the cells of the first `hold.length` of
    them are computed. At least the last token is not, until the sequence finishes."""

    __slots__ = (
        "arrived",
        "counts",
        "draft",
        "hold",
        "last_scheduled",
        "max_length",
        "number",
        "phase",
        "prompt",
        "prompt_length",
        "rank",
        "started",
        "tokens",
    )

    def __init__(
        self,
        number: int,
        prompt: Prompt,
        counts: Counts,
        *,
        tier: Tier = "default",
        max_length: int,
        arrived: float = 0.0,
    ) -> None:
        self.number = number
        self.prompt = prompt
        self.prompt_length = len(prompt.token_ids)
        self.tokens = list(prompt.token_ids)
        self.counts = counts
        self.rank = RANKS[tier]
        self.max_length = max_length
        self.arrived = arrived
        self.last_scheduled = arrived
        self.phase = Phase.WAITING
        self.started = False
        """It was admitted once: no bound on waiting applies any more."""
        self.hold: Hold | None = None
        self.draft: list[int] = []

    @property
    def num_computed(self) -> int:
        return self.hold.length if self.hold is not None else 0

    @property
    def num_pending(self) -> int:
        """Tokens that are known but not computed."""
        return len(self.tokens) - self.num_computed

    @property
    def prefilling(self) -> bool:
        return self.num_computed < self.prompt_length
