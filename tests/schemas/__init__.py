"""The vendors' JSON Schemas, as test data."""

import json
from functools import cache
from pathlib import Path

import jsonschema_rs


@cache
def validator(name: str) -> jsonschema_rs.Validator:
    """`openai_chunk`, `deepinfra_chunk` or `deepinfra_response`."""
    path = Path(__file__).parent / f"{name}.json"
    return jsonschema_rs.validator_for(json.loads(path.read_text(encoding="utf-8")))
