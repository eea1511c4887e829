"""The tables as the newest migration leaves them; tests compare both. Times are seconds since 1970 as floats."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

METADATA: Final = sa.MetaData()

# Compared byte by byte, as SQLite and Python do: the order of pages must not hang on the locale of a database.
_TEXT: Final = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

EXECUTIONS: Final = sa.Table(
    "executions",
    METADATA,
    sa.Column("tenant", _TEXT, primary_key=True),
    sa.Column("execution_id", _TEXT, primary_key=True),
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
    sa.Index("executions_by_id", "execution_id", unique=True),
    sa.Index("executions_by_time", "tenant", "create_time", "execution_id"),
    sa.Index(
        "executions_by_lease",
        "lease_until",
        sqlite_where=sa.text("state = 'running'"),
        postgresql_where=sa.text("state = 'running'"),
    ),
    sa.Index(
        "executions_by_expiry",
        "expire_time",
        sqlite_where=sa.text("expire_time IS NOT NULL"),
        postgresql_where=sa.text("expire_time IS NOT NULL"),
    ),
)
"""One row per execution: what lists show, and the head of its log."""


def _owner() -> sa.ForeignKeyConstraint:
    """Return the key that ties a row to its execution and removes it with it."""
    columns = ["tenant", "execution_id"]
    return sa.ForeignKeyConstraint(columns, [f"executions.{name}" for name in columns], ondelete="CASCADE")


ENTRIES: Final = sa.Table(
    "entries",
    METADATA,
    sa.Column("tenant", _TEXT, primary_key=True),
    sa.Column("execution_id", _TEXT, primary_key=True),
    sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("sequence", sa.BigInteger),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    _owner(),
)
"""The logs: an event has a sequence, a record a key."""

CLAIMS: Final = sa.Table(
    "claims",
    METADATA,
    sa.Column("tenant", _TEXT, primary_key=True),
    sa.Column("request_id", _TEXT, primary_key=True),
    sa.Column("execution_id", _TEXT, nullable=False),
    sa.Column("digest", sa.Text, nullable=False),
    _owner(),
    sa.Index("claims_by_execution", "tenant", "execution_id"),
)
"""Which execution a request id stands for."""

FORGOTTEN: Final = sa.Table(
    "forgotten",
    METADATA,
    sa.Column("tenant", _TEXT, primary_key=True),
    sa.Column("execution_id", _TEXT, primary_key=True),
    sa.Column("forget_time", sa.Double, nullable=False),
    sa.Index("forgotten_by_time", "forget_time"),
)
"""Executions past their time, so that a late reader is told that it came too late."""

AGENTS: Final = sa.Table(
    "agents",
    METADATA,
    sa.Column("tenant", _TEXT, primary_key=True),
    sa.Column("agent_id", _TEXT, primary_key=True),
    sa.Column("etag", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("expire_time", sa.Double),
    sa.Index(
        "agents_by_expiry",
        "expire_time",
        sqlite_where=sa.text("expire_time IS NOT NULL"),
        postgresql_where=sa.text("expire_time IS NOT NULL"),
    ),
)
"""The directory of agents."""
