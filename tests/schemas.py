"""Validators of the vendors' JSON Schemas, which the package has for `rejoinder check`."""

import json
from functools import cache
from importlib.resources import files

import jsonschema_rs


@cache
def validator(name: str) -> jsonschema_rs.Validator:
    """`openai_chunk`, `deepinfra_chunk` or `deepinfra_response`."""
    path = files("rejoinder.check") / "schemas" / f"{name}.json"
    return jsonschema_rs.validator_for(json.loads(path.read_text(encoding="utf-8")))
