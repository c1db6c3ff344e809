import time

import jsonschema_rs
import pytest
from hypothesis import given, settings

from rejoinder.errors import InvalidRequest
from rejoinder.text.schema import Place, check_strict, check_supported, plain_schema
from rejoinder.types import Json, JsonObject
from tests.text.schemas import nested, schemas

PLACE = Place("response_format 'x'", "response_format")


def strict_object(**properties: Json) -> JsonObject:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def refusal(schema: Json, *, strict: bool = False) -> str:
    check = check_strict if strict else check_supported
    with pytest.raises(InvalidRequest) as caught:
        check(schema, place=PLACE)
    assert caught.value.param == "response_format"
    assert caught.value.code is None
    prefix = "Invalid schema for response_format 'x': in context="
    assert caught.value.message.startswith(prefix)
    return caught.value.message.removeprefix(prefix)


# ---------------------------------------------------------------- what can be enforced


@given(schemas())
@settings(max_examples=200, deadline=None)
def test_supported_schemas_pass_and_stay_schemas(schema: JsonObject) -> None:
    check_supported(schema, place=PLACE)
    jsonschema_rs.meta.validate(plain_schema(schema))


UNSUPPORTED: list[tuple[str, Json]] = [
    ("uniqueItems", True),
    ("contains", {"type": "string"}),
    ("minContains", 1),
    ("maxContains", 1),
    ("propertyNames", {"pattern": "^a"}),
    ("unevaluatedProperties", False),
    ("unevaluatedItems", False),
    ("dependentRequired", {"a": ["b"]}),
    ("dependentSchemas", {"a": {}}),
    ("dependencies", {"a": ["b"]}),
    ("if", {}),
    ("then", {}),
    ("else", {}),
    ("not", {"type": "string"}),
    ("$dynamicRef", "#x"),
    ("$recursiveRef", "#"),
]


@pytest.mark.parametrize(("keyword", "value"), UNSUPPORTED, ids=lambda v: str(v)[:20])
def test_an_unsupported_keyword_is_refused_by_name(keyword: str, value: Json) -> None:
    schema = strict_object(a={"type": "array", "items": {"type": "object", keyword: value}})
    message = refusal(schema)
    assert message.startswith(f"('properties', 'a', 'items'), '{keyword}' is not supported")


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("uniqueItems", False),
        ("propertyNames", {"type": "string"}),
        ("x-order", 3),
        ("deprecated", True),
        ("nullable", True),
        ("format", "password"),
        ("$schema", "http://json-schema.org/draft-04/schema#"),
        ("default", [[[]]]),
        ("discriminator", {"propertyName": "kind"}),
    ],
)
def test_what_restricts_nothing_is_accepted_and_dropped(keyword: str, value: Json) -> None:
    schema: JsonObject = {"type": "string", keyword: value}
    check_supported(schema, place=PLACE)
    assert plain_schema(schema) == {"type": "string"}


WRONG: list[tuple[Json, str]] = [
    ({"type": "strin"}, "(), 'type' is 'strin'"),
    ({"type": []}, "(), 'type' must not be an empty list"),
    ({"type": 3}, "(), 'type' is 3"),
    ({"enum": []}, "(), 'enum' must be a list, not empty"),
    ({"enum": "abc"}, "(), 'enum' must be a list"),
    ({"anyOf": []}, "(), 'anyOf' must be a list of schemas, not empty"),
    ({"properties": []}, "(), 'properties' must be an object of schemas"),
    ({"properties": {"a": 3}}, "('properties', 'a'), a schema must be"),
    ({"items": [{}, "x"]}, "('items', '1'), a schema must be"),
    ({"required": "a"}, "(), 'required' must be a list"),
    ({"required": [1]}, "(), 'required' must be a list"),
    ({"minItems": -1}, "(), 'minItems' must be between 0"),
    ({"maxLength": 10**9}, "(), 'maxLength' must be between 0"),
    ({"maxLength": 1.5}, "(), 'maxLength' must be an integer"),
    ({"maxLength": True}, "(), 'maxLength' must be an integer"),
    ({"minimum": "1"}, "(), 'minimum' must be a number"),
    ({"exclusiveMinimum": True}, "(), 'exclusiveMinimum' must be a number"),
    ({"multipleOf": 0}, "(), 'multipleOf' must be above 0"),
    ({"maximum": 2**53 + 2}, "(), 'maximum' is beyond 2^53"),
    ({"const": 9007199254740993}, "(), the number 9007199254740993 is too large"),
    ({"enum": [{"a": [2**60]}]}, f"(), the number {2**60} is too large"),
    ({"pattern": 3}, "(), 'pattern' must be a string"),
    ({"format": ["date"]}, "(), 'format' must be a string"),
    ({"$ref": "http://example.com/s.json"}, "(), '$ref' is 'http://example.com/s.json': only"),
    ({"$ref": "other.json#/a"}, "(), '$ref' is 'other.json#/a': only"),
    ({"$ref": "#name"}, "(), '$ref' is '#name': only"),
    ({"$ref": 3}, "(), '$ref' must be a string"),
    ({"$ref": "#/$defs/no"}, "(), '$ref' is '#/$defs/no', and there is no schema there"),
    ({"$ref": "#/$defs", "$defs": {}}, "(), '$ref' is '#/$defs', and there is no schema there"),
    ({"properties": {"a": {"$id": "y"}}}, "('properties', 'a'), '$id' is supported at the root"),
    ({"additionalItems": {}}, "(), 'additionalItems' is supported with"),
    ({"prefixItems": [{}], "items": [{}]}, "(), 'prefixItems' and a list of 'items'"),
    ({"minProperties": 2}, "(), 'minProperties' is supported up to"),
    (3, "(), a schema must be"),
    (None, "(), a schema must be"),
]


