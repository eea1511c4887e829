"""`reasond strategies`: prints the strategies of a server, for a person or as JSON."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from reasond_server.cli.connecting import connect
from reasond_server.cli.outcome import ExitCode, warn
from reasond_server.cli.run_text import word_of
from reasond_server.cli.terminal import printable, write

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from reasond import ListStrategiesResponse, Strategy
    from reasond_server.cli.connecting import Way

_ABSENT = "-"


def show_strategies(*, way: Way, environ: Mapping[str, str], as_json: bool) -> ExitCode:
    """Print the strategies that the server has enabled.

    Raises:
        CommandError: the call failed.
    """
    with connect(way, environ) as client:
        response = client.list_strategies()
    if as_json:
        write(json.dumps(as_plain(response), indent=2, ensure_ascii=False))
        return ExitCode.OK
    write("\n".join(lines_of(response)))
    for warning in response.warnings:
        warn(warning)
    return ExitCode.OK


def as_plain(response: ListStrategiesResponse) -> dict[str, Any]:
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
                "cost_class": word_of(strategy, "cost_class").lower() if strategy.cost_class else None,
                "cost_formula": strategy.cost_formula,
            }
            for strategy in response.strategies
        ],
    }


def lines_of(response: ListStrategiesResponse) -> Iterator[str]:
    """Yield the lines of the list: each strategy with a table of its parameters."""
    yield f"model: {printable(response.model)}"
    if not response.strategies:
        yield "no strategy is enabled; see [reasoning] enabled_strategies"
    for strategy in response.strategies:
        yield ""
        yield f"{printable(strategy.name)}{' (default)' if strategy.is_default else ''}"
        yield f"  {printable(strategy.description)}"
        if cost := _cost(strategy):
            yield f"  cost: {cost}"
        yield from _table(strategy)


def _cost(strategy: Strategy) -> str:
    """Return the growth of model calls that a strategy declares; empty if it declares none."""
    kind = word_of(strategy, "cost_class").lower() if strategy.cost_class else ""
    return "; ".join(part for part in (kind, printable(strategy.cost_formula)) if part)


def _table(strategy: Strategy) -> Iterator[str]:
    """Yield a row with aligned columns for each parameter."""
    schema = json.loads(strategy.config_schema_json or "{}")
    defaults = json.loads(strategy.default_config_json or "{}")
    ceilings = json.loads(strategy.ceilings_json or "{}")
    rows = [
        (
            printable(name),
            _show(defaults.get(name, parameter.get("default"))),
            f"{range_of(parameter, schema)}{' (ceiling of this server)' if name in ceilings else ''}",
        )
        for name, parameter in schema.get("properties", {}).items()
    ]
    if not rows:
        return
    table = [("parameter", "default", "range"), *rows]
    widths = [max(len(row[column]) for row in table) for column in range(2)]
    for name, default, extent in table:
        yield f"    {name:<{widths[0]}}  {default:<{widths[1]}}  {extent}".rstrip()


def range_of(parameter: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """Return the allowed values of a parameter by its JSON Schema: bounds, choices or its type."""
    for option in (parameter, *_alternatives(parameter, schema)):
        if "minimum" in option or "maximum" in option:
            return f"{_show(option.get('minimum'))} to {_show(option.get('maximum'))}"
        if "enum" in option:
            return ", ".join(_show(choice) for choice in option["enum"])
        if "const" in option:
            return _show(option["const"])
    kind = next((option["type"] for option in (parameter, *_alternatives(parameter, schema)) if "type" in option), "")
    return {"boolean": "true, false"}.get(str(kind), str(kind))


def _alternatives(parameter: Mapping[str, Any], schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return `parameter`, its `anyOf` and `allOf` options, and the definitions in `schema` that they refer to."""
    options = [*parameter.get("anyOf", []), *parameter.get("allOf", []), parameter]
    names = [os.path.basename(str(option["$ref"])) for option in options if "$ref" in option]  # noqa: PTH119 - no path
    return [*options, *(schema.get("$defs", {}).get(name, {}) for name in names)]


def _show(value: object) -> str:
    if value is None:
        return _ABSENT
    return printable(value) if isinstance(value, str) else json.dumps(value)
