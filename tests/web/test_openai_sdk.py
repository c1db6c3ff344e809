"""The official Python SDK against our server: what it accumulates is the unary answer (R225)."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from rejoinder.testing import TestServer, scripted_server

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
                "additionalProperties": False,
            },
            "strict": True,
        },
    }
]

SCRIPT: list[dict[str, Any]] = [
    {"when": {"contains": "no thanks"}, "pieces": ["I can", "not."], "refusal": True},
    {"when": {"contains": "break"}, "pieces": ["a", "b"],
     "fault": {"after": 1, "kind": "engine_error"}},
    {"when": {"contains": "the sum is"}, "pieces": ["It is ", "3."]},
    {"when": {"contains": "add"}, "pieces": [CALL[i : i + 3] for i in range(0, len(CALL), 3)]},
    {"when": {"contains": "person"}, "pieces": ['{"name":', ' "Ada", "age"', ": 36}"]},
    {"pieces": ["Hel", "lo", " there", ". Bye"]},
]  # fmt: skip

MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]


def say(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="module")
def server() -> Iterator[TestServer]:
    with scripted_server(SCRIPT, toml='tool_format = "hermes"\n') as server:
        yield server


@pytest.fixture
def client(server: TestServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"n": 3},
        {"logprobs": True, "top_logprobs": 1},
        {"stop": [" there"]},
        {"messages": say("add"), "tools": TOOLS},
        {"messages": say("no thanks")},
        {"service_tier": "priority"},
    ],
    ids=lambda more: ",".join(more) or "plain",
)
def test_the_accumulated_stream_is_the_unary_answer(client: openai.OpenAI, more: Any) -> None:
    body = {"model": "m", "messages": MESSAGES, **more}
    unary = client.chat.completions.create(**body).model_dump()
    with client.chat.completions.stream(**body, stream_options={"include_usage": True}) as stream:
        final = stream.get_final_completion().model_dump()
    for one in (unary, final):
        for choice in one["choices"]:
            message = choice["message"]
            for call in message.get("tool_calls") or []:
                call["id"] = "*"
                call["function"].pop("parsed_arguments", None)
                call.pop("index", None)
            choice["message"] = {
                key: message.get(key) or None
                for key in ("role", "content", "refusal", "tool_calls")
            }
            logprobs = choice.get("logprobs")
            choice["logprobs"] = logprobs if logprobs and logprobs["content"] else None
    assert final["choices"] == unary["choices"]
    assert final["usage"] == unary["usage"]
    assert final["service_tier"] == unary["service_tier"]
    assert final["system_fingerprint"] == unary["system_fingerprint"]


def test_stream_events_of_a_tool_call(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="m", messages=say("add"), tools=TOOLS) as stream:
        kinds = [event.type for event in stream]
        call = stream.get_final_completion().choices[0].message.tool_calls
    assert "tool_calls.function.arguments.delta" in kinds
    assert "tool_calls.function.arguments.done" in kinds
    assert call is not None and call[0].function.parsed_arguments == {"a": 1, "b": 2}


def test_a_function_calling_loop(client: openai.OpenAI) -> None:
    messages = say("add")
    first = client.chat.completions.create(model="m", messages=messages, tools=TOOLS).choices[0]
    assert first.finish_reason == "tool_calls"
    call = (first.message.tool_calls or [])[0]
    assert call.type == "function"
    result = sum(json.loads(call.function.arguments).values())
    messages += [
        first.message,
        {"role": "tool", "tool_call_id": call.id, "content": f"the sum is {result}"},
    ]
    second = client.chat.completions.create(model="m", messages=messages, tools=TOOLS).choices[0]
    assert (second.message.content, second.finish_reason) == ("It is 3.", "stop")


def test_a_cut_answer_is_told(client: openai.OpenAI) -> None:
    with pytest.raises(openai.LengthFinishReasonError) as cut:
        client.chat.completions.parse(model="m", messages=MESSAGES, max_completion_tokens=2)
    assert cut.value.completion.choices[0].message.content == "Hello"


class Person(BaseModel):
    name: str
    age: int


def test_parse_gives_models(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="m", messages=say("person"), response_format=Person
    )
    assert answer.choices[0].message.parsed == Person(name="Ada", age=36)
    refused = client.chat.completions.parse(
        model="m", messages=say("no thanks"), response_format=Person
    )
    assert refused.choices[0].message.refusal == "I cannot."


def test_errors_are_typed(client: openai.OpenAI, server: TestServer) -> None:
    create: Any = client.chat.completions.create
    with pytest.raises(openai.NotFoundError) as missing:
        create(model="nope", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        create(model="m", messages=MESSAGES, temperature=3)
    assert bad.value.param == "temperature" and bad.value.request_id
    with pytest.raises(openai.InternalServerError):
        create(model="m", messages=say("break"))
    with pytest.raises(openai.APIError):
        for _ in create(model="m", messages=say("break"), stream=True):
            pass


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["m"]
    assert client.models.retrieve("m").id == "m"


def test_stored(client: openai.OpenAI) -> None:
    made = client.chat.completions.create(
        model="m", messages=MESSAGES, store=True, metadata={"a": "b"}
    )
    assert client.chat.completions.retrieve(made.id).id == made.id
    assert made.id in [one.id for one in client.chat.completions.list()]
    shown = list(client.chat.completions.messages.list(made.id))
    assert shown[0].content == "hi"
    assert client.chat.completions.delete(made.id).deleted


async def test_async_client(server: TestServer) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        unary = await client.chat.completions.create(model="m", messages=MESSAGES)
        async with client.chat.completions.stream(model="m", messages=MESSAGES) as stream:
            final = await stream.get_final_completion()
        text = ""
        async for chunk in await client.chat.completions.create(
            model="m", messages=MESSAGES, stream=True
        ):
            text += chunk.choices[0].delta.content or ""
    assert text == final.choices[0].message.content == unary.choices[0].message.content


def test_deepinfras_dialect_through_the_sdk(server: TestServer) -> None:
    url = f"{server.url}/v1/openai"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        chunks = list(client.chat.completions.create(model="m", messages=MESSAGES, stream=True))
        assert all(chunk.choices for chunk in chunks), "one client breaks on choices: []"
        assert chunks[-1].usage is not None and chunks[-1].choices[0].finish_reason == "stop"
        with pytest.raises(openai.UnprocessableEntityError):
            client.chat.completions.create(model="m", messages=MESSAGES, temperature=3)
