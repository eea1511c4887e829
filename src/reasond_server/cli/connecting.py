"""Connects the command line to a server: options override the environment, errors become exit codes."""

from __future__ import annotations

import contextlib
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import reasond
from reasond import Client
from reasond_server.cli.outcome import CommandError, ExitCode
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

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
class Way:
    """The command-line options for reaching the server; None means that the environment decides."""

    target: str | None
    token: str | None
    is_tls: bool
    ca_file: Path | None
    timeout_s: float | None


def environment_of(way: Way, environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return `environ` overridden by the options of `way`, for `Client.from_env`."""
    chosen = {
        "REASOND_TARGET": way.target,
        "REASOND_TOKEN": way.token,
        "REASOND_TLS": "true" if way.is_tls or way.ca_file else None,
        "REASOND_CA_FILE": str(way.ca_file) if way.ca_file else None,
        "REASOND_TIMEOUT_S": None if way.timeout_s is None else str(way.timeout_s),
    }
    default = {"REASOND_TIMEOUT_S": str(DEFAULT_TIMEOUT_S)}
    return {**default, **environ, **{name: value for name, value in chosen.items() if value is not None}}


def target_of(way: Way, environ: Mapping[str, str]) -> str:
    """Return the address that will be called."""
    return environment_of(way, environ).get("REASOND_TARGET", "").strip() or _DEFAULT_TARGET


def open_client(way: Way, environ: Mapping[str, str]) -> Client:
    """Return a client.

    Raises:
        CommandError: an option or an environment variable is invalid.
    """
    try:
        return Client.from_env(environment_of(way, environ))
    except ValueError as error:
        hint = "On the command line: --tls, or --ca-file FILE." if "plain text" in str(error) else ""
        raise CommandError(_sentence(error), remedy=hint, code=ExitCode.BAD_REQUEST) from None
    except OSError as error:
        name = f"The file {error.filename} cannot be read: {error.strerror}"
        raise CommandError(name, code=ExitCode.BAD_REQUEST) from None


@contextlib.contextmanager
def failures(target: str, *, has_result: Callable[[], bool] = lambda: True, resume: str = "ask") -> Iterator[None]:
    """Convert the errors of a call to `target` into a CommandError with an exit code and a remedy.

    `has_result` returns whether a failed execution has a result with content, which the command `resume` shows.
    """
    try:
        yield
    except reasond.ReasondError as error:
        raise _command_error(error, target, resume=resume if has_result() else "") from None
    except (ValueError, TypeError) as error:
        raise CommandError(_sentence(error), code=ExitCode.BAD_REQUEST) from None


@contextlib.contextmanager
def connect(
    way: Way, environ: Mapping[str, str], *, has_result: Callable[[], bool] = lambda: True, resume: str = "ask"
) -> Iterator[Client]:
    """Yield a client, whose errors become CommandErrors; the other arguments are those of `failures`.

    Raises:
        CommandError: an option or an environment variable is invalid, or a call failed.
    """
    with (
        open_client(way, environ) as client,
        failures(target_of(way, environ), has_result=has_result, resume=resume),
    ):
        yield client


def exit_code_of(error: reasond.ReasondError) -> ExitCode:
    """Return the exit code for `error`."""
    return _CODES_BY_REASON.get(error.reason, _CODES.get(type(error), ExitCode.FAILURE))


def _command_error(error: reasond.ReasondError, target: str, *, resume: str) -> CommandError:
    code = exit_code_of(error)
    if error.reason == "UNAVAILABLE":
        return CommandError(
            f"No server answers at {target}",
            remedy="Start one with `reasond serve --dev`, or name another with --target or REASOND_TARGET. "
            "A server with TLS needs --tls or --ca-file.",
            code=code,
        )
    return CommandError(error.message or error.reason, remedy=_remedy(error, resume=resume), code=code)


def _remedy(error: reasond.ReasondError, *, resume: str) -> str:
    hints = []
    if error.reason in {"TOKEN_MISSING", "TOKEN_EXPIRED", "TOKEN_INVALID"}:
        hints.append("Give a token with --token or REASOND_TOKEN; `reasond serve --dev` prints one.")
    if error.reason == "DEADLINE_EXCEEDED":
        hints.append("Allow more time with --timeout.")
    if error.retry_after is not None:
        hints.append(f"Try again in {error.retry_after:g} s.")
    if error.execution_id and resume and not isinstance(error, reasond.NotFoundError):
        hints.append(f"What was done is kept: reasond {resume} --resume {error.execution_id}")
    return "\n  ".join(hints)


def _sentence(error: Exception) -> str:
    text = str(error)
    # The name of a parameter keeps its case.
    return text if "_" in text.partition(" ")[0] else text[:1].upper() + text[1:]
