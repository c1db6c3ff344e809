"""LangChain's standard tests, run in the client's environment; what cannot pass is listed."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from rejoinder import config
from rejoinder.testing import running_server
from tests.clients.programs import HERE, Case, installed, need_environment, read_junit, run
from tests.clients.servers import KEY, call, says, serving

PROGRAM = "langchain_standard.py"

need_environment()

pytestmark = pytest.mark.clients

JOKE = '{"setup": "Why did the cat sit?", "punchline": "It was tired."}'

SCRIPT: list[dict[str, Any]] = [
    says('"name": "JokeDict"', call("JokeDict", setup="Why?", punchline="Tired.")),
    says('"name": "Joke"', call("Joke", setup="Why did the cat sit?", punchline="Tired.")),
    says("こんにちは", call("unicode_customer", customer_name="こんにちは株式会社",
                        description="A Japanese company")),
    says("你好", call("unicode_customer", customer_name="你好啊集团", description="A company")),
    says("sunny", "It is sunny in San Francisco."),
    says("What is the weather", call("get_weather", location="San Francisco, CA")),
    says("magic_function_no_args", call("magic_function_no_args")),
    says("magic_function", call("magic_function", input=3)),
    says("Pirate", call("greeting_generator", answer_style="pirate")),
    says("3 + 4", call("my_adder_tool", a=3, b=4)),
    says("joke", JOKE),
    says("hi", "All of you"),
    {"pieces": ["Hel", "lo", " there", ". Bye"]},
]  # fmt: skip


GROUPS = {
    "TestChatOpenAIUnit": {"test_serdes"},
    "TestChatOpenAI": {
        "test_pdf_inputs",
        "test_audio_inputs",
        "test_image_inputs",
        "test_image_tool_message",
        "test_pdf_tool_message",
        "test_anthropic_inputs",
        "test_stream_time",
    },
    "TestOpenAIAnswers": set(),
    "TestChatDeepInfraUnit": {"test_serdes"},
    "TestChatDeepInfra": {
        "test_pdf_inputs",
        "test_audio_inputs",
        "test_image_inputs",
        "test_image_tool_message",
        "test_pdf_tool_message",
        "test_anthropic_inputs",
        "test_stream_time",
        "test_invoke_with_model_override",
        "test_ainvoke_with_model_override",
        "test_stream_with_model_override",
        "test_astream_with_model_override",
        "test_usage_metadata",
        "test_usage_metadata_streaming",
        "test_tool_choice",
        "test_json_mode",
        "test_astream",
        "test_astream_events_v3",
        "test_tool_calling",
        "test_tool_calling_async",
        "test_tool_calling_with_no_arguments",
        "test_structured_output",
        "test_structured_output_async",
        "test_structured_output_pydantic_2_v1",
        "test_tool_message_histories_list_content",
        "test_agent_loop",
    },
    "TestDeepInfraAnswers": set(),
}
"""The classes of the program; of each, what cannot pass there (docs/clients.md says why)."""


def standard_tests(folder: Path, url: str, *more: str) -> list[Case]:
    """The program's cases, run in a folder of its own: it must not find this package's settings."""
    python = installed("langchain") / "bin" / "python"
    program = folder / PROGRAM
    program.write_bytes((HERE / PROGRAM).read_bytes())
    report = folder / "report.xml"
    command = [
        str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}",
        "-o", "asyncio_mode=auto", "-o", "asyncio_default_test_loop_scope=session",
        f"--rootdir={folder}", *more, str(program),
    ]  # fmt: skip
    variables = {"REJOINDER_URL": url, "REJOINDER_KEY": KEY}
    done = run(command, variables, cwd=folder, timeout=300)
    assert report.exists(), done.stdout + done.stderr
    return [case for case in read_junit(report.read_text(encoding="utf-8")) if case.group]


def failures(cases: list[Case]) -> str:
    return "\n".join(f"{c.name}\n{c.text}" for c in cases if c.outcome == "failed")


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    installed("langchain")
    folder = tmp_path_factory.mktemp("langchain")
    with serving(SCRIPT, folder) as server:
        return standard_tests(folder, server.url)


@pytest.mark.parametrize("group", GROUPS)
def test_standard_tests(cases: list[Case], group: str) -> None:
    mine = [case for case in cases if case.group.endswith(f".{group}")]
    assert mine, f"nothing ran of {group}"
    assert not failures(mine), failures(mine)
    left_out = {case.name.partition("[")[0] for case in mine if case.outcome == "skipped"}
    assert left_out == GROUPS[group]


BEYOND_THE_MODEL = ["Unit", "override", "structured_output", "json_mode", "agent_loop", "unicode"]
"""What a model of 135M parameters is not up to: it calls no tool unless it must, and repeats itself
in a free string of JSON until its limit. (And the override's model is not there.)"""


@pytest.mark.llama
def test_standard_tests_with_the_embedded_model(tmp_path: Path) -> None:
    installed("langchain")
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    text = (
        '[[models]]\nid = "m"\nbackend = "llama"\n'
        f'[[keys]]\nkey_sha256 = "{digest}"\naccount = "clients"\n'
    )
    with running_server(config.parse(text)) as server:
        chosen = "TestChatOpenAI and not " + " and not ".join(BEYOND_THE_MODEL)
        cases = standard_tests(tmp_path, server.url, "-k", chosen)
    assert not failures(cases), failures(cases)
    assert sum(case.outcome == "passed" for case in cases) >= 25
