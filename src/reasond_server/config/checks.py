"""Checks combinations of keys before the start; each violation names the key and the remedy."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from reasond_server.base.addresses import is_loopback
from reasond_server.base.violations import suggest_nearest
from reasond_server.config.problems import build_settings_error
from reasond_server.errors.base import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from reasond_server.config.llm import BackendSettings
    from reasond_server.config.settings import Settings

_ADDRESSES = ("grpc_address", "http_address", "admin_address")


def choose_provider(settings: Settings, environ: Mapping[str, str]) -> str:
    """Return the provider of the language model: the configured one, else the one that the environment suggests."""
    if settings.llm.provider:
        return settings.llm.provider
    return "openai" if environ.get("OPENAI_API_KEY") or environ.get("OPENAI_BASE_URL") else "demo"


def find_unservable(settings: Settings, *, dev: bool, doubtful: Collection[str] = ()) -> Iterator[Violation]:
    """Yield why a loaded configuration must not be served: nobody could authenticate, or `dev` would be public.

    `doubtful` is as in `cross_check`.
    """
    if dev:
        if settings.server.workers > 1:
            yield Violation(
                field="server.workers",
                description=f"is {settings.server.workers}, but the key of --dev is known to one process only; "
                "set it to 1, or start without --dev and with a key in auth.keys",
            )
        for name, address in _list_addresses(settings):
            if not is_loopback(address):
                yield Violation(
                    field=name,
                    description=f"{address!r} can be reached from other machines, which --dev forbids; "
                    "bind to 127.0.0.1 or start without --dev and with a key in auth.keys",
                )
        return
    auth = settings.auth
    is_keyless = not (auth.keys or auth.jwks_url or auth.api_keys_file)
    if is_keyless and not is_any_within(doubtful, ("auth.keys", "auth.jwks_url", "auth.api_keys_file")):
        yield Violation(
            field="auth.keys",
            description="is empty, so nobody could authenticate; add a key such as "
            '{ id = "main", secret_env = "REASOND_SIGNING_KEY" }, set auth.jwks_url or auth.api_keys_file, or '
            "start with --dev",
        )


def require_servable(settings: Settings, *, dev: bool, also: Sequence[Violation] = ()) -> None:
    """Reject a loaded configuration that must not be served; `also` are further violations, such as of the model.

    Raises:
        SettingsError: nobody could authenticate, `dev` would be public, or `also` is not empty.
    """
    problems = [*also, *find_unservable(settings, dev=dev)]
    if problems:
        raise build_settings_error(problems, {})


def cross_check(settings: Settings, doubtful: Collection[str] = ()) -> Iterator[Violation]:
    """Yield the conflicts between keys of `settings`.

    `doubtful` are keys that have their default because the given value is invalid: a check that depends on one of
    them is skipped.
    """
    for check, keys in _CHECKS:
        if not is_any_within(doubtful, keys):
            yield from check(settings)


def is_any_within(doubtful: Collection[str], keys: Collection[str]) -> bool:
    """Return whether a key of `doubtful` equals, contains or is contained in one of `keys`; all are dotted keys."""
    return any(_is_within(one, key) or _is_within(key, one) for one in doubtful for key in keys)


def _is_within(key: str, around: str) -> bool:
    return key == around or key.startswith((f"{around}.", f"{around}["))


def _list_addresses(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield the key and the value of every address that is set."""
    for name in _ADDRESSES:
        if address := getattr(settings.server, name):
            yield f"server.{name}", address
    if settings.metrics.address:
        yield "metrics.address", settings.metrics.address


def _find_bind_problems(settings: Settings) -> Iterator[Violation]:
    """Reject addresses that would be public without TLS, and a server without gRPC."""
    server = settings.server
    if not server.grpc_address and not server.grpc_unix_socket:
        yield Violation(
            field="server.grpc_address", description="is empty and server.grpc_unix_socket as well; set one"
        )
    for name, address in _list_addresses(settings):
        if server.tls == "off" and not is_loopback(address):
            yield Violation(
                field=name,
                description=f"{address!r} can be reached from other machines, but server.tls is off: bind to "
                '127.0.0.1, or set server.tls = "files" with a certificate, or "terminated-upstream" where a proxy '
                "ends TLS",
            )


def _find_tls_problems(settings: Settings) -> Iterator[Violation]:
    """Reject TLS without its files, and files without TLS."""
    server = settings.server
    for name in ("tls_certificate", "tls_private_key"):
        if server.tls == "files" and not getattr(server, name):
            yield Violation(field=f"server.{name}", description='is empty, but server.tls = "files" needs it')
    for name in ("tls_certificate", "tls_private_key", "tls_client_ca"):
        if server.tls != "files" and getattr(server, name):
            yield Violation(
                field=f"server.{name}",
                description=f'is set, but has no effect with server.tls = "{server.tls}"; '
                'set server.tls = "files" or remove it',
            )


