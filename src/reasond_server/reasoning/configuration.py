"""The configuration of a strategy, parameter by parameter: request > agent > system > built-in.

`[reasoning.strategies.NAME]` holds `default_<parameter>` and `max_allowed_<parameter without max_>`. A value above a
ceiling is refused, never reduced.
"""

from __future__ import annotations

from dataclasses import replace
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from reasond_server.base.violations import drop_surplus_unknown, list_violations, suggest_nearest
from reasond_server.errors.base import SettingsError, Violation, show
from reasond_server.errors.request import InvalidConfigError
from reasond_server.llm.model import ChatModel, WrappedModel
from reasond_server.types import Json, Task

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from reasond_server.reasoning.registry import StrategyRegistry
    from reasond_server.strategies.strategy import ReasoningStrategy, StrategyConfig

_UNCHANGEABLE = (str, int, float, bytes, NoneType)
_DEFAULT = "default_"
_CEILING = "max_allowed_"


class StrategyConfiguration:
    """The operator's settings for the strategies; checked once, at start.

    With `model` the strategies themselves are asked whether they could work with the defaults of their tables.

    Raises:
        SettingsError: a key names no parameter, a ceiling is out of its parameter's range, or a default is not valid,
            above its ceiling or refused by the strategy; all that is wrong in all tables.
    """

    def __init__(
        self,
        *,
        registry: StrategyRegistry,
        tables: Mapping[str, Mapping[str, Any]],
        model: ChatModel | None = None,
    ) -> None:
        self._defaults: dict[str, dict[str, Any]] = {}
        self._ceilings: dict[str, dict[str, Any]] = {}
        self._settled: dict[str, tuple[StrategyConfig, Json]] = {}
        probe = None if model is None else _WindowlessModel(model=model)
        problems: list[Violation] = []
        for strategy in registry:
            found = [*self._take(strategy, tables.get(strategy.name, {})), *self._check_defaults(strategy, probe)]
            problems += [replace(one, field=f"reasoning.strategies.{strategy.name}.{one.field}") for one in found]
        if problems:
            raise _build_error(problems)

    def resolve(
        self, strategy: ReasoningStrategy[Any], *, request: Json, agent: Json | None = None
    ) -> tuple[StrategyConfig, Json]:
        """Return the checked configuration of one run, and the same in the form shown to callers.

        Raises:
            InvalidConfigError: a value is unknown, out of range or above a ceiling.
        """
        if not request and not agent and (settled := self._settled.get(strategy.name)) is not None:
            return settled
        config = self._check(strategy, request=request, agent=agent)
        return config, config.model_dump(mode="json")

    def _check(self, strategy: ReasoningStrategy[Any], *, request: Json, agent: Json | None) -> StrategyConfig:
        system = self._defaults[strategy.name]
        known = strategy.config_type.model_fields
        values = drop_surplus_unknown(strategy.config_type.combine(system, agent or {}, request), known)
        try:
            config: StrategyConfig = strategy.config_type.model_validate(values)
        except ValidationError as error:
            found = list_violations(error, model=strategy.config_type)
            raise InvalidConfigError.of(*(_add_level(one, request, agent or {}) for one in found)) from None
        over = [
            Violation(field=name, description=f"must be at most {ceiling} on this server, got {show(value)}")
            for name, ceiling in self._ceilings[strategy.name].items()
            if _is_number(value := getattr(config, name)) and value > ceiling
        ]
        if over:
            raise InvalidConfigError.of(*over)
        return config

    def schema(self, strategy: ReasoningStrategy[Any]) -> Json:
        """Return the strategy's JSON Schema with the defaults and ceilings that apply on this server."""
        schema = strategy.get_config_schema()
        properties = schema.get("properties", {})
        for name, value in self._defaults[strategy.name].items():
            properties[name] = {**properties.get(name, {}), "default": value}
        for name, ceiling in self._ceilings[strategy.name].items():
            properties[name] = {**properties.get(name, {}), "maximum": ceiling}
        return schema

    def ceilings(self, strategy: ReasoningStrategy[Any]) -> Json:
        """Return the ceilings that the operator set, by parameter."""
        return dict(self._ceilings[strategy.name])

    def _take(self, strategy: ReasoningStrategy[Any], table: Mapping[str, Any]) -> Iterator[Violation]:
        """Sort the keys of a table into defaults and ceilings; yield those that are neither, and wrong ceilings."""
        parameters = strategy.config_type.model_fields
        by_key = {f"{_DEFAULT}{name}": (self._defaults, name) for name in parameters}
        by_key |= {f"{_CEILING}{name.removeprefix('max_')}": (self._ceilings, name) for name in parameters}
        for kind in (self._defaults, self._ceilings):
            kind[strategy.name] = {}
        for key, value in table.items():
            if key in by_key:
                kind, name = by_key[key]
                kind[strategy.name][name] = value
            else:
                yield Violation(field=key, description=f"is not known{suggest_nearest(key, by_key)}")
        ceilings = self._ceilings[strategy.name]
        for name, ceiling in tuple(ceilings.items()):
            if problem := _find_ceiling_problem(strategy, name, ceiling):
                # Against a wrong ceiling a right default would be wrong, too.
                del ceilings[name]
                yield Violation(field=f"{_CEILING}{name.removeprefix('max_')}", description=problem)

    def _check_defaults(self, strategy: ReasoningStrategy[Any], probe: ChatModel | None) -> Sequence[Violation]:
        """Check the configuration of a request that sets nothing; keep it if all runs can share it."""
        defaults = self._defaults[strategy.name]
        try:
            config, shown_config = self.resolve(strategy, request={})
        except InvalidConfigError as error:
            return [replace(one, field=f"{_DEFAULT}{one.field}") for one in error.violations]
        if _is_fixed(config):
            self._settled[strategy.name] = config, shown_config
        if probe is None or not defaults:
            return ()
        try:
            strategy.check(_PROBE, config, probe)
        except InvalidConfigError as error:
            # A strategy may refuse this task for other reasons; what the table does not set is not its fault.
            found = [one for one in error.violations if one.field in defaults]
            return [replace(one, field=f"{_DEFAULT}{one.field}") for one in found]
        return ()


