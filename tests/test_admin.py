"""What an operator reads from the database."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rejoinder import cli
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


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--account", ""),
        ("--account", "a\r\nb"),
        ("--tier", "gold"),
        ("--budget-period", "year"),
        ("--budget-usd", "nan"),
        ("--budget-usd", "inf"),
        ("--budget-usd", "-1"),
        ("--expires-in-days", "nan"),
        ("--expires-in-days", "1e300"),
        ("--requests-per-minute", "99999999999999999999"),
        ("--tokens-per-minute", "0"),
    ],
)
def test_a_key_that_nobody_means_is_not_made(tmp_path: Path, option: str, value: str) -> None:
    """Each is refused with the name of its option, and `keys list` still lists."""
    config = tmp_path / "rejoinder.toml"
    config.write_text(f'[store]\nurl = "sqlite:///{tmp_path}/x.db"\n')
    given = ["keys", "create", "--config", str(config), "--account", "a", option, value]
    made = CliRunner().invoke(cli.app, given)
    assert made.exit_code in (1, 2) and isinstance(made.exception, SystemExit)
    assert option in made.output
    listed = CliRunner().invoke(cli.app, ["keys", "list", "--config", str(config), "--json"])
    assert (listed.exit_code, listed.stdout) == (0, "[]\n")
