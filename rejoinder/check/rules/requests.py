"""R13–R66: what a request may say, as tables of requests and the answers they must get.

Must not know: answers beyond their status and error object.
"""

import re
from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from rejoinder.check.exchange import DialectName, Exchange, as_object, as_text
from rejoinder.check.probes import (
    LIMIT,
    REASONING_NONE,
    REASONING_OFF,
    TIER_D,
    function,
)
from rejoinder.check.rule import (
    DROP,
    Evidence,
    Probe,
    Problem,
    Rule,
    Severity,
    Skipped,
    of_each,
    whole_rule,
)
from rejoinder.types import Json, JsonObject


class Case(Struct, frozen=True, kw_only=True):
    """One request and what must come of it. `status` empty: it must be served."""

    say: str
    body: JsonObject | None = None
    raw: bytes | None = None
    status: tuple[int, ...] = ()
    param: str | None = None
    code: str | None = None


def bad(say: str, body: JsonObject, param: str | None = None, code: str | None = None) -> Case:
    """A case that must be refused; the dialect's rule says with what status."""
    return Case(say=say, body=body, status=(400,), param=param, code=code)


def good(say: str, body: JsonObject) -> Case:
    return Case(say=say, body=body)


class Table(Struct, frozen=True):
    """A rule that is a table of requests."""

    id: str
    title: str
    dialect: Literal["O", "D", "B"]
    says: str
    cases: tuple[Case, ...]
    severity: Severity = "error"

    @property
    def probes(self) -> tuple[Probe, ...]:
        """One for each case, in order."""
        dialects: tuple[DialectName, ...] = ("O", "D") if self.dialect == "B" else (self.dialect,)
        return tuple(
            Probe(
                name=f"{self.id}: {case.say}",
                # What is served although it should be refused shall cost little.
                body=None if case.body is None else {LIMIT: 1, **case.body},
                raw=case.raw,
                dialects=dialects,
            )
            for case in self.cases
        )

    def rule(self) -> Rule:
        probes = self.probes

        def judge(e: Evidence) -> Iterable[Problem]:
            cases = zip(self.cases, probes, strict=True)
            return of_each(cases, lambda one: against(e.get(one[1].name), one[0]))

        how = "; ".join(f"{c.say} → {'refused' if c.status else '200'}" for c in self.cases)
        return whole_rule(
            self.id,
            self.title,
            dialect=self.dialect,
            says=self.says,
            how=how,
            severity=self.severity,
            probes=probes,
        )(judge)


def table(
    id: str,
    title: str,
    dialect: Literal["O", "D", "B"],
    says: str,
    *cases: Case,
    severity: Severity = "error",
) -> Table:
    return Table(id, title, dialect, says, cases, severity)


def against(x: Exchange, case: Case) -> Iterable[Problem]:
    status = x.response.status
    if not case.status:
        if status != 200:
            yield Problem(f"{case.say}: {x.how_answered} instead of 200", None, x)
        return
    allowed = case.status if x.dialect == "O" else tuple({*case.status, 422} - {400}) or (422,)
    if status not in allowed:
        wanted = " or ".join(str(one) for one in allowed)
        yield Problem(f"{case.say}: {x.how_answered} instead of {wanted}", None, x)
        return
    if x.dialect == "O":
        yield from _error_against(x, case)


def _error_against(x: Exchange, case: Case) -> Iterable[Problem]:
    error = as_object(as_object(x.body).get("error"))
    if (
        case.param is not None
        and "param" in error
        and plain_path(as_text(error["param"])) != plain_path(case.param)
    ):
        yield Problem(f"{case.say}: param is {error['param']!r}, not {case.param!r}", None, x)
    if case.code is not None and "code" in error and error["code"] != case.code:
        yield Problem(f"{case.say}: code is {error['code']!r}, not {case.code!r}", None, x)


def plain_path(path: str) -> str:
    """`messages.[1].role`, `messages[1].role` and `messages.1.role` are the same place."""
    return re.sub(r"\.?\[(\d+)\]", r".\1", path)


