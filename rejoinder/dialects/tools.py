"""The shapes of tools, tool choices and answer formats (contract 1.6, 1.7).

This module must not know: which schemas or grammars can be enforced.
"""

from typing import Any

from msgspec import Struct

from rejoinder.dialects.messages import cache_control, nonempty
from rejoinder.dialects.profile import ByDialect, Profile
from rejoinder.dialects.shapes import (
    Ignored,
    Shape,
    anything,
    array,
    boolean,
    either,
    fields,
    free_object,
    nullable,
    one_of,
    string,
    tagged,
    text,
)
from rejoinder.dialects.violation import Violation
from rejoinder.types import (
    AnyTool,
    CustomTool,
    Json,
    JsonObjectFormat,
    JsonSchemaFormat,
    RegexFormat,
    TextFormat,
    Tool,
    ToolChoice,
)

MAX_TOOLS = 128

_restricted_name = string(longest=64, pattern="[a-zA-Z0-9_-]+", empty_allowed=False)


def _name(profile: Profile) -> Shape:
    """O restricts the alphabet (R38, R44); D takes any name."""
    return profile.pick(_restricted_name, nonempty)


# ---------------------------------------------------------------- tools


def _function_tool(profile: Profile) -> Shape:
    # Not nullable in O's document; the `llm` command sends null for a function without a docstring.
    description = nullable(text)
    parameters = profile.pick(free_object, nullable(free_object))
    body = fields(
        dict,
        profile.rows(
            {
                "name": (_name(profile),) * 2,
                "description": (description,) * 2,
                "parameters": (parameters,) * 2,
                "strict": (nullable(boolean), None),
            }
        ),
        required=("name",),
        lenient=profile.lenient,
    )

    def make(function: dict[str, Any], cache_breakpoint: bool = False) -> Tool:
        return Tool(**function, cache_breakpoint=cache_breakpoint)

    return fields(
        make,
        profile.rows(
            {
                "type": (anything, anything),
                "function": (body, body),
                "cache_control": (None, nullable(cache_control)),
            }
        ),
        names={"cache_control": "cache_breakpoint"},
        required=("function",),
        lenient=profile.lenient,
    )


def _custom_tool(profile: Profile) -> Shape:
    grammar = fields(
        dict,
        {"definition": nonempty, "syntax": one_of("lark", "regex")},
        required=("definition", "syntax"),
        lenient=profile.lenient,
    )
    formats = {
        "text": fields(dict, {"type": anything}, lenient=profile.lenient),
        "grammar": fields(
            lambda grammar: grammar,
            {"type": anything, "grammar": grammar},
            required=("grammar",),
            lenient=profile.lenient,
        ),
    }

    def make(format: dict[str, Any] | None = None, **found: Any) -> CustomTool:
        return CustomTool(**found, **(format or {}))

    body = fields(
        make,
        {"name": _name(profile), "description": text, "format": tagged("type", formats)},
        required=("name",),
        lenient=profile.lenient,
    )
    return fields(
        lambda custom: custom,
        {"type": anything, "custom": body},
        required=("custom",),
        lenient=profile.lenient,
    )


def tools_shape(profile: Profile) -> Shape:
    kinds: dict[str, ByDialect] = {
        "function": (_function_tool(profile),) * 2,
        "custom": (_custom_tool(profile), None),
    }
    tool = tagged(
        "type",
        profile.rows(kinds),
        default="function" if profile.is_deepinfra else None,
    )
    tools = array(
        tool,
        empty_allowed=profile.is_deepinfra,
        longest=None if profile.is_deepinfra else MAX_TOOLS,
    )
    return _distinct(tools, "function", "name")


def functions_shape(profile: Profile) -> Shape:
    """The deprecated `functions`; `strict` is unknown in them (R59)."""
    function = fields(
        Tool,
        {"name": _restricted_name, "description": text, "parameters": free_object},
        required=("name",),
        lenient=profile.lenient,
    )
    return _distinct(array(function, empty_allowed=False, longest=MAX_TOOLS), "name")


def _distinct(tools: Shape, *name_path: str) -> Shape:
    """Two tools of one name could not be told apart in a call."""

    def shape(value: Json, ignored: Ignored) -> tuple[AnyTool, ...]:
        decoded: tuple[AnyTool, ...] = tools(value, ignored)
        names: set[str] = set()
        for index, tool in enumerate(decoded):
            if tool.name in names:
                kind = ("custom", "name") if isinstance(tool, CustomTool) else name_path
                raise Violation(
                    "invalid_value",
                    ": another tool has the same name.",
                    lead="Invalid value for",
                    path=(index, *kind),
                )
            names.add(tool.name)
        return decoded

    return shape


