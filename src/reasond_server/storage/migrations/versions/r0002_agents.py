"""The directory of agents moves into the same database."""

from __future__ import annotations

from typing import Final

from reasond_server.storage.migrating import run_statements

revision = "0002"
down_revision = "0001"

STATEMENTS: Final = (
    """CREATE TABLE agents (
    tenant {text} NOT NULL,
    agent_id {text} NOT NULL,
    etag TEXT NOT NULL,
    body TEXT NOT NULL,
    expire_time DOUBLE PRECISION,
    PRIMARY KEY (tenant, agent_id)
)""",
    "CREATE INDEX agents_by_expiry ON agents (expire_time) WHERE expire_time IS NOT NULL",
)


def upgrade() -> None:
    """Make the table of agents."""
    run_statements(STATEMENTS)
