"""A moderation endpoint over a real socket, in good order and in bad."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio
from aiohttp import web

from rejoinder.config import ConfigError, ModerationConfig
from rejoinder.service.moderation import CATEGORIES, ModerationUnavailable
from rejoinder.service.moderation.configured import configured_moderator
from rejoinder.service.moderation.lexicon import LexiconModerator
from rejoinder.service.moderation.remote import RemoteModerator
from tests.service.servers import free_port


class Endpoint:
    """Answers `/v1/moderations` with whatever the test sets, and keeps what it was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.status = 200
        self.body: bytes = b"{}"
        self.delay = 0.0
        self.followed = False
        self.pieces = 0
        """Bytes a write; 0: all at once."""
        self.asked: list[tuple[dict[str, str], object]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((dict(request.headers), msgspec.json.decode(await request.read())))
        await asyncio.sleep(self.delay)
        if self.pieces:
            response = web.StreamResponse()
            await response.prepare(request)
            for start in range(0, len(self.body), self.pieces):
                await response.write(self.body[start : start + self.pieces])
                await asyncio.sleep(0.001)
            return response
        headers = {"Location": "/elsewhere"} if self.status in (302, 307) else {}
        return web.Response(
            status=self.status, body=self.body, content_type="application/json", headers=headers
        )

    async def answer_elsewhere(self, request: web.Request) -> web.Response:
        self.followed = True
        return web.json_response({"results": [{}]})

    def gives(self, *items: dict[str, object], **top: object) -> None:
        self.body = msgspec.json.encode({"id": "modr-1", **top, "results": list(items)})


@pytest_asyncio.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    endpoint = Endpoint()
    app = web.Application()
    app.router.add_post("/v1/moderations", endpoint.answer)
    app.router.add_route("*", "/elsewhere", endpoint.answer_elsewhere)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    endpoint.url = f"http://127.0.0.1:{port}/v1"
    yield endpoint
    await runner.cleanup()


@pytest_asyncio.fixture
async def moderator(endpoint: Endpoint) -> AsyncIterator[RemoteModerator]:
    moderator = RemoteModerator(endpoint.url, api_key="sk-mod", model="omni", timeout_seconds=0.5)
    yield moderator
    await moderator.close()


async def test_texts_are_scored_in_order(endpoint: Endpoint, moderator: RemoteModerator) -> None:
    endpoint.gives(
        {
            "flagged": True,
            "categories": {"hate": True, "violence": False},
            "category_scores": {"hate": 0.9, "violence": 0.1},
            "category_applied_input_types": {"hate": ["text"], "violence": ["image", "text"]},
        },
        {"flagged": False, "categories": {"hate": False}, "category_scores": {"hate": 0.0}},
        model="omni-2",
    )
    results = await moderator.moderate(["bad", "good"])
    ((headers, body),) = endpoint.asked
    assert headers["Authorization"] == "Bearer sk-mod"
    assert body == {"input": ["bad", "good"], "model": "omni"}
    assert results.model == "omni-2"
    bad, good = results.results
    assert bad.flagged and not good.flagged
    assert bad.category_scores == {"hate": 0.9, "violence": 0.1}
    assert bad.category_applied_input_types == {"hate": ["text"], "violence": ["text", "image"]}
    assert good.category_applied_input_types == {"hate": ["text"]}


async def test_an_answer_in_pieces(endpoint: Endpoint, moderator: RemoteModerator) -> None:
    endpoint.gives({"flagged": True, "categories": {"hate": True}})
    endpoint.pieces = 9
    assert (await moderator.moderate(["x"])).results[0].flagged


async def test_an_answer_without_end(endpoint: Endpoint, moderator: RemoteModerator) -> None:
    endpoint.body = b" " * 6_000_000
    with pytest.raises(ModerationUnavailable, match="too long"):
        await moderator.moderate(["x"])


async def test_an_empty_text_is_not_sent(endpoint: Endpoint, moderator: RemoteModerator) -> None:
    endpoint.gives({"flagged": True, "categories": {"hate": True}})
    results = await moderator.moderate(["", "bad", ""])
    assert [scored.flagged for scored in results.results] == [False, True, False]
    assert endpoint.asked[0][1] == {"input": ["bad"], "model": "omni"}
    await moderator.moderate(["", ""])
    assert len(endpoint.asked) == 1


@pytest.mark.parametrize(
    "item",
    [
        {},
        {"flagged": True},
        {
            "flagged": True,
            "categories": {"hate": False, "violence": False},
            "category_scores": {"hate": 0.2, "violence": 0.4},
        },
        {"categories": {"hate": True}},
        {"categories": {"hate": None}, "category_scores": {"hate": None, "x": 7, "y": -1}},
        {"category_scores": {"hate": 0.5}, "category_applied_input_types": {"hate": []}},
        {"flagged": False, "categories": {"illicit": True}, "unknown": {"a": 1}},
    ],
)
async def test_lenient_in_legal_out(
    endpoint: Endpoint, moderator: RemoteModerator, item: dict[str, object]
) -> None:
    """R195 and R196 hold for whatever the endpoint says."""
    endpoint.gives(item)
    (scored,) = (await moderator.moderate(["x"])).results
    assert (
        scored.categories.keys()
        == scored.category_scores.keys()
        == scored.category_applied_input_types.keys()
    )
    assert scored.categories
    assert all(0 <= score <= 1 for score in scored.category_scores.values())
    assert all(scored.category_applied_input_types.values())
    assert scored.flagged == any(scored.categories.values())
    assert scored.flagged or not item.get("flagged")


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, b"{}"),
        (401, b"{}"),
        (302, b"{}"),
        (307, b"{}"),
        (200, b"not json"),
        (200, b"{}"),
        (200, b"[]"),
        (200, b'{"results": []}'),
        (200, b'{"results": [{}, {}]}'),
        (200, b'{"results": [{"categories": 5}]}'),
        (200, b"\xff\xfe"),
        (200, b""),
    ],
)
async def test_anything_else_is_unavailable(
    endpoint: Endpoint, moderator: RemoteModerator, status: int, body: bytes
) -> None:
    endpoint.status, endpoint.body = status, body
    with pytest.raises(ModerationUnavailable) as caught:
        await moderator.moderate(["x"])
    assert caught.value.code == "moderation_unavailable"
    assert not endpoint.followed


