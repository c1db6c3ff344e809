"""The shapes of both dialects as data: which keys there are, and the published schemas.

Must not know: rules, streams.
"""

import functools
import json
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Final

import jsonschema_rs

from rejoinder.check.exchange import DialectName
from rejoinder.types import Json, JsonObject

FINISH_REASONS: Final[dict[DialectName, frozenset[str]]] = {
    "O": frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"}),
    "D": frozenset({"stop", "length", "tool_calls", "content_filter", "malformed_function_call"}),
}

FOREIGN_FINISH_REASONS: Final[dict[DialectName, frozenset[str]]] = {
    "O": FINISH_REASONS["D"] - FINISH_REASONS["O"],
    "D": FINISH_REASONS["O"] - FINISH_REASONS["D"],
}

D_ONLY = frozenset({"reasoning_content", "estimated_cost", "name", "cache_control"})
O_ONLY = frozenset(
    {"refusal", "system_fingerprint", "moderation", "annotations", "top_logprobs", "audio"}
    | {"function_call", "metadata", "obfuscation", "custom"}
)

_TOP = "id object created model choices usage service_tier"
_ENTRY = "token logprob bytes top_logprobs"
_MODERATED = "type model results code message"
_CALL = "id type function custom index"

_TABLES: Final[dict[DialectName, dict[str, str]]] = {
    "O": {
        "": f"{_TOP} system_fingerprint moderation metadata",
        "choices": "index delta message finish_reason logprobs",
        "choices.delta": "role content refusal tool_calls function_call",
        "choices.message": "role content refusal tool_calls function_call annotations audio",
        "choices.logprobs": "content refusal",
        "choices.logprobs.content": _ENTRY,
        "choices.logprobs.refusal": _ENTRY,
        "choices.delta.tool_calls": _CALL,
        "choices.message.tool_calls": _CALL,
        "choices.delta.tool_calls.function": "name arguments",
        "choices.message.tool_calls.function": "name arguments",
        "choices.delta.function_call": "name arguments",
        "choices.message.function_call": "name arguments",
        "usage": "prompt_tokens completion_tokens total_tokens prompt_tokens_details "
        "completion_tokens_details",
        "usage.prompt_tokens_details": "cached_tokens cache_write_tokens audio_tokens "
        "text_tokens image_tokens",
        "usage.completion_tokens_details": "reasoning_tokens audio_tokens text_tokens "
        "accepted_prediction_tokens rejected_prediction_tokens",
        "moderation": "input output",
        "moderation.input": _MODERATED,
        "moderation.output": _MODERATED,
    },
    "D": {
        "": _TOP,
        "choices": "index delta message finish_reason logprobs",
        "choices.delta": "role content reasoning_content tool_calls",
        "choices.message": "role content reasoning_content tool_calls name cache_control",
        "choices.logprobs": "content",
        "choices.logprobs.content": _ENTRY,
        "choices.delta.tool_calls": _CALL,
        "choices.message.tool_calls": _CALL,
        "choices.delta.tool_calls.function": "name arguments",
        "choices.message.tool_calls.function": "name arguments",
    },
}

KEYS: Final[dict[DialectName, dict[str, frozenset[str]]]] = {
    dialect: {path: frozenset(names.split()) for path, names in table.items()}
    for dialect, table in _TABLES.items()
}
"""The keys of each object, by its path without positions. A path that is not here is open."""


def unknown_keys(
    dialect: DialectName, value: JsonObject, *, streamed: bool
) -> Iterator[tuple[str, str]]:
    """(path, key) of each key that the dialect does not have there."""
    table = KEYS[dialect]

    def look(value: Json, path: str) -> Iterator[tuple[str, str]]:
        if isinstance(value, list):
            for child in value:
                yield from look(child, path)
        elif isinstance(value, dict) and (known := table.get(path)) is not None:
            for key, child in value.items():
                below = f"{path}.{key}" if path else key
                wrong_form = key == ("message" if streamed else "delta") and path == "choices"
                if key not in known or wrong_form:
                    yield below, key
                else:
                    yield from look(child, below)

    yield from look(value, "")


# ---------------------------------------------------------------- the published schemas

_OWNED_ELSEWHERE = re.compile(
    r"^(id|object|created|usage\..*|service_tier|"
    r"choices\.\d+\.(finish_reason|(delta|message)\.role)|"
    r"choices\.\d+\.(delta|message)\.tool_calls\.\d+\..*|"
    r"choices\.\d+\.logprobs\.content\.\d+\..*)$"
)
"""Places whose faults have a narrower rule than “fits the schema”."""


@functools.cache
def _validator(name: str) -> jsonschema_rs.Draft202012Validator | jsonschema_rs.Draft7Validator:
    text = files("rejoinder.check").joinpath(f"schemas/{name}.json").read_text(encoding="utf-8")
    return jsonschema_rs.Draft7Validator(json.loads(text))


def schema_faults(name: str, value: Json) -> Iterator[str]:
    """What the published schema has against a value, less what narrower rules report."""
    try:
        errors = list(_validator(name).iter_errors(value))
    except (ValueError, OverflowError):
        # What the validator cannot take, half characters and NaN, R116, R6 and R155 report.
        return
    for error in errors:
        path = ".".join(str(step) for step in error.instance_path)
        if _OWNED_ELSEWHERE.match(path) or _is_about_null(value, list(error.instance_path)):
            continue
        if name == "deepinfra_response" and path.endswith(".index"):
            continue
        keyword = error.schema_path[-1]
        tool_or_logprob = ".tool_calls." in path or ".logprobs.content." in path
        if keyword == "required" and tool_or_logprob:
            continue
        yield f"{path or 'the object'}: {error.message}"[:300]


def _is_about_null(value: Json, path: list[str | int]) -> bool:
    found: object = value
    for step in path:
        found = found[step]  # type: ignore[index]
    return found is None
