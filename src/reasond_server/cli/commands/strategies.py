"""`reasond strategies`: prints the strategies of a server, for a person or as JSON."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import typer

from reasond_server.cli.connection import ConnectionOptions, connect
from reasond_server.cli.options import AsJson, Environ, command
from reasond_server.cli.outcome import ExitCode, warn
from reasond_server.cli.terminal import escape_controls, get_enum_name, sanitize, write

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from reasond import ListStrategiesResponse, Strategy

app = typer.Typer(rich_markup_mode=None)

_ABSENT = "-"


@command(app, "strategies")
def show_strategies(*, connection: ConnectionOptions, environ: Environ, as_json: AsJson = False) -> ExitCode:
    """List the strategies of a server, with their parameters, defaults and ranges."""
    with connect(connection, environ) as client:
        response = client.list_strategies()
    if as_json:
        write(escape_controls(json.dumps(to_plain(response), indent=2, ensure_ascii=False)))
        return ExitCode.OK
    write("\n".join(format_strategies(response)))
    for warning in response.warnings:
        warn(warning)
    return ExitCode.OK


def to_plain(response: ListStrategiesResponse) -> dict[str, Any]:
    """Return `response` as plain data with parsed schemas."""
    return {
        "model": response.model,
        "warnings": list(response.warnings),
        "strategies": [
            {
                "name": strategy.name,
                "description": strategy.description,
                "is_default": strategy.is_default,
                "capabilities": list(strategy.capabilities),
                "default_config": json.loads(strategy.default_config_json or "{}"),
                "config_schema": json.loads(strategy.config_schema_json or "{}"),
                "ceilings": json.loads(strategy.ceilings_json or "{}"),
                "cost_class": get_enum_name(strategy, "cost_class").lower() if strategy.cost_class else None,
                "cost_formula": strategy.cost_formula,
            }
            for strategy in response.strategies
        ],
    }


def format_strategies(response: ListStrategiesResponse) -> Iterator[str]:
    """Yield the lines of the list: each strategy with a table of its parameters."""
    yield f"model: {sanitize(response.model)}"
    if not response.strategies:
        yield "no strategy is enabled; see [reasoning] enabled_strategies"
    for strategy in response.strategies:
        yield ""
        yield f"{sanitize(strategy.name)}{' (default)' if strategy.is_default else ''}"
        yield f"  {sanitize(strategy.description)}"
        if cost := _describe_cost(strategy):
            yield f"  cost: {cost}"
        yield from _format_table(strategy)


def _describe_cost(strategy: Strategy) -> str:
    """Return the growth of model calls that a strategy declares; empty if it declares none."""
    kind = get_enum_name(strategy, "cost_class").lower() if strategy.cost_class else ""
    return "; ".join(part for part in (kind, sanitize(strategy.cost_formula)) if part)


def _format_table(strategy: Strategy) -> Iterator[str]:
    """Yield a row with aligned columns for each parameter."""
    schema = json.loads(strategy.config_schema_json or "{}")
    defaults = json.loads(strategy.default_config_json or "{}")
    ceilings = json.loads(strategy.ceilings_json or "{}")
    rows = [
        (
            sanitize(name),
            _format_value(defaults.get(name, parameter.get("default"))),
            f"{describe_range(parameter, schema)}{' (ceiling of this server)' if name in ceilings else ''}",
        )
        for name, parameter in schema.get("properties", {}).items()
    ]
    if not rows:
        return
    table = [("parameter", "default", "range"), *rows]
    widths = [max(len(row[column]) for row in table) for column in range(2)]
    for name, default, extent in table:
        yield f"    {name:<{widths[0]}}  {default:<{widths[1]}}  {extent}".rstrip()


def describe_range(parameter: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """Return the allowed values of a parameter by its JSON Schema: bounds, choices or its type."""
    for option in (parameter, *_list_alternatives(parameter, schema)):
        if "minimum" in option or "maximum" in option:
            return f"{_format_value(option.get('minimum'))} to {_format_value(option.get('maximum'))}"
        if "enum" in option:
            return ", ".join(_format_value(choice) for choice in option["enum"])
        if "const" in option:
            return _format_value(option["const"])
    kind = next(
        (option["type"] for option in (parameter, *_list_alternatives(parameter, schema)) if "type" in option), ""
    )
    return {"boolean": "true, false"}.get(str(kind), str(kind))


def _list_alternatives(parameter: Mapping[str, Any], schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return `parameter`, its `anyOf` and `allOf` options, and the definitions in `schema` that they refer to."""
    options = [*parameter.get("anyOf", []), *parameter.get("allOf", []), parameter]
    names = [os.path.basename(str(option["$ref"])) for option in options if "$ref" in option]  # noqa: PTH119 - no path
    return [*options, *(schema.get("$defs", {}).get(name, {}) for name in names)]


def _format_value(value: object) -> str:
    if value is None:
        return _ABSENT
    return sanitize(value) if isinstance(value, str) else json.dumps(value)
