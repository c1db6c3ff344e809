"""A pytest plugin: the rules as tests of any server.

    pytest --rejoinder-url http://127.0.0.1:8000 --rejoinder-model m --rejoinder-rules

makes one test of every rule. A project that starts its server in a fixture overrides
`rejoinder_server` in its conftest and uses `rejoinder_report`. Must not know: single rules.
"""

import asyncio
from collections.abc import Iterator
from typing import Protocol

import pytest
from msgspec import Struct

from rejoinder.check.judge import Outcome, Report
from rejoinder.check.report import place
from rejoinder.check.rule import Mode
from rejoinder.check.rules import BY_ID
from rejoinder.check.run import CannotCheck, Dialect, grade, select_rules

__all__ = ["RejoinderServer", "assert_rule", "rejoinder_report", "rejoinder_server"]

ITEM_NAME = "rejoinder"


class RejoinderServer(Struct, frozen=True, kw_only=True):
    """The server that the rules are run on."""

    url: str
    model: str
    api_key: str = ""
    dialect: Dialect = "auto"
    mode: Mode = "live"
    only: tuple[str, ...] = ()
    concurrency: int = 8


class _Options(Protocol):
    def getoption(self, name: str) -> str: ...


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rejoinder", "the rules of the chat completions contract")
    group.addoption(
        "--rejoinder-rules",
        action="store_true",
        help="add one test for every rule, run on --rejoinder-url",
    )
    group.addoption("--rejoinder-url", default="", help="the server under test")
    group.addoption("--rejoinder-model", default="", help="a model of it")
    group.addoption("--rejoinder-api-key", default="", help="a key for it")
    group.addoption("--rejoinder-dialect", default="auto", choices=("auto", "openai", "deepinfra"))
    group.addoption("--rejoinder-mode", default="live", choices=("live", "strict"))
    group.addoption("--rejoinder-only", default="", help="rules and sections: R95,tools")


def server_of(config: _Options) -> RejoinderServer:
    """The server that the command line names. Raises UsageError if it names none."""
    url, model = config.getoption("--rejoinder-url"), config.getoption("--rejoinder-model")
    if not url or not model:
        raise pytest.UsageError("--rejoinder-url and --rejoinder-model are needed")
    only = config.getoption("--rejoinder-only")
    return RejoinderServer(
        url=url,
        model=model,
        api_key=config.getoption("--rejoinder-api-key"),
        dialect=config.getoption("--rejoinder-dialect"),  # type: ignore[arg-type]
        mode=config.getoption("--rejoinder-mode"),  # type: ignore[arg-type]
        only=tuple(name for name in only.split(",") if name),
    )


def graded(server: RejoinderServer) -> Report:
    return asyncio.run(
        grade(
            server.url,
            model=server.model,
            api_key=server.api_key,
            dialect=server.dialect,
            mode=server.mode,
            only=server.only,
            concurrency=server.concurrency,
        )
    )


# ---------------------------------------------------------------- fixtures


@pytest.fixture(scope="session")
def rejoinder_server(pytestconfig: pytest.Config) -> RejoinderServer:
    """The server under test. Override it to start one."""
    return server_of(pytestconfig)


@pytest.fixture(scope="session")
def rejoinder_report(rejoinder_server: RejoinderServer) -> Report:
    """The report on the server; all requests are made once a session."""
    try:
        return graded(rejoinder_server)
    except CannotCheck as error:
        pytest.fail(str(error), pytrace=False)


def assert_rule(report: Report, rule: str) -> None:
    """Fails with the findings if the rule is broken; skips if it could not be judged."""
    outcome = next((o for o in report.outcomes if o.rule == rule), None)
    if outcome is None:
        pytest.skip(f"{rule} is not a rule of the dialect {report.dialect}")
    _settle(outcome)


def _settle(outcome: Outcome) -> None:
    match outcome.verdict:
        case "skipped":
            pytest.skip(outcome.reason)
        case "failed":
            pytest.fail(explained(outcome), pytrace=False)
        case _:
            pass


def explained(outcome: Outcome) -> str:
    lines = [f"{outcome.rule} {outcome.title}: {BY_ID[outcome.rule].says}"]
    for finding in outcome.findings:
        lines += [f"  {finding.message} [{place(finding)}]"]
        lines += [f"    {text}" for text in (finding.excerpt, finding.curl) if text]
    return "\n".join(lines)


# ---------------------------------------------------------------- one test a rule


class RuleCollector(pytest.Collector):
    """The rules as tests. The server is asked when the first of them runs."""

    _report: Report | None = None

    def collect(self) -> Iterator[pytest.Item]:
        server = server_of(self.config)
        for rule in select_rules(server.only):
            yield RuleItem.from_parent(self, name=f"{rule.id} {rule.title}", rule=rule.id)

    def report(self) -> Report:
        if self._report is None:
            self._report = graded(server_of(self.config))
        return self._report


class RuleItem(pytest.Item):
    """One rule."""

    def __init__(self, *, rule: str, **rest: object) -> None:
        super().__init__(**rest)  # type: ignore[arg-type]
        self.rule = rule

    def runtest(self) -> None:
        collector = self.parent
        assert isinstance(collector, RuleCollector)
        try:
            report = collector.report()
        except CannotCheck as error:
            pytest.fail(str(error), pytrace=False)
        assert_rule(report, self.rule)

    def reportinfo(self) -> tuple[str, int | None, str]:
        return self.path.name, None, self.name


def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Adds the rules behind all other tests, when they are asked for."""
    if config.getoption("--rejoinder-rules"):
        collector = RuleCollector.from_parent(session, name=ITEM_NAME, nodeid=ITEM_NAME)
        items += collector.collect()
