from __future__ import annotations

import pytest
from pydantic import ValidationError

from reasond_server.config import Settings
from reasond_server.config.llm import LlmSettings
from reasond_server.config.settings import ServerSettings


@pytest.mark.parametrize("address", ["127.0.0.1", ":1", "host:65536", "unix:/s"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValidationError):
        ServerSettings.model_validate({"grpc_address": address})


@pytest.mark.parametrize("url", ["https://api.example/v1", "http://127.0.0.1:8080", "http://[::1]:1/v1/", ""])
def test_an_endpoint_is_an_address_of_http(url: str) -> None:
    assert LlmSettings.model_validate({"base_url": url}).base_url == url


@pytest.mark.parametrize(
    "url", ["ftp://x", "x", "https://", "https://u:p@h/", "https://h/?key=1", "https://h/#f", "http://a b"]
)
def test_an_endpoint_with_credentials_or_no_host_is_refused(url: str) -> None:
    with pytest.raises(ValidationError):
        LlmSettings.model_validate({"base_url": url})


def test_settings_cannot_be_changed() -> None:
    settings = Settings.model_validate({"reasoning": {"strategies": {"x": {"default_a": 1}}}})
    with pytest.raises(ValidationError):
        setattr(settings.server, "tls", "off")  # noqa: B010 - mypy refuses it as well
    with pytest.raises(TypeError):
        vars(settings.reasoning)["strategies"]["x"]["default_a"] = 2
