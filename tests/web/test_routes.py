"""The other routes, authentication and hostile HTTP, over real sockets."""

import gzip
import hashlib
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rejoinder.errors import InvalidRequest
from rejoinder.testing import TestServer, scripted_server
from rejoinder.web.requests import _gunzip
from tests.web import wire
from tests.web.wire import PATHS, chat, request

KEY = "sk-test"
MAX_BODY = 100_000

TOML = f"""
aliases = ["alias"]
[models.pricing]
input_tokens = 1.0
output_tokens = 2.0
[server]
max_body_bytes = {MAX_BODY}
[[keys]]
key_sha256 = "{hashlib.sha256(KEY.encode()).hexdigest()}"
account = "team"
requests_per_minute = 100000
tokens_per_minute = 100000000
[[keys]]
key_sha256 = "{hashlib.sha256(b"poor").hexdigest()}"
account = "poor"
budget_usd = 0.0
[[keys]]
key_sha256 = "{hashlib.sha256(b"hasty").hexdigest()}"
account = "hasty"
requests_per_minute = 1
[[keys]]
key_sha256 = "{hashlib.sha256(b"narrow").hexdigest()}"
account = "narrow"
models = ["other"]
tiers = ["default"]
"""


def bearer(key: str = KEY) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def server() -> Iterator[TestServer]:
    with scripted_server([{"pieces": ["Hello", " there", "."]}], toml=TOML) as server:
        yield server


# ---------------------------------------------------------------- who asks


