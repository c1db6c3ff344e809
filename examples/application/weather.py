"""A small application on a chat model: it answers questions about the weather with a tool."""

import json
from collections.abc import Callable
from typing import Any

from openai import OpenAI

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def answer(client: OpenAI, question: str, get_weather: Callable[[str], str]) -> str:
    """The model's answer; it may look up the weather of any number of cities on the way."""
    messages: list[Any] = [{"role": "user", "content": question}]
    while True:
        reply = client.chat.completions.create(model="m", messages=messages, tools=[TOOL])
        message = reply.choices[0].message
        if not message.tool_calls:
            return message.content or ""
        messages.append(message)
        for call in message.tool_calls:
            if call.type == "function":
                city = json.loads(call.function.arguments)["city"]
                messages.append(
                    {"role": "tool", "tool_call_id": call.id, "content": get_weather(city)}
                )
