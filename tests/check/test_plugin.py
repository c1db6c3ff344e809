"""The pytest plugin in a pytest of its own, on the ideal server."""

import threading
from collections.abc import Iterator

import pytest

from tests.check.ideal import KEY, MODEL, Ideal, serve

pytest_plugins = ["pytester"]

ARGS = ("-p", "no:cacheprovider", "-p", "no:asyncio")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The ideal server in a thread of its own."""
    import asyncio

    ready, stop, found = threading.Event(), asyncio.Event(), []

    async def run() -> None:
        async with serve(Ideal("O")) as address:
            found.extend([address, asyncio.get_running_loop()])
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    ready.wait(10)
    yield found[0]
    found[1].call_soon_threadsafe(stop.set)
    thread.join(10)


def test_rules_become_tests(pytester: pytest.Pytester, url: str) -> None:
    where = ("--rejoinder-url", url, "--rejoinder-model", MODEL, "--rejoinder-api-key", KEY)
    result = pytester.runpytest_inprocess(
        *ARGS, "--rejoinder-rules", *where, "--rejoinder-only", "R95,R119,usage", "-v"
    )
    result.assert_outcomes(passed=5, skipped=6)
    result.stdout.fnmatch_lines(["*R95 One id*PASSED*"])


def test_project_uses_the_fixtures(pytester: pytest.Pytester, url: str) -> None:
    pytester.makeconftest(
        f"""
        import pytest
        from rejoinder.check.pytest import RejoinderServer

        @pytest.fixture(scope="session")
        def rejoinder_server():
            return RejoinderServer(url={url!r}, model={MODEL!r}, api_key={KEY!r},
                                   dialect="openai", only=("chunks",), mode="strict")
        """
    )
    pytester.makepyfile(
        """
        from rejoinder.check.pytest import assert_rule

        def test_score(rejoinder_report):
            assert rejoinder_report.score == 100

        def test_one(rejoinder_report):
            assert_rule(rejoinder_report, "R102")

        def test_other_dialect(rejoinder_report):
            assert_rule(rejoinder_report, "R89")
        """
    )
    pytester.runpytest_inprocess(*ARGS).assert_outcomes(passed=2, skipped=1)


def test_missing_options_are_told(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess(*ARGS, "--rejoinder-rules")
    assert result.ret != 0
    text = result.stdout.str() + result.stderr.str()
    assert "--rejoinder-url and --rejoinder-model are needed" in text


def test_plugin_is_silent_unless_asked(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_a(): pass")
    pytester.runpytest_inprocess(*ARGS).assert_outcomes(passed=1)