def _find_peer_problems(settings: Settings) -> Iterator[Violation]:
    """Reject callers by certificate if the server requests no certificate, or could identify none of them."""
    auth = settings.auth
    if auth.peers and not auth.trust_domain:
        yield Violation(field="auth.trust_domain", description="is empty, but auth.peers needs it")
    if auth.trust_domain and not settings.server.tls_client_ca:
        yield Violation(
            field="auth.trust_domain",
            description='is set, but has no effect without server.tls = "files" and server.tls_client_ca, which make '
            "callers show a certificate",
        )


def _find_limits_problems(settings: Settings) -> Iterator[Violation]:
    """Reject Redis without its address, an address without Redis, and weights for strategies that are not enabled."""
    limits = settings.limits
    has_address = bool(limits.redis_url.get_secret_value())
    if (limits.storage == "redis") != has_address:
        description = 'is empty, but limits.storage = "redis" needs it'
        if has_address:
            description = 'is set, but has no effect with limits.storage = "memory"'
        yield Violation(field="limits.redis_url", description=description)
    enabled = settings.reasoning.enabled_strategies
    for name in limits.weights:
        if name not in enabled:
            yield Violation(
                field=f"limits.weights.{name}",
                description=f"is no enabled strategy{suggest_nearest(name, enabled)}",
            )


def _find_llm_problems(settings: Settings) -> Iterator[Violation]:
    """Reject a model without a provider: the demo model must not answer in its place."""
    if not settings.llm.provider and (settings.llm.model or settings.llm.base_url):
        yield Violation(
            field="llm.provider", description="is empty, but llm.model or llm.base_url is set; name the provider"
        )
    yield from _find_backend_problems("llm", settings.llm)
    for name, backend in settings.llm.backends.items():
        yield from _find_backend_problems(f"llm.backends.{name}", backend)
    for key in ("offered", "fallbacks"):
        yield from _find_unknown_backends(f"llm.{key}", getattr(settings.llm, key), settings)


def _find_unknown_backends(field: str, names: Sequence[str], settings: Settings) -> Iterator[Violation]:
    """Reject names of backends that are not configured."""
    backends = settings.llm.backends
    for name in names:
        if name not in backends:
            text = f"names {name!r}, which has no table in llm.backends{suggest_nearest(name, backends)}"
            yield Violation(field=field, description=text)


def _find_backend_problems(section: str, backend: BackendSettings) -> Iterator[Violation]:
    """Reject a tokenizer without its file, a file without its tokenizer, and inconsistent time limits."""
    if backend.count == "tokenizer" and not backend.tokenizer_file:
        yield Violation(field=f"{section}.tokenizer_file", description='is empty, but count = "tokenizer" needs it')
    if backend.tokenizer_file and backend.count not in {"auto", "tokenizer"}:
        yield Violation(
            field=f"{section}.tokenizer_file",
            description=f'is set, but has no effect with count = "{backend.count}"; remove one of them',
        )
    if backend.first_wait_s > backend.max_wait_s:
        yield Violation(
            field=f"{section}.first_wait_s",
            description=f"{backend.first_wait_s} is more than {section}.max_wait_s ({backend.max_wait_s})",
        )


def _find_workers_problems(settings: Settings) -> Iterator[Violation]:
    """Reject several processes together with settings that need a single process or would be counted per process."""
    server, limits = settings.server, settings.limits
    if server.workers == 1:
        return
    why = f"server.workers = {server.workers}"
    if not settings.store.url.startswith(("postgresql://", "postgres://")):
        yield Violation(
            field="store.url", description=f"names no PostgreSQL, but {why} need a store that processes share"
        )
    for name in ("grpc_unix_socket", "admin_address"):
        if getattr(server, name):
            yield Violation(field=f"server.{name}", description=f"belongs to one process, but {why}; leave it empty")
    bounds = ("requests_per_minute", "requests_per_hour", "concurrent_requests", "tokens_per_minute", "tokens_per_day")
    if limits.storage == "memory" and any(getattr(limits, name) for name in bounds):
        yield Violation(
            field="limits.storage",
            description=f'is "memory", so that each process would count for itself, but {why}; set it to "redis"',
        )


