"""Connects the command line to a server: options override the environment, errors become exit codes."""

from __future__ import annotations

import contextlib
import socket
import ssl
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from google.protobuf.json_format import MessageToJson

import reasond
from reasond import Client
from reasond_server.base.addresses import split_address
from reasond_server.cli.outcome import CommandError, ExitCode
from reasond_server.cli.terminal import escape_controls
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from google.protobuf.message import Message

# Longer than the client's own default: a person watches the steps and can press Ctrl-C.
DEFAULT_TIMEOUT_S: Final = 600.0
_DEFAULT_TARGET = "127.0.0.1:50051"
_CODES: Final[Mapping[type[reasond.ReasondError], ExitCode]] = MappingProxyType(
    {
        reasond.InvalidRequestError: ExitCode.BAD_REQUEST,
        reasond.StrategyError: ExitCode.BAD_REQUEST,
        reasond.ConflictError: ExitCode.BAD_REQUEST,
        reasond.AuthenticationError: ExitCode.NOT_ALLOWED,
        reasond.PermissionDeniedError: ExitCode.NOT_ALLOWED,
        reasond.NotFoundError: ExitCode.NOT_FOUND,
        reasond.ResourceExhaustedError: ExitCode.LIMIT,
        reasond.DeadlineExceededError: ExitCode.LIMIT,
        reasond.ModelError: ExitCode.MODEL,
        reasond.UnavailableError: ExitCode.UNREACHABLE,
        reasond.CallCancelledError: ExitCode.INTERRUPTED,
    }
)
_CODES_BY_REASON: Final = MappingProxyType({"STRATEGY_NOT_FOUND": ExitCode.NOT_FOUND, "OVERLOADED": ExitCode.LIMIT})


@value
class ConnectionOptions:
    """The command-line options for reaching the server; None means that the environment decides."""

    target: str | None
    token: str | None
    is_tls: bool
    ca_file: Path | None
    timeout_s: float | None


