"""Brings a database to the newest revision.

This module must not know: what the tables mean.
"""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy.engine import Connection

from rejoinder.service.database import DatabaseError, current_revision

__all__ = ["alembic_config", "upgrade"]

MIGRATIONS = Path(__file__).parent / "migrations"


def upgrade(connection: Connection, revision: str = "head") -> None:
    """Raises DatabaseError for a database that a newer version made."""
    config = alembic_config(connection)
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    present = current_revision(connection)
    if present is not None and present not in known:
        raise DatabaseError(f"it is at revision '{present}', made by a newer Rejoinder")
    try:
        command.upgrade(config, revision)
    except CommandError as error:
        raise DatabaseError(str(error)) from error


def alembic_config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config