@pytest.mark.parametrize("dialect", PATHS)
@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Basic c2s=",
        "sk-test",
        "Bearer sk-test extra",
        "Bearer SK-TEST",
        "Bearer \xff",
    ],
)
def test_a_wrong_key_is_401(server: TestServer, dialect: str, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header}
    answer = chat(server.port, dialect, headers)
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json["error"]["message"]
    if dialect == "openai":
        assert answer.json["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("header", ["bearer sk-test", "BEARER sk-test", "Bearer  sk-test "])
def test_the_scheme_is_case_insensitive(server: TestServer, header: str) -> None:
    assert chat(server.port, headers={"Authorization": header}).status == 200


def test_deepinfras_own_header_is_a_key_too(server: TestServer) -> None:
    assert chat(server.port, "deepinfra", {"xi-api-key": KEY}).status == 200


@pytest.mark.parametrize(
    ("account", "shown"),
    [("team a/b@c", "team a/b@c"), ("Ä", "%C3%84"), ("a\r\nX-Evil: 1", "a%0D%0AX-Evil: 1")],
)
def test_accounts_of_any_name(account: str, shown: str) -> None:
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    toml = f"[[keys]]\nkey_sha256 = {json.dumps(digest)}\naccount = {json.dumps(account)}"
    with scripted_server([{"pieces": ["a"]}], toml=toml) as server:
        for stream in (False, True):
            answer = chat(server.port, headers=bearer(), stream=stream)
            assert (answer.status, answer.headers["openai-organization"]) == (200, shown)


def test_a_spent_budget(server: TestServer) -> None:
    openai = chat(server.port, headers=bearer("poor"))
    assert (openai.status, openai.json["error"]["code"]) == (429, "insufficient_quota")
    assert chat(server.port, "deepinfra", bearer("poor")).status == 402


def test_a_rate_limit_says_when_to_come_back(server: TestServer) -> None:
    assert chat(server.port, headers=bearer("hasty")).status == 200
    answer = chat(server.port, headers=bearer("hasty"))
    assert answer.status == 429
    assert answer.json["error"]["code"] == "rate_limit_exceeded"
    assert int(answer.headers["retry-after"]) >= 1


def test_a_key_for_other_models(server: TestServer) -> None:
    assert chat(server.port, headers=bearer("narrow")).status == 403


def test_rate_headers(server: TestServer) -> None:
    headers = chat(server.port, headers=bearer()).headers
    for what in ("limit", "remaining", "reset"):
        for kind in ("requests", "tokens"):
            assert headers[f"x-ratelimit-{what}-{kind}"]
    assert headers["openai-version"] == "2020-10-01"
    assert headers["openai-processing-ms"].isdigit()
    assert headers["openai-organization"] == "team"


def test_every_answer_has_its_own_request_id(server: TestServer) -> None:
    ids = {
        request(server.port, method, path, headers=bearer()).headers["x-request-id"]
        for method, path in [
            ("GET", "/health"), ("GET", "/ready"), ("GET", "/v1/models"), ("GET", "/nowhere"),
            ("DELETE", "/v1/models"), ("POST", PATHS["openai"]), ("GET", "/v1/openai/nowhere"),
        ]
    }  # fmt: skip
    assert len(ids) == 7


# ---------------------------------------------------------------- paths


def test_wrong_path_and_method(server: TestServer) -> None:
    missing = request(server.port, "GET", "/v1/nowhere")
    assert missing.status == 404 and missing.json["error"]["message"]
    wrong = request(server.port, "PUT", PATHS["openai"])
    assert wrong.status == 405 and wrong.json["error"]["message"]


def test_models(server: TestServer) -> None:
    openai = request(server.port, "GET", "/v1/models", headers=bearer()).json
    assert [row["id"] for row in openai["data"]] == ["m", "alias"]
    assert set(openai["data"][0]) == {"id", "object", "created", "owned_by"}
    one = request(server.port, "GET", "/v1/openai/models/m", headers=bearer()).json
    assert "tools" in one["metadata"]["tags"]
    assert one["metadata"]["pricing"]["input_tokens"] == 1.0
    bare = request(server.port, "GET", "/models/m", headers=bearer()).json
    assert bare["metadata"]["tags"] == one["metadata"]["tags"]
    missing = request(server.port, "GET", "/v1/models/org/none", headers=bearer())
    assert (missing.status, missing.json["error"]["code"]) == (404, "model_not_found")


def test_every_listed_model_answers(server: TestServer) -> None:
    for row in request(server.port, "GET", "/v1/models", headers=bearer()).json["data"]:
        assert chat(server.port, headers=bearer(), model=row["id"]).status == 200


def test_unknown_model(server: TestServer) -> None:
    answer = chat(server.port, headers=bearer(), model="nope")
    assert (answer.status, answer.json["error"]["code"]) == (404, "model_not_found")


def test_tokenize_and_back(server: TestServer) -> None:
    body = {"model": "m", "prompt": "Grüße"}
    tokens = request(server.port, "POST", "/tokenize", body, bearer()).json["tokens"]
    text = request(server.port, "POST", "/v1/detokenize", {"tokens": tokens}, bearer()).json
    assert text["prompt"] == "Grüße"
    bad = request(server.port, "POST", "/tokenize", {"prompt": 3}, bearer())
    assert (bad.status, bad.json["error"]["param"]) == (400, "prompt")
    none = request(server.port, "POST", "/detokenize", {"tokens": [10**9]}, bearer())
    assert none.status == 400


def test_embeddings_are_refused_by_name(server: TestServer) -> None:
    for body, param in (({"model": "m", "input": "a"}, "model"), ({"model": "m"}, "input")):
        answer = request(server.port, "POST", "/v1/embeddings", body, bearer())
        assert (answer.status, answer.json["error"]["param"]) == (400, param)


def test_apply_template(server: TestServer) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    answer = request(server.port, "POST", "/apply-template", body, bearer()).json
    assert "hi" in answer["prompt"] and answer["tokens"]


# ---------------------------------------------------------------- bodies


def test_gzip_bodies(server: TestServer) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    raw = gzip.compress(json.dumps(body).encode())
    headers = {**bearer(), "Content-Encoding": "gzip"}
    for path in PATHS.values():
        assert request(server.port, "POST", path, raw, headers).status == 200
    for coding in ("br", "deflate", "zstd"):
        headers = {**bearer(), "Content-Encoding": coding}
        assert request(server.port, "POST", PATHS["openai"], raw, headers).status == 400
    headers = {**bearer(), "Content-Encoding": "gzip"}
    for broken in (raw[:-4], b"plain", raw + b"x"):
        assert request(server.port, "POST", PATHS["openai"], broken, headers).status == 400


def test_gzip_members(server: TestServer) -> None:
    """Several members are one body (RFC 1952, 2.2), as some tools write it."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
    headers = {**bearer(), "Content-Encoding": "gzip"}
    cut = b"".join(gzip.compress(body[i : i + 7]) for i in range(0, len(body), 7))
    assert request(server.port, "POST", PATHS["openai"], cut, headers).status == 200
    # More than one piece of what is decompressed at once, and members that end within one.
    long = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi" * 20}]}).encode()
    for level in (0, 9):
        pieces = (b" " * 40_000, long[:30], long[30:], b" " * 50_000)
        raw = b"".join(gzip.compress(piece, level) for piece in pieces)
        assert request(server.port, "POST", PATHS["openai"], raw, headers).status == 200


def test_gzip_members_without_number_are_no_work() -> None:
    """Each empty member once cost a copy of all that followed it."""
    raw = gzip.compress(b"") * 100_000
    started = time.perf_counter()
    with pytest.raises(InvalidRequest, match="members"):
        _gunzip(raw, MAX_BODY)
    assert time.perf_counter() - started < 0.5


def test_a_small_gzip_body_cannot_become_a_huge_one(server: TestServer) -> None:
    bomb = gzip.compress(b" " * 50_000_000)
    assert len(bomb) < MAX_BODY
    headers = {**bearer(), "Content-Encoding": "gzip"}
    started = time.monotonic()
    assert request(server.port, "POST", PATHS["openai"], bomb, headers).status == 413
    assert time.monotonic() - started < 2


def test_too_large_bodies(server: TestServer) -> None:
    body = b" " * (MAX_BODY + 1)
    assert request(server.port, "POST", PATHS["openai"], body, bearer()).status == 413
    chunked = b"%x\r\n%s\r\n" % (MAX_BODY + 1, body) + b"0\r\n\r\n"
    with wire.connect(server.port) as sock:
        head = wire.head_and_body(
            "POST", PATHS["openai"], None, {**bearer(), "Transfer-Encoding": "chunked"}
        )
        sock.sendall(head + chunked)
        assert wire.read_answer(sock).status == 413


@pytest.mark.parametrize("raw", [b"", b"[]", b"null", b'"x"', b"{", b"\xff\xfe", b"\x00" * 10,
                                 b'{"model":"m"', b"[" * 50_000, b'{"a":' * 20_000])  # fmt: skip
@pytest.mark.parametrize("dialect", PATHS)
def test_bodies_that_are_no_request(server: TestServer, dialect: str, raw: bytes) -> None:
    answer = request(server.port, "POST", PATHS[dialect], raw, bearer())
    assert answer.status in (400, 422)
    assert answer.json["error"]["message"]


def test_hostile_heads_do_not_hurt(server: TestServer) -> None:
    for raw in (
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 5\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\n" + b"x: y\r\n" * 50_000 + b"\r\n",
    ):
        with wire.connect(server.port) as sock:
            sock.settimeout(3)
            try:
                sock.sendall(raw)
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(65536):
                    pass
            except OSError:
                pass
    assert chat(server.port, headers=bearer()).status == 200


def test_log_and_header_injection(server: TestServer) -> None:
    answer = request(
        server.port,
        "POST",
        PATHS["openai"],
        {"model": "m\r\nx-evil: 1", "messages": [{"role": "user", "content": "x"}], "a\r\nb": 1},
        bearer(),
    )
    assert "x-evil" not in answer.headers and answer.status in (400, 404)


# ---------------------------------------------------------------- stored completions


def test_stored_completions(server: TestServer) -> None:
    metadata = {"topic": "birds"}
    made = [
        chat(server.port, headers=bearer(), store=True, metadata=metadata, stream=stream)
        for stream in (False, True)
    ]
    ids = [made[0].json["id"], made[1].chunks[0]["id"]]
    plain = chat(server.port, headers=bearer()).json["id"]
    base = "/v1/chat/completions"

    def get(path: str, key: str = KEY) -> wire.Answer:
        return request(server.port, "GET", base + path, headers=bearer(key))

    one = get(f"/{ids[0]}").json
    assert one["choices"] == made[0].json["choices"] and one["metadata"] == metadata
    assert get(f"/{plain}").status == 404
    assert get(f"/{ids[0]}", "narrow").status == 404, "another account sees nothing"
    listed = get("?metadata[topic]=birds").json
    assert [row["id"] for row in listed["data"]] == ids
    assert (listed["first_id"], listed["last_id"], listed["has_more"]) == (*ids, False)
    page = get("?limit=1&order=desc").json
    assert (page["data"][0]["id"], page["has_more"]) == (ids[1], True)
    messages = get(f"/{ids[1]}/messages").json
    assert messages["data"][0]["content"] == "hi"
    assert messages["data"][0]["id"] == f"{ids[1]}-0"
    updated = request(server.port, "POST", f"{base}/{ids[0]}", {"metadata": {"a": "b"}}, bearer())
    assert updated.json["metadata"] == {"a": "b"}
    assert updated.json["choices"] == one["choices"]
    bad = request(server.port, "POST", f"{base}/{ids[0]}", {"choices": []}, bearer())
    assert bad.status == 400
    gone = request(server.port, "DELETE", f"{base}/{ids[0]}", headers=bearer()).json
    assert gone == {"object": "chat.completion.deleted", "id": ids[0], "deleted": True}
    assert get(f"/{ids[0]}").status == 404
    for query, param in (("?limit=0", "limit"), ("?limit=x", "limit"), ("?order=up", "order")):
        assert get(query).json["error"]["param"] == param
    assert get("?after=nope").json["error"]["param"] == "after"


NO_NUMBERS = ("", "-1", "+1", "1e1", "0x1", "%C2%B2", "%D9%A3", "1" * 5000, "0" * 8 + "1999", "1.0")
"""Among them what `str.isdigit` calls digits and what `int` refuses to read."""


@pytest.mark.parametrize("number", NO_NUMBERS)
def test_numbers_of_queries(server: TestServer, number: str) -> None:
    stored = chat(server.port, headers=bearer(), store=True).json["id"]
    base = "/v1/chat/completions"
    for path, status, param in (
        (f"{base}?limit={number}", 400, "limit"),
        (f"{base}/{stored}/messages?limit={number}", 400, "limit"),
        (f"{base}/{stored}/messages?after={stored}-{number}", 404, "after"),
    ):
        answer = request(server.port, "GET", path, headers=bearer())
        assert (answer.status, answer.json["error"]["param"]) == (status, param), path


# ---------------------------------------------------------------- moderation


def test_moderation_on_request(server: TestServer) -> None:
    wanted = {"moderation": {"model": "omni-moderation-latest"}}
    unary = chat(server.port, headers=bearer(), **wanted).json["moderation"]
    assert unary["input"]["type"] == unary["output"]["type"] == "moderation_results"
    stream = chat(
        server.port,
        headers=bearer(),
        stream=True,
        stream_options={"include_usage": True},
        **wanted,
    )
    *_, moderation, usage = stream.chunks
    assert moderation["choices"] == [] and moderation["moderation"]["input"]
    assert usage["usage"] and not usage.get("moderation")
    unknown: Any = {"moderation": {"model": "nobody"}}
    answer = chat(server.port, headers=bearer(), **unknown)
    assert (answer.status, answer.json["error"]["param"]) == (400, "moderation.model")


def test_the_moderation_endpoint(server: TestServer) -> None:
    answer = request(server.port, "POST", "/v1/moderations", {"input": ["a", "b"]}, bearer()).json
    assert answer["id"].startswith("modr-") and len(answer["results"]) == 2
    assert len(answer["results"][0]["categories"]) == 13
    for bad in ({}, {"input": []}, {"input": 3}, {"input": [{"type": "image_url"}]}):
        failed = request(server.port, "POST", "/v1/moderations", bad, bearer())
        assert failed.status == 400 and failed.json["error"]["param"].startswith("input")