def talk(*messages: Json) -> JsonObject:
    return {"messages": list(messages)}


USER: JsonObject = {"role": "user", "content": "Hi"}
CALL: JsonObject = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": "{}"},
}
CALLING: JsonObject = {"role": "assistant", "content": None, "tool_calls": [CALL]}
ANSWERED: JsonObject = {"role": "tool", "tool_call_id": "call_1", "content": "rain"}

LONG = "a" * 65

D_PARAMETERS: JsonObject = {
    "top_k": 5,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "reasoning": {"enabled": False},
    "chat_template_kwargs": {},
    "continue_final_message": False,
    "stop_token_ids": [1],
    "cache_control": {"type": "ephemeral"},
}

TABLES: tuple[Table, ...] = (
    table(
        "R13",
        "model is required",
        "O",
        "A request without model is refused: 400, param model.",
        bad("no model", {"model": DROP}, "model"),
    ),
    table(
        "R14",
        "messages are required",
        "O",
        "A request without messages is refused; an empty list with the code empty_array.",
        bad("no messages", {"messages": DROP}, "messages"),
        bad("messages is []", {"messages": []}, "messages", "empty_array"),
    ),
    table(
        "R15",
        "Unknown parameters are refused",
        "O",
        "An unknown top-level key is refused with unknown_parameter; param is that key.",
        bad("an unknown key", {"no_such_key": 1}, "no_such_key", "unknown_parameter"),
    ),
    table(
        "R16",
        "Unknown parameters are ignored",
        "D",
        "An unknown top-level key is ignored.",
        good("an unknown key", {"no_such_key": 1}),
    ),
    table(
        "R18",
        "The range of n",
        "O",
        "n is 1 … 128; 130 is refused with integer_above_max_value, param n.",
        bad("n is 0", {"n": 0}, "n"),
        bad("n is 129", {"n": 129}, "n"),
        bad("n is 130", {"n": 130}, "n", "integer_above_max_value"),
    ),
    table(
        "R19",
        "The range of n",
        "D",
        "n is 1 … 4.",
        bad("n is 0", {"n": 0}, "n"),
        bad("n is 5", {"n": 5}, "n"),
    ),
    table(
        "R20",
        "The ranges of temperature and top_p",
        "O",
        "temperature is 0 … 2, top_p 0 … 1; both ends are legal.",
        bad("temperature is -0.1", {"temperature": -0.1}, "temperature"),
        good("temperature is 0", {"temperature": 0}),
        good("temperature is 2", {"temperature": 2}),
        bad("temperature is 2.1", {"temperature": 2.1}, "temperature"),
        bad("top_p is -0.1", {"top_p": -0.1}, "top_p"),
        good("top_p is 0", {"top_p": 0}),
        good("top_p is 1", {"top_p": 1}),
        bad("top_p is 1.1", {"top_p": 1.1}, "top_p"),
    ),
    table(
        "R21",
        "The ranges of temperature and top_p",
        "D",
        "top_p 0 is refused, 1 is legal; temperature is 0 … 2.",
        bad("top_p is 0", {"top_p": 0}, "top_p"),
        good("top_p is 1", {"top_p": 1}),
        bad("top_p is 1.1", {"top_p": 1.1}, "top_p"),
        good("temperature is 0", {"temperature": 0}),
        good("temperature is 2", {"temperature": 2}),
        bad("temperature is -0.1", {"temperature": -0.1}, "temperature"),
        bad("temperature is 2.1", {"temperature": 2.1}, "temperature"),
    ),
    table(
        "R22",
        "The range of the penalties",
        "B",
        "presence_penalty and frequency_penalty are −2 … 2.",
        good("both at the ends", {"presence_penalty": -2, "frequency_penalty": 2}),
        bad("presence_penalty is 2.01", {"presence_penalty": 2.01}, "presence_penalty"),
        bad("presence_penalty is -2.01", {"presence_penalty": -2.01}, "presence_penalty"),
        bad("frequency_penalty is 2.01", {"frequency_penalty": 2.01}, "frequency_penalty"),
        bad("frequency_penalty is -2.01", {"frequency_penalty": -2.01}, "frequency_penalty"),
    ),
    table(
        "R23",
        "The ranges of DeepInfra's own parameters",
        "D",
        "top_k is 0 … 999, min_p 0 … 1, repetition_penalty 0.01 … 5, max_tokens 0 … 1000000.",
        good("the lowest values", {"top_k": 0, "min_p": 0, "repetition_penalty": 0.01}),
        good("the highest values", {"top_k": 999, "min_p": 1, "repetition_penalty": 5}),
        bad("top_k is -1", {"top_k": -1}),
        bad("top_k is 1000", {"top_k": 1000}),
        bad("min_p is -0.1", {"min_p": -0.1}),
        bad("min_p is 1.1", {"min_p": 1.1}),
        bad("repetition_penalty is 0", {"repetition_penalty": 0}),
        bad("repetition_penalty is 5.1", {"repetition_penalty": 5.1}),
        bad("max_tokens is -1", {"max_tokens": -1}),
        bad("max_tokens is 1000001", {"max_tokens": 1_000_001}),
    ),
    table(
        "R24",
        "DeepInfra's parameters are unknown here",
        "O",
        "What only DeepInfra has is refused with unknown_parameter.",
        *(bad(key, {key: value}, key, "unknown_parameter") for key, value in D_PARAMETERS.items()),
    ),
    table(
        "R25",
        "stop has up to four strings",
        "O",
        "stop is a string, null, or 1 … 4 strings; 5 are refused with array_above_max_length.",
        good("a string", {"stop": "zzz"}),
        good("null", {"stop": None}),
        good("four strings", {"stop": ["z1", "z2", "z3", "z4"]}),
        bad("five strings", {"stop": ["1", "2", "3", "4", "5"]}, "stop", "array_above_max_length"),
    ),
    table(
        "R26",
        "stop has up to sixteen strings",
        "D",
        "stop and stop_token_ids have up to 16 items.",
        good("16 strings", {"stop": [f"z{n}" for n in range(16)]}),
        bad("17 strings", {"stop": [f"z{n}" for n in range(17)]}),
        good("16 ids", {"stop_token_ids": list(range(16))}),
        bad("17 ids", {"stop_token_ids": list(range(17))}),
    ),
    table(
        "R27",
        "top_logprobs needs logprobs",
        "O",
        "top_logprobs needs logprobs:true and is 0 … 20.",
        bad("top_logprobs alone", {"top_logprobs": 2}, "top_logprobs"),
        bad("21", {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        good("0", {"logprobs": True, "top_logprobs": 0}),
        good("20", {"logprobs": True, "top_logprobs": 20}),
    ),
    table(
        "R28",
        "stream_options needs stream",
        "O",
        "stream_options without stream:true is refused.",
        bad("without stream", {"stream_options": {"include_usage": True}}, "stream_options"),
    ),
    table(
        "R29",
        "stream_options without stream",
        "D",
        "stream_options without stream:true is accepted.",
        good("without stream", {"stream_options": {"include_usage": True}}),
    ),
    table(
        "R30",
        "logit_bias",
        "O",
        "Keys are non-negative integers, values −100 … 100.",
        bad("a key that is no number", {"logit_bias": {"a": 1}}, "logit_bias"),
        Case(say="a value of 101", body={"logit_bias": {"1": 101}}, status=(400,)),
        good("an ordinary bias", {"logit_bias": {"5": -100}}),
    ),
    table(
        "R31",
        "logit_bias of no token",
        "O",
        "A key outside the vocabulary is refused.",
        bad("token 99999999", {"logit_bias": {"99999999": 1}}),
        severity="warning",
    ),
    table(
        "R32",
        "One limit",
        "O",
        "max_tokens and max_completion_tokens together are refused.",
        bad(
            "both",
            {"max_tokens": 5, "max_completion_tokens": 5},
            "max_tokens",
            "invalid_parameter_combination",
        ),
    ),
    table(
        "R34",
        "The sizes of metadata",
        "O",
        "metadata has at most 16 pairs, keys of 64 and string values of 512 characters.",
        good("16 pairs", {"metadata": {f"k{n}": "v" * 512 for n in range(16)}}),
        Case(say="17 pairs", body={"metadata": {f"k{n}": "v" for n in range(17)}}, status=(400,)),
        Case(say="a key of 65", body={"metadata": {LONG: "v"}}, status=(400,)),
        Case(say="a value of 513", body={"metadata": {"k": "v" * 513}}, status=(400,)),
        Case(say="a number", body={"metadata": {"k": 1}}, status=(400,)),
    ),
    table(
        "R35",
        "tool_choice needs tools",
        "O",
        "tool_choice or parallel_tool_calls without tools is refused.",
        bad("tool_choice", {"tool_choice": "auto"}, "tool_choice"),
        bad("parallel_tool_calls", {"parallel_tool_calls": True}, "parallel_tool_calls"),
    ),
    table(
        "R36",
        "parallel_tool_calls is no null",
        "O",
        "parallel_tool_calls:null is refused with invalid_type.",
        bad(
            "null",
            {"tools": [function("get_weather")], "parallel_tool_calls": None},
            "parallel_tool_calls",
            "invalid_type",
        ),
    ),
    table(
        "R37",
        "tool_choice names a given tool",
        "O",
        "A named tool_choice, or an entry of allowed_tools, names one of the tools.",
        Case(
            say="an unknown name",
            body={
                "tools": [function("get_weather")],
                "tool_choice": {"type": "function", "function": {"name": "other"}},
            },
            status=(400,),
        ),
        Case(
            say="an unknown allowed name",
            body={
                "tools": [function("get_weather")],
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {
                        "mode": "auto",
                        "tools": [{"type": "function", "function": {"name": "other"}}],
                    },
                },
            },
            status=(400,),
        ),
    ),
    table(
        "R38",
        "Function names",
        "O",
        "A function's name is 1 … 64 letters, digits, underscores and dashes.",
        Case(say="a space", body={"tools": [function("a b")]}, status=(400,)),
        Case(say="65 letters", body={"tools": [function(LONG)]}, status=(400,)),
        good("64 letters", {"tools": [function(LONG[:64])]}),
    ),
    table(
        "R39",
        "Strict tools have strict schemas",
        "O",
        "A strict tool whose schema is outside the subset is refused.",
        bad(
            "no additionalProperties",
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {
                            "name": "f",
                            "strict": True,
                            "parameters": {
                                "type": "object",
                                "properties": {"a": {"type": "string"}},
                                "required": ["a"],
                            },
                        },
                    }
                ]
            },
            "tools[0].function.parameters",
            "invalid_function_parameters",
        ),
    ),
    table(
        "R40",
        "Three response formats",
        "O",
        "response_format.type is text, json_object or json_schema.",
        bad(
            "yaml",
            {"response_format": {"type": "yaml"}},
            "response_format.type",
            "invalid_value",
        ),
        bad(
            "regex",
            {"response_format": {"type": "regex", "regex": "a"}},
            "response_format.type",
            "invalid_value",
        ),
    ),
    table(
        "R41",
        "response_format regex",
        "D",
        "The type regex with a regex is accepted, without one refused.",
        good("with a regex", {"response_format": {"type": "regex", "regex": "[ab]+"}}),
        bad("without", {"response_format": {"type": "regex"}}),
    ),
    table(
        "R42",
        "json_object needs the word",
        "O",
        "json_object without the word json in a message is refused.",
        bad("no json", {"response_format": {"type": "json_object"}}, "messages"),
        good(
            "with json",
            {
                **talk({"role": "user", "content": "Answer in JSON: 1"}),
                "response_format": {"type": "json_object"},
            },
        ),
    ),
    table(
        "R43",
        "json_object without the word",
        "D",
        "json_object needs no word in the messages.",
        good("no json", {"response_format": {"type": "json_object"}}),
    ),
    table(
        "R44",
        "json_schema",
        "O",
        "json_schema has a name of up to 64 letters, digits, underscores and dashes; a strict "
        "schema outside the subset is refused.",
        Case(
            say="no name",
            body={
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"schema": {"type": "object"}},
                }
            },
            status=(400,),
        ),
        Case(
            say="a name with a space",
            body={
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a b", "schema": {"type": "object"}},
                }
            },
            status=(400,),
        ),
        bad(
            "a strict schema that is open",
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {
                        "name": "a",
                        "strict": True,
                        "schema": {"type": "object", "properties": {"b": {"type": "string"}}},
                    },
                }
            },
            "response_format",
        ),
    ),
    table(
        "R45",
        "Tool messages answer a call",
        "O",
        "A tool message whose id no preceding assistant message announced is refused.",
        bad("no call before it", talk(USER, ANSWERED, USER), "messages.[1].role"),
    ),
    table(
        "R46",
        "Calls are answered",
        "O",
        "An assistant's calls are all answered before the next message.",
        Case(say="a call without answer", body=talk(USER, CALLING, USER), status=(400,)),
        good("an answered call", talk(USER, CALLING, ANSWERED)),
    ),
    table(
        "R47",
        "tool_calls is not empty",
        "O",
        "An assistant message with tool_calls:[] is refused with empty_array.",
        bad(
            "[]",
            talk(USER, {"role": "assistant", "content": "a", "tool_calls": []}, USER),
            "messages[1].tool_calls",
            "empty_array",
        ),
    ),
    table(
        "R48",
        "An assistant message says something",
        "O",
        "An assistant message has content, tool_calls or function_call.",
        Case(say="none of them", body=talk(USER, {"role": "assistant"}, USER), status=(400,)),
    ),
    table(
        "R49",
        "Content parts by role",
        "O",
        "An assistant's parts are text, or exactly one refusal; system parts are text.",
        Case(
            say="text and refusal",
            body=talk(
                USER,
                {
                    "role": "assistant",
                    "content": [
                        {"type": "text", "text": "a"},
                        {"type": "refusal", "refusal": "b"},
                    ],
                },
                USER,
            ),
            status=(400,),
        ),
        Case(
            say="an image for system",
            body=talk(
                {
                    "role": "system",
                    "content": [
                        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
                    ],
                },
                USER,
            ),
            status=(400,),
        ),
        good(
            "text parts",
            talk(
                USER,
                {"role": "assistant", "content": [{"type": "text", "text": "a"}]},
                {"role": "user", "content": [{"type": "text", "text": "b"}]},
            ),
        ),
    ),
    table(
        "R50",
        "No developer role",
        "D",
        "The roles developer and function are refused.",
        bad("developer", talk({"role": "developer", "content": "a"}, USER)),
        bad("function", talk(USER, {"role": "function", "name": "f", "content": "a"}, USER)),
    ),
    table(
        "R51",
        "The developer role",
        "O",
        "The role developer is accepted where system is.",
        good("developer", talk({"role": "developer", "content": "Be brief."}, USER)),
        good("system", talk({"role": "system", "content": "Be brief."}, USER)),
    ),
    table(
        "R52",
        "Tool messages are whole",
        "B",
        "A tool message needs tool_call_id and content.",
        Case(
            say="no tool_call_id",
            body=talk(USER, CALLING, {"role": "tool", "content": "rain"}),
            status=(400,),
        ),
        Case(
            say="no content",
            body=talk(USER, CALLING, {"role": "tool", "tool_call_id": "call_1"}),
            status=(400,),
        ),
    ),
    table(
        "R53",
        "moderation names a model",
        "O",
        "moderation needs a model; a mode is score or block; null is accepted at each optional "
        "level.",
        bad("no model", {"moderation": {}}, "moderation.model"),
        Case(
            say="an unknown mode",
            body={
                "moderation": {
                    "model": "omni-moderation-latest",
                    "policy": {"input": {"mode": "x"}},
                }
            },
            status=(400,),
        ),
        good("null", {"moderation": None}),
        good("policy null", {"moderation": {"model": "omni-moderation-latest", "policy": None}}),
        good(
            "halves null",
            {
                "moderation": {
                    "model": "omni-moderation-latest",
                    "policy": {"input": None, "output": None},
                }
            },
        ),
    ),
    table(
        "R54",
        "Known tiers",
        "O",
        "A service_tier outside the enum is refused; null is accepted.",
        bad("slow", {"service_tier": "slow"}, "service_tier"),
        good("null", {"service_tier": None}),
    ),
    table(
        "R56",
        "Known reasoning efforts",
        "B",
        "A reasoning_effort outside the dialect's enum is refused.",
        bad("ultra", {"reasoning_effort": "ultra"}, "reasoning_effort"),
    ),
    table(
        "R58",
        "prediction is content",
        "O",
        "prediction has the type content, and a string or text parts.",
        Case(say="another type", body={"prediction": {"type": "x", "content": "a"}}, status=(400,)),
        Case(
            say="no parts", body={"prediction": {"type": "content", "content": []}}, status=(400,)
        ),
    ),
    table(
        "R59",
        "functions",
        "O",
        "functions has 1 … 128 items without strict; function_call is none, auto or a name.",
        Case(say="none", body={"functions": []}, status=(400,)),
        Case(
            say="129",
            body={"functions": [{"name": f"f{n}", "parameters": {}} for n in range(129)]},
            status=(400,),
        ),
        Case(
            say="strict",
            body={"functions": [function("f", strict=True)["function"]]},
            status=(400,),
        ),
        Case(
            say="function_call maybe",
            body={"functions": [function("f")["function"]], "function_call": "maybe"},
            status=(400,),
        ),
    ),
    table(
        "R63",
        "Newer parameters",
        "O",
        "safety_identifier has at most 64 characters; prompt_cache_options, "
        "prompt_cache_retention and verbosity have enums.",
        Case(say="65 characters", body={"safety_identifier": LONG}, status=(400,)),
        Case(say="verbosity", body={"verbosity": "huge"}, status=(400,)),
        Case(say="retention", body={"prompt_cache_retention": "1y"}, status=(400,)),
        Case(say="cache mode", body={"prompt_cache_options": {"mode": "x"}}, status=(400,)),
        severity="warning",
    ),
    table(
        "R65",
        "Null where it is not allowed",
        "D",
        "temperature, top_p, n, stream and the penalties are not null.",
        *(
            bad(key, {key: None})
            for key in (
                "temperature",
                "top_p",
                "n",
                "stream",
                "presence_penalty",
                "frequency_penalty",
            )
        ),
    ),
)

