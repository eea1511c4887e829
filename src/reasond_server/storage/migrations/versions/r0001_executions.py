"""The event logs: executions, their entries, request ids, and the ids of executions past their retention."""

from __future__ import annotations

from typing import Final

from reasond_server.storage.migrating import run_statements

revision = "0001"
down_revision = None

STATEMENTS: Final = (
    # One row per execution: what lists show, and the head of its log.
    """CREATE TABLE executions (
    tenant {text} NOT NULL,
    execution_id {text} NOT NULL,
    body TEXT NOT NULL,
    state {text} NOT NULL,
    strategy {text} NOT NULL,
    finish_reason {text} NOT NULL,
    create_time DOUBLE PRECISION NOT NULL,
    expire_time DOUBLE PRECISION,
    version BIGINT NOT NULL,
    last_sequence BIGINT NOT NULL,
    size BIGINT NOT NULL,
    fence BIGINT NOT NULL,
    lease_owner {text} NOT NULL,
    lease_until DOUBLE PRECISION NOT NULL,
    is_cancel_requested BOOLEAN NOT NULL,
    is_keep_requested BOOLEAN DEFAULT FALSE NOT NULL,
    plan TEXT NOT NULL,
    PRIMARY KEY (tenant, execution_id)
)""",
    "CREATE UNIQUE INDEX executions_by_id ON executions (execution_id)",
    "CREATE INDEX executions_by_time ON executions (tenant, create_time, execution_id)",
    "CREATE INDEX executions_by_lease ON executions (lease_until) WHERE state = 'running'",
    "CREATE INDEX executions_by_expiry ON executions (expire_time) WHERE expire_time IS NOT NULL",
    # The logs: an event has a sequence number, a record has a key.
    """CREATE TABLE entries (
    tenant {text} NOT NULL,
    execution_id {text} NOT NULL,
    position BIGINT NOT NULL,
    sequence BIGINT,
    key TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (tenant, execution_id, position),
    FOREIGN KEY (tenant, execution_id) REFERENCES executions (tenant, execution_id) ON DELETE CASCADE
)""",
    # Which execution a request id stands for.
    """CREATE TABLE claims (
    tenant {text} NOT NULL,
    request_id {text} NOT NULL,
    execution_id {text} NOT NULL,
    digest TEXT NOT NULL,
    PRIMARY KEY (tenant, request_id),
    FOREIGN KEY (tenant, execution_id) REFERENCES executions (tenant, execution_id) ON DELETE CASCADE
)""",
    "CREATE INDEX claims_by_execution ON claims (tenant, execution_id)",
    # The ids of executions past their retention, so that a late reader is told that it came too late.
    """CREATE TABLE forgotten (
    tenant {text} NOT NULL,
    execution_id {text} NOT NULL,
    forget_time DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (tenant, execution_id)
)""",
    "CREATE INDEX forgotten_by_time ON forgotten (forget_time)",
)


def upgrade() -> None:
    """Make the tables."""
    run_statements(STATEMENTS)
