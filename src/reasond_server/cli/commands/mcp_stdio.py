"""`reasond mcp`: a server for a host on this machine, which starts it and speaks to its stdin and stdout."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
from typing import TYPE_CHECKING, Final

import typer

from reasond_server.cli.options import Config, Environ, command
from reasond_server.cli.outcome import CommandError, ExitCode
from reasond_server.cli.processes import write_logs
from reasond_server.config import LoadedSettings, load

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reasond_server.assembly.app import Server

app = typer.Typer(rich_markup_mode=None)

# Other programs of this machine reach it too, with its token; several hosts start one each.
_OWN: Final = {
    "REASOND__SERVER__GRPC_ADDRESS": "127.0.0.1:0",
    "REASOND__SERVER__HTTP_ADDRESS": "127.0.0.1:0",
    "REASOND__SERVER__WORKERS": "1",
    "REASOND__METRICS__ADDRESS": "",
    "REASOND__MCP__ENABLED": "true",
}


@command(app, "mcp")
def serve_host(*, config: Config = None, environ: Environ) -> ExitCode:
    """Serve the host that starts this command, over stdin and stdout, until it closes them.

    With `[store] url` executions outlive the command; else they are in memory.
    """
    if importlib.util.find_spec("mcp") is None:
        raise CommandError(
            "The package mcp is not installed.",
            code=ExitCode.BAD_REQUEST,
            remedy="Install reasond-server[mcp].",
        )
    chosen = {**environ, **_OWN}
    loaded = load(config, chosen)
    write_logs(loaded.settings.logs, is_dev=True)
    asyncio.run(_serve(loaded, chosen))
    return ExitCode.OK


async def _serve(loaded: LoadedSettings, environ: Mapping[str, str]) -> None:
    from reasond_server.assembly.app import Server  # noqa: PLC0415 - a second that `--help` does not need

    server = Server(loaded, environ=environ, dev=True)
    is_told = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, is_told.set)
    try:
        await server.start()
        speaking = asyncio.create_task(_speak(server), name="MCP host")
        waiting = asyncio.create_task(is_told.wait(), name="signal")
        await asyncio.wait({speaking, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if speaking.done():
            speaking.result()
    finally:
        await server.stop()
    if is_told.is_set():
        # A thread of the package waits for a line of the host, and nothing but the host wakes it.
        os._exit(ExitCode.OK)


async def _speak(server: Server) -> None:
    """Answer the host until it closes stdin."""
    from mcp.server.stdio import stdio_server  # noqa: PLC0415 - see above

    host = server.build_mcp_server()
    async with stdio_server() as (reading, writing):
        await host.run(reading, writing, host.create_initialization_options())