OF_TABLES: tuple[Rule, ...] = tuple(one.rule() for one in TABLES)


# ---------------------------------------------------------------- rules that are not one table

_NOT_JSON = Probe(name="R17: a body that is no JSON", raw=b'{"model": ')
_NOT_OBJECT = Probe(name="R17: a body that is a list", raw=b"[]")


@whole_rule(
    "R17",
    "The body is a JSON object",
    dialect="B",
    says="A body that is no JSON object is refused with an error body.",
    how="`{` cut short, and `[]`: 400, in DeepInfra's dialect also 422.",
    probes=(_NOT_JSON, _NOT_OBJECT),
)
def body_is_object(e: Evidence) -> Iterable[Problem]:
    allowed = (400,) if e.dialect == "O" else (400, 422)
    for probe in (_NOT_JSON, _NOT_OBJECT):
        x = e.get(probe.name)
        if x.response.status not in allowed or not isinstance(x.body, dict):
            yield Problem(f"{x.how_answered}: {x.response.body[:80]!r}", None, x)


_MAX_TOKENS = Probe(name="R33: max_tokens", body={LIMIT: DROP, "max_tokens": 4}, dialects=("O",))
_TEMPERATURE = Probe(name="R33: temperature", body={"temperature": 0.5}, dialects=("O",))


