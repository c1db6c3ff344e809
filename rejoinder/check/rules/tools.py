"""R132–R150: tool calls and legacy function calls. Must not know: other kinds of delta."""

import functools
import json
from collections.abc import Iterable, Iterator

import jsonschema_rs

from rejoinder.check.exchange import (
    CallView,
    ChoiceChunk,
    Exchange,
    as_list,
    as_object,
    as_text,
    is_int,
    parse_json,
)
from rejoinder.check.pairs import both, calls
from rejoinder.check.probes import (
    TOOLS_ALLOWED,
    TOOLS_NAMED,
    TOOLS_NONE,
    TOOLS_REQUIRED,
    TOOLS_REQUIRED_STREAMED,
    TOOLS_STREAMED,
    TOOLS_UNARY,
    UNARY,
    UNARY_AGAIN,
)
from rejoinder.check.rule import Evidence, Probe, Problem, Skipped, at, of_each, rule, whole_rule
from rejoinder.check.rules.chunks import by_choice
from rejoinder.check.shapes import FOREIGN_FINISH_REASONS
from rejoinder.types import JsonObject


def fragments(x: Exchange) -> Iterator[tuple[ChoiceChunk, JsonObject, bool]]:
    """Each tool delta of a stream that has an index, and whether it opens its call."""
    opened: set[tuple[int | None, int]] = set()
    for piece in x.choice_chunks:
        for call in piece.calls:
            index = call.get("index")
            if isinstance(index, int) and is_int(index):
                yield piece, call, (piece.index, index) not in opened
                opened.add((piece.index, index))


@rule(
    "R132",
    "Tool deltas have an index",
    dialect="B",
    on="stream",
    says="Every tool delta has an integer index.",
    how="The type.",
)
def tool_index(x: Exchange) -> Iterable[Problem]:
    for piece in x.choice_chunks:
        calls_here = piece.delta.get("tool_calls")
        if not isinstance(calls_here, list | None):
            yield at(piece, "tool_calls is not an array")
        for call in as_list(calls_here):
            index = as_object(call).get("index", "missing")
            if not isinstance(call, dict):
                yield at(piece, "a tool delta is not an object")
            elif not is_int(index) and index is not None:
                yield at(piece, f"the index of a tool delta is {index!r}")


@rule(
    "R133",
    "Calls are numbered 0, 1, 2 …",
    dialect="B",
    on="stream",
    says="In a choice tool indices first appear as 0, 1, 2 … without gaps, below 128.",
    how="The order of first appearance.",
)
def calls_numbered(x: Exchange) -> Iterable[Problem]:
    counts: dict[int | None, int] = {}
    for piece, call, opens in fragments(x):
        if opens:
            wanted = counts.get(piece.index, 0)
            if call["index"] != wanted or wanted >= 128:
                yield at(piece, f"call {call['index']} appears where call {wanted} should")
            counts[piece.index] = wanted + 1


@rule(
    "R134",
    "The opening of a call",
    dialect="B",
    on="stream",
    says="The first fragment of an index has an id, the type function, and a name.",
    how="The three, not empty. type custom with a custom object is an extension (A15).",
)
def opening(x: Exchange) -> Iterable[Problem]:
    for piece, call, opens in fragments(x):
        if not opens:
            continue
        if not as_text(call.get("id")) and not _reported_null(x, call, "id"):
            yield at(piece, f"call {call['index']} opens without an id")
        kind = call.get("type")
        if (
            kind != "function"
            and not (kind == "custom" and "custom" in call)
            and not _reported_null(x, call, "type")
        ):
            yield at(piece, f"call {call['index']} opens with the type {kind!r}")
        inner = as_object(call.get("function")) or as_object(call.get("custom"))
        if not isinstance(inner.get("arguments"), str | None):
            yield at(piece, f"call {call['index']} opens with arguments that are no string")
        if (
            not as_text(inner.get("name"))
            and not _reported_null(x, inner, "name")
            and not _reported_null(x, call, "function")
        ):
            yield at(piece, f"call {call['index']} opens without a name")


def _reported_null(x: Exchange, value: JsonObject, key: str) -> bool:
    """Whether a key is null, which R93 or R89 reports."""
    return key in value and value[key] is None


