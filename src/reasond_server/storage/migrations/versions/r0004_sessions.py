"""Executions can belong to a session, of which at most one is open."""

from __future__ import annotations

from typing import Final

from reasond_server.storage.migrating import run_statements

revision = "0004"
down_revision = "0003"

STATEMENTS: Final = (
    # Which execution is open is not stored here: the rows of the executions say it.
    """CREATE TABLE sessions (
    tenant {text} NOT NULL,
    session_id {text} NOT NULL,
    revision BIGINT NOT NULL,
    state TEXT NOT NULL,
    execution_count BIGINT NOT NULL,
    create_time DOUBLE PRECISION NOT NULL,
    update_time DOUBLE PRECISION NOT NULL,
    expire_time DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (tenant, session_id)
)""",
    "CREATE INDEX sessions_by_time ON sessions (tenant, update_time, session_id)",
    "CREATE INDEX sessions_by_expiry ON sessions (expire_time)",
    "ALTER TABLE executions ADD COLUMN session_id {text} DEFAULT '' NOT NULL",
    """CREATE UNIQUE INDEX executions_open_in_session ON executions (tenant, session_id)
    WHERE session_id <> '' AND state IN ('running', 'suspended')""",
    """CREATE INDEX executions_by_session ON executions (tenant, session_id, create_time, execution_id)
    WHERE session_id <> ''""",
)


def upgrade() -> None:
    """Make the table, the column and the indexes."""
    run_statements(STATEMENTS)