@whole_rule(
    "R33",
    "What reasoning models refuse",
    dialect="O",
    says="A reasoning model refuses max_tokens with unsupported_parameter and a temperature other "
    "than 1 with unsupported_value.",
    how="If either is refused, then with that code. Which models reason is not visible.",
    probes=(_MAX_TOKENS, _TEMPERATURE),
)
def reasoning_model_refusals(e: Evidence) -> Iterable[Problem]:
    wanted = (
        (_MAX_TOKENS, "max_tokens", "unsupported_parameter"),
        (_TEMPERATURE, "temperature", "unsupported_value"),
    )
    refused = False
    for probe, param, code in wanted:
        x = e.get(probe.name)
        if x.response.status == 200:
            continue
        refused = True
        case = Case(say=param, status=(400,), param=param, code=code)
        yield from against(x, case)
    if not refused:
        raise Skipped("the model refuses neither max_tokens nor a temperature")


@whole_rule(
    "R55",
    "A tier the model lacks",
    dialect="D",
    says="A service_tier that the model lacks is served and echoed as default.",
    how="A request for flex: 200, and the echo is not flex.",
    probes=(TIER_D,),
)
def lacking_tier(e: Evidence) -> Iterable[Problem]:
    x = e.get(TIER_D.name)
    if not x.ok:
        yield Problem(x.how_answered, None, x)


