"""Shapes: what a JSON value must look like, and what it becomes. The words of the tables.

A shape takes a value and a list for the paths of ignored keys; it returns the decoded value or
raises a Violation. None means "not set". This module must not know: any parameter, any dialect.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from rejoinder.dialects.violation import (
    Path,
    Violation,
    above_maximum,
    array_too_long,
    below_minimum,
    empty_array,
    empty_string,
    missing,
    not_one_of,
    phase,
    string_too_long,
    unknown,
    wrong_pattern,
    wrong_type,
)
from rejoinder.types import Json, JsonObject

Ignored: TypeAlias = list[Path]

Shape: TypeAlias = Callable[[Json, Ignored], Any]


# ---------------------------------------------------------------- scalars


def boolean(value: Json, ignored: Ignored) -> bool:
    if value is True or value is False:
        return value
    raise wrong_type("a boolean", value)


def integer(low: int, high: int) -> Shape:
    def shape(value: Json, ignored: Ignored) -> int:
        if type(value) is not int:
            raise wrong_type("an integer", value)
        if value > high:
            raise above_maximum("integer", high, value)
        if value < low:
            raise below_minimum("integer", low, value)
        return value

    return shape


def number(low: float, high: float, *, above: float | None = None) -> Shape:
    """A finite number in [low, high]; with `above`, greater than that."""

    def shape(value: Json, ignored: Ignored) -> float:
        if type(value) is not float and type(value) is not int:
            raise wrong_type("a number", value)
        if value > high:
            raise above_maximum("decimal", high, value)
        if value < low:
            raise below_minimum("decimal", low, value)
        if above is not None and value <= above:
            raise below_minimum("decimal", above, value, sign=">")
        return float(value)

    return shape


def string(
    *, longest: int | None = None, pattern: str | None = None, empty_allowed: bool = True
) -> Shape:
    matches = re.compile(pattern).fullmatch if pattern is not None else None

    def shape(value: Json, ignored: Ignored) -> str:
        if type(value) is not str:
            raise wrong_type("a string", value)
        if not value and not empty_allowed:
            raise empty_string()
        if longest is not None and len(value) > longest:
            raise string_too_long(longest, value)
        if matches is not None and not matches(value):
            raise wrong_pattern(f"'^{pattern}$'")
        return value

    return shape


text = string()


def one_of(*allowed: str) -> Shape:
    def shape(value: Json, ignored: Ignored) -> str:
        if type(value) is not str:
            raise wrong_type("a string", value)
        if value not in allowed:
            raise not_one_of(allowed, value)
        return value

    return shape


def literal(word: str) -> Shape:
    """A value that must be `word` and says nothing by itself."""
    check = one_of(word)

    def shape(value: Json, ignored: Ignored) -> None:
        check(value, ignored)

    return shape


def anything(value: Json, ignored: Ignored) -> None:
    """Accepted in any form, and of no consequence."""


def unused(shape: Shape) -> Shape:
    """A value that is checked, and of no consequence."""

    def check(value: Json, ignored: Ignored) -> None:
        shape(value, ignored)

    return check


def refused(shape: Shape, violation: Callable[[], Violation]) -> Shape:
    """A value that is first checked, then refused because nothing here can honour it."""

    def refuse(value: Json, ignored: Ignored) -> None:
        shape(value, ignored)
        raise violation()

    return refuse


# ---------------------------------------------------------------- containers


def nullable(shape: Shape) -> Shape:
    """An explicit null equals absence (R64)."""

    def nullable_shape(value: Json, ignored: Ignored) -> Any:
        return None if value is None else shape(value, ignored)

    return nullable_shape


def array(of: Shape, *, empty_allowed: bool = True, longest: int | None = None) -> Shape:
    def shape(value: Json, ignored: Ignored) -> tuple[Any, ...]:
        if type(value) is not list:
            raise wrong_type("an array", value)
        if not value and not empty_allowed:
            raise empty_array()
        if longest is not None and len(value) > longest:
            raise array_too_long(longest, len(value))
        decoded: list[Any] = []
        mark = len(ignored)
        for index, item in enumerate(value):
            try:
                decoded.append(of(item, ignored))
            except Violation as violation:
                raise violation.inside(index) from None
            if len(ignored) != mark:
                mark = _put_inside(index, ignored, mark)
        return tuple(decoded)

    return shape


def either(kinds: Mapping[type, Shape], expected: str) -> Shape:
    """A different shape for each JSON type; `expected` names them all."""

    def shape(value: Json, ignored: Ignored) -> Any:
        kind = kinds.get(type(value))
        if kind is None:
            raise wrong_type(expected, value)
        return kind(value, ignored)

    return shape


def fields(
    make: Callable[..., Any],
    rows: Mapping[str, Shape],
    *,
    required: tuple[str, ...] = (),
    names: Mapping[str, str] | None = None,
    lenient: bool = False,
) -> Shape:
    """An object: one row a key. The values that are set become the keyword arguments of `make`.

    Of several faults types come first, then missing keys, then the rest (A34). `names`: keyword
    arguments that are not called like their key. `lenient`: unknown keys are ignored and listed.
    """
    table = {key: ((names or {}).get(key, key), shape) for key, shape in rows.items()}

    def shape(value: Json, ignored: Ignored) -> Any:
        if type(value) is not dict:
            raise wrong_type("an object", value)
        found: dict[str, Any] = {}
        fault: Violation | None = None
        mark = len(ignored)
        for key, item in value.items():
            row = table.get(key)
            if row is None:
                if lenient:
                    ignored.append((key,))
                    mark += 1
                    continue
                raise unknown(key)
            name, of = row
            try:
                decoded = of(item, ignored)
            except Violation as violation:
                violation.inside(key)
                if phase(violation) == 0:
                    raise  # none comes before it
                if fault is None or phase(violation) < phase(fault):
                    fault = violation
                continue
            if decoded is not None:
                found[name] = decoded
            if len(ignored) != mark:
                mark = _put_inside(key, ignored, mark)
        absent = next((key for key in required if key not in value), None)
        if absent is not None and (fault is None or phase(fault) > phase(missing(absent))):
            fault = missing(absent)
        if fault is not None:
            try:
                raise fault
            finally:
                del fault  # or the error leads here, and from here to the error again
        return make(**found)

    return shape


def tagged(
    key: str, shapes: Mapping[str, Shape], *, default: str | None = None, expected: str = ""
) -> Shape:
    """An object whose `key` says which shape it has. `expected`: what to say of other types."""

    def shape(value: Json, ignored: Ignored) -> Any:
        if type(value) is not dict:
            raise wrong_type(expected or "an object", value)
        tag = value.get(key, default)
        if tag is None and key not in value:
            raise missing(key)
        if type(tag) is not str:
            raise wrong_type("a string", tag).inside(key)
        of = shapes.get(tag)
        if of is None:
            raise not_one_of(shapes, tag).inside(key)
        return of(value, ignored)

    return shape


def free_object(value: Json, ignored: Ignored) -> JsonObject:
    """Any object that can be written as JSON again."""
    if type(value) is not dict:
        raise wrong_type("an object", value)
    _require_finite(value)
    return value


def _require_finite(value: Json) -> None:
    """1e999 parses, to a number that JSON cannot spell."""
    match value:
        case dict():
            for key, item in value.items():
                try:
                    _require_finite(item)
                except Violation as violation:
                    raise violation.inside(key) from None
        case list():
            for index, item in enumerate(value):
                try:
                    _require_finite(item)
                except Violation as violation:
                    raise violation.inside(index) from None
        case float():
            if not math.isfinite(value):
                raise Violation("invalid_value", ": number out of range.", lead="Invalid")


def _put_inside(key: str | int, ignored: Ignored, mark: int) -> int:
    """The paths from `mark` on were found under `key`."""
    for i in range(mark, len(ignored)):
        ignored[i] = (key, *ignored[i])
    return len(ignored)


def unheeded(shape: Shape) -> Shape:
    """A value that is checked, then ignored and listed as such."""

    def check(value: Json, ignored: Ignored) -> None:
        shape(value, ignored)
        ignored.append(())

    return check