@pytest.mark.parametrize(("schema", "message"), WRONG, ids=lambda v: str(v)[:50])
def test_wrong_schemas_are_refused_with_their_path(schema: Json, message: str) -> None:
    assert refusal(schema).startswith(message)


ENDLESS: list[Json] = [
    {"$ref": "#"},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    strict_object(a={"$ref": "#"}),
    {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
    {"type": "array", "prefixItems": [{"$ref": "#"}], "minItems": 1},
    {"anyOf": [strict_object(a={"$ref": "#"}), {"type": "array", "items": False, "minItems": 1}]},
    {"type": "object", "required": ["x"], "additionalProperties": {"$ref": "#"}},
    False,
]


@pytest.mark.parametrize("schema", ENDLESS, ids=str)
def test_recursion_without_a_way_out_is_refused(schema: Json) -> None:
    assert "no finite answer fits" in refusal(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"$ref": "#"}},
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
        {"anyOf": [{"type": "array", "items": {"$ref": "#"}, "minItems": 1}, {"type": "null"}]},
        strict_object(a={"anyOf": [{"type": "null"}, {"$ref": "#"}]}),
        {"type": ["array", "null"], "items": {"$ref": "#"}, "minItems": 1},
    ],
    ids=str,
)
def test_recursion_with_a_way_out_is_fine(schema: Json) -> None:
    check_supported(schema, place=PLACE)


def kind(name: str, **more: Json) -> JsonObject:
    return strict_object(kind={"const": name}, **more)


