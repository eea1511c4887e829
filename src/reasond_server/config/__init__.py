"""The operator's configuration: reads config.toml and the environment into frozen models; starts nothing.

`settings` declares the keys, `sources` reads them, `checks` rejects invalid combinations, `reference` lists them.
"""

from reasond_server.config.auth import AuthKey, AuthKeySettings, AuthSettings, RoleSettings
from reasond_server.config.checks import choose_provider, require_servable
from reasond_server.config.openai_interface import OpenAiSettings
from reasond_server.config.operation import LimitsSettings, LogsSettings, StoreSettings, TracingSettings
from reasond_server.config.reference import KeyDoc, key_docs, render_example, settings_as_rows
from reasond_server.config.section import BackendSettings
from reasond_server.config.settings import (
    AgentsSettings,
    LlmSettings,
    PerformanceSettings,
    ReasoningSettings,
    ServerSettings,
    Settings,
)
from reasond_server.config.sources import LoadedSettings, load
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
    "OpenAiSettings",
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
