"""For every rule an exchange that breaks it, made from the ideal server's by one small change.

`GOLDENS` is a table: rule, dialect, the change, and the other rules that must also see it. A
change that several rules see is a documented pair: the note says why they cannot be told apart.
"""

import copy
import json
from typing import Any, NamedTuple

from rejoinder.check.exchange import DialectName, Exchange, Response
from rejoinder.check.rules.requests import TABLES
from tests.check.evidence import (
    Break,
    Seen,
    body,
    chunk,
    chunks,
    frames,
    header,
    raw,
    several,
    status,
    with_response,
)


class Golden(NamedTuple):
    rule: str
    dialect: DialectName
    breaks: Break
    also: frozenset[str] = frozenset()
    note: str = ""


def one(rule: str, dialect: DialectName, breaks: Break, *also: str, note: str = "") -> Golden:
    return Golden(rule, dialect, breaks, frozenset(also), note)


def put(*path: Any, value: Any) -> Any:
    """A change that sets a member: the last of `path` is its key."""

    def change(tree: Any) -> None:
        for step in path[:-1]:
            tree = tree[step]
        tree[path[-1]] = copy.deepcopy(value)

    return change


def drop(*path: Any) -> Any:
    def change(tree: Any) -> None:
        for step in path[:-1]:
            tree = tree[step]
        del tree[path[-1]]

    return change


def delta(*path: Any, value: Any) -> Any:
    return put("choices", 0, "delta", *path, value=value)


def message(*path: Any, value: Any) -> Any:
    return put("choices", 0, "message", *path, value=value)


def with_prefix(probe: str, name: str, value: Any) -> Break:
    """A request member that the checker did not send; the answer stays as it is."""

    def apply(seen: Seen) -> None:
        x = seen[probe]
        asked = {**json.loads(x.request.body), name: value}
        request = type(x.request)(
            url=x.request.url, headers=x.request.headers, body=json.dumps(asked).encode()
        )
        seen[probe] = Exchange(
            probe=probe, dialect=x.dialect, request=request, response=x.response, at=x.at
        )

    return apply


def replace_with_error(code: int, error: dict[str, Any], probe: str = "unary again") -> Break:
    def apply(seen: Seen) -> None:
        text = json.dumps({"error": error}).encode()
        seen[probe] = with_response(seen[probe], status=code, body=text)

    return apply


def streamed_prompt_counts(probe: str, number: int) -> Break:
    def change(value: Any) -> None:
        completion = value["usage"]["completion_tokens"]
        value["usage"].update(prompt_tokens=number, total_tokens=number + completion)

    return chunk(probe, -1, change)


FAILED = {"error": {"message": "broke", "type": "server_error", "param": None, "code": None}}


def cut_by_error(found: list[Any], at: int = 3, usage_at: int | None = None) -> None:
    final = found[-2].get("usage")
    del found[at:]
    found += [FAILED, "[DONE]"]
    if usage_at is not None:
        found[usage_at]["usage"] = final


def refused(probe: str) -> Break:
    """What should have been served is not."""
    error = {"message": "no", "type": "invalid_request_error", "param": None, "code": None}
    return replace_with_error(403, error, probe)


def prompt_counts(probe: str, number: int) -> Break:
    def change(value: Any) -> None:
        completion = value["usage"]["completion_tokens"]
        value["usage"].update(prompt_tokens=number, total_tokens=number + completion)

    return body(probe, change)


def failing(probe: str, change: Any = None) -> Break:
    """A stream that an error event ends, changed further."""

    def apply(found: list[Any]) -> None:
        cut_by_error(found)
        if change is not None:
            change(found)

    return frames(probe, apply)


def swap(a: int, b: int) -> Any:
    def change(found: list[Any]) -> None:
        found[a], found[b] = found[b], found[a]

    return change


def again(at: int) -> Any:
    def change(found: list[Any]) -> None:
        found.insert(at, copy.deepcopy(found[at]))

    return change


