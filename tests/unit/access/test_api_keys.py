from __future__ import annotations

import logging
from datetime import timedelta

import pytest

from reasond_server.access.api_keys import KEY_PREFIX, ApiKey, ApiKeys, NewKey, create_key, find_key_id, hash_key
from reasond_server.access.tokens import Revocations
from reasond_server.errors.access import TokenExpiredError, TokenInvalidError
from reasond_server.telemetry.logs import emit_line, redact
from reasond_server.telemetry.observers import Observer
from reasond_server.types import Principal
from tests.unit.access.parts import NOW, Clock, verifier_of

# The names of parametrised tests must be the same in every process.
MADE = NewKey(id="k3v9zpx7mt2c", text=f"{KEY_PREFIX}k3v9zpx7mt2c-{'aZ3-_' * 8}4qP")


class Told(Observer):
    """Keeps which key was used with which outcome."""

    def __init__(self) -> None:
        self.uses: list[tuple[str, str]] = []

    def api_key_used(self, key_id: str, outcome: str) -> None:
        self.uses.append((key_id, outcome))


def key_of(**changes: object) -> ApiKey:
    principal = Principal(subject="chat", tenant="acme", permissions=frozenset({"reasoning:execute"}), key_id=MADE.id)
    values: dict[str, object] = {"id": MADE.id, "key_hash": hash_key(MADE.text), "principal": principal}
    return ApiKey(**{**values, **changes})  # type: ignore[arg-type]  # the fields have several types


def keys_of(*keys: ApiKey, told: Told | None = None, revocations: Revocations | None = None) -> ApiKeys:
    return ApiKeys(now=lambda: NOW, revocations=revocations or Revocations(), keys=keys, observer=told or Told())


def test_a_key_names_who_calls_and_by_which_key() -> None:
    told = Told()
    principal = keys_of(key_of(), told=told).verify(MADE.text)
    assert (principal.subject, principal.tenant, principal.key_id) == ("chat", "acme", MADE.id)
    assert told.uses == [(MADE.id, "accepted")]


def test_made_keys_differ_and_have_an_id_that_is_no_part_of_their_secret() -> None:
    made = [create_key() for _ in range(50)]
    assert len({one.id for one in made}) == len({one.text.rpartition(one.id)[2] for one in made}) == 50
    assert all(find_key_id(one.text) == one.id for one in made)
    assert all(one.text not in repr(one) and hash_key(one.text) not in repr(key_of()) for one in made)


@pytest.mark.parametrize(
    "text",
    [
        f"{MADE.text[:-1]}{'A' if MADE.text[-1] != 'A' else 'B'}",
        MADE.text.replace(MADE.id, "aaaaaaaaaaaa"),
        MADE.text[:-1],
        f"{MADE.text}A",
        f"{MADE.text}\n",
        KEY_PREFIX,
        f"{KEY_PREFIX}{MADE.id}",
        f"{KEY_PREFIX}{MADE.id}-{hash_key(MADE.text)}",
        f"{KEY_PREFIX}{'x' * 1_000_000}",
        f"{KEY_PREFIX}{MADE.id}-{'é' * 43}",
        f"{KEY_PREFIX}{MADE.id}-{chr(0xD800) * 43}",
    ],
)
def test_another_key_is_refused_without_a_word_about_the_right_one(text: str) -> None:
    told = Told()
    with pytest.raises(TokenInvalidError, match=r"API key is (malformed|not known here)") as caught:
        keys_of(key_of(), told=told).verify(text)
    assert caught.value.metadata == {}
    assert told.uses == []
    assert MADE.text.removeprefix(f"{KEY_PREFIX}{MADE.id}-") not in caught.value.message


@pytest.mark.parametrize(
    ("changes", "revocations", "reason"),
    [
        ({"is_revoked": True}, Revocations(), "API key has been revoked"),
        ({}, Revocations(token_ids=[MADE.id]), "has been revoked"),
        ({}, Revocations(subjects=["chat"]), "Subject is no longer active"),
    ],
)
def test_a_revoked_key_is_refused_and_told_by_its_id(
    changes: dict[str, object], revocations: Revocations, reason: str
) -> None:
    told = Told()
    with pytest.raises(TokenInvalidError, match=reason) as caught:
        keys_of(key_of(**changes), told=told, revocations=revocations).verify(MADE.text)
    assert caught.value.metadata == {"key_id": MADE.id}
    assert told.uses == [(MADE.id, "revoked")]


def test_a_key_is_valid_until_its_end_and_not_a_second_longer() -> None:
    clock, told = Clock(), Told()
    keys = ApiKeys(
        now=clock, revocations=Revocations(), keys=[key_of(expires=NOW + timedelta(seconds=9))], observer=told
    )
    keys.verify(MADE.text)
    clock.time += timedelta(seconds=9)
    with pytest.raises(TokenExpiredError, match="API key has expired"):
        keys.verify(MADE.text)
    assert told.uses == [(MADE.id, "accepted"), (MADE.id, "expired")]


def test_who_has_no_right_secret_does_not_learn_that_a_key_was_revoked() -> None:
    wrong = MADE.text[:-1] + ("A" if MADE.text[-1] != "A" else "B")
    with pytest.raises(TokenInvalidError, match="not known here"):
        keys_of(key_of(is_revoked=True)).verify(wrong)


def test_replaced_keys_are_refused_at_once() -> None:
    keys = keys_of(key_of())
    keys.replace([])
    with pytest.raises(TokenInvalidError, match="not known here"):
        keys.verify(MADE.text)


async def test_a_server_without_api_keys_takes_one_for_no_token() -> None:
    with pytest.raises(TokenInvalidError, match="not a JSON Web Token"):
        await verifier_of(now=Clock()).verify(MADE.text)


def test_no_log_line_can_hold_a_key(caplog: pytest.LogCaptureFixture) -> None:
    assert MADE.text not in redact(f"Bearer {MADE.text} and {MADE.text}")
    with caplog.at_level(logging.INFO, logger="test"):
        emit_line(logging.getLogger("test"), logging.INFO, "%s", redact(MADE.text), fields={"token": MADE.text})
    assert MADE.text not in caplog.text
