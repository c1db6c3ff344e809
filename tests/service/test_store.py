"""Stored completions: by account, in pages, filtered, until they expire (R221–R223)."""

from collections.abc import Sequence

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rejoinder.config import StoreConfig
from rejoinder.errors import NotFound
from rejoinder.service import database as db
from rejoinder.service.database import Database, open_database
from rejoinder.service.store import CompletionStore, Metadata, StoredCompletion


def stored(name: str, created: int = 1, **fields: object) -> StoredCompletion:
    values = {"account": "team", "model": "m", "completion": b'{"id":"%b"}' % name.encode()}
    return StoredCompletion(id=name, created=created, **{**values, **fields})  # type: ignore[arg-type]


async def fill(store: CompletionStore, completions: Sequence[StoredCompletion]) -> None:
    for completion in completions:
        await store.save(completion)


async def test_what_is_saved_comes_back_as_it_was(database: Database) -> None:
    store = CompletionStore(database)
    completion = stored(
        "chatcmpl-1",
        completion='{"a": [1, 1.50, "é\\u2028"],  "b":null}'.encode(),
        messages=(b'{"role":"user","content":"hi"}', b'{"role": "assistant"}'),
        metadata=(("z", "1"), ("a", ""), ("nul\x00", "\ud800 \\x41 é")),
    )
    await store.save(completion)
    assert await store.get("team", "chatcmpl-1") == completion


async def test_each_account_sees_its_own(database: Database) -> None:
    store = CompletionStore(database)
    await fill(store, [stored("same"), stored("same", account="other", model="x")])
    assert (await store.get("other", "same")).model == "x"
    await store.delete("team", "same")
    assert (await store.get("other", "same")).model == "x"
    for call in (
        store.get("team", "same"),
        store.delete("team", "same"),
        store.update_metadata("team", "same", None),
        store.messages("team", "same"),
        store.list("team", after="same"),
    ):
        with pytest.raises(NotFound):
            await call
    assert (await store.list("team")).items == ()


async def test_only_metadata_changes(database: Database) -> None:
    store = CompletionStore(database)
    before = stored("c", metadata=(("a", "1"),), messages=(b"{}",))
    await store.save(before)
    for metadata in ((("b", "2"), ("a", "3")), (), None, (("a", "1"),)):
        changed = await store.update_metadata("team", "c", metadata)
        assert changed.metadata == metadata
        assert changed == await store.get("team", "c")
        assert (changed.completion, changed.messages) == (before.completion, before.messages)


async def test_deleting_leaves_nothing(database: Database) -> None:
    store = CompletionStore(database)
    await store.save(stored("c", metadata=(("a", "1"),)))
    await store.delete("team", "c")
    async with database.reading() as connection:
        for table in (db.completions, db.completion_metadata):
            assert (await connection.execute(sa.select(table))).all() == []


async def test_filters(database: Database) -> None:
    store = CompletionStore(database)
    await fill(
        store,
        [
            stored("1", 1, model="a", metadata=(("k", "x"), ("l", "y"))),
            stored("2", 2, model="b", metadata=(("k", "x"),)),
            stored("3", 3, model="a", metadata=(("k", "y"), ("l", "x"))),
            stored("4", 4, model="a", metadata=None),
        ],
    )

    async def found(model: str | None = None, metadata: Metadata = ()) -> str:
        page = await store.list("team", model=model, metadata=metadata)
        return "".join(item.id for item in page.items)

    assert await found() == "1234"
    assert await found(model="a") == "134"
    assert await found(metadata=(("k", "x"),)) == "12"
    assert await found(model="a", metadata=(("k", "x"),)) == "1"
    assert await found(metadata=(("k", "x"), ("l", "y"))) == "1"
    assert await found(metadata=(("k", "x' OR '1'='1"),)) == ""
    assert await found(model="%") == ""


async def test_messages_in_pages(database: Database) -> None:
    store = CompletionStore(database)
    messages = tuple(b'{"n":%d}' % n for n in range(5))
    await store.save(stored("c", messages=messages))
    page = await store.messages("team", "c", limit=2)
    assert [m.ordinal for m in page.items] == [0, 1]
    assert page.has_more
    page = await store.messages("team", "c", limit=3, after=1)
    assert [(m.ordinal, m.message) for m in page.items] == [(n, messages[n]) for n in (2, 3, 4)]
    assert not page.has_more
    page = await store.messages("team", "c", limit=2, order="desc", after=3)
    assert [m.ordinal for m in page.items] == [2, 1]
    with pytest.raises(NotFound):
        await store.messages("team", "c", after=9)


async def test_old_completions_expire(database: Database) -> None:
    now = 1_790_000_000.0
    store = CompletionStore(database, retention_days=30, clock=lambda: now)
    await store.save(stored("old", metadata=(("a", "1"),)))
    now += 29 * 86_400
    await store.save(stored("new"))
    assert [c.id for c in (await store.list("team")).items] == ["old", "new"]
    now += 86_401
    with pytest.raises(NotFound):
        await store.get("team", "old")
    assert [c.id for c in (await store.list("team")).items] == ["new"]
    assert await store.expire() == 1
    assert await store.expire() == 0
    async with database.reading() as connection:
        assert (await connection.execute(sa.select(db.completion_metadata))).all() == []


async def test_saving_deletes_what_is_too_old(database: Database) -> None:
    now = 1_790_000_000.0
    store = CompletionStore(database, retention_days=1, clock=lambda: now)
    await store.save(stored("old"))
    now += 86_401
    await store.save(stored("new"))
    async with database.reading() as connection:
        rows = (await connection.execute(sa.select(db.completions.c.id))).scalars().all()
    assert rows == ["new"]


async def walk(store: CompletionStore, limit: int, order: str) -> list[str]:
    """All pages, one after the other, as a client reads them."""
    ids: list[str] = []
    after = None
    for _ in range(100):
        page = await store.list("team", after=after, limit=limit, order=order)  # type: ignore[arg-type]
        assert len(page.items) <= limit
        assert page.items or not ids, "`has_more` promised what is not there"
        ids += [item.id for item in page.items]
        if not page.has_more:
            return ids
        assert page.items
        after = page.items[-1].id
    raise AssertionError("the pages never end")


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    created=st.lists(st.integers(0, 5), max_size=12),
    limit=st.integers(1, 5),
)
async def test_pages_join_to_the_whole_list(created: list[int], limit: int) -> None:
    """In the order of creation, each once, also where many were created in the same second."""
    database = await open_database(StoreConfig(url="sqlite://"))
    store = CompletionStore(database)
    await fill(store, [stored(f"c{i}", when) for i, when in enumerate(created)])
    in_order = [f"c{i}" for i, _ in sorted(enumerate(created), key=lambda pair: pair[1])]
    assert await walk(store, limit, "asc") == in_order
    assert await walk(store, limit, "desc") == in_order[::-1]
    await database.close()


async def test_pages(database: Database) -> None:
    store = CompletionStore(database)
    await fill(store, [stored(f"c{i:02}", created=i // 3) for i in range(25)])
    ids = [f"c{i:02}" for i in range(25)]
    first = await store.list("team")
    assert [c.id for c in first.items] == ids[:20]
    assert first.has_more
    for limit in (1, 7, 25, 100):
        assert await walk(store, limit, "asc") == ids
        assert await walk(store, limit, "desc") == ids[::-1]
