"""What makes a new SQLite file as the newest revision leaves one; tests compare it with what the migrations make.

A new file is made without the migrations: Alembic, and SQLAlchemy under it, would be loaded for nothing else.
"""

from __future__ import annotations

from typing import Final

from reasond_server.storage.revisions import REVISIONS, VERSION_TABLE

_OF_AN_EXECUTION: Final = """
    FOREIGN KEY(tenant, execution_id) REFERENCES executions (tenant, execution_id) ON DELETE CASCADE
"""

STATEMENTS: Final = (
    f"""CREATE TABLE IF NOT EXISTS {VERSION_TABLE} (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
)""",
    """CREATE TABLE executions (
    tenant TEXT NOT NULL,
    execution_id TEXT NOT NULL,
    body TEXT NOT NULL,
    state TEXT NOT NULL,
    strategy TEXT NOT NULL,
    finish_reason TEXT NOT NULL,
    create_time DOUBLE NOT NULL,
    expire_time DOUBLE,
    version BIGINT NOT NULL,
    last_sequence BIGINT NOT NULL,
    size BIGINT NOT NULL,
    fence BIGINT NOT NULL,
    lease_owner TEXT NOT NULL,
    lease_until DOUBLE NOT NULL,
    is_cancel_requested BOOLEAN NOT NULL,
    is_keep_requested BOOLEAN DEFAULT 0 NOT NULL,
    "plan" TEXT NOT NULL,
    PRIMARY KEY (tenant, execution_id)
)""",
    "CREATE UNIQUE INDEX executions_by_id ON executions (execution_id)",
    "CREATE INDEX executions_by_time ON executions (tenant, create_time, execution_id)",
    "CREATE INDEX executions_by_lease ON executions (lease_until) WHERE state = 'running'",
    "CREATE INDEX executions_by_expiry ON executions (expire_time) WHERE expire_time IS NOT NULL",
    f"""CREATE TABLE entries (
    tenant TEXT NOT NULL,
    execution_id TEXT NOT NULL,
    position BIGINT NOT NULL,
    sequence BIGINT,
    "key" TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (tenant, execution_id, position),
    {_OF_AN_EXECUTION}
)""",
    f"""CREATE TABLE claims (
    tenant TEXT NOT NULL,
    request_id TEXT NOT NULL,
    execution_id TEXT NOT NULL,
    digest TEXT NOT NULL,
    PRIMARY KEY (tenant, request_id),
    {_OF_AN_EXECUTION}
)""",
    "CREATE INDEX claims_by_execution ON claims (tenant, execution_id)",
    """CREATE TABLE forgotten (
    tenant TEXT NOT NULL,
    execution_id TEXT NOT NULL,
    forget_time DOUBLE NOT NULL,
    PRIMARY KEY (tenant, execution_id)
)""",
    "CREATE INDEX forgotten_by_time ON forgotten (forget_time)",
    """CREATE TABLE agents (
    tenant TEXT NOT NULL,
    agent_id TEXT NOT NULL,
    etag TEXT NOT NULL,
    body TEXT NOT NULL,
    expire_time DOUBLE,
    PRIMARY KEY (tenant, agent_id)
)""",
    "CREATE INDEX agents_by_expiry ON agents (expire_time) WHERE expire_time IS NOT NULL",
    f"INSERT INTO {VERSION_TABLE} (version_num) VALUES ('{REVISIONS[-1]}')",  # noqa: S608 - both are constants of ours
)
"""All of it in order, for an empty file and one transaction."""
