"""`reasond config check` and `reasond config show`."""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING

from reasond_server.cli.outcome import ExitCode, warn
from reasond_server.cli.starting import require_startable
from reasond_server.cli.terminal import write
from reasond_server.config import load, settings_as_rows

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from reasond_server.config import LoadedSettings


def check(config: Path | None, *, environ: Mapping[str, str], is_dev: bool) -> ExitCode:
    """Print that a server would start with the configuration.

    Raises:
        SettingsError: it would not start; the error lists every problem.
    """
    loaded = require_startable(config, environ, is_dev=is_dev)
    for warning in loaded.find_exposed_files():
        warn(warning)
    names = ", ".join(loaded.settings.reasoning.enabled_strategies) or "none"
    write(f"ok: {source_of(loaded)}; strategies: {names}")
    return ExitCode.OK


def source_of(loaded: LoadedSettings) -> str:
    """Return a short description of where the configuration was read from."""
    variables = sum(origin.startswith("environment") for origin in loaded.origins.values())
    over = f" and {variables} of the environment" if variables else ""
    return f"{loaded.file or 'no file, defaults'}{over}"


def show(config: Path | None, *, environ: Mapping[str, str], has_origin: bool, as_json: bool) -> ExitCode:
    """Print every key with its effective value, and with its origin if `has_origin`.

    Raises:
        SettingsError: the configuration is invalid.
    """
    loaded = load(config, environ)
    rows = settings_as_rows(loaded.settings, loaded.origins)
    write(_as_json(rows, has_origin=has_origin) if as_json else _as_text(rows, has_origin=has_origin))
    return ExitCode.OK


def _as_text(rows: tuple[tuple[str, str, str], ...], *, has_origin: bool) -> str:
    lines = [f"{key} = {value}" for key, value, _ in rows]
    if not has_origin:
        return "\n".join(lines)
    width = min(max(map(len, lines)), 60)
    return "\n".join(f"{line:<{width}}  # {origin}" for line, (_, _, origin) in zip(lines, rows, strict=True))


def _as_json(rows: tuple[tuple[str, str, str], ...], *, has_origin: bool) -> str:
    values = {key: tomllib.loads(f"value = {value}")["value"] for key, value, _ in rows}
    origins = {key: origin for key, _, origin in rows}
    plain = {key: {"value": value, "origin": origins[key]} for key, value in values.items()} if has_origin else values
    return json.dumps(plain, indent=2, ensure_ascii=False)