@pytest.mark.parametrize(
    ("options", "exclusive"),
    [
        ([kind("a"), kind("b")], True),
        ([kind("a"), kind("a")], False),
        ([{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], True),
        ([{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}], False),
        ([{"type": "string"}, {"type": "integer"}], True),
        ([{"type": "number"}, {"type": "integer"}], False),
        ([{"const": 1}, {"const": 1.0}], False),
        ([{"const": 1}, {"const": True}], True),
        ([{"enum": ["a", "b"]}, {"enum": ["b", "c"]}], False),
        ([strict_object(a={"type": "string"}), strict_object(b={"type": "string"})], True),
        ([{"required": ["a"]}, {"required": ["b"]}], False),
        ([{"anyOf": [kind("a"), kind("b")]}, kind("c")], True),
        ([{"type": "string"}, {}], False),
        ([{"type": "string"}, False], True),
    ],
    ids=str,
)
def test_one_of_needs_options_that_exclude_each_other(options: list[Json], exclusive: bool) -> None:
    schema: JsonObject = {"oneOf": options, "$defs": {"a": kind("a"), "b": kind("b")}}
    if exclusive:
        check_supported(schema, place=PLACE)
        assert "oneOf" not in plain_schema(schema)
    else:
        assert refusal(schema).startswith("(), 'oneOf' is supported where")


# ---------------------------------------------------------------- hostile

HOSTILE: dict[str, Json] = {
    "10,000 objects": nested(10_000),
    "2,000 objects": nested(2_000),
    "wide": {"type": "object", "properties": {f"p{i}": {} for i in range(300_000)}},
    "enum": {"enum": ["x" * 100] * 1_000_000},
    "one long value": {"const": "x" * 2_000_000},
    "required": {"type": "object", "required": ["x"] * 1_000_000},
    "any of": {"anyOf": [{"type": "string"}] * 300_000},
    "pattern repeats": {"type": "string", "pattern": "([a-z]{1000}){1000}"},
    "pattern repeats in a row": {"type": "string", "pattern": "[a-z]{1000}" * 200},
    "pattern repeats of repeats": {"type": "string", "pattern": "a{1000}{1000}"},
    "pattern with a huge count": {"type": "string", "pattern": "a{99999999999999999999}"},
    "long pattern": {"type": "string", "pattern": "[" * 1_000_000},
    "chain without end": {
        "$ref": "#/$defs/0",
        "$defs": {str(i): {"$ref": f"#/$defs/{(i + 1) % 19_000}"} for i in range(19_000)},
    },
    "one of": {"oneOf": [kind(f"k{i}") for i in range(2_000)]},
}


def _deep(key: str) -> Json:
    value: Json = {"type": "string"}
    for _ in range(10_000):
        value = {key: [value]} if key != "not" else {key: value}
    return value


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_are_refused_quickly(name: str) -> None:
    started = time.perf_counter()
    assert len(refusal(HOSTILE[name])) < 600
    assert time.perf_counter() - started < 2


@pytest.mark.parametrize("key", ["anyOf", "allOf", "prefixItems", "not", "const"])
def test_depth_of_every_kind_is_limited(key: str) -> None:
    refusal(_deep(key) if key != "const" else {"const": _deep("anyOf")})


def test_large_but_honest_schemas_are_accepted_quickly() -> None:
    properties: JsonObject = {f"p{i}": {"type": "string", "enum": ["a", "b"]} for i in range(4_900)}
    chain: JsonObject = {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(999)}
    started = time.perf_counter()
    check_supported(strict_object(**properties), place=PLACE)
    check_supported(
        {"$ref": "#/$defs/0", "$defs": {**chain, "999": {"type": "string"}}}, place=PLACE
    )
    check_supported(nested(50), place=PLACE)
    assert time.perf_counter() - started < 3


def test_a_chain_of_references_is_nesting_too() -> None:
    """A compiler that recurses along it runs out of stack, and takes the process with it."""
    chain: JsonObject = {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(2_500)}
    schema: JsonObject = {"$ref": "#/$defs/0", "$defs": {**chain, "2500": {"type": "null"}}}
    with pytest.raises(InvalidRequest, match="references to more than"):
        check_supported(schema, place=PLACE)


# ---------------------------------------------------------------- the strict subset

NOT_STRICT: list[tuple[Json, str]] = [
    ({"anyOf": [strict_object()]}, "(), the root must be an object and not 'anyOf'"),
    ({"type": "array", "items": {"type": "string"}}, "(), the root must have the type 'object'"),
    ({"type": ["object", "null"]}, "(), the root must have the type 'object'"),
    (None, "(), the root must be an object"),
    (True, "(), the root must be an object"),
    ({"type": "object", "properties": {}}, "(), 'additionalProperties' is required"),
    (strict_object() | {"additionalProperties": {}}, "(), 'additionalProperties' is required"),
    (
        strict_object(a={"type": "object", "properties": {}}),
        "('properties', 'a'), 'additionalProperties' is required",
    ),
    (
        strict_object(a={"type": "array", "items": {"type": ["object", "null"]}}),
        "('properties', 'a', 'items'), 'additionalProperties' is required",
    ),
    (
        strict_object(a={"$ref": "#/$defs/d"}) | {"$defs": {"d": {"type": "object"}}},
        "('$defs', 'd'), 'additionalProperties' is required",
    ),
    (
        strict_object(a={"type": "string"}) | {"required": []},
        "(), 'required' must list every property; 'a' is missing",
    ),
    (strict_object() | {"required": ["b"]}, "(), 'required' lists 'b', which is no property"),
    (strict_object(a={}), "('properties', 'a'), 'type' is required"),
    (strict_object(a=True), "('properties', 'a'), a schema must be an object"),
    (strict_object(a={"type": "array"}), "('properties', 'a'), 'items' is required"),
    (
        strict_object(a={"type": "string", "format": "phone"}),
        "('properties', 'a'), the format 'phone' cannot be enforced",
    ),
    (
        strict_object(a={"type": "string", "minLenght": 3}),
        "('properties', 'a'), 'minLenght' is not a keyword",
    ),
    (
        strict_object(a={"allOf": [{"type": "string"}]}),
        "('properties', 'a'), 'allOf' is not permitted",
    ),
    (
        strict_object() | {"patternProperties": {"a": {"type": "string"}}},
        "(), 'patternProperties' is not permitted",
    ),
    (nested(12), "('properties', 'a', 'properties', 'a'"),
    (
        strict_object(a={"enum": list(range(1_001))}),
        "('properties', 'a'), enum values are limited to 1000",
    ),
    (
        strict_object(a={"enum": [f"{i:0100}" for i in range(251)]}),
        "('properties', 'a'), an enum of more than 250 strings",
    ),
    (
        strict_object(**{f"{i:01000}": {"type": "string"} for i in range(121)}),
        "(), names and enum strings are limited to 120000",
    ),
    (
        strict_object(**{str(i): {"type": "null"} for i in range(5_001)}),
        "(), more than 5000 properties",
    ),
]


@pytest.mark.parametrize(("schema", "message"), NOT_STRICT, ids=lambda v: str(v)[:60])
def test_the_strict_subset(schema: Json, message: str) -> None:
    assert refusal(schema, strict=True).startswith(message)


@pytest.mark.parametrize(
    "schema",
    [
        strict_object(),
        nested(10),
        strict_object(a={"anyOf": [{"type": "string"}, {"type": "null"}]}),
        strict_object(a={"type": ["string", "null"], "description": "optional"}),
        strict_object(a={"enum": ["a", 1, None]}),
        strict_object(a={"const": "b"}),
        strict_object(a={"enum": list(range(1_000))}),
        strict_object(a={"enum": [f"{i:060}" for i in range(250)]}),
        {
            "$ref": "#/$defs/n",
            "$defs": {"n": strict_object(next={"anyOf": [{"$ref": "#/$defs/n"}]})},
        }
        | {"$defs": {"n": strict_object(n={"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]})}},
        strict_object(a={"$ref": "#/$defs/p"}, b={"type": "array", "items": {"$ref": "#/$defs/p"}})
        | {"$defs": {"p": {"type": "string"}}},
        strict_object(a={"type": "array", "items": {"type": "integer"}, "maxItems": 3}),
        strict_object(a={"type": "number", "minimum": 0, "multipleOf": 0.5}),
        strict_object(a={"type": "string", "pattern": "^a", "format": "date"}),
    ],
    ids=lambda v: str(v)[:60],
)
def test_strict_schemas_pass(schema: Json) -> None:
    check_strict(schema, place=PLACE)


def test_a_tool_names_its_parameter_and_code() -> None:
    place = Place("function 'f'", "tools[2].function.parameters", "invalid_function_parameters")
    with pytest.raises(InvalidRequest) as caught:
        check_strict({"type": "object"}, place=place)
    assert caught.value.param == "tools[2].function.parameters"
    assert caught.value.code == "invalid_function_parameters"
    assert "function 'f'" in caught.value.message


# ---------------------------------------------------------------- one spelling


@pytest.mark.parametrize(
    ("schema", "plain"),
    [
        (
            {"items": [{"type": "string"}], "additionalItems": False},
            {"prefixItems": [{"type": "string"}], "items": False},
        ),
        (
            {"$defs": {"t": {"items": [{}, {"type": "null"}]}}, "$ref": "#/$defs/t/items/1"},
            {
                "$defs": {"t": {"prefixItems": [{}, {"type": "null"}]}},
                "$ref": "#/$defs/t/prefixItems/1",
            },
        ),
        (
            {"$defs": {"a b/c~": {"type": "null"}}, "$ref": "#/$defs/a%20b~1c~0"},
            {"$defs": {"a b/c~": {"type": "null"}}, "$ref": "#/$defs/a%20b~1c~0"},
        ),
        (
            {"anyOf": [{}], "oneOf": [{"type": "null"}, {"type": "string"}]},
            {"anyOf": [{}], "allOf": [{"anyOf": [{"type": "null"}, {"type": "string"}]}]},
        ),
        ({"properties": {"a": {"not": {}}}}, {"properties": {"a": False}}),
        (True, {}),
    ],
    ids=str,
)
def test_drafts_become_one(schema: Json, plain: JsonObject) -> None:
    check_supported(schema, place=PLACE)
    found = plain_schema(schema)
    found.pop("additionalProperties", None)
    assert found == plain


def test_keys_keep_their_order() -> None:
    schema = strict_object(b={"type": "null"}, a={"type": "null"})
    assert list(plain_schema(schema)["properties"]) == ["b", "a"]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("schema", "closed"),
    [
        ({"type": "object", "properties": {"a": {}}}, True),
        ({"type": "object", "properties": {}}, True),
        ({"type": "object"}, False),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": True}, False),
        ({"properties": {"a": {}}, "patternProperties": {"^b": {}}}, False),
        ({"properties": {"a": {}}, "required": ["b"]}, False),
        ({"properties": {"a": {}}, "anyOf": [{"required": ["a"]}, {}]}, False),
        ({"properties": {"a": {}}, "allOf": [{"properties": {"b": {}}}]}, False),
    ],
    ids=str,
)
def test_objects_that_list_their_properties_have_no_others(schema: Json, closed: bool) -> None:
    check_supported(schema, place=PLACE)
    assert (plain_schema(schema).get("additionalProperties") is False) is closed
