"""Exit codes and error messages of commands. No traceback ever reaches the user."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from reasond_server.cli.terminal import sanitize, write
from reasond_server.errors.base import ReasondError, SettingsError

TRACEBACK_VARIABLE = "REASOND_TRACEBACK"


class ExitCode(IntEnum):
    """The exit codes of `reasond`."""

    OK = 0
    FAILURE = 1
    BAD_REQUEST = 2
    NOT_ALLOWED = 3
    NOT_FOUND = 4
    LIMIT = 5
    MODEL = 6
    UNREACHABLE = 7
    NOT_ACCEPTED = 8
    NOT_APPLIED = 9
    NEEDS_REVIEW = 10
    INTERRUPTED = 130
    BROKEN_PIPE = 141


MEANINGS: Final[Mapping[ExitCode, str]] = MappingProxyType(
    {
        ExitCode.OK: "done; for `ask`: answered; for `repair`: a patch was accepted",
        ExitCode.FAILURE: "a failure inside reasond",
        ExitCode.BAD_REQUEST: "the command line, the request or the configuration is wrong",
        ExitCode.NOT_ALLOWED: "not authenticated or not permitted",
        ExitCode.NOT_FOUND: "no such strategy, execution or agent",
        ExitCode.LIMIT: "a limit, a budget, a deadline or the length was reached, or the server is full",
        ExitCode.MODEL: "the language model failed or withheld the text",
        ExitCode.UNREACHABLE: "no server answers, or it is shutting down",
        ExitCode.NOT_ACCEPTED: "`repair` found no patch that passes everything that was asked for",
        ExitCode.NOT_APPLIED: "a patch was accepted and does not apply here; nothing was changed",
        ExitCode.NEEDS_REVIEW: "`repair`: a patch was accepted, but needs review; nothing was applied",
        ExitCode.INTERRUPTED: "interrupted or cancelled",
        ExitCode.BROKEN_PIPE: "whoever read the output stopped reading",
    }
)
"""The description of each exit code in `reasond --help` and the guide."""


class CommandError(Exception):
    """A command cannot do what was asked; `remedy` is the advice for the user."""

    def __init__(self, message: str, *, remedy: str = "", code: ExitCode = ExitCode.FAILURE) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.code = code


def usage_error(message: str, remedy: str) -> CommandError:
    """Return the error for a request that is wrong; the message may begin with a small letter."""
    return CommandError(message[:1].upper() + message[1:], remedy=remedy, code=ExitCode.BAD_REQUEST)


def finish(command: Callable[[], ExitCode]) -> ExitCode:
    """Run `command`, print its error to stderr if it fails, and return the exit code."""
    try:
        code = command()
        sys.stdout.flush()
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        _forget_output()
        return ExitCode.BROKEN_PIPE
    except Exception as error:
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        return _explain(error)
    return code


def _explain(error: Exception) -> ExitCode:
    """Print why a command failed; the text of foreign errors is not printed."""
    if isinstance(error, CommandError):
        return say(error.message, error.remedy, error.code)
    if isinstance(error, ReasondError):
        code = ExitCode.BAD_REQUEST if isinstance(error, SettingsError) else ExitCode.FAILURE
        return say(error.message, error.remedy, code)
    if isinstance(error, ImportError):
        remedy = "Install reasond-server again; `reasond doctor` says what is missing."
        return say(f"reasond cannot import {error.name or 'a module'}", remedy, ExitCode.FAILURE)
    fault = f"reasond met a fault of its own ({type(error).__name__})"
    return say(fault, f"Run it again with {TRACEBACK_VARIABLE}=1 and report what it prints.", ExitCode.FAILURE)


def say(message: str, remedy: str, code: ExitCode) -> ExitCode:
    """Print an error and its remedy to stderr; return `code`."""
    write(f"error: {sanitize(message)}", stream=sys.stderr)
    if remedy:
        write(f"  {sanitize(remedy)}", stream=sys.stderr)
    return code


def warn(message: str) -> None:
    """Print a warning to stderr."""
    write(f"warning: {sanitize(message)}", stream=sys.stderr)


def _forget_output() -> None:
    """Redirect stdout to the null device, so that the interpreter's last flush does not fail as ours did."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)
