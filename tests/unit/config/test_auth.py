from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

import pytest

from reasond_server.config.auth import AuthKeySettings, find_weakness, read_auth_keys

if TYPE_CHECKING:
    from pathlib import Path

GOOD = "0f9c1d7ab36e48e5a2d4b8c7f6019e3d"


def read(tmp_path: Path, *keys: dict[str, object], **environ: str) -> tuple[list[str], dict[str, str]]:
    """Return the secrets of `keys`, and the problems by field."""
    settings = [AuthKeySettings.model_validate({"id": "main"} | key) for key in keys]
    found, problems = read_auth_keys(settings, environ=environ, folder=tmp_path)
    return (
        [key.secret.get_secret_value() for key in found],
        {problem.field: problem.description for problem in problems},
    )


def test_a_secret_stands_in_the_file_a_variable_or_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(GOOD.encode() + b"\r\n")
    keys: list[dict[str, object]] = [
        {"id": "a", "secret": GOOD},
        {"id": "b", "secret_env": "MY_SECRET"},
        {"id": "c", "secret_file": "secret"},
        {"id": "d", "secret_file": str(tmp_path / "secret")},
    ]
    assert read(tmp_path, *keys, MY_SECRET=GOOD) == ([GOOD] * 4, {})


@pytest.mark.parametrize(
    ("key", "field", "description"),
    [
        ({}, "auth.keys[0]", "must set exactly one of secret, secret_env and secret_file, not none"),
        ({"secret": ""}, "auth.keys[0]", "not none"),
        ({"secret": GOOD, "secret_env": "S"}, "auth.keys[0]", "not secret and secret_env"),
        ({"secret_env": "UNSET"}, "auth.keys[0].secret_env", "environment variable UNSET, which is not set"),
        ({"secret_env": "EMPTY"}, "auth.keys[0].secret_env", "environment variable EMPTY, which is not set"),
        ({"secret_file": "gone"}, "auth.keys[0].secret_file", "cannot be read"),
        ({"secret_file": "."}, "auth.keys[0].secret_file", "cannot be read"),
        ({"secret_file": "a\x00b"}, "auth.keys[0].secret_file", "cannot be read"),
        ({"secret_file": "pipe"}, "auth.keys[0].secret_file", "no regular file"),
        ({"secret_file": "/dev/zero"}, "auth.keys[0].secret_file", "no regular file"),
        ({"secret_file": "binary"}, "auth.keys[0].secret_file", "no UTF-8 text"),
        ({"secret_file": "huge"}, "auth.keys[0].secret_file", "more than 4096 bytes"),
        ({"secret": "short"}, "auth.keys[0].secret", "has 5 bytes, fewer than the 32"),
    ],
)
def test_a_secret_that_cannot_be_had_is_a_problem(
    tmp_path: Path, key: dict[str, object], field: str, description: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "binary").write_bytes(b"\xff" * 40)
    (tmp_path / "huge").write_bytes(b"x" * 4097)
    found, problems = read(tmp_path, key, EMPTY="")
    assert found == []
    assert list(problems) == [field]
    assert description in problems[field]


def test_two_keys_of_one_id_are_a_problem(tmp_path: Path) -> None:
    _, problems = read(tmp_path, {"secret": GOOD}, {"secret": GOOD[::-1]})
    assert problems == {"auth.keys[1].id": "'main' stands for another key already"}


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "secret",
        "changeme",
        "my-secret",
        GOOD[:31],
        "changeme" * 8,
        "a-string-secret-at-least-256-bits-long",
        "your-256-bit-secret-your-256-bit-secret",
        "my_super_secret_key_that_is_not_long_enough",
        "please-change-this-secret-in-production-please",
        "0" * 64,
        "ab" * 32,
        "12345678901234567890123456789012",
        "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9",
        "reasond-example-signing-secret-for-tests",
    ],
)
def test_short_and_well_known_secrets_are_weak_and_not_quoted(secret: str) -> None:
    weakness = find_weakness(secret)
    assert weakness
    assert "secrets.token_urlsafe" in weakness
    assert not secret or secret not in weakness.replace("secrets.token_urlsafe", "").replace("import secrets", "")


def test_random_secrets_are_not_weak() -> None:
    made = [secrets.token_urlsafe(48) for _ in range(300)] + [secrets.token_hex(16) for _ in range(300)]
    assert [secret for secret in made if find_weakness(secret)] == []
    assert not find_weakness("prod-secret-2f8ac11b97d340eea5c6b7d8")
    assert not find_weakness("schlüssel aus vierzehn wörtern ohne sinn")
