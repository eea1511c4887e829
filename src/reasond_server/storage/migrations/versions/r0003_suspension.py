"""Executions can be suspended until a time or a call, and say what kind of work they are."""

from __future__ import annotations

from typing import Final

from reasond_server.storage.migrating import run_statements

revision = "0003"
down_revision = "0002"

STATEMENTS: Final = (
    "ALTER TABLE executions ADD COLUMN kind {text} DEFAULT 'reasoning' NOT NULL",
    "ALTER TABLE executions ADD COLUMN wake_time DOUBLE PRECISION",
    # When a suspended execution is taken: one that somebody wants stopped at once, one without a time never.
    """CREATE INDEX executions_to_wake ON executions ((CASE WHEN is_cancel_requested THEN 0 ELSE wake_time END))
    WHERE state = 'suspended'""",
)


def upgrade() -> None:
    """Add the columns and the index."""
    run_statements(STATEMENTS)
