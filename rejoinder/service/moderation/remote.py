"""A moderator that asks any `/v1/moderations` endpoint.

Its answer is read leniently and put in our terms. This module must not know: requests, answers.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

import aiohttp
import msgspec
from msgspec import Struct

from rejoinder.config import ConfigError
from rejoinder.service.moderation import CATEGORIES, ModerationUnavailable, result
from rejoinder.types import ModerationResult, ModerationResults

__all__ = ["RemoteModerator"]

_MAX_ANSWER_BYTES = 4 * 1024 * 1024


class _Item(Struct):
    flagged: bool = False
    categories: dict[str, bool | None] = msgspec.field(default_factory=dict)
    category_scores: dict[str, float | None] = msgspec.field(default_factory=dict)
    category_applied_input_types: dict[str, list[str] | None] | None = None


class _Answer(Struct):
    results: list[_Item]
    model: str = "remote"


class RemoteModerator:
    """`url`: the endpoint, or the base URL it lies under. Redirects are not followed: they could
    lead the key and the texts elsewhere."""

    def __init__(
        self, url: str, *, api_key: str = "", model: str = "", timeout_seconds: float = 10.0
    ) -> None:
        """Raises ConfigError when the URL is none."""
        if not url.startswith(("http://", "https://")):
            raise ConfigError(
                "moderation.url must be an http(s) URL when moderation.model is 'remote'"
            )
        self._url = url if url.endswith("/moderations") else url.rstrip("/") + "/moderations"
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._model = model
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._session: aiohttp.ClientSession | None = None

    async def moderate(self, texts: Sequence[str]) -> ModerationResults:
        """An empty text is not sent: some endpoints refuse it, and there is nothing to score."""
        asked = [text for text in texts if text]
        answer = await self._ask(asked) if asked else _Answer([])
        if len(answer.results) != len(asked):
            raise ModerationUnavailable("The moderation endpoint left out a result.")
        scored = iter(answer.results)
        results = tuple(_result(next(scored)) if text else result({}) for text in texts)
        return ModerationResults(answer.model, results)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _ask(self, texts: list[str]) -> _Answer:
        body: dict[str, Any] = {"input": texts}
        if self._model:
            body["model"] = self._model
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=self._timeout)
        try:
            async with self._session.post(
                self._url,
                data=msgspec.json.encode(body),
                headers={**self._headers, "Content-Type": "application/json"},
                allow_redirects=False,
            ) as response:
                data = bytearray()
                async for chunk in response.content.iter_any():
                    data += chunk
                    if len(data) > _MAX_ANSWER_BYTES:
                        raise ModerationUnavailable("The moderation endpoint's answer is too long.")
                if response.status != 200:
                    raise ModerationUnavailable(
                        f"The moderation endpoint answered {response.status}."
                    )
            return msgspec.json.decode(data, type=_Answer)
        except TimeoutError as error:
            raise ModerationUnavailable(
                "The moderation endpoint did not answer in time.", code="moderation_timeout"
            ) from error
        except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError) as error:
            raise ModerationUnavailable("The moderation endpoint cannot be reached.") from error
        except (msgspec.DecodeError, UnicodeError) as error:
            raise ModerationUnavailable("The moderation endpoint answered nonsense.") from error


def _result(item: _Item) -> ModerationResult:
    """Every map with the same keys, scores in [0, 1], flagged iff a category is (R195)."""
    scores = {name: _unit(score) for name, score in item.category_scores.items()}
    flags = {name: bool(flag) for name, flag in item.categories.items()}
    names = list(dict.fromkeys([*scores, *flags])) or list(CATEGORIES)
    if item.flagged and not any(flags.values()):
        flags[max(names, key=lambda name: scores.get(name, 0.0))] = True
    types = item.category_applied_input_types or {}
    return ModerationResult(
        flagged=any(flags.values()),
        categories={name: flags.get(name, False) for name in names},
        category_scores={name: scores.get(name, 1.0 if flags.get(name) else 0.0) for name in names},
        category_applied_input_types={name: _kinds(types.get(name)) for name in names},
    )


def _kinds(given: list[str] | None) -> list[Literal["text", "image"]]:
    kinds: list[Literal["text", "image"]] = []
    if given is None or "text" in given or "image" not in given:
        kinds.append("text")
    if given is not None and "image" in given:
        kinds.append("image")
    return kinds


def _unit(score: float | None) -> float:
    return min(1.0, max(0.0, score or 0.0))
