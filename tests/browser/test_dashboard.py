"""The dashboard: what it draws of real requests, and who may see it."""

import hashlib
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rejoinder.testing import TestServer, running_server
from tests.browser.conftest import OpenPage, config_of, shot, until
from tests.web import wire

KEYS = f"""
[[keys]]
key_sha256 = "{hashlib.sha256(b"sk-admin").hexdigest()}"
account = "operators"
admin = true
[[keys]]
key_sha256 = "{hashlib.sha256(b"sk-user").hexdigest()}"
account = "team-a"
"""


BOXES = """[...document.querySelectorAll('.chart path')].map((one) => {
  const { x, y, width, height } = one.getBBox();
  return { x, y, width, height };
})"""


def talk(server: TestServer, text: str, key: str | None = None, **more: object) -> int:
    body = {"model": "scripted", "messages": [{"role": "user", "content": text}], **more}
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    path = "/v1/chat/completions"
    return wire.request(server.port, "POST", path, body, headers).status


def keep_busy(server: TestServer, *, seconds: float) -> None:
    """Requests of all kinds for a while: what a picture for the documents shows."""
    until = time.monotonic() + seconds
    talks = (("haiku", "default"), ("long", "flex"), ("Hello", "priority"), ("break", "default"))
    with ThreadPoolExecutor(4) as pool:
        while time.monotonic() < until:
            for text, tier in random.choices(talks, weights=(6, 1, 3, 0.3), k=4):
                pool.submit(talk, server, text, service_tier=tier, logprobs=False)
            time.sleep(random.uniform(0.2, 1.5))


def test_what_happened_is_drawn(open_page: OpenPage, server: TestServer) -> None:
    for text in ("Hello", "haiku", "think", "break", "haiku"):
        talk(server, text)
    page = open_page("/dashboard")
    if os.environ.get("REJOINDER_SCREENSHOTS"):
        keep_busy(server, seconds=75)
    errors = "document.querySelector('[aria-label^=Errors]').innerText"
    until(page, f"{errors}.includes('EngineFailed')", seconds=20)
    tokens = page.locator("section[aria-label='Tokens per second']")
    assert "completion" in tokens.inner_text()
    assert tokens.locator("svg path").count() >= 2
    requests = page.locator("section[aria-label^='Requests']").inner_text()
    assert "ok" in requests and "error" in requests
    assert "local" in page.inner_text("section[aria-label='Cost by account']")
    for box in page.evaluate(BOXES):
        assert box["y"] >= -1 and box["y"] + box["height"] <= 131
        assert box["x"] >= -1 and box["x"] + box["width"] <= 601
    shot(page, "dashboard")


def test_only_admins_see_it(open_page: OpenPage, tmp_path: Path) -> None:
    with running_server(config_of(tmp_path, KEYS)) as server:
        assert talk(server, "haiku", "sk-user") == 200
        page = open_page("/dashboard", url=server.url)
        page.watched.allowed = ("status of 401", "status of 403")
        page.wait_for_selector("#key-form:not([hidden])")
        page.fill("#key", "sk-user")
        page.press("#key", "Enter")
        until(page, "document.querySelector('#key-reason').textContent.includes('admin key')")
        page.fill("#key", "sk-admin")
        page.press("#key", "Enter")
        until(page, "document.querySelector('#charts').innerText.includes('team-a')")
        assert not page.is_visible("#key-form")
