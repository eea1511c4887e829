"""`reasond mcp`: a server for a host on this machine, which starts it and speaks to its stdin and stdout."""

from __future__ import annotations

import asyncio
import importlib.util
from typing import TYPE_CHECKING, Final

import typer

from reasond_server.cli.options import Config, Environ, command
from reasond_server.cli.outcome import CommandError, ExitCode
from reasond_server.cli.processes import end_within, write_logs
from reasond_server.config import load

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reasond_server.config import LoadedSettings

app = typer.Typer(rich_markup_mode=None)

_CLOSING_S: Final = 2.0
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
    # A thread may still wait for a line of the host.
    end_within(_CLOSING_S)
    return ExitCode.OK


async def _serve(loaded: LoadedSettings, environ: Mapping[str, str]) -> None:
    from mcp.server.stdio import stdio_server  # noqa: PLC0415 - with the next, 2 s that `--help` does not need

    from reasond_server.assembly.app import Server  # noqa: PLC0415 - see above

    server = Server(loaded, environ=environ, dev=True)
    try:
        await server.start()
        host = server.build_mcp_server()
        async with stdio_server() as (reading, writing):
            await host.run(reading, writing, host.create_initialization_options())
    finally:
        await server.stop()
