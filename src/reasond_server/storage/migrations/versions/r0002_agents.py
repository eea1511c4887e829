"""The directory of agents moves into the same database."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make the table of agents."""
    text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.create_table(
        "agents",
        sa.Column("tenant", text, primary_key=True),
        sa.Column("agent_id", text, primary_key=True),
        sa.Column("etag", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("expire_time", sa.Double),
    )
    expiring = sa.text("expire_time IS NOT NULL")
    op.create_index("agents_by_expiry", "agents", ["expire_time"], sqlite_where=expiring, postgresql_where=expiring)
