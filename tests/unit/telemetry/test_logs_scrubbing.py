"""No secret appears in either format of the logs, wherever in the text it stands."""

from __future__ import annotations

import base64
import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.telemetry.logs import (
    CONTENT_FIELDS,
    build_human_formatter,
    build_json_formatter,
    has_marks,
    redact,
    shown_value,
)

SAFE = st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_", min_size=12, max_size=40)
ORDINARY = st.text(max_size=60)


def jwt(body: str) -> str:
    head = base64.urlsafe_b64encode(b'{"alg":"HS256"}').decode().rstrip("=")
    return f"{head}.{body}.{body[::-1]}"


# A text with a planted secret, and the secret part of it.
PLANTED = SAFE.flatmap(
    lambda core: st.sampled_from(
        [
            (jwt(f"Zq{core}"), f"Zq{core}"),
            (f"Bearer Zq{core}", f"Zq{core}"),
            (f"bAsIc  Zq{core}", f"Zq{core}"),
            (f"Authorization: Zq{core}", f"Zq{core}"),
            (f"api_key=Zq{core}", f"Zq{core}"),
            (f"api-key: 'Zq{core}'", f"Zq{core}"),
            (f'{{"password": "Zq{core}"}}', f"Zq{core}"),
            (f"my_secret = Zq{core}", f"Zq{core}"),
            (f"?access_token=Zq{core}&x=1", f"Zq{core}"),
            (f'"refresh_token": "Zq{core}"', f"Zq{core}"),
            (f"postgresql://ann:Zq{core}@db.example:5432/reasond", f"Zq{core}"),
            (f"redis://:at@Zq{core}@127.0.0.1", f"Zq{core}"),
            (f"Incorrect API credential: sk-proj-Zq{core}", f"Zq{core}"),
        ]
    )
)


def nest(leaf: object, depth: int) -> object:
    for level in range(depth):
        leaf = {"inner": leaf, "n": level} if level % 2 else [leaf, level]
    return leaf


def raise_error(text: str) -> Any:
    try:
        try:
            raise KeyError(text)  # noqa: TRY301 - the chain is what is tested
        except KeyError as error:
            raise ValueError(f"while {text}") from error
    except ValueError as error:
        return (type(error), error, error.__traceback__)


@given(PLANTED, ORDINARY, ORDINARY, st.integers(0, 6), st.sampled_from(["message", "args", "extra", "nested", "error"]))
def test_no_planted_secret_survives_anywhere(
    planted: tuple[str, str], before: str, after: str, depth: int, place: str
) -> None:
    text, core = planted
    whole = f"{before} {text} {after}"
    record = logging.makeLogRecord({"name": "reasond.test", "levelno": logging.INFO, "levelname": "INFO", "msg": "m"})
    if place == "message":
        record.msg = whole
    elif place == "args":
        record.msg, record.args = "%s and %r", (whole, {"x": text})
    elif place == "extra":
        record.__dict__["note"] = whole
    elif place == "nested":
        record.__dict__["facts"] = nest(text, depth)
    else:
        record.exc_info = raise_error(text)
    for formatter in (build_json_formatter(), build_human_formatter(), build_human_formatter(has_colors=True)):
        assert core not in formatter.format(record)


@given(st.sampled_from(["token", "Authorization", "api-key", "password", "client_secret", "cookie"]), SAFE)
def test_a_field_that_is_named_as_a_secret_is_hidden_at_any_depth(name: str, value: str) -> None:
    assert f"Zq{value}" not in json.dumps(shown_value({"a": [{name: f"Zq{value}"}]}))


@given(st.sampled_from(sorted(CONTENT_FIELDS)), SAFE)
def test_content_is_left_out_at_any_depth(name: str, value: str) -> None:
    assert f"Zq{value}" not in json.dumps(shown_value({"a": [{name: f"Zq{value}"}]}))


@given(ORDINARY)
def test_what_shows_no_mark_stays_as_it_is(text: str) -> None:
    if not has_marks(text):
        assert redact(text) == text


NESTED = st.recursive(
    st.none() | st.booleans() | st.floats() | ORDINARY | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(ORDINARY, inner),
)


@pytest.mark.slow
@given(NESTED)
def test_every_value_becomes_what_json_can_say(value: object) -> None:
    json.dumps(shown_value(value), allow_nan=False).encode("utf-8")


def test_a_value_that_cannot_say_what_it_is_costs_no_line() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError

    assert shown_value(Silent()) == "<Silent>"


def test_a_long_traceback_is_redacted_before_it_is_cut() -> None:
    record = logging.makeLogRecord({"msg": "m", "levelname": "INFO"})
    record.exc_text = jwt("Zq" + "x" * 8000 + "y" * 400)
    assert "yyyy" not in build_json_formatter().format(record)


@pytest.mark.parametrize(
    "text",
    [
        *("3 secrets", "basics of keys", "eye exam", "whoever bears them", "the author: x"),
        *("http://127.0.0.1:8001/a", "a://b c:d@e", "risk-free-and-long-enough-a-word", "access: denied, refresh: 3 s"),
    ],
)
def test_words_that_only_resemble_secrets_stay(text: str) -> None:
    assert redact(text) == text
