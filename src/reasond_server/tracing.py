"""Settings become the tracing of the process: where spans go, and who is told of traces."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from reasond_server.backends import read_backend_options
from reasond_server.config import choose_provider
from reasond_server.errors import SettingsError
from reasond_server.llm.profiles import is_hosted
from reasond_server.telemetry.exporting import TracingOptions, sink_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reasond_server.config import Settings
    from reasond_server.telemetry.exporting import SpanSink

PROVIDERS = {"demo": "reasond.demo", "openai": "openai"}
"""What spans call the providers of the configuration."""


def tracing_options(settings: Settings, environ: Mapping[str, str], *, instance_id: str) -> TracingOptions:
    """Return what the settings say of tracing; models of known providers are told only where that is asked for."""
    section = settings.tracing
    told = set(section.propagate_to)
    models = "hosted_models" if _is_hosted_model(settings, environ) else "models"
    return TracingOptions(
        endpoint=section.endpoint,
        protocol=section.protocol,
        sample_ratio=section.sample_ratio,
        follows_callers=section.follow_callers,
        has_content=section.content,
        propagate_to=(told & {"tools"}) | ({"models"} if models in told else set()),
        version=version("reasond-server"),
        instance_id=instance_id,
        environ=environ,
    )


def span_sink_of(settings: Settings, environ: Mapping[str, str], *, instance_id: str) -> SpanSink | None:
    """Return where the settings send spans; None where nothing is traced.

    Raises:
        SettingsError: they name an endpoint, but the packages are not installed.
    """
    return sink_of(tracing_options(settings, environ, instance_id=instance_id))


def provider_name(settings: Settings, environ: Mapping[str, str]) -> str:
    """Return what spans call the provider of the model."""
    return PROVIDERS[choose_provider(settings, environ)]


def _is_hosted_model(settings: Settings, environ: Mapping[str, str]) -> bool:
    if choose_provider(settings, environ) == "demo":
        return False
    try:
        return is_hosted(read_backend_options(settings, environ).base_url)
    except SettingsError:
        # The model is given from outside, and nothing is configured for it.
        return True
