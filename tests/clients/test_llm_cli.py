"""The `llm` command, told of our server in its extra-openai-models.yaml."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rejoinder.testing import TestServer
from tests.clients.programs import installed, need_environment, run
from tests.clients.servers import KEY

need_environment()

pytestmark = pytest.mark.clients

FUNCTION = 'def weather(city: str) -> str:\n    "The weather of a city"\n    return "12 degrees"\n'
PERSON = "name, age int"


class Llm:
    """The command with a home of its own."""

    def __init__(self, program: Path, home: Path) -> None:
        self._program = program
        self._home = home

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run([str(self._program), *arguments], {"LLM_USER_PATH": str(self._home)},
                   cwd=self._home)  # fmt: skip

    def say(self, *arguments: str) -> str:
        """What it prints; a failure of the command is one of the test."""
        done = self(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout.removesuffix("\n")

    def last_log(self) -> dict[str, Any]:
        logged: list[dict[str, Any]] = json.loads(self.say("logs", "--json", "-n", "1"))
        return logged[0]


MODEL = """\
- model_id: {id}
  model_name: {name}
  api_base: {base}
  api_key_name: rejoinder
  supports_tools: true
  supports_schema: true
"""


@pytest.fixture
def llm(server: TestServer, tmp_path: Path) -> Llm:
    program = installed("llm") / "bin" / "llm"
    bases = {"ours": f"{server.url}/v1", "deep": f"{server.url}/v1/openai"}
    models = "".join(MODEL.format(id=id, name="m", base=base) for id, base in bases.items())
    (tmp_path / "extra-openai-models.yaml").write_text(models, encoding="utf-8")
    (tmp_path / "keys.json").write_text(json.dumps({"rejoinder": KEY}), encoding="utf-8")
    return Llm(program, tmp_path)


@pytest.fixture(params=["ours", "deep"])
def model(request: pytest.FixtureRequest) -> str:
    """A model in each dialect."""
    name: str = request.param
    return name


@pytest.mark.parametrize("streaming", [(), ("--no-stream",)], ids=["stream", "unary"])
def test_prompt(llm: Llm, model: str, streaming: tuple[str, ...]) -> None:
    assert llm.say("-m", model, *streaming, "hi", "-s", "Be brief.") == "Hello there. Bye"
    log = llm.last_log()
    assert log["output_tokens"] == 4
    assert log["input_tokens"] > 4
    assert log["response_json"]["id"].startswith("chatcmpl-")


def test_options(llm: Llm, model: str) -> None:
    assert llm.say("-m", model, "hi", "-o", "max_tokens", "2", "-o", "temperature", "0") == "Hello"
    assert llm.say("-m", model, "hi", "-o", "stop", " there") == "Hello"
    assert llm.say("-m", model, "a person, in json", "-o", "json_object", "1").startswith("{")


def test_text_in_other_scripts(llm: Llm, model: str) -> None:
    assert llm.say("-m", model, "umlauts") == "Grüße 👋🏽 aus Zürich"


@pytest.mark.parametrize("streaming", [(), ("--no-stream",)], ids=["stream", "unary"])
def test_tools(llm: Llm, model: str, streaming: tuple[str, ...]) -> None:
    ask = ("-m", model, *streaming, "weather in Oslo", "--functions", FUNCTION, "--td")
    done = llm(*ask)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "It is 12 degrees in Oslo."
    assert "weather({'city': 'Oslo'})" in done.stderr


@pytest.mark.parametrize("streaming", [(), ("--no-stream",)], ids=["stream", "unary"])
def test_two_tools_at_once(llm: Llm, model: str, streaming: tuple[str, ...]) -> None:
    done = llm("-m", model, *streaming, "two cities", "--functions", FUNCTION, "--td")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("It is 12 degrees in Oslo.")
    assert done.stderr.count("weather(") == 2


@pytest.mark.parametrize("streaming", [(), ("--no-stream",)], ids=["stream", "unary"])
def test_schema(llm: Llm, model: str, streaming: tuple[str, ...]) -> None:
    said = llm.say("-m", model, *streaming, "a person", "--schema", PERSON)
    assert json.loads(said) == {"name": "Ada", "age": 36}


def test_conversation(llm: Llm, model: str) -> None:
    assert llm.say("-m", model, "Ada is my name") == "Nice to meet you, Ada."
    # The script answers to words of the whole prompt: the first turn must be in the second.
    assert llm.say("-c", "who am I?") == "Nice to meet you, Ada."
    assert llm.say("-m", model, "who am I?") == "Hello there. Bye"


def test_a_conversation_with_tools_goes_on(llm: Llm, model: str) -> None:
    llm.say("-m", model, "weather in Oslo", "--functions", FUNCTION)
    assert llm.say("-c", "and tomorrow?", "--functions", FUNCTION) == "It is 12 degrees in Oslo."


def test_errors(llm: Llm, model: str) -> None:
    bad = llm("-m", model, "hi", "-o", "max_tokens", "-1")
    assert bad.returncode == 1 and "max_tokens" in bad.stderr
    broken = llm("-m", model, "break later")
    assert broken.returncode == 1 and "Error" in broken.stderr


def test_endpoint_command(llm: Llm, server: TestServer) -> None:
    url = f"{server.url}/v1"
    listed = llm.say("openai", "endpoint", url, "--models", "--key", KEY)
    assert listed.split() == ["m", "thinker"]
    said = llm.say("openai", "endpoint", url, "hi", "-m", "m", "--key", KEY)
    assert said == "Hello there. Bye"
