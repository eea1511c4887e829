from __future__ import annotations

import pytest

from reasond_server.base.addresses import find_proxy
from reasond_server.errors.base import SettingsError


@pytest.fixture(autouse=True)
def without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize(
    ("excepted", "host", "is_asked"),
    [
        ("10.0.0.0/8", "10.1.2.3", False),
        ("10.0.0.0/8", "11.1.2.3", True),
        ("example.com, 10.1.2.3/8", "10.200.0.1", False),
        ("127.0.0.1", "127.0.0.1", False),
        ("fd00::/8", "[fd12::1]", False),
        ("[fd12::1]", "[fd12::1]", False),
        ("fd00::/8", "10.0.0.1", True),
        ("10.0.0.0/8", "model.example", True),
        (".example", "model.example", False),
        ("*", "10.1.2.3", False),
        ("10.0.0.0/99,nonsense//", "10.1.2.3", True),
        ("", "10.1.2.3", True),
    ],
)
def test_no_proxy_is_asked_for_names_addresses_and_networks_that_the_environment_excepts(
    monkeypatch: pytest.MonkeyPatch, excepted: str, host: str, *, is_asked: bool
) -> None:
    monkeypatch.setenv("all_proxy", "proxy.example:3128")
    monkeypatch.setenv("no_proxy", excepted)
    expected = "http://proxy.example:3128" if is_asked else None
    assert find_proxy(f"http://{host}:8000/v1") == expected


@pytest.mark.parametrize(
    ("proxy", "wrong"),
    [
        ("socks5://me:k4n4ry@127.0.0.1:1080", "is of the kind 'socks5'"),
        ("socks5h://127.0.0.1:1080", "is of the kind 'socks5h'"),
        ("http://proxy.example:none", "has no address"),
        ("http://", "has no address"),
        ("http://[k4n4ry", "has no address"),
    ],
)
def test_a_proxy_that_cannot_be_used_is_refused_at_the_start_without_its_password(
    monkeypatch: pytest.MonkeyPatch, proxy: str, wrong: str
) -> None:
    monkeypatch.setenv("all_proxy", proxy)
    with pytest.raises(SettingsError) as refused:
        find_proxy("https://model.example/v1")
    assert wrong in refused.value.message
    assert "HTTPS_PROXY" in refused.value.remedy
    assert "name model.example in NO_PROXY" in refused.value.remedy
    assert "k4n4ry" not in refused.value.full_message
    monkeypatch.setenv("no_proxy", "model.example")
    assert find_proxy("https://model.example/v1") is None