@whole_rule(
    "R57",
    "Reasoning can be switched off",
    dialect="D",
    says="reasoning.enabled:false and reasoning_effort:none give no reasoning_content.",
    how="Both requests; no chunk and no message has reasoning_content.",
    probes=(REASONING_OFF, REASONING_NONE),
)
def reasoning_off(e: Evidence) -> Iterable[Problem]:
    for probe in (REASONING_OFF, REASONING_NONE):
        x = e.get(probe.name)
        if not x.ok:
            yield Problem(x.how_answered, None, x)
        for choice in x.choices:
            if choice.reasoning:
                yield Problem("there is reasoning_content", choice.frame, x)


_LONG = Probe(
    name="R60: a very long prompt",
    body={"messages": [{"role": "user", "content": "word " * 250_000}], LIMIT: 1},
)


@whole_rule(
    "R60",
    "Longer than the context",
    dialect="B",
    says="A prompt longer than the context is refused with 400; in OpenAI's dialect with "
    "context_length_exceeded, param messages.",
    how="A prompt of 250,000 words.",
    probes=(_LONG,),
)
def longer_than_context(e: Evidence) -> Iterable[Problem]:
    x = e.get(_LONG.name)
    if x.ok:
        raise Skipped("the model takes 250,000 words")
    if x.response.status == 413:
        raise Skipped("the server takes no body of 1.25 MB")
    if x.response.status != 400:
        yield Problem(f"{x.how_answered} instead of 400", None, x)
    elif e.dialect == "O":
        case = Case(
            say="a very long prompt",
            status=(400,),
            param="messages",
            code="context_length_exceeded",
        )
        yield from _error_against(x, case)