def _find_tools_problems(settings: Settings) -> Iterator[Violation]:
    """Reject MCP servers without exactly one of program and address, and private hosts that are not allowed."""
    tools = settings.tools
    for name, server in tools.mcp.items():
        section = f"tools.mcp.{name}"
        if bool(server.command) == bool(server.url):
            what = "both are" if server.command else "neither is"
            yield Violation(field=f"{section}.command", description=f"must be set, or {section}.url; {what}")
        for key in ("args", "env") if server.url else ("headers",):
            if getattr(server, key):
                other = "url" if server.url else "command"
                yield Violation(field=f"{section}.{key}", description=f"is set, but has no effect with {other}")
    for host in tools.http_get.allow_private_hosts:
        if host not in tools.http_get.allow_hosts:
            yield Violation(
                field="tools.http_get.allow_private_hosts",
                description=f"names {host!r}, which is not in tools.http_get.allow_hosts; add it there",
            )


def _find_turns_problems(settings: Settings) -> Iterator[Violation]:
    """Reject modes, tools and backends of turns that are not configured."""
    turns, backends = settings.turns, settings.llm.backends
    # A server needs no table for the mode that every server has.
    if turns.default_mode not in {"default", *turns.modes}:
        hint = suggest_nearest(turns.default_mode, turns.modes)
        yield Violation(
            field="turns.default_mode", description=f"{turns.default_mode!r} has no table in turns.modes{hint}"
        )
    if turns.context.summary_backend:
        yield from _find_unknown_backends("turns.context.summary_backend", (turns.context.summary_backend,), settings)
    yield from _find_unknown_tools("turns.needs_approval", turns.needs_approval, settings)
    for name, mode in turns.modes.items():
        yield from _find_unknown_tools(f"turns.modes.{name}.tools", mode.tools or (), settings)
        if mode.backend and mode.backend not in backends:
            yield Violation(
                field=f"turns.modes.{name}.backend",
                description=f"{mode.backend!r} has no table in llm.backends{suggest_nearest(mode.backend, backends)}",
            )


def _find_repair_problems(settings: Settings) -> Iterator[Violation]:
    """Reject backends that are not configured, and defaults above their own ceilings."""
    repair = settings.repair
    yield from _find_unknown_backends("repair.model_preference", repair.model_preference, settings)
    for key, ceiling in (
        ("num_candidates", "max_allowed_num_candidates"),
        ("max_reflection_depth", "max_allowed_reflection_depth"),
        ("max_candidates", "max_allowed_candidates"),
        ("max_tokens", "max_allowed_tokens"),
    ):
        value, most = getattr(repair, key), getattr(repair, ceiling)
        if value > most:
            text = f"is {value}, above repair.{ceiling} = {most}; lower it or raise the ceiling"
            yield Violation(field=f"repair.{key}", description=text)
    yield from _find_sandbox_problems(settings)


def _find_engine_problems(settings: Settings) -> Iterator[Violation]:
    """Reject an engine whose workers would not find what was done."""
    if settings.engine.repair == "temporal" and not settings.store.record_content:
        yield Violation(
            field="engine.repair",
            description='is "temporal", but store.record_content = false keeps no text for its workers; set it to '
            'true, or this to "in_process"',
        )


def _find_webhook_problems(settings: Settings) -> Iterator[Violation]:
    if settings.store.url == "memory:":
        told = {"webhooks.endpoints": settings.webhooks.endpoints, "a2a.push_hosts": settings.a2a.has_push}
        text = "needs a store that outlives the process; set store.url to a SQLite file or to PostgreSQL"
        yield from (Violation(field=name, description=text) for name, is_set in told.items() if is_set)


def _find_sandbox_problems(settings: Settings) -> Iterator[Violation]:
    """Reject folders of environments and workspaces that are not there, and images that no level in use can hold."""
    sandbox = settings.repair.sandbox
    if sandbox.folder:
        yield from _find_folder_problems("repair.sandbox.folder", sandbox.folder)
    for name, environment in settings.repair.environments.items():
        section = f"repair.environments.{name}"
        if environment.root:
            yield from _find_folder_problems(f"{section}.root", environment.root)
        if environment.is_image and not environment.root:
            yield Violation(field=f"{section}.root", description="is empty, but is_image needs the folder of an image")
        if environment.is_image and sandbox.level == "landlock":
            yield Violation(
                field=f"{section}.is_image",
                description='is true, but repair.sandbox.level = "landlock" shows jobs the files of this machine; '
                "name a folder with tools, or use bwrap",
            )


def _find_program_problems(settings: Settings) -> Iterator[Violation]:
    """Reject programs of models in an environment that there is not, or without a sandbox."""
    name = settings.reasoning.program_environment
    if not name:
        return
    if name not in settings.repair.environments:
        hint = suggest_nearest(name, settings.repair.environments) if settings.repair.environments else ""
        yield Violation(
            field="reasoning.program_environment",
            description=f"{name!r} is no environment of [repair.environments]{hint}",
        )
    if settings.repair.sandbox.level == "off":
        yield Violation(
            field="reasoning.program_environment",
            description='is set, but repair.sandbox.level = "off" runs no code; set it to "auto", or leave this empty',
        )


