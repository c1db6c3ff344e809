"""The page's small validator against a whole one, and JSON that is still growing."""

import itertools
import json
from typing import Any

import jsonschema_rs

from tests.browser.conftest import OpenPage

SCHEMAS: list[Any] = [
    {"type": "string", "minLength": 2, "maxLength": 3},
    {"type": "string", "pattern": "^[a-c]+$"},
    {"type": "integer", "minimum": 0, "exclusiveMaximum": 10},
    {"type": "number", "multipleOf": 0.5, "maximum": 3, "exclusiveMinimum": -1},
    {"type": ["null", "boolean"]},
    {"enum": ["a", 1, None, [1]]},
    {"const": {"a": [1]}},
    {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
    {"type": "array", "prefixItems": [{"type": "string"}], "items": False},
    {"type": "array", "uniqueItems": True},
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": False,
    },
    {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 1},
    {"type": "object", "minProperties": 1},
    {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}]},
    {"oneOf": [{"type": "number"}, {"type": "integer"}]},
    {"allOf": [{"type": "integer"}, {"minimum": 1}]},
    {"not": {"type": "string"}},
    {"$defs": {"n": {"type": "integer"}}, "type": "array", "items": {"$ref": "#/$defs/n"}},
    {
        "type": "object",
        "properties": {"next": {"$ref": "#"}, "a": {"type": "integer"}},
        "additionalProperties": False,
    },
    True,
    {},
]
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 0.5, 2.25, 3, 10, 1e3),
    *("", "a", "ab", "abcd", "é", "😊😊", "xyz", "__proto__"),
    *([], [1], [1, 2, 3], ["a"], ["a", 1], [1, 1], [[1]], [None]),
    *({}, {"a": 1}, {"a": "x"}, {"a": 1, "b": "x"}, {"a": 1, "c": 2}, {"a": [1]}),
    *({"next": {"next": {"a": 1}}}, {"next": {"next": {"a": "x"}}}, {"toString": 1}),
]

VALIDATE = """async ([schemas, values]) => {
  const { validate } = await import('/playground/schema.js');
  return schemas.map((schema) => values.map((value) => validate(value, schema).length === 0));
}"""

GROW = """async ([schema, text]) => {
  const { grown, validate } = await import('/playground/schema.js');
  const found = [];
  for (let length = 1; length <= text.length; length++) {
    const part = grown(text.slice(0, length));
    const faults = part && validate(part.value, schema, { partial: length < text.length });
    found.push([part !== null, part?.complete ?? false, faults ?? []]);
  }
  return found;
}"""


def test_verdicts_are_those_of_a_whole_validator(open_page: OpenPage) -> None:
    judged = open_page().evaluate(VALIDATE, [SCHEMAS, VALUES])
    wrong = []
    for (schema, row), (place, value) in itertools.product(
        zip(SCHEMAS, judged, strict=True), enumerate(VALUES)
    ):
        expected = jsonschema_rs.validator_for(schema).is_valid(value)
        if row[place] != expected:
            wrong.append((schema, value, expected))
    assert not wrong


def test_an_answer_that_grows_fits_all_the_way(open_page: OpenPage) -> None:
    page = open_page()
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 5, "pattern": "^A"},
            "kind": {"enum": ["person", "place"]},
            "ages": {"type": "array", "items": {"type": "integer", "minimum": 10}, "minItems": 2},
            "more": {"anyOf": [{"type": "null"}, {"type": "object"}]},
        },
        "required": ["name", "kind", "ages", "more"],
        "additionalProperties": False,
    }
    value = {"name": 'A "q" \\ é', "kind": "place", "ages": [36, 12], "more": {"a": [True, {}]}}
    for indent in (None, 2):
        steps = page.evaluate(GROW, [schema, json.dumps(value, indent=indent)])
        assert all(found for found, _, _ in steps)
        assert [faults for _, _, faults in steps if faults] == []
        assert [complete for _, complete, _ in steps].index(True) == len(steps) - 1


def test_what_has_gone_wrong_is_told_before_the_end(open_page: OpenPage) -> None:
    page = open_page()
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "k": {"enum": ["x"]}},
        "additionalProperties": False,
    }
    for text in ('{"a": "one", "k', '{"b": 1, ', '{"k": "zzz', '{"a": [1'):
        steps = page.evaluate(GROW, [schema, text + " "])
        assert steps[-2][2], text


def test_text_that_is_no_json(open_page: OpenPage) -> None:
    steps = open_page().evaluate(GROW, [True, "Sure! Here is"])
    assert not any(found for found, _, _ in steps)
