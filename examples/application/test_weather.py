"""How to test an application without a model: the scripted engine plays the model's part.

pip install rejoinder openai pytest
pytest examples/application
"""

from collections.abc import Callable
from typing import Any

import openai
import pytest

from examples.application.weather import answer

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
HERMES = 'tool_format = "hermes"\n'


def client(server: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def test_it_looks_up_the_weather(rejoinder_scripted: Callable[..., Any]) -> None:
    script = [
        {"when": {"contains": "snow, -3"}, "pieces": ["It is ", "snowing", " in Oslo."]},
        {"pieces": [CALL]},
    ]
    asked: list[str] = []

    def weather(city: str) -> str:
        asked.append(city)
        return "snow, -3 degrees"

    server = rejoinder_scripted(script, toml=HERMES)
    with client(server) as model:
        assert answer(model, "What is the weather in Oslo?", weather) == "It is snowing in Oslo."
    assert asked == ["Oslo"]


def test_it_says_what_went_wrong(rejoinder_scripted: Callable[..., Any]) -> None:
    script = [{"pieces": ["x"], "fault": {"after": 1, "kind": "engine_error"}}]
    with client(rejoinder_scripted(script)) as model, pytest.raises(openai.InternalServerError):
        answer(model, "?", lambda city: "")
