"""All tables: event logs, agents, sessions, snapshots, and what engines keep."""

from __future__ import annotations

from typing import Final

from reasond_server.storage.migration_runner import run_statements

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
    kind {text} DEFAULT 'reasoning' NOT NULL,
    wake_time DOUBLE PRECISION,
    session_id {text} DEFAULT '' NOT NULL,
    PRIMARY KEY (tenant, execution_id)
)""",
    "CREATE UNIQUE INDEX executions_by_id ON executions (execution_id)",
    "CREATE INDEX executions_by_time ON executions (tenant, create_time, execution_id)",
    "CREATE INDEX executions_by_state ON executions (tenant, state, create_time, execution_id)",
    "CREATE INDEX executions_by_lease ON executions (lease_until) WHERE state = 'running'",
    "CREATE INDEX executions_by_expiry ON executions (expire_time) WHERE expire_time IS NOT NULL",
    # When a suspended execution is taken: one that somebody wants stopped at once, one without a time never.
    """CREATE INDEX executions_to_wake ON executions ((CASE WHEN is_cancel_requested THEN 0 ELSE wake_time END))
    WHERE state = 'suspended'""",
    # Which execution of a session is open is stored nowhere else: this index allows at most one.
    """CREATE UNIQUE INDEX executions_open_in_session ON executions (tenant, session_id)
    WHERE session_id <> '' AND state IN ('running', 'suspended')""",
    """CREATE INDEX executions_by_session ON executions (tenant, session_id, create_time, execution_id)
    WHERE session_id <> ''""",
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
    # What engines keep of the executions that they work out: payloads, records of calls, batches of events.
    """CREATE TABLE payloads (
    tenant {text} NOT NULL,
    execution_id {text} NOT NULL,
    name {text} NOT NULL,
    body {bytes} NOT NULL,
    PRIMARY KEY (tenant, execution_id, name),
    FOREIGN KEY (tenant, execution_id) REFERENCES executions (tenant, execution_id) ON DELETE CASCADE
)""",
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
    """CREATE TABLE agents (
    tenant {text} NOT NULL,
    agent_id {text} NOT NULL,
    etag TEXT NOT NULL,
    body TEXT NOT NULL,
    expire_time DOUBLE PRECISION,
    PRIMARY KEY (tenant, agent_id)
)""",
    "CREATE INDEX agents_by_expiry ON agents (expire_time) WHERE expire_time IS NOT NULL",
    # Whoever changes the snapshots of a tenant holds its row.
    "CREATE TABLE snapshot_tenants (tenant {text} NOT NULL, PRIMARY KEY (tenant))",
    """CREATE TABLE snapshots (
    tenant {text} NOT NULL,
    snapshot_id {text} NOT NULL,
    create_time DOUBLE PRECISION NOT NULL,
    expire_time DOUBLE PRECISION NOT NULL,
    manifest_bytes BIGINT NOT NULL,
    manifest TEXT NOT NULL,
    PRIMARY KEY (tenant, snapshot_id)
)""",
    "CREATE INDEX snapshots_by_expiry ON snapshots (expire_time)",
    # Which contents each snapshot has, each once.
    """CREATE TABLE snapshot_files (
    tenant {text} NOT NULL,
    snapshot_id {text} NOT NULL,
    digest {text} NOT NULL,
    size_bytes BIGINT NOT NULL,
    PRIMARY KEY (tenant, snapshot_id, digest, size_bytes)
)""",
    "CREATE INDEX snapshot_files_by_content ON snapshot_files (tenant, digest, size_bytes, snapshot_id)",
    # The contents, by tenant: no tenant learns what another one has. Without content it is still missing.
    """CREATE TABLE snapshot_contents (
    tenant {text} NOT NULL,
    digest {text} NOT NULL,
    size_bytes BIGINT NOT NULL,
    content {bytes},
    PRIMARY KEY (tenant, digest, size_bytes)
)""",
    # The latest time that the store had, so that a server whose clock is wrong at its start can notice: one row, id 1.
    "CREATE TABLE store_clock (id BIGINT NOT NULL, seen_time DOUBLE PRECISION NOT NULL, PRIMARY KEY (id))",
)


def upgrade() -> None:
    """Make the tables and their indexes."""
    run_statements(STATEMENTS)
