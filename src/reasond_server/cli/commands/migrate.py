"""`reasond migrate`: brings the store to the schema of this release."""

from __future__ import annotations

import typer

from reasond_server.assembly.stores import migrate_stores
from reasond_server.cli.options import Config, Environ, command
from reasond_server.cli.outcome import ExitCode
from reasond_server.cli.terminal import sanitize, write
from reasond_server.config import load

app = typer.Typer(rich_markup_mode=None)


@command(app, "migrate")
def migrate(config: Config = None, *, environ: Environ) -> ExitCode:
    """Bring the database of [store] url to the schema of this release; stop servers of older releases first."""
    store = load(config, environ).settings.store
    write(sanitize(migrate_stores(url=store.url, data_dir=store.data_dir)))
    return ExitCode.OK
