"""The same as `asyncio.Event`, which has a deque."""

import asyncio

import pytest

from rejoinder.web.flag import Flag


@pytest.mark.parametrize("kind", [Flag, asyncio.Event])
async def test_all_who_wait_go_on(kind: type[Flag]) -> None:
    flag = kind()
    waiting = [asyncio.ensure_future(flag.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    assert not flag.is_set() and not any(task.done() for task in waiting)
    waiting[1].cancel()
    flag.set()
    flag.clear()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert [task.cancelled() for task in waiting] == [False, True, False]
    assert not flag.is_set(), "it was cleared before they ran"
    late = asyncio.ensure_future(flag.wait())
    await asyncio.sleep(0)
    assert not late.done()
    flag.set()
    assert await late and await flag.wait()


@pytest.mark.parametrize("kind", [Flag, asyncio.Event])
async def test_who_was_cancelled_is_forgotten(kind: type[Flag]) -> None:
    flag = kind()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await flag.wait()
    assert not flag._waiters
    flag.set()
    assert await flag.wait()
