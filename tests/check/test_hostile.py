"""No answer, however wrong, makes a predicate fail: it is judged or skipped."""

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rejoinder.check.exchange import DialectName, Exchange, Request, Response
from rejoinder.check.judge import judge
from rejoinder.check.rule import Evidence
from rejoinder.check.rules import RULES
from tests.check.evidence import ideal_evidence, payloads, with_response
from tests.check.ideal import sse

SEEN: dict[DialectName, dict[str, Exchange]] = {"O": ideal_evidence("O"), "D": ideal_evidence("D")}

KEYS = (
    *("id", "object", "choices", "index", "delta", "message", "role", "content", "refusal"),
    *("tool_calls", "function", "name", "arguments", "finish_reason", "logprobs", "token"),
    *("bytes", "top_logprobs", "usage", "prompt_tokens", "total_tokens", "error", "type"),
    *("prompt_tokens_details", "moderation", "input", "results"),
)

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["stop", "assistant", "function", "moderation_results", "\ud800", ""])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), st.sampled_from(["O", "D"]))
def test_any_json_at_any_place(data: st.DataObject, dialect: DialectName) -> None:
    seen = dict(SEEN[dialect])
    names = [n for n, x in seen.items() if x.is_stream and x.chunks]
    name = data.draw(st.sampled_from(names))
    found = payloads(seen[name])
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(found) - 2))
        node = found[place]
        while isinstance(node, dict | list) and node:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            key = data.draw(st.sampled_from(keys))
            if data.draw(st.booleans()) or not isinstance(node[key], dict | list):
                node[key] = data.draw(values)
                break
            node = node[key]
    body = b"".join(sse(p) for p in found)
    seen = {n: seen[n] for n in ("unary", "unary again", "tools", "logprobs", "n=3")}
    seen[name] = with_response(SEEN[dialect][name], body=body)
    unary = data.draw(values)
    seen["unary again"] = with_response(
        SEEN[dialect]["unary again"], body=json.dumps(unary).encode()
    )
    judge(Evidence(seen, dialect=dialect, mode="strict", model="m"), RULES)


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 599), st.booleans())
def test_any_bytes(body: bytes, status: int, streamed: bool) -> None:
    asked = {"model": "m", "stream": streamed, "logprobs": True, "n": 2, "stop": ["a", 3]}
    exchange = Exchange(
        probe="p",
        dialect="O",
        request=Request(url="http://h/v1/chat/completions", body=json.dumps(asked).encode()),
        response=Response(status=status, body=body),
    )
    judge(Evidence({"p": exchange}, dialect="O"), RULES)
