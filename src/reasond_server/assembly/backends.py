"""Builds language models and tools from the settings; the packages `llm` and `tools` get plain values.

Addresses, keys and profiles are checked before a server starts. A key is required if the address belongs to a known
provider that serves nobody without one (OpenAI, Azure, OpenRouter, DeepSeek, Anthropic, xAI, Google, Mistral, Groq), or
if the operator named a variable for the key. Any other server may be used without a key.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from reasond_server.config import BackendSettings, Settings, ToolsSettings, choose_provider
from reasond_server.config.section import require_base_url
from reasond_server.errors.base import SettingsError, Violation, show
from reasond_server.llm.openai.backend_options import BackendOptions, RetryPolicy, Timeouts
from reasond_server.llm.profiles import ModelProfile, find_profile, is_hosted, merge, needs_responses
from reasond_server.telemetry.observers import UNOBSERVED, Observer
from reasond_server.tools.address_checks import AddressPolicy
from reasond_server.tools.execution import INSTALLED_TOOLS, ToolLimits, Tools
from reasond_server.tools.http_get import FetchLimits, HttpGet
from reasond_server.tools.mcp import McpOptions, McpServer
from reasond_server.types.usage import Price

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from reasond_server.llm.model import ChatModel
    from reasond_server.tools.tool import Tool


def build_tools(settings: ToolsSettings, *, observer: Observer = UNOBSERVED) -> Tools:
    """Return the tools of [tools]; each call is reported to `observer`; nothing is connected yet.

    Raises:
        SettingsError: a tool cannot be loaded, two tools have the same name, or a package is missing.
    """
    fetch = settings.http_get
    tools: list[Tool] = [*INSTALLED_TOOLS.load(settings.enabled)]
    if fetch.allow_hosts:
        policy = AddressPolicy(
            allow_hosts=fetch.allow_hosts, allow_private_hosts=fetch.allow_private_hosts, allow_http=fetch.allow_http
        )
        limits = FetchLimits(timeout_s=fetch.timeout_s, max_bytes=fetch.max_bytes, content_types=fetch.content_types)
        tools.append(HttpGet(policy=policy, limits=limits))
    return Tools(
        tools=tools,
        servers=[McpServer(options) for options in read_mcp_options(settings)],
        limits=ToolLimits(
            timeout_s=settings.timeout_s,
            max_shown_bytes=settings.max_shown_bytes,
            max_kept_bytes=settings.max_kept_bytes,
        ),
        observer=observer,
    )


def read_mcp_options(settings: ToolsSettings) -> Sequence[McpOptions]:
    """Return the MCP servers of [tools.mcp] with their secrets in plain text."""
    return tuple(
        McpOptions(
            name=name,
            command=server.command,
            args=server.args,
            env={key: value.get_secret_value() for key, value in server.env.items()},
            url=server.url,
            headers={key: value.get_secret_value() for key, value in server.headers.items()},
            allow_tools=server.allow_tools,
            timeout_s=server.timeout_s,
            connect_timeout_s=server.connect_timeout_s,
        )
        for name, server in settings.mcp.items()
    )


MAIN = "llm"
OPENAI_URL = "https://api.openai.com/v1"
_BASE_URL_VARIABLE = "OPENAI_BASE_URL"
_KEY = re.compile(r"[\x21-\x7e]{1,8192}")


def create_model(
    settings: Settings,
    environ: Mapping[str, str],
    folder: Path = Path(),
    *,
    observer: Observer = UNOBSERVED,
) -> ChatModel:
    """Return the language model that the settings name; files in them are relative to `folder`.

    Raises:
        SettingsError: no model is named, or it cannot be called as configured; the demo model is never used silently.
    """
    if choose_provider(settings, environ) == "demo":
        # Only the model in use is imported: aiohttp takes long to import, and the demo model takes 2 MB.
        from reasond_server.demo import DemoModel  # noqa: PLC0415 - see above

        return DemoModel()
    return _build_model(settings, environ, folder, "", observer)


def create_named_models(
    settings: Settings, environ: Mapping[str, str], folder: Path = Path(), *, observer: Observer = UNOBSERVED
) -> dict[str, ChatModel]:
    """Return the models that tasks, [llm], [turns] and [repair] name, by the names of their backends.

    The settings were checked for names that have no table.

    Raises:
        SettingsError: one cannot be called as configured.
    """
    wanted = {mode.backend for mode in settings.turns.modes.values()}
    wanted.add(settings.turns.context.summary_backend)
    wanted.update(settings.repair.model_preference, settings.llm.offered, settings.llm.fallbacks)
    named = wanted & settings.llm.backends.keys()
    return {name: _build_model(settings, environ, folder, name, observer) for name in sorted(named)}


def _build_model(
    settings: Settings, environ: Mapping[str, str], folder: Path, name: str, observer: Observer
) -> ChatModel:
    """Return the model of the backend `name`, or of [llm] itself if `name` is empty."""
    options = read_backend_options(settings, environ, name)
    # aiohttp takes long to import.
    from reasond_server.llm.openai.model_factory import build_model  # noqa: PLC0415 - see above

    _, backend = _choose(settings, name)
    return build_model(
        options,
        counter_kind=backend.count,
        tokenizer_file=folder / backend.tokenizer_file if backend.tokenizer_file else None,
        rank_folders=find_rank_folders(environ),
        observer=observer,
    )


def find_model_name(settings: Settings, environ: Mapping[str, str]) -> str:
    """Return the name of the model that `create_model` gives."""
    provider = choose_provider(settings, environ)
    # The embedded model has the name of its provider.
    return provider if provider == "demo" else settings.llm.model


def read_backend_options(settings: Settings, environ: Mapping[str, str], name: str = "") -> BackendOptions:
    """Return the settings of the backend `name`, or of [llm] itself if `name` is empty.

    Raises:
        SettingsError: there is no such backend, or it cannot be called as configured.
    """
    section, backend = _choose(settings, name)
    problems = list(_find_problems(section, backend, settings, environ))
    if problems:
        text = "; ".join(f"{problem.field} {problem.description}" for problem in problems)
        raise SettingsError(text, remedy="See docs/guides/model-backends.md.", violations=problems)
    base_url = _find_base_url(section, backend, environ)
    is_responses = backend.protocol == "responses" or (
        backend.protocol == "auto" and needs_responses(backend.model, base_url)
    )
    profile = _find_profile(section, backend, base_url)
    return BackendOptions(
        name=name or MAIN,
        model=backend.model,
        base_url=base_url,
        api_key=environ.get(backend.api_key_env, "").strip() if backend.api_key_env else "",
        protocol="responses" if is_responses else "chat",
        azure_api_version=backend.azure_api_version,
        profile=profile,
        timeouts=Timeouts(
            connect_s=backend.connect_timeout_s,
            first_token_s=backend.first_token_timeout_s or profile.first_token_s,
            idle_s=backend.idle_timeout_s or profile.idle_s,
            total_s=backend.total_timeout_s or profile.total_s,
        ),
        retries=RetryPolicy(
            max_attempts=backend.max_attempts, first_wait_s=backend.first_wait_s, max_wait_s=backend.max_wait_s
        ),
        max_concurrency=backend.max_concurrency,
        max_line_bytes=backend.max_line_bytes,
        max_response_bytes=backend.max_response_bytes,
        price=_find_price(backend),
    )


def find_backend_problems(settings: Settings, environ: Mapping[str, str]) -> list[Violation]:
    """Return the problems that prevent calls of the configured models: the chosen one and all named ones."""
    names = [*settings.llm.backends]
    if choose_provider(settings, environ) != "demo":
        names.insert(0, "")
    return [problem for name in names for problem in _find_problems(*_choose(settings, name), settings, environ)]


def find_rank_folders(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the folders that may hold tiktoken's ranks: the one that its own variable names, then the user's cache."""
    named = environ.get("TIKTOKEN_CACHE_DIR", "")
    home = environ.get("HOME", "")
    cache = environ.get("XDG_CACHE_HOME", "") or (f"{home}/.cache" if home else "")
    return (*([Path(named)] if named else []), *([Path(cache) / "reasond" / "tiktoken"] if cache else []))


