"""Random JSON Schemas of the supported kind, and values that clients could send as schemas."""

from hypothesis import strategies as st

from rejoinder.types import Json, JsonObject

NAMES = st.sampled_from(
    [
        "a",
        "b",
        "city",
        "unit",
        "größe",
        "a b",
        'quo"te',
        "line\nbreak",
        "$ref",
        "type",
        "0",
        "x/y~z",
    ]
)
WORDS = st.sampled_from(
    ["", "x", "yes", "größe", "東京", "🙂", 'a"b', "a\\b", "a\nb", "\u0001", "/"]
)
PATTERNS = st.sampled_from(
    [
        "^[a-z]{1,5}$",
        "^\\d{2}-\\d{2}$",
        "^(yes|no)$",
        "^a+b?$",
        "^\\w+@x$",
        '^[^"]{0,3}$',
        "z$",
        "^q",
    ]
)
FORMATS = st.sampled_from(["date", "date-time", "time", "uuid", "ipv4", "duration", "email"])


def _bounds(low: int, high: int, first: str, second: str) -> st.SearchStrategy[JsonObject]:
    def pick(pair: tuple[int, int], which: int) -> JsonObject:
        least, most = sorted(pair)
        both: JsonObject = {first: least, second: most}
        return {key: both[key] for i, key in enumerate(both) if which >> i & 1}

    numbers = st.integers(low, high)
    return st.builds(pick, st.tuples(numbers, numbers), st.integers(0, 3))


def _with(kind: str, *parts: st.SearchStrategy[JsonObject]) -> st.SearchStrategy[JsonObject]:
    def join(*found: JsonObject) -> JsonObject:
        joined: JsonObject = {"type": kind}
        for one in found:
            joined |= one
        return joined

    return st.builds(join, *parts)


STRINGS = st.one_of(
    _with("string", _bounds(0, 6, "minLength", "maxLength")),
    _with("string", st.builds(lambda p: {"pattern": p}, PATTERNS)),
    _with("string", st.builds(lambda f: {"format": f}, FORMATS)),
)
NUMBERS = st.one_of(
    _with("integer", _bounds(-50, 50, "minimum", "maximum")),
    _with("integer", st.builds(lambda m: {"multipleOf": m}, st.integers(1, 9))),
    _with("number", _bounds(-50, 50, "minimum", "maximum")),
    _with("number", st.just({"exclusiveMinimum": 0.25, "exclusiveMaximum": 0.5})),
)
VALUES: st.SearchStrategy[Json] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-99, 99), WORDS, st.just(1.5)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(NAMES, inner, max_size=2)),
    max_leaves=4,
)
CONSTANTS = st.one_of(
    st.builds(lambda v: {"const": v}, VALUES),
    st.builds(lambda v: {"enum": v}, st.lists(VALUES, min_size=1, max_size=4)),
)
LEAVES = st.one_of(
    STRINGS,
    NUMBERS,
    CONSTANTS,
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.just({"type": ["string", "null"], "maxLength": 4}),
)


@st.composite
def _object(draw: st.DrawFn, inner: st.SearchStrategy[JsonObject]) -> JsonObject:
    properties = draw(st.dictionaries(NAMES, inner, max_size=4))
    schema: JsonObject = {"type": "object", "properties": dict(properties)}
    required = [name for name in properties if draw(st.booleans())]
    if required:
        schema["required"] = list(required)
    rest = draw(st.sampled_from(["absent", "closed", "open"]))
    if rest == "closed":
        schema["additionalProperties"] = False
    elif rest == "open":
        schema = {"additionalProperties": draw(inner), **schema}
    if draw(st.booleans()):
        schema["title"] = "An annotation"
    return schema


@st.composite
def _array(draw: st.DrawFn, inner: st.SearchStrategy[JsonObject]) -> JsonObject:
    schema: JsonObject = {"type": "array", "items": draw(inner)}
    if draw(st.booleans()):
        schema["prefixItems"] = [draw(inner)]
    return schema | draw(_bounds(0, 3, "minItems", "maxItems"))


def _nested(inner: st.SearchStrategy[JsonObject]) -> st.SearchStrategy[JsonObject]:
    return st.one_of(
        _object(inner),
        _object(inner),
        _array(inner),
        st.builds(lambda some: {"anyOf": some}, st.lists(inner, min_size=1, max_size=3)),
        st.just({"$ref": "#/$defs/leaf"}),
        st.just({"$ref": "#/$defs/tree"}),
        st.builds(
            lambda one: {"oneOf": [{"type": "array", "items": one}, {"type": "string"}]}, inner
        ),
        st.builds(lambda one: {"allOf": [one, {"title": "same"}]}, inner),
    )


@st.composite
def schemas(draw: st.DrawFn) -> JsonObject:
    """A schema whose every rule is enforced; its root may be anything."""
    root = dict(draw(st.recursive(LEAVES, _nested, max_leaves=8)))
    tree: JsonObject = {
        "type": "object",
        "properties": {
            "value": draw(LEAVES),
            "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/tree"}]},
        },
        "required": ["value", "next"],
        "additionalProperties": False,
    }
    return {**root, "$defs": {"leaf": draw(LEAVES), "tree": tree}}


@st.composite
def object_schemas(draw: st.DrawFn) -> JsonObject:
    """The same with an object at the root, as the arguments of a function."""
    whole = draw(schemas())
    root = draw(_object(st.one_of(LEAVES, st.just({"$ref": "#/$defs/tree"}))))
    return {**root, "$defs": whole["$defs"]}


def nested(levels: int) -> Json:
    """Objects of one property, one in another."""
    schema: Json = {"type": "string"}
    for _ in range(levels):
        schema = {
            "type": "object",
            "properties": {"a": schema},
            "required": ["a"],
            "additionalProperties": False,
        }
    return schema
