"""Migrations make the schema, the server checks it at its start, and each revision keeps the data."""

import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
import sqlalchemy as sa
from alembic.config import Config
from alembic.script import ScriptDirectory

from reasond_server.assembly.stores import StoreOptions, examine_stores, migrate_stores, open_stores
from reasond_server.errors.base import SettingsError
from reasond_server.errors.limits import StoreUnavailableError
from reasond_server.eventlog.store import Lease
from reasond_server.storage import migration_runner, revisions
from reasond_server.storage.migration_runner import upgrade_schema
from reasond_server.storage.migrations.versions import IN_ORDER
from reasond_server.storage.postgres_pool import read_database_state
from reasond_server.storage.revisions import REVISIONS, SchemaState, require_current
from reasond_server.storage.sqlite_file import SqliteFile, read_file_state
from reasond_server.types import ExecutionState
from tests.unit.eventlog.stored.conftest import Time

EXECUTION = (
    "INSERT INTO executions (tenant, execution_id, body, state, strategy, finish_reason, create_time, version, "
    "last_sequence, size, fence, lease_owner, lease_until, is_cancel_requested, plan) VALUES "
    "('acme', 'e1', '{}', 'running', 's', '', 1.5, 0, 0, 0, 1, 'o', 0, FALSE, 'the plan')"
)

LATER = """from reasond_server.storage.migration_runner import run_statements

revision = "later_serves_{}"
down_revision = "{}"


def upgrade() -> None:
    run_statements((
        "ALTER TABLE executions ADD COLUMN color {{text}} DEFAULT 'red' NOT NULL",
        "CREATE TABLE colors (color {{text}} NOT NULL)",
    ))
"""
"""A revision of the next release: a column with a default, and a table."""
SERVED: Final = REVISIONS[-1].partition("_")[0]


@pytest.fixture
def become_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function that turns the code into that of a later release, which has one more revision."""

    def become() -> None:
        folder = tmp_path / "migrations"
        shutil.copytree(migration_runner.MIGRATIONS, folder)
        (folder / "versions" / "later.py").write_text(LATER.format(SERVED, REVISIONS[-1]), encoding="utf-8")
        monkeypatch.setattr(migration_runner, "MIGRATIONS", folder)
        monkeypatch.setattr(revisions, "REVISIONS", (*REVISIONS, f"later_serves_{SERVED}"))

    return become


@pytest.fixture(params=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sa.Engine]:
    """An empty database of either kind."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'reasond.db'}"
    else:
        url = request.getfixturevalue("postgres").new_database().replace("postgresql://", "postgresql+psycopg://")
    engine = sa.create_engine(url)
    yield engine
    engine.dispose()


def state_of(engine: sa.Engine) -> SchemaState:
    """Return the state of the schema that a server reports at its start."""
    if engine.dialect.name == "sqlite":
        return read_file_state(Path(engine.url.database or ""))
    return read_database_state(engine.url.set(drivername="postgresql").render_as_string(hide_password=False))


def test_an_upgrade_keeps_the_data(engine: sa.Engine, become_later: Callable[[], None]) -> None:
    assert state_of(engine) is SchemaState.EMPTY
    with engine.begin() as connection:
        upgrade_schema(connection)
        connection.exec_driver_sql(EXECUTION)
    assert state_of(engine) is SchemaState.CURRENT
    become_later()
    assert state_of(engine) is SchemaState.BEHIND
    with engine.begin() as connection:
        upgrade_schema(connection)
        assert connection.exec_driver_sql("SELECT plan, create_time FROM executions").all() == [("the plan", 1.5)]
        assert connection.exec_driver_sql("SELECT count(*) FROM colors").scalar() == 0
        # A server of the release before writes this row during a rolling update.
        connection.exec_driver_sql(EXECUTION.replace("'e1'", "'e2'"))
        rows = connection.exec_driver_sql("SELECT kind, wake_time, color FROM executions").all()
        assert rows == [("reasoning", None, "red"), ("reasoning", None, "red")]
    assert state_of(engine) is SchemaState.CURRENT


