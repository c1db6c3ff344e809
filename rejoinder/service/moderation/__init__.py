"""Scores texts by category (contract 2.8, 4.10): what a moderator is.

A moderator scores; what follows from a score is decided in `stage`. This package must not know:
dialects, HTTP requests of clients, accounts.
"""

from collections.abc import Sequence
from typing import Protocol

from rejoinder.types import ModerationResult, ModerationResults

__all__ = ["CATEGORIES", "ModerationUnavailable", "Moderator", "result"]

CATEGORIES: tuple[str, ...] = (
    "harassment",
    "harassment/threatening",
    "hate",
    "hate/threatening",
    "illicit",
    "illicit/violent",
    "self-harm",
    "self-harm/instructions",
    "self-harm/intent",
    "sexual",
    "sexual/minors",
    "violence",
    "violence/graphic",
)
"""The thirteen keys of every result (2.8)."""


class ModerationUnavailable(Exception):
    """A moderator could not score; the completion is unaffected (R197)."""

    def __init__(self, message: str, *, code: str = "moderation_unavailable") -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class Moderator(Protocol):
    """Scores texts, one result each, in order."""

    async def moderate(self, texts: Sequence[str]) -> ModerationResults:
        """Raises ModerationUnavailable."""
        ...

    async def close(self) -> None: ...


def result(scores: dict[str, float], *, threshold: float = 0.5) -> ModerationResult:
    """A result with every category: missing scores are 0, a category is flagged from `threshold`
    on, and `flagged` is true iff any category is (R195)."""
    full = {name: min(1.0, max(0.0, scores.get(name, 0.0))) for name in CATEGORIES}
    flags = {name: score >= threshold for name, score in full.items()}
    return ModerationResult(
        flagged=any(flags.values()),
        categories=flags,
        category_scores=full,
        category_applied_input_types={name: ["text"] for name in CATEGORIES},
    )
