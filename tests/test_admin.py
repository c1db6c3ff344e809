"""What an operator reads from the database."""

from pathlib import Path

import pytest

from rejoinder.admin import print_usage
from rejoinder.config import Config, StoreConfig, with_store


@pytest.mark.parametrize(
    ("format", "out"),
    [("table", ""), ("csv", "account,requests,"), ("json", "[]")],
)
def test_a_ledger_without_requests_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], format: str, out: str
) -> None:
    """A person is told; a program gets an empty list of the same shape."""
    config = with_store(Config(), StoreConfig(url=f"sqlite:///{tmp_path}/x.db"))
    print_usage(
        config,
        group_by=("account",),
        since=None,
        until=None,
        account=None,
        format=format,  # type: ignore[arg-type]
    )
    said = capsys.readouterr()
    assert said.out.startswith(out) and bool(said.out) == bool(out)
    assert ("no requests" in said.err) == (format == "table")