@rule(
    "R135",
    "Later fragments repeat nothing",
    dialect="B",
    on="stream",
    says="Later fragments of an index repeat neither id nor name, for clients join them; nor type.",
    how="The keys of later fragments. A repeated type is harmless, a warning.",
)
def later_fragments(x: Exchange) -> Iterable[Problem]:
    for piece, call, opens in fragments(x):
        if opens:
            continue
        inner = as_object(call.get("function"))
        if call.get("id") is not None or inner.get("name") is not None:
            yield at(piece, f"a later fragment of call {call['index']} has an id or a name")
        elif call.get("type") is not None:
            yield at(piece, f"a later fragment of call {call['index']} has a type", "warning")
        if (
            not isinstance(inner.get("arguments"), str)
            and "custom" not in call
            and (
                not _reported_null(x, inner, "arguments")
                and not _reported_null(x, call, "function")
            )
        ):
            yield at(piece, f"a later fragment of call {call['index']} has no arguments")


@rule(
    "R136",
    "A call opens with empty arguments",
    dialect="O",
    on="stream",
    severity="warning",
    says='The opening fragment has arguments "".',
    how="Equality.",
)
def opening_arguments(x: Exchange) -> Iterable[Problem]:
    for piece, call, opens in fragments(x):
        inner = as_object(call.get("function"))
        if opens and as_text(inner.get("arguments")):
            yield at(piece, f"the opening has the arguments {inner['arguments']!r}")
        elif opens and inner and "arguments" not in inner:
            yield at(piece, "the opening has no arguments")


@rule(
    "R137",
    "One call after the other",
    dialect="B",
    on="stream",
    severity="warning",
    says="Calls are sequential: no fragment of a call after the next has opened.",
    how="The order of the indices in each choice.",
)
def sequential_calls(x: Exchange) -> Iterable[Problem]:
    highest: dict[int | None, int] = {}
    for piece, call, _ in fragments(x):
        index = call["index"]
        assert isinstance(index, int)
        if index < highest.get(piece.index, 0):
            yield at(piece, f"call {index} goes on after call {highest[piece.index]} has opened")
        highest[piece.index] = max(index, highest.get(piece.index, 0))


def all_calls(x: Exchange) -> list[CallView]:
    return [call for choice in x.choices for call in choice.calls]


@rule(
    "R138",
    "Call ids are unique",
    dialect="B",
    says="Call ids are unique in an answer, over all choices, and of the form call_….",
    how="Comparison. The form is a warning.",
)
def unique_call_ids(x: Exchange) -> Iterable[Problem]:
    found = all_calls(x)
    if not found:
        raise Skipped
    seen: set[str] = set()
    for call in found:
        if call.id and call.id in seen:
            yield Problem(f"two calls have the id {call.id!r}", call.frame)
        seen.add(call.id)
        if not call.id and x.is_body:
            yield Problem("a call without an id", call.frame)
        elif call.id and not call.id.startswith("call_"):
            yield Problem(
                f"the id {call.id!r} does not begin with call_", call.frame, None, "warning"
            )


def given_tools(x: Exchange) -> dict[str, JsonObject]:
    """The functions and custom tools of the request, by name; legacy functions are some too."""
    inner = [
        as_object(as_object(tool).get("function")) or as_object(as_object(tool).get("custom"))
        for tool in as_list(x.asked.get("tools"))
    ]
    inner += [as_object(one) for one in as_list(x.asked.get("functions"))]
    return {as_text(tool.get("name")): tool for tool in inner}


def allowed_names(x: Exchange) -> set[str]:
    choice = as_object(x.asked.get("tool_choice"))
    allowed = as_object(choice.get("allowed_tools"))
    if not allowed:
        return set(given_tools(x))
    entries = [as_object(entry) for entry in as_list(allowed.get("tools"))]
    return {
        as_text((as_object(e.get("function")) or as_object(e.get("custom"))).get("name"))
        for e in entries
    }


@rule(
    "R139",
    "Calls are of given tools",
    dialect="B",
    says="The names of calls belong to the request's tools, under allowed_tools to that subset.",
    how="Each name. A model that is not constrained may invent one: a warning with auto.",
)
def given_names(x: Exchange) -> Iterable[Problem]:
    found = all_calls(x)
    if not found:
        raise Skipped
    names = allowed_names(x)
    constrained = x.asked.get("tool_choice") not in (None, "auto")
    for call in found:
        if call.name and call.name not in names:
            level = "rule" if constrained else "lenient"
            yield Problem(f"{call.name!r} is none of the tools", call.frame, None, level)  # type: ignore[arg-type]


@whole_rule(
    "R140",
    "tool_choice none",
    dialect="B",
    says="tool_choice none gives no calls.",
    how="A request that begs for a call, with none.",
    probes=(TOOLS_NONE,),
)
def choice_none(e: Evidence) -> Iterable[Problem]:
    x = e.answer(TOOLS_NONE.name)
    for call in all_calls(x):
        yield Problem(f"a call of {call.name!r}", call.frame, x)