async def test_a_slow_endpoint(endpoint: Endpoint, moderator: RemoteModerator) -> None:
    endpoint.delay = 0.7
    with pytest.raises(ModerationUnavailable) as caught:
        await moderator.moderate(["x"])
    assert caught.value.code == "moderation_timeout"


async def test_nobody_listens() -> None:
    moderator = RemoteModerator(f"http://127.0.0.1:{free_port()}/v1")
    with pytest.raises(ModerationUnavailable):
        await moderator.moderate(["x"])
    await moderator.close()


# ---------------------------------------------------------------- the configuration


def no_backend(model: str) -> object:
    raise AssertionError(model)


async def test_the_configured_moderator(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(**keys: object) -> object:
        return configured_moderator(ModerationConfig(**keys), no_backend)  # type: ignore[arg-type]

    lexicon = made(lexicon={"violence": ("BADWORD",)})
    assert isinstance(lexicon, LexiconModerator)
    assert lexicon.score("badword").flagged
    monkeypatch.setenv("MOD_KEY", "sk-env")
    remote = made(model="remote", url="http://x/v1/moderations", api_key_env="MOD_KEY")
    assert isinstance(remote, RemoteModerator)
    assert remote._url == "http://x/v1/moderations"
    assert remote._headers == {"Authorization": "Bearer sk-env"}
    for keys, words in (
        ({"model": "remote"}, "moderation.url"),
        ({"model": "guard"}, "moderation.guard"),
        ({"model": "lexikon"}, "moderation.model: no moderator 'lexikon'"),
    ):
        with pytest.raises(ConfigError) as caught:
            made(**keys)
        assert words in str(caught.value)
    assert len(CATEGORIES) == 13
