from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from reasond_server.cli.examples import Endpoints, find_program, format_exports, list_calls, list_turn_calls

if TYPE_CHECKING:
    import pytest

HOSTILE = 'Isn\'t "$HOME" `id` $(id) \\ 100%?'
PLACE = Endpoints(grpc="127.0.0.1:50051", http="http://127.0.0.1:8001")


def test_a_query_reaches_every_program_as_it_is_whatever_it_holds() -> None:
    for name, command in list_calls(HOSTILE, PLACE):
        words = shlex.split(command)
        assert any(HOSTILE in word or HOSTILE in word.encode().decode("unicode_escape") for word in words), name


def test_a_turn_and_its_tool_reach_every_program_as_they_are_whatever_they_hold() -> None:
    found = list_turn_calls(HOSTILE, "title", HOSTILE, PLACE)
    assert [name for name, _ in found] == ["grpcurl", "Python", "curl"]
    for name, command in found:
        words = shlex.split(command)
        assert any(HOSTILE in word or HOSTILE in word.encode().decode("unicode_escape") for word in words), name
        assert any("title" in word for word in words), name
    off = Endpoints(grpc="unix:/s", http="")
    assert [name for name, _ in list_turn_calls("x", "title", "y", off)] == ["grpcurl", "Python"]


def test_http_that_is_off_has_no_curl_line() -> None:
    assert [name for name, _ in list_calls("x", PLACE)] == ["reasond", "grpcurl", "Python", "curl"]
    assert [name for name, _ in list_calls("x", Endpoints(grpc="unix:/s", http=""))] == ["reasond", "grpcurl", "Python"]


def test_tls_is_part_of_the_calls() -> None:
    place = Endpoints(grpc="h:1", http="https://h:2", is_encrypted=True)
    assert "-plaintext" not in dict(list_calls("x", place))["grpcurl"]
    assert "https://h:2/" in dict(list_calls("x", place))["curl"]
    assert format_exports(place, "a b") == "export REASOND_TARGET=h:1 REASOND_TOKEN='a b' REASOND_TLS=1"
    assert format_exports(PLACE, "t") == "export REASOND_TARGET=127.0.0.1:50051 REASOND_TOKEN=t"


def test_a_program_that_the_shell_would_find_goes_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert find_program("reasond") == "reasond"


def test_a_program_off_the_path_goes_by_the_way_from_here(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(sys.executable).parent
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.chdir(folder.parent)
    assert find_program("reasond") == f"{folder.name}/reasond"
    monkeypatch.chdir("/")
    assert Path("/", find_program("reasond")) == folder / "reasond"
    assert find_program("not-there") == "not-there"
