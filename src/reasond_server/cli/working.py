"""`reasond worker`: works for the engine of repairs until it is stopped."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from reasond_server.assembly.worker import work as work_until_stopped
from reasond_server.cli.outcome import ExitCode
from reasond_server.cli.serving import write_logs
from reasond_server.cli.terminal import write
from reasond_server.config import load

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


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
