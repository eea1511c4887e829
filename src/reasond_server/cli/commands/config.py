"""`reasond config check` and `reasond config show`."""

from __future__ import annotations

import json
import os
import tomllib
from typing import TYPE_CHECKING, Annotated

import typer

from reasond_server.cli.options import AsJson, Config, Dev, describe_source, end
from reasond_server.cli.outcome import ExitCode, warn
from reasond_server.cli.terminal import escape_controls, write
from reasond_server.config import list_rows, load

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


app = typer.Typer(rich_markup_mode=None)
config_group = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
app.add_typer(config_group, name="config")


@config_group.command("check", short_help="Say whether a server would start.")
def _check(*, config: Config = None, dev: Dev = False) -> None:
    """Say whether a server would start with the configuration: exit code 0 if so, else 2."""
    end(lambda: check(config, environ=os.environ, is_dev=dev))


@config_group.command("show", short_help="Show every key with its value.")
def _show(
    *,
    config: Config = None,
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value comes from.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show every key with the value that applies; secrets are shown as ***."""
    end(lambda: show(config, environ=os.environ, has_origin=origin, as_json=as_json))


def check(config: Path | None, *, environ: Mapping[str, str], is_dev: bool) -> ExitCode:
    """Print that a server would start with the configuration.

    Raises:
        SettingsError: it would not start; the error lists every problem.
    """
    # Imported here: it imports the whole server, which the help and `show` do not need.
    from reasond_server.cli.startup_checks import require_startable  # noqa: PLC0415 - see above

    loaded = require_startable(config, environ, is_dev=is_dev)
    for warning in loaded.find_exposed_files():
        warn(warning)
    names = ", ".join(loaded.settings.reasoning.enabled_strategies) or "none"
    write(f"ok: {describe_source(loaded)}; strategies: {names}")
    return ExitCode.OK


def show(config: Path | None, *, environ: Mapping[str, str], has_origin: bool, as_json: bool) -> ExitCode:
    """Print every key with its effective value, and with its origin if `has_origin`.

    Raises:
        SettingsError: the configuration is invalid.
    """
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
