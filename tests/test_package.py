"""The wheel and the sdist, built and installed into an empty environment."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import rejoinder

ROOT = Path(__file__).parent.parent
UV = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")

pytestmark = pytest.mark.skipif(UV is None, reason="uv is not installed")


def uv(*arguments: str | Path, cwd: Path = ROOT) -> str:
    done = subprocess.run(
        [str(UV), *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    uv("build", "--quiet", "--out-dir", folder)
    return folder


def test_the_wheel_holds_the_page_and_the_migrations(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    assert wheel.name == f"rejoinder-{rejoinder.__version__}-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    for name in (
        "rejoinder/py.typed",
        "rejoinder/web/playground/index.html",
        "rejoinder/web/playground/main.js",
        "rejoinder/service/migrations/env.py",
        "rejoinder/check/schemas/openai_chunk.json",
    ):
        assert name in names, name
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith("tests/") for name in names)


def test_the_sdist_holds_what_a_build_needs(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "rejoinder/cli.py", "scripts/serve"} <= names


def test_it_works_in_an_empty_environment(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    uv("venv", "--quiet", tmp_path / "env")
    python = tmp_path / "env" / "bin" / "python"
    uv("pip", "install", "--quiet", "--python", python, wheel)
    size = sum(f.stat().st_size for f in (tmp_path / "env").rglob("*") if f.is_file())
    assert size < 80e6, f"{size / 1e6:.0f} MB"
    command = [str(python), "-m", "rejoinder"]
    shown = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60)
    assert shown.stdout.strip() == rejoinder.__version__
    script = tmp_path / "s.jsonl"
    script.write_text('{"pieces": ["a"]}\n')
    test = (
        "from rejoinder.testing import scripted_server\n"
        "import urllib.request, json\n"
        'with scripted_server([{"pieces": ["it ", "works"]}]) as s:\n'
        '    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "?"}]})\n'
        '    ask = urllib.request.Request(s.url + "/v1/chat/completions", body.encode())\n'
        '    print(json.load(urllib.request.urlopen(ask))["choices"][0]["message"]["content"])\n'
        '    assert b"<html" in urllib.request.urlopen(s.url + "/").read()\n'
    )
    done = subprocess.run(
        [str(python), "-c", test], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert done.stdout == "it works\n", done.stderr
    serve = subprocess.run(
        [*command, "serve", "--port", "0"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert serve.returncode == 1 and "rejoinder[llama]" in serve.stderr, serve.stderr
