"""The operator's configuration: reads config.toml and the environment into frozen models; starts nothing.

`settings` and the modules named after sections declare the keys, `sources` reads them, `checks` rejects invalid
combinations, `reference` lists them.
"""

from reasond_server.config.auth import AuthKey as AuthKey
from reasond_server.config.auth import AuthSettings as AuthSettings
from reasond_server.config.checks import choose_provider as choose_provider
from reasond_server.config.checks import require_servable as require_servable
from reasond_server.config.llm import BackendSettings as BackendSettings
from reasond_server.config.operation import LimitsSettings as LimitsSettings
from reasond_server.config.operation import LogsSettings as LogsSettings
from reasond_server.config.reference import list_key_docs as list_key_docs
from reasond_server.config.reference import list_rows as list_rows
from reasond_server.config.reference import render_example as render_example
from reasond_server.config.settings import ReasoningSettings as ReasoningSettings
from reasond_server.config.settings import ServerSettings as ServerSettings
from reasond_server.config.settings import Settings as Settings
from reasond_server.config.sources import LoadedSettings as LoadedSettings
from reasond_server.config.sources import load as load
from reasond_server.config.tools import ToolsSettings as ToolsSettings
