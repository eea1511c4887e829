"""Snapshots of clients' files: manifests, the contents that they have, and the contents themselves."""

from __future__ import annotations

from typing import Final

from reasond_server.storage.migrating import run_statements

revision = "0005"
down_revision = "0004"

STATEMENTS: Final = (
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
)


def upgrade() -> None:
    """Make the tables."""
    run_statements(STATEMENTS)
