from __future__ import annotations

import pytest

from reasond_server.base.addresses import is_loopback, split_address


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),
        ("[::1]:65535", ("::1", 65535)),
        ("localhost:50051", ("localhost", 50051)),
        ("host.example:1", ("host.example", 1)),
    ],
)
def test_an_address_is_host_and_port(address: str, expected: tuple[str, int]) -> None:
    assert split_address(address) == expected


@pytest.mark.parametrize(
    "address",
    [
        *("", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", ":50051", "host:", "host:65536", "host:-1", "::1:80", "[::1]"),
        *("http://h:1", "h:1\n", "unix:/s", "h :1"),
    ],
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        split_address(address)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:1", True),
        ("127.9.9.9:1", True),
        ("localhost:1", True),
        ("LocalHost:1", True),
        ("[::1]:1", True),
        ("[::ffff:127.0.0.1]:1", True),
        ("[::ffff:8.8.8.8]:1", False),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("192.168.0.1:1", False),
        ("example.com:1", False),
        ("localhost.example.com:1", False),
        ("127.0.0.1.example.com:1", False),
    ],
)
def test_loopback_is_told_without_asking_anybody(address: str, *, expected: bool) -> None:
    assert is_loopback(address) is expected
