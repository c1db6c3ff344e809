"""Arguments written one by one under their names: as XML-like tags, or as a Python call.

Where a schema cannot be written so and still be kept, tags hold one JSON object instead, which
their readers take as well. This module must not know: requests, markers around calls.
"""

import json
import re
from collections.abc import Iterator

from msgspec import Struct

from rejoinder.errors import InvalidRequest
from rejoinder.text import lark
from rejoinder.text.call_spelling import ArgumentsWriter, CallableTool, json_arguments
from rejoinder.text.lark import Lark
from rejoinder.types import Json, JsonObject

_SIMPLE = frozenset(
    {"type", "properties", "required", "additionalProperties", "$defs", "definitions"}
)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_MAX_HOPS = 20


class _Parameter(Struct, frozen=True):
    name: str
    schema: JsonObject
    required: bool


def _parameters(tool: CallableTool) -> list[_Parameter] | None:
    """The parameters in the schema's order; None: they are not simply listed."""
    schema = tool.parameters
    properties, required = schema.get("properties", {}), schema.get("required", [])
    is_simple = (
        schema.keys() <= _SIMPLE
        and isinstance(properties, dict)
        and isinstance(required, list)
        and all(name in properties for name in map(str, required))
        and not isinstance(schema.get("additionalProperties", False), dict)
    )
    if not is_simple or not isinstance(properties, dict) or not isinstance(required, list):
        return None
    found = []
    for name, one in properties.items():
        if one is False and name not in required:
            continue
        if not isinstance(one, dict):
            one = {} if one else {"enum": []}
        found.append(_Parameter(name, _with_definitions(one, schema), name in required))
    return found


def _with_definitions(schema: JsonObject, root: JsonObject) -> JsonObject:
    """A part of a schema that stands by itself: the root's definitions are in it."""
    return {**schema, **_definitions(root)} if "$ref" in json.dumps(schema) else schema


def _definitions(schema: JsonObject) -> JsonObject:
    return {key: schema[key] for key in ("$defs", "definitions") if key in schema}


# ---------------------------------------------------------------- tags


class _Tags(Struct, frozen=True, kw_only=True):
    """`key` NAME `open` VALUE `close`. `marks`: what a value of free text must not hold."""

    key: str
    open: str
    close: str
    gap: str
    marks: tuple[str, ...]


_TAGS = {
    "glm4": _Tags(
        key="<arg_key>",
        open="</arg_key>\n<arg_value>",
        close="</arg_value>",
        gap="\n",
        marks=("<arg_key>", "<tool_call>", "</tool_call>"),
    ),
    "qwen3_coder": _Tags(
        key="<parameter=",
        open=">\n",
        close="</parameter>",
        gap="\n",
        marks=("\n<parameter=", "</function>", "<tool_call>", "</tool_call>"),
    ),
}


def tagged_arguments(name: str) -> ArgumentsWriter:
    """The writer for the tags of a format."""
    tags = _TAGS[name]

    def write(grammar: Lark, tool: CallableTool) -> str:
        parameters = _parameters(tool)
        values = [_tagged_value(grammar, p.schema, tags) for p in parameters or ()]
        if tool.quoted_text or parameters is None or None in values:
            return f"{json_arguments(grammar, tool)} {lark.string(tags.gap)}"
        parts = []
        for parameter, value in zip(parameters, values, strict=True):
            lead = f"{grammar.markup(tags.key)} {lark.string(parameter.name)}"
            part = f"{lead} {grammar.markup(tags.open)} {value} {lark.string(tags.gap)}"
            parts.append(part if parameter.required else f"({part})?")
        return " ".join(parts)

    return write


def _tagged_value(grammar: Lark, schema: JsonObject, tags: _Tags) -> str | None:
    """A value and its end tag; None: only JSON can hold it to its schema."""
    close = grammar.markup(tags.close)
    frame = lark.string("\n") if tags.open.endswith("\n") else ""
    resolved = _resolved(schema)
    if resolved.keys() <= {"enum", "const", "type"}:
        values = resolved.get("enum", [resolved["const"]] if "const" in resolved else None)
        if isinstance(values, list) and all(isinstance(one, str) for one in values):
            fits = [str(one) for one in values if not any(m in str(one) for m in tags.marks)]
            choices = " | ".join(lark.string(one) or '""' for one in fits)
            return f"({choices}) {frame} {close}" if fits else None
    kinds = _kinds(schema)
    if kinds is not None and "string" not in kinds:
        return f"{lark.schema(schema)} {frame} {close}"
    if resolved == {}:
        return _free_value(grammar, tags)
    if resolved.get("type") == "string" and resolved.keys() <= {"type", "minLength", "maxLength"}:
        least, most = resolved.get("minLength", 0), resolved.get("maxLength", "")
        return _free_value(grammar, tags, f"(?s:.{{{least},{most}}})")
    if kinds and _is_of_types_only(schema) and not ("integer" in kinds and "number" not in kinds):
        return _free_value(grammar, tags)
    return None