def with_refusal(probe: str) -> Break:
    """Turns the text of a stream or a body into a refusal."""

    def apply(found: list[Any]) -> None:
        for value in found[:-1]:
            for choice in value["choices"]:
                text = choice["delta"].pop("content", None)
                if text is not None:
                    choice["delta"]["refusal"] = text
                if "role" in choice["delta"]:
                    choice["delta"]["content"] = None
                if choice["logprobs"]:
                    entries = choice["logprobs"]
                    entries["refusal"], entries["content"] = entries["content"], None

    return frames(probe, apply)


def entry(*path: Any, value: Any) -> Any:
    return put("choices", 0, "logprobs", "content", 0, *path, value=value)


def body_entry(*path: Any, value: Any) -> Any:
    return entry(*path, value=value)


def call(*path: Any, value: Any) -> Any:
    return delta("tool_calls", 0, *path, value=value)


S = "stream"
U = "stream with usage"
T = "tools, streamed"
M = "moderation, streamed"
L = "logprobs, streamed"
P = "top_logprobs"
N = "n=3, streamed"

SEVERAL_ENDS = "a stream without its end has neither"


def result(*path: Any, value: Any) -> Break:
    return body("moderation", put("moderation", "input", "results", 0, *path, value=value))


def finish_with(value: str) -> Any:
    return put("choices", 0, "finish_reason", value=value)


def usage(*path: Any, value: Any) -> Any:
    return put("usage", *path, value=value)


def longer(seen: Seen) -> None:
    x = seen["limit of 3"]
    value = json.loads(x.response.body)
    value["usage"].update(completion_tokens=4, total_tokens=value["usage"]["prompt_tokens"] + 4)
    seen["limit of 3"] = with_response(x, body=json.dumps(value).encode())


def newer_call(chunk: Any) -> None:
    """A call of a function that was given as the older `functions` comes in the newer form."""
    for choice in chunk["choices"]:
        if function := choice["delta"].pop("function_call", None):
            call = {"index": 0, "function": function}
            if "name" in function:
                call |= {"id": "call_1", "type": "function"}
            choice["delta"]["tool_calls"] = [call]
        if choice["finish_reason"] == "function_call":
            choice["finish_reason"] = "tool_calls"


def unlimited(seen: Seen) -> None:
    """As if the limit were not known: more tokens, and an end by itself."""
    longer(seen)
    x = seen["limit of 3"]
    body = x.response.body.replace(b'"finish_reason": "length"', b'"finish_reason": "stop"')
    assert body != x.response.body
    seen["limit of 3"] = with_response(x, body=body)


def slow(seen: Seen) -> None:
    """Many chunks, all at once, late."""
    x = seen[N]
    read = type(x.response.reads[0])
    seen[N] = with_response(x, reads=(read(0, 2.0),))


def still_running(seen: Seen) -> None:
    x = seen["R118: metrics after"]
    text = x.response.body.replace(b"running 0", b"running 1")
    seen["R118: metrics after"] = with_response(x, body=text)


def same_choices(seen: Seen) -> None:
    x = seen["n=3"]
    value = json.loads(x.response.body)
    for choice in value["choices"]:
        choice["message"]["content"] = "The same"
    seen["n=3"] = with_response(x, body=json.dumps(value).encode())


def load(*statuses: int, tier: str, code: str | None = "busy") -> Break:
    def apply(seen: Seen) -> None:
        x = seen["unary"]
        for n, number in enumerate(statuses):
            asked = {**json.loads(x.request.body), "service_tier": tier}
            error = {"message": "busy", "type": "requests", "param": None, "code": code}
            body_bytes = x.response.body.replace(b"chatcmpl-", b"chatcmpl-l%d" % n)
            headers = tuple(
                (k, f"req_load_{n}" if k == "x-request-id" else v) for k, v in x.response.headers
            )
            if number != 200:
                body_bytes = json.dumps({"error": error}).encode()
                headers += (("retry-after", "1"),)
            seen[f"load {n}"] = Exchange(
                probe=f"load {n}",
                dialect=x.dialect,
                request=type(x.request)(url=x.request.url, body=json.dumps(asked).encode()),
                response=Response(status=number, headers=headers, body=body_bytes),
                at=x.at,
            )

    return apply