def _choose(settings: Settings, name: str) -> tuple[str, BackendSettings]:
    """Return the section and the settings of the backend `name`."""
    if not name:
        return MAIN, settings.llm
    if name not in settings.llm.backends:
        known = ", ".join(settings.llm.backends) or "none"
        raise SettingsError(
            f"There is no backend {show(name)}", remedy=f"Named in [llm.backends]: {known}; [llm] itself has no name."
        )
    return f"{MAIN}.backends.{name}", settings.llm.backends[name]


def _find_problems(
    section: str, backend: BackendSettings, settings: Settings, environ: Mapping[str, str]
) -> Iterator[Violation]:
    """Yield the problems that prevent calls of one backend."""
    if not backend.model:
        why = (
            ", and the provider openai was selected because OPENAI_API_KEY or OPENAI_BASE_URL is set; name the model, "
            'or set llm.provider = "demo" for the embedded one'
            if section == MAIN and not settings.llm.provider
            else "; name the model as the provider knows it"
        )
        yield Violation(field=f"{section}.model", description=f"is empty{why}")
    try:
        base_url = _find_base_url(section, backend, environ)
    except ValueError as error:
        yield Violation(field=f"{section}.base_url", description=f"is empty, and {_BASE_URL_VARIABLE} {error}")
        return
    if bool(backend.input_price_usd) != bool(backend.output_price_usd):
        missing = "output" if backend.input_price_usd else "input"
        yield Violation(field=f"{section}.{missing}_price_usd", description="is 0, and the other price is not")
    elif backend.cached_input_price_usd and not backend.input_price_usd:
        yield Violation(field=f"{section}.input_price_usd", description="is 0, and that of the cache is not")
    yield from _find_key_problems(section, backend, base_url, environ)
    try:
        _find_profile(section, backend, base_url)
    except SettingsError as error:
        yield from error.violations or [Violation(field=f"{section}.profile", description=error.full_message)]


