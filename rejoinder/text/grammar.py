"""What a request demands of the answer's text → one declarative grammar over all of it, or None.

A thought is free, the answer after it is held to its format. Pure: strings in, a string out.
Must not know: engines, how a grammar is applied, how any one format writes calls.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, assert_never

from msgspec import Struct

from rejoinder.errors import InvalidRequest
from rejoinder.text import lark
from rejoinder.text.call_spelling import CallableTool, CallSpelling
from rejoinder.text.custom_grammar import custom_grammar
from rejoinder.text.lark import Lark
from rejoinder.text.reasoning import ReasoningFormat
from rejoinder.text.reasoning import reasoning_format as reasoning_row
from rejoinder.text.schema import (
    Place,
    check_strict,
    check_supported,
    pattern_problem,
    plain_schema,
)
from rejoinder.text.spellings import SPELLINGS
from rejoinder.types import (
    AnyTool,
    ChatRequest,
    CustomTool,
    Grammar,
    JsonObject,
    JsonObjectFormat,
    JsonSchemaFormat,
    RegexFormat,
    ResponseFormat,
    TextFormat,
    Tool,
    ToolChoice,
)

REFUSAL = r'/[^\s{\["](?s:.*)/'
"""A refusal, where one is allowed beside a strict answer: text that does not begin like JSON."""

ANY_OBJECT: JsonObject = {"type": "object"}
NO_ARGUMENTS: JsonObject = {"type": "object", "properties": {}, "additionalProperties": False}


def answer_grammar(
    request: ChatRequest,
    *,
    tool_format: str,
    reasoning_format: str,
    opens_thinking: bool,
    control_tokens: Mapping[str, int],
    refusals: Literal["off", "on"] = "off",
) -> Grammar | None:
    """The grammar of everything the model writes, or None where it may write anything.

    `tool_format`, `reasoning_format`: names of the tables; `opens_thinking`: the prompt ends inside
    a thought. Checks the schemas of all tools and of the response format on the way. Raises
    InvalidRequest naming the parameter that cannot be enforced (R39, R44, contract 4.8).
    """
    check_strict_tools(request)
    grammar = Lark(control_tokens)
    answer = _answer(request.response_format, refusals)
    frame = _frame(grammar, reasoning_row(reasoning_format), request, opens_thinking)
    choice = request.tool_choice
    spellings = _spellings(grammar, tool_format, choice)
    if choice.mode == "none" or not request.tools or not spellings:
        if answer is None:
            return None
        return _finished(grammar, frame, f"{frame.lead} {answer}", "response_format")
    tools = [_callable(i, tool, request) for i, tool in _allowed(request)]
    many = request.parallel_tool_calls and not request.legacy_functions and not choice.named
    calls = _Calls(grammar, spellings, tools, "many" if many else "one")
    if choice.mode == "required":
        return _finished(grammar, frame, calls.alone(), "tools")
    if answer is None:
        return _finished(grammar, frame, calls.in_text(frame), "tools")
    body = f"{frame.lead} {answer} | {calls.alone()}"
    return _finished(grammar, frame, body, "response_format")


def _finished(grammar: Lark, frame: "_Frame", body: str, param: str) -> Grammar:
    return Grammar("lark", grammar.source(f"{frame.thought} ({body})"), param)


# ---------------------------------------------------------------- the answer


def _answer(format: ResponseFormat, refusals: Literal["off", "on"]) -> str | None:
    """An expression for the answer, None for free text."""
    match format:
        case TextFormat():
            return None
        case JsonObjectFormat():
            return lark.schema(ANY_OBJECT)
        case JsonSchemaFormat():
            return _schema_answer(format, refusals)
        case RegexFormat(regex=pattern):
            return lark.regex(_checked_pattern(pattern, "response_format"))
        case _:
            assert_never(format)


def _schema_answer(format: JsonSchemaFormat, refusals: Literal["off", "on"]) -> str | None:
    place = Place(f"response_format '{format.name}'", "response_format")
    if format.strict:
        check_strict(format.schema, place=place)
    elif not format.enforced:
        return None
    else:
        check_supported(format.schema, place=place)
    expression = lark.schema(plain_schema(format.schema))
    return f"({expression} | {REFUSAL})" if format.strict and refusals == "on" else expression


def _checked_pattern(pattern: str, param: str) -> str:
    problem = pattern_problem(pattern) if pattern else "a pattern must not be empty."
    if problem is not None:
        raise InvalidRequest(f"This cannot be enforced: {problem}", param=param)
    return pattern


# ---------------------------------------------------------------- the thought


class _Frame(Struct, frozen=True):
    """What stands before the answer. `lead` is markup that every answer but a call begins with;
    `never`: how free text must not begin, because a thought begins so."""

    thought: str = ""
    lead: str = ""
    never: str = ""


def _frame(
    grammar: Lark, row: ReasoningFormat, request: ChatRequest, opens_thinking: bool
) -> _Frame:
    make = _FRAMES.get(row.name, _frame_of_markers)
    return make(grammar, row, request.reasoning.effort != "none", opens_thinking)


def _frame_of_markers(
    grammar: Lark, row: ReasoningFormat, may_think: bool, opens_thinking: bool
) -> _Frame:
    if not row.end:
        return _Frame()
    gap = grammar.rule("GAP", r"/[\r\n]{1,8}/")  # what the parser drops there
    rest = f"{grammar.until(row.end, *row.end_forms)} {gap}?"
    if opens_thinking:
        return _Frame(thought=rest)
    thought = f"({grammar.markup(row.start)} {rest})?" if may_think else ""
    return _Frame(thought=thought, never=row.start)


def _harmony_frame(
    grammar: Lark, row: ReasoningFormat, may_think: bool, opens_thinking: bool
) -> _Frame:
    """Channels: every message has a header, and the final one may be in the prompt already."""
    final = grammar.markup("<|channel|>final<|message|>")
    if not may_think:
        return _Frame(lead=f"({final})?")
    open_, kind = grammar.markup("<|channel|>"), '("analysis" | "commentary")'
    start, end = grammar.markup("<|message|>"), grammar.until("<|end|>")
    again = grammar.markup("<|start|>assistant")
    return _Frame(thought=f"({open_} {kind} {start} {end} {again})*", lead=final)


_FRAMES = {"harmony": _harmony_frame}


# ---------------------------------------------------------------- calls


class _Calls:
    """Calls of some tools in the spellings of one format."""

    def __init__(
        self,
        grammar: Lark,
        spellings: Sequence[CallSpelling],
        tools: Sequence[CallableTool],
        number: Literal["one", "many"],
    ) -> None:
        self._grammar = grammar
        self._spellings = spellings
        self._tools = tools
        self._number = number

    def alone(self) -> str:
        """Calls and nothing else."""
        ways = [
            f"{self._grammar.markup(one.trigger)} "
            f"{one.calls(self._grammar, self._tools, self._number)}"
            for one in self._spellings
        ]
        return f"({' | '.join(ways)})"

    def in_text(self, frame: _Frame) -> str:
        """Free text, that may lead to calls: where one begins, it must be right to its end."""
        if frame.lead:
            return f"{frame.lead} {self._grammar.text()}? | {self.alone()}"
        ways = [
            one.in_text(self._grammar, self._tools, self._number, frame.never)
            for one in self._spellings
        ]
        return " | ".join([*ways, f"{self._grammar.text(never=frame.never)}?"])


def _spellings(grammar: Lark, tool_format: str, choice: ToolChoice) -> list[CallSpelling]:
    """The ways in which the model may write calls; none: it has no way."""
    rows = SPELLINGS.get(tool_format, ())
    found = [row for row in rows if not row.token or grammar.is_token(row.token)]
    if not found and choice.mode == "required":
        raise InvalidRequest("This model cannot call tools.", param="tool_choice")
    return found


def _allowed(request: ChatRequest) -> list[tuple[int, AnyTool]]:
    """The tools that may be called, with their places in the request (R139)."""
    names = request.tool_choice.allowed
    known = {tool.name for tool in request.tools}
    for name in names or ():
        if name not in known:
            message = f"Tool choice '{name}' is not in 'tools'."
            raise InvalidRequest(message, param="tool_choice")
    return [(i, t) for i, t in enumerate(request.tools) if names is None or t.name in names]


def _place(index: int, tool: Tool, request: ChatRequest) -> Place:
    path = (
        "functions[{}].parameters"
        if request.legacy_functions
        else ("tools[{}].function.parameters")
    )
    label = f"function '{tool.name}'"
    return Place(label, path.format(index), "invalid_function_parameters")


def check_strict_tools(request: ChatRequest) -> None:
    """Raises InvalidRequest for a strict function whose schema is outside the subset (R39)."""
    for index, tool in enumerate(request.tools):
        if isinstance(tool, Tool) and tool.strict and tool.parameters is not None:
            check_strict(tool.parameters, place=_place(index, tool, request))


def _callable(index: int, tool: AnyTool, request: ChatRequest) -> CallableTool:
    match tool:
        case Tool():
            parameters = tool.parameters
            if parameters is None:
                return CallableTool(tool.name, NO_ARGUMENTS)
            place = _place(index, tool, request)
            check_supported(parameters, place=place)
            if parameters.get("type", "object") not in ("object", ["object"]):
                raise place.refuse((), "the type of a function's parameters must be 'object'.")
            plain = plain_schema(parameters)
            return CallableTool(tool.name, {"type": "object", **plain})
        case CustomTool():
            return _callable_text(index, tool)
        case _:
            assert_never(tool)


def _callable_text(index: int, tool: CustomTool) -> CallableTool:
    """A custom tool is a function of one string, save where a format has room for raw text."""
    param = f"tools[{index}].custom.format.grammar.definition"
    text: JsonObject = {"type": "string"}
    free, quoted = lark.ANY_TEXT, ""
    match tool.syntax:
        case "text":
            pass
        case "regex":
            pattern = _checked_pattern(tool.definition, param)
            text["pattern"] = f"^(?:{pattern})$"
            free = lark.regex(pattern)
        case "lark":
            free, quoted = custom_grammar(tool.definition, param)
        case _:
            assert_never(tool.syntax)
    parameters: JsonObject = {
        "type": "object",
        "properties": {"input": text},
        "required": ["input"],
        "additionalProperties": False,
    }
    return CallableTool(tool.name, parameters, free, quoted)
