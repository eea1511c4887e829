"""`reasond worker`: works for the engine of repairs until it is stopped."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import Annotated

import typer

from reasond_server.assembly.worker import work as work_until_stopped
from reasond_server.cli.options import Config, Environ, command
from reasond_server.cli.outcome import ExitCode
from reasond_server.cli.processes import write_logs
from reasond_server.cli.terminal import write
from reasond_server.config import load

app = typer.Typer(rich_markup_mode=None)


class Queue(StrEnum):
    """A queue of the engine of repairs."""

    MODELS = "models"
    CHECKS = "checks"


@command(app, "worker")
def work(
    *,
    config: Config = None,
    queue: Annotated[
        list[Queue] | None,
        typer.Option(help="The queue to work on; checks needs no key of a model. Repeatable; without it both."),
    ] = None,
    environ: Environ,
) -> ExitCode:
    """Do the work of repairs that [engine] hands out, until SIGTERM or Ctrl-C. It serves nobody."""
    queues = [each.value for each in queue or Queue]
    loaded = load(config, environ)
    write_logs(loaded.settings.logs, is_dev=False)

    def announce(address: str) -> None:
        write(f"working on {' and '.join(queues)} of {address}")

    asyncio.run(work_until_stopped(loaded, environ=environ, queues=queues, on_ready=announce))
    return ExitCode.OK
