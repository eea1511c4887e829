from __future__ import annotations

from typing import Any

from reasond_server.config.problems import build_settings_error, explain
from reasond_server.errors.base import Violation


def test_an_error_without_words_of_its_own_is_still_located() -> None:
    error: Any = {"type": "new_in_some_release", "loc": ("server", "tls"), "msg": "foreign", "input": "x"}
    assert explain(error) == Violation(field="server.tls", description="is not valid, not 'x'")


def test_bounds_are_written_as_people_write_them() -> None:
    for bound, text in ((2_592_000.0, "2592000"), (0.05, "0.05"), (68_719_476_736, "68719476736")):
        error: Any = {"type": "less_than_equal", "loc": ("x",), "msg": "", "input": 1, "ctx": {"le": bound}}
        assert explain(error).description == f"must be at most {text}, not 1"


def test_one_problem_is_called_one() -> None:
    error = build_settings_error([Violation(field="a", description="is wrong")], {"a": "file f", "b": "default"})
    assert error.message == "The configuration has one problem:\n  a: is wrong (file f)"
    assert build_settings_error([Violation(field="b", description="is wrong")], {"b": "default"}).message.endswith(
        "is wrong"
    )