@whole_rule(
    "R141",
    "tool_choice required",
    dialect="O",
    says="required, also as the mode of allowed_tools, gives at least one call.",
    how="Both, streamed and not. An answer that its limit cut inside the first call passes.",
    probes=(TOOLS_REQUIRED, TOOLS_REQUIRED_STREAMED, TOOLS_ALLOWED),
)
def choice_required(e: Evidence) -> Iterable[Problem]:
    def judge(probe: Probe) -> Iterable[Problem]:
        x = e.get(probe.name)
        if not x.ok:
            yield Problem(x.how_answered, None, x)
        elif not all_calls(x) and not any(c.finish == "length" for c in x.choices):
            yield Problem("there is no call", None, x)

    return of_each((TOOLS_REQUIRED, TOOLS_REQUIRED_STREAMED, TOOLS_ALLOWED), judge)


@whole_rule(
    "R142",
    "A named tool_choice",
    dialect="O",
    says="A named tool_choice calls exactly that function.",
    how="A request that names get_time.",
    probes=(TOOLS_NAMED,),
)
def choice_named(e: Evidence) -> Iterable[Problem]:
    x = e.get(TOOLS_NAMED.name)
    if not x.ok:
        yield Problem(x.how_answered, None, x)
        return
    found = all_calls(x)
    if not found and not any(c.finish == "length" for c in x.choices):
        yield Problem("there is no call", None, x)
    for call in found:
        if call.name in given_tools(x) and call.name != "get_time":
            yield Problem(f"a call of {call.name!r}", call.frame, x)


@rule(
    "R143",
    "parallel_tool_calls false",
    dialect="O",
    says="parallel_tool_calls:false gives at most one call in a choice.",
    how="Count.",
)
def one_call(x: Exchange) -> Iterable[Problem]:
    if x.asked.get("parallel_tool_calls") is not False:
        raise Skipped
    for choice in x.choices:
        if len(choice.calls) > 1:
            yield Problem(f"choice {choice.index} has {len(choice.calls)} calls", choice.frame)


@functools.lru_cache(maxsize=256)
def _validator(schema: str) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator(json.loads(schema))


@rule(
    "R144",
    "Strict arguments fit their schema",
    dialect="O",
    says="The arguments of a strict function parse and validate, unless the limit cut them.",
    how="JSON Schema.",
)
def strict_arguments(x: Exchange) -> Iterable[Problem]:
    tools = given_tools(x)
    judged = False
    for choice in x.choices:
        for call in choice.calls:
            tool = tools.get(call.name, {})
            if tool.get("strict") is not True or choice.finish in ("length", "content_filter"):
                continue
            judged = True
            value, fault = parse_json(call.arguments)
            if fault:
                yield Problem(f"the arguments are not JSON: {fault}", call.frame)
                continue
            schema = json.dumps(tool.get("parameters") or {}, sort_keys=True)
            if not _validator(schema).is_valid(value):
                yield Problem(f"the arguments do not fit: {call.arguments!r:.120}", call.frame)
    if not judged:
        raise Skipped


@rule(
    "R145",
    "Arguments are JSON objects",
    dialect="B",
    severity="warning",
    says="The arguments of a call parse as a JSON object; no vendor promises it.",
    how="A parse of each call that no limit cut and no strict schema covers.",
)
def object_arguments(x: Exchange) -> Iterable[Problem]:
    tools = given_tools(x)
    for choice in x.choices:
        legacy = [choice.function_call] if choice.function_call else []
        for call in (*choice.calls, *legacy):
            strict = tools.get(call.name, {}).get("strict") is True and x.dialect == "O"
            if call.kind == "custom" or choice.finish in ("length", "content_filter") or strict:
                continue
            if x.is_stream and not x.complete:
                continue
            if not isinstance(parse_json(call.arguments)[0], dict):
                yield Problem(f"the arguments are {call.arguments!r:.120}", call.frame)


@rule(
    "R146",
    "Malformed calls are not clean calls",
    dialect="D",
    says="malformed_function_call never comes together with clean calls alone: the call is absent "
    "or incomplete.",
    how="With that finish reason some call is missing or its arguments do not parse. A warning, "
    "for calls before the bad one may be clean.",
)
def malformed_calls(x: Exchange) -> Iterable[Problem]:
    for choice in x.choices:
        if choice.finish != "malformed_function_call" or not choice.calls:
            continue
        if (
            all(isinstance(parse_json(call.arguments)[0], dict) for call in choice.calls)
            and choice.content == ""
        ):
            yield Problem("malformed_function_call with clean calls", choice.frame, None, "warning")


