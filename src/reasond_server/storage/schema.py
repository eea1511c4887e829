"""Which revision a database is at, and how it gets to the newest."""

from __future__ import annotations

from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from reasond_server.errors import SettingsError, shown

if TYPE_CHECKING:
    from sqlalchemy import Connection

REVISIONS: Final = ("0001", "0002")
"""All revisions in order; the last one is what this release works with."""


class SchemaState(Enum):
    """How a database stands to this release."""

    EMPTY = auto()
    BEHIND = auto()
    CURRENT = auto()
    AHEAD = auto()


def state_of(connection: Connection) -> SchemaState:
    """Return how the database stands; one with tables but without a revision is not ours.

    Raises:
        SettingsError: the database holds something else.
    """
    names = sa.inspect(connection).get_table_names()
    if "alembic_version" not in names:
        if "executions" in names or "agents" in names:
            raise SettingsError(
                "The database holds tables that reasond did not make",
                remedy="Give reasond a database, or a schema, of its own in [store] url.",
            )
        return SchemaState.EMPTY
    revision = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    if revision is None:
        return SchemaState.EMPTY
    if revision not in REVISIONS:
        return SchemaState.AHEAD
    return SchemaState.CURRENT if revision == REVISIONS[-1] else SchemaState.BEHIND


def require_current(state: SchemaState, *, where: str) -> None:
    """Refuse a database that this release does not work with; `where` names it, without password.

    Raises:
        SettingsError: it is empty, behind or ahead.
    """
    if state is SchemaState.AHEAD:
        raise SettingsError(
            f"The database {shown(where)} was migrated by a later release of reasond",
            remedy="Run that release, or restore the backup from before the migration.",
        )
    if state is not SchemaState.CURRENT:
        what = "has no tables yet" if state is SchemaState.EMPTY else "is behind this release"
        raise SettingsError(f"The database {shown(where)} {what}", remedy="Make a backup, then run `reasond migrate`.")


def upgrade(connection: Connection, revision: str = "head") -> None:
    """Run the migrations up to `revision` in the connection's transaction."""
    # Loaded here: a server whose schema is current never needs it.
    from alembic import command  # noqa: PLC0415 - as above
    from alembic.config import Config  # noqa: PLC0415 - as above

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, revision)