# ---------------------------------------------------------------- tool choice


def _named_tool(profile: Profile, kind: str) -> Shape:
    """`{"type": kind, kind: {"name": …}}` → the name. In D it is a whole tool."""
    body = fields(
        lambda name: name,
        profile.rows(
            {
                "name": (nonempty, nonempty),
                "description": (None, anything),
                "parameters": (None, anything),
            }
        ),
        required=("name",),
        lenient=profile.lenient,
    )
    return fields(
        lambda **found: found[kind],
        profile.rows(
            {
                "type": (anything, anything),
                kind: (body, body),
                "cache_control": (None, anything),
            }
        ),
        required=(kind,),
        lenient=profile.lenient,
    )


def tool_choice_shape(profile: Profile) -> Shape:
    names: dict[str, ByDialect] = {
        "function": (_named_tool(profile, "function"),) * 2,
        "custom": (_named_tool(profile, "custom"), None),
    }
    named = {kind: _then_named(shape) for kind, shape in profile.rows(names).items()}
    listed = array(tagged("type", profile.rows(names)), empty_allowed=False)
    allowed_body = fields(
        lambda mode, tools: ToolChoice(mode=mode, allowed=tools),
        {"mode": one_of("auto", "required"), "tools": listed},
        required=("mode", "tools"),
        lenient=profile.lenient,
    )
    allowed = fields(
        lambda allowed_tools: allowed_tools,
        {"type": anything, "allowed_tools": allowed_body},
        required=("allowed_tools",),
        lenient=profile.lenient,
    )
    kinds = {**named, **profile.rows({"allowed_tools": (allowed, None)})}
    default = "function" if profile.is_deepinfra else None
    return either(
        {
            str: profile.pick(_mode, _any_mode),
            dict: tagged("type", kinds, default=default),
        },
        "a string or an object",
    )


_modes = one_of("none", "auto", "required")


def _mode(value: Json, ignored: Ignored) -> ToolChoice:
    return ToolChoice(mode=_modes(value, ignored))


def _any_mode(value: Json, ignored: Ignored) -> ToolChoice:
    """DeepInfra's schema takes any string; its clients also say `any` for required."""
    return _mode("required" if value == "any" else value, ignored)


def _then_named(name: Shape) -> Shape:
    def shape(value: Json, ignored: Ignored) -> ToolChoice:
        return ToolChoice(mode="required", allowed=(name(value, ignored),), named=True)

    return shape


def function_call_shape(profile: Profile) -> Shape:
    """The deprecated `function_call`: none, auto or `{name}` (R59)."""
    modes = one_of("none", "auto")
    body = fields(
        lambda name: ToolChoice(mode="required", allowed=(name,), named=True),
        {"name": nonempty},
        required=("name",),
        lenient=profile.lenient,
    )
    return either(
        {str: lambda value, ignored: ToolChoice(mode=modes(value, ignored)), dict: body},
        "a string or an object",
    )


# ---------------------------------------------------------------- response format


class _Schema(Struct, frozen=True, kw_only=True):
    name: str
    schema: dict[str, Json] | None = None
    description: str | None = None
    strict: bool = False


def response_format_shape(profile: Profile) -> Shape:
    def plain(make: type[TextFormat] | type[JsonObjectFormat]) -> Shape:
        return fields(make, {"type": anything}, lenient=profile.lenient)

    schema = fields(
        _Schema,
        {
            "name": _name(profile),
            "description": profile.pick(text, nullable(text)),
            "schema": free_object,
            "strict": nullable(boolean),
        },
        required=("name", "schema") if profile.is_deepinfra else ("name",),
        lenient=profile.lenient,
    )

    def make_schema(json_schema: _Schema) -> JsonSchemaFormat:
        return JsonSchemaFormat(
            name=json_schema.name,
            schema=json_schema.schema,
            description=json_schema.description,
            strict=json_schema.strict,
            # D enforces every schema, O only a strict one (4.8).
            enforced=profile.is_deepinfra or json_schema.strict,
        )

    json_schema = fields(
        make_schema,
        {"type": anything, "json_schema": schema},
        required=("json_schema",),
        lenient=profile.lenient,
    )
    regex = fields(
        RegexFormat,
        {"type": anything, "regex": text},
        required=("regex",),
        lenient=profile.lenient,
    )
    formats: dict[str, ByDialect] = {
        "text": (plain(TextFormat),) * 2,
        "json_object": (plain(JsonObjectFormat),) * 2,
        "json_schema": (json_schema, json_schema),
        "regex": (None, regex),
    }
    return tagged("type", profile.rows(formats))