@rule(
    "R147",
    "The other dialect's finish reason",
    dialect="B",
    says="malformed_function_call never appears in OpenAI's dialect, function_call and its delta "
    "never in DeepInfra's.",
    how="finish_reason of each choice, and a function_call that is not null: R68 and R89 have "
    "nulls.",
)
def foreign_finish(x: Exchange) -> Iterable[Problem]:
    for thing in x.objects:
        for choice in thing.choices:
            if choice.finish in FOREIGN_FINISH_REASONS[x.dialect]:
                yield at(thing, f"finish_reason is {choice.finish!r}")
            if x.dialect == "D" and choice.delta.get("function_call") is not None:
                yield at(thing, "a function_call")


@rule(
    "R148",
    "No content with calls only",
    dialect="B",
    severity="warning",
    says="With calls only content is null in OpenAI's dialect, absent or \"\" in DeepInfra's.",
    how="content of unary messages with calls: an empty string is a warning.",
)
def no_content_with_calls(x: Exchange) -> Iterable[Problem]:
    for thing in x.objects:
        for choice in thing.choices:
            content = choice.delta.get("content")
            if choice.calls and content == "" and x.dialect == "O":
                yield at(thing, 'content is "" in a message with calls')


@whole_rule(
    "R149",
    "Streamed calls add up",
    dialect="B",
    says="The calls of the unary answer are the streamed fragments joined, in order of index.",
    how="Names and arguments of both, for tool_choice auto and required.",
    probes=(
        *(TOOLS_UNARY, TOOLS_STREAMED, TOOLS_REQUIRED, TOOLS_REQUIRED_STREAMED),
        *(UNARY, UNARY_AGAIN),
    ),
)
def calls_add_up(e: Evidence) -> Iterable[Problem]:
    judged = False
    for first, second in (
        (TOOLS_UNARY, TOOLS_STREAMED),
        (TOOLS_REQUIRED, TOOLS_REQUIRED_STREAMED),
    ):
        if e.find(first.name) is None or e.find(second.name) is None:
            continue
        body, stream = both(e, first, second)
        judged |= bool(all_calls(body) or all_calls(stream))
        if stream.complete and calls(body) != calls(stream):
            yield Problem(f"{calls(body)} in the body, {calls(stream)} in the stream", None, stream)
    if not judged:
        raise Skipped("the model called no tool")


@rule(
    "R150",
    "Legacy functions",
    dialect="O",
    says="A request with functions gets function_call with its name once, then arguments; at most "
    "one; it ends with function_call.",
    how="The deltas, or the message.",
)
def legacy_functions(x: Exchange) -> Iterable[Problem]:
    legacy = "functions" in x.asked
    found = any("function_call" in p.delta for thing in x.objects for p in thing.choices)
    if not legacy and not found:
        raise Skipped
    for thing in x.objects:
        for piece in thing.choices:
            call = piece.delta.get("function_call", {})
            if not isinstance(call, dict):
                if call is not None:
                    yield at(piece, "function_call is not an object")
            elif call and not legacy:
                yield at(piece, "function_call, but the request has no functions")
    if not legacy:
        return
    for choice in x.choices:
        if choice.calls:
            yield Problem("tool_calls in an answer to functions", choice.frame)
        if choice.function_call is None:
            continue
        named = x.asked.get("function_call") not in (None, "auto", "none")
        endings = ("function_call", "length", "content_filter", *(("stop",) if named else ()))
        if choice.finish not in (*endings, None):
            yield Problem(f"a function call ends with {choice.finish!r}", choice.frame)
        if not choice.function_call.name:
            yield Problem("function_call without a name", choice.frame)
    if x.is_stream:
        yield from _legacy_deltas(x)


def _legacy_deltas(x: Exchange) -> Iterator[Problem]:
    for pieces in by_choice(x).values():
        deltas = [(p, p.delta["function_call"]) for p in pieces if "function_call" in p.delta]
        for number, (piece, delta) in enumerate(deltas):
            if delta is None:
                continue
            call = as_object(delta)
            if ("name" in call) != (number == 0):
                yield at(
                    piece, "the name comes again" if number else "the name does not come first"
                )
            if not isinstance(call.get("arguments"), str) and "name" not in call:
                yield at(piece, "a fragment without arguments")
            elif not isinstance(call.get("arguments", ""), str | None):
                yield at(piece, "arguments are no string")
