"""A real Chromium, a real server with a scripted model, and nothing else on the network."""

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rejoinder import config as configuration
from rejoinder.testing import TestServer, running_server

playwright_api = pytest.importorskip("playwright.sync_api")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SCREENSHOTS = Path(__file__).parent.parent.parent / "docs" / "screenshots"
PHONE = {"width": 390, "height": 844}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.browser)
            if CHROMIUM is None:
                item.add_marker(pytest.mark.skip(reason="Chromium is not installed"))


def spoken(text: str) -> list[str]:
    """A text as tokens: words with the blank before them, line breaks alone."""
    pieces: list[str] = []
    for line in text.split("\n"):
        words = line.split(" ")
        pieces += [word if place == 0 else " " + word for place, word in enumerate(words) if word]
        pieces.append("\n")
    return pieces[:-1]


def with_logprobs(pieces: list[str]) -> dict[str, Any]:
    """Pieces with probabilities that fall and rise, each with five alternatives."""
    logprobs = []
    for place, piece in enumerate(pieces):
        likely = [-0.02, -0.2, -0.9, -1.6, -0.05, -2.7][place % 6]
        rest = 1 - math.exp(likely)
        shares = [(" the", 0.4), (" a", 0.25), (" one", 0.15), (" ☂", 0.05)]
        others = [(text, math.log(rest * share)) for text, share in shares]
        top = sorted([(piece, likely), *others], key=lambda one: -one[1])
        rank = [text for text, _ in top].index(piece) + 1
        logprobs.append({"logprob": likely, "rank": rank, "top": top})
    return {"pieces": pieces, "logprobs": logprobs}


HAIKU = "Rain on the tin roof,\nevery drop a small answer\nto what no one asked."
LONG = [" word" if place % 13 else ".\n" for place in range(2000)]

SCRIPT: list[dict[str, Any]] = [
    {"when": {"contains": "light rain"}, "pieces": spoken("It is 4 degrees in Oslo, with rain.")},
    {
        "when": {"contains": "weather in Oslo"},
        "pieces": [
            "<tool_call>",
            '{"name": "get_weather", ',
            '"arguments": {"city": ',
            '"Oslo"}}',
            "</tool_call>",
        ],
    },
    {"when": {"contains": "haiku"}, **with_logprobs(spoken(HAIKU)), "delay_ms": 12},
    {"when": {"contains": "slow"}, "pieces": ["tick "] * 400, "delay_ms": 25},
    {"when": {"contains": "long"}, **with_logprobs(LONG)},
    {"when": {"contains": "refuse"}, "pieces": spoken("I cannot help with that."), "refusal": True},
    {
        "when": {"contains": "break"},
        "pieces": ["Half an", " answer", " and"],
        "fault": {"after": 2, "kind": "engine_error"},
    },
    {
        "when": {"contains": "person"},
        "pieces": ['{"name": ', '"Ada", ', '"age": 36', ', "languages": ["en", "fr"]}'],
    },
    {
        "when": {"contains": "think"},
        "pieces": ["<think>", *spoken("First I look at it. Then I answer."), "</think>", "Done."],
    },
    {"when": {"contains": "markup"}, "pieces": ["<img src=x ", "onerror=alert(1)>", "<b>bold</b>"]},
    {"pieces": spoken("Hello. I am a scripted model, and I always say this.")},
]


def config_of(folder: Path, extra: str = "") -> configuration.Config:
    script = folder / "script.jsonl"
    script.write_text("".join(json.dumps(line) + "\n" for line in SCRIPT), encoding="utf-8")
    return configuration.parse(
        f"""
        [[models]]
        id = "scripted"
        backend = "scripted"
        script = "{script}"
        description = "Answers from a script, the same way each time."
        tool_format = "hermes"
        reasoning_format = "deepseek_r1"
        context_length = 131072
        [models.pricing]
        input_tokens = 0.5
        output_tokens = 1.5
        {extra}
        """
    )


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestServer]:
    with running_server(config_of(tmp_path_factory.mktemp("scripts"))) as server:
        yield server


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """Until the package's last test: afterwards other tests have their own event loops."""
    with playwright_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


class Watched:
    """What must not happen while a page is open: console errors, requests to other hosts."""

    def __init__(self, page: Any, url: str) -> None:
        self.faults: list[str] = []
        self.allowed: tuple[str, ...] = ()
        self.sent: list[str] = []
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", self._console)
        page.on("request", lambda request: self.sent.append(request.url))
        self._url = url

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(message.text)

    def check(self) -> None:
        faults = [f for f in self.faults if not any(text in f for text in self.allowed)]
        assert not faults
        foreign = [u for u in self.sent if not u.startswith((self._url + "/", "data:"))]
        assert not foreign


OpenPage = Callable[..., Any]


@pytest.fixture
def open_page(browser: Any, server: TestServer) -> Iterator[OpenPage]:
    """`open_page(path="/", url=…, **context)` → a page that is watched until the test ends."""
    opened = []

    def open_one(path: str = "/", *, url: str = server.url, **context: Any) -> Any:
        size = context.pop("viewport", {"width": 1440, "height": 900})
        one = browser.new_context(viewport=size, **context)
        page = one.new_page()
        page.set_default_timeout(15_000)
        watched = Watched(page, url)
        page.watched = watched
        opened.append((one, watched))
        page.goto(url + path)
        return page

    yield open_one
    for context, watched in opened:
        context.close()
        watched.check()


def shot(page: Any, name: str) -> None:
    """A picture for the documents, where it is asked for."""
    if os.environ.get("REJOINDER_SCREENSHOTS"):
        SCREENSHOTS.mkdir(exist_ok=True)
        page.screenshot(path=SCREENSHOTS / f"{name}.png")


def ask(page: Any, text: str) -> None:
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def answered(page: Any) -> None:
    page.wait_for_selector("#send:not([hidden])")
    page.wait_for_selector(".turn.assistant:last-of-type .turn-actions")


def inspect(page: Any, view: str) -> None:
    """Opens a view of the answer, and waits until it is painted."""
    page.click(f"#tab-{view}")
    page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 20)))")


def until(page: Any, expression: str, *, seconds: float = 15) -> None:
    """Waits for an expression to be true. (Playwright's own way needs `unsafe-eval`.)"""
    for _ in range(int(seconds / 0.02)):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(20)
    raise AssertionError(f"never true: {expression}")


def choose_dialect(page: Any, name: str) -> None:
    page.check(f'input[name="dialect"][value="{name}"]', force=True)


def set_parameter(page: Any, name: str, value: str) -> None:
    page.evaluate("() => document.querySelectorAll('.group').forEach((one) => (one.open = true))")
    page.fill(f"#p-{name}", value)
