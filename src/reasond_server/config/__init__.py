"""The operator's configuration: config.toml and the environment become frozen models; nothing is started here.

`models` says which keys exist, `sources` reads them, `checks` refuses what must not start, `listing` shows them.
"""

from reasond_server.config.auth import AuthKeySettings, AuthSettings, RoleSettings
from reasond_server.config.checks import choose_provider, require_servable
from reasond_server.config.keys import KeyDoc, key_docs
from reasond_server.config.limits import LimitsSettings
from reasond_server.config.listing import render_example, settings_as_rows
from reasond_server.config.models import (
    AgentsSettings,
    LlmSettings,
    PerformanceSettings,
    ReasoningSettings,
    ServerSettings,
    Settings,
)
from reasond_server.config.observing import LogsSettings, TracingSettings
from reasond_server.config.sections import BackendSettings
from reasond_server.config.signing import AuthKey
from reasond_server.config.sources import LoadedSettings, load
from reasond_server.config.storing import StoreSettings
from reasond_server.config.tools import ToolsSettings

__all__ = [
    "AgentsSettings",
    "AuthKey",
    "AuthKeySettings",
    "AuthSettings",
    "BackendSettings",
    "KeyDoc",
    "LimitsSettings",
    "LlmSettings",
    "LoadedSettings",
    "LogsSettings",
    "PerformanceSettings",
    "ReasoningSettings",
    "RoleSettings",
    "ServerSettings",
    "Settings",
    "StoreSettings",
    "ToolsSettings",
    "TracingSettings",
    "choose_provider",
    "key_docs",
    "load",
    "render_example",
    "require_servable",
    "settings_as_rows",
]
