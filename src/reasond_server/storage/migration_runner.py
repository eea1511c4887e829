"""Runs the migrations of an existing database; SQLAlchemy and Alembic are used only for this."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import Connection

MIGRATIONS: Final = Path(__file__).parent / "migrations"
"""The folder that Alembic reads: its `env.py`, and the revisions in `versions`."""


def upgrade_schema(connection: Connection) -> None:
    """Run the migrations that the database lacks in the connection's transaction."""
    from alembic import command  # noqa: PLC0415 - a server whose schema is current never needs it
    from alembic.config import Config  # noqa: PLC0415 - as above

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def run_statements(statements: Iterable[str]) -> None:
    """Run the statements of a revision in the current migration of Alembic."""
    from alembic import op  # noqa: PLC0415 - as above

    connection = op.get_bind()
    for statement in render_statements(connection.dialect.name, statements):
        connection.exec_driver_sql(statement)


def render_statements(database: str, statements: Iterable[str]) -> list[str]:
    """Return the statements of a revision for `database`, which is "sqlite" or "postgresql".

    `{text}` stands for a text type that is compared byte by byte, as in Python and SQLite, so that the order of pages
    does not depend on the locale of a database. `{bytes}` stands for a type of bytes.
    """
    is_postgres = database == "postgresql"
    text, binary = ('TEXT COLLATE "C"', "BYTEA") if is_postgres else ("TEXT", "BLOB")
    return [statement.format(text=text, bytes=binary) for statement in statements]
