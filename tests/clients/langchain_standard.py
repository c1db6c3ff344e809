"""LangChain's standard tests over its clients of both dialects, and what they leave unasked.

Run by pytest in the client's own environment (test_langchain.py): it knows a URL and a key, and
nothing of this package.
"""

import os
from typing import Any

import pytest
from langchain_community.chat_models import ChatDeepInfra
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests
from pydantic import BaseModel

URL = os.environ["REJOINDER_URL"]
KEY = os.environ["REJOINDER_KEY"]
MODEL = "m"


class OpenAIParameters:
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {
            "model": MODEL,
            "base_url": f"{URL}/v1",
            "api_key": KEY,
            "stream_usage": True,
            "max_retries": 0,
        }

    @property
    def supports_json_mode(self) -> bool:
        return True


class DeepInfraParameters:
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatDeepInfra

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {
            "model": MODEL,
            "url": f"{URL}/v1/openai/chat/completions",
            "deepinfra_api_token": KEY,
        }


def cannot(reason: str) -> pytest.MarkDecorator:
    """What the client itself cannot do, whatever the server; it is told here if it learns to."""
    return pytest.mark.xfail(reason=reason, strict=True)


ASKS_FOR_NO_STREAM = cannot("its async stream sends stream: false")
NEEDS_WHOLE_CALLS = cannot("it reads each fragment of a call as a whole call")
SENDS_PARTS = cannot("it sends content blocks that are not of the Chat Completions API")
SCHEMAS = pytest.mark.parametrize("schema_type", ["pydantic", "typeddict", "json_schema"])
BOTH_VERSIONS = pytest.mark.parametrize("model", [{}, {"output_version": "v1"}], indirect=True)


class TestChatOpenAIUnit(OpenAIParameters, ChatModelUnitTests):
    @property
    def init_from_env_params(self) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
        return {"OPENAI_API_KEY": KEY}, {"model": MODEL}, {"openai_api_key": KEY}

    @cannot("compares with a file of the client's own repository")
    def test_serdes(self, model: BaseChatModel, snapshot: Any) -> None:
        super().test_serdes(model, snapshot)


class TestChatOpenAI(OpenAIParameters, ChatModelIntegrationTests):
    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {**super().chat_model_params, "max_tokens": 200, "temperature": 0}

    @property
    def supports_model_override(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str:
        return "thinker"


class TestChatDeepInfraUnit(DeepInfraParameters, ChatModelUnitTests):
    @property
    def init_from_env_params(self) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
        return {"DEEPINFRA_API_KEY": KEY}, {"model": MODEL}, {"deepinfra_api_token": KEY}


class TestChatDeepInfra(DeepInfraParameters, ChatModelIntegrationTests):
    @property
    def has_tool_choice(self) -> bool:
        return False  # the client sends the name of a tool as a string

    @property
    def returns_usage_metadata(self) -> bool:
        return False  # the client leaves usage in llm_output, see TestDeepInfraAnswers

    @BOTH_VERSIONS
    @ASKS_FOR_NO_STREAM
    async def test_astream(self, model: BaseChatModel) -> None:
        await super().test_astream(model)

    @ASKS_FOR_NO_STREAM
    async def test_astream_events_v3(self, model: BaseChatModel) -> None:
        await super().test_astream_events_v3(model)

    @BOTH_VERSIONS
    @NEEDS_WHOLE_CALLS
    def test_tool_calling(self, model: BaseChatModel) -> None:
        super().test_tool_calling(model)

    @NEEDS_WHOLE_CALLS
    async def test_tool_calling_async(self, model: BaseChatModel) -> None:
        await super().test_tool_calling_async(model)

    @NEEDS_WHOLE_CALLS
    def test_tool_calling_with_no_arguments(self, model: BaseChatModel) -> None:
        super().test_tool_calling_with_no_arguments(model)

    @pytest.mark.parametrize("schema_type", ["pydantic"])  # the others: TestDeepInfraAnswers
    @NEEDS_WHOLE_CALLS
    def test_structured_output(self, model: BaseChatModel, schema_type: Any) -> None:
        super().test_structured_output(model, schema_type)

    @SCHEMAS
    @ASKS_FOR_NO_STREAM
    async def test_structured_output_async(self, model: BaseChatModel, schema_type: Any) -> None:
        await super().test_structured_output_async(model, schema_type)

    @NEEDS_WHOLE_CALLS
    def test_structured_output_pydantic_2_v1(self, model: BaseChatModel) -> None:
        super().test_structured_output_pydantic_2_v1(model)

    @SENDS_PARTS
    def test_tool_message_histories_list_content(
        self, model: BaseChatModel, my_adder_tool: Any
    ) -> None:
        super().test_tool_message_histories_list_content(model, my_adder_tool)

    @pytest.mark.parametrize("model", [{"output_version": "v1"}], indirect=True)
    @SENDS_PARTS  # without output_version: TestDeepInfraAnswers
    def test_agent_loop(self, model: BaseChatModel) -> None:
        super().test_agent_loop(model)


class Joke(BaseModel):
    setup: str
    punchline: str


@tool
def get_weather(location: str) -> str:
    """The weather of a place."""
    return f"It's sunny in {location}."


HISTORY = [SystemMessage("Be brief."), HumanMessage("hello"), AIMessage("Hi!"), HumanMessage("Yo")]
WEATHER = "What is the weather in San Francisco, CA?"


def agent_loop(model: BaseChatModel) -> AIMessage:
    """Asks, runs the tool that was called, and asks again."""
    with_tools = model.bind_tools([get_weather])
    first = with_tools.invoke(WEATHER)
    (call,) = first.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"location": "San Francisco, CA"})
    answer: ToolMessage = get_weather.invoke(call)
    return with_tools.invoke([HumanMessage(WEATHER), first, answer])