_PROBE: Final = Task(query="?", answer_schema={"type": "object"})


class _WindowlessModel(WrappedModel[ChatModel]):
    """A model whose window bounds nothing: tasks may name another model, with a larger one."""

    @property
    def context_window(self) -> int | None:
        """None."""
        return None


def _build_error(problems: Sequence[Violation]) -> SettingsError:
    return SettingsError(
        "; ".join(f"{one.field} {one.description}" for one in problems),
        remedy="Mend the default_* value, or set one at or below its max_allowed_* ceiling.",
        violations=problems,
    )


def _find_ceiling_problem(strategy: ReasoningStrategy[Any], name: str, ceiling: object) -> str:
    """Return why `ceiling` cannot bound the parameter `name`; empty if it can."""
    if not _is_number(ceiling):
        return f"must be a number, got {show(ceiling)}"
    if not _takes_numbers(strategy.get_config_schema(), name):
        return f"is a ceiling of {name!r}, which takes no numbers; remove the key"
    try:
        strategy.config_type.model_validate({name: ceiling})
    except ValidationError as error:
        found = [one.description for one in list_violations(error) if one.field.split(".")[0] == name]
        return f"bounds {name!r}, which {found[0]}" if found else ""
    return ""


def _is_fixed(config: StrategyConfig) -> bool:
    """Return whether runs can share `config`: it cannot be changed, and no default is made anew for each run."""
    if not config.model_config.get("frozen") or config.__private_attributes__:
        return False
    has_made = any(field.default_factory is not None for field in type(config).model_fields.values())
    return not has_made and all(isinstance(value, _UNCHANGEABLE) for _, value in config)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _takes_numbers(schema: Json, name: str) -> bool:
    """Return whether the strategy's `schema` allows a number for the parameter `name`."""
    parameter = schema.get("properties", {}).get(name, {})
    options = (parameter, *parameter.get("anyOf", ()))
    return any(option.get("type") in {"integer", "number"} for option in options)


def _add_level(violation: Violation, request: Json, agent: Json) -> Violation:
    """Add to `violation` that the value comes from the agent's card, unless the request set it."""
    name = violation.field.split(".")[0]
    if name in request or name not in agent:
        return violation
    return Violation(field=violation.field, description=f"{violation.description} (set by the agent's card)")
