"""Where Alembic starts: runs the revisions on the connection of `storage.migration_runner`, all or none."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"])
with context.begin_transaction():
    context.run_migrations()