_UNKNOWN_MODEL = Probe(name="R61: unknown model", body={"model": "no/such-model-exists"})


@whole_rule(
    "R61",
    "Unknown models",
    dialect="O",
    says="An unknown model is refused with 404, model_not_found, param null.",
    how="A model name that nobody has.",
    probes=(_UNKNOWN_MODEL,),
)
def unknown_model(e: Evidence) -> Iterable[Problem]:
    x = e.get(_UNKNOWN_MODEL.name)
    if x.response.status != 404:
        yield Problem(f"{x.how_answered} instead of 404", None, x)
        return
    error = as_object(as_object(x.body).get("error"))
    if "code" in error and error["code"] != "model_not_found":
        yield Problem(f"code is {error['code']!r}, not 'model_not_found'", None, x)
    if error.get("param") is not None:
        yield Problem(f"param is {error['param']!r}, not null", None, x)


_MARKED: JsonObject = {"role": "user", "content": "Hi", "cache_control": {"type": "ephemeral"}}
_CACHE_MESSAGE = Probe(name="R62: cache_control on a message", body={LIMIT: 1, **talk(_MARKED)})
_CACHE_TOOL = Probe(
    name="R62: cache_control on a tool",
    body={
        LIMIT: 1,
        "tools": [{**function("get_weather"), "cache_control": {"anything": [1]}}],
    },
)


