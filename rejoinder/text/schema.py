"""Checks on JSON Schemas that clients send, before anything is built from them.

Two grades: what constrained decoding can hold an answer to, and the strict subset (contract 4.8).
Must not know: which engine or grammar enforces the schema. Iterative: no schema is too deep for it.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator
from urllib.parse import quote, unquote

from msgspec import Struct

from rejoinder.errors import InvalidRequest
from rejoinder.types import Json, JsonObject

MAX_LEVELS = 50
"""Schemas inside schemas; grammar compilers give up at about 60."""
MAX_SCHEMAS = 20_000
MAX_PROPERTIES = 5_000
MAX_REFERENCES = 1_000
MAX_ENUM_VALUES = 20_000
MAX_CHARACTERS = 1_000_000
"""Of property names, enum and const values, and patterns, together."""
MAX_VALUE_LEVELS = 15
"""Arrays and objects inside one enum or const value."""
MAX_PATTERN = 20_000
"""Characters of one pattern."""
MAX_UNROLLED = 100_000
"""Characters of one pattern after its bounded repeats are written out."""
MAX_COUNT = 1_000_000
"""The largest length or item count that a schema may name."""
MAX_EXACT_NUMBER = 2**53
"""Beyond it a number does not survive a float, so a bound or constant would be held wrongly."""

STRICT_LEVELS = 10
STRICT_ENUM_VALUES = 1_000
STRICT_CHARACTERS = 120_000
STRICT_LONG_ENUM = 250
STRICT_LONG_ENUM_CHARACTERS = 15_000

TYPES = frozenset({"null", "boolean", "number", "integer", "string", "array", "object"})

FORMATS = frozenset(
    {
        "date-time",
        "time",
        "date",
        "duration",
        "email",
        "hostname",
        "ipv4",
        "ipv6",
        "uuid",
        "uri",
    }
)
"""The formats that are enforced. Any other is a comment, as JSON Schema has it by default."""

ONE_SCHEMA = ("additionalProperties", "additionalItems", "items")
MAPS_OF_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions")
LISTS_OF_SCHEMAS = ("prefixItems", "anyOf", "oneOf", "allOf")
COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
OTHERS = ("type", "enum", "const", "$ref", "required", "pattern", "format")
ENFORCED = frozenset(ONE_SCHEMA + MAPS_OF_SCHEMAS + LISTS_OF_SCHEMAS + COUNTS + NUMBERS + OTHERS)

UNSUPPORTED = frozenset(
    {
        "$dynamicRef",
        "$recursiveRef",
        "contains",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "disallow",
        "divisibleBy",
        "else",
        "extends",
        "if",
        "maxContains",
        "minContains",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
        "uniqueItems",
    }
)
"""Keywords of some draft that restrict the answer and that nothing here can enforce."""

VACUOUS: dict[str, tuple[Json, ...]] = {
    "uniqueItems": (False,),
    "propertyNames": (True, {}, {"type": "string"}),
    "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
    "dependencies": ({},),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "not": (False, {}, True),
}
"""Values of unsupported keywords that are fine: they say nothing, or (`not: {}`) only "never"."""

NOT_STRICT = frozenset({"allOf", "not", "patternProperties", *UNSUPPORTED})
ANNOTATIONS = frozenset(
    {
        "$anchor",
        "$comment",
        "$id",
        "$schema",
        "$vocabulary",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "default",
        "deprecated",
        "description",
        "discriminator",
        "example",
        "examples",
        "externalDocs",
        "id",
        "nullable",
        "readOnly",
        "title",
        "writeOnly",
        "xml",
    }
)
"""Keywords that restrict nothing. `nullable` only widens: an answer made without it fits too."""

Pointer = tuple[str, ...]


class Place(Struct, frozen=True):
    """Where a schema came from, to say so in errors: `label` as in "response_format 'weather'"."""

    label: str
    param: str
    code: str | None = None

    def refuse(self, path: Pointer, reason: str) -> InvalidRequest:
        """The error that names the schema, the path in it and the reason (R39, R44)."""
        context = "()" if not path else f"({', '.join(_clip(repr(key)) for key in path)})"
        message = f"Invalid schema for {self.label}: in context={context}, {reason}"
        return InvalidRequest(message, param=self.param, code=self.code)


class _Node(Struct, frozen=True):
    """One schema inside the whole: its path, levels above it, and its value."""

    path: Pointer
    level: int
    schema: JsonObject | bool


def check_supported(schema: Json, *, place: Place) -> None:
    """Raise InvalidRequest unless every rule of `schema` can be enforced on an answer."""
    _check_answers(_checked_nodes(schema, place), place)


def check_strict(schema: Json, *, place: Place) -> None:
    """Raise InvalidRequest unless `schema` is in the strict subset (contract 4.8) and supported."""
    if not isinstance(schema, dict) or "anyOf" in schema:
        raise place.refuse((), "the root must be an object and not 'anyOf'.")
    nodes = _checked_nodes(schema, place)
    root = _resolved(schema, nodes)
    if not isinstance(root, dict) or root.get("type") != "object":
        raise place.refuse((), "the root must have the type 'object'.")
    for path, node in nodes.items():
        if node.level > STRICT_LEVELS:
            raise place.refuse(path, f"nesting is limited to {STRICT_LEVELS} levels.")
        _check_strict_node(path, node.schema, place)
    _check_strict_sizes(nodes, place)
    _check_answers(nodes, place)


def _checked_nodes(schema: Json, place: Place) -> dict[Pointer, _Node]:
    """Every schema in the whole, after the checks of each by itself."""
    nodes = _nodes(schema, place)
    _check_sizes(nodes, place)
    for path, node in nodes.items():
        if isinstance(node.schema, dict):
            _check_keywords(path, node.schema, place)
            _check_target(path, node.schema, nodes, place)
    return nodes


def _check_answers(nodes: dict[Pointer, _Node], place: Place) -> None:
    """There is an answer that fits, and `oneOf` can be held to."""
    _check_finite(nodes, place)
    for path, node in nodes.items():
        if isinstance(node.schema, dict) and "oneOf" in node.schema:
            _check_exclusive(path, nodes, place)


# ---------------------------------------------------------------- walking


def _nodes(root: Json, place: Place) -> dict[Pointer, _Node]:
    """Every schema in `root` by its path, the root first. Raises where the shape is wrong."""
    nodes: dict[Pointer, _Node] = {}
    waiting: deque[tuple[Pointer, int, Json]] = deque([((), 0, root)])
    while waiting:
        path, level, schema = waiting.popleft()
        if level > MAX_LEVELS or len(path) > 2 * MAX_LEVELS:
            raise place.refuse(path[:8], f"schemas are nested more than {MAX_LEVELS} levels.")
        if len(nodes) >= MAX_SCHEMAS:
            raise place.refuse((), f"it has more than {MAX_SCHEMAS} subschemas.")
        if not isinstance(schema, dict | bool):
            raise place.refuse(path, "a schema must be an object or a boolean.")
        nodes[path] = _Node(path, level, schema)
        if isinstance(schema, dict):
            waiting.extend(_children(path, level, schema, place))
    return nodes


def _children(
    path: Pointer, level: int, schema: JsonObject, place: Place
) -> Iterator[tuple[Pointer, int, Json]]:
    for key, value in schema.items():
        if key in MAPS_OF_SCHEMAS:
            if not isinstance(value, dict):
                raise place.refuse(path, f"'{key}' must be an object of schemas.")
            _check_width(path, value, place)
            deeper = level if key in ("$defs", "definitions") else level + 1
            for name, inner in value.items():
                yield (*path, key, name), deeper, inner
        elif key in LISTS_OF_SCHEMAS or (key == "items" and isinstance(value, list)):
            if not isinstance(value, list) or (not value and key != "items"):
                raise place.refuse(path, f"'{key}' must be a list of schemas, not empty.")
            _check_width(path, value, place)
            deeper = level if key in ("anyOf", "oneOf", "allOf") else level + 1
            yield from (((*path, key, str(i)), deeper, inner) for i, inner in enumerate(value))
        elif key in ONE_SCHEMA:
            yield (*path, key), level + 1, value


def _check_width(path: Pointer, members: JsonObject | list[Json], place: Place) -> None:
    if len(members) > MAX_SCHEMAS:
        raise place.refuse(path, f"more than {MAX_SCHEMAS} schemas.")


def _check_sizes(nodes: dict[Pointer, _Node], place: Place) -> None:
    properties = characters = values = 0
    references: set[str] = set()
    for path, node in nodes.items():
        if not isinstance(node.schema, dict):
            continue
        if isinstance(target := node.schema.get("$ref"), str):
            # A chain of them is nesting that the path does not show.
            references.add(target)
            if len(references) > MAX_REFERENCES:
                raise place.refuse(path, f"references to more than {MAX_REFERENCES} schemas.")
        names = node.schema.get("properties")
        properties += len(names) if isinstance(names, dict) else 0
        characters += sum(len(name) for name in names) if isinstance(names, dict) else 0
        for value in _constants(path, node.schema, place):
            values += 1
            characters += _value_size(path, value, place)
            if values > MAX_ENUM_VALUES:
                raise place.refuse(path, f"more than {MAX_ENUM_VALUES} enum values in all.")
        pattern = node.schema.get("pattern")
        characters += len(pattern) if isinstance(pattern, str) else 0
        required = node.schema.get("required")
        properties += max(0, len(_list(required)) - len(_object(names)))
        if properties > MAX_PROPERTIES:
            raise place.refuse(path, f"more than {MAX_PROPERTIES} properties in all.")
        if characters > MAX_CHARACTERS:
            reason = f"more than {MAX_CHARACTERS} characters of names, enum values and patterns."
            raise place.refuse(path, reason)


def _constants(path: Pointer, schema: JsonObject, place: Place) -> Iterator[Json]:
    if "const" in schema:
        yield schema["const"]
    if "enum" in schema:
        values = schema["enum"]
        if not isinstance(values, list) or not values:
            raise place.refuse(path, "'enum' must be a list, not empty.")
        yield from values


def _value_size(path: Pointer, value: Json, place: Place) -> int:
    """Characters of one enum or const value; raises for one that is too deep or inexact."""
    size = 0
    waiting: list[tuple[Json, int]] = [(value, 0)]
    while waiting:
        item, level = waiting.pop()
        if level > MAX_VALUE_LEVELS:
            raise place.refuse(path, f"a value is nested more than {MAX_VALUE_LEVELS} levels.")
        if isinstance(item, str):
            size += len(item)
        elif isinstance(item, dict):
            size += sum(len(key) for key in item)
            waiting.extend((inner, level + 1) for inner in item.values())
        elif isinstance(item, list):
            waiting.extend((inner, level + 1) for inner in item)
        elif _inexact(item):
            raise place.refuse(path, f"the number {item} is too large to be held to exactly.")
        size += 1
        if size > MAX_CHARACTERS:
            raise place.refuse(path, f"a value has more than {MAX_CHARACTERS} characters.")
    return size


def _inexact(value: Json) -> bool:
    return isinstance(value, int | float) and abs(value) > MAX_EXACT_NUMBER


# ---------------------------------------------------------------- keywords


def _check_keywords(path: Pointer, schema: JsonObject, place: Place) -> None:
    for key, value in schema.items():
        if key in UNSUPPORTED and not _is_vacuous(key, value):
            raise place.refuse(path, f"'{key}' is not supported: it cannot be enforced.")
        check = _CHECKS.get(key)
        problem = check(key, value) if check is not None else None
        if problem is not None:
            raise place.refuse(path, problem)
    if path and "$id" in schema:
        raise place.refuse(path, "'$id' is supported at the root only.")
    if "prefixItems" in schema and isinstance(schema.get("items"), list):
        raise place.refuse(path, "'prefixItems' and a list of 'items' exclude each other.")
    if "additionalItems" in schema and not isinstance(schema.get("items"), list):
        raise place.refuse(path, "'additionalItems' is supported with a list of 'items' only.")
    _check_property_counts(path, schema, place)


def _is_vacuous(key: str, value: Json) -> bool:
    return any(value == one and type(value) is type(one) for one in VACUOUS.get(key, ()))


def _check_property_counts(path: Pointer, schema: JsonObject, place: Place) -> None:
    """Maps may repeat a key while they are generated, so they can be held to one key at most."""
    least = schema.get("minProperties", 0)
    required = schema.get("required", [])
    if not isinstance(least, int | float) or not isinstance(required, list):
        return
    is_map = schema.get("additionalProperties", True) is not False or (
        "patternProperties" in schema
    )
    if is_map and least > len(required) + 1:
        reason = "'minProperties' is supported up to one more than the required properties."
        raise place.refuse(path, reason)


def _check_type(key: str, value: Json) -> str | None:
    names = value if isinstance(value, list) else [value]
    for name in names:
        if not isinstance(name, str) or name not in TYPES:
            return f"'type' is {_clip(repr(name))}, which is not a type of JSON Schema."
    return None if names else "'type' must not be an empty list."


def _check_count(key: str, value: Json) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        return f"'{key}' must be an integer."
    if not 0 <= value <= MAX_COUNT:
        return f"'{key}' must be between 0 and {MAX_COUNT}."
    return None


def _check_number(key: str, value: Json) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"'{key}' must be a number."
    if _inexact(value):
        return f"'{key}' is beyond 2^53 and cannot be held to exactly."
    return f"'{key}' must be above 0." if key == "multipleOf" and value <= 0 else None


def _check_string(key: str, value: Json) -> str | None:
    return None if isinstance(value, str) else f"'{key}' must be a string."


def _check_required(key: str, value: Json) -> str | None:
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return None
    return "'required' must be a list of property names."


def _check_pattern(key: str, value: Json) -> str | None:
    if not isinstance(value, str):
        return f"'{key}' must be a string."
    return pattern_problem(value)


def _check_pattern_names(key: str, value: Json) -> str | None:
    for pattern in value if isinstance(value, dict) else ():
        problem = pattern_problem(pattern)
        if problem is not None:
            return problem
    return None


def _check_ref(key: str, value: Json) -> str | None:
    if not isinstance(value, str):
        return "'$ref' must be a string."
    if value != "#" and not value.startswith("#/"):
        return (
            f"'$ref' is {_clip(repr(value))}: only references into this schema "
            "('#' or '#/…') are supported."
        )
    return None


_CHECKS: dict[str, Callable[[str, Json], str | None]] = {
    **dict.fromkeys(COUNTS, _check_count),
    **dict.fromkeys(NUMBERS, _check_number),
    "type": _check_type,
    "format": _check_string,
    "required": _check_required,
    "pattern": _check_pattern,
    "patternProperties": _check_pattern_names,
    "$ref": _check_ref,
}


def pattern_problem(pattern: str) -> str | None:
    """Why a regular expression is refused, or None. Bounded repeats may not multiply too far."""
    if len(pattern) > MAX_PATTERN:
        return f"a pattern has more than {MAX_PATTERN} characters."
    if _unrolled(pattern) > MAX_UNROLLED:
        return f"a pattern unrolls to more than {MAX_UNROLLED} characters: smaller repeats, please."
    return None


def _unrolled(pattern: str) -> int:
    """The length of a pattern with its bounded repeats written out, groups inside groups."""
    totals = [0]
    last = at = 0
    while at < len(pattern):
        char = pattern[at]
        repeat = _REPEAT.match(pattern, at) if char == "{" else None
        at = repeat.end() if repeat else _after(pattern, at)
        if repeat:
            last *= max(1, *(int(digits[:9] or 0) for digits in repeat.groups()))
            continue
        totals[-1] += last
        last = 1
        if char == "(":
            totals.append(0)
            last = 0
        elif char == ")" and len(totals) > 1:
            last = totals.pop()
    while len(totals) > 1:
        last += totals.pop()
    return totals[0] + last


_REPEAT = re.compile(r"\{(\d+),?(\d*)\}")


def _after(pattern: str, at: int) -> int:
    """Where the atom that begins at `at` ends: an escape, a class, or one character."""
    if pattern[at] == "\\":
        return at + 2
    if pattern[at] != "[":
        return at + 1
    at += 1
    while at < len(pattern) and pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at + 1


def _clip(text: str) -> str:
    return text if len(text) <= 64 else f"{text[:63]}…"


# ---------------------------------------------------------------- references


def _pointer(ref: str) -> Pointer:
    parts = unquote(ref).split("/")[1:]
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in parts)


def _check_target(
    path: Pointer, schema: JsonObject, nodes: dict[Pointer, _Node], place: Place
) -> None:
    ref = schema.get("$ref")
    if isinstance(ref, str) and _pointer(ref) not in nodes:
        raise place.refuse(path, f"'$ref' is {_clip(repr(ref))}, and there is no schema there.")


def _check_finite(nodes: dict[Pointer, _Node], place: Place) -> None:
    """Every schema must have an answer that ends: recursion needs a way out.

    Each schema needs all of its groups, and of a group any one member; what nothing stands in the
    way of is finite, and its dependants follow, so the whole takes one pass over the edges.
    """
    waits: dict[Pointer, int] = {}
    dependants: dict[Pointer, list[tuple[Pointer, list[bool]]]] = {}
    ready: deque[Pointer] = deque()
    for path, node in nodes.items():
        groups = _needs(path, node.schema)
        waits[path] = len(groups)
        for group in groups:
            met = [False]
            for member in group:
                dependants.setdefault(member, []).append((path, met))
        if not groups:
            ready.append(path)
    while ready:
        for path, met in dependants.get(ready.popleft(), ()):
            if not met[0]:
                met[0] = True
                waits[path] -= 1
                if waits[path] == 0:
                    ready.append(path)
    if waits[()] > 0:
        endless = next((path for path, count in waits.items() if count > 0 and path), ())
        raise place.refuse(endless, "no finite answer fits this schema.")


def _needs(path: Pointer, schema: JsonObject | bool) -> list[list[Pointer]]:
    """Groups of paths: an answer to `schema` needs one of each group to have an answer."""
    if not isinstance(schema, dict):
        return [] if schema else [[]]
    groups = [[_pointer(str(schema["$ref"]))]] if "$ref" in schema else []
    for key in ("anyOf", "oneOf"):
        if key in schema:
            groups.append(_members(path, schema, key))
    groups.extend([member] for member in _members(path, schema, "allOf"))
    kinds = schema.get("type")
    if kinds in ("object", ["object"]):
        groups.extend(_needs_of_object(path, schema))
    elif kinds in ("array", ["array"]):
        groups.extend(_needs_of_array(path, schema))
    return groups


def _members(path: Pointer, schema: JsonObject, key: str) -> list[Pointer]:
    value = schema.get(key)
    return [(*path, key, str(i)) for i in range(len(value))] if isinstance(value, list) else []


def _needs_of_object(path: Pointer, schema: JsonObject) -> Iterator[list[Pointer]]:
    properties = schema.get("properties")
    required = schema.get("required")
    for name in required if isinstance(required, list) else ():
        if isinstance(properties, dict) and isinstance(name, str) and name in properties:
            yield [(*path, "properties", name)]
        elif "additionalProperties" in schema and "patternProperties" not in schema:
            yield [(*path, "additionalProperties")]


def _needs_of_array(path: Pointer, schema: JsonObject) -> Iterator[list[Pointer]]:
    least = schema.get("minItems", 0)
    if not isinstance(least, int | float):
        return
    key = "items" if isinstance(schema.get("items"), list) else "prefixItems"
    first = _members(path, schema, key)
    yield from ([member] for member in first[: int(least)])
    rest = "additionalItems" if key == "items" else "items"
    if least > len(first) and rest in schema:
        yield [(*path, rest)]


# ---------------------------------------------------------------- the strict subset


def _check_strict_node(path: Pointer, schema: JsonObject | bool, place: Place) -> None:
    if not isinstance(schema, dict):
        if path and path[-1] in ONE_SCHEMA:
            return
        raise place.refuse(path, "a schema must be an object in a strict schema.")
    for key in schema:
        if key in NOT_STRICT:
            raise place.refuse(path, f"'{key}' is not permitted in a strict schema.")
        if key not in ENFORCED and key not in ANNOTATIONS and not key.startswith("x-"):
            raise place.refuse(path, f"'{_clip(key)}' is not a keyword of strict schemas.")
    name = schema.get("format")
    if name is not None and name not in FORMATS:
        raise place.refuse(path, f"the format {_clip(repr(name))} cannot be enforced.")
    kinds = schema.get("type")
    if not any(key in schema for key in ("type", "$ref", "anyOf", "oneOf", "enum", "const")):
        raise place.refuse(path, "'type' is required.")
    if kinds == "object" or (isinstance(kinds, list) and "object" in kinds):
        _check_strict_object(path, schema, place)
    elif "properties" in schema:
        raise place.refuse(path, "'properties' is permitted with the type 'object' only.")
    if (kinds == "array" or (isinstance(kinds, list) and "array" in kinds)) and (
        "items" not in schema and "prefixItems" not in schema
    ):
        raise place.refuse(path, "'items' is required for an array.")


def _check_strict_object(path: Pointer, schema: JsonObject, place: Place) -> None:
    if schema.get("additionalProperties") is not False:
        raise place.refuse(path, "'additionalProperties' is required and must be false.")
    properties = schema.get("properties", {})
    required = schema.get("required", [])
    names = properties if isinstance(properties, dict) else {}
    given = dict.fromkeys(map(str, _list(required)))
    missing = next((name for name in names if name not in given), None)
    if missing is not None:
        reason = f"'required' must list every property; {_clip(repr(missing))} is missing."
        raise place.refuse(path, reason)
    extra = next((name for name in given if name not in names), None)
    if extra is not None:
        raise place.refuse(path, f"'required' lists {_clip(repr(extra))}, which is no property.")


def _check_strict_sizes(nodes: dict[Pointer, _Node], place: Place) -> None:
    values = characters = 0
    for path, node in nodes.items():
        schema = node.schema
        if not isinstance(schema, dict):
            continue
        for key in MAPS_OF_SCHEMAS:
            names = schema.get(key)
            characters += sum(map(len, names)) if isinstance(names, dict) else 0
        enum = schema.get("enum")
        strings = [one for one in enum if isinstance(one, str)] if isinstance(enum, list) else []
        values += len(enum) if isinstance(enum, list) else 0
        length = sum(map(len, strings))
        const = schema.get("const")
        characters += length + (len(const) if isinstance(const, str) else 0)
        if len(strings) > STRICT_LONG_ENUM and length > STRICT_LONG_ENUM_CHARACTERS:
            reason = (
                f"an enum of more than {STRICT_LONG_ENUM} strings is limited to "
                f"{STRICT_LONG_ENUM_CHARACTERS} characters."
            )
            raise place.refuse(path, reason)
        if values > STRICT_ENUM_VALUES:
            raise place.refuse(path, f"enum values are limited to {STRICT_ENUM_VALUES} in all.")
        if characters > STRICT_CHARACTERS:
            reason = f"names and enum strings are limited to {STRICT_CHARACTERS} characters."
            raise place.refuse(path, reason)


# ---------------------------------------------------------------- exclusive options


MAX_COMPARISONS = 100_000
MAX_HOPS = 20


def _resolved(schema: JsonObject | bool, nodes: dict[Pointer, _Node]) -> JsonObject | bool:
    """The schema that a bare reference stands for, through a few hops."""
    for _ in range(MAX_HOPS):
        if not isinstance(schema, dict) or "$ref" not in schema or "type" in schema:
            break
        schema = nodes[_pointer(str(schema["$ref"]))].schema
    return schema


def _check_exclusive(path: Pointer, nodes: dict[Pointer, _Node], place: Place) -> None:
    """`oneOf` is held to as `anyOf`, which is the same only if no answer fits two options."""
    schema = nodes[path].schema
    options = [nodes[member].schema for member in _members(path, _object(schema), "oneOf")]
    compare = _Comparison(nodes)
    for i, option in enumerate(options):
        for other in options[i + 1 :]:
            if not compare.disjoint(option, other, 0):
                reason = (
                    "'oneOf' is supported where its options exclude each other by their types "
                    "or by the constants of a required property; 'anyOf' always is."
                )
                raise place.refuse(path, reason)


def _object(value: Json) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


class _Comparison:
    """Whether two schemas exclude each other, as far as it can be shown with bounded work."""

    def __init__(self, nodes: dict[Pointer, _Node]) -> None:
        self._nodes = nodes
        self._left = MAX_COMPARISONS

    def disjoint(self, one: Json, other: Json, depth: int) -> bool:
        self._left -= 1
        if depth > 6 or self._left < 0:
            return False
        if one is False or other is False:
            return True
        if not isinstance(one, dict) or not isinstance(other, dict):
            return False
        one, other = _resolved(one, self._nodes), _resolved(other, self._nodes)
        if not isinstance(one, dict) or not isinstance(other, dict):
            return False
        shared = _kinds(one) & _kinds(other)
        if not shared:
            return True
        values, other_values = _values(one), _values(other)
        if values is not None and other_values is not None and not values & other_values:
            return True
        if shared == {"object"} and (
            self._by_property(one, other, depth) or self._by_property(other, one, depth)
        ):
            return True
        return self._by_options(one, other, depth) or self._by_options(other, one, depth)

    def _by_property(self, one: JsonObject, other: JsonObject, depth: int) -> bool:
        """A property that `one` requires cannot be there, or be the same, in `other`."""
        mine, theirs = _object(one.get("properties")), _object(other.get("properties"))
        closed = other.get("additionalProperties") is False and "patternProperties" not in other
        for name in map(str, _list(one.get("required"))):
            if name not in theirs:
                if closed:
                    return True
            elif name in mine and self.disjoint(mine[name], theirs[name], depth + 1):
                return True
        return False

    def _by_options(self, one: JsonObject, other: JsonObject, depth: int) -> bool:
        for key in ("anyOf", "oneOf"):
            options = _list(one.get(key))
            if options and all(self.disjoint(option, other, depth + 1) for option in options):
                return True
        return any(self.disjoint(part, other, depth + 1) for part in _list(one.get("allOf")))


def _kinds(schema: JsonObject) -> set[str]:
    """The types that an answer to `schema` may have, integers being numbers."""
    given = schema.get("type", sorted(TYPES))
    names = {str(kind) for kind in (given if isinstance(given, list) else [given])}
    kinds = {"number" if name == "integer" else name for name in names}
    values = _values(schema)
    return kinds if values is None else kinds & {kind for kind, _ in values}


def _values(schema: JsonObject) -> set[tuple[str, object]] | None:
    if "const" in schema:
        return {_identity(schema["const"])}
    return {_identity(value) for value in _list(schema["enum"])} if "enum" in schema else None


def _identity(value: Json) -> tuple[str, object]:
    """A value's type and something equal for equal JSON values only (1 is 1.0 and not true)."""
    match value:
        case None:
            return "null", None
        case bool():
            return "boolean", value
        case int() | float():
            return "number", float(value)
        case str():
            return "string", value
        case list():
            return "array", tuple(_identity(item) for item in value)
        case dict():
            return "object", frozenset((key, _identity(item)) for key, item in value.items())