def _find_folder_problems(field: str, folder: str) -> Iterator[Violation]:
    path = Path(folder)
    if not path.is_absolute():
        yield Violation(field=field, description=f"{folder!r} is not an absolute path; begin it with /")
    elif not path.is_dir():
        yield Violation(
            field=field, description=f"{folder!r} is no folder of this machine; make it, or correct the path"
        )
    elif path.parent == path:
        yield Violation(field=field, description="is the root of this machine; name the folder that is meant")


def _find_unknown_tools(field: str, names: Sequence[str], settings: Settings) -> Iterator[Violation]:
    """Yield the names that are neither enabled tools nor could be tools of the MCP servers, which tell them later."""
    tools = settings.tools
    known = {*tools.enabled, *(("http_get",) if tools.http_get.allow_hosts else ())}
    for name in names:
        server, separator, tool = name.partition("__")
        allowed = tools.mcp[server].allow_tools if separator and server in tools.mcp else None
        if name not in known and (allowed is None or (allowed and tool not in allowed)):
            yield Violation(
                field=field,
                description=f"names {name!r}, which is no tool of this server{suggest_nearest(name, known)}; "
                "enable it in tools.enabled, or name one of an MCP server as SERVER__TOOL",
            )


def _find_repeated_strategies(settings: Settings) -> Iterator[Violation]:
    """Reject strategies that are enabled twice."""
    for name, times in Counter(settings.reasoning.enabled_strategies).items():
        if times > 1:
            text = f"must not name a strategy twice, and names {name!r} {times} times; leave one"
            yield Violation(field="reasoning.enabled_strategies", description=text)


def _find_default_strategy_problems(settings: Settings) -> Iterator[Violation]:
    """Reject a default strategy that was configured but is not enabled."""
    reasoning = settings.reasoning
    # The built-in default was not configured: a server that enables other strategies need not enable it too.
    chosen = reasoning.default_strategy if "default_strategy" in reasoning.model_fields_set else ""
    if chosen and chosen not in reasoning.enabled_strategies:
        enabled = ", ".join(reasoning.enabled_strategies) or "none"
        yield Violation(
            field="reasoning.default_strategy",
            description=f"{chosen!r} is not among reasoning.enabled_strategies ({enabled}); enable it or set it to "
            '"" for no default',
        )


def _find_auto_problems(settings: Settings) -> Iterator[Violation]:
    """Reject the rule `auto` without the strategy that it chooses."""
    reasoning = settings.reasoning
    if reasoning.auto and "bounded_context" not in reasoning.enabled_strategies:
        yield Violation(
            field="reasoning.auto",
            description="needs bounded_context, which reads what does not fit; enable it in "
            "reasoning.enabled_strategies, or set reasoning.auto to false",
        )


_CHECKS: Sequence[tuple[Callable[[Settings], Iterator[Violation]], Sequence[str]]] = (
    (_find_bind_problems, ("server.tls", "server.grpc_unix_socket")),
    (_find_tls_problems, ("server.tls", "server.tls_certificate", "server.tls_private_key", "server.tls_client_ca")),
    (_find_peer_problems, ("auth.peers", "auth.trust_domain", "server.tls_client_ca")),
    (_find_limits_problems, ("limits.storage", "limits.redis_url", "reasoning.enabled_strategies")),
    (
        _find_llm_problems,
        ("llm.provider", "llm.count", "llm.tokenizer_file", "llm.first_wait_s", "llm.max_wait_s", "llm.backends"),
    ),
    (_find_repeated_strategies, ()),
    (_find_default_strategy_problems, ("reasoning.enabled_strategies", "reasoning.default_strategy")),
    (_find_auto_problems, ("reasoning.enabled_strategies", "reasoning.auto")),
    (_find_tools_problems, ("tools.mcp", "tools.http_get")),
    (
        _find_turns_problems,
        (
            *("turns.default_mode", "turns.modes", "turns.needs_approval"),
            *("tools.enabled", "tools.http_get", "tools.mcp", "llm.backends"),
        ),
    ),
    (_find_repair_problems, ("repair", "llm.backends")),
    (_find_webhook_problems, ("webhooks", "a2a", "store.url")),
    (_find_engine_problems, ("engine.repair", "store.record_content")),
    (_find_program_problems, ("repair", "reasoning.program_environment")),
    (_find_workers_problems, ("store.url", "limits.storage")),
)
"""Each check with the keys that it needs: their defaults could make it report a false violation."""