@whole_rule(
    "R62",
    "cache_control",
    dialect="B",
    says="cache_control on messages and tools: any object in DeepInfra's dialect; refused with 400 "
    "in OpenAI's.",
    how="A marked message and a marked tool.",
    probes=(_CACHE_MESSAGE, _CACHE_TOOL),
)
def cache_control(e: Evidence) -> Iterable[Problem]:
    wanted = 400 if e.dialect == "O" else 200
    for probe in (_CACHE_MESSAGE, _CACHE_TOOL):
        x = e.get(probe.name)
        if x.response.status != wanted:
            message = f"{probe.name}: {x.how_answered} instead of {wanted}"
            yield Problem(message, None, x)


_NULLS_O = (
    *("stream_options", "temperature", "top_p", "n", "stop", "presence_penalty"),
    *("frequency_penalty", "logprobs", "top_logprobs", "seed", "max_tokens", "audio"),
    *("reasoning_effort", "service_tier", "logit_bias", "metadata", "store", "moderation"),
    *("prediction", "verbosity", "stream", "prompt_cache_key", "prompt_cache_retention"),
)
_NULLS_D = (
    *("stream_options", "stop", "logprobs", "seed", "tools", "tool_choice"),
    *("response_format", "reasoning_effort", "reasoning", "user", "prompt_cache_key"),
    *("stop_token_ids", "chat_template_kwargs", "continue_final_message"),
)
_ALL_NULL_O = Probe(
    name="R64: nulls (OpenAI)",
    body={LIMIT: 1, **dict.fromkeys(_NULLS_O)},
    dialects=("O",),
)
_ALL_NULL_D = Probe(
    name="R64: nulls (DeepInfra)",
    body={**dict.fromkeys(_NULLS_D), LIMIT: 1},
    dialects=("D",),
)


