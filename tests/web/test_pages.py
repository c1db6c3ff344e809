"""The pages: their headers, their sizes, and that nothing but they can be had."""

import gzip
import hashlib
import re
from collections.abc import Iterator
from importlib.resources import files

import pytest

from rejoinder.testing import TestServer, scripted_server
from rejoinder.web.pages import CONTENT_TYPES
from tests.web.wire import request

FOLDER = files("rejoinder.web") / "playground"
NAMES = sorted(file.name for file in FOLDER.iterdir())
PAGES = {"/": "index.html", "/dashboard": "dashboard.html"}
MAX_SENT = 150_000
"""What the whole page may weigh on its way to the browser."""


def source(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def server() -> Iterator[TestServer]:
    with scripted_server([{"pieces": ["Hello"]}]) as server:
        yield server


@pytest.fixture(scope="module")
def locked() -> Iterator[TestServer]:
    """A server with keys: the pages are for everybody all the same, their data is not."""
    toml = "".join(
        f'[[keys]]\nkey_sha256 = "{hashlib.sha256(key).hexdigest()}"\n'
        f'account = "{key.decode()}"\nadmin = {admin}\n'
        for key, admin in ((b"boss", "true"), (b"guest", "false"))
    )
    with scripted_server([{"pieces": ["Hello"]}], toml=toml) as server:
        yield server


def test_every_file_has_a_type() -> None:
    assert {name.rpartition(".")[2] for name in NAMES} <= set(CONTENT_TYPES)


@pytest.mark.parametrize("path", [*PAGES, *(f"/playground/{name}" for name in NAMES)])
def test_each_is_served_with_its_headers(server: TestServer, path: str) -> None:
    name = PAGES.get(path, path.rpartition("/")[2])
    answer = request(server.port, "GET", path)
    assert answer.status == 200
    assert answer.body == (FOLDER / name).read_bytes()
    assert answer.headers["content-type"] == CONTENT_TYPES[name.rpartition(".")[2]]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-request-id"].startswith("req_")


def test_the_policy_allows_this_server_only(server: TestServer) -> None:
    header = request(server.port, "GET", "/").headers["content-security-policy"]
    policy = dict(part.strip().split(" ", 1) for part in header.split(";"))
    assert policy["default-src"] == "'none'"
    for kind in ("script-src", "style-src", "connect-src"):
        assert policy[kind] == "'self'"
    assert policy["img-src"] == "'self' data:"
    for kind in ("frame-ancestors", "base-uri", "form-action"):
        assert policy[kind] == "'none'"
    assert "unsafe" not in header and "*" not in header and "http" not in header
    assert policy["require-trusted-types-for"] == "'script'"


def test_a_known_page_is_not_sent_again(server: TestServer) -> None:
    tag = request(server.port, "GET", "/").headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}'):
        answer = request(server.port, "GET", "/", headers={"If-None-Match": known})
        assert (answer.status, answer.body) == (304, b"")
        assert answer.headers["etag"] == tag
    answer = request(server.port, "GET", "/", headers={"If-None-Match": '"other"'})
    assert answer.status == 200


def test_compressed_where_the_browser_can(server: TestServer) -> None:
    for accepted, coded in (
        ("gzip, br", True),
        ("gzip;q=0.5", True),
        ("gzip;q=0", False),
        ("br", False),
        ("", False),
    ):
        answer = request(server.port, "GET", "/", headers={"Accept-Encoding": accepted})
        assert ("content-encoding" in answer.headers) == coded, accepted
        body = gzip.decompress(answer.body) if coded else answer.body
        assert body == (FOLDER / "index.html").read_bytes()
        assert answer.headers["vary"] == "accept-encoding"