def build_environment(connection: ConnectionOptions, environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return `environ` overridden by the options of `connection`, for `Client.from_env`."""
    chosen = {
        "REASOND_TARGET": connection.target,
        "REASOND_TOKEN": connection.token,
        "REASOND_TLS": "true" if connection.is_tls or connection.ca_file else None,
        "REASOND_CA_FILE": str(connection.ca_file) if connection.ca_file else None,
        "REASOND_TIMEOUT_S": None if connection.timeout_s is None else str(connection.timeout_s),
    }
    default = {"REASOND_TIMEOUT_S": str(DEFAULT_TIMEOUT_S)}
    return {**default, **environ, **{name: value for name, value in chosen.items() if value is not None}}


def find_target(connection: ConnectionOptions, environ: Mapping[str, str]) -> str:
    """Return the address that will be called."""
    return build_environment(connection, environ).get("REASOND_TARGET", "").strip() or _DEFAULT_TARGET


def open_client(connection: ConnectionOptions, environ: Mapping[str, str]) -> Client:
    """Return a client.

    Raises:
        CommandError: an option or an environment variable is invalid.
    """
    try:
        return Client.from_env(build_environment(connection, environ))
    except ValueError as error:
        hint = "On the command line: --tls, or --ca-file FILE." if "plain text" in str(error) else ""
        raise CommandError(_capitalize(error), remedy=hint, code=ExitCode.BAD_REQUEST) from None
    except OSError as error:
        name = f"The file {error.filename} cannot be read: {error.strerror}"
        raise CommandError(name, code=ExitCode.BAD_REQUEST) from None


@contextlib.contextmanager
def convert_errors(
    target: str, *, has_result: Callable[[], bool] = lambda: True, resume: str = "ask", is_tls: bool = False
) -> Iterator[None]:
    """Convert the errors of a call to `target` into a CommandError with an exit code and a remedy.

    `has_result` returns whether a failed execution has a result with content, which the command `resume` shows.
    """
    try:
        yield
    except reasond.ReasondError as error:
        raise _make_command_error(error, target, resume=resume if has_result() else "", is_tls=is_tls) from None
    except (ValueError, TypeError) as error:
        raise CommandError(_capitalize(error), code=ExitCode.BAD_REQUEST) from None


@contextlib.contextmanager
def connect(
    connection: ConnectionOptions,
    environ: Mapping[str, str],
    *,
    has_result: Callable[[], bool] = lambda: True,
    resume: str = "ask",
) -> Iterator[Client]:
    """Yield a client, whose errors become CommandErrors; the other arguments are those of `convert_errors`.

    Raises:
        CommandError: an option or an environment variable is invalid, or a call failed.
    """
    with (
        open_client(connection, environ) as client,
        convert_errors(
            find_target(connection, environ),
            has_result=has_result,
            resume=resume,
            is_tls=_wants_tls(build_environment(connection, environ)),
        ),
    ):
        yield client


def _wants_tls(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("REASOND_CA_FILE")) or environ.get("REASOND_TLS", "").lower() in {"1", "true", "yes", "on"}


def get_exit_code(error: reasond.ReasondError) -> ExitCode:
    """Return the exit code for `error`."""
    return _CODES_BY_REASON.get(error.reason, _CODES.get(type(error), ExitCode.FAILURE))


def _make_command_error(error: reasond.ReasondError, target: str, *, resume: str, is_tls: bool) -> CommandError:
    code = get_exit_code(error)
    if error.reason == "UNAVAILABLE":
        message, remedy = _UNREACHED.get((find_protocol(target), is_tls), _NOBODY)
        return CommandError(message.format(target), remedy=remedy, code=code)
    return CommandError(error.message or error.reason, remedy=_list_remedies(error, resume=resume), code=code)


_NOBODY: Final = (
    "No server answers at {}",
    "Start one with `reasond serve --dev`, or name another with --target or REASOND_TARGET.",
)
_HTTP: Final = (
    "A server of HTTP/1.1 answers at {}, and this command speaks gRPC",
    "Name the address of gRPC with --target: [server] grpc_address, which is 127.0.0.1:50051 unless it is set.",
)
_UNREACHED: Final[Mapping[tuple[str, bool], tuple[str, str]]] = MappingProxyType(
    {
        ("http", False): _HTTP,
        ("http", True): _HTTP,
        ("grpc", True): (
            "The server at {} speaks without TLS",
            "Leave out --tls and --ca-file, and unset REASOND_TLS and REASOND_CA_FILE.",
        ),
        ("tls", False): ("The server at {} speaks TLS", "Call it with --tls, or with --ca-file FILE."),
        ("tls", True): (
            "The server at {} speaks TLS, and the connection was refused",
            "Name the authority of its certificate with --ca-file FILE, and the server by a name in its certificate.",
        ),
    }
)
_QUESTION: Final = b"GET /healthz HTTP/1.1\r\nhost: reasond\r\nconnection: close\r\n\r\n"
_PEEK_LIMIT_S: Final = 2.0


def find_protocol(target: str) -> str:
    """Return what answers at `target` to a request of HTTP/1.1: "http", "tls", "grpc" for HTTP/2; empty for nothing."""
    try:
        host, port = split_address(target.removeprefix("dns:///"))
        with socket.create_connection((host, port), timeout=_PEEK_LIMIT_S) as line:
            line.sendall(_QUESTION)
            answer = line.recv(9)
    except (OSError, ValueError):
        return ""
    if answer.startswith(b"HTTP/1"):
        return "http"
    # The first frame of an HTTP/2 server, which has its type after three bytes of length.
    if answer[3:4] == b"\x04":
        return "grpc"
    return "tls" if _speaks_tls(host, port) else ""


def _speaks_tls(host: str, port: int) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Nothing is sent over this connection, and whoever answers is only told of.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with socket.create_connection((host, port), timeout=_PEEK_LIMIT_S) as line, context.wrap_socket(line):
            return True
    except OSError:
        return False


def _list_remedies(error: reasond.ReasondError, *, resume: str) -> str:
    hints = []
    if error.reason in {"TOKEN_MISSING", "TOKEN_EXPIRED", "TOKEN_INVALID"}:
        hints.append(
            "Give a token with --token or REASOND_TOKEN; `reasond serve --dev` prints one, and after each restart it "
            "has a new key, which takes no earlier token."
        )
    if error.reason == "DEADLINE_EXCEEDED":
        hints.append("Allow more time with --timeout.")
    if error.retry_after is not None:
        hints.append(f"Try again in {error.retry_after:g} s.")
    if error.execution_id and resume and not isinstance(error, reasond.NotFoundError):
        hints.append(f"What was done is kept: reasond {resume} --resume {error.execution_id}")
    return "\n  ".join(hints)


def _capitalize(error: Exception) -> str:
    text = str(error)
    # The name of a parameter keeps its case.
    return text if "_" in text.partition(" ")[0] else text[:1].upper() + text[1:]


def format_json(message: Message) -> str:
    """Return a message as one line of JSON with the field names of the protos; empty fields are printed too."""
    text = MessageToJson(
        message,
        indent=None,
        ensure_ascii=False,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )
    return escape_controls(text)