@whole_rule(
    "R64",
    "Null is absence",
    dialect="B",
    says="An explicit null on a nullable parameter equals its absence.",
    how="One request with null for every nullable parameter: 200.",
    probes=(_ALL_NULL_O, _ALL_NULL_D),
)
def null_is_absence(e: Evidence) -> Iterable[Problem]:
    x = e.get((_ALL_NULL_O if e.dialect == "O" else _ALL_NULL_D).name)
    if not x.ok:
        error = as_object(as_object(x.body).get("error"))
        yield Problem(f"{x.how_answered}, param {error.get('param')!r}", None, x)


_CONTINUED = Probe(
    name="R66: a final assistant message",
    body={
        **talk(
            {"role": "user", "content": "Count to five."},
            {"role": "assistant", "content": "One, two, three"},
        ),
        "continue_final_message": True,
    },
    dialects=("D",),
)
_NOT_CONTINUED = Probe(
    name="R66: a final user message",
    body={"continue_final_message": True, LIMIT: 1},
    dialects=("D",),
)


@whole_rule(
    "R66",
    "continue_final_message",
    dialect="D",
    severity="warning",
    says="continue_final_message needs a final assistant message; the output continues it and "
    "does not repeat it.",
    how="A final assistant message: 200, not repeated. A final user message: refused.",
    probes=(_CONTINUED, _NOT_CONTINUED),
)
def continue_final_message(e: Evidence) -> Iterable[Problem]:
    x = e.get(_CONTINUED.name)
    if not x.ok:
        yield Problem(x.how_answered, None, x)
    elif any(c.content.startswith("One, two, three") for c in x.choices):
        yield Problem("the answer repeats the final message", None, x)
    x = e.get(_NOT_CONTINUED.name)
    if x.ok:
        yield Problem("accepted without a final assistant message", None, x)
