"""Writes README's file tree from the modules' own first lines: `python -m tests.file_tree`."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
PATH = ROOT / "README.md"
BEGIN = "<!-- generated: python -m tests.file_tree -->\n"
END = "<!-- end -->\n"

OTHERS = {
    "scripts/": "what people and continuous integration both call: `environment`, `serve`, `test`",
    "tests/": "mirrors the package; `golden/` recorded streams",
    "benchmarks/": "one script a question",
    "docs/": "listed above; `decisions/` why things are as they are",
    "examples/": "compose and Kubernetes files, tests of an application",
}


def first_line(path: Path) -> str:
    """What a module says of itself, up to its first full stop or line end."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0].rstrip(".")


def _order(path: Path) -> tuple[str, str]:
    """Folder by folder, each with its own description first."""
    return str(path.parent), "" if path.name == "__init__.py" else path.name


def lines() -> list[str]:
    """One line a file of the package, folders first named by themselves."""
    package = ROOT / "rejoinder"
    found = ["| file | |", "|---|---|"]
    for path in sorted(package.rglob("*.py"), key=_order):
        relative = path.relative_to(package)
        said = first_line(path)
        if path.name == "__init__.py":
            name = str(relative.parent) + "/" if relative.parent.parts else "rejoinder/"
            found.append(f"| **`{name}`** | {said} |")
        elif "versions" not in relative.parts:
            found.append(f"| `{relative}` | {said} |")
    found.append(
        "| `web/playground/` | The page and the dashboard: HTML, CSS, JavaScript modules |"
    )
    found += [f"| **`{name}`** | {said} |" for name, said in OTHERS.items()]
    return found


def current() -> str:
    """The README as it should be."""
    text = PATH.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    tree = "\n".join(lines())
    return f"{before}{BEGIN}\n{tree}\n\n{END}{after}"


if __name__ == "__main__":
    PATH.write_text(current(), encoding="utf-8")
