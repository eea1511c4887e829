"""What engines keep of the executions that they work out: payloads, records of calls, batches of events."""

from __future__ import annotations

from typing import Final

from reasond_server.storage.migrating import run_statements

revision = "0007"
down_revision = "0006"

STATEMENTS: Final = (
    """CREATE TABLE payloads (
    tenant {text} NOT NULL,
    execution_id {text} NOT NULL,
    name {text} NOT NULL,
    body {bytes} NOT NULL,
    PRIMARY KEY (tenant, execution_id, name),
    FOREIGN KEY (tenant, execution_id) REFERENCES executions (tenant, execution_id) ON DELETE CASCADE
)""",
)


def upgrade() -> None:
    """Make the table."""
    run_statements(STATEMENTS)
