"""The server that the clients talk to: a script of what they ask, behind an API key.

It must not know: any client.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rejoinder import config
from rejoinder.testing import TestServer, running_server

KEY = "a-key-of-the-clients"


def pieces(text: str, size: int = 3) -> list[str]:
    """A text as the tokens of a script."""
    return [text[i : i + size] for i in range(0, len(text), size)]


def call(name: str, **arguments: Any) -> str:
    """A tool call as models of the format `hermes` write it."""
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def says(contains: str, text: str, **more: Any) -> dict[str, Any]:
    """A line of a script."""
    return {"when": {"contains": contains}, "pieces": pieces(text), **more}


SCRIPT: list[dict[str, Any]] = [
    says("no thanks", "I cannot.", refusal=True),
    says("break now", "abcdef", fault={"after": 0, "kind": "engine_error"}),
    says("break later", "abcdef", fault={"after": 1, "kind": "engine_error"}),
    says("slowly", "x" * 600, delay_ms=50),
    says("12 degrees", "It is 12 degrees in Oslo."),
    says("two cities", f"Let me look.\n{call('weather', city='Oslo')}\n"
         f"{call('weather', city='Łódź')}"),
    says("weather in Oslo", call("weather", city="Oslo")),
    says("a person", '{"name": "Ada", "age": 36}'),
    says("think first", "<think>Six times seven.</think>It is 42."),
    says("umlauts", "Grüße 👋🏽 aus Zürich"),
    says("Ada is my name", "Nice to meet you, Ada."),
    {"pieces": ["Hel", "lo", " there", ". Bye"]},
]  # fmt: skip


@contextmanager
def serving(script: list[dict[str, Any]], folder: Path) -> Iterator[TestServer]:
    """A server whose models `m` and `thinker` (it thinks) both answer from one script."""
    path = folder / "script.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in script), encoding="utf-8")
    models = "".join(
        f'[[models]]\nid = "{name}"\nbackend = "scripted"\nscript = "{path}"\n'
        f'tool_format = "hermes"\nreasoning_format = "{reasoning}"\n'
        "[models.pricing]\ninput_tokens = 1.0\noutput_tokens = 2.0\n"
        for name, reasoning in (("m", "none"), ("thinker", "deepseek_r1"))
    )
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    keys = f'[[keys]]\nkey_sha256 = "{digest}"\naccount = "clients"\n'
    with running_server(config.parse(models + keys)) as server:
        yield server
