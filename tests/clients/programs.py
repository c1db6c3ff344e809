"""Runs programs in the clients' own environment and reads what became of each of their cases.

The programs know only a URL and a key. It must not know: what the clients are.
"""

import os
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

HERE = Path(__file__).parent
VARIABLE = "REJOINDER_CLIENTS"

Outcome = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class Case:
    """One test of a program; `text` is what it said when it did not pass."""

    name: str
    group: str
    outcome: Outcome
    text: str


def need_environment() -> None:
    """Skips the whole test module where nobody has asked for clients."""
    if VARIABLE not in os.environ:
        pytest.skip("`scripts/test clients` installs the clients", allow_module_level=True)


def installed(client: str) -> Path:
    """The folder of a client; skips the test where it is not installed."""
    folder = Path(os.environ[VARIABLE]) / client
    if not (folder / ".installed").is_file():
        pytest.skip(f"`scripts/test clients {client}` installs this client")
    return folder


def run(
    command: list[str], variables: Mapping[str, str], *, cwd: Path, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end; the outcome is in the result, never an exception."""
    inherited = {key: os.environ[key] for key in ("PATH", "LANG", "TMPDIR") if key in os.environ}
    return subprocess.run(
        command,
        env={**inherited, "HOME": str(cwd), **variables},
        cwd=cwd,
        timeout=timeout,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


def node_cases(program: str) -> list[str]:
    """The names of a Node program's cases, read from its text."""
    text = (HERE / program).read_text(encoding="utf-8")
    names = re.findall(r'^test\("(.+?)"', text, flags=re.MULTILINE)
    assert names, f"{program} has no cases"
    return names


def run_node(program: str, client: Path, variables: Mapping[str, str]) -> dict[str, Case]:
    """Runs a Node program beside its client's `node_modules`; its cases by name."""
    copy = client / program
    shutil.copyfile(HERE / program, copy)
    command = ["node", "--test-reporter=junit", copy.name]
    done = run(command, variables, cwd=client)
    return {case.name: case for case in read_junit(done.stdout, done.stderr)}


def read_junit(xml: str, errors: str = "") -> list[Case]:
    """The cases of a JUnit report; fails the test where there is none."""
    try:
        root = ElementTree.fromstring(xml[xml.index("<") :])
    except (ValueError, ElementTree.ParseError):
        pytest.fail(f"the program gave no report:\n{xml}\n{errors}")
    return [_case(element) for element in root.iter() if element.tag in ("testcase", "testsuite")]


def _case(element: ElementTree.Element) -> Case:
    """A case; one made of several fails with any of them."""
    outcome: Outcome = "passed"
    text = ""
    for found in element.iter():
        if found.tag in ("failure", "error"):
            outcome = "failed"
        elif found.tag == "skipped" and element.tag == "testcase":
            outcome = "skipped"
        else:
            continue
        text += found.text or found.get("message") or ""
    return Case(element.get("name", ""), element.get("classname", ""), outcome, text)