# ---------------------------------------------------------------- one spelling


def plain_schema(schema: Json) -> JsonObject:
    """A supported schema with nothing but enforced keywords, in one draft's spelling.

    Objects that list their properties and say nothing of others have no others. Answers that fit
    it fit the original. Only for schemas that passed `check_supported`.
    """
    plain = _plain(schema, schema)
    if not isinstance(plain, dict):
        return {} if plain else {"enum": []}
    objects = list(_objects_in(plain))
    if all(map(_stands_alone, objects)):
        for one in objects:
            if "properties" in one and not _OPENING & one.keys():
                one["additionalProperties"] = False
    return plain


_COMBINING = frozenset({"$ref", "anyOf"})
_OPENING = frozenset({"additionalProperties", "patternProperties", "minProperties"})
_STRUCTURE = frozenset({"properties", "required", *_OPENING})


def _objects_in(plain: JsonObject) -> Iterator[JsonObject]:
    """The (plain) schema and all those inside it that are no booleans."""
    waiting: list[Json] = [plain]
    while waiting:
        schema = waiting.pop()
        if not isinstance(schema, dict):
            continue
        yield schema
        for key in MAPS_OF_SCHEMAS:
            waiting.extend(_object(schema.get(key)).values())
        for key in LISTS_OF_SCHEMAS:
            waiting.extend(_list(schema.get(key)))
        waiting.extend(schema[key] for key in ONE_SCHEMA if key in schema)


