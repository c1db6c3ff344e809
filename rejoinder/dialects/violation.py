"""What a request body does wrong, where, and how that is said (contract 1.2).

A shape raises a Violation that knows only the value at hand; on its way out each container adds
its key. A dialect spells the path and picks the status. This module must not know: dialects.
"""

from collections.abc import Callable, Collection
from typing import Literal, TypeAlias

from rejoinder.errors import ChatError, InvalidParameter, InvalidRequest
from rejoinder.types import Json

Path: TypeAlias = tuple[str | int, ...]

SpellPath: TypeAlias = Callable[[Path], str]

MAX_MESSAGE = 1000
MAX_PARAM = 200
_MAX_ECHO = 64


def clean(text: str, limit: int) -> str:
    """`text` without control characters or line separators, cut to `limit` characters (R215)."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return cut if cut.isprintable() else "".join(c if c.isprintable() else " " for c in cut)


class Violation(Exception):
    """One fault. The message is `lead 'param' rest`, or `rest` alone without a lead.

    `param` replaces the spelled path where the contract fixes another spelling (R45).
    """

    error: type[InvalidRequest] = InvalidParameter

    def __init__(
        self,
        code: str | None,
        rest: str,
        *,
        lead: str = "",
        path: Path = (),
        param: str | None = None,
    ) -> None:
        super().__init__(rest)
        self.code = code
        self.rest = rest
        self.lead = lead
        self.path = path
        self.param = param

    def inside(self, key: str | int) -> "Violation":
        self.path = (key, *self.path)
        return self

    def chat_error(self, spell: SpellPath) -> ChatError:
        param = self.param if self.param is not None else spell(self.path)
        param = clean(param, MAX_PARAM)
        message = f"{self.lead} '{param}'{self.rest}" if self.lead else self.rest
        return self.error(clean(message, MAX_MESSAGE), param=param or None, code=self.code)


class Unservable(Violation):
    """A well-formed value that no model here can honour."""

    error = InvalidRequest


_PHASES = {
    "invalid_type": 0,
    "unknown_parameter": 0,
    "missing_required_parameter": 1,
}


def phase(violation: Violation) -> int:
    """The order in which faults of one object are reported: types, required, ranges (A34)."""
    return _PHASES.get(violation.code or "", 2)


# ---------------------------------------------------------------- one maker a kind of fault


def wrong_type(expected: str, value: Json) -> Violation:
    return Violation(
        "invalid_type",
        f": expected {expected}, but got {_kind(value)} instead.",
        lead="Invalid type for",
    )


def missing(key: str) -> Violation:
    return Violation(
        "missing_required_parameter", ".", lead="Missing required parameter:", path=(key,)
    )


def unknown(key: str) -> Violation:
    return Violation("unknown_parameter", ".", lead="Unknown parameter:", path=(key,))


def not_one_of(allowed: Collection[str], value: Json) -> Violation:
    listed = ", ".join(f"'{word}'" for word in allowed)
    return Violation(
        "invalid_value",
        f": {_echo(value)}. Supported values are: {listed}.",
        lead="Invalid value for",
    )


NumberKind = Literal["integer", "decimal"]


def above_maximum(kind: NumberKind, bound: float, value: float) -> Violation:
    return Violation(
        f"{kind}_above_max_value",
        f": {kind} above maximum value. Expected a value <= {bound}, "
        f"but got {_echo(value)} instead.",
        lead="Invalid",
    )


def below_minimum(kind: NumberKind, bound: float, value: float, *, sign: str = ">=") -> Violation:
    return Violation(
        f"{kind}_below_min_value",
        f": {kind} below minimum value. Expected a value {sign} {bound}, "
        f"but got {_echo(value)} instead.",
        lead="Invalid",
    )


def string_too_long(longest: int, value: str) -> Violation:
    return Violation(
        "string_above_max_length",
        f": string too long. Expected a string with maximum length {longest}, "
        f"but got a string with length {len(value)} instead.",
        lead="Invalid",
    )


def empty_string() -> Violation:
    return Violation("empty_string", ": expected a string that is not empty.", lead="Invalid")


def wrong_pattern(pattern: str) -> Violation:
    return Violation(
        "invalid_value",
        f": string does not match pattern. Expected a string that matches {pattern}.",
        lead="Invalid",
    )


def array_too_long(longest: int, length: int) -> Violation:
    return Violation(
        "array_above_max_length",
        f": array too long. Expected an array with maximum length {longest}, "
        f"but got an array with length {length} instead.",
        lead="Invalid",
    )


def empty_array() -> Violation:
    return Violation(
        "empty_array",
        ": empty array. Expected an array with minimum length 1, but got an empty array instead.",
        lead="Invalid",
    )


def too_many_properties(most: int, number: int) -> Violation:
    return Violation(
        "object_above_max_properties",
        f": too many properties. Expected at most {most}, but got {number} instead.",
        lead="Invalid",
    )


def unsupported_parameter(reason: str) -> Violation:
    return Unservable("unsupported_parameter", f" is not supported: {reason}", lead="Parameter")


def unsupported_value(reason: str) -> Violation:
    return Unservable("unsupported_value", f": {reason}", lead="Unsupported value for")


# ---------------------------------------------------------------- echoes of what was sent


def _kind(value: Json) -> str:
    """What was sent, in the words of JSON."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case str():
            return "a string"
        case int():
            return "an integer"
        case float():
            return "a decimal number"
        case list():
            return "an array"
        case _:
            return "an object"


def _echo(value: Json) -> str:
    match value:
        case str():
            return f"'{clean(value, _MAX_ECHO)}'"
        case bool() | float() | None:
            return str(value)
        case int():
            return str(value) if value.bit_length() <= 128 else "a much larger number"
        case _:
            return _kind(value)
