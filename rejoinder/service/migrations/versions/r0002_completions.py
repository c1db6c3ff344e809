"""Stored completions and their metadata."""

import sqlalchemy as sa
from alembic import op

revision = "r0002"
down_revision = "r0001"

_LONG = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "completions",
        sa.Column("seq", _LONG, primary_key=True, autoincrement=True),
        sa.Column("id", sa.String(128), nullable=False),
        sa.Column("account", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("created", _LONG, nullable=False),
        sa.Column("saved_at", sa.Double, nullable=False),
        sa.Column("completion", sa.LargeBinary, nullable=False),
        sa.Column("messages", sa.LargeBinary, nullable=False),
        sa.Column("has_metadata", sa.Boolean, nullable=False),
        sa.UniqueConstraint("account", "id", name="completions_id"),
    )
    op.create_index("completions_order", "completions", ["account", "created", "seq"])
    op.create_index("completions_saved", "completions", ["saved_at"])
    op.create_table(
        "completion_metadata",
        sa.Column(
            "seq", _LONG, sa.ForeignKey("completions.seq", ondelete="CASCADE"), primary_key=True
        ),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
    )
    op.create_index("completion_metadata_value", "completion_metadata", ["name", "value"])


def downgrade() -> None:
    op.drop_table("completion_metadata")
    op.drop_table("completions")