@pytest.mark.parametrize(
    "path",
    [
        "/playground/../pages.py",
        "/playground/..%2fpages.py",
        "/playground/%2e%2e%2fpages.py",
        "/playground/..%5cpages.py",
        "/playground/%2e%2e",
        "/playground/",
        "/playground",
        "/playground//main.js",
        "/playground/main.js/",
        "/playground/main.js%00.html",
        "/playground/%2fetc%2fpasswd",
        "/playground/__init__.py",
        "/playground/" + "a" * 5000,
        "//dashboard",
        "/index.html",
        "/dashboard/",
        "/dashboard/data/",
    ],
)
def test_nothing_else_is_served(server: TestServer, path: str) -> None:
    answer = request(server.port, "GET", path)
    assert answer.status == 404
    assert answer.json["error"]["code"] == "unknown_url"
    assert b"import" not in answer.body


@pytest.mark.parametrize("path", ["/", "/dashboard", "/dashboard/data", "/playground/main.js"])
def test_pages_are_only_read(server: TestServer, path: str) -> None:
    for method in ("POST", "PUT", "DELETE"):
        assert request(server.port, method, path, b"{}").status == 405


def test_pages_are_open_and_their_data_is_not(locked: TestServer) -> None:
    for path in ("/", "/dashboard", "/playground/main.js"):
        assert request(locked.port, "GET", path).status == 200
    assert request(locked.port, "GET", "/dashboard/data").status == 401
    headers = {"Authorization": "Bearer guest"}
    refused = request(locked.port, "GET", "/dashboard/data", headers=headers)
    assert (refused.status, refused.json["error"]["code"]) == (403, "admin_key_required")
    headers = {"Authorization": "Bearer boss"}
    answer = request(locked.port, "GET", "/dashboard/data", headers=headers)
    assert answer.status == 200
    assert answer.headers["cache-control"] == "no-store"


def test_the_data_needs_no_key_where_there_is_none(server: TestServer) -> None:
    data = request(server.port, "GET", "/dashboard/data").json
    assert data["window_seconds"] == 900
    lengths = {len(data["ended_at"])} | {len(one) for one in data["tokens_per_second"].values()}
    assert len(lengths) == 1


# ---------------------------------------------------------------- what the files say


def loaded_by(page: str) -> set[str]:
    """Everything that a page loads: its own links, and what its modules import."""
    found = {page}
    waiting = [page]
    while waiting:
        text = source(waiting.pop())
        links = re.findall(r'(?:href|src)="playground/([^"]+)"', text)
        imports = re.findall(r'from "\./([^"]+)"', text)
        new = {*links, *imports} - found
        found |= new
        waiting += new
    return found


@pytest.mark.parametrize("page", PAGES.values())
def test_all_that_a_page_loads_is_small(server: TestServer, page: str) -> None:
    names = loaded_by(page)
    accepted = {"Accept-Encoding": "gzip"}
    bodies = [
        request(server.port, "GET", f"/playground/{name}", headers=accepted).body for name in names
    ]
    assert sum(map(len, bodies)) < MAX_SENT / 2
    assert "main.js" in names or "dashboard.js" in names


def test_no_file_is_left_over() -> None:
    assert loaded_by("index.html") | loaded_by("dashboard.html") == set(NAMES)


@pytest.mark.parametrize("page", PAGES.values())
def test_modules_are_asked_for_at_once(page: str) -> None:
    """Otherwise the browser finds them one after the other."""
    text = source(page)
    for name in loaded_by(page):
        if name.endswith(".js"):
            assert f'"playground/{name}"' in text, name


@pytest.mark.parametrize("name", NAMES)
def test_nothing_inline_and_nothing_from_elsewhere(name: str) -> None:
    text = source(name)
    addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+", text)) - {"http://www.w3.org"}
    assert not addresses
    if name.endswith(".html"):
        assert not re.search(r"<script(?![^>]*\bsrc=)", text)
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", text)
    if name.endswith(".js"):
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", text)
        assert not re.search(r"\beval\(|new Function|setAttribute\(\"style\"", text)
    if name.endswith(".css"):
        assert "@import" not in text and "url(" not in text


def test_ids_are_unique_and_labels_lead_somewhere() -> None:
    for page in PAGES.values():
        text = source(page)
        ids = re.findall(r'\bid="([^"]+)"', text)
        assert len(ids) == len(set(ids))
        for target in re.findall(r'\b(?:for|aria-controls|aria-labelledby)="([^"]+)"', text):
            assert target in ids