def tables() -> list[Golden]:
    """For each table of requests: its first refusal is served, or its first answer refused."""
    found = []
    for table in TABLES:
        for dialect in ("O", "D") if table.dialect == "B" else (table.dialect,):
            case, probe = next(
                ((c, p) for c, p in zip(table.cases, table.probes, strict=True) if c.status),
                (table.cases[0], table.probes[0]),
            )
            breaks = status(probe.name, 403) if case.status else refused(probe.name)
            found.append(one(table.id, dialect, breaks))
    return found


OTHERS: list[Golden] = [
    # ------------------------------------------------------------ framing
    one("R1", "O", header(S, "content-type", "application/json")),
    one("R2", "O", header("unary again", "content-type", "text/html")),
    one("R3", "O", raw("R25: null", lambda b: b.replace(b'"The"', b'"Th\xff"'))),
    one("R4", "O", raw(S, lambda b: b + b"event: end\n\n")),
    one("R5", "O", raw(S, lambda b: b.replace(b"data: ", b"event: chunk\ndata: ", 1))),
    one("R6", "O", raw(S, lambda b: b"data: [1]\n\n" + b)),
    one("R7", "O", frames(S, lambda f: f.pop())),
    one("R7", "D", frames(S, lambda f: f.append("[DONE]"))),
    one("R8", "O", raw(S, lambda b: b': {"ping": 1}\n\n' + b)),
    one(
        "R9",
        "O",
        raw("unknown model, streamed", lambda b: b"[]"),
        "R201",
        note="an error that is no object is no error object",
    ),
    one("R10", "O", slow),
    one("R11", "D", refused("gzip body")),
    one("R12", "O", header(S, "cache-control", "public")),
    # ------------------------------------------------------------ requests
    one("R17", "O", status("R17: a body that is a list", 403)),
    one(
        "R33",
        "O",
        replace_with_error(
            400,
            {
                "message": "no",
                "type": "invalid_request_error",
                "param": "temperature",
                "code": None,
            },
            "R33: temperature",
        ),
    ),
    one("R55", "D", refused("service_tier flex")),
    one("R57", "D", refused("reasoning off")),
    one("R57", "D", body("reasoning_effort none", message("reasoning_content", value="Hm."))),
    one("R60", "O", status("R60: a very long prompt", 403)),
    one("R61", "O", status("R61: unknown model", 400)),
    one("R62", "O", status("R62: cache_control on a tool", 403)),
    one("R62", "D", refused("R62: cache_control on a tool")),
    one("R64", "O", refused("R64: nulls (OpenAI)")),
    one(
        "R66",
        "D",
        body("R66: a final assistant message", message("content", value="One, two, three, four")),
    ),
    # ------------------------------------------------------------ bodies
    one("R67", "D", body("unary again", drop("model"))),
    one("R68", "D", body("unary again", message("name", value=None))),
    one(
        "R68",
        "D",
        body("unary again", message("function_call", value=None)),
        "R85",
        note="a null in a field of the other dialect",
    ),
    one("R69", "O", body("unary again", drop("choices", 0, "message", "refusal"))),
    one("R70", "O", body("unary again", put("choices", 0, "index", value=1))),
    one("R71", "O", body("R25: null", finish_with("eos"))),
    one("R72", "O", body("unary again", put("created", value=1_790_000_000_000))),
    one("R73", "O", body("service_tier default", message("content", value=None))),
    one(
        "R74",
        "O",
        body("R25: a string", message("content", value=[{"type": "text", "text": "The"}])),
    ),
    one(
        "R75",
        "D",
        body("R16: an unknown key", message("content", value=[{"type": "text", "text": "The"}])),
    ),
    one("R76", "D", body("unary again", message("role", value="user"))),
    one("R77", "O", body("R25: a string", finish_with("tool_calls"))),
    one("R78", "O", body("R25: a string", finish_with("function_call"))),
    one(
        "R79",
        "O",
        body("stop", message("content", value="The end")),
        "R86",
        note="the streamed text is another",
    ),
    one(
        "R80",
        "O",
        several(
            body("limit of 3", usage("completion_tokens", value=2)),
            body("limit of 3", usage("total_tokens", value=22)),
        ),
        "R86",
        note="the streamed counters are others",
    ),
    one("R81", "O", body("service_tier default", drop("service_tier"))),
    one("R82", "D", body("unary again", put("service_tier", value="flex"))),
    one("R83", "O", body("unary again", put("system_fingerprint", value=7))),
    one("R84", "O", body("unary again", message("reasoning_content", value="Hm."))),
    one("R85", "D", body("unary again", put("system_fingerprint", value="fp"))),
    one("R86", "O", body("stop", message("content", value="T"))),
    one("R87", "O", body("unary again", put("id", value="chatcmpl-1"))),
    # ------------------------------------------------------------ chunks
    one("R88", "D", chunk("stream without usage", -2, delta("content", value=5))),
    one("R89", "D", chunk(S, 1, finish_with(None))),
    one("R90", "O", chunk(S, 1, drop("model"))),
    one("R91", "O", chunk(S, 1, drop("choices", 0, "finish_reason"))),
    one("R92", "O", chunk(S, -1, put("choices", 0, "delta", value=None))),
    one("R93", "O", chunk(S, 1, put("system_fingerprint", value=None))),
    one(
        "R94",
        "O",
        chunk(S, 0, put("object", value="chat.completion")),
        "R225",
        note="the official SDKs drop such a chunk",
    ),
    one("R95", "O", chunk(S, 2, put("id", value="other"))),
    one("R96", "O", chunk(S, 2, put("created", value=1_790_000_001))),
    one("R97", "D", chunk(S, 2, drop("created"))),
    one("R98", "O", chunk(S, 2, put("model", value="other"))),
    one("R99", "O", chunk(S, 2, put("system_fingerprint", value="fp_2"))),
    one("R100", "O", frames(N, swap(0, 1))),
    one("R101", "O", with_prefix(N, "n", 4)),
    one("R102", "O", chunk(S, 0, drop("choices", 0, "delta", "role"))),
    one(
        "R103",
        "O",
        chunk(S, 1, delta("role", value="assistant")),
        "R225",
        note="the repeated role is what an SDK joins",
    ),
    one("R104", "O", frames(N, lambda f: f[1]["choices"].extend(f.pop(2)["choices"]))),
    one("R105", "O", frames(S, lambda f: f.insert(2, {**f[1], "choices": []}))),
    one("R106", "D", frames(S, lambda f: f.insert(2, {**f[1], "choices": []}))),
    one("R107", "O", frames(S, lambda f: f.pop(-2))),
    one("R107", "O", frames(S, again(-2))),
    one(
        "R108",
        "O",
        frames(
            S, lambda f: f.insert(-1, copy.deepcopy(f[1])) or f[-2]["choices"][0]["delta"].clear()
        ),
    ),
    one("R109", "O", chunk(S, -1, delta("content", value=""))),
    one(
        "R110",
        "D",
        frames(
            "stream without usage",
            lambda f: f[1]["choices"][0]["delta"].update(
                {
                    "tool_calls": [
                        {
                            "index": 0,
                            "id": "call_1",
                            "type": "function",
                            "function": {"name": "f", "arguments": "{}"},
                        }
                    ]
                }
            ),
        ),
        "R77",
        "R113",
        "R139",
        note="a delta with two payloads always adds one that others look at",
    ),
    one("R111", "O", chunk("obfuscation", 0, delta("refusal", value="No"))),
    one(
        "R112",
        "O",
        several(
            with_refusal("obfuscation"), chunk("obfuscation", -1, finish_with("content_filter"))
        ),
    ),
    one("R113", "D", frames("stream without usage", swap(3, 4))),
    one("R114", "O", chunk(S, 1, delta("reasoning_content", value=""))),
    one(
        "R115",
        "O",
        chunk("stop, streamed", 1, delta("content", value="The")),
        "R86",
        note="the unary text is another",
    ),
    one("R116", "O", raw("obfuscation", lambda b: b.replace(b'"The"', b'"\\ud83d"'))),
    one("R117", "O", chunk(S, 1, put("obfuscation", value="x"))),
    one("R118", "O", still_running),
    one("R119", "O", failing(S, lambda f: f.insert(-1, FAILED))),
    one(
        "R120",
        "O",
        failing(S, lambda f: f[2]["choices"][0].update(finish_reason="error")),
        "R71",
        "R109",
        note="error is no finish reason at all, and its chunk has text",
    ),
    one("R121", "O", chunk(S, 1, put("error", value=None))),
    one("R122", "O", several(prompt_counts("n=3", 60), streamed_prompt_counts(N, 60))),
    # ------------------------------------------------------------ usage
    one("R123", "O", chunk(S, 1, put("usage", value=None))),
    one("R124", "O", frames(U, lambda f: f.pop(-2))),
    one("R125", "O", frames(U, lambda f: f[1].update(usage=f[-2]["usage"]))),
    one("R126", "O", chunk(U, 1, drop("usage"))),
    one("R127", "D", chunk(S, -1, drop("usage"))),
    one(
        "R128",
        "D",
        chunk(
            "stream without usage",
            1,
            put("usage", value={"prompt_tokens": 20, "completion_tokens": 9, "total_tokens": 29}),
        ),
    ),
    one("R129", "D", chunk("continuous usage", 1, drop("usage"))),
    one("R130", "D", frames(S, lambda f: f[1].update(usage=f[-2]["usage"]))),
    one("R131", "O", frames(U, lambda f: cut_by_error(f, usage_at=2))),
    # ------------------------------------------------------------ tools
    one(
        "R132",
        "O",
        chunk(T, 3, call("index", value="0")),
        "R145",
        "R149",
        "R225",
        note="a fragment without a number is lost",
    ),
    one(
        "R133",
        "O",
        chunks(
            T,
            lambda c: [
                t.update(index=t["index"] + 1)
                for o in c["choices"]
                for t in o["delta"].get("tool_calls", [])
            ],
        ),
        "R145",
        "R149",
        "R225",
        note="there is a hole where call 0 should be",
    ),
    one(
        "R134",
        "O",
        chunk(T, 1, call("function", "name", value="")),
        "R149",
        note="the unary call has a name",
    ),
    one(
        "R135",
        "O",
        chunk(T, 2, call("function", "name", value="get_weather")),
        "R225",
        note="the repeated name is what an SDK joins",
    ),
    one(
        "R136",
        "O",
        frames(
            T,
            lambda f: (
                f[1]["choices"][0]["delta"]["tool_calls"][0]["function"].update(
                    arguments='{"city":'
                ),
                f.pop(2),
            ),
        ),
    ),
    one("R137", "O", frames(T, swap(3, 4))),
    one("R138", "O", chunk(T, 4, call("id", value="call_00"))),
    one(
        "R139",
        "O",
        several(
            *(chunk(p, 1, call("function", "name", value="other")) for p in ("tool_choice named",))
        ),
    ),
    one(
        "R140",
        "O",
        frames(
            "tool_choice none",
            lambda f: (
                f.insert(1, {**copy.deepcopy(f[1])}),
                f[1]["choices"][0].update(
                    delta={
                        "tool_calls": [
                            {
                                "index": 0,
                                "id": "call_1",
                                "type": "function",
                                "function": {"name": "get_time", "arguments": ""},
                            }
                        ]
                    }
                ),
                f[-2]["choices"][0].update(finish_reason="length"),
            ),
        ),
    ),
    one(
        "R141",
        "O",
        several(
            body("allowed_tools required", message("content", value="No.")),
            body("allowed_tools required", drop("choices", 0, "message", "tool_calls")),
            body("allowed_tools required", finish_with("stop")),
        ),
    ),
    one("R142", "O", chunk("tool_choice named", 1, call("function", "name", value="get_weather"))),
    one(
        "R143",
        "O",
        body(
            "strict tool",
            lambda b: b["choices"][0]["message"]["tool_calls"].append(
                {
                    "id": "call_09",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'},
                }
            ),
        ),
    ),
    one(
        "R144",
        "O",
        body(
            "strict tool",
            message("tool_calls", 0, "function", "arguments", value='{"city": "Paris"}'),
        ),
    ),
    one(
        "R145",
        "O",
        body(
            "allowed_tools required",
            message("tool_calls", 0, "function", "arguments", value='{"city"'),
        ),
    ),
    one(
        "R146",
        "D",
        several(
            body("tools", finish_with("malformed_function_call")),
            frames(
                T, lambda f: f[-2]["choices"][0].update(finish_reason="malformed_function_call")
            ),
        ),
    ),
    one("R147", "O", body("R25: null", finish_with("malformed_function_call"))),
    one("R148", "O", body("allowed_tools required", message("content", value=""))),
    one("R149", "O", chunk(T, 2, call("function", "arguments", value='{"city" :'))),
    one("R150", "O", chunk("functions", 2, delta("function_call", "name", value="get_weather"))),
    one("R150", "O", chunks("functions", newer_call)),
    # ------------------------------------------------------------ logprobs
    one(
        "R151",
        "O",
        body("unary again", put("choices", 0, "logprobs", value={"content": [], "refusal": None})),
    ),
    one("R152", "O", body("logprobs", drop("choices", 0, "logprobs", "refusal"))),
    one(
        "R153", "O", body("logprobs", drop("choices", 0, "logprobs", "content", 0, "top_logprobs"))
    ),
    one(
        "R154",
        "D",
        several(
            body("logprobs", body_entry("logprob", value=None)),
            chunk(L, 4, entry("logprob", value=None)),
        ),
        "R68",
        note="a null is a null",
    ),
    one("R155", "O", body("R169: top_logprobs 0", body_entry("logprob", value=0.5))),
    one(
        "R156",
        "O",
        several(
            *(
                body(
                    "top_logprobs of unlikely tokens",
                    lambda b: (
                        b["choices"][0]["logprobs"]["content"][0].update(logprob=-50.0),
                        b["choices"][0]["logprobs"]["content"][0]["top_logprobs"][0].update(
                            token="~x", bytes=list(b"~x")
                        ),
                    ),
                )
                for _ in range(1)
            )
        ),
    ),
    one(
        "R157",
        "D",
        several(
            body("logprobs", body_entry("logprob", value=-9999.0)),
            chunk(L, 4, entry("logprob", value=-9999.0)),
        ),
    ),
    one(
        "R158",
        "O",
        body(
            "R169: top_logprobs 0",
            body_entry(
                "top_logprobs", value=[{"token": "The", "logprob": -0.5, "bytes": [84, 104, 101]}]
            ),
        ),
    ),
    one(
        "R159",
        "O",
        body(
            "top_logprobs of unlikely tokens",
            lambda b: b["choices"][0]["logprobs"]["content"][0]["top_logprobs"].reverse(),
        ),
    ),
    one(
        "R160",
        "O",
        body(
            "top_logprobs of unlikely tokens",
            lambda b: b["choices"][0]["logprobs"]["content"][0]["top_logprobs"][0].update(
                token="~x", bytes=list(b"~x")
            ),
        ),
    ),
    one(
        "R161",
        "O",
        body(
            "top_logprobs of unlikely tokens",
            lambda b: [
                t.update(logprob=-0.5)
                for t in b["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
            ],
        ),
    ),
    one("R162", "O", body("R169: top_logprobs 0", body_entry("token", value="the"))),
    one(
        "R163",
        "O",
        body("R169: top_logprobs 0", lambda b: b["choices"][0]["logprobs"]["content"].pop(0)),
    ),
    one(
        "R164",
        "O",
        frames(
            L,
            lambda f: f[1]["choices"][0]["logprobs"]["content"].append(
                f[2]["choices"][0]["logprobs"]["content"].pop()
            ),
        ),
    ),
    one(
        "R165",
        "O",
        several(
            with_refusal("top_logprobs, streamed"),
            frames(
                "top_logprobs, streamed",
                lambda f: [
                    c["choices"][0]["logprobs"].update(refusal=None)
                    for c in f[:-1]
                    if c["choices"][0]["logprobs"]
                ],
            ),
        ),
        "R166",
        note="the unary entries are there",
    ),
    one("R166", "O", several(chunk(L, 1, entry("logprob", value=-1.5)))),
    one(
        "R167",
        "O",
        several(
            body("R169: top_logprobs 0", usage("completion_tokens", value=9)),
            body("R169: top_logprobs 0", usage("total_tokens", value=29)),
        ),
    ),
    one(
        "R168",
        "D",
        several(
            body("logprobs", body_entry("top_logprobs", value=[])),
            chunk(L, 4, entry("top_logprobs", value=[])),
        ),
    ),
    one("R169", "O", body("R169: top_logprobs 0", put("choices", 0, "logprobs", value=None))),
    one(
        "R170",
        "O",
        several(
            body(
                P,
                lambda b: b["choices"][0]["logprobs"]["content"][0]["top_logprobs"].insert(
                    0, {"token": "A", "logprob": -0.45, "bytes": [65]}
                ),
            ),
            body(P, lambda b: b["choices"][0]["logprobs"]["content"][0]["top_logprobs"].pop()),
            body(
                P,
                lambda b: b["choices"][0]["logprobs"]["content"][0]["top_logprobs"][1].update(
                    logprob=-1.5
                ),
            ),
            body(P, body_entry("logprob", value=-1.5)),
        ),
        "R166",
        note="the streamed value is another",
    ),
    # ------------------------------------------------------------ arithmetic
    one("R171", "O", body("R25: null", usage("total_tokens", value=5))),
    one("R172", "O", body("R25: null", usage("prompt_tokens_details", "cached_tokens", value=-1))),
    one("R173", "O", body("R25: null", drop("usage", "total_tokens"))),
    one(
        "R174",
        "D",
        several(
            body("service_tier flex", drop("usage", "completion_tokens")),
            body("service_tier flex", drop("usage", "estimated_cost")),
        ),
    ),
    one("R175", "O", body("R25: null", usage("prompt_tokens_details", "cached_tokens", value=99))),
    one(
        "R176",
        "O",
        body("R25: null", usage("prompt_tokens_details", "cache_write_tokens", value=18)),
    ),
    one(
        "R177",
        "O",
        body("R25: null", usage("completion_tokens_details", "reasoning_tokens", value=9)),
    ),
    one(
        "R178",
        "O",
        body(
            "prediction", usage("completion_tokens_details", "rejected_prediction_tokens", value=9)
        ),
    ),
    one(
        "R179",
        "O",
        body(
            "unary again", usage("completion_tokens_details", "rejected_prediction_tokens", value=1)
        ),
    ),
    one("R180", "O", body("R25: null", drop("usage", "completion_tokens_details"))),
    one("R181", "D", body("R16: an unknown key", usage("estimated_cost", value=0.5))),
    one(
        "R182",
        "D",
        body(
            "R16: an unknown key", usage("completion_tokens_details", value={"reasoning_tokens": 9})
        ),
    ),
    one("R183", "O", longer, "R86", note="the streamed counters are others"),
    one("R183", "O", unlimited, "R86", note="the streamed answer is another"),
    one("R184", "O", several(prompt_counts("n=3", 21), streamed_prompt_counts(N, 21))),
    one("R185", "O", prompt_counts("R185: more tools", 20)),
    one(
        "R186",
        "D",
        chunk(
            S,
            -1,
            lambda c: c["usage"].update(completion_tokens=5, total_tokens=25, estimated_cost=28e-6),
        ),
        "R86",
        note="the unary counters are others",
    ),
    # ------------------------------------------------------------ moderation
    one(
        "R187",
        "O",
        body(
            "unary again",
            put(
                "moderation",
                value={
                    "input": {"type": "error", "code": "a", "message": "b"},
                    "output": {"type": "error", "code": "a", "message": "b"},
                },
            ),
        ),
    ),
    one("R188", "O", frames(M, lambda f: f.pop(-3))),
    one("R189", "O", chunk(M, -2, put("moderation", "output", value=None))),
    one("R190", "O", frames(M, lambda f: f[-4].update(moderation=f.pop(-3)["moderation"]))),
    one("R191", "O", frames(M, swap(-3, -4))),
    one(
        "R192", "O", frames(M, swap(-2, -3)), "R124", "R125", note="usage is not on the last chunk"
    ),
    one("R193", "O", body("moderation", drop("moderation", "output", "code"))),
    one("R194", "O", result("type", value="moderation_results")),
    one("R195", "O", result("flagged", value=True)),
    one("R196", "O", result("category_applied_input_types", "hate", value=["image"])),
    one(
        "R197",
        "O",
        body("moderation", drop("choices", 0, "finish_reason")),
        "R69",
        "R199",
        note="a choice that did not finish has no finish_reason",
    ),
    one("R198", "O", body("moderation", drop("moderation"))),
    one("R199", "O", body("moderation", message("content", value="Other"))),
    one("R200", "O", body("R200: moderation, block", finish_with("content_filter"))),
    # ------------------------------------------------------------ errors
    one("R201", "O", body("a bad temperature", drop("error", "code"))),
    one("R202", "D", raw("a bad temperature", lambda b: b'{"oops": 1}')),
    one("R203", "O", status("a wrong key", 403)),
    one("R204", "D", status("a wrong key", 403)),
    one(
        "R205",
        "O",
        several(
            replace_with_error(
                429,
                {"message": "slow", "type": "a", "param": None, "code": "rate_limit_exceeded"},
                "another seed",
            ),
            header("another seed", "retry-after", "1"),
        ),
    ),
    one(
        "R206",
        "O",
        replace_with_error(
            400,
            {
                "message": "empty",
                "type": "insufficient_quota",
                "param": None,
                "code": "insufficient_quota",
            },
            "another seed",
        ),
    ),
    one(
        "R207",
        "O",
        replace_with_error(
            429,
            {"message": "slow", "type": "requests", "param": None, "code": "rate_limit_exceeded"},
            "another seed",
        ),
    ),
    one(
        "R208",
        "O",
        replace_with_error(
            500,
            {"message": "broke", "type": "oops", "param": None, "code": None},
            "another seed",
        ),
    ),
    one("R209", "O", header("unary again", "x-request-id", "req_1")),
    one("R210", "O", header("unary again", "openai-version", "1")),
    one("R211", "O", header("unary again", "x-ratelimit-reset-tokens", "soon")),
    one("R212", "O", status("a bad temperature", 418)),
    one("R213", "O", status("a bad temperature", 409)),
    one("R214", "O", status("a wrong method", 400)),
    one(
        "R215",
        "O",
        body("a bad temperature", put("error", "message", value=('File "/srv/app.py", line 3'))),
    ),
    one("R216", "D", load(200, 403, tier="default")),
    one("R217", "D", load(200, 403, tier="flex"), "R216", note="load is load"),
    one(
        "R218",
        "O",
        load(429, tier="flex", code=None),
        "R205",
        note="a 429 without a code says nothing to either",
    ),
    # ------------------------------------------------------------ determinism
    one("R219", "O", body("seeded again", message("content", value="Other"))),
    one("R220", "O", same_choices, "R86", note="the streamed choices differ"),
    one("R221", "O", status("stored: get what was not stored", 400)),
    one("R222", "O", body("stored: delete", put("deleted", value=False))),
    one("R223", "O", body("stored: list", put("last_id", value="x"))),
    one("R224", "O", body("models", put("object", value="models"))),
    one(
        "R225",
        "O",
        chunk(S, 1, put("object", value="x")),
        "R94",
        note="what an SDK makes of a stream shows only what other rules forbid",
    ),
]

GOLDENS: list[Golden] = [*tables(), *OTHERS]