def _find_key_problems(
    section: str, backend: BackendSettings, base_url: str, environ: Mapping[str, str]
) -> Iterator[Violation]:
    """Yield the problems of the key: it is missing, or it does not fit into a header. Its value is never shown."""
    name = backend.api_key_env
    key = environ.get(name, "").strip() if name else ""
    field = f"{section}.api_key_env"
    if key and not _KEY.fullmatch(key):
        yield Violation(field=field, description=f"names {name}, whose value holds characters that no key has")
    elif not key and is_hosted(base_url):
        missing = f"names {name}, which is not set" if name else "is empty"
        yield Violation(field=field, description=f"{missing}, but {base_url} takes no calls without a key")
    elif not key and name and "api_key_env" in backend.model_fields_set:
        yield Violation(
            field=field, description=f'names {name}, which is not set; set it, or api_key_env = "" for a server without'
        )


def _find_base_url(section: str, backend: BackendSettings, environ: Mapping[str, str]) -> str:
    """Return the base URL of the backend.

    Raises:
        ValueError: the address in the environment is wrong; the text says why.
    """
    if backend.base_url:
        return backend.base_url
    named = environ.get(_BASE_URL_VARIABLE, "").strip() if section == MAIN else ""
    return require_base_url(named) or OPENAI_URL


def _find_price(backend: BackendSettings) -> Price | None:
    """Return what tokens cost; None if the operator does not say."""
    read, written = backend.input_price_usd, backend.output_price_usd
    if not read or not written:
        return None
    return Price(input_usd=read, cached_input_usd=backend.cached_input_price_usd or read, output_usd=written)


def _find_profile(section: str, backend: BackendSettings, base_url: str) -> ModelProfile:
    """Return the backend's profile: the values of the model family, overridden by the host's, then the operator's."""
    profile = find_profile(backend.model, base_url, backend.profile)
    return merge(profile, backend.capabilities, section=f"{section}.capabilities")
