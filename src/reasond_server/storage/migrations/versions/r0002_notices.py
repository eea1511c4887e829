"""The outbox of webhooks: what receivers have not confirmed yet."""

from __future__ import annotations

from typing import Final

from reasond_server.storage.migration_runner import run_statements

revision = "0002_serves_0001"
down_revision = "0001"

STATEMENTS: Final = (
    # Due is what nobody is sending: who sends a notice first puts its time off.
    """CREATE TABLE notices (
    endpoint {text} NOT NULL,
    notice_id {text} NOT NULL,
    tenant {text} NOT NULL,
    execution_id {text} NOT NULL,
    sequence BIGINT NOT NULL,
    body TEXT NOT NULL,
    create_time DOUBLE PRECISION NOT NULL,
    due_time DOUBLE PRECISION NOT NULL,
    attempts BIGINT NOT NULL,
    PRIMARY KEY (endpoint, notice_id)
)""",
    "CREATE INDEX notices_by_due ON notices (endpoint, due_time)",
)


def upgrade() -> None:
    """Make the table and its index."""
    run_statements(STATEMENTS)
