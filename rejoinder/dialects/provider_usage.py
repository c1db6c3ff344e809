"""The counters of a provider, wherever it puts them and however it spells them → `Usage`.

Later non-null counters supersede earlier ones, missing ones are kept, zero is a value. This module
must not know: prices, chunks, what the answer said.
"""

from collections.abc import Callable

from rejoinder.types import Json, JsonObject, Usage

__all__ = ["UsageReader", "find_usage"]

_ODD_PLACES: tuple[tuple[str, ...], ...] = (
    ("x_groq", "usage"),
    ("usageMetadata",),
    ("message", "usage"),
    ("response", "usage"),
)
"""Where a chunk has been seen to carry its usage, besides its choices."""

_NAMES: dict[str, tuple[tuple[str, ...], ...]] = {
    "prompt": (("prompt_tokens",), ("input_tokens",), ("promptTokenCount",)),
    "completion": (("completion_tokens",), ("output_tokens",), ("candidatesTokenCount",)),
    "total": (("total_tokens",), ("totalTokenCount",)),
    "cached": (
        ("prompt_tokens_details", "cached_tokens"),
        ("input_tokens_details", "cached_tokens"),
        ("prompt_cache_hit_tokens",),
        ("cached_tokens",),
        ("cache_read_input_tokens",),
        ("cachedContentTokenCount",),
    ),
    "cache_write": (
        ("prompt_tokens_details", "cache_write_tokens"),
        ("prompt_tokens_details", "cache_creation_tokens"),
        ("cache_creation_input_tokens",),
    ),
    "reasoning": (
        ("completion_tokens_details", "reasoning_tokens"),
        ("output_tokens_details", "reasoning_tokens"),
        ("reasoning_tokens",),
        ("thoughtsTokenCount",),
    ),
    "accepted": (("completion_tokens_details", "accepted_prediction_tokens"),),
    "rejected": (("completion_tokens_details", "rejected_prediction_tokens"),),
}
"""Each counter and the paths it is found under; the first path is the contract's (2.6)."""

_REQUIRED = ("prompt", "completion", "total")


def find_usage(payload: JsonObject) -> tuple[JsonObject, bool] | None:
    """The usage object of a chunk or body, and whether it is where the contract has it."""
    usage = payload.get("usage")
    if isinstance(usage, dict) and usage:
        return usage, True
    for place in _ODD_PLACES:
        if place[0] in payload:
            found = _at(payload, place)
            if isinstance(found, dict) and found:
                return found, False
    choices = payload.get("choices")
    if isinstance(choices, list):
        for choice in choices:
            if not isinstance(choice, dict):
                continue
            delta = choice.get("delta")
            found = choice.get("usage") or (delta.get("usage") if isinstance(delta, dict) else None)
            if isinstance(found, dict) and found:
                return found, False
    return None


class UsageReader:
    """The counters reported so far. `predicted`: whether a prediction was sent; `deviate(kind,
    detail)` is told of every repair."""

    __slots__ = ("_counters", "_deviate", "_predicted", "_usage")

    def __init__(self, deviate: Callable[[str, str], None], *, predicted: bool) -> None:
        self._counters: dict[str, int] = {}
        self._predicted = predicted
        self._deviate = deviate
        self._usage: Usage | None = None

    def feed(self, usage: JsonObject) -> None:
        """One usage object of the stream."""
        self._counters.pop("total", None)  # an older total says nothing of newer counters
        for counter, paths in _NAMES.items():
            for number, path in enumerate(paths):
                value = self._whole(counter, _at(usage, path))
                if value is None:
                    continue
                if number and counter in _REQUIRED:
                    self._deviate("usage_name", path[-1])
                self._counters[counter] = value
                break
            else:
                if counter in _REQUIRED:
                    self._deviate("usage_partial", counter)
        self._usage = None

    def usage(self) -> Usage | None:
        """The counters made consistent (R171, R176, R177); None if nothing usable came."""
        if self._usage is None and self._counters:
            self._usage = self._consistent()
        return self._usage

    def _consistent(self) -> Usage | None:
        counters = self._counters
        prompt = counters.get("prompt")
        completion = counters.get("completion")
        total = counters.get("total")
        if prompt is None and completion is None:
            return None
        if prompt is None:
            prompt = max(0, (total or 0) - (completion or 0))
        if completion is None:
            completion = max(0, (total or 0) - prompt)
        reasoning = counters.get("reasoning", 0)
        if reasoning and total == prompt + completion + reasoning:
            self._deviate("usage_reasoning", "reasoning tokens outside completion tokens")
            completion += reasoning
        elif reasoning > completion:
            self._deviate("usage_reasoning", "more reasoning than completion tokens")
            completion = max(completion, (total or 0) - prompt)
            reasoning = min(reasoning, completion)
        if total is not None and total != prompt + completion:
            self._deviate("usage_sum", f"{total} is not {prompt} + {completion}")
        cached = counters.get("cached", 0)
        written = counters.get("cache_write", 0)
        if cached > prompt:
            self._deviate("usage_cache", "cached tokens outside prompt tokens")
            prompt += cached + written
        elif cached + written > prompt:
            self._deviate("usage_cache", "cached and written exceed the prompt")
            written = prompt - cached
        accepted, rejected = self._predictions(completion - reasoning)
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            cached_tokens=cached,
            cache_write_tokens=written,
            reasoning_tokens=reasoning,
            accepted_prediction_tokens=accepted,
            rejected_prediction_tokens=rejected,
        )

    def _predictions(self, most: int) -> tuple[int, int]:
        """Accepted and rejected tokens of a prediction: part of what is left (R178), none without
        a prediction (R179)."""
        told = self._counters.get("accepted", 0), self._counters.get("rejected", 0)
        accepted = min(told[0], most) if self._predicted else 0
        rejected = min(told[1], most - accepted) if self._predicted else 0
        if (accepted, rejected) != told:
            self._deviate("usage_prediction", f"{told[0]} and {told[1]} of {most}")
        return accepted, rejected

    def _whole(self, counter: str, value: Json) -> int | None:
        """A counter as an integer ≥ 0; None for what is absent or cannot be one (R172)."""
        if isinstance(value, bool) or value is None:
            return None
        if isinstance(value, int):
            if 0 <= value < 1 << 53:
                return value
            self._deviate("usage_number", counter)
            return None
        if isinstance(value, float) and value.is_integer() and 0 <= value < 1 << 53:
            self._deviate("usage_number", counter)
            return int(value)
        if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 16:
            self._deviate("usage_number", counter)
            return int(value)
        self._deviate("usage_number", counter)
        return None


def _at(value: JsonObject, path: tuple[str, ...]) -> Json:
    found: Json = value
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found
