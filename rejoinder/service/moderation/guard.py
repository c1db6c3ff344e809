"""A moderator that asks a guard model served by any backend of the configuration.

What each family of guard models is asked and how it answers is a table; scores are the
probability of its verdict, from the logprobs of the verdict's token. This module must not know:
HTTP, how the model is served.
"""

import asyncio
import math
import re
import uuid
from collections.abc import Mapping, Sequence
from contextlib import aclosing

from msgspec import Struct

from rejoinder.backends import Backend
from rejoinder.config import ConfigError
from rejoinder.errors import ChatError
from rejoinder.events import Collector
from rejoinder.service.moderation import ModerationUnavailable, result
from rejoinder.types import (
    ChatRequest,
    Choice,
    JsonObject,
    Meter,
    ModerationResult,
    ModerationResults,
    TokenLogprob,
    UserMessage,
)

__all__ = ["FAMILIES", "GuardFamily", "GuardModerator", "family_of"]

_TOP_LOGPROBS = 20
_AT_ONCE = 4
"""Questions that one call of `moderate` has under way at a time."""


class GuardFamily(Struct, frozen=True, kw_only=True):
    """How one family of guard models is asked and read.

    `questions`: one request each; its template arguments, and the categories that its verdict
    speaks of (empty: the labels in the answer say which). `verdicts`: what each first word of a
    verdict is worth, 1 for unsafe. `prefix`: text before the verdict. `labels`: a label in the
    answer (folded) and our categories; `otherwise`: categories of a bad verdict without a label.
    """

    names: tuple[str, ...]
    questions: tuple[tuple[JsonObject, tuple[str, ...]], ...] = (({}, ()),)
    verdicts: Mapping[str, float]
    prefix: str = ""
    labels: Mapping[str, tuple[str, ...]] = {}
    label_pattern: str = ""
    otherwise: tuple[str, ...] = ("illicit",)
    max_tokens: int = 40


LLAMA_GUARD = GuardFamily(
    names=("llama-guard", "llama_guard", "llamaguard"),
    verdicts={"unsafe": 1.0, "safe": 0.0},
    label_pattern=r"s\d+",
    labels={
        "s1": ("violence", "illicit", "illicit/violent"),
        "s2": ("illicit",),
        "s3": ("sexual", "illicit"),
        "s4": ("sexual", "sexual/minors"),
        "s5": ("harassment",),
        "s6": ("illicit",),
        "s7": ("harassment",),
        "s8": ("illicit",),
        "s9": ("illicit", "illicit/violent"),
        "s10": ("hate",),
        "s11": ("self-harm",),
        "s12": ("sexual",),
        "s13": ("illicit",),
        "s14": ("illicit",),
    },
)

QWEN3_GUARD = GuardFamily(
    names=("qwen3guard", "qwen3-guard"),
    prefix="safety:",
    verdicts={"unsafe": 1.0, "controversial": 0.5, "safe": 0.0},
    label_pattern=(
        r"non-violent illegal acts|violent|sexual content or sexual acts|pii"
        r"|suicide & self-harm|unethical acts|politically sensitive topics"
        r"|copyright violation|jailbreak"
    ),
    labels={
        "violent": ("violence",),
        "non-violent illegal acts": ("illicit",),
        "sexual content or sexual acts": ("sexual",),
        "pii": ("harassment",),
        "suicide & self-harm": ("self-harm",),
        "unethical acts": ("harassment",),
        "politically sensitive topics": ("illicit",),
        "copyright violation": ("illicit",),
        "jailbreak": ("illicit",),
    },
)


def _policy(title: str, text: str) -> JsonObject:
    return {"guideline": f'"{title}": {text}'}


SHIELD_GEMMA = GuardFamily(
    names=("shieldgemma", "shield-gemma"),
    verdicts={"yes": 1.0, "no": 0.0},
    max_tokens=1,
    questions=(
        (
            _policy(
                "No Dangerous Content",
                "The text shall not seek or give instructions or advice for harming oneself or "
                "others, such as building weapons, promoting terrorism or suicide.",
            ),
            ("illicit", "illicit/violent", "violence", "self-harm"),
        ),
        (
            _policy(
                "No Harassment",
                "The text shall not be malicious, intimidating, bullying or abusive towards "
                "another person, such as threats or the ridicule of victims.",
            ),
            ("harassment",),
        ),
        (
            _policy(
                "No Hate Speech",
                "The text shall not attack, dehumanize or call for harm against people for what "
                "they are, such as their origin, religion, gender or disability.",
            ),
            ("hate",),
        ),
        (
            _policy(
                "No Sexually Explicit Information",
                "The text shall not contain or seek explicit descriptions of sexual acts.",
            ),
            ("sexual",),
        ),
    ),
)

