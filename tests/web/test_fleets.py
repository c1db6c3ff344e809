"""Replicas are added, drained and removed over HTTP while a stream runs on them."""

import asyncio
import hashlib
from pathlib import Path
from typing import Any

from rejoinder.building import _FleetReplicas
from rejoinder.dialects import OPENAI
from rejoinder.engines.fleet import Fleet
from rejoinder.engines.remote import RemoteEngine
from rejoinder.engines.vllm import VLLM
from rejoinder.service.accounts import Accounts
from rejoinder.web.fleets import Fleets
from rejoinder.web.middleware import Front
from tests.engines.fake_vllm import FakeVllm
from tests.engines.toy_model import ToyEngine
from tests.web import wire
from tests.web.fleet import Served, seen, served

KEYS = "".join(
    f'[[keys]]\nkey_sha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\n'
    f'account = "{key}"\nadmin = {admin}\n'
    for key, admin in (("boss", "true"), ("user", "false"))
)


async def call(model: Served, path: str = "", body: Any = None, key: str = "") -> wire.Answer:
    method = "GET" if body is None else "POST"
    headers = {"Authorization": f"Bearer {key}"} if key else None
    return await asyncio.to_thread(
        wire.request, model.port, method, f"/fleets{path}", body, headers
    )


async def states(model: Served) -> dict[str, str]:
    answer = await call(model)
    assert answer.status == 200 and answer.headers["cache-control"] == "no-store"
    (fleet,) = answer.json["fleets"]
    assert fleet["model"] == "m"
    return {one["name"]: one["state"] for one in fleet["replicas"]}


async def until_gone(model: Served, url: str) -> None:
    async with asyncio.timeout(10):
        while url in await states(model):
            await asyncio.sleep(0.02)


async def busy(model: Served) -> Any:
    async with asyncio.timeout(10):
        while not (found := [r for r in model.replicas if r.running]):
            await asyncio.sleep(0.005)
    return found[0]


async def test_a_replica_is_removed_under_a_stream(tmp_path: Path) -> None:
    async with served(tmp_path, delay=0.02) as model:
        expected = seen(await model.stream(max_tokens=60))
        stream = asyncio.ensure_future(model.stream(max_tokens=60))
        leaver = await busy(model)
        answer = await call(model, "/remove/m", {"url": leaver.url})
        assert answer.status == 202, answer.body
        assert (await states(model))[leaver.url] == "draining", "it still works"
        assert seen(await stream) == expected
        assert await model.moves() == 0, "it was waited for"
        await until_gone(model, leaver.url)
        asked = len(leaver.generations)
        for _ in range(3):
            assert seen(await model.stream(max_tokens=60)) == expected
        assert len(leaver.generations) == asked


async def test_a_replica_that_must_go_now_loses_no_stream(tmp_path: Path) -> None:
    async with served(tmp_path, delay=0.02) as model:
        expected = seen(await model.stream(max_tokens=60))
        stream = asyncio.ensure_future(model.stream(max_tokens=60))
        leaver = await busy(model)
        await asyncio.sleep(0.2)
        body = {"url": leaver.url, "within_seconds": 0}
        assert (await call(model, "/drain/m", body)).status == 202
        assert seen(await stream) == expected
        assert await model.moves() == 1
        assert (await states(model))[leaver.url] == "draining", "a drained one stays in the list"


async def test_a_replica_is_added(tmp_path: Path) -> None:
    async with served(tmp_path) as model, FakeVllm().serve() as more:
        expected = seen(await model.stream())
        answer = await call(model, "/add/m", {"url": more.url})
        assert answer.status == 200
        assert (await states(model))[more.url] == "warming"
        again = await call(model, "/add/m", {"url": more.url})
        assert again.status == 400 and again.json["error"]["code"] == "replica_exists"
        for replica in model.replicas:
            await call(model, "/remove/m", {"url": replica.url})
            await until_gone(model, replica.url)
        assert seen(await model.stream()) == expected
        assert len(more.generations) == 1
        last = await call(model, "/remove/m", {"url": more.url})
        assert last.status == 400 and last.json["error"]["code"] == "last_replica"
        assert more.url in await states(model)


async def test_what_cannot_be(tmp_path: Path) -> None:
    async with served(tmp_path) as model:
        url = model.replicas[0].url
        for path, body, status in [
            ("/add/m", {"url": "http://127.0.0.1:9"}, 503),
            ("/add/m", {"url": "ftp://x"}, 400),
            ("/add/m", {"url": "http://[::1"}, 400),
            ("/add/m", {"url": "http://x:99999"}, 400),
            ("/add/m", {"url": "http://name:secret@x"}, 400),
            ("/add/m", {"url": "http://x/?q="}, 400),
            ("/add/m", {"url": "http://x\nreplica http://y was added"}, 400),
            ("/add/m", {"url": 3}, 400),
            ("/add/m", {"url": url, "x": 1}, 400),
            ("/add/other", {"url": url}, 404),
            ("/drain/m", {"url": "http://no"}, 404),
            ("/drain/m", {"url": url, "within_seconds": -1}, 400),
            ("/drain/m", b"{", 400),
        ]:
            answer = await call(model, path, body)
            assert answer.status == status and "error" in answer.json, (path, body, answer.body)
        assert set((await states(model)).values()) == {"serving"}


async def test_web_pages_change_nothing(tmp_path: Path) -> None:
    """Without keys, the browser of anybody on this machine can ask, for any page it shows."""
    async with served(tmp_path) as model:
        url = model.replicas[0].url
        for path in ("/add/m", "/drain/m", "/remove/m"):
            answer = await asyncio.to_thread(
                wire.request,
                model.port,
                "POST",
                f"/fleets{path}",
                {"url": url},
                {"Origin": "http://page.example", "Content-Type": "text/plain"},
            )
            assert answer.status == 403
        assert set((await states(model)).values()) == {"serving"}


async def test_two_requests_do_not_remove_each_others_last_replica() -> None:
    fleet = Fleet({"http://a": ToyEngine(), "http://b": ToyEngine()})
    accounts = Accounts(())
    front = Front(
        authenticate=accounts.authenticate, new_request_id=lambda: "r", on_answer=lambda _: None
    )
    fleets = Fleets(front, {"m": _FleetReplicas(fleet, lambda url: RemoteEngine(VLLM, url))})
    statuses: list[int] = []

    async def remove(url: str) -> None:
        async def receive() -> Any:
            return {"type": "http.request", "body": b'{"url": "%b"}' % url.encode()}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        scope = {"type": "http", "method": "POST", "headers": [], "path_params": {"model": "m"}}
        await front.run(fleets.remove, OPENAI, scope, receive, send)

    await asyncio.gather(remove("http://a"), remove("http://b"))
    assert sorted(statuses) == [202, 400]
    assert len(fleet.replicas) == 1
    await fleets.close()
    await fleet.close()


async def test_only_admins(tmp_path: Path) -> None:
    async with served(tmp_path, more=KEYS) as model:
        url = {"url": model.replicas[0].url}
        for key, status in (("", 401), ("user", 403)):
            for path, body in (("", None), ("/add/m", url), ("/drain/m", url), ("/remove/m", url)):
                assert (await call(model, path, body, key)).status == status
        assert (await call(model, key="boss")).status == 200
        assert (await call(model, "/drain/m", url, "boss")).status == 202
