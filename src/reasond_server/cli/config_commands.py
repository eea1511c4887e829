"""`reasond config check` and `reasond config show`."""

from __future__ import annotations

import json
import tomllib
from functools import partial
from typing import TYPE_CHECKING

from reasond_server.backends import find_backend_problems
from reasond_server.cli.outcome import ExitCode, warn
from reasond_server.cli.terminal import write
from reasond_server.config import load, require_servable, settings_as_rows
from reasond_server.errors import SettingsError
from reasond_server.reasoning.configuration import StrategyConfiguration
from reasond_server.reasoning.registry import check_tables, discover
from reasond_server.toolsets import tools_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from reasond_server.config import LoadedSettings, Settings


def check(config: Path | None, *, environ: Mapping[str, str], is_dev: bool) -> ExitCode:
    """Say that a server would start with the configuration.

    Raises:
        SettingsError: it would not; with everything that is wrong.
    """
    loaded = load(config, environ)
    problems = find_backend_problems(loaded.settings, environ)
    _run_all(
        *_strategy_checks(loaded.settings),
        partial(_check_tools, loaded.settings),
        partial(require_servable, loaded.settings, dev=is_dev, also=problems),
    )
    for warning in loaded.find_exposed_files():
        warn(warning)
    names = ", ".join(loaded.settings.reasoning.enabled_strategies) or "none"
    write(f"ok: {source_of(loaded)}; strategies: {names}")
    return ExitCode.OK


def check_strategies(settings: Settings) -> None:
    """Load the enabled strategies and check their tables, as a server does when it starts.

    Raises:
        SettingsError: one is not installed or cannot be loaded, or its table does not work.
    """
    _run_all(*_strategy_checks(settings))


def _strategy_checks(settings: Settings) -> tuple[Callable[[], None], ...]:
    return partial(_check_enabled, settings), partial(check_tables, settings.reasoning.strategies)


def _check_enabled(settings: Settings) -> None:
    registry = discover(settings.reasoning.enabled_strategies)
    StrategyConfiguration(registry=registry, tables=settings.reasoning.strategies)


def _check_tools(settings: Settings) -> None:
    """Load the tools as a server does when it starts; MCP servers are not connected to."""
    tools_of(settings.tools)


def _run_all(*checks: Callable[[], None]) -> None:
    """Run `checks`, all of them, and raise what they found as one error."""
    errors: list[SettingsError] = []
    for each in checks:
        try:
            each()
        except SettingsError as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        lines = [line for error in errors for line in _lines_of(error)]
        raise SettingsError("\n  ".join([f"The configuration has {len(lines)} problems:", *lines]))


def _lines_of(error: SettingsError) -> Sequence[str]:
    """Return what is wrong, each with its key; an error without violations names keys in its text."""
    return [f"{each.field}: {each.description}" for each in error.violations] or [error.full_message]


def source_of(loaded: LoadedSettings) -> str:
    """Return what the configuration was read from, in a few words."""
    variables = sum(origin.startswith("environment") for origin in loaded.origins.values())
    over = f" and {variables} of the environment" if variables else ""
    return f"{loaded.file or 'no file, defaults'}{over}"


def show(config: Path | None, *, environ: Mapping[str, str], has_origin: bool, as_json: bool) -> ExitCode:
    """Print every key with the value that applies, and where that comes from if asked.

    Raises:
        SettingsError: the configuration is wrong.
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
