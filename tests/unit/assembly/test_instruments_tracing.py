"""The settings of tracing, and the servers that receive the trace context."""

from __future__ import annotations

import os

import pytest

from reasond_server.assembly.instruments import find_provider_name, open_span_sink, read_tracing_options
from reasond_server.config import load


def options_of(**environ: str) -> tuple[set[str], str]:
    environ = {"REASOND_CONFIG": os.devnull, **environ}
    settings = load(None, environ).settings
    return set(read_tracing_options(settings, environ, instance_id="i").propagate_to), find_provider_name(
        settings, environ
    )


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({}, {"models"}),
        ({"REASOND__LLM__BASE_URL": "http://127.0.0.1:8080/v1"}, {"models"}),
        ({"REASOND__LLM__BASE_URL": "https://api.openai.com/v1", "OPENAI_API_KEY": "k"}, set()),
        ({"REASOND__LLM__BASE_URL": "https://api.openai.com/v1"}, set()),
        (
            {
                "REASOND__LLM__BASE_URL": "https://api.openai.com/v1",
                "OPENAI_API_KEY": "k",
                "REASOND__TRACING__PROPAGATE_TO": '["hosted_models", "tools"]',
            },
            {"models", "tools"},
        ),
        ({"REASOND__TRACING__PROPAGATE_TO": "[]"}, set()),
    ],
)
def test_own_model_servers_are_told_and_known_providers_only_where_that_is_asked_for(
    environ: dict[str, str], told: set[str]
) -> None:
    model = {"REASOND__LLM__PROVIDER": "openai", "REASOND__LLM__MODEL": "m"} if environ else {}
    assert options_of(**model, **environ) == (told, "openai" if model else "reasond.demo")


def test_nothing_is_traced_by_default() -> None:
    environ = {"REASOND_CONFIG": os.devnull}
    assert open_span_sink(load(None, environ).settings, environ, instance_id="i") is None


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4317", "ftp://x", "http://", "http://user:word@host", "http://a b"])
def test_an_endpoint_that_is_none_or_holds_a_password_is_refused(endpoint: str) -> None:
    with pytest.raises(Exception, match=r"tracing\.endpoint"):
        load(None, {"REASOND_CONFIG": os.devnull, "REASOND__TRACING__ENDPOINT": endpoint})
