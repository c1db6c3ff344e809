"""Keys, and the ledger with the instances that write it."""

import sqlalchemy as sa
from alembic import op

revision = "r0001"
down_revision = None

_LONG = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "keys",
        sa.Column("key_id", sa.String(64), primary_key=True),
        sa.Column("digest", sa.LargeBinary, nullable=False, unique=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("account", sa.Text, nullable=False),
        sa.Column("tiers", sa.Text, nullable=False),
        sa.Column("models", sa.Text, nullable=False),
        sa.Column("requests_per_minute", _LONG),
        sa.Column("tokens_per_minute", _LONG),
        sa.Column("budget_usd", sa.Text),
        sa.Column("budget_period", sa.String(8), nullable=False),
        sa.Column("admin", sa.Boolean, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double),
        sa.Column("revoked_at", sa.Double),
    )
    op.create_table(
        "instances",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("pid", _LONG, nullable=False),
        sa.Column("process_started", sa.Text, nullable=False),
        sa.Column("beat_at", sa.Double, nullable=False),
    )
    counts = (
        "prompt_tokens",
        "cached_tokens",
        "cache_write_tokens",
        "completion_tokens",
        "reasoning_tokens",
        "accepted_prediction_tokens",
        "rejected_prediction_tokens",
    )
    op.create_table(
        "ledger",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("instance", sa.String(32), nullable=False),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("account", sa.Text, nullable=False),
        sa.Column("key_id", sa.String(64), nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("tier", sa.String(16), nullable=False),
        sa.Column("price_version", sa.String(16), nullable=False),
        sa.Column("opened_at", sa.Double, nullable=False),
        sa.Column("day", sa.String(10), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("closed_at", sa.Double),
        sa.Column("finish", sa.Text, nullable=False, server_default=""),
        sa.Column("error_code", sa.Text, nullable=False, server_default=""),
        *(sa.Column(name, _LONG, nullable=False, server_default="0") for name in counts),
        sa.Column("estimated", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("cost_pico", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("first_token_seconds", sa.Double),
        sa.Column("total_seconds", sa.Double),
    )
    op.create_index("ledger_day", "ledger", ["day"])
    op.create_index("ledger_key", "ledger", ["key_id", "opened_at"])
    op.create_index(
        "ledger_open",
        "ledger",
        ["instance"],
        sqlite_where=sa.text("status = 'open'"),
        postgresql_where=sa.text("status = 'open'"),
    )


def downgrade() -> None:
    for table in ("ledger", "instances", "keys"):
        op.drop_table(table)
