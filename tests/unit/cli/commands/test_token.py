from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from reasond_server.access.permissions import find_unknown_permissions
from reasond_server.access.token_keys import SigningKey, StaticKeys
from reasond_server.access.token_verifier import TokenRules, TokenVerifier
from reasond_server.cli.commands.token import mint
from reasond_server.cli.options import parse_lifetime
from reasond_server.cli.outcome import CommandError

SECRETS = {"FIRST": "kQ3v9ZpX7mT2cR8wLb5NfH4sYgJ6dAeU", "SECOND": "Zt8Wn4Hq2Vb7Jx5Mc9Rk3Fy6Gd1Ls0Pe"}
KEYS = '[{ id = "one", secret_env = "FIRST" }, { id = "two", secret_env = "SECOND" }]'
ENVIRON = {**SECRETS, "REASOND__AUTH__KEYS": KEYS}
NO_FILE = Path("/dev/null")


REQUEST: dict[str, Any] = {"subject": "ada", "permission": ["admin"]}


def verifier(secret: str, key_id: str) -> TokenVerifier:
    key = SigningKey(id=key_id, secret=secret.encode())
    return TokenVerifier(
        keys=StaticKeys([key.verifying_key]),
        rules=TokenRules(issuer="reasond", audience="reasond", leeway_s=0, max_lifetime_s=86_400),
        now=lambda: datetime.now(UTC),
    )


@pytest.mark.parametrize(("key_id", "used", "secret"), [(None, "one", "FIRST"), ("two", "two", "SECOND")])
async def test_stdout_gets_a_token_that_a_server_with_the_key_accepts(
    key_id: str | None, used: str, secret: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mint(**REQUEST, key=key_id, tenant="lab", config=NO_FILE, environ=ENVIRON) == 0
    out, err = capsys.readouterr()
    principal = await verifier(SECRETS[secret], used).verify(out.removesuffix("\n"))
    assert (principal.subject, principal.tenant, principal.permissions) == ("ada", "lab", frozenset({"admin"}))
    assert err == ""


@pytest.mark.parametrize(
    ("changes", "environ", "words"),
    [
        ({}, {}, "There is no key"),
        ({"key": "three"}, ENVIRON, "has no key 'three'"),
        ({"lifetime": "30d"}, ENVIRON, r"--lifetime 30d is not between 1 second and the 86400 seconds of \[auth\]"),
        ({"lifetime": "0"}, ENVIRON, "--lifetime 0 is not between"),
        ({"lifetime": "soon"}, ENVIRON, "is no time"),
        ({"subject": ""}, ENVIRON, "subject"),
        ({"tenant": "a\nb"}, ENVIRON, "tenant"),
    ],
)
def test_a_token_that_no_server_would_accept_is_refused_clearly(
    changes: dict[str, object], environ: dict[str, str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CommandError, match=words) as caught:
        mint(**{**REQUEST, **changes}, config=NO_FILE, environ=environ)
    assert caught.value.code == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("text", "expected"), [("90", 90), ("90s", 90), ("30m", 1800), ("1h", 3600), ("1 d", 86_400), (" 2h ", 7200)]
)
def test_lifetimes_are_numbers_with_units(text: str, expected: int) -> None:
    assert parse_lifetime(text) == expected


@pytest.mark.parametrize("text", ["", "h", "-1h", "1.5h", "1w", "1h30m", "9999999999"])
def test_other_lifetimes_are_refused(text: str) -> None:
    with pytest.raises(CommandError, match="is no time"):
        parse_lifetime(text)


def test_a_permission_that_opens_nothing_is_minted_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    mint(subject="ada", permission=["reasoning:exceute"], config=NO_FILE, environ=ENVIRON)
    out, err = capsys.readouterr()
    assert out.count(".") == 2
    assert "'reasoning:exceute'" in err
    assert "reasoning:execute" in err


def test_permissions_of_the_server_and_of_single_strategies_are_known() -> None:
    known = ["admin", "reasoning:execute", "reasoning:tools", "executions:read", "agents:write"]
    assert find_unknown_permissions([*known, "reasoning:execute:react", "x", "reasoning:execute:"]) == [
        "x",
        "reasoning:execute:",
    ]
