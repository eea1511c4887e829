"""The schema, stated once: one module per revision; a revision that was released is never edited.

Alembic runs the revisions that a database lacks. A new SQLite file is made by the same `STATEMENTS`, without Alembic.
Times are seconds since 1970. To add a revision, write its module and append it to `IN_ORDER`.
A revision is called `NNNN_serves_MMMM`: releases since that of MMMM read and write its schema, so that it only adds.
"""

from __future__ import annotations

from typing import Final

from reasond_server.storage.migrations.versions import r0001_tables, r0002_notices

IN_ORDER: Final = (r0001_tables, r0002_notices)
"""All revisions, oldest first."""
