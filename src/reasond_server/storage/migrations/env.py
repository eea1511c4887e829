"""Where Alembic starts: runs the revisions on the connection that `storage.schema` hands over, all or none."""

from __future__ import annotations

from alembic import context

from reasond_server.storage.tables import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
