"""`reasond config check` and `reasond config show`."""

from __future__ import annotations

import json
import tomllib
from typing import Annotated

import typer

from reasond_server.cli.options import AsJson, Config, Dev, Environ, command, describe_source
from reasond_server.cli.outcome import ExitCode, warn
from reasond_server.cli.terminal import escape_controls, write
from reasond_server.config import list_rows, load

app = typer.Typer(rich_markup_mode=None)
config_group = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
app.add_typer(config_group, name="config")


@command(config_group, "check", short_help="Say whether a server would start.")
def check(config: Config = None, *, environ: Environ, is_dev: Dev = False) -> ExitCode:
    """Say whether a server would start with the configuration: exit code 0 if so, else 2."""
    # Imported here: it imports the whole server, which the help and `show` do not need.
    from reasond_server.cli.startup_checks import require_startable  # noqa: PLC0415 - see above

    loaded = require_startable(config, environ, is_dev=is_dev)
    for warning in loaded.find_exposed_files():
        warn(warning)
    names = ", ".join(loaded.settings.reasoning.enabled_strategies) or "none"
    write(f"ok: {describe_source(loaded)}; strategies: {names}")
    return ExitCode.OK


@command(config_group, "show", short_help="Show every key with its value.")
def show(
    config: Config = None,
    *,
    environ: Environ,
    has_origin: Annotated[bool, typer.Option("--origin", help="Say where each value comes from.")] = False,
    as_json: AsJson = False,
) -> ExitCode:
    """Show every key with the value that applies; secrets are shown as ***."""
    loaded = load(config, environ)
    rows = list_rows(loaded.settings, loaded.origins)
    write(_format_json(rows, has_origin=has_origin) if as_json else _format_text(rows, has_origin=has_origin))
    return ExitCode.OK


def _format_text(rows: tuple[tuple[str, str, str], ...], *, has_origin: bool) -> str:
    lines = [f"{key} = {value}" for key, value, _ in rows]
    if not has_origin:
        return "\n".join(lines)
    width = min(max(map(len, lines)), 60)
    return "\n".join(f"{line:<{width}}  # {origin}" for line, (_, _, origin) in zip(lines, rows, strict=True))


def _format_json(rows: tuple[tuple[str, str, str], ...], *, has_origin: bool) -> str:
    values = {key: tomllib.loads(f"value = {value}")["value"] for key, value, _ in rows}
    origins = {key: origin for key, _, origin in rows}
    plain = {key: {"value": value, "origin": origins[key]} for key, value in values.items()} if has_origin else values
    return escape_controls(json.dumps(plain, indent=2, ensure_ascii=False))