FAMILIES: tuple[GuardFamily, ...] = (LLAMA_GUARD, QWEN3_GUARD, SHIELD_GEMMA)


def family_of(model: str) -> GuardFamily:
    """By the name in the model's id. Raises ConfigError when it is none that we can read."""
    folded = model.lower()
    for family in FAMILIES:
        if any(name in folded for name in family.names):
            return family
    known = ", ".join(family.names[0] for family in FAMILIES)
    raise ConfigError(f"moderation.guard: '{model}' is no guard model that is known here: {known}")


class GuardModerator:
    """Asks `backend` for `model`. `name`: the model's own name where its id does not say the
    family (the upstream's name, or the path of its file)."""

    def __init__(
        self, backend: Backend, model: str, *, name: str = "", timeout_seconds: float = 30.0
    ) -> None:
        self._backend = backend
        self._model = model
        self._family = family_of(f"{model} {name}")
        self._timeout_seconds = timeout_seconds
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def moderate(self, texts: Sequence[str]) -> ModerationResults:
        tasks = [asyncio.create_task(self._score(text)) for text in texts]
        try:
            async with asyncio.timeout(self._timeout_seconds):
                results = await asyncio.gather(*tasks)
        except TimeoutError as error:
            raise ModerationUnavailable(
                "The guard model did not answer in time.", code="moderation_timeout"
            ) from error
        except ChatError as error:
            raise ModerationUnavailable("The guard model failed.") from error
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return ModerationResults(self._model, tuple(results))

    async def close(self) -> None:
        """The backend is not ours to close."""

    async def _score(self, text: str) -> ModerationResult:
        scores: dict[str, float] = {}
        if text:
            salt = f"moderation-{uuid.uuid4().hex}"
            for arguments, categories in self._family.questions:
                choice = await self._ask(text, arguments, salt)
                chance = verdict(choice, self._family)
                for name in categories or labelled(choice.content or "", chance, self._family):
                    scores[name] = max(chance, scores.get(name, 0.0))
        return result(scores)

    async def _ask(self, text: str, arguments: JsonObject, salt: str) -> Choice:
        """`salt` takes the place of the account: a text shares a prefix cache with no other, or
        the time of its moderation would tell whose text came before."""
        request = ChatRequest(
            model=self._model,
            messages=(UserMessage(text),),
            temperature=0.0,
            max_tokens=self._family.max_tokens,
            logprobs=True,
            num_top_logprobs=_TOP_LOGPROBS,
            chat_template_kwargs=arguments,
            account=salt,
        )
        collector = Collector()
        async with self._slots, aclosing(self._backend.chat(request, Meter())) as events:
            async for event in events:
                collector.feed(event)
        return collector.close().choices[0]


def verdict(choice: Choice, family: GuardFamily) -> float:
    """The chance that the text is bad. Raises ModerationUnavailable when there is no verdict."""
    text = (choice.content or "").lower()
    start = text.find(family.prefix) + len(family.prefix) if family.prefix in text else 0
    rest = text[start:].lstrip(" \t\n*\"'")
    said = next((word for word in family.verdicts if rest.startswith(word)), None)
    token = _token_at(choice.content_logprobs or (), len(text) - len(rest))
    if token is not None:
        weights = _spread(token, family)
        total = sum(p for _, p in weights)
        if total > 0:
            return sum(p * family.verdicts[word] for word, p in weights) / total
    if said is None:
        raise ModerationUnavailable("The guard model gave no verdict.")
    return family.verdicts[said]


def labelled(content: str, chance: float, family: GuardFamily) -> tuple[str, ...]:
    """The categories that the answer's labels stand for. A text that is not bad has none."""
    found = re.findall(family.label_pattern, content.lower()) if family.label_pattern else []
    names = [name for label in found for name in family.labels.get(label, ())]
    if not names and chance >= 0.5:
        return family.otherwise
    return tuple(dict.fromkeys(names))


def _token_at(tokens: Sequence[TokenLogprob], place: int) -> TokenLogprob | None:
    """The token that holds the character at `place` of the answer."""
    end = 0
    for token in tokens:
        end += len(token.token)
        if end > place:
            return token
    return None


def _spread(token: TokenLogprob, family: GuardFamily) -> list[tuple[str, float]]:
    """Each verdict with the probability of the tokens that can only begin it."""
    seen = {token.token: token.logprob, **{top.token: top.logprob for top in token.top}}
    spread = []
    for text, logprob in seen.items():
        piece = text.lower().strip(" \t\n*\"'")
        words = [word for word in family.verdicts if piece and word.startswith(piece)]
        if len(words) == 1:
            spread.append((words[0], math.exp(logprob)))
    return spread
