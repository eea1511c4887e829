"""The event logs: executions, their entries, request ids, and what was forgotten."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Make the tables."""
    _make_executions()
    op.create_table(
        "entries",
        *_key(),
        sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("sequence", sa.BigInteger),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        _owner(),
    )
    op.create_table(
        "claims",
        sa.Column("tenant", _TEXT, primary_key=True),
        sa.Column("request_id", _TEXT, primary_key=True),
        sa.Column("execution_id", _TEXT, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        _owner(),
    )
    op.create_index("claims_by_execution", "claims", ["tenant", "execution_id"])
    op.create_table("forgotten", *_key(), sa.Column("forget_time", sa.Double, nullable=False))
    op.create_index("forgotten_by_time", "forgotten", ["forget_time"])


def _make_executions() -> None:
    """Make the table of executions and its indexes."""
    op.create_table(
        "executions",
        *_key(),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("state", _TEXT, nullable=False),
        sa.Column("strategy", _TEXT, nullable=False),
        sa.Column("finish_reason", _TEXT, nullable=False),
        sa.Column("create_time", sa.Double, nullable=False),
        sa.Column("expire_time", sa.Double),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("last_sequence", sa.BigInteger, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("fence", sa.BigInteger, nullable=False),
        sa.Column("lease_owner", _TEXT, nullable=False),
        sa.Column("lease_until", sa.Double, nullable=False),
        sa.Column("is_cancel_requested", sa.Boolean, nullable=False),
        sa.Column("is_keep_requested", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("plan", sa.Text, nullable=False),
    )
    op.create_index("executions_by_id", "executions", ["execution_id"], unique=True)
    op.create_index("executions_by_time", "executions", ["tenant", "create_time", "execution_id"])
    running, expiring = sa.text("state = 'running'"), sa.text("expire_time IS NOT NULL")
    op.create_index(
        "executions_by_lease", "executions", ["lease_until"], sqlite_where=running, postgresql_where=running
    )
    op.create_index(
        "executions_by_expiry", "executions", ["expire_time"], sqlite_where=expiring, postgresql_where=expiring
    )


def _key() -> list[sa.Column[str]]:
    """Return the columns that name an execution."""
    return [sa.Column("tenant", _TEXT, primary_key=True), sa.Column("execution_id", _TEXT, primary_key=True)]


def _owner() -> sa.ForeignKeyConstraint:
    """Return the key that ties a row to its execution and removes it with it."""
    columns = ["tenant", "execution_id"]
    return sa.ForeignKeyConstraint(columns, [f"executions.{name}" for name in columns], ondelete="CASCADE")
