"""What docs/clients.md shows is run as it stands, but for the address, the key and the model."""

import re
from pathlib import Path

import pytest

from rejoinder.testing import TestServer
from tests.clients.programs import installed, need_environment, run
from tests.clients.servers import KEY

need_environment()

pytestmark = pytest.mark.clients

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "clients.md"


def snippets(language: str) -> list[str]:
    text = DOCUMENT.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def told(snippet: str, server: TestServer) -> str:
    """The snippet for this server."""
    here = snippet.replace("http://127.0.0.1:8000", server.url)
    here = re.sub(r"\bdefault\b(?!_)", "m", here)
    return here.replace('"none"', f'"{KEY}"')


@pytest.mark.parametrize("snippet", snippets("js"))
def test_javascript(server: TestServer, snippet: str) -> None:
    folder = installed("openai-6" if 'from "openai"' in snippet else "ai-6")
    program = folder / "documented.mjs"
    program.write_text(told(snippet, server), encoding="utf-8")
    done = run(["node", program.name], {}, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "Hello there. Bye" in done.stdout


@pytest.mark.parametrize("snippet", snippets("python"))
def test_python(server: TestServer, snippet: str, tmp_path: Path) -> None:
    python = installed("langchain") / "bin" / "python"
    done = run([str(python), "-c", told(snippet, server)], {}, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Hello there. Bye\n"


def test_the_llm_command(server: TestServer, tmp_path: Path) -> None:
    folder = installed("llm") / "bin"
    (models,) = snippets("yaml")
    models = told(models, server) + "  api_key_name: rejoinder\n"
    (tmp_path / "extra-openai-models.yaml").write_text(models, encoding="utf-8")
    (tmp_path / "keys.json").write_text(f'{{"rejoinder": "{KEY}"}}', encoding="utf-8")
    (script,) = snippets("sh")
    path = f"{folder}:/usr/bin:/bin"
    done = run(["sh", "-e", "-c", script], {"PATH": path, "LLM_USER_PATH": str(tmp_path)},
               cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "Hello there. Bye",
        "Hello there. Bye",
        '{"name": "Ada", "age": 36}',
        "It is 12 degrees in Oslo.",
    ]