class TestOpenAIAnswers(OpenAIParameters):
    """The values that the standard tests take on trust."""

    def model(self, **more: Any) -> ChatOpenAI:
        return ChatOpenAI(**self.chat_model_params, **more)

    def test_text_and_usage(self) -> None:
        unary = self.model().invoke(HISTORY)
        chunks = list(self.model().stream(HISTORY))
        full = chunks[0]
        for chunk in chunks[1:]:
            full += chunk
        assert full.content == unary.content == "Hello there. Bye"
        assert full.usage_metadata == unary.usage_metadata
        assert unary.usage_metadata is not None and unary.usage_metadata["output_tokens"] == 4
        for key in ("finish_reason", "model_name", "system_fingerprint", "service_tier"):
            assert full.response_metadata[key] == unary.response_metadata[key]

    async def test_async_stream(self) -> None:
        assert "".join([c.text async for c in self.model().astream(HISTORY)]) == "Hello there. Bye"

    def test_logprobs(self) -> None:
        answer = self.model(logprobs=True, top_logprobs=2).invoke("Hello")
        tokens = [entry["token"] for entry in answer.response_metadata["logprobs"]["content"]]
        assert tokens == ["Hel", "lo", " there", ". Bye"]

    def test_n(self) -> None:
        result = self.model(n=2).generate([[HumanMessage("Hello")]])
        assert [g.text for g in result.generations[0]] == ["Hello there. Bye"] * 2

    def test_stop(self) -> None:
        assert self.model().invoke("Hello", stop=[" there"]).content == "Hello"

    def test_agent_loop(self) -> None:
        assert agent_loop(self.model()).content == "It is sunny in San Francisco."

    @pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
    def test_structured_output(self, method: Any) -> None:
        chat = self.model().with_structured_output(Joke, method=method)
        joke = chat.invoke("Tell me a joke, as JSON")
        assert isinstance(joke, Joke) and joke.setup == "Why did the cat sit?"

    def test_errors(self) -> None:
        with pytest.raises(Exception, match="does not exist"):
            self.model().bind(model="nope").invoke("Hello")


class TestDeepInfraAnswers(DeepInfraParameters):
    def model(self, **more: Any) -> ChatDeepInfra:
        return ChatDeepInfra(**self.chat_model_params, **more)

    def test_text_and_usage(self) -> None:
        result = self.model().generate([HISTORY])
        assert result.generations[0][0].text == "Hello there. Bye"
        assert result.llm_output is not None
        assert result.generations[0][0].generation_info == {"finish_reason": "stop"}
        usage = self.model()._generate(HISTORY).llm_output["token_usage"]
        assert usage["completion_tokens"] == 4 and usage["estimated_cost"] > 0

    def test_stream(self) -> None:
        assert [c.content for c in self.model().stream(HISTORY) if c.content] == [
            "Hel", "lo", " there", ". Bye",
        ]  # fmt: skip

    async def test_async_stream(self) -> None:
        chunks = [c.content async for c in self.model(streaming=True).astream(HISTORY)]
        assert "".join(chunks) == "Hello there. Bye"

    def test_stop(self) -> None:
        assert self.model().invoke("Hello", stop=[" there"]).content == "Hello"

    def test_agent_loop(self) -> None:
        assert agent_loop(self.model()).content == "It is sunny in San Francisco."

    def test_structured_output(self) -> None:
        joke = self.model().with_structured_output(Joke).invoke("Tell me a joke")
        assert isinstance(joke, Joke) and joke.setup == "Why did the cat sit?"
        chat = self.model().with_structured_output(Joke.model_json_schema())
        assert chat.invoke("Tell me a joke") == joke.model_dump()

    def test_errors(self) -> None:
        with pytest.raises(ValueError, match="invalid payload"):
            self.model(model_kwargs={"presence_penalty": 9}).invoke("Hello")
