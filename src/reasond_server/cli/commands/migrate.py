"""`reasond migrate`: brings the store to the schema of this release."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import typer

from reasond_server.assembly.stores import migrate_stores
from reasond_server.cli.options import Config, end
from reasond_server.cli.outcome import ExitCode
from reasond_server.cli.terminal import sanitize, write
from reasond_server.config import load

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

app = typer.Typer(rich_markup_mode=None)


@app.command("migrate")
def _migrate(*, config: Config = None) -> None:
    """Bring the database of [store] url to the schema of this release; stop servers of older releases first."""
    end(lambda: migrate(config, environ=os.environ))


def migrate(config: Path | None, *, environ: Mapping[str, str]) -> ExitCode:
    """Migrate the configured store, and print which one it is.

    Raises:
        SettingsError: the configuration is invalid, or the database cannot be migrated.
    """
    store = load(config, environ).settings.store
    write(sanitize(migrate_stores(url=store.url, data_dir=store.data_dir)))
    return ExitCode.OK