def _stands_alone(schema: JsonObject) -> bool:
    """No other schema adds properties to the objects of this one."""
    names = _object(schema.get("properties"))
    return (
        "allOf" not in schema
        and not (_COMBINING & schema.keys() and _STRUCTURE & schema.keys())
        and not (schema.keys() >= _COMBINING)
        and all(name in names for name in map(str, _list(schema.get("required"))))
    )


def _plain(schema: Json, root: Json) -> JsonObject | bool:
    if not isinstance(schema, dict):
        return schema is True
    if schema.get("not") in ({}, True):
        return False
    plain: JsonObject = {}
    for key, value in schema.items():
        match key:
            case "$ref":
                plain[key] = _plain_ref(str(value), root)
            case "format" if value not in FORMATS:
                pass
            case "items" if isinstance(value, list):
                plain["prefixItems"] = [_plain(item, root) for item in value]
            case "additionalItems":
                plain["items"] = _plain(value, root)
            case "oneOf":
                options: list[Json] = [_plain(option, root) for option in _list(value)]
                _add_any_of(plain, schema, options)
            case "allOf":
                parts: list[Json] = [_plain(part, root) for part in _list(value)]
                plain[key] = [*_list(plain.get(key)), *parts]
            case "anyOf" | "prefixItems":
                plain[key] = [_plain(part, root) for part in _list(value)]
            case _ if key in MAPS_OF_SCHEMAS:
                plain[key] = {name: _plain(one, root) for name, one in _object(value).items()}
            case _ if key in ONE_SCHEMA:
                plain[key] = _plain(value, root)
            case _ if key in ENFORCED:
                plain[key] = value
    return plain


def _add_any_of(plain: JsonObject, schema: JsonObject, options: list[Json]) -> None:
    if "anyOf" in schema:
        plain["allOf"] = [*_list(plain.get("allOf")), {"anyOf": options}]
    else:
        plain["anyOf"] = options


def _plain_ref(ref: str, root: Json) -> str:
    """A reference in the plain spelling: tuples are `prefixItems` there."""
    parts: list[str] = []
    at: Json = root
    for part in _pointer(ref):
        inside = isinstance(at, list)
        if inside and parts[-1] == "items":
            parts[-1] = "prefixItems"
        at = _list(at)[int(part)] if inside else _object(at).get(part)
        parts.append(part.replace("~", "~0").replace("/", "~1"))
    return "/".join(["#", *(quote(part, safe="~$") for part in parts)])
