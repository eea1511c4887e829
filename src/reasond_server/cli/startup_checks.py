"""Finds at once every problem that would stop `serve` from starting."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reasond_server.assembly.backends import build_tools, create_model, create_named_models, find_backend_problems
from reasond_server.assembly.instruments import find_tls_files, read_metric_options, read_tracing_options
from reasond_server.assembly.limit_backend import build_limit_backend
from reasond_server.assembly.stores import require_driver
from reasond_server.assembly.verifiers import build_agent_tokens, build_verification
from reasond_server.config import LoadedSettings, Settings, choose_provider
from reasond_server.config.checks import find_unservable, is_any_within
from reasond_server.config.problems import build_settings_error
from reasond_server.config.sources import Examined, examine
from reasond_server.errors.base import SettingsError
from reasond_server.grpc_api.listeners import CertificateReloader, require_private_folder
from reasond_server.reasoning.configuration import StrategyConfiguration
from reasond_server.reasoning.registry import check_tables, discover
from reasond_server.repair.critics.critic_port import CRITICS
from reasond_server.telemetry.span_export import require_receiver
from reasond_server.tools.execution import INSTALLED_TOOLS
from reasond_server.turns.providers import INSTALLED_PROVIDERS
from reasond_server.webhooks.webhook_sender import open_receivers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from reasond_server.llm.model import ChatModel


def require_startable(config: Path | None, environ: Mapping[str, str], *, is_dev: bool) -> LoadedSettings:
    """Return the configuration with which a server would start.

    Opens no connection and writes nothing: the store, ports, model servers and MCP servers are not checked.

    Raises:
        SettingsError: a server would not start; the error lists every problem.
    """
    found = examine(config, environ)
    errors = [build_settings_error(found.problems, found.loaded.origins)] if found.problems else []
    errors += find_refusals(found, environ, is_dev=is_dev)
    if errors:
        raise _join(errors)
    return found.loaded


def find_refusals(found: Examined, environ: Mapping[str, str], *, is_dev: bool) -> list[SettingsError]:
    """Return the reasons why a server would not start with the valid part of a configuration."""
    errors: list[SettingsError] = []
    for check, keys in _list_checks(found, environ, is_dev=is_dev):
        if is_any_within(found.doubtful, keys):
            continue
        try:
            check()
        except SettingsError as error:
            errors.append(error)
    problems = [*find_unservable(found.loaded.settings, dev=is_dev, doubtful=found.doubtful)]
    if problems:
        errors.append(build_settings_error(problems, {}))
    return errors


def _list_checks(
    found: Examined, environ: Mapping[str, str], *, is_dev: bool
) -> Iterator[tuple[Callable[[], object], Sequence[str]]]:
    """Yield each check of the start with the keys that it needs; it is skipped if one of them is invalid."""
    loaded, settings = found.loaded, found.loaded.settings
    tables = settings.reasoning.strategies
    model = _find_model(loaded, environ) if tables else None
    for name in dict.fromkeys(settings.reasoning.enabled_strategies):
        # What is left of a table may be right by itself and wrong beside a default.
        is_whole = not is_any_within(found.doubtful, (f"reasoning.strategies.{name}",))
        yield partial(_check_strategy, name, tables, model if is_whole else None), ()
    for name in settings.reasoning.strategies:
        yield partial(check_tables, [name]), ()
    for key, group, names in (
        ("tools.enabled", INSTALLED_TOOLS, settings.tools.enabled),
        ("turns.context_providers", INSTALLED_PROVIDERS, settings.turns.context_providers),
        ("repair.critics", CRITICS, settings.repair.critics if settings.repair.enabled else ()),
    ):
        for name in names:
            yield partial(group.load, [name]), (key,)
    yield partial(build_tools, settings.tools.model_copy(update={"enabled": ()})), ("tools.mcp", "tools.http_get")
    yield partial(_check_model, loaded, environ), ("llm",)
    yield partial(create_named_models, settings, environ, loaded.folder), ("llm", "turns.modes")
    yield partial(_check_access, loaded, is_dev=is_dev), ("auth", "reasoning.enabled_strategies")
    yield partial(build_limit_backend, settings.limits), ("limits",)
    yield partial(require_receiver, read_tracing_options(settings, environ, instance_id="")), ("tracing", "llm")
    yield partial(require_receiver, read_metric_options(settings, environ, instance_id="")), ("metrics",)
    yield partial(open_receivers, settings.webhooks), ("webhooks",)
    yield partial(_check_listening, settings), ("server.tls", "server.grpc_unix_socket")
    yield partial(require_driver, settings.store.url), ()


def _find_model(loaded: LoadedSettings, environ: Mapping[str, str]) -> ChatModel | None:
    """Return the model whose counter the strategies are checked with; None if it cannot be built, told elsewhere."""
    try:
        return create_model(loaded.settings, environ, loaded.folder)
    except SettingsError:
        return None


def _check_strategy(name: str, tables: Mapping[str, Mapping[str, Any]], model: ChatModel | None) -> None:
    StrategyConfiguration(registry=discover([name]), tables=tables, model=model)


def _check_model(loaded: LoadedSettings, environ: Mapping[str, str]) -> None:
    """Check the settings of the backends, then build the model with its counter."""
    settings = loaded.settings
    if problems := find_backend_problems(settings, environ):
        raise build_settings_error(problems, loaded.origins)
    if choose_provider(settings, environ) != "demo":
        create_model(settings, environ, loaded.folder)


def _check_access(loaded: LoadedSettings, *, is_dev: bool) -> None:
    now = partial(datetime.now, UTC)
    verification = build_verification(loaded, dev=is_dev, now=now)
    build_agent_tokens(loaded.settings.auth, signing=verification.signing, now=now)


def _check_listening(settings: Settings) -> None:
    server = settings.server
    if files := find_tls_files(server):
        CertificateReloader(files).credentials()
    if server.grpc_unix_socket:
        require_private_folder(Path(server.grpc_unix_socket))


def _join(errors: Sequence[SettingsError]) -> SettingsError:
    """Return `errors` as one error with a line for each problem."""
    if len(errors) == 1:
        return errors[0]
    lines = [line for error in errors for line in _list_lines(error)]
    return SettingsError(
        "\n  ".join([f"The configuration has {len(lines)} problems:", *lines]),
        violations=[one for error in errors for one in error.violations],
    )


def _list_lines(error: SettingsError) -> Sequence[str]:
    """Return a line with its key for each problem; an error without violations names keys in its text."""
    return [f"{each.field}: {each.description}" for each in error.violations] or [error.full_message]
