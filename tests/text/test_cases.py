"""Faults that other servers have had with the text of models, straight against the decoder."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rejoinder.events import ContentDelta, ReasoningDelta, ToolCallStart
from rejoinder.text.formats import detect_formats
from rejoinder.types import Tool
from tests.text.decoding import decode, entries, summed

FOLDER = Path(os.environ.get("REJOINDER_CASES", Path(__file__).parents[3] / "shared" / "cases"))
FILE = FOLDER / "handed.jsonl"


def cases() -> list[dict[str, Any]]:
    if not FILE.exists():
        return []
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return [case for line in lines if (case := json.loads(line))["kind"] == "model_text"]


def ways(given: dict[str, Any]) -> dict[str, list[bytes]]:
    if "tokens_bytes" in given:
        pieces = [bytes(token) for token in given["tokens_bytes"]]
        joined = b"".join(pieces)
        chars = [joined[i : i + 1] for i in range(len(joined))]
    else:
        pieces = [piece.encode() for piece in given["pieces"]]
        chars = [char.encode() for char in given["text"]]
    return {"pieces": pieces, "single": [b"".join(pieces)], "chars": chars}


def fields(given: dict[str, Any]) -> dict[str, Any]:
    request = given.get("request", {})
    stop = request.get("stop", [])
    reasoning = "auto" if given["format"] == "harmony" else given.get("reasoning", "none")
    tools, thoughts = detect_formats("", given["format"], reasoning)
    functions = [tool["function"] for tool in given.get("tools", [])]
    return {
        "tool_format": tools,
        "reasoning_format": thoughts,
        "opens_thinking": given.get("prompt_opens_think", False),
        "stop": tuple([stop] if isinstance(stop, str) else stop),
        "tools": tuple(Tool(f["name"], None, f["parameters"]) for f in functions),
        "logprobs": request.get("logprobs", False),
        "return_malformed_calls": given.get("dialect") != "deepinfra",
    }


def check(given: dict[str, Any], expect: dict[str, Any], way: str, tokens: list[bytes]) -> None:
    events = decode(tokens, given["end"], **fields(given))
    got = summed(events)
    alone = {k: v for k, v in expect.items() if k != "any_of"}
    for options in expect.get("any_of", [{}]):
        if all(_agrees(got, key, value) for key, value in {**alone, **options}.items()):
            break
    else:
        raise AssertionError((way, got))
    if expect.get("no_empty_reasoning_delta"):
        assert all(e.text for e in events if isinstance(e, ReasoningDelta))
    if "name_deltas_per_call" in expect:
        assert len([e for e in events if isinstance(e, ToolCallStart)]) == len(got.calls)
    if way == "pieces":
        reported = entries(events)
        if "logprobs_tokens" in expect:
            assert [e.token for e in reported] == expect["logprobs_tokens"]
        if "logprobs_bytes" in expect:
            assert [list(e.bytes or b"") for e in reported] == expect["logprobs_bytes"]
        if "per_chunk_alignment" in expect:
            for event in events:
                if isinstance(event, ContentDelta):
                    joined = b"".join(e.bytes or b"" for e in event.logprobs or ())
                    assert joined == event.text.encode()


def _agrees(got: Any, key: str, value: Any) -> bool:
    match key:
        case "content":
            return bool(got.content == (value or ""))
        case "reasoning_content":
            return bool(got.reasoning == (value or ""))
        case "finish_reason":
            return bool(got.finish == value)
        case "tool_calls":
            return len(got.calls) == len(value or []) and all(
                call.name == wanted["name"]
                and _same_json(call.arguments, wanted.get("arguments_json", {}))
                for call, wanted in zip(got.calls, value or [], strict=True)
            )
        case "arguments_contains":
            return all(any(text in call.arguments for call in got.calls) for text in value)
        case "no_substring":
            whole = [got.content, got.reasoning, *(call.arguments for call in got.calls)]
            return not any(text in one for text in value for one in whole)
        case "no_substring_in_content":
            return not any(text in got.content for text in value)
        case _:
            return True


def _same_json(text: str, value: Any) -> bool:
    return json.dumps(json.loads(text), sort_keys=True) == json.dumps(value, sort_keys=True)


@pytest.mark.parametrize("case", cases(), ids=lambda case: case["id"])
def test_a_fault_that_others_had(case: dict[str, Any]) -> None:
    for way, tokens in ways(case["given"]).items():
        check(case["given"], case["expect"], way, tokens)


def test_the_cases_are_read() -> None:
    if not FILE.exists():
        pytest.skip("the cases are not here")
    assert len(cases()) > 30
