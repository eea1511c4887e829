"""Executions are listed by state."""

from __future__ import annotations

from typing import Final

from reasond_server.storage.migrating import run_statements

revision = "0006"
down_revision = "0005"

STATEMENTS: Final = ("CREATE INDEX executions_by_state ON executions (tenant, state, create_time, execution_id)",)


def upgrade() -> None:
    """Make the index."""
    run_statements(STATEMENTS)