def _free_value(grammar: Lark, tags: _Tags, pattern: str = "(?s:.*)") -> str:
    """Text up to the end tag, without markup that would end the value or the call earlier."""
    others = "|".join(map(lark.escaped, tags.marks))
    frame = "\\n" if tags.open.endswith("\n") else ""
    if grammar.is_token(tags.close):
        text = f"/{pattern}{frame}/ & ~/(?s:.*)(?:{others})(?s:.*)/"
        return f"{grammar.rule('VALUE', text)} {grammar.token(tags.close)}"
    text = f"/{pattern}{frame}{lark.escaped(tags.close)}/ & ~/(?s:.*)(?:{others})(?s:.*)/"
    return grammar.rule("value[lazy]", grammar.rule("VALUE", text))


def _resolved(schema: JsonObject) -> JsonObject:
    """The schema itself behind bare references, without its definitions."""
    root = schema
    for _ in range(_MAX_HOPS):
        schema = {k: v for k, v in schema.items() if k not in ("$defs", "definitions")}
        if schema.keys() != {"$ref"}:
            return schema
        found = _at(root, str(schema["$ref"]))
        if not isinstance(found, dict):
            return schema
        schema = found
    return schema


def _at(root: Json, ref: str) -> Json:
    for part in ref.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(root, dict):
            root = root.get(part)
    return root


def _options(schema: JsonObject) -> Iterator[JsonObject]:
    """The schemas that an answer may fit one of: those of `anyOf`, or itself."""
    options = _resolved(schema).get("anyOf")
    definitions = _definitions(schema)
    for option in options if isinstance(options, list) else ():
        yield {**option, **definitions} if isinstance(option, dict) else {}
    if not isinstance(options, list):
        yield _resolved(schema)


def _kinds(schema: JsonObject) -> set[str] | None:
    """The types that a schema allows; None: it does not say."""
    kinds: set[str] = set()
    for option in _options(schema):
        option = _resolved(option)
        given = option.get("type")
        if given is None:
            return None
        kinds |= set(map(str, given if isinstance(given, list) else [given]))
    return kinds


def _is_of_types_only(schema: JsonObject) -> bool:
    return all(_resolved(option).keys() == {"type"} for option in _options(schema)) and (
        _resolved(schema).keys() <= {"type", "anyOf"}
    )


# ---------------------------------------------------------------- Python


def python_arguments(grammar: Lark, tool: CallableTool) -> str:
    """`name=value, …` in the schema's order; values are JSON, which the reader takes as Python.

    Raises InvalidRequest for a tool whose arguments have no such names.
    """
    parameters = _parameters(tool)
    if parameters is None or any(
        p.required and not _IDENTIFIER.fullmatch(p.name) for p in parameters
    ):
        message = f"The parameters of function '{tool.name}' cannot be written as a Python call."
        raise InvalidRequest(message, param="tools", code="invalid_function_parameters")
    named = [p for p in parameters if _IDENTIFIER.fullmatch(p.name)]
    return _separated([(_assignment(grammar, tool, p), p.required) for p in named], grammar)


def _assignment(grammar: Lark, tool: CallableTool, parameter: _Parameter) -> str:
    value = lark.schema(parameter.schema)
    if tool.quoted_text:
        value = tool.quoted_text
    elif parameter.schema == {"type": "boolean"}:
        value = '("True" | "False")'
    return grammar.rule("argument", f"{lark.string(parameter.name + '=')} {value}")


def _separated(items: list[tuple[str, bool]], grammar: Lark) -> str:
    """The items in order, with commas between those that are there; not all need to be."""
    first, later = "", ""
    for item, required in reversed(items):
        begin = grammar.rule("first", f"{item} {later}" + ("" if required else f" | {first}"))
        more = f'", " {item} {later}' if required else f'(", " {item})? {later}'
        first, later = begin, grammar.rule("later", more)
    return first
