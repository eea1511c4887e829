from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import grpc
import pytest

import reasond
from reasond_server.cli.connection import (
    ConnectionOptions,
    build_environment,
    convert_errors,
    find_protocol,
    find_target,
    format_json,
    get_exit_code,
    open_client,
)
from reasond_server.cli.outcome import CommandError, ExitCode
from reasond_server.testing import running_server_in_thread
from tests.unit.grpc_api.certificates import Authority, write

NOTHING = ConnectionOptions(target=None, token=None, is_tls=False, ca_file=None, timeout_s=None)
LEAVES = reasond.ReasondError.__subclasses__()


def test_options_win_over_the_environment_and_defaults_lose_to_it() -> None:
    environ = {"REASOND_TARGET": "env:1", "REASOND_TOKEN": "env", "OTHER": "kept"}
    assert build_environment(NOTHING, environ) == {"REASOND_TIMEOUT_S": "600.0", **environ}
    connection = ConnectionOptions(target="opt:2", token="opt", is_tls=True, ca_file=None, timeout_s=3.0)
    assert build_environment(connection, environ) == {
        "REASOND_TARGET": "opt:2",
        "REASOND_TOKEN": "opt",
        "REASOND_TLS": "true",
        "REASOND_TIMEOUT_S": "3.0",
        "OTHER": "kept",
    }


def test_the_default_target_is_the_default_address_of_the_server() -> None:
    assert find_target(NOTHING, {}) == "127.0.0.1:50051"
    assert find_target(NOTHING, {"REASOND_TARGET": " "}) == "127.0.0.1:50051"


@pytest.mark.parametrize(
    ("connection", "words", "remedy"),
    [
        (dataclasses.replace(NOTHING, target="10.1.2.3:1", token="t"), "plain text", "--tls"),
        (dataclasses.replace(NOTHING, timeout_s=-1.0), "REASOND_TIMEOUT_S must be", ""),
        (dataclasses.replace(NOTHING, ca_file=Path("/nonexistent/ca.pem")), "/nonexistent/ca.pem cannot be read", ""),
    ],
)
def test_an_option_that_cannot_be_used_is_a_bad_request_with_words(
    connection: ConnectionOptions, words: str, remedy: str
) -> None:
    with pytest.raises(CommandError) as caught:
        open_client(connection, {})
    assert caught.value.code is ExitCode.BAD_REQUEST
    assert words in caught.value.message
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("kind", LEAVES)
def test_every_error_of_the_client_has_its_exit_code(kind: type[reasond.ReasondError]) -> None:
    expected = ExitCode.FAILURE if kind is reasond.InternalError else get_exit_code(kind("x"))
    assert get_exit_code(kind("x")) is expected
    assert (get_exit_code(kind("x")) is ExitCode.FAILURE) == (kind is reasond.InternalError)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (reasond.StrategyError("x", reason="STRATEGY_NOT_FOUND"), ExitCode.NOT_FOUND),
        (reasond.StrategyError("x", reason="STRATEGY_REQUIRED"), ExitCode.BAD_REQUEST),
        (reasond.UnavailableError("x", reason="OVERLOADED"), ExitCode.LIMIT),
        (reasond.UnavailableError("x", reason="DRAINING"), ExitCode.UNREACHABLE),
    ],
)
def test_the_reason_decides_where_the_class_does_not(error: reasond.ReasondError, code: ExitCode) -> None:
    assert get_exit_code(error) is code


@pytest.mark.parametrize(
    ("error", "message", "remedy"),
    [
        (
            reasond.UnavailableError("ipv4:1.2.3.4 refused", reason="UNAVAILABLE", code=grpc.StatusCode.UNAVAILABLE),
            "No server answers at here:1",
            "reasond serve --dev",
        ),
        (reasond.AuthenticationError("No token", reason="TOKEN_MISSING"), "No token", "REASOND_TOKEN"),
        (reasond.DeadlineExceededError("", reason="DEADLINE_EXCEEDED"), "DEADLINE_EXCEEDED", "--timeout"),
        (reasond.UnavailableError("Full", reason="OVERLOADED", retry_after=1.5), "Full", "Try again in 1.5 s."),
        (reasond.ModelError("Broke", execution_id="abc"), "Broke", "reasond ask --resume abc"),
        (reasond.NotFoundError("Gone", execution_id="abc"), "Gone", ""),
        (ValueError("config needs `strategy`"), "Config needs `strategy`", ""),
        (ValueError("max_tokens cannot be 'x'"), "max_tokens cannot be 'x'", ""),
    ],
)
def test_a_failed_call_says_what_and_what_to_do(error: Exception, message: str, remedy: str) -> None:
    with pytest.raises(CommandError) as caught, convert_errors("here:1"):
        raise error
    assert caught.value.message == message
    assert remedy in caught.value.remedy
    assert bool(remedy) == bool(caught.value.remedy)


def refuse(target: str, *, is_tls: bool) -> CommandError:
    with pytest.raises(CommandError) as caught, convert_errors(target, is_tls=is_tls):
        raise reasond.UnavailableError("refused", reason="UNAVAILABLE", code=grpc.StatusCode.UNAVAILABLE)
    return caught.value


def test_what_answers_in_place_of_the_server_that_was_meant_is_told_with_its_own_remedy(tmp_path: Path) -> None:
    files = write(tmp_path, Authority("ours").issue("server"))
    encrypted = {f"REASOND__SERVER__{name.upper()}": path for name, path in files.items()}
    with (
        running_server_in_thread() as plain,
        running_server_in_thread(environ={"REASOND__SERVER__TLS": "files", **encrypted}) as secured,
    ):
        http = plain.http.partition("://")[2]
        kinds = [find_protocol(address) for address in (plain.grpc, http, secured.grpc, "127.0.0.1:9", "x")]
        assert kinds == ["grpc", "http", "tls", "", ""]
        assert "HTTP/1.1 answers" in refuse(http, is_tls=False).message
        assert "grpc_address" in refuse(http, is_tls=False).remedy
        assert "speaks without TLS" in refuse(plain.grpc, is_tls=True).message
        assert "Leave out --tls" in refuse(plain.grpc, is_tls=True).remedy
        assert "Call it with --tls" in refuse(secured.grpc, is_tls=False).remedy
        assert "--ca-file" in refuse(secured.grpc, is_tls=True).remedy
        assert "--tls" not in refuse("127.0.0.1:9", is_tls=True).remedy


def test_control_characters_in_json_are_escapes_that_mean_the_same() -> None:
    text = "\x9b31m \u202e hidden \x7f"
    line = format_json(reasond.Reasoning(answer=text))
    assert not set("\x9b\u202e\x7f") & set(line)
    assert json.loads(line)["answer"] == text
