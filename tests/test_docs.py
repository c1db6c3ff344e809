"""The documents say what the code does: every key, flag, metric and error code is in them."""

import re
from pathlib import Path
from typing import get_type_hints

import pytest
import typer.main

from rejoinder import config, errors
from rejoinder.cli import app
from rejoinder.web.metrics import Metrics
from tests import fields_table, file_tree

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def read(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


CONFIGS = [
    config.ServerConfig,
    config.PricingConfig,
    config.LlamaConfig,
    config.ScriptedConfig,
    config.RemoteConfig,
    config.VllmConfig,
    config.SglangConfig,
    config.FallbackConfig,
    config.KeyConfig,
    config.StoreConfig,
    config.LimitsConfig,
    config.ModerationConfig,
]


@pytest.mark.parametrize("struct", CONFIGS, ids=lambda s: s.__name__)
def test_every_config_key_is_documented(struct: type) -> None:
    text = read("configuration.md")
    for key in get_type_hints(struct):
        if not key.startswith("__"):
            assert re.search(rf"`(\w+\.)?{key}`", text), key


def test_every_flag_is_documented() -> None:
    text = read("configuration.md")
    command = typer.main.get_command(app)

    def flags(node: object) -> set[str]:
        found = {
            flag
            for parameter in getattr(node, "params", [])
            for flag in getattr(parameter, "opts", [])
            if flag.startswith("--")
        }
        for child in getattr(node, "commands", {}).values():
            found |= flags(child)
        return found

    for flag in flags(command) - {"--help", "--version"}:
        assert f"`{flag}`" in text, flag


def test_every_metric_is_documented() -> None:
    text = read("metrics.md")
    for family in Metrics(dict).families():
        assert f"`{family}`" in text, family


def test_every_error_class_is_documented() -> None:
    text = read("api.md")
    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, errors.ChatError):
            assert f"`{value.__name__}`" in text, value.__name__
            if value.default_code is not None:
                assert f"`{value.default_code}`" in text, value.default_code


def test_the_table_of_fields_is_current() -> None:
    assert fields_table.PATH.read_text(encoding="utf-8") == fields_table.current()


def test_the_file_tree_is_current() -> None:
    assert file_tree.PATH.read_text(encoding="utf-8") == file_tree.current()


LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize(
    "path", [*ROOT.glob("*.md"), *DOCS.rglob("*.md")], ids=lambda p: str(p.relative_to(ROOT))
)
def test_links_lead_somewhere(path: Path) -> None:
    for target in LINK.findall(path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target


def test_the_tree_in_the_architecture_names_every_module() -> None:
    text = read("architecture.md")
    for path in (ROOT / "rejoinder").iterdir():
        if path.suffix == ".py" and not path.name.startswith("__"):
            assert f"`{path.name}`" in text or path.stem in text, path.name
