"""axe-core finds no serious fault, in light and in dark, empty and full."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import PHONE, OpenPage, answered, ask, inspect

AXE = "axe-core@4.10.3"


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The checker's source, from npm; the tests are skipped where that is not to be had."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    folder = tmp_path_factory.mktemp("axe")
    command = [npm, "install", "--no-save", "--ignore-scripts", "--no-audit", "--no-fund", AXE]
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=120, check=False)
    source: Path = folder / "node_modules" / "axe-core" / "axe.min.js"
    if done.returncode or not source.exists():
        pytest.skip("axe-core could not be installed")
    return source.read_text(encoding="utf-8")


def faults(page: Any, axe: str) -> list[str]:
    page.evaluate(axe)
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
    return [
        f"{one['id']} ({one['impact']}): {[node['target'] for node in one['nodes'][:3]]}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_playground(open_page: OpenPage, axe: str, scheme: str) -> None:
    page = open_page(color_scheme=scheme)
    page.wait_for_selector("#p-model option", state="attached")
    assert not faults(page, axe)
    page.evaluate("() => document.querySelectorAll('.group').forEach((one) => (one.open = true))")
    page.click("#tools-example")
    page.fill("#p-n", "2")
    page.press("#prompt", "Enter")
    answered(page)
    assert not faults(page, axe)
    page.fill("#p-tools", "")
    page.click("#new-chat")
    ask(page, "Write a haiku about rain.")
    answered(page)
    page.click(".tokens [role=option]")
    assert not faults(page, axe)
    inspect(page, "stream")
    page.click(".frame")
    assert not faults(page, axe)
    inspect(page, "code")
    page.click("#tab-history")
    assert not faults(page, axe)
    page.click("#key-button")
    assert not faults(page, axe)


def test_an_error(open_page: OpenPage, axe: str) -> None:
    page = open_page(color_scheme="dark")
    page.watched.allowed = ("status of 400",)
    page.evaluate("() => document.querySelectorAll('.group').forEach((one) => (one.open = true))")
    page.fill("#p-metadata", '{"topic": 5}')
    ask(page, "Hello")
    page.wait_for_selector(".error")
    assert not faults(page, axe)


def test_on_a_phone(open_page: OpenPage, axe: str) -> None:
    page = open_page(viewport=PHONE, is_mobile=True, has_touch=True)
    ask(page, "Write a haiku about rain.")
    answered(page)
    for view in ("settings", "chat", "inspect"):
        page.click(f".views [data-view={view}]")
        assert not faults(page, axe)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_dashboard(open_page: OpenPage, axe: str, scheme: str) -> None:
    page = open_page("/dashboard", color_scheme=scheme)
    page.wait_for_selector("#charts .card header")
    assert not faults(page, axe)