async def test_the_release_before_reads_and_writes_what_a_later_one_migrated(
    engine: sa.Engine,
    become_later: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    become_later()
    with engine.begin() as connection:
        upgrade_schema(connection)
        connection.exec_driver_sql(EXECUTION.replace("'{}'", f"'{BODY}'"))
    monkeypatch.undo()
    assert state_of(engine) is SchemaState.EXPANDED
    url = engine.url.set(drivername=engine.dialect.name).render_as_string(hide_password=False)
    time = Time()
    options = StoreOptions(url=url, data_dir="", now=time.now, monotonic=time.monotonic, max_bytes=10**6, max_agents=1)
    assert "has the schema" in migrate_stores(url=url, data_dir="")
    stores = await open_stores(options)
    try:
        first = await stores.executions.find("acme", "e1")
        made = replace(first, execution_id="e2", state=ExecutionState.RUNNING, last_sequence=0)
        await stores.executions.create(made, digest="", plan="", lease=Lease(owner="o", seconds=15.0))
        assert (await stores.executions.find("acme", "e2")).model == "m"
    finally:
        await stores.aclose()
    assert state_of(engine) is SchemaState.EXPANDED
    assert "a later release added to the schema of the store" in caplog.text


_ADDS: Final = re.compile(
    r"CREATE (TABLE|INDEX)|INSERT|UPDATE|ALTER TABLE \w+ ADD COLUMN (?!((?!DEFAULT).)*NOT NULL((?!DEFAULT).)*$)",
    re.DOTALL,
)


def find_revisions_without_a_way_back(modules: Sequence[Any]) -> list[str]:
    """Return the revisions whose schema the release before cannot use, or that do not say that it can."""
    found = []
    for before, module in pairwise(modules):
        served = revisions.find_oldest_served(module.revision)
        if served != before.revision.partition("_")[0] or not all(map(_ADDS.match, module.STATEMENTS)):
            found.append(module.revision)
    return found


def test_the_release_before_each_revision_can_use_its_schema() -> None:
    def later(name: str, *statements: str) -> Any:
        return SimpleNamespace(revision=name, STATEMENTS=statements)

    first, column = IN_ORDER[0], "ALTER TABLE agents ADD COLUMN color TEXT"
    assert find_revisions_without_a_way_back(IN_ORDER) == []
    assert (
        find_revisions_without_a_way_back([first, later("0002_serves_0001", column, "CREATE TABLE a (b TEXT)")]) == []
    )
    for bad in (
        later("0002", column),
        later("0002_serves_0009", column),
        later("0002_serves_0001", "DROP TABLE agents"),
        later("0002_serves_0001", f"{column} NOT NULL"),
        later("0002_serves_0001", "CREATE UNIQUE INDEX a ON agents (body)"),
    ):
        assert find_revisions_without_a_way_back([first, bad]) == [bad.revision]


def test_a_migration_that_fails_changes_nothing(engine: sa.Engine, become_later: Callable[[], None]) -> None:
    with engine.begin() as connection:
        upgrade_schema(connection)
        connection.exec_driver_sql("CREATE TABLE colors (mine TEXT)")
    become_later()
    with pytest.raises(sa.exc.DBAPIError), engine.begin() as connection:
        upgrade_schema(connection)
    assert state_of(engine) is SchemaState.BEHIND


def test_a_later_release_and_foreign_tables_are_told_apart(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE executions (mine TEXT)")
    with pytest.raises(SettingsError, match="that reasond did not make"):
        state_of(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE executions")
        upgrade_schema(connection)
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    assert state_of(engine) is SchemaState.AHEAD


def test_the_known_revisions_are_those_of_the_migrations() -> None:
    config = Config()
    config.set_main_option("script_location", str(migration_runner.MIGRATIONS))
    config.set_main_option("path_separator", "os")
    scripts = ScriptDirectory.from_config(config).walk_revisions()
    assert tuple(script.revision for script in scripts)[::-1] == REVISIONS


@pytest.mark.parametrize("state", [SchemaState.EMPTY, SchemaState.BEHIND])
def test_what_is_not_current_is_refused_with_the_command_that_helps(state: SchemaState) -> None:
    with pytest.raises(SettingsError) as caught:
        require_current(state, where="db at host")
    assert "'db at host'" in caught.value.message
    assert "`reasond migrate`" in caught.value.remedy


async def test_a_file_that_is_behind_or_ahead_is_not_opened_until_it_is_migrated(
    tmp_path: Path, become_later: Callable[[], None]
) -> None:
    path, time = tmp_path / "reasond.db", Time()
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        upgrade_schema(connection)
        connection.exec_driver_sql(EXECUTION.replace("'{}'", f"'{BODY}'"))

    async def open_and_close() -> None:
        stores = await open_stores(
            StoreOptions(
                url="",
                data_dir=str(tmp_path),
                now=time.now,
                monotonic=time.monotonic,
                max_bytes=1,
                max_agents=1,
            )
        )
        try:
            assert (await stores.executions.find("acme", "e1")).model == "m"
        finally:
            await stores.aclose()

    become_later()
    with pytest.raises(SettingsError, match="is behind this release"):
        await open_and_close()
    with pytest.raises(SettingsError, match="is behind this release"):
        examine_stores(url="", data_dir=str(tmp_path))
    assert "has the schema of this release" in migrate_stores(url="", data_dir=str(tmp_path))
    await open_and_close()
    assert str(path) in examine_stores(url="", data_dir=str(tmp_path))
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    engine.dispose()
    for act in (migrate_stores, examine_stores):
        with pytest.raises(SettingsError, match="a later release of reasond"):
            act(url="", data_dir=str(tmp_path))
    with pytest.raises(SettingsError, match="a later release of reasond"):
        await open_and_close()


def test_nothing_is_made_by_looking(tmp_path: Path) -> None:
    assert "made at the first start" in examine_stores(url="", data_dir=str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()
    assert "in memory" in examine_stores(url="memory:", data_dir="")
    assert "memory" in migrate_stores(url="memory:", data_dir="")


BODY = (
    '{"v":1,"body":{"execution_id":"e1","tenant":"acme","state":"running","strategy":"s","strategy_source":"system",'
    '"model":"m","create_time":"2026-11-21T00:00:00Z"}}'
)


def test_a_new_file_has_exactly_the_schema_that_the_migrations_make(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'migrated.db'}")
    with engine.begin() as connection:
        upgrade_schema(connection)
    engine.dispose()
    migrate_stores(url="", data_dir=str(tmp_path))
    assert schema_of(tmp_path / "reasond.db") == schema_of(tmp_path / "migrated.db")


def schema_of(path: Path) -> tuple[list[tuple[str, str, str | None]], list[tuple[str]]]:
    """Return the statements that made the SQLite schema, with spaces normalised, and the revision."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name").fetchall()
        revision = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    return [(kind, name, sql and re.sub(r"\s*([(),])\s*|\s+", r" \1 ", sql)) for kind, name, sql in rows], revision


def test_a_file_whose_migration_fails_keeps_what_it_had_and_is_refused_in_our_words(
    tmp_path: Path, become_later: Callable[[], None]
) -> None:
    path = tmp_path / "reasond.db"
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        upgrade_schema(connection)
        connection.exec_driver_sql("CREATE TABLE colors (mine TEXT)")
    engine.dispose()
    become_later()
    before = schema_of(path)
    with pytest.raises(SettingsError, match="cannot be opened") as caught:
        migrate_stores(url="", data_dir=str(tmp_path))
    assert "already exists" not in caught.value.full_message
    assert schema_of(path) == before


def test_a_file_that_was_migrated_down_to_nothing_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "reasond.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
    assert "made at the first start" in examine_stores(url="", data_dir=str(tmp_path))
    migrate_stores(url="", data_dir=str(tmp_path))
    assert "made at the first start" not in examine_stores(url="", data_dir=str(tmp_path))


async def test_a_file_that_cannot_be_written_any_more_says_when_to_retry(tmp_path: Path) -> None:
    file = await SqliteFile.open(tmp_path / "reasond.db")
    try:
        with closing(sqlite3.connect(tmp_path / "reasond.db", isolation_level=None)) as other:
            other.execute("DROP TABLE forgotten")
        with pytest.raises(StoreUnavailableError) as caught:
            await file.write(
                lambda connection: connection.execute("DELETE FROM forgotten").close(), then=lambda _: None
            )
        assert "forgotten" not in caught.value.full_message
        assert await file.read(lambda connection: connection.execute("SELECT count(*) FROM agents").fetchone()) == (0,)
    finally:
        await file.aclose()
