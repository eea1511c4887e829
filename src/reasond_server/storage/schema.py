"""How a database gets to the newest revision, and which one it is at, by SQLAlchemy and Alembic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from reasond_server.storage.revisions import VERSION_TABLE, SchemaState, state_of_tables

if TYPE_CHECKING:
    from sqlalchemy import Connection


def state_of(connection: Connection) -> SchemaState:
    """Return how the database stands; one with tables but without a revision is not ours.

    Raises:
        SettingsError: the database holds something else.
    """
    names = sa.inspect(connection).get_table_names()
    statement = f"SELECT version_num FROM {VERSION_TABLE}"  # noqa: S608 - the name is a constant of ours
    return state_of_tables(names, connection.exec_driver_sql(statement).scalar() if VERSION_TABLE in names else None)


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
