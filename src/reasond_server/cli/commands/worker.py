"""`reasond worker`: works for the engine of repairs until it is stopped."""

from __future__ import annotations

import asyncio
import os
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from reasond_server.assembly.worker import work as work_until_stopped
from reasond_server.cli.options import Config, end
from reasond_server.cli.outcome import ExitCode
from reasond_server.cli.processes import write_logs
from reasond_server.cli.terminal import write
from reasond_server.config import load

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

app = typer.Typer(rich_markup_mode=None)


@app.command("worker")
def _worker(
    *,
    config: Config = None,
    queue: Annotated[
        list[Queue] | None,
        typer.Option(help="The queue to work on; checks needs no key of a model. Repeatable; without it both."),
    ] = None,
) -> None:
    """Do the work of repairs that [engine] hands out, until SIGTERM or Ctrl-C. It serves nobody."""
    end(lambda: work(config=config, queues=[each.value for each in queue or Queue]))


class Queue(StrEnum):
    """A queue of the engine of repairs."""

    MODELS = "models"
    CHECKS = "checks"


def work(*, config: Path | None, queues: Sequence[str]) -> ExitCode:
    """Work on `queues` until a signal ends it.

    Raises:
        SettingsError: the configuration is refused, names no engine, or cannot be used.
    """
    loaded = load(config, os.environ)
    write_logs(loaded.settings.logs, is_dev=False)

    def announce(address: str) -> None:
        write(f"working on {' and '.join(queues)} of {address}")

    asyncio.run(work_until_stopped(loaded, environ=os.environ, queues=queues, on_ready=announce))
    return ExitCode.OK
