"""Imports go one way: types, errors ← events ← {dialects | text | engines} ← backends ← service
← web ← app ← cli. `check` uses only dialects and events; some libraries have one home."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "rejoinder"

CORE = {"types", "errors", "config"}
ALLOWED: dict[str, set[str]] = {
    "types": set(),
    "errors": set(),
    "config": {"types"},
    "events": {"types", "errors"},
    "dialects": {"types", "errors", "events"},
    "text": {"types", "errors", "events"},
    "engines": {"types", "errors", "events"},
    "backends": {*CORE, "events", "dialects", "text", "engines"},
    "service": {*CORE, "events", "dialects", "backends"},
    "web": {*CORE, "events", "dialects", "service", "backends"},
    "check": {"types", "errors", "events", "dialects"},
}
ANYTHING = {
    *("app", "cli", "__main__", "__init__", "testing", "testing_plugin", "serving", "terminal"),
    *("building", "checking", "admin", "workers"),
}

HOMES = {
    "llama_cpp": ("engines/llama/model.py", "engines/llama/weights.py"),
    "starlette": ("web/", "app.py"),
    "uvicorn": ("web/", "app.py"),
    "aiohttp": (
        "engines/connections.py",
        "engines/http.py",
        "backends/remote.py",
        "service/moderation/",
        "check/",
        "cli.py",
    ),
    "sqlalchemy": ("service/",),
    "alembic": ("service/",),
}

FILES = sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    relative = path.relative_to(PACKAGE)
    part = relative.parts[0].removesuffix(".py")
    if part in ANYTHING:
        return
    ours = {name.split(".")[1] for name in imports(path) if name.startswith("rejoinder.")}
    wrong = {name for name in ours if name in ALLOWED or name in ANYTHING}
    wrong -= ALLOWED[part] | {part, "__init__"}
    assert not wrong, f"{relative} imports {sorted(wrong)}"


@pytest.mark.parametrize("library", HOMES)
def test_libraries_have_one_home(library: str) -> None:
    for path in FILES:
        relative = str(path.relative_to(PACKAGE))
        if any(name.split(".")[0] == library for name in imports(path)):
            assert relative.startswith(HOMES[library]), f"{relative} imports {library}"
