"""The revision of a database, its comparison with this release, and the statements for a new database."""

from __future__ import annotations

import logging
from collections.abc import Collection
from enum import Enum, auto
from typing import Final

from reasond_server.errors.base import SettingsError, show
from reasond_server.storage.migration_runner import render_statements
from reasond_server.storage.migrations.versions import IN_ORDER

REVISIONS: Final = tuple(module.revision for module in IN_ORDER)
"""All revisions in order; this release needs the last one."""
VERSION_TABLE: Final = "alembic_version"
"""The table in which Alembic stores the revision of a database."""
_SERVES: Final = "_serves_"
TABLES: Final = frozenset(
    {
        "executions",
        "entries",
        "claims",
        "forgotten",
        "agents",
        "sessions",
        "snapshot_tenants",
        "snapshots",
        "snapshot_files",
        "snapshot_contents",
        "payloads",
        "store_clock",
        "notices",
    }
)
"""The tables of this release."""
_MAIN_TABLE: Final = "executions"
_NAMED: Final = 3
_MAKE_VERSION_TABLE: Final = f"""CREATE TABLE IF NOT EXISTS {VERSION_TABLE} (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
)"""
_NOTE_REVISION: Final = f"INSERT INTO {VERSION_TABLE} (version_num) VALUES ('{REVISIONS[-1]}')"  # noqa: S608 - constants


_log = logging.getLogger("reasond.store")


class SchemaState(Enum):
    """The schema of a database compared with that of this release.

    EXPANDED: a later release only added to it, so that this one can go on, as in a rolling update that is taken back.
    """

    EMPTY = auto()
    BEHIND = auto()
    CURRENT = auto()
    EXPANDED = auto()
    AHEAD = auto()


def read_schema_state(names: Collection[str], revision: str | None) -> SchemaState:
    """Return the state of a database with tables of these names; `revision` is from its version table.

    A revision names the oldest one whose release may use its schema: "0003_serves_0002".

    Raises:
        SettingsError: the tables belong to another program.
    """
    others = set(names) - {VERSION_TABLE}
    if revision is None and not others:
        return SchemaState.EMPTY
    # Every later release still has the main table.
    if revision is None or (revision not in REVISIONS and _MAIN_TABLE not in others):
        raise SettingsError(
            f"The database holds tables that reasond did not make{_list_some(others)}",
            remedy="Give reasond a database, or a schema, of its own in [store] url.",
        )
    if revision not in REVISIONS:
        return (
            SchemaState.EXPANDED
            if find_oldest_served(revision) in {one.partition(_SERVES)[0] for one in REVISIONS}
            else SchemaState.AHEAD
        )
    return SchemaState.CURRENT if revision == REVISIONS[-1] else SchemaState.BEHIND


def find_oldest_served(revision: str) -> str:
    """Return the number of the oldest revision whose release may use the schema; empty if none but its own may."""
    return revision.partition(_SERVES)[2]


def _list_some(names: Collection[str]) -> str:
    """Return a few of `names` for a message; an empty text if there are none."""
    few = [show(name) for name in sorted(names)[:_NAMED]]
    return f" ({', '.join(few)}{' and others' if len(names) > _NAMED else ''})" if few else ""


def require_current(state: SchemaState, *, where: str) -> None:
    """Refuse a database whose schema this release cannot use; `where` names the database, without a password.

    Raises:
        SettingsError: the database is empty, behind or ahead.
    """
    if state is SchemaState.AHEAD:
        raise SettingsError(
            f"The database {show(where)} was migrated by a later release of reasond",
            remedy="Run that release, or restore the backup from before the migration.",
        )
    if state is SchemaState.EXPANDED:
        _log.warning("a later release added to the schema of the store; this release goes on with it")
    elif state is not SchemaState.CURRENT:
        what = "has no tables yet" if state is SchemaState.EMPTY else "is behind this release"
        raise SettingsError(f"The database {show(where)} {what}", remedy="Make a backup, then run `reasond migrate`.")


def build_sqlite_statements() -> list[str]:
    """Return the statements that create the schema in an empty SQLite file, in order, for one transaction."""
    made = [statement for module in IN_ORDER for statement in render_statements("sqlite", module.STATEMENTS)]
    return [_MAKE_VERSION_TABLE, *made, _NOTE_REVISION]
